"""SFT: the cold start. Phases run in order, each from the weights of the one before; then the parse-rate gate on dev.

Not covered: packing, and phases on data other than the round's demonstrations.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from evals.gates import parse_gate
from evals.suites import halves
from schemas.artifact import ArtifactRef
from schemas.base import Digest, Json
from schemas.errors import InputError
from schemas.goal import GoalRecord
from schemas.metrics import Decision
from schemas.sft import SftRecord
from schemas.task import Split, Task
from schemas.trajectory import Attempt, Purpose
from stages.artifacts import scratch, store
from stages.attempts import write_attempts
from stages.checkpoints import folder_of, start_checkpoint
from stages.context import Context
from stages.demonstrations import load_demonstrations
from stages.equipment import equip, errors_in
from stages.models import checkpoint_of
from stages.samplers import use_threads
from stages.tasks import bench_pins, load_tasks, round_robin

Inputs = tuple[dict[str, Json], dict[str, Digest]]


def inputs(ctx: Context) -> Inputs:
    goal: GoalRecord = ctx.record("goal")
    data = ctx.record("data")
    sections = rollout_sections(goal)
    sections["sft"] = goal.spec.sft.model_dump(mode="json")
    pins = {
        **bench_pins(goal),
        "start": start_checkpoint(ctx)[1],
        "demonstrations": data.artifacts["demonstrations"].digest,
        "tasks": data.artifacts["tasks"].digest,
    }
    return sections, pins


def rollout_sections(goal: GoalRecord) -> dict[str, Json]:
    """Parts of the spec that every rollout depends on."""
    spec = goal.spec
    return {
        "seed": spec.seed,
        "sampling": spec.sampling.model_dump(mode="json"),
        "budgets": spec.budgets.model_dump(mode="json"),
        "safety": spec.safety.model_dump(mode="json"),
        "rewards": spec.rewards.model_dump(mode="json"),
    }


def run(ctx: Context, key: Digest, pins: dict[str, Digest]) -> SftRecord:
    from stages.trainers.sft import train_sft

    goal: GoalRecord = ctx.record("goal")
    spec = goal.spec.sft
    for gate in ctx.record("data").gates:
        if gate.decision is Decision.NO_GO:
            return SftRecord(key=key, inputs=pins, skipped=f"{gate.name} gate: {gate.because}; {gate.owner} should act")
    rows = [row["messages"] for row in load_demonstrations(ctx)]
    if not rows:
        raise InputError("sft: the data stage left no demonstrations; set data.demonstrations in goal.yaml")
    origin, parent = start_checkpoint(ctx)
    start = folder_of(ctx, origin, parent)
    loss: list[float] = []
    use_threads(goal.spec.sampling.threads)
    with scratch(ctx.workspace) as work:
        for number, phase in enumerate(spec.phases):
            out, adapter = work / f"{number}-merged", work / f"{number}-adapter"
            with ctx.telemetry.timing("training_s"):
                result = train_sft(start, out, adapter, rows, phase, goal.spec.seed, progress=ctx.progress)
            loss += result.loss
            start = out
        checkpoint = store(ctx.workspace, "sft", "checkpoint", mover(start))
        kept = store(ctx.workspace, "sft", "adapter", mover(adapter))
    attempts = _gate_attempts(ctx, goal, checkpoint)
    gate = parse_gate(attempts, spec)
    table = store(
        ctx.workspace, "sft", "attempts", lambda folder: write_attempts(folder / "attempts.parquet", attempts)
    )
    return SftRecord(
        key=key,
        inputs=pins,
        artifacts={"checkpoint": checkpoint, "adapter": kept, "attempts": table},
        gates=[gate],
        infrastructure_errors=errors_in(attempts),
        checkpoint=checkpoint_of(ctx.workspace.open_artifact(checkpoint), parent=parent),
        rows=len(rows),
        loss=loss,
    )


def mover(source: Path) -> Callable[[Path], None]:
    """A builder that moves what a trainer left into its artifact: weights are not written twice."""

    def move(folder: Path) -> None:
        for path in sorted(source.iterdir()):
            shutil.move(path, folder / path.name)

    return move


def choosing(ctx: Context, skills: list[str], count: int) -> list[Task]:
    """Dev tasks that gates may look at: the choosing half, never the half that measures, never the held-out."""
    goal: GoalRecord = ctx.record("goal")
    half = halves([task for task in load_tasks(ctx) if task.split is Split.DEV])[
        0
    ]  # halved first: the same half for all
    return round_robin([task for task in half if not skills or task.skill in skills], count, goal.spec.seed)


def _gate_attempts(ctx: Context, goal: GoalRecord, checkpoint: ArtifactRef) -> list[Attempt]:
    tasks = choosing(ctx, [], goal.spec.sft.gate_tasks)
    with equip(ctx, goal) as bench:
        sampler = bench.sampler(ctx.workspace.open_artifact(checkpoint))
        return bench.attempt(sampler, bench.requests(tasks, 2, Purpose.HEADROOM, sampler.policy))

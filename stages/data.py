"""Data: proven tasks, split by origin, and demonstrations; Great Expectations gate the tables.

A task is used only after its proof: gold passes every run, the start tree and a wrong outcome fail, repeats agree. What
fails is quarantined with its reason. Routed material of the last round becomes new training tasks, demonstrations and
preference pairs. A last gate looks for what measures in all of it: a leak stops the round, and names the row.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from environments.sources import default
from evals.expectations import attempts_frame, check_table, demonstrations_frame, pairs_frame, tasks_frame
from evals.gates import condition, gate
from schemas.base import Digest, Json, canonical, digest_of
from schemas.data import DataRecord, TeacherVoice
from schemas.goal import GoalRecord
from schemas.metrics import Condition, Estimate, Gate
from schemas.migrations import stamped_row
from schemas.task import Split, Task, TaskProof
from schemas.trajectory import Attempt
from stages.artifacts import store
from stages.attempts import write_attempts
from stages.checkpoints import start_checkpoint
from stages.context import Context
from stages.demonstrations import (
    asks_for_hints,
    demonstrate,
    edge_of,
    open_teacher,
    require_mixable,
    row_of,
    write_demonstrations,
)
from stages.equipment import equip, noise_section
from stages.leaks import find_leaks, of_attempts, of_messages
from stages.pairs import Preference, make_pairs, write_pairs
from stages.quarantine import quarantined as quarantined_tasks
from stages.tasks import bench_pins, bucket_of, prove, route_tasks, seed_digest, seed_folder, select, sort_out

Inputs = tuple[dict[str, Json], dict[str, Digest]]


def inputs(ctx: Context) -> Inputs:
    goal: GoalRecord = ctx.record("goal")
    spec = goal.spec
    sections: dict[str, Json] = {
        "data": spec.data.model_dump(mode="json"),
        "seed": spec.seed,
        "material": [item.model_dump(mode="json") for item in goal.material],
        "budgets": spec.budgets.model_dump(mode="json"),
        "sampling": spec.sampling.model_dump(mode="json"),
        "rewards": spec.rewards.model_dump(mode="json"),
        "safety": spec.safety.model_dump(mode="json"),
    }
    sections |= noise_section(spec, (item.noise for item in goal.material))
    pins = {**bench_pins(goal), "seed_data": seed_digest(seed_folder(ctx, spec.data))}
    barred = _barred(ctx, goal)
    if barred:
        pins["barred"] = digest_of(barred)
    if spec.data.demonstrations.rejection_samples or any(map(asks_for_hints, goal.material)):
        pins["start"] = start_checkpoint(ctx)[1]
    if spec.data.demonstrations.from_past_rounds or any(item.trajectories for item in goal.material):
        for record in ctx.earlier("rl"):
            if "attempts" in record.artifacts:
                pins[f"past_{len(pins)}"] = record.artifacts["attempts"].digest
        rescores = [record.key for record in ctx.workspace.rescores()]
        if rescores:
            pins["rescores"] = digest_of(rescores)
    return sections, pins


def _barred(ctx: Context, goal: GoalRecord) -> dict[str, str]:
    """Digest or id of a task -> why it is left out: `postloop tasks validate` refused it, or the canary named it."""
    drifts = {drift.task: f"canary: {drift.kind}: {drift.detail}" for drift in goal.drifts if drift.task}
    return {**quarantined_tasks(ctx.workspace.root), **drifts}


def run(ctx: Context, key: Digest, pins: dict[str, Digest]) -> DataRecord:
    goal: GoalRecord = ctx.record("goal")
    spec = goal.spec.data
    pool = default.load(seed_folder(ctx, spec))
    chosen = select(pool, spec.sources, goal.spec.seed)
    routed = route_tasks(goal.material, pool, chosen, goal.spec.seed)
    # The teacher first: one that does not answer is told before the proofs, which take the time.
    with open_teacher(ctx, goal, key) as teacher, equip(ctx, goal) as bench:
        proofs = prove(ctx, bench.verifier, [*chosen, *routed], spec.proof_runs)
        proven, quarantined = sort_out([*chosen, *routed], proofs, spec, _barred(ctx, goal))
        demonstrations, looked_at, made_for = demonstrate(ctx, bench, goal, proven, teacher)
        pairs = make_pairs(ctx, bench, goal, proven)
    for made in demonstrations.values():
        require_mixable(ctx, goal, proven, made)
    wrote = {turn.policy for attempt in demonstrations["teacher"] for turn in attempt.trajectory.turns}
    voices = {policy: voice for policy, voice in teacher.voices.items() if policy in wrote} if teacher else {}
    record = _leave(ctx, key, pins, goal, proven, proofs, quarantined, demonstrations, made_for, pairs, voices)
    if not looked_at:
        return record
    seen = store(ctx.workspace, "data", "attempts", lambda out: write_attempts(out / "attempts.parquet", looked_at))
    return record.model_copy(update={"artifacts": {**record.artifacts, "attempts": seen}})


def _leave(
    ctx: Context,
    key: Digest,
    pins: dict[str, Digest],
    goal: GoalRecord,
    tasks: list[Task],
    proofs: list[TaskProof],
    quarantined: dict[str, str],
    demonstrations: dict[str, list[Attempt]],
    made_for: dict[str, str],
    pairs: list[Preference],
    voices: dict[Digest, TeacherVoice],
) -> DataRecord:
    attempts = [attempt for source in sorted(demonstrations) for attempt in demonstrations[source]]
    asked = {item.bucket: item for item in goal.material}
    whose = {trajectory: asked[bucket] for trajectory, bucket in made_for.items() if bucket in asked}
    rows = [
        row_of(source, attempt, whose.get(attempt.trajectory.id))
        for source in sorted(demonstrations)
        for attempt in demonstrations[source]
    ]
    edges = [edge_of("sft_row", attempt.trajectory.id, attempt) for attempt in attempts]
    training = [task for task in tasks if task.split is Split.TRAIN]
    checks = {
        "tasks": check_table("tasks", tasks_frame(tasks)),
        "demonstrations": check_table("demonstrations", demonstrations_frame(rows)),
        "attempts": check_table("attempts", attempts_frame(attempts)),
    }
    if pairs:
        checks["pairs"] = check_table("pairs", pairs_frame([pair.row() for pair in pairs]))
    conditions = [_exact(f"expectations_{name}", float(bool(check["success"])), 1.0) for name, check in checks.items()]
    conditions.append(_exact("training_tasks", float(len(training)), float(goal.spec.data.min_tasks)))
    counts = Counter(task.split.value for task in tasks)
    made = {source: len(found) for source, found in sorted(demonstrations.items())}
    card = _card(goal, tasks, quarantined, made, voices)
    artifacts = {
        "tasks": store(ctx.workspace, "data", "tasks", _writer({"tasks.jsonl": _lines(tasks), "CARD.md": card})),
        "proofs": store(ctx.workspace, "data", "proofs", _writer({"proofs.jsonl": _lines(proofs)})),
        "demonstrations": store(
            ctx.workspace,
            "data",
            "demonstrations",
            lambda folder: write_demonstrations(folder, rows, attempts, edges),
        ),
        "expectations": store(
            ctx.workspace, "data", "expectations", _writer({f"{n}.json": _pretty(c) for n, c in checks.items()})
        ),
    }
    if pairs:
        artifacts["pairs"] = store(ctx.workspace, "data", "pairs", lambda folder: write_pairs(folder, pairs))
    return DataRecord(
        key=key,
        inputs=pins,
        artifacts=artifacts,
        gates=[gate("data", conditions, "data"), _leak_gate(goal, tasks, rows, attempts, pairs)],
        infrastructure_errors=sum(
            int(ctx.telemetry.values.get(f"{name}_errors", 0)) for name in ("demonstration", "prefix")
        ),
        tasks=dict(sorted(counts.items())),
        families=dict(sorted(Counter(task.family for task in training).items())),
        quarantined=dict(sorted(Counter(quarantined.values()).items())),
        demonstrations=made,
        voices=dict(sorted(voices.items())),
        pairs=dict(sorted(Counter(pair.kind for pair in pairs).items())),
        routed_tasks=sum(bucket_of(task) is not None for task in training),
    )


def _leak_gate(
    goal: GoalRecord,
    tasks: Sequence[Task],
    rows: Sequence[dict[str, Any]],
    attempts: Sequence[Attempt],
    pairs: Sequence[Preference],
) -> Gate:
    """Nothing that measures, and no near copy of it, is in what is trained on. NO-GO names the first row."""
    sides = {a.trajectory.id: a for pair in pairs for a in (pair.better, pair.worse)}
    looked_at = of_messages("demonstrations", rows) + of_attempts("demonstrations, attempt", attempts)
    looked_at += of_messages("pairs", [pair.row() for pair in pairs]) + of_attempts("pairs, attempt", sides.values())
    found = find_leaks(tasks, looked_at, goal.spec.data)
    number = float(len(found))
    estimate = Estimate(value=number, low=number, high=number, n=1, clusters=1, method="exact")
    asked = gate("leaks", [condition("leaks", estimate, "<=", 0.0)], "data")
    return asked.model_copy(update={"because": f"{asked.because} First: {found[0]}"}) if found else asked


def _exact(name: str, value: float, at_least: float) -> Condition:
    """A condition on a count or a fact: there is nothing to estimate, so the interval is the value."""
    return condition(
        name, Estimate(value=value, low=value, high=value, n=1, clusters=1, method="exact"), ">=", at_least
    )


def _lines(items: Iterable[Any]) -> bytes:
    return b"".join(canonical(stamped_row(item.model_dump(mode="json"))) + b"\n" for item in items)


def _pretty(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _writer(files: dict[str, bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name, content in files.items():
            (folder / name).write_bytes(content)

    return write


def _card(
    goal: GoalRecord,
    tasks: Sequence[Task],
    quarantined: dict[str, str],
    made: dict[str, int],
    voices: dict[Digest, TeacherVoice],
) -> bytes:
    """The dataset card: what is in it, where it came from, what it must not be used for."""
    lines = [
        f"# Tasks of {goal.spec.name}, goal version {goal.goal_version}",
        "",
        "| skill | split | tasks | origins |",
        "|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Task]] = defaultdict(list)
    for task in tasks:
        groups[(task.skill, task.split.value)].append(task)
    lines += [f"| {s} | {p} | {len(g)} | {len({t.origin for t in g})} |" for (s, p), g in sorted(groups.items())]
    lines += ["", f"Quarantined: {len(quarantined)}.", f"Demonstrations by source: {made}.", ""]
    lines += [
        f"Teacher {policy[:12]}: {voice.asked['model']}, as its server says {voice.model or 'nothing'}, "
        f"fingerprint {voice.fingerprint or 'none'}.\n"
        for policy, voice in voices.items()
    ]
    lines += ["Splits are by origin: no function or question template of one split occurs in another.", ""]
    embedded = "Everything here was generated by this project; no task of a public benchmark is in it."
    own = f"The tasks are this workspace's own, from {goal.spec.data.seed_data}; what is in them its owner must say."
    lines += [embedded if goal.spec.data.seed_data == "default" else own]
    return "\n".join(lines).encode() + b"\n"

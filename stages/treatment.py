"""What a round made and trained on for each bucket of the one before: counted from its tables, so the same on every machine.

A row, a task or an attempt counts for the bucket that it was made for, whatever it would have cost without; a rollout for
the bucket of its task, else for those that raised the weight of its family, in equal parts. Rollouts of earlier rounds that
are shown as they are were made for nothing: they count as rows and not as attempts.
Seconds are no part of this. `shares` say by which part of a measure of the telemetry a bucket's are allocated: of SFT's rows,
of what RL trained on, of the attempts in the sandbox, of the outcomes that verifiers judged.
Tokens of a preference pair are those of both sides, encoded as DPO did; those of every other row were recorded.
Not covered: passes over a row, which counts once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.bucket import Material
from schemas.data import DataRecord
from schemas.goal import GoalRecord
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.task import Split, Task
from schemas.trajectory import Attempt, Purpose, UseEdge
from stages.attempts import read_attempts, read_edges
from stages.checkpoints import final_checkpoint, folder_of
from stages.context import Context
from stages.demonstrations import asked_by, read_demonstrations
from stages.pairs import read_pairs
from stages.tasks import bucket_of, known_proofs, load_tasks, read_proofs

Owner = str | None  # a bucket; None: what is made for no bucket
Tally = defaultdict[Owner, defaultdict[str, float]]


def _tally() -> Tally:
    return defaultdict(lambda: defaultdict(float))


@dataclass
class Treatments:
    """`counts`: what was made; `work`: measure of the telemetry -> units of it. Both by the bucket that they are for."""

    counts: Tally = field(default_factory=_tally)
    work: Tally = field(default_factory=_tally)

    def cost(self, bucket: str) -> dict[str, float]:
        return {unit: n for unit, n in sorted(self.counts[bucket].items()) if n}

    def shares(self, bucket: str) -> dict[str, float]:
        return {
            measure: n / sum(work[measure] for work in self.work.values())
            for measure, n in sorted(self.work[bucket].items())
            if n
        }

    def ran(self, stage: str, owner: Owner, attempt: Attempt, part: float = 1) -> None:
        """An attempt that the stage made: it ran in the sandbox, and its outcome was judged."""
        conduct = attempt.trajectory.conduct
        self.counts[owner]["rollouts" if stage == "rl" else "attempts"] += part
        self.counts[owner]["generated_tokens"] += conduct.generated_tokens * part
        self.counts[owner]["tool_calls"] += conduct.tool_calls * part
        for measure in (f"{stage}.sandbox_cpu_s", f"{stage}.verifier_cpu_s"):
            self.work[owner][measure] += part


def treatments(ctx: Context, handed: Sequence[Material]) -> Treatments:
    """Of this round's data, SFT and RL. `handed`: material of the round before, as this one took it."""
    found, tasks = Treatments(), load_tasks(ctx)
    known = {task.id: task for task in tasks}
    _tasks(ctx, found, tasks)
    _demonstrations(ctx, found, known)
    edges = _rollouts(ctx, found, known, handed)
    _pairs(ctx, found, {edge.row.split("/")[-2] for edge in edges if edge.use == "preference_pair"})
    return found


def _tasks(ctx: Context, found: Treatments, tasks: Iterable[Task]) -> None:
    """A task is proven once: of those proven now, the outcomes that were judged for it."""
    owners = {task.digest(): bucket_of(task) for task in tasks if task.split is Split.TRAIN}
    for owner in owners.values():
        found.counts[owner]["tasks"] += 1
    goal: GoalRecord = ctx.record("goal")
    record: DataRecord = ctx.record("data")
    before = known_proofs(ctx, goal.spec.data.proof_runs)
    for proof in read_proofs(ctx.workspace.open_artifact(record.artifacts["proofs"])):
        if proof.task_digest not in before:
            found.work[owners.get(proof.task_digest)]["data.verifier_cpu_s"] += (
                proof.runs + 2
            )  # start tree, wrong outcome


def _demonstrations(ctx: Context, found: Treatments, tasks: Mapping[str, Task]) -> None:
    goal: GoalRecord = ctx.record("goal")
    record: DataRecord = ctx.record("data")
    sft: SftRecord = ctx.record("sft")
    folder = ctx.workspace.open_artifact(record.artifacts["demonstrations"])
    kept = {attempt.trajectory.id: attempt for attempt in read_attempts(folder / "attempts.parquet")}
    owners: dict[str, Owner] = {}
    for row in read_demonstrations(folder):
        task = tasks.get(row["task_id"])
        owner = owners[row["id"]] = row["bucket"] if "bucket" in row else bucket_of(task) if task else None
        found.counts[owner]["prefixes" if row["source"] == "prefix" else "demonstrations"] += 1
        if sft.skipped is None:
            found.counts[owner]["trained_tokens"] += len(kept[row["id"]].trajectory.token_ids())
            found.work[owner]["sft.training_s"] += 1
    looked_at = {attempt.trajectory.id: attempt for attempt in _table(ctx, record, "attempts")}
    for name, attempt in {**looked_at, **kept}.items():
        task = tasks.get(attempt.trajectory.task_id)
        owner = owners[name] if name in owners else asked_by(goal.material, attempt, task) if task else None
        if attempt.trajectory.purpose is Purpose.DEMONSTRATION:
            found.ran("data", owner, attempt)


def _rollouts(
    ctx: Context, found: Treatments, tasks: Mapping[str, Task], handed: Iterable[Material]
) -> Sequence[UseEdge]:
    """Use edges of what RL trained on."""
    goal: GoalRecord = ctx.record("goal")
    record: RlRecord = ctx.record("rl")
    weighted: dict[str, list[Owner]] = defaultdict(list)
    for item in handed:
        if item.kind == "weights" and item.approved and item.family in goal.weights:
            weighted[item.family].append(item.bucket)
    edges = read_edges(_folder(ctx, record, "attempts") / "edges.parquet") if "attempts" in record.artifacts else []
    used = {edge.trajectory for edge in edges}
    for attempt in _table(ctx, record, "attempts"):
        trajectory = attempt.trajectory
        task = tasks.get(trajectory.task_id)
        own = bucket_of(task) if task else None
        owners = [own] if own else weighted.get(trajectory.family) or [None]
        for owner in owners:
            part = 1 / len(owners)
            found.ran("rl", owner, attempt, part)
            found.work[owner]["rl.training_s"] += part
            if trajectory.id in used:
                found.counts[owner]["trained_tokens"] += len(trajectory.token_ids()) * part
    for attempt in _table(ctx, record, "headroom"):
        found.ran("rl", None, attempt)
    return edges


def _pairs(ctx: Context, found: Treatments, trained: set[str]) -> None:
    """`trained`: ids of pairs that RL used. What gold wrote for a side was an attempt of the data stage."""
    record: DataRecord = ctx.record("data")
    if "pairs" not in record.artifacts:
        return
    folder = _folder(ctx, record, "pairs")
    rows, owners = read_pairs(folder), {}
    tokens = _tokens_of_pairs(ctx, [row for row in rows if row["id"] in trained])
    for row in rows:
        owner = owners[row["id"]] = row["bucket"]
        found.counts[owner]["pairs"] += 1
        if row["id"] in trained:
            found.work[owner]["rl.training_s"] += 1
            found.counts[owner]["trained_tokens"] += tokens[row["id"]]
    whose = {edge.trajectory: owners[edge.row.rpartition("/")[0]] for edge in read_edges(folder / "edges.parquet")}
    for attempt in _table(ctx, record, "pairs"):
        if attempt.trajectory.purpose is Purpose.DEMONSTRATION:
            found.ran("data", whose.get(attempt.trajectory.id), attempt)


def _tokens_of_pairs(ctx: Context, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Id -> tokens of both sides, by the tokenizer of what was trained, which is that of its start."""
    if not rows:
        return {}
    from stages.samplers.tokenization import Tokenization
    from stages.trainers.dpo import Pair, tokenize_pair

    place, weights, _ = final_checkpoint(ctx)
    tokenizer = Tokenization(folder_of(ctx, place, weights)).tokenizer
    pairs = (Pair(r["id"], r["prompt"] + r["chosen"], r["prompt"] + r["rejected"], cut=r["cut"]) for r in rows)
    return {pair.id: sum(len(side.ids) for side in tokenize_pair(tokenizer, pair)) for pair in pairs}


def _table(ctx: Context, record: DataRecord | RlRecord, name: str) -> list[Attempt]:
    return read_attempts(_folder(ctx, record, name) / "attempts.parquet") if name in record.artifacts else []


def _folder(ctx: Context, record: DataRecord | RlRecord, name: str) -> Path:
    return ctx.workspace.open_artifact(record.artifacts[name])

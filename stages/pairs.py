"""Preference pairs cut at a decision: what comes before is the prompt, one assistant turn a side is what differs.

Three kinds, so that a model is not pushed one way only. decision: a training rollout that failed by stopping too early or
never, against the turn of a passing rollout (or of gold, through the harness) from the same place. boundary: a training task
that is right as it is, returned as it is against changed. retention: the other decision where it is the right one, made from
a passing rollout: it stops, against the same text going on; or it goes on, against the same text broken off.

Rows are in TRL's conversational preference format, with the bucket and the cause behind them; both sides have use edges.
Not covered: situations of the boundary and retention suites, which only measure; a check of the side that is made up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from environments.sources.splits import order
from evals.material import TOO_LATE
from schemas.base import canonical, digest_of
from schemas.bucket import Material
from schemas.data import DataRecord
from schemas.goal import GoalRecord
from schemas.task import Split, Task
from schemas.trajectory import Attempt, Trajectory, UseEdge
from stages.attempts import read_attempts, read_edges, write_attempts, write_edges
from stages.context import Context
from stages.demonstrations import edge_of, mixable, require_mixable
from stages.equipment import Equipment
from stages.prefixes import Prefix, can_go_on, gone_on, rollouts, spread
from stages.recall import Recall
from stages.tasks import load_tasks

Message = dict[str, str]
PairKind = Literal["decision", "boundary", "retention"]


@dataclass(frozen=True)
class Preference:
    """`cut`: the rejected text was cut at its token limit, so its end is no part of it."""

    kind: PairKind
    material: Material
    prompt: list[Message]
    chosen: str
    rejected: str
    better: Attempt
    worse: Attempt
    cut: bool = False

    @property
    def id(self) -> str:
        sides = [self.better.trajectory.id, self.worse.trajectory.id, self.prompt, self.chosen, self.rejected]
        return f"{self.kind}-{digest_of([self.material.bucket, *sides])[:16]}"

    def row(self) -> dict[str, Any]:
        trajectory = self.better.trajectory
        about = {"task_id": trajectory.task_id, "family": trajectory.family, "split": trajectory.split.value}
        whose = {"bucket": self.material.bucket, "cause": self.material.cause, "kind": self.kind, "cut": self.cut}
        sides = {name: [_said(text)] for name, text in (("chosen", self.chosen), ("rejected", self.rejected))}
        return {"id": self.id, **whose, **about, "prompt": self.prompt, **sides}

    def edges(self) -> list[UseEdge]:
        sides = (("chosen", self.better), ("rejected", self.worse))
        return [edge_of("preference_pair", f"{self.id}/{side}", attempt) for side, attempt in sides]


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}


# --- where the decision is


def decision_turn(cause: str, trajectory: Trajectory) -> int:
    """The turn at which it stopped; of what never stops, the first that was cut, or that went on after all tests passed."""
    last = max(0, len(trajectory.turns) - 1)
    if cause not in TOO_LATE:
        return last
    cut = (turn.index for turn in trajectory.turns if turn.stop == "length")
    done = (t.index + 1 for t in trajectory.turns[:-1] if (t.tests() or {}).get("failed") == 0)
    return next(cut, next(done, last))


def before(trajectory: Trajectory, turn: int) -> list[Message]:
    """The conversation up to where the turn is written."""
    said = [m for t in trajectory.turns[:turn] for m in (*t.messages, _said(t.text))]
    return [*said, *trajectory.turns[turn].messages]


def partner(failed: Attempt, turn: int, passing: Iterable[Attempt]) -> Attempt | None:
    """A passing rollout of the task that came to the same place and took another, clean turn there; the first by id."""
    prompt, text = before(failed.trajectory, turn), failed.trajectory.turns[turn].text
    for attempt in sorted(passing, key=lambda a: a.trajectory.id):
        trajectory = attempt.trajectory
        if trajectory.task != failed.trajectory.task or turn >= len(trajectory.turns):
            continue
        taken = trajectory.turns[turn]
        clean = not (taken.parse_error or taken.tool_error or taken.forbidden or taken.stop == "length")
        if clean and taken.text != text and before(trajectory, turn) == prompt:
            return attempt
    return None


# --- making them


def make_pairs(ctx: Context, bench: Equipment, goal: GoalRecord, tasks: Sequence[Task]) -> list[Preference]:
    """The pairs of all approved material, at most `amount` of each; half of them, or more, hold against one-sidedness."""
    training = {task.id: task for task in tasks if task.split is Split.TRAIN}
    made: dict[str, Preference] = {}
    for item in goal.material:
        if item.kind == "pairs" and item.amount and item.trajectories:
            named = mixable(ctx, goal, rollouts(ctx, goal, item.trajectories, training), training)
            made |= {pair.id: pair for pair in _of_material(ctx, bench, goal, item, named, training)}
    return [made[name] for name in sorted(made)]


def _of_material(
    ctx: Context,
    bench: Equipment,
    goal: GoalRecord,
    item: Material,
    named: Sequence[Attempt],
    training: Mapping[str, Task],
) -> list[Preference]:
    passing = [attempt for attempt in named if clean_pass(attempt)]
    failed = spread([attempt for attempt in named if not attempt.verdict.passed], goal.spec.seed)
    gold: list[Attempt] = []
    pairs: dict[PairKind, list[Preference]] = {"decision": [], "boundary": []}
    half = max(1, item.amount // 2)
    for kind, own in by_kind(failed, training).items():
        opposed, written = _against(ctx, bench, goal, item, own[:half], passing, training)
        pairs[kind] = [_pair(kind, item, worse, better) for worse, better in opposed]
        gold += written
    rest = max(0, min(item.amount - half, len(pairs["decision"])) - len(pairs["boundary"]))
    kept = [pair for own in pairs.values() for pair in own]
    return kept + _retention(item, [*passing, *gold], goal.spec.seed)[:rest]


def by_kind(failed: Sequence[Attempt], training: Mapping[str, Task]) -> dict[PairKind, list[Attempt]]:
    """What failed where nothing was wrong is a pair of the boundary: there the start tree is the right answer."""
    intact = [a for a in failed if training[a.trajectory.task_id].made_by == "intact"]
    return {"decision": [a for a in failed if a not in intact], "boundary": intact}


def clean_pass(attempt: Attempt) -> bool:
    """It may be chosen: it passed, uncontested, by its own submission, and no turn of it was cut or did not parse."""
    conduct, audit = attempt.trajectory.conduct, attempt.audit
    contested = audit is not None and audit.passed is False
    clean = conduct.submitted and not conduct.invalid_calls and not conduct.truncated_turns
    return bool(attempt.verdict.passed) and not contested and clean


def _against(
    ctx: Context, bench: Equipment, goal: GoalRecord, item: Material, failed: Sequence[Attempt],
    passing: Sequence[Attempt], training: Mapping[str, Task],
) -> tuple[list[tuple[Attempt, Attempt]], list[Attempt]]:  # fmt: skip
    """(failed, better) of each that has one, and the attempts that gold wrote: it goes on where no passing rollout was."""
    better = {a.trajectory.id: partner(a, decision_turn(item.cause, a.trajectory), passing) for a in failed}
    open_ends = []
    for attempt in (a for a in failed if better[a.trajectory.id] is None):
        task, turn = training[attempt.trajectory.task_id], decision_turn(item.cause, attempt.trajectory)
        if can_go_on(attempt.trajectory, turn, task):
            open_ends.append(Prefix(attempt, task, turn))
    written = gone_on(ctx, bench, goal, open_ends)
    for prefix, attempt in zip(open_ends, written, strict=True):
        if attempt.verdict.passed:
            found = partner(prefix.parent, prefix.turns, [attempt])
            better[prefix.parent.trajectory.id] = found
    ctx.telemetry.add("pairs_without_a_better_side", sum(found is None for found in better.values()))
    opposed = [(a, found) for a in failed if (found := better[a.trajectory.id]) is not None]
    return opposed, [attempt for attempt in written if clean_pass(attempt)]


def _pair(kind: PairKind, item: Material, worse: Attempt, better: Attempt) -> Preference:
    turn = decision_turn(item.cause, worse.trajectory)
    chosen, rejected = better.trajectory.turns[turn], worse.trajectory.turns[turn]
    prompt = before(worse.trajectory, turn)
    return Preference(kind, item, prompt, chosen.text, rejected.text, better, worse, cut=rejected.stop == "length")


def _retention(item: Material, passing: Sequence[Attempt], seed: int) -> list[Preference]:
    """From passing rollouts: the decision that the material's cause pushes away from, where it is the right one."""
    made = []
    for attempt in sorted(passing, key=lambda a: order(seed, a.trajectory.id)):
        sides = _goes_on(attempt.trajectory) if item.cause in TOO_LATE else _stops(attempt.trajectory)
        if sides is not None:
            turn, chosen, rejected = sides
            prompt = before(attempt.trajectory, turn)
            made.append(Preference("retention", item, prompt, chosen, rejected, attempt, attempt))
    return made


def _stops(trajectory: Trajectory) -> tuple[int, str, str] | None:
    """It submits; against doing once more what it did before, or, where it had one turn, writing on."""
    last = trajectory.turns[-1]
    earlier = trajectory.turns[-2].text if len(trajectory.turns) > 1 else ""
    on = earlier if earlier and earlier != last.text else f"{last.text}\n\n{last.text}"
    return (last.index, last.text, on) if last.text.strip() else None


def _goes_on(trajectory: Trajectory) -> tuple[int, str, str] | None:
    """It takes another turn; against submitting there. Where it had one turn: the whole text, against its first half."""
    last = trajectory.turns[-1]
    if len(trajectory.turns) > 1:
        turn = trajectory.turns[-2]
        return (turn.index, turn.text, last.text) if turn.text != last.text else None
    lines = last.text.splitlines()
    return (0, last.text, "\n".join(lines[: len(lines) // 2])) if len(lines) > 2 else None


# --- kept and read


def write_pairs(folder: Path, pairs: Sequence[Preference]) -> None:
    """pairs.jsonl, the attempts of both sides, and the use edges from every side to its attempt."""
    attempts = {a.trajectory.id: a for pair in pairs for a in (pair.better, pair.worse)}
    (folder / "pairs.jsonl").write_bytes(b"".join(canonical(pair.row()) + b"\n" for pair in pairs))
    write_attempts(folder / "attempts.parquet", [attempts[name] for name in sorted(attempts)])
    write_edges(folder / "edges.parquet", [edge for pair in pairs for edge in pair.edges()])


def load_pairs(ctx: Context) -> tuple[list[dict[str, Any]], list[UseEdge]]:
    """The rows that the data stage left, and their use edges. Raises PinMismatch for one that this round would judge or
    price otherwise."""
    record: DataRecord = ctx.record("data")
    if "pairs" not in record.artifacts:
        return [], []
    folder = ctx.workspace.open_artifact(record.artifacts["pairs"])
    made = read_attempts(folder / "attempts.parquet")
    if record.rescored_by is not None:  # repeated because a rescore under this round's verifier and rules agreed
        recall = Recall(ctx.workspace)
        made = [recall.of(attempt) for attempt in made]
    require_mixable(ctx, ctx.record("goal"), load_tasks(ctx), made)
    return read_pairs(folder), read_edges(folder / "edges.parquet")


def read_pairs(folder: Path) -> list[dict[str, Any]]:
    """The rows of a `pairs` artifact, for looking at them."""
    return [json.loads(line) for line in (folder / "pairs.jsonl").read_text("utf-8").splitlines()]

"""Judge or price recorded attempts again: new verdicts and rewards beside the old ones, the flips, and why each flipped.

An outcome is judged in the image and under the limits of its own round, by the verifier asked for. A verdict is keyed by
outcome, task, image, limits and verifier: one that is known already, from a round or an earlier rescore, is not made
again, and equal outcomes are judged once. Under a new verifier the tasks are proven again too: a task whose gold fails
it, or whose wrong outcome passes, can carry no reward.

Not covered: audit verdicts, which keep their own verifier; attempts that infrastructure broke, which have no outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environments.bundles import Bundle
from evals.rewards import price
from schemas.base import Digest, digest_of
from schemas.data import DataRecord
from schemas.goal import GoalRecord, RuntimeSpec
from schemas.rescore import Flip, Rescore
from schemas.rewards import RewardRules
from schemas.task import Task, TaskProof
from schemas.trajectory import Attempt
from schemas.verdict import Reward, Status, Verdict
from stages.artifacts import store
from stages.context import FanOut, Progress, chunks, in_order, silent
from stages.recall import TABLE, Recall, Rescored, write_rescored
from stages.recorded import Recorded, recorded
from stages.replay import Bench, open_bench
from stages.tasks import prove_part
from stages.workspace import Workspace

PART = 256  # outcomes between two words about progress
Key = tuple[Digest, Digest, Digest, Digest, Digest]  # outcome, task, image, limits, verifier


@dataclass(frozen=True)
class Judging:
    """`verifiers`: pin (verifier, verifier_repository) -> bundle folder; empty: the verdicts in force are priced.
    `rewards` None: each round's own rules."""

    verifiers: Mapping[str, Path]
    rewards: RewardRules | None

    def digests(self) -> dict[str, Digest]:
        return {name: Bundle(folder).digest for name, folder in sorted(self.verifiers.items())}


@dataclass
class _Work:
    """What a rescore has found so far."""

    recall: Recall
    known: dict[Key, Verdict]
    rows: list[Rescored] = field(default_factory=list)
    flips: list[Flip] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    judged: int = 0
    changed: int = 0
    proofs: dict[str, str] = field(default_factory=dict)
    proven: list[int] = field(default_factory=list)


def rescore(
    space: Workspace,
    cache: Path,
    judging: Judging,
    rounds: Sequence[int],
    *,
    keep: bool = True,
    runtime: RuntimeSpec | None = None,
    fan_out: FanOut = in_order,
    progress: Progress = silent,
) -> Rescore:
    """The record, committed unless `keep` is False; the earlier one where everything is equal. Under the lock."""
    chosen = [one for one in recorded(space, rounds) if one.attempt.trajectory.status == "done"]
    recall = Recall(space)
    digests = judging.digests()
    rules = judging.rewards and judging.rewards.digest()
    priced = [] if digests else [recall.of(one.attempt).verdict.digest() for one in chosen]
    key = digest_of(["rescore", digests, rules, [one.named() for one in chosen], priced])
    earlier = [one for one in recall.rescores if one.key == key and not one.unjudged]
    if earlier:
        return earlier[-1]
    work = _Work(recall, _known(space, recall) if digests else {})
    for number in sorted({one.round for one in chosen}):
        mine = [one for one in chosen if one.round == number]
        if digests:
            where = {"runtime": runtime or RuntimeSpec()}
            made_by = list(dict.fromkeys(one.stage for one in mine))
            with open_bench(
                space, cache, number, "rescore", where, fan_out, stages=made_by, instead=judging.verifiers
            ) as bench:
                _prove(work, bench, number, progress)
                _weigh(work, mine, judging, bench.equipment.goal, _judged(work, bench, mine, progress))
        else:
            goal = space.read(number, "goal")
            assert isinstance(goal, GoalRecord)
            _weigh(work, mine, judging, goal, [recall.of(one.attempt).verdict for one in mine])
    return _leave(space, work, key, judging, digests, rounds, len(chosen), keep)


def _leave(
    space: Workspace,
    work: _Work,
    key: Digest,
    judging: Judging,
    digests: dict[str, Digest],
    rounds: Sequence[int],
    attempts: int,
    keep: bool,
) -> Rescore:
    record = Rescore(
        number=max([0, *(one.number for one in work.recall.rescores)]) + 1, key=key, rounds=list(rounds),
        verifiers=digests, rewards=judging.rewards, attempts=attempts, judged=work.judged, unjudged=work.unjudged,
        changed=work.changed, flips=work.flips, proofs=work.proofs, proven=work.proven,
    )  # fmt: skip
    if not keep or not work.rows:
        return record
    from stages.goal import copier

    artifacts = {name: store(space, "rescore", name, copier(folder)) for name, folder in judging.verifiers.items()}
    artifacts[TABLE] = store(space, "rescore", TABLE, lambda folder: write_rescored(folder, work.rows))
    record = record.model_copy(update={"artifacts": artifacts})
    space.commit_rescore(record)
    return record


def _known(space: Workspace, recall: Recall) -> dict[Key, Verdict]:
    """Every training verdict that the workspace has, by what decides it."""
    found = [one.attempt.verdict for one in recorded(space)]
    found += [row.verdict for rows in recall.tables.values() for row in rows]
    return {_key(verdict): verdict for verdict in found if verdict.status is not Status.ERROR}


def _key(verdict: Verdict) -> Key:
    return verdict.outcome, verdict.task, verdict.image, verdict.limits, verdict.verifier


def _prove(work: _Work, bench: Bench, number: int, progress: Progress) -> None:
    """Gold, start and wrong outcome of each task of the round under the new verifier, against the recorded proof."""
    record = bench.context.workspace.read(number, "data")
    if not isinstance(record, DataRecord) or "proofs" not in record.artifacts:
        return
    folder = bench.context.workspace.open_artifact(record.artifacts["proofs"])
    lines = (folder / "proofs.jsonl").read_text("utf-8").splitlines()
    before = {proof.task_digest: proof for proof in map(TaskProof.model_validate_json, lines)}
    tasks = [task for digest, task in bench.tasks.items() if digest in before and digest not in work.proofs]
    for done, part in enumerate(chunks(tasks, PART)):
        progress(f"proving tasks of round {number}", done * PART, len(tasks))
        for task, proof in zip(part, _proofs(bench, part, before), strict=True):
            if proof != before[task.digest()]:
                work.proofs[task.digest()] = f"{task.id}: {proof.reason or 'another proof than recorded'}"
    work.proven.append(number)


def _proofs(bench: Bench, part: Sequence[Task], before: Mapping[Digest, TaskProof]) -> list[TaskProof]:
    runs = before[part[0].digest()].runs
    return prove_part(bench.context, bench.equipment.verifier, part, runs)


def _judged(work: _Work, bench: Bench, mine: Sequence[Recorded], progress: Progress) -> list[Verdict | None]:
    """A verdict for each attempt; None where infrastructure kept it from one twice, or its task is gone."""
    wanted: dict[Key, tuple[Task, dict[str, str]]] = {}
    keys = [_key_now(bench, one.attempt) for one in mine]
    for one, key in zip(mine, keys, strict=True):
        if key is not None and key not in work.known:
            wanted.setdefault(key, (bench.tasks[one.attempt.trajectory.task], one.attempt.trajectory.outcome))
    for _ in range(2):
        left = [key for key in wanted if key not in work.known]
        for done, part in enumerate(chunks(left, PART)):
            progress("judging", done * PART, len(left))
            verdicts = bench.equipment.verifier.judge_many([wanted[key] for key in part], bench.context.fan_out)
            work.known |= {k: v for k, v in zip(part, verdicts, strict=True) if v.status is not Status.ERROR}
    work.judged += sum(key in work.known for key in wanted)
    return [None if key is None else work.known.get(key) for key in keys]


def _key_now(bench: Bench, attempt: Attempt) -> Key | None:
    """What would decide its verdict; None for an attempt at a task, or in an image, that its round does not hold."""
    task = bench.tasks.get(attempt.trajectory.task)
    runner = bench.equipment.runner
    if task is None or (attempt.verdict.image, attempt.verdict.limits) != (runner.image, runner.limits_digest):
        return None
    verifier = bench.equipment.verifier.of(task.kind).bundle.digest
    return attempt.trajectory.outcome_digest, attempt.trajectory.task, runner.image, runner.limits_digest, verifier


def _weigh(
    work: _Work, mine: Sequence[Recorded], judging: Judging, goal: GoalRecord, verdicts: Sequence[Verdict | None]
) -> None:
    """Price each new verdict and compare it with the recorded one."""
    rules = judging.rewards or goal.spec.rewards
    for one, verdict in zip(mine, verdicts, strict=True):
        attempt, trajectory = one.attempt, one.attempt.trajectory
        if verdict is None:
            work.unjudged.append(trajectory.id)
            continue
        reward = price(trajectory.id, verdict, trajectory.conduct, rules)
        flipped = (verdict.passed, reward.value) != (attempt.verdict.passed, attempt.reward.value)
        same = not flipped and (_seen(verdict), reward.parts) == (_seen(attempt.verdict), attempt.reward.parts)
        row = Rescored(trajectory.id, attempt.reward.digest(), one.round, one.stage, flipped, same, verdict, reward)
        work.rows.append(row)
        work.changed += not flipped and not same
        if flipped:
            work.flips.append(_flip(one, row))


def _seen(verdict: Verdict) -> object:
    """What a verdict says, without the words for it."""
    checks = [(check.name, check.role, check.passed) for check in verdict.checks]
    return verdict.status, verdict.score, checks, [v.kind for v in verdict.violations], verdict.limit_hit


def _flip(one: Recorded, row: Rescored) -> Flip:
    before = one.attempt
    return Flip(
        trajectory=row.trajectory, round=row.round, stage=row.stage, task_id=before.trajectory.task_id,
        reward=row.before, passed_before=before.verdict.passed, passed_after=row.verdict.passed,
        value_before=before.reward.value, value_after=row.reward.value,
        because=_because(before.verdict, row.verdict, before.reward, row.reward),
    )  # fmt: skip


def _because(before: Verdict, now: Verdict, old: Reward, new: Reward) -> str:
    """The first violation or check that is new, or no longer there; else the first part of the price that differs."""
    marks: tuple[tuple[str, Callable[[Verdict], Iterator[str]]], ...] = (
        ("violation {}", lambda v: (f"{one.kind}: {one.detail}" for one in v.violations)),
        ("check {} fails", lambda v: (one.name for one in v.checks if not one.passed)),
    )
    for text, of in marks:
        found, gone = _only(of(now), of(before)), _only(of(before), of(now))
        if found or gone:
            first, *more = found or gone
            words = text.format(first) + (f" and {len(more)} more" if more else "")
            return words if found else f"no longer: {words}"
    if before.status is not now.status:
        return f"status {before.status.value}, now {now.status.value}: {now.reason or before.reason or ''}".rstrip(": ")
    for part in sorted(old.parts.keys() | new.parts.keys()):
        if old.parts.get(part) != new.parts.get(part):
            return f"{part} {old.parts.get(part, 0.0):g}, now {new.parts.get(part, 0.0):g}"
    return "the verifier passes it otherwise"


def _only(left: Iterable[str], right: Iterable[str]) -> list[str]:
    others = set(right)
    return [item for item in left if item not in others]

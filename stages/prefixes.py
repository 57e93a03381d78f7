"""Good beginnings of failed training rollouts, gone on with by gold: the turns before the first bad one, then the known way.

A rollout is taken by its id from the RL records of earlier rounds, never from another purpose or split: it must be of a
training task that this round has, under this round's harness, and be judged and priced as this round does.

Not covered: prefixes that had already changed a file; gold is written against the start tree, so it would not apply.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from environments.sources.splits import order
from schemas.base import digest_of
from schemas.goal import GoalRecord
from schemas.task import Split, Task
from schemas.trajectory import Attempt, Purpose, Trajectory, Turn
from stages.attempts import read_attempts
from stages.checkpoints import fetch_base
from stages.context import Context
from stages.equipment import Equipment, errors_in, seed_for
from stages.recall import Recall
from stages.rollout import RolloutRequest, Setting
from stages.samplers.scripted_sampler import ScriptedSampler


@dataclass(frozen=True)
class Prefix:
    """The first `turns` turns of a failed training rollout."""

    parent: Attempt
    task: Task
    turns: int


def rollouts(ctx: Context, goal: GoalRecord, ids: Collection[str], training: Mapping[str, Task]) -> list[Attempt]:
    """Those of `ids` that are training rollouts of earlier rounds, as they are judged now; in the order of their ids."""
    wanted, found = set(ids), dict[str, Attempt]()
    recall = Recall(ctx.workspace) if wanted and goal.spec.stale == "refuse" else None
    for record in reversed(ctx.earlier("rl")) if wanted else ():
        if "attempts" not in record.artifacts:
            continue
        for written in read_attempts(ctx.workspace.open_artifact(record.artifacts["attempts"]) / "attempts.parquet"):
            if written.trajectory.id in wanted and of_training(written, training):
                attempt = recall.of(written) if recall else written
                found.setdefault(attempt.trajectory.id, attempt)
    return [found[name] for name in sorted(found)]


def of_training(attempt: Attempt, training: Mapping[str, Task]) -> bool:
    """It was rolled out to train, on a training task as this round has it."""
    trajectory = attempt.trajectory
    task = training.get(trajectory.task_id)
    of_rl = trajectory.purpose is Purpose.RL and trajectory.split is Split.TRAIN and trajectory.status == "done"
    return of_rl and task is not None and task.split is Split.TRAIN and task.digest() == trajectory.task


def first_bad_turn(trajectory: Trajectory) -> int:
    """The first that did not parse, whose tool refused it, that was forbidden, was cut or handed in what fails the visible
    tests; else the one that ended it."""
    return next((turn.index for turn in trajectory.turns if _is_bad(turn)), max(0, len(trajectory.turns) - 1))


def _is_bad(turn: Turn) -> bool:
    on_purpose = (turn.call or {}).get("name") == "run_tests"  # a good turn, whatever they say
    fails = bool((turn.tests() or {}).get("failed")) and not on_purpose
    return bool(turn.parse_error or turn.tool_error or turn.forbidden or turn.stop == "length" or fails)


def can_go_on(trajectory: Trajectory, turns: int, task: Task) -> bool:
    """Gold can be written after so many turns: they exist, and changed nothing."""
    start = digest_of(task.files)
    return turns < len(trajectory.turns) and all(turn.tree == start for turn in trajectory.turns[:turns])


def spread(attempts: Sequence[Attempt], seed: int) -> list[Attempt]:
    """One of each task before a second of any, in a seeded order."""
    turns: dict[str, int] = {}
    ranked = []
    for attempt in sorted(attempts, key=lambda a: order(seed, a.trajectory.id)):
        task = attempt.trajectory.task_id
        turns[task] = turns.get(task, 0) + 1
        ranked.append((turns[task], attempt))
    return [attempt for _, attempt in sorted(ranked, key=lambda row: row[0])]


def gone_on(ctx: Context, bench: Equipment, goal: GoalRecord, prefixes: Sequence[Prefix]) -> list[Attempt]:
    """Each prefix continued by gold through the harness, verified like any demonstration; in the order of `prefixes`."""
    if not prefixes:
        return []
    seeds = [_seed(goal, prefix, number) for number, prefix in enumerate(prefixes)]
    begun = {(p.task.id, seed): p.turns for p, seed in zip(prefixes, seeds, strict=True)}
    gold = ScriptedSampler(fetch_base(ctx, goal), {p.task.id: p.task for p in prefixes}, "gold", begun=begun)
    asked = [
        RolloutRequest(p.task, seed, Purpose.DEMONSTRATION, p.task.id, parent=p.parent.trajectory, prefix_turn=p.turns)
        for p, seed in zip(prefixes, seeds, strict=True)
    ]
    made = bench.attempt(gold, asked, setting=written(goal))
    ctx.telemetry.add("prefix_errors", errors_in(made))
    return made


def _seed(goal: GoalRecord, prefix: Prefix, number: int) -> int:
    return seed_for(goal.spec.seed, Purpose.DEMONSTRATION, prefix.parent.trajectory.id, prefix.task, number)


def written(goal: GoalRecord) -> Setting:
    """Demonstrations are written, not sampled: a turn may take up to half the context, whatever a policy may."""
    spec = goal.spec
    limit = spec.budgets.max_context_tokens // 2
    sampling = spec.sampling.model_copy(update={"engine": "scripted:gold", "max_tokens": limit})
    return Setting(sampling=sampling, budgets=spec.budgets, safety=spec.safety, batch=spec.sampling.batch)

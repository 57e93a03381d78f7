"""Material for the next round, with its provenance: which failures asked for it, which training rollouts it is made from.

Failures on dev choose causes and families, nothing else. What the material is made from are rollouts of the training pool of
this round's RL: those that failed by the same cause in the same family, as the same rules decide from their log; or those that
passed, where the policy can do it and seldom does. The held-out, boundary and retention suites are never read. A rollout that
needs an experiment for its cause has none and is not used.

Not covered: making it; the data stage of the next round does (tasks, demonstrations, pairs), and its RL (weights, curriculum).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from environments.pinned import Sides, sides
from evals.evidence import collect, is_failure
from evals.material import DRIFTED, EASIER, Used, material
from evals.proposals import Seen, proposals
from evals.rules import decide
from schemas.bucket import Bucket, Evidence, Material, Route, Rule, bucket_id
from schemas.goal import GoalRecord
from schemas.rl import DpoPhase
from schemas.task import Split, Task
from schemas.trajectory import Attempt
from stages.attempts import read_attempts
from stages.context import Context
from stages.demonstrations import asks_for_hints, gold_tasks
from stages.equipment import image_of
from stages.pairs import by_kind, clean_pass, decision_turn, partner
from stages.prefixes import can_go_on, first_bad_turn, of_training, spread
from stages.tasks import trained_origins

Failed = dict[str, list[Attempt]]  # bucket id -> failed training rollouts


def propose(
    ctx: Context,
    goal: GoalRecord,
    buckets: Sequence[Bucket],
    tasks: Sequence[Task],
    rules: Sequence[Rule],
    attempts: Sequence[Attempt],
    evidence: Sequence[Evidence],
) -> list[Material]:
    """Material for these buckets. `attempts`: of dev, which the buckets' members are; `evidence`: of those members."""
    training = {task.id: task for task in tasks if task.split is Split.TRAIN}
    pool = training_pool(ctx, training)
    seen = Seen(
        goal,
        {t.id: t for t in tasks},
        {a.trajectory.id: a for a in attempts},
        {e.trajectory: e for e in evidence},
        _environment(ctx, goal, buckets),
    )
    used = pick(buckets, pool, by_cause(pool, training, trained_origins(tasks), rules), training, goal)
    handed = material(buckets, goal.spec.backflow, training.values(), used, proposals(buckets, seen))
    return [_said(item, goal, training) for item in handed]


def _environment(ctx: Context, goal: GoalRecord, buckets: Sequence[Bucket]) -> Sides:
    """As pinned and as found now; looked at only where a bucket says that it drifted, since all of the image is read."""
    if not any(bucket.cause in DRIFTED for bucket in buckets):
        return [], []
    declared = goal.spec.environment.lock
    _, root = image_of(goal.spec, ctx.cache, ctx.workspace.root)
    return sides(goal.environment, root, None if declared is None else ctx.workspace.root / declared)


def training_pool(ctx: Context, training: Mapping[str, Task]) -> list[Attempt]:
    """What RL of this round rolled out on training tasks, headroom left out: that was on dev."""
    record = ctx.record("rl")
    if "attempts" not in record.artifacts:
        return []
    table = ctx.workspace.open_artifact(record.artifacts["attempts"]) / "attempts.parquet"
    return [attempt for attempt in read_attempts(table) if of_training(attempt, training)]


def by_cause(
    pool: Sequence[Attempt], training: Mapping[str, Task], origins: Mapping[str, int], rules: Sequence[Rule]
) -> Failed:
    """Bucket id -> failures of the pool with that cause in that family. The policies of all RL steps count as one."""
    attempts, found = {a.trajectory.id: a for a in pool}, defaultdict[str, list[Attempt]](list)
    for one in collect(pool, training, origins):
        if one.status == "scored":
            found[bucket_id(decide(one, rules).cause, one.family)].append(attempts[one.trajectory])
    return dict(found)


def pick(
    buckets: Sequence[Bucket], pool: Sequence[Attempt], failed: Failed, training: Mapping[str, Task], goal: GoalRecord
) -> Used:
    """(bucket id, kind) -> ids of the rollouts that its demonstrations or pairs are made from."""
    passing = [attempt for attempt in pool if clean_pass(attempt) and not is_failure(attempt)]
    found: dict[tuple[str, str], list[str]] = {}
    for bucket in buckets:
        own = spread([a for a in failed.get(bucket.id, ()) if not a.verdict.passed], goal.spec.seed)
        good = [a for a in own if _good_prefix(a, training)]
        if bucket.route is Route.RL:
            good = _successes(bucket, passing, training, goal)
        found[bucket.id, "demonstrations"] = sorted(a.trajectory.id for a in good[: goal.spec.backflow.demonstrations])
        found[bucket.id, "pairs"] = _sides(bucket, own, passing, pool, training, goal)
    return found


def _successes(
    bucket: Bucket, passing: Sequence[Attempt], training: Mapping[str, Task], goal: GoalRecord
) -> list[Attempt]:
    """One of each task of the family that the spec's own gold does not show."""
    shown = gold_tasks(goal, list(training.values()))
    each: dict[str, Attempt] = {}
    for attempt in passing:
        if attempt.trajectory.family == bucket.family and attempt.trajectory.task_id not in shown:
            each.setdefault(attempt.trajectory.task_id, attempt)
    return spread(list(each.values()), goal.spec.seed)


def _good_prefix(attempt: Attempt, training: Mapping[str, Task]) -> bool:
    bad = first_bad_turn(attempt.trajectory)
    return bad > 0 and can_go_on(attempt.trajectory, bad, training[attempt.trajectory.task_id])


def _sides(
    bucket: Bucket, own: Sequence[Attempt], passing: Sequence[Attempt], pool: Sequence[Attempt],
    training: Mapping[str, Task], goal: GoalRecord,
) -> list[str]:  # fmt: skip
    """Failures at the decision, those of training tasks that are right as they are, their partners, and passes for retention."""
    half = max(1, goal.spec.backflow.pairs // 2)
    kinds = by_kind(own, training)
    skills = {training[a.trajectory.task_id].skill for a in own}
    wrong = spread([a for a in pool if a.verdict.passed is False], goal.spec.seed)
    intact = [a for a in by_kind(wrong, training)["boundary"] if training[a.trajectory.task_id].skill in skills]
    failed = [*kinds["decision"][:half], *intact[:half]]
    partners = [partner(a, decision_turn(bucket.cause, a.trajectory), passing) for a in failed]
    kept = [a for a in spread(passing, goal.spec.seed) if a.trajectory.family == bucket.family][:half] if failed else []
    return sorted({a.trajectory.id for a in (*failed, *(a for a in partners if a is not None), *kept)})


def _said(item: Material, goal: GoalRecord, training: Mapping[str, Task]) -> Material:
    """What a reader would else have to find out: where there was nothing to use, and what will not be trained on."""
    more = []
    if item.kind == "demonstrations" and item.route is Route.RL:
        more.append(f"{len(item.trajectories)} verified rollouts of its own at most, gold for the rest")
    elif asks_for_hints(item):
        more.append("attempts that were told the place, done again untold, and gold for the rest")
    if item.kind == "demonstrations" and item.route is not Route.RL and not item.trajectories:
        skills = {task.skill for task in training.values() if task.family == item.family}
        single = skills and all(goal.spec.budgets.turns_for(skill) == 1 for skill in skills)
        more.append(
            "the harness answers in one turn, so there is no prefix" if single else "no good prefix to go on from"
        )
    if item.kind == "tasks" and item.cause in EASIER:
        more.append("those with less to get right first")
    if item.kind == "pairs":
        if not item.trajectories:
            more.append("no training rollout failed by this cause, so there is nothing to pair")
        elif not any(task.made_by == "intact" for task in training.values()):
            more.append("no training task is right as it is, so no pair is of the boundary")
        if not any(isinstance(phase, DpoPhase) for phase in goal.spec.rl.phases):
            more.append("kept and not trained on: rl.phases has no dpo")
    return item.model_copy(update={"note": "; ".join([item.note, *more])})

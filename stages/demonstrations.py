"""Demonstrations: written from gold through the harness, good prefixes of failed training rollouts that gold goes on with,
verified attempts of the start policy (by itself, or told the place and done again untold) or of a teacher, or verified training
rollouts of earlier rounds.

All of them are attempts, judged like any other, and each row keeps a use edge to its trajectory, verdict and reward, and the
bucket that it was made for: with the goal's material, that leads to the failures behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from environments.sources.splits import order
from evals.material import WITH_A_HINT
from schemas.base import Digest, canonical
from schemas.bucket import Material, Route
from schemas.data import DataRecord
from schemas.errors import InfrastructureError, PinMismatch
from schemas.goal import GoalRecord
from schemas.task import Split, Task
from schemas.trajectory import ENDPOINT, Attempt, Purpose, UseEdge
from schemas.verdict import Status
from stages.attempts import read_attempts, write_attempts, write_edges
from stages.checkpoints import fetch_base, folder_of, start_checkpoint
from stages.context import Context
from stages.equipment import Equipment, errors_in
from stages.hints import hint_of, speaks_of, untold
from stages.pins import attempt_pins
from stages.prefixes import Prefix, can_go_on, first_bad_turn, gone_on, rollouts, spread, written
from stages.recall import Recall
from stages.samplers.endpoint_sampler import EndpointSampler
from stages.samplers.scripted_sampler import ScriptedSampler
from stages.tasks import bucket_of, load_tasks, round_robin

TOLD_EACH = 4  # attempts a task with its hint, where the spec samples none without
GOLD_EACH = 16  # demonstrations of each trained skill, where the spec names no number


def demonstrate(
    ctx: Context, bench: Equipment, goal: GoalRecord, tasks: Sequence[Task], teacher: EndpointSampler | None
) -> tuple[dict[str, list[Attempt]], list[Attempt], dict[str, str]]:
    """Source -> verified attempts; all attempts that those of a policy or a prefix were selected from, in whole batches:
    so that the selection can be sampled again, and judged again under another verifier; trajectory -> the bucket that it
    was made for."""
    training = {task.id: task for task in tasks if task.split is Split.TRAIN}
    wanted = gold_tasks(goal, list(training.values()))
    past = _past(ctx, goal, {name: task for name, task in training.items() if name not in wanted})
    shown = wanted.keys() | {attempt.trajectory.task_id for attempt in past}
    own = _own(ctx, goal, {name: task for name, task in training.items() if name not in shown})
    shown |= {attempt.trajectory.task_id for made in own.values() for attempt in made}
    hinted, told = _hinted(ctx, bench, goal, [task for name, task in training.items() if name not in shown])
    shown |= {attempt.trajectory.task_id for made in hinted.values() for attempt in made}
    routed = _routed_demonstrations(goal, list(training.values()), shown, {**own, **hinted})
    shown |= routed.keys()
    gold = _gold(ctx, bench, goal, wanted, [training[name] for name in routed])
    begun = _prefixes(ctx, bench, goal, training)
    sampled = _sampled(ctx, bench, goal, [task for name, task in training.items() if name not in shown])
    selected = first_clean_passes(sampled)
    shown |= {attempt.trajectory.task_id for attempt in selected}
    left = [task for name, task in training.items() if name not in shown]
    taught = _taught(bench, goal, teacher, left) if teacher else []
    kept = {
        "gold": [attempt for attempt in gold if attempt.trajectory.task_id in wanted],
        "backflow": [attempt for attempt in gold if attempt.trajectory.task_id not in wanted],
        "own": [attempt for made in own.values() for attempt in made],
        "hinted": [attempt for made in hinted.values() for attempt in made],
        "prefix": [attempt for attempt in begun if attempt.verdict.passed],
        "rejection": selected, "past": past, "teacher": first_clean_passes(taught),
    }  # fmt: skip
    ctx.telemetry.put("prefixes_not_verified", len(begun) - len(kept["prefix"]))
    ctx.telemetry.add("demonstration_errors", errors_in([*told, *sampled, *taught]))
    looked_at = [*told, *sampled, *taught, *begun]
    whose = {attempt.trajectory.id: routed.get(attempt.trajectory.task_id) for attempt in gold}
    whose |= {attempt.trajectory.id: bucket_of(training[attempt.trajectory.task_id]) for attempt in past}
    whose |= {a.trajectory.id: asked_by(goal.material, a, training[a.trajectory.task_id]) for a in looked_at}
    for made_for in (own, hinted):
        whose |= {attempt.trajectory.id: bucket for bucket, made in made_for.items() for attempt in made}
    return kept, looked_at, {name: bucket for name, bucket in whose.items() if bucket is not None}


def asked_by(material: Iterable[Material], attempt: Attempt, task: Task) -> str | None:
    """The bucket that a selected attempt was made for: that whose rollout it goes on from, or that its task was made for, or
    the only one that asks for demonstrations of its family. None where that cannot be told."""
    asking = [item for item in material if item.kind == "demonstrations"]
    parent = attempt.trajectory.parent
    if parent is not None:
        return next((i.bucket for i in asking if i.route is not Route.RL and parent in i.trajectories), None)
    families = {item.bucket for item in asking if item.family == task.family}
    return bucket_of(task) or (families.pop() if len(families) == 1 else None)


def gold_tasks(goal: GoalRecord, training: Sequence[Task]) -> dict[str, Task]:
    """The tasks that the spec asks gold demonstrations of."""
    counts = goal.spec.data.demonstrations.gold
    counts = counts if counts is not None else dict.fromkeys({task.skill for task in training}, GOLD_EACH)
    found: list[Task] = []
    for skill, count in sorted(counts.items()):
        found += round_robin([t for t in training if t.skill == skill and bucket_of(t) is None], count, goal.spec.seed)
    return {task.id: task for task in found}


def _gold(
    ctx: Context, bench: Equipment, goal: GoalRecord, wanted: Mapping[str, Task], routed: Sequence[Task]
) -> list[Attempt]:
    """Gold written through the harness; what infrastructure lost is left out. Raises InfrastructureError where gold fails."""
    shown = {**wanted, **{task.id: task for task in routed}}
    gold = ScriptedSampler(fetch_base(ctx, goal), shown, "gold")
    loud = _profiles(goal, routed)
    asked = [
        request
        for task in shown.values()
        for request in bench.requests([task], 1, Purpose.DEMONSTRATION, gold.policy, loud.get(task.id))
    ]
    attempts = bench.attempt(gold, asked, setting=written(goal))
    ctx.telemetry.put("demonstration_errors", errors_in(attempts))
    judged = [attempt for attempt in attempts if attempt.verdict.status is not Status.ERROR]
    for attempt in judged:
        if not attempt.verdict.passed:
            raise InfrastructureError(
                f"demonstration {attempt.trajectory.task_id}: gold does not pass through its harness; "
                "the harness and the verifier disagree about this task"
            )
    return judged


def _sampled(ctx: Context, bench: Equipment, goal: GoalRecord, tasks: Sequence[Task]) -> list[Attempt]:
    """Attempts of the policy that training starts from, for rejection sampling."""
    spec = goal.spec.data.demonstrations
    asked = [task for task in tasks if not spec.rejection_skills or task.skill in spec.rejection_skills]
    chosen = _weak_first(goal, asked, spec.rejection_tasks) if spec.rejection_samples else []
    if not chosen:
        return []
    place, weights = start_checkpoint(ctx)
    sampler = bench.sampler(folder_of(ctx, place, weights), {task.id: task for task in chosen})
    return bench.attempt(sampler, bench.requests(chosen, spec.rejection_samples, Purpose.DEMONSTRATION, weights))


def asks_for_hints(item: Material) -> bool:
    """Its bucket passes with the place named: it is shown attempts that were told, without what they were told."""
    return item.kind == "demonstrations" and item.cause in WITH_A_HINT and item.route is Route.SFT


def _hinted(
    ctx: Context, bench: Equipment, goal: GoalRecord, tasks: Sequence[Task]
) -> tuple[dict[str, list[Attempt]], list[Attempt]]:
    """Bucket -> verified attempts of the start policy at its family's training tasks, made with the hint and done again
    without it, one a task; and all that these were selected from. `tasks`: that nothing else shows."""
    chosen: dict[str, str] = {}  # task -> the bucket that it is for
    able = {task.id: task for task in tasks if hint_of(task) is not None and bucket_of(task) is None}
    for item in filter(asks_for_hints, goal.material):
        pool = [task for name, task in able.items() if task.family == item.family and name not in chosen]
        chosen |= {task.id: item.bucket for task in round_robin(pool, item.amount, goal.spec.seed)}
    if not chosen:
        return {}, []
    place, weights = start_checkpoint(ctx)
    sampler = bench.sampler(folder_of(ctx, place, weights), {name: able[name] for name in chosen})
    samples = goal.spec.data.demonstrations.rejection_samples or TOLD_EACH
    asked = bench.requests([able[name] for name in chosen], samples, Purpose.DEMONSTRATION, weights)
    made = bench.attempt(sampler, [replace(request, hint=hint_of(request.task)) for request in asked])
    passed = first_clean_passes([attempt for attempt in made if not speaks_of(attempt)])
    again = bench.attempt(sampler, [untold(attempt, able[attempt.trajectory.task_id]) for attempt in passed])
    ctx.telemetry.put("hinted_not_verified", len(passed) - len(first_clean_passes(again)))
    found: dict[str, list[Attempt]] = {}
    for attempt in first_clean_passes(again):
        found.setdefault(chosen[attempt.trajectory.task_id], []).append(attempt)
    return found, [*made, *again]


def open_teacher(ctx: Context, goal: GoalRecord, key: Digest) -> AbstractContextManager[EndpointSampler | None]:
    """The teacher that the spec names, once it has answered. `key`: of the stage that asks. Raises SamplerError, InputError."""
    spec = goal.spec.data.demonstrations.teacher
    if spec is None:
        return nullcontext()
    return closing(EndpointSampler(spec, fetch_base(ctx, goal), goal.spec.sampling.max_tokens, key))


def _taught(bench: Equipment, goal: GoalRecord, teacher: EndpointSampler, tasks: Sequence[Task]) -> list[Attempt]:
    """The teacher's attempts: what it writes must fit what the policy itself may write in a turn."""
    spec, setting = teacher.spec, bench.setting()
    sampling = setting.sampling.model_copy(update={"engine": ENDPOINT, "temperature": spec.temperature, "top_p": 1.0})
    chosen = _weak_first(goal, tasks, spec.tasks)
    asked = bench.requests(chosen, spec.samples, Purpose.DEMONSTRATION, teacher.policy)
    return bench.attempt(teacher, asked, setting=replace(setting, sampling=sampling)) if asked else []


def first_clean_passes(attempts: Sequence[Attempt]) -> list[Attempt]:
    """One verified attempt a task, without a turn that did not parse or was cut: a cut one would teach not to stop."""
    found: dict[str, Attempt] = {}
    for attempt in attempts:
        conduct = attempt.trajectory.conduct
        if attempt.verdict.passed and not conduct.invalid_calls and not conduct.truncated_turns:
            found.setdefault(attempt.trajectory.task_id, attempt)
    return list(found.values())


def _weak_first(goal: GoalRecord, tasks: Sequence[Task], wanted: int) -> list[Task]:
    """`wanted` tasks, those of families that material asks demonstrations of before any other."""
    weak = {item.family for item in goal.material if item.kind == "demonstrations"}
    first = round_robin([task for task in tasks if task.family in weak], wanted, goal.spec.seed)
    others = [task for task in tasks if task.family not in weak]
    return first + round_robin(others, wanted - len(first), goal.spec.seed)


def _prefixes(ctx: Context, bench: Equipment, goal: GoalRecord, training: Mapping[str, Task]) -> list[Attempt]:
    """Failed training rollouts that material names, up to their first bad turn, and gold from there.

    Where the harness answers in one turn there are none: nothing precedes the first bad turn.
    """
    found: dict[str, Prefix] = {}
    for item in goal.material:
        if item.kind != "demonstrations" or not item.trajectories or item.route is Route.RL:
            continue
        named = rollouts(ctx, goal, item.trajectories, training)
        for attempt in spread(mixable(ctx, goal, named, training), goal.spec.seed)[: item.amount]:
            task, bad = training[attempt.trajectory.task_id], first_bad_turn(attempt.trajectory)
            if bad and not attempt.verdict.passed and can_go_on(attempt.trajectory, bad, task):
                found.setdefault(attempt.trajectory.id, Prefix(attempt, task, bad))
    return gone_on(ctx, bench, goal, list(found.values()))


def _own(ctx: Context, goal: GoalRecord, training: Mapping[str, Task]) -> dict[str, list[Attempt]]:
    """Bucket owned by RL -> verified rollouts of its family that material names, as they are judged now, one a task: what the
    policy does now and then, it is shown. `training`: tasks that nothing else shows."""
    found: dict[str, list[Attempt]] = {}
    for item in goal.material:
        if item.kind == "demonstrations" and item.route is Route.RL:
            named = mixable(ctx, goal, rollouts(ctx, goal, item.trajectories, training), training)
            each = {attempt.trajectory.task_id: attempt for attempt in named if attempt.verdict.passed}
            found[item.bucket] = spread(list(each.values()), goal.spec.seed)[: item.amount]
    return found


def mixable(ctx: Context, goal: GoalRecord, attempts: Sequence[Attempt], training: Mapping[str, Task]) -> list[Attempt]:
    """Those made under this round's harness, judged and priced as this round does. The telemetry counts what is left out."""
    found = []
    for attempt in attempts:
        task = training[attempt.trajectory.task_id]
        try:
            require_mixable(ctx, goal, [task], [attempt])
        except PinMismatch as error:
            ctx.telemetry.add(f"past_left_out_{error.pin}", 1)
        else:
            if attempt.trajectory.harness == goal.bundles.judging(task.kind)[0]:
                found.append(attempt)
    return found


def _routed_demonstrations(
    goal: GoalRecord, training: Sequence[Task], used: set[str], own: Mapping[str, Sequence[Attempt]]
) -> dict[str, str]:
    """Task -> the bucket that gold demonstrates it for: tasks of a bucket owned by SFT, what a bucket owned by RL lacks of
    rollouts of its own, and half of the new tasks of one owned by data."""
    picked: dict[str, str] = {}
    for item in goal.material:
        free = [task for task in training if task.id not in used and task.id not in picked]
        if item.kind == "demonstrations":
            pool = [task for task in free if task.family == item.family]
            wanted = item.amount - len(own.get(item.bucket, ()))
        elif item.kind == "tasks":
            pool, wanted = [task for task in free if bucket_of(task) == item.bucket], max(1, item.amount // 2)
        else:
            continue
        picked |= {task.id: item.bucket for task in round_robin(pool, wanted, goal.spec.seed)}
    return picked


def _profiles(goal: GoalRecord, routed: Sequence[Task]) -> dict[str, str]:
    """Task -> the profile of noise that its material asks for, where the spec still declares it."""
    asked = {item.family: item.noise for item in goal.material if item.noise in goal.spec.noise}
    return {task.id: name for task in routed if (name := asked.get(task.family))}


def _past(ctx: Context, goal: GoalRecord, training: dict[str, Task]) -> list[Attempt]:
    """Rejection sampling for free: training-pool rollouts of earlier rounds that were verified, newest first, one a task.

    Only what was made under this round's harness and may be mixed: another protocol would be taught, or another goal. Those
    that may not be are left out, and the telemetry counts them. What was rescored counts by its verdict in force.
    """
    at_most, found = goal.spec.data.demonstrations.from_past_rounds, dict[str, Attempt]()
    recall = Recall(ctx.workspace) if at_most and goal.spec.stale == "refuse" else None
    for record in reversed(ctx.earlier("rl")):
        if not at_most or "attempts" not in record.artifacts:
            continue
        table = ctx.workspace.open_artifact(record.artifacts["attempts"]) / "attempts.parquet"
        for stored in read_attempts(table):
            attempt = recall.of(stored) if recall else stored
            trajectory = attempt.trajectory
            task = training.get(trajectory.task_id)
            clean = attempt.verdict.passed and not trajectory.conduct.invalid_calls and trajectory.purpose is Purpose.RL
            if not clean or task is None or trajectory.harness != goal.bundles.judging(task.kind)[0]:
                continue
            try:
                require_mixable(ctx, goal, [task], [attempt])
            except PinMismatch as error:
                ctx.telemetry.add(f"past_left_out_{error.pin}", 1)
            else:
                found.setdefault(task.id, attempt)
    return [found[task] for task in sorted(found, key=lambda task: order(goal.spec.seed, task))[:at_most]]


def require_mixable(ctx: Context, goal: GoalRecord, tasks: Sequence[Task], attempts: Sequence[Attempt]) -> None:
    """Each is of a task that this round has, judged and priced as this round judges and prices it. Raises PinMismatch."""
    known = {task.id: task for task in tasks}
    rules = goal.spec.rewards.digest()
    for attempt in attempts:
        task = known.get(attempt.trajectory.task_id)
        present = {"rewards": rules} | ({"tasks": task.digest()} if task else {})
        kind = task.kind if task else None
        verifier = goal.bundles.judging(kind)[1] if kind else attempt.verdict.verifier
        own = attempt_pins(attempt)
        recorded = {name: own[name] for name in ("tasks", "verifier", "rewards")}
        ctx.require_pins(recorded, {**present, "verifier": verifier}, "mix", f"{attempt.trajectory.id}:")


def row_of(source: str, attempt: Attempt, made_for: Material | None = None) -> dict[str, Any]:
    """A demonstration in TRL's conversational format, with what it came from, and the bucket that it was made for with its
    cause: None for what no bucket asked for. Tables of before have neither."""
    trajectory = attempt.trajectory
    return {
        "id": trajectory.id,
        "source": source,
        "task_id": trajectory.task_id,
        "family": trajectory.family,
        "bucket": made_for.bucket if made_for else None,
        "cause": made_for.cause if made_for else None,
        "messages": trajectory.conversation(),
    }


def edge_of(use: Any, row: str, attempt: Attempt, advantage: float | None = None, step: int | None = None) -> UseEdge:
    """From a used row to the trajectory, verdict and reward behind it."""
    return UseEdge(
        use=use,
        row=row,
        trajectory=attempt.trajectory.id,
        task=attempt.trajectory.task,
        verdict=attempt.verdict.digest(),
        reward=attempt.reward.digest(),
        rules=attempt.reward.rules,
        advantage=advantage,
        step=step,
    )


def write_demonstrations(
    folder: Path, rows: list[dict[str, Any]], attempts: list[Attempt], edges: list[UseEdge]
) -> None:
    (folder / "demonstrations.jsonl").write_bytes(b"".join(canonical(row) + b"\n" for row in rows))
    write_attempts(folder / "attempts.parquet", attempts)
    write_edges(folder / "edges.parquet", edges)


def load_demonstrations(ctx: Context) -> list[dict[str, Any]]:
    """The rows that SFT trains on. Raises PinMismatch for one that this round would judge or price otherwise."""
    record: DataRecord = ctx.record("data")
    folder = ctx.workspace.open_artifact(record.artifacts["demonstrations"])
    made = read_attempts(folder / "attempts.parquet")
    if record.rescored_by is not None:  # repeated because a rescore under this round's verifier and rules agreed
        recall = Recall(ctx.workspace)
        made = [recall.of(attempt) for attempt in made]
    require_mixable(ctx, ctx.record("goal"), load_tasks(ctx), made)
    return read_demonstrations(folder)


def read_demonstrations(folder: Path) -> list[dict[str, Any]]:
    """The rows of a `demonstrations` artifact, for looking at them."""
    return [json.loads(line) for line in (folder / "demonstrations.jsonl").read_text("utf-8").splitlines()]

"""Backflow: failures on dev to evidence, to cause, to bucket, to route, to material for the next round.

One half of dev chooses the buckets, the other half measures them, so that a bucket chosen because it was large by chance
does not look repaired by chance. The held-out suites select nothing.
First form: the evidence is what the log holds and pass@k of the task; experiments that swap one pin come with attribution.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from environments.sources.splits import order
from evals.buckets import Half, build, changes, indicators, material, treat
from evals.rules import complete, rules_digest
from evals.suites import halves
from schemas.backflow import BackflowRecord
from schemas.base import Digest, Json
from schemas.bucket import BucketChange, Route, Rule
from schemas.goal import GoalRecord
from schemas.task import Split, Task
from schemas.trajectory import Attempt, Purpose
from stages.artifacts import store
from stages.attempts import read_attempts, write_attempts
from stages.checkpoints import final_checkpoint, folder_of
from stages.context import Context
from stages.decisions import overrides
from stages.equipment import equip, errors_in
from stages.goal import decided, handed_by
from stages.ledger import held_back, in_vain, made_for, marked
from stages.sft import rollout_sections
from stages.tasks import bench_pins, load_tasks, round_robin

Inputs = tuple[dict[str, Json], dict[str, Digest]]


def inputs(ctx: Context) -> Inputs:
    goal: GoalRecord = ctx.record("goal")
    sections = rollout_sections(goal)
    sections["backflow"] = goal.spec.backflow.model_dump(mode="json")
    sections["temperature"] = goal.spec.evaluation.temperature
    routes: dict[str, Json] = {bucket: list(one) for bucket, one in _overrides(ctx).items()}
    sections |= {"decisions": {"known": list(goal.decisions), "routes": routes}} if goal.decisions else {}
    vain = in_vain(ctx.workspace, ctx.round)
    sections |= {"in_vain": dict(vain)} if vain else {}
    pins = {
        **bench_pins(goal),
        "tasks": ctx.record("data").artifacts["tasks"].digest,
        "policy": final_checkpoint(ctx)[1],
        "rules": rules_digest(_rules(goal)),
    }
    for record in ctx.earlier("backflow")[-1:]:
        pins["previous_attempts"] = record.artifacts["attempts"].digest
        pins["previous_rules"] = record.rules
    return sections, pins


def _overrides(ctx: Context) -> dict[str, tuple[Route, str]]:
    """People's routes, as the round began under them: what is decided meanwhile changes the next one."""
    return overrides(decided(ctx), ctx.round)


def _rules(goal: GoalRecord) -> list[Rule]:
    return complete(goal.spec.routes)


def run(ctx: Context, key: Digest, pins: dict[str, Digest]) -> BackflowRecord:
    goal: GoalRecord = ctx.record("goal")
    spec = goal.spec.backflow
    tasks = load_tasks(ctx)
    attempts = _attempt_dev(ctx, goal, tasks)
    rules = _rules(goal)
    choose_half, measure_half = halves([task for task in tasks if task.split is Split.DEV])
    known = {task.id: task for task in tasks}
    origins = trained_origins(tasks)
    measured = _of(attempts, measure_half)
    choosing, measuring = Half.of(_of(attempts, choose_half), known, origins), Half.of(measured, known, origins)
    buckets = build(choosing, measuring, rules, overrides=_overrides(ctx), seed=goal.spec.seed)
    changed = _changes(ctx, measured, known, rules)
    buckets = marked(buckets, in_vain(ctx.workspace, ctx.round, (buckets, changed)))
    handed = held_back(material(buckets, spec, [task for task in tasks if task.split is Split.TRAIN]), buckets)
    buckets = treat(buckets, handed)
    table = store(
        ctx.workspace, "backflow", "attempts", lambda folder: write_attempts(folder / "attempts.parquet", attempts)
    )
    return BackflowRecord(
        key=key,
        inputs=pins,
        artifacts={"attempts": table},
        infrastructure_errors=errors_in(attempts),
        rules=rules_digest(rules),
        buckets=buckets,
        changes=changed,
        material=handed,
        decisions=sorted({bucket.overridden_by for bucket in buckets if bucket.overridden_by}),
        failures=len(choosing.evidence) + len(measuring.evidence),
        attempts=len(attempts),
    )


def _attempt_dev(ctx: Context, goal: GoalRecord, tasks: list[Task]) -> list[Attempt]:
    """The same dev tasks each round, so that a bucket is compared on equal items; the policy gives other seeds."""
    spec = goal.spec.backflow
    dev = [task for task in tasks if task.split is Split.DEV]
    chosen = sampled(halves(dev), spec.tasks // 2, goal.spec.seed)
    artifact, weights, _ = final_checkpoint(ctx)
    with equip(ctx, goal) as bench:
        sampler = bench.sampler(folder_of(ctx, artifact, weights))
        requests = bench.requests(chosen, spec.samples, Purpose.ATTRIBUTION, weights)
        return bench.attempt(sampler, requests, setting=bench.deployed(), audit="all")


def sampled(parts: Sequence[list[Task]], each: int, seed: int) -> list[Task]:
    """`each` tasks of either half: of the families that both have first, turn by turn, so that a bucket chosen on one half
    can be measured on the other; within a family one task of each origin before a second."""
    shared = set.intersection(*({task.family for task in part} for part in parts))
    chosen: list[Task] = []
    for part in parts:
        ranked: list[tuple[bool, int, str, Task]] = []
        for family in {task.family for task in part}:
            own = round_robin([task for task in part if task.family == family], each, seed)
            ranked += [(family not in shared, turn, order(seed, family), task) for turn, task in enumerate(own)]
        chosen += [row[3] for row in sorted(ranked, key=lambda row: row[:3])[:each]]
    return chosen


def _of(attempts: list[Attempt], tasks: list[Task]) -> list[Attempt]:
    names = {task.id for task in tasks}
    return [attempt for attempt in attempts if attempt.trajectory.task_id in names]


def trained_origins(tasks: list[Task]) -> dict[str, int]:
    """Family -> distinct origins among the training tasks: what coverage means."""
    found: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        if task.split is Split.TRAIN:
            found[task.family].add(task.origin)
    return {family: len(origins) for family, origins in sorted(found.items())}


def _changes(ctx: Context, measured: list[Attempt], known: dict[str, Task], rules: list[Rule]) -> list[BucketChange]:
    """The last round's buckets on the measuring half, then and now, by the rules of now and the coverage of then.

    Routed tasks raise a family's coverage: judged by the coverage of now, a bucket for want of it would be empty by
    definition.
    """
    rounds = [n for n in ctx.workspace.rounds() if n < ctx.round and ctx.workspace.has(n, "backflow")]
    previous = [n for n in rounds if ctx.record("backflow", n).skipped is None]
    if not previous:
        return []
    last: BackflowRecord = ctx.record("backflow", previous[-1])
    origins = trained_origins(load_tasks(ctx, previous[-1]))
    names = {(attempt.trajectory.task_id, attempt.trajectory.task) for attempt in measured}
    folder = ctx.workspace.open_artifact(last.artifacts["attempts"])
    before = [
        a for a in read_attempts(folder / "attempts.parquet") if (a.trajectory.task_id, a.trajectory.task) in names
    ]
    then, now = (Half.of(attempts, known, origins) for attempts in (before, measured))
    handed, _ = handed_by(ctx, previous[-1])
    treated = treat(last.buckets, handed)  # as this round took it, people's decisions since included
    found = changes(treated, indicators(then, rules, last.buckets), indicators(now, rules, last.buckets))
    costs = {one.id: made_for(item for item in handed if item.bucket == one.id) for one in treated}
    return [change.model_copy(update={"cost": costs[change.bucket]}) for change in found]

"""Backflow: failures on dev to evidence, to cause, to bucket, to route, to material for the next round.

One half of dev chooses the buckets, the other half measures them, so that a bucket chosen because it was large by chance
does not look repaired by chance. The held-out suites select nothing. Causes are found by experiment (stages/attribute.py)
on both halves alike; the attributions are kept, so that the next round measures a bucket by what was found then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from environments.bundles import Bundle
from environments.sources.splits import order
from evals.applied import Stand, applied
from evals.buckets import Half, account, attempted, build, compare, treat
from evals.rules import complete, rules_digest
from evals.suites import halves
from evals.triage import write_attributed
from schemas.attribution import Attribution
from schemas.backflow import BackflowRecord
from schemas.base import Digest, Json, canonical
from schemas.bucket import BucketChange, Route, Rule
from schemas.errors import IntegrityError
from schemas.goal import GoalRecord
from schemas.migrations import FIELD, stamped_row
from schemas.task import Split, Task
from schemas.trajectory import Attempt, Purpose
from stages.artifacts import store
from stages.attempts import read_attempts, write_attempts
from stages.attribute import climb, costs, evidence_of, lineage, open_lab
from stages.canary import bundle_folder
from stages.checkpoints import final_checkpoint, folder_of
from stages.context import Context
from stages.decisions import overrides
from stages.equipment import equip, errors_in, noise_section
from stages.goal import decided, handed_by
from stages.ledger import held_back, in_vain, marked
from stages.material import propose
from stages.sft import rollout_sections
from stages.tasks import bench_pins, load_tasks, round_robin, trained_origins
from stages.treatment import treatments

Inputs = tuple[dict[str, Json], dict[str, Digest]]
ATTRIBUTIONS = "attributions.jsonl"
# Parquet of the same failures in columns, for `postloop triage`; whoever looks for attempts reads each .parquet of an artifact.
EVIDENCE = "evidence.pq"
CONTESTED = ("verifier_hole", "verifier_too_strict")  # causes that only a second verifier finds


def inputs(ctx: Context) -> Inputs:
    goal: GoalRecord = ctx.record("goal")
    sections = rollout_sections(goal)
    sections["backflow"] = goal.spec.backflow.model_dump(mode="json")
    sections["temperature"] = goal.spec.evaluation.temperature
    sections |= noise_section(goal.spec, [goal.spec.backflow.noise])
    sections |= {
        name: getattr(goal.spec, name).model_dump(mode="json") for name in ("data", "rl")
    }  # material obeys them
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
    if goal.bundles.audit_verifier is not None:
        pins["audit_verifier"] = goal.bundles.audit_verifier
    pins |= {f"policy_{one.stage}": one.weights for one in lineage(ctx, goal)[:-1]}
    for place, ref in enumerate(goal.spec.backflow.attribution.harnesses):
        pins[f"harness_other_{place}"] = Bundle(bundle_folder(ctx, ref)).digest
    rolled_out = ctx.record("rl").artifacts.get("attempts")
    if rolled_out is not None:
        pins["past_rl"] = rolled_out.digest  # what material is made from
    if goal.material or goal.weights:  # what the treatment of the last round's buckets took is counted in these
        made = ctx.record("data").artifacts
        names = ("attempts", "demonstrations", "pairs", "proofs")
        pins |= {f"made_{name}": made[name].digest for name in names if name in made}
    for record in ctx.earlier("backflow")[-1:]:
        pins["previous_attempts"] = record.artifacts["attempts"].digest
        pins["previous_rules"] = record.rules
        if "attributions" in record.artifacts:
            pins["previous_attributions"] = record.artifacts["attributions"].digest
    return sections, pins


def _overrides(ctx: Context) -> dict[str, tuple[Route, str]]:
    """People's routes, as the round began under them: what is decided meanwhile changes the next one."""
    return overrides(decided(ctx), ctx.round)


def _rules(goal: GoalRecord) -> list[Rule]:
    return complete(goal.spec.routes)


def run(ctx: Context, key: Digest, pins: dict[str, Digest]) -> BackflowRecord:
    goal: GoalRecord = ctx.record("goal")
    tasks = load_tasks(ctx)
    attempts = _attempt_dev(ctx, goal, tasks)
    rules = _rules(goal)
    choose_half, measure_half = halves([task for task in tasks if task.split is Split.DEV])
    found = attributed(ctx, goal, tasks, attempts, rules)
    choosing, measuring = (_half(attempts, half, found) for half in (choose_half, measure_half))
    buckets = build(choosing, measuring, rules, overrides=_overrides(ctx), seed=goal.spec.seed)
    buckets = account(buckets, [one for one in found if one.evidence.task_id in choosing.attempted], rules)
    changed = _changes(ctx, attempts, measuring, {task.id: task for task in measure_half}, rules)
    buckets = marked(buckets, in_vain(ctx.workspace, ctx.round, (buckets, changed)))
    handed = held_back(propose(ctx, goal, buckets, tasks, rules, attempts, choosing.evidence), buckets)
    buckets = treat(buckets, handed)
    table = store(
        ctx.workspace, "backflow", "attempts", lambda folder: write_attempts(folder / "attempts.parquet", attempts)
    )
    kept = store(ctx.workspace, "backflow", "attributions", lambda folder: write_attributions(folder, found))
    return BackflowRecord(
        key=key,
        inputs=pins,
        artifacts={"attempts": table, "attributions": kept},
        infrastructure_errors=errors_in(attempts),
        rules=rules_digest(rules),
        buckets=buckets,
        changes=changed,
        material=handed,
        decisions=sorted({bucket.overridden_by for bucket in buckets if bucket.overridden_by}),
        failures=len(choosing.evidence) + len(measuring.evidence),
        attempts=len(attempts),
        ladder=costs(found),
    )


def attributed(
    ctx: Context, goal: GoalRecord, tasks: list[Task], attempts: list[Attempt], rules: list[Rule]
) -> list[Attribution]:
    """Every failure among these attempts of the round's last policy, with its owner."""
    evidence = evidence_of(goal, tasks, attempts)
    with equip(ctx, goal) as bench, open_lab(ctx, bench, tasks, attempts, setting=bench.deployed()) as lab:
        return climb(lab, attempts, evidence, rules)


def _half(attempts: list[Attempt], tasks: list[Task], found: list[Attribution]) -> Half:
    own = _of(attempts, tasks)
    names = {attempt.trajectory.id for attempt in own}
    here = [one for one in found if one.trajectory in names]
    return Half([one.evidence for one in here], attempted(own))


def write_attributions(folder: Path, found: Sequence[Attribution]) -> None:
    """One line each, and their evidence as a table."""
    lines = b"".join(canonical(stamped_row(one.model_dump(mode="json"))) + b"\n" for one in found)
    (folder / ATTRIBUTIONS).write_bytes(lines)
    write_attributed(folder / EVIDENCE, found)


def read_attributions(folder: Path) -> list[Attribution]:
    """Raises IntegrityError."""
    path = folder / ATTRIBUTIONS
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return [Attribution.model_validate({k: v for k, v in row.items() if k != FIELD}) for row in rows]
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: not attributions ({str(error).splitlines()[0][:200]}); restore it") from error


def _attempt_dev(ctx: Context, goal: GoalRecord, tasks: list[Task]) -> list[Attempt]:
    """The same dev tasks each round, so that a bucket is compared on equal items; the policy gives other seeds."""
    spec = goal.spec.backflow
    dev = [task for task in tasks if task.split is Split.DEV]
    chosen = sampled(halves(dev), spec.tasks // 2, goal.spec.seed)
    artifact, weights, _ = final_checkpoint(ctx)
    with equip(ctx, goal) as bench:
        sampler = bench.sampler(folder_of(ctx, artifact, weights))
        requests = bench.requests(chosen, spec.samples, Purpose.ATTRIBUTION, weights, spec.noise)
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


def measured_again(ctx: Context) -> list[BucketChange]:
    """What a finished round says of the last one's buckets, made anew from what both kept: by the comparison of this code."""
    record: BackflowRecord = ctx.record("backflow")
    if record.skipped is not None or "attributions" not in record.artifacts:
        return list(record.changes)
    attempts = read_attempts(ctx.workspace.open_artifact(record.artifacts["attempts"]) / "attempts.parquet")
    found = read_attributions(ctx.workspace.open_artifact(record.artifacts["attributions"]))
    _, tasks = halves([task for task in load_tasks(ctx) if task.split is Split.DEV])
    known, rules = {task.id: task for task in tasks}, _rules(ctx.record("goal"))
    return _changes(ctx, attempts, _half(attempts, tasks, found), known, rules)


def _changes(
    ctx: Context, attempts: list[Attempt], measuring: Half, known: dict[str, Task], rules: list[Rule]
) -> list[BucketChange]:
    """The last round's buckets on the measuring half, then and now, by the rules of now and what was found out then.

    Routed tasks raise a family's coverage: judged by the coverage of now, a bucket for want of it would be empty by
    definition. A round without attributions is compared by the log alone, on both sides.
    """
    rounds = [n for n in ctx.workspace.rounds() if n < ctx.round and ctx.workspace.has(n, "backflow")]
    previous = [n for n in rounds if ctx.record("backflow", n).skipped is None]
    if not previous:
        return []
    last: BackflowRecord = ctx.record("backflow", previous[-1])
    names = {(a.trajectory.task_id, a.trajectory.task) for a in attempts if a.trajectory.task_id in known}
    folder = ctx.workspace.open_artifact(last.artifacts["attempts"])
    before = [
        a for a in read_attempts(folder / "attempts.parquet") if (a.trajectory.task_id, a.trajectory.task) in names
    ]
    earlier = load_tasks(ctx, previous[-1])
    origins = trained_origins(earlier)
    if "attributions" in last.artifacts:
        found = read_attributions(ctx.workspace.open_artifact(last.artifacts["attributions"]))
        then, now = _half(before, list(known.values()), found), _covered(measuring, origins)
    else:
        then = Half.of(before, known, origins)
        now = Half.of(_of(attempts, list(known.values())), known, origins)
    handed, _ = handed_by(ctx, previous[-1])
    goal: GoalRecord = ctx.record("goal")
    stands = (
        Stand(ctx.record("goal", previous[-1]), {task.id: task for task in earlier}),
        Stand(goal, {task.id: task for task in load_tasks(ctx)}),
    )
    # As this round took it, people's decisions since included.
    treated = treat(last.buckets, handed, lambda item: applied(item, *stands))
    blind = () if goal.bundles.audit_verifier else CONTESTED
    changed = compare(treated, then, now, rules, blind=blind)
    made = treatments(ctx, handed)
    return [
        change.model_copy(update={"cost": made.cost(change.bucket), "shares": made.shares(change.bucket)})
        for change in changed
    ]


def _covered(half: Half, origins: dict[str, int]) -> Half:
    """The same half under the coverage of another round."""
    recounted = [e.model_copy(update={"trained_origins": origins.get(e.family, 0)}) for e in half.evidence]
    return replace(half, evidence=recounted)

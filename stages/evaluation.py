"""Evaluation: independent suites in deployment configuration, paired comparisons, and promotion through gates only.

A policy's attempts on a suite are kept as an artifact and taken over when weights, tasks and pins are equal, so the base
is measured once. INCONCLUSIVE never promotes. The held-out suites measure; nothing is selected on them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evals.gates import goal_met, promotes, promotion_gate, retention_gate
from evals.metrics import attempt_metrics, by_family, paired, pass_shares
from evals.suites import select
from schemas.artifact import ArtifactRef
from schemas.base import Digest, Json, digest_of
from schemas.evaluation import EvaluationRecord, EvaluationSpec, SuiteSpec
from schemas.goal import GoalRecord
from schemas.metrics import Alarm, Gate, Paired, SuiteResult
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.task import Task
from schemas.trajectory import Attempt, Purpose
from schemas.verdict import Status
from stages.artifacts import kept, store
from stages.attempts import read_attempts, write_attempts
from stages.checkpoints import Place, fetch_base, final_checkpoint, folder_of, previous_champion
from stages.context import Context
from stages.equipment import Equipment, equip, errors_in, noise_section
from stages.keys import code_digest, libraries_digest
from stages.recall import Recall
from stages.sft import rollout_sections
from stages.tasks import bench_pins, load_tasks

Inputs = tuple[dict[str, Json], dict[str, Digest]]
Policy = tuple[str, Place, Digest]


def inputs(ctx: Context) -> Inputs:
    goal: GoalRecord = ctx.record("goal")
    sections = rollout_sections(goal)
    sections["evaluation"] = goal.spec.evaluation.model_dump(mode="json")
    sections["temperature"] = goal.spec.evaluation.temperature
    sections |= noise_section(goal.spec, (suite.noise for suite in goal.spec.evaluation.suites))
    sections["criteria"] = [criterion.model_dump(mode="json") for criterion in goal.spec.criteria]
    pins = {**bench_pins(goal), "tasks": ctx.record("data").artifacts["tasks"].digest}
    if goal.bundles.audit_verifier:
        pins["audit_verifier"] = goal.bundles.audit_verifier
    pins |= {f"policy_{name}": weights for name, _, weights in policies(ctx)}
    champion = previous_champion(ctx)
    if champion is not None:
        pins["champion"] = champion[1]
    return sections, pins


def policies(ctx: Context) -> list[Policy]:
    """What is measured: base, this round's SFT and RL checkpoints, and the champion so far when it is another one."""
    goal: GoalRecord = ctx.record("goal")
    sft: SftRecord = ctx.record("sft")
    rl: RlRecord = ctx.record("rl")
    found: list[Policy] = [("base", fetch_base(ctx, goal), goal.base.weights)]
    if sft.checkpoint is not None:
        found.append(("sft", sft.artifacts["checkpoint"], sft.checkpoint.weights))
    if rl.checkpoint is not None:
        found.append(("rl", rl.artifacts["checkpoint"], rl.checkpoint.weights))
    champion = previous_champion(ctx)
    if champion is not None and champion[1] not in {weights for _, _, weights in found}:
        found.append(("champion", *champion))
    return found


def run(ctx: Context, key: Digest, pins: dict[str, Digest]) -> EvaluationRecord:
    goal: GoalRecord = ctx.record("goal")
    spec = goal.spec.evaluation
    tasks = load_tasks(ctx)
    found: dict[str, dict[str, list[Attempt]]] = {}
    artifacts: dict[str, ArtifactRef] = {}
    with equip(ctx, goal) as bench:
        for name, where, weights in policies(ctx):
            artifact, attempts = _measure(ctx, goal, bench, name, where, weights, tasks)
            artifacts[artifact.name], found[name] = artifact, attempts
    results = [
        _result(spec, suite, name, weights, found[name][suite.name])
        for name, _, weights in policies(ctx)
        for suite in spec.suites
    ]
    final = final_checkpoint(ctx)[2]
    reference = _reference(ctx)
    comparisons = [*_compare(spec, found, final, reference), *_under_noise(spec, found[final], final)]
    gates = _gates(spec, comparisons, final, reference) if final not in ("base", reference) else []
    promoted = promotes(gates)
    gaps, alarms = _audit(spec, found[final])
    champion = previous_champion(ctx)
    trained, weights, _ = final_checkpoint(ctx)
    if promoted and isinstance(trained, ArtifactRef):
        champion = (trained, weights)
    if champion is not None:
        artifacts["champion"] = champion[0].model_copy(update={"name": "champion"})
    return EvaluationRecord(
        key=key,
        inputs=pins,
        artifacts=artifacts,
        gates=gates,
        alarms=alarms,
        infrastructure_errors=sum(errors_in(a) for suites in found.values() for a in suites.values()),
        results=results,
        paired=comparisons,
        audit_gap=gaps,
        promoted=promoted,
        champion=champion[1] if champion else None,
        goal_met=goal_met(goal.spec.criteria, [result for result in results if result.policy == final]),
    )


def _reference(ctx: Context) -> str:
    """The policy to beat: whichever has the champion's weights, also when this round trained the same; else the base."""
    champion = previous_champion(ctx)
    weights = {digest: name for name, _, digest in reversed(policies(ctx))}
    return weights[champion[1]] if champion is not None else "base"


def _measure(
    ctx: Context,
    goal: GoalRecord,
    bench: Equipment,
    name: str,
    where: Place,
    weights: Digest,
    tasks: Sequence[Task],
) -> tuple[ArtifactRef, dict[str, list[Attempt]]]:
    """Attempts by suite of one policy; those of an earlier round when everything that decides them is equal and none of
    them was lost to infrastructure."""
    spec = goal.spec
    suites = {suite.name: select(tasks, suite, spec.seed) for suite in spec.evaluation.suites}
    members: Json = {
        suite.name: [
            [t.digest() for t in suites[suite.name]], suite.samples,
            *([spec.noise[suite.noise].model_dump(mode="json")] if suite.noise else []),
        ]
        for suite in spec.evaluation.suites
    }  # fmt: skip
    label = _label(goal, weights, members)
    before = [record.artifacts[label] for record in ctx.earlier("evaluation") if label in record.artifacts]
    found = before[-1] if before else kept(ctx.workspace, "evaluation", label)
    if found is not None:
        stored = ctx.workspace.open_artifact(found)
        known = {suite: read_attempts(stored / f"{suite}.parquet") for suite in suites}
        if not any(map(errors_in, known.values())):
            return found, known
    attempts = _rescored(ctx, goal, weights, members, tasks) or _attempted(ctx, bench, name, where, weights, suites)

    def write(target: Path) -> None:
        for suite, rows in attempts.items():
            write_attempts(target / f"{suite}.parquet", rows)

    return store(ctx.workspace, "evaluation", label, write), attempts


def _label(goal: GoalRecord, weights: Digest, members: Json) -> str:
    """Names all that decides the attempts of a policy at these tasks, and their verdicts and rewards."""
    sections = rollout_sections(goal)
    sections["temperature"] = goal.spec.evaluation.temperature
    own = [code_digest("evaluation"), libraries_digest("evaluation")]
    audit = goal.bundles.audit_verifier or ""
    return f"attempts-{digest_of([weights, members, audit, sections, bench_pins(goal), own])[:12]}"


def _rescored(
    ctx: Context, goal: GoalRecord, weights: Digest, members: Json, tasks: Sequence[Task]
) -> dict[str, list[Attempt]] | None:
    """What this policy did at these tasks under an earlier round's verifiers and rules, where a rescore judged all of it
    under those of this round: nothing is sampled again. None where a pass was never audited."""
    recall, rules, kinds = Recall(ctx.workspace), goal.spec.rewards.digest(), {t.digest(): t.kind for t in tasks}

    def stands(attempt: Attempt) -> bool:
        verifier = goal.bundles.judging(kinds[attempt.trajectory.task])[1]
        audited = attempt.audit is not None or not attempt.verdict.passed or goal.bundles.audit_verifier is None
        return audited and (attempt.verdict.verifier, attempt.reward.rules) == (verifier, rules)

    evaluations: list[EvaluationRecord] = ctx.earlier("evaluation") if recall.rescores else []
    for old in {(then.bundles.digest(), then.spec.rewards.digest()): then for then in ctx.earlier("goal")}.values():
        judges = {"verifier": old.bundles.verifier, "verifier_of": old.bundles.verifier_of}
        bundles, spec = goal.bundles.model_copy(update=judges), {"rewards": old.spec.rewards}
        then = goal.model_copy(update={"bundles": bundles, "spec": goal.spec.model_copy(update=spec)})
        label = _label(then, weights, members)
        for ref in [record.artifacts[label] for record in evaluations if label in record.artifacts][-1:]:
            tables = sorted(ctx.workspace.open_artifact(ref).glob("*.parquet"))
            now = {table.stem: [recall.of(attempt) for attempt in read_attempts(table)] for table in tables}
            if all(stands(attempt) for rows in now.values() for attempt in rows):
                return {suite: [_audited_as_pass(attempt) for attempt in rows] for suite, rows in now.items()}
    return None


def _audited_as_pass(attempt: Attempt) -> Attempt:
    """Only passes are audited: an audit of what passes no more is no part of the gap."""
    return attempt if attempt.verdict.passed else attempt.model_copy(update={"audit": None})


def _attempted(
    ctx: Context, bench: Equipment, name: str, where: Place, weights: Digest, suites: Mapping[str, Sequence[Task]]
) -> dict[str, list[Attempt]]:
    spec = bench.goal.spec
    folder = folder_of(ctx, where, weights)
    sampler = bench.sampler(folder)
    attempts: dict[str, list[Attempt]] = {}
    began = time.monotonic()
    for suite in spec.evaluation.suites:
        ctx.progress(f"evaluating {name} on {suite.name}", len(attempts), len(suites))
        requests = bench.requests(suites[suite.name], suite.samples, Purpose.EVALUATION, weights, suite.noise)
        attempts[suite.name] = bench.attempt(sampler, requests, setting=bench.deployed(), audit="passes")
    ctx.telemetry.put(f"seconds_a_task_{name}", (time.monotonic() - began) / max(1, sum(map(len, suites.values()))))
    return attempts


def _result(spec: EvaluationSpec, suite: SuiteSpec, name: str, weights: Digest, attempts: list[Attempt]) -> SuiteResult:
    k = min(spec.k, suite.samples)
    metrics = attempt_metrics(attempts, k, resamples=spec.resamples, confidence=spec.confidence)
    families = by_family(attempts, resamples=spec.resamples, confidence=spec.confidence)
    return SuiteResult.model_validate(
        {"suite": suite.name, "policy": name, "checkpoint": weights, "metrics": metrics, "by_family": families}
    )


def _compare(
    spec: EvaluationSpec, found: dict[str, dict[str, list[Attempt]]], final: str, reference: str
) -> list[Paired]:
    pairs = [("sft", "base"), ("rl", "sft"), (final, "base"), (final, reference)]
    wanted = [pair for pair in dict.fromkeys(pairs) if pair[0] in found and pair[1] in found and pair[0] != pair[1]]
    return [
        _paired(spec, suite.name, (candidate, found[candidate][suite.name]), (other, found[other][suite.name]))
        for candidate, other in wanted
        for suite in spec.suites
    ]


def _under_noise(spec: EvaluationSpec, attempts: Mapping[str, list[Attempt]], final: str) -> list[Paired]:
    """The final policy on each noisy suite, minus itself on the first clean suite of the same split and skills."""
    found = []
    for noisy in (suite for suite in spec.suites if suite.noise):
        alike = (s.name for s in spec.suites if (s.noise, s.split, s.skills) == (None, noisy.split, noisy.skills))
        if clean := next(alike, None):
            other = (f"{final} on {clean}", attempts[clean])
            found.append(_paired(spec, noisy.name, (final, attempts[noisy.name]), other))
    return found


Named = tuple[str, list[Attempt]]


def _paired(spec: EvaluationSpec, suite: str, candidate: Named, reference: Named) -> Paired:
    difference = paired(
        pass_shares(candidate[1]),
        pass_shares(reference[1]),
        errors=errors_in(candidate[1]) + errors_in(reference[1]),
        resamples=spec.resamples,
        confidence=spec.confidence,
    )
    return Paired(suite=suite, metric="pass@1", candidate=candidate[0], reference=reference[0], difference=difference)


def _gates(
    spec: EvaluationSpec,
    comparisons: list[Paired],
    final: str,
    reference: str,
) -> list[Gate]:
    """Promotion: better than the champion on the promotion suite, and on retention not worse by more than the margin."""
    against = {(p.suite, p.candidate, p.reference): p.difference for p in comparisons}
    return [
        promotion_gate(against[(spec.promotion_suite, final, reference)], spec.promotion_suite),
        retention_gate(against[(spec.retention_suite, final, "base")], spec.retention_margin, owner=final),
    ]


def _audit(spec: EvaluationSpec, attempts: dict[str, list[Attempt]]) -> tuple[dict[str, float | None], list[Alarm]]:
    """Share of the scored attempts that the training verifier passes and the audit verifier does not, by suite.

    Only passes are audited here: a hole in the training verifier cannot show elsewhere. Audits that broke are taken to
    contest as often as the others; None when there are passes and no audit of any.
    """
    gaps: dict[str, float | None] = {}
    for suite, rows in attempts.items():
        scored = [a for a in rows if a.verdict.status is Status.SCORED]
        passes = [a for a in scored if a.verdict.passed]
        audited = [a for a in passes if a.audit and a.audit.status is Status.SCORED]
        if not scored or (passes and not audited):
            gaps[suite] = None
            continue
        contested = sum(bool(a.audit and not a.audit.passed) for a in audited)
        gaps[suite] = contested / len(audited) * len(passes) / len(scored) if audited else 0.0
    found = [
        Alarm(
            name="audit_gap",
            value=gap,
            threshold=spec.audit_gap_above,
            step=0,
            meaning=f"on {suite} the training verifier passes what the audit verifier does not",
        )
        for suite, gap in gaps.items()
        if gap is not None and gap > spec.audit_gap_above
    ]
    return gaps, found

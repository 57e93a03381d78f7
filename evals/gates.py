"""Typed edges between stages: GO, NO-GO or INCONCLUSIVE, with the numbers that decided.

The interval decides, never the point: GO when all of it is on the right side, NO-GO when all of it is on the wrong
side, else INCONCLUSIVE, which is also the answer without data. INCONCLUSIVE never promotes. It may train
(`may_train`): a wasted RL phase costs minutes and its result must pass the promotion gates anyway, while small sets
would else keep every round from RL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from evals.metrics import CONFIDENCE, RESAMPLES, attempt_metrics, mixed_share, reward_groups
from schemas.errors import InputError
from schemas.goal import Criterion
from schemas.metrics import Condition, Decision, Estimate, Gate, SuiteResult
from schemas.rl import HeadroomSpec
from schemas.sft import SftSpec
from schemas.trajectory import Attempt

HEADROOM_PARSE_RATE = 0.5  # below it most turns never reach the verifier, and groups measure the format


def condition(
    name: str, estimate: Estimate, operator: Literal[">=", "<="], threshold: float, strict: bool = False
) -> Condition:
    """One comparison. `strict`: the bound itself is not enough (a lower bound of exactly 0 is no improvement)."""
    return Condition(
        name=name,
        estimate=estimate,
        operator=operator,
        threshold=threshold,
        decision=_decide(estimate, operator, threshold, strict),
    )


def gate(name: str, conditions: Sequence[Condition], owner: str | None = None) -> Gate:
    """GO when every condition is, NO-GO when any is, else INCONCLUSIVE. `owner` is kept only for NO-GO.

    InputError without conditions: a gate that asks nothing would let everything through.
    """
    if not conditions:
        raise InputError(f"gate {name}: no condition; name at least one")
    decisions = {c.decision for c in conditions}
    if Decision.NO_GO in decisions:
        decision = Decision.NO_GO
    elif decisions == {Decision.GO}:
        decision = Decision.GO
    else:
        decision = Decision.INCONCLUSIVE
    decisive = [c for c in conditions if c.decision is decision]
    because = f"{decision.value}: " + "; ".join(_say(c) for c in decisive) + "."
    owner = owner if decision is Decision.NO_GO else None
    return Gate(name=name, decision=decision, conditions=list(conditions), because=because, owner=owner)


def parse_gate(
    attempts: Sequence[Attempt],
    spec: SftSpec,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Gate:
    """After SFT: does the model speak the protocol? NO-GO goes back to sft, for more demonstrations."""
    metrics = attempt_metrics(attempts, 1, resamples=resamples, confidence=confidence, seed=seed)
    return gate("parse_rate", [condition("parse_rate", metrics["parse_rate"], ">=", spec.min_parse_rate)], "sft")


def headroom_gate(
    attempts: Sequence[Attempt],
    spec: HeadroomSpec,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Gate:
    """Before RL, on dev at the training temperature: can trying raise anything? The first NO-GO in this order owns it.

    An INCONCLUSIVE answer that may not train is owned too, by the first condition whose point is on the wrong side.

    | condition | NO-GO means | owner |
    |---|---|---|
    | parse_rate >= min_parse_rate | it cannot follow the protocol | sft |
    | pass@k >= min_pass_at_k | nothing to reinforce: easier tasks or the missing knowledge | data |
    | pass@1 <= max_pass_at_1 | nothing left to learn: harder tasks or another goal | goal |
    | mixed >= min_mixed | groups without spread give no gradient | data |
    """
    how = {"resamples": resamples, "seed": seed}
    k = spec.samples
    metrics = attempt_metrics(attempts, k, confidence=confidence, **how)
    mixed = mixed_share(reward_groups(attempts), confidence=confidence, **how)
    owned = [
        ("sft", condition("parse_rate", metrics["parse_rate"], ">=", spec.min_parse_rate)),
        ("data", condition(f"pass@{k}", metrics[f"pass@{k}"], ">=", spec.min_pass_at_k)),
        ("goal", condition("pass@1", metrics["pass@1"], "<=", spec.max_pass_at_1)),
        ("data", condition("mixed_groups", mixed, ">=", spec.min_mixed)),
    ]
    answer = gate("headroom", [c for _, c in owned])
    if answer.decision is Decision.GO or may_train(answer):
        return answer
    sure = [stage for stage, c in owned if c.decision is Decision.NO_GO]
    likely = [stage for stage, c in owned if c.estimate.value is not None and not _point_passes(c)]
    return answer.model_copy(update={"owner": next(iter(sure + likely), None)})


def may_train(headroom: Gate) -> bool:
    """GO, or INCONCLUSIVE with every point estimate on the right side. Without data: no."""
    if headroom.decision is Decision.INCONCLUSIVE:
        return all(_point_passes(c) for c in headroom.conditions)
    return headroom.decision is Decision.GO


def retention_gate(difference: Estimate, margin: float, owner: str = "rl") -> Gate:
    """Non-inferiority: GO when the lower bound of candidate minus reference is above -margin (share, > 0).

    What must not change has to be measured on enough origins: when none of them changes, a margin of 0.1 needs 36.
    `owner`: the stage that trained last. InputError unless margin is above 0.
    """
    if margin <= 0:
        raise InputError(f"retention: margin {margin} is not above 0; without a margin nothing can be non-inferior")
    return gate("retention", [condition("retention_difference", difference, ">=", -margin, strict=True)], owner)


def promotion_gate(difference: Estimate, suite: str = "held_out") -> Gate:
    """GO when the paired difference to the champion on the promotion suite lies above 0 with its whole interval."""
    return gate("promotion", [condition(f"{suite}_difference", difference, ">=", 0.0, strict=True)], "backflow")


def promotes(gates: Sequence[Gate]) -> bool:
    """All GO, and at least one gate."""
    return bool(gates) and all(g.decision is Decision.GO for g in gates)


def goal_met(criteria: Iterable[Criterion], results: Iterable[SuiteResult]) -> bool | None:
    """Whether every criterion holds by the bound of its interval: False as soon as one fails, None when none fails and one
    has no data.

    `results` are of the final policy alone: InputError when a suite comes twice.
    """
    by_suite: dict[str, SuiteResult] = {}
    for result in results:
        if result.suite in by_suite:
            policies = f"{by_suite[result.suite].policy} and {result.policy}"
            raise InputError(f"suite {result.suite}: results of {policies}; give those of the final policy alone")
        by_suite[result.suite] = result
    answers = [_holds(criterion, by_suite.get(criterion.suite)) for criterion in criteria]
    if False in answers:
        return False
    return None if not answers or None in answers else True


def _holds(criterion: Criterion, result: SuiteResult | None) -> bool | None:
    found = result.metrics.get(criterion.metric) if result else None
    if found is None or found.low is None or found.high is None:
        return None
    if criterion.at_least is not None:
        return found.low >= criterion.at_least
    return criterion.at_most is not None and found.high <= criterion.at_most


def _decide(estimate: Estimate, operator: str, threshold: float, strict: bool) -> Decision:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return Decision.INCONCLUSIVE
    near, far = (estimate.low, estimate.high) if operator == ">=" else (-estimate.high, -estimate.low)
    bar = threshold if operator == ">=" else -threshold
    if near > bar or (near == bar and not strict):
        return Decision.GO
    return Decision.NO_GO if far < bar else Decision.INCONCLUSIVE


def _point_passes(c: Condition) -> bool:
    value = c.estimate.value
    return value is not None and (value >= c.threshold if c.operator == ">=" else value <= c.threshold)


def _say(c: Condition) -> str:
    e = c.estimate
    wanted = f"{c.operator} {c.threshold:g}"
    if e.value is None:
        return f"{c.name} has no data (wanted {wanted}, {e.errors} lost)"
    if e.low is None or e.high is None:
        return f"{c.name} {e.value:.3f} has no interval ({e.method}; wanted {wanted})"
    return f"{c.name} {e.value:.3f} [{e.low:.3f}, {e.high:.3f}] (wanted {wanted}, {e.clusters} origins)"

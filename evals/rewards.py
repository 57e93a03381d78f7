"""From verdict and conduct to a reward, each part on its own. A pure function: no sandbox, no model, no clock.

An error or unscored verdict has no value (None): it enters no group, no mean and no training set.
"""

from __future__ import annotations

import math

from schemas.rewards import RewardRules
from schemas.verdict import Conduct, Reward, Status, Verdict


def price(trajectory_id: str, verdict: Verdict, conduct: Conduct, rules: RewardRules) -> Reward:
    """The reward of one attempt. `value` is finite, within [rules.low, rules.high], and the exact sum of `parts`."""
    digests = {"trajectory": trajectory_id, "verdict": verdict.digest(), "rules": rules.digest()}
    if verdict.status is not Status.SCORED:
        return Reward(**digests, value=None)
    parts = _parts(verdict, conduct, rules)
    total = math.fsum(parts.values())
    parts["clamp"] = min(max(total, rules.low), rules.high) - total
    value = min(max(math.fsum(parts.values()), rules.low), rules.high)
    return Reward(**digests, value=value, parts=parts)


def _parts(verdict: Verdict, conduct: Conduct, rules: RewardRules) -> dict[str, float]:
    passed = bool(verdict.passed)
    clean = not verdict.violations
    return {
        "outcome": rules.outcome if passed and clean else 0.0,
        "partial": rules.partial * _share_repaired(verdict) if clean and not passed else 0.0,
        "violation": min((rules.violation_of.get(v.kind, rules.violation) for v in verdict.violations), default=0.0),
        "invalid_call": max(rules.invalid_call * conduct.invalid_calls, rules.invalid_call_cap),
        "forbidden": rules.forbidden if conduct.forbidden else 0.0,
        "truncated": rules.truncated if conduct.truncated_turns else 0.0,
        "unchanged": rules.unchanged if conduct.unchanged and not passed else 0.0,
    }


def _share_repaired(verdict: Verdict) -> float:
    """Share of the checks that failed on the start tree and pass now, in [0, 1]. Keeping what worked earns nothing."""
    repaired = [check.passed for check in verdict.checks if check.role == "f2p"]
    return sum(repaired) / len(repaired) if repaired else 0.0

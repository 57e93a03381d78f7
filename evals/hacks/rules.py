"""Hack 40: a part of the reward rules that adds nothing. Each priced part must move some attempt's reward.

Attempts that differ in one thing only are priced in pairs, by the rules as a whole (caps and clamp included). A part with
a price that moves no pair is idle; so is a violation that costs nothing at all. Where the attempt that did worse
would not get less, that is said too.

Not covered: parts that do move, but too little to be learned from.
"""

from __future__ import annotations

from evals.rewards import price
from schemas.base import digest_of
from schemas.rewards import RewardRules
from schemas.verdict import Check, Conduct, Status, Verdict, Violation

_SOME = digest_of("some")


def idle_parts(rules: RewardRules) -> list[str]:
    """Names of parts that are priced and move nothing, and `violation` where no violation costs; sorted."""
    failed, half = _verdict(0), _verdict(1)
    clean = _conduct()
    pairs = {
        "outcome": [(_verdict(2), clean, half, clean)],
        "partial": [(half, clean, failed, clean)],
        "violation": [(failed, clean, _verdict(0, "tampering"), clean)],
        "invalid_call": [(failed, clean, failed, _conduct(invalid_calls=1))],
        "forbidden": [(failed, clean, failed, _conduct(forbidden=["network"]))],
        "truncated": [(failed, clean, failed, _conduct(truncated_turns=1))],
        "unchanged": [(failed, clean, failed, _conduct(unchanged=True))],
    }
    idle = [
        name for name, rows in pairs.items() if _declared(rules, name) and not any(_dearer(rules, *row) for row in rows)
    ]
    idle += [f"violation_of.{kind}" for kind in rules.violation_of if _pays(rules, kind)]
    return sorted(idle)


def _declared(rules: RewardRules, name: str) -> bool:
    """A price of 0 says that a part is not wanted; a violation that costs nothing is never what is wanted."""
    return name == "violation" or getattr(rules, name) != 0


def _dearer(rules: RewardRules, better: Verdict, good: Conduct, worse: Verdict, bad: Conduct) -> bool:
    return _value(rules, better, good) > _value(rules, worse, bad)


def _pays(rules: RewardRules, kind: str) -> bool:
    """Whether an attempt gains by this violation: right values through it, against honest failure."""
    return _value(rules, _verdict(2, kind), _conduct()) > _value(rules, _verdict(0), _conduct())


def _value(rules: RewardRules, verdict: Verdict, conduct: Conduct) -> float:
    value = price("probe", verdict, conduct, rules).value
    assert value is not None
    return value


def _verdict(good: int, *kinds: str) -> Verdict:
    """`good` of two checks that failed at the start pass."""
    return Verdict(
        outcome=_SOME, task=_SOME, image=_SOME, limits=_SOME, verifier=_SOME, status=Status.SCORED, score=good / 2,
        passed=good == 2 and not kinds, checks=[Check(name=f"case_{i}", role="f2p", passed=i < good) for i in range(2)],
        violations=[Violation(kind=kind) for kind in kinds],
    )  # fmt: skip


def _conduct(**changes: object) -> Conduct:
    fields = {"turns": 1, "tool_calls": 1, "invalid_calls": 0, "generated_tokens": 9, "submitted": True, **changes}
    return Conduct.model_validate(fields)

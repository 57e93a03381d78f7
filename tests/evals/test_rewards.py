"""What an attempt is worth: the outcome first, each part on its own, no value for an infrastructure error."""

from __future__ import annotations

import itertools
import math

import pytest
from pydantic import ValidationError

from evals.rewards import price
from schemas.rewards import RewardRules
from schemas.verdict import Check, Conduct, Reward, Status, Verdict, Violation

ZERO = "0" * 64
RULES = RewardRules()


def verdict(new: list[bool], old: list[bool], *violations: str) -> Verdict:
    rows = [("f2p", good) for good in new] + [("p2p", good) for good in old]
    checks = [Check(name=f"case_{n}", role=role, passed=good) for n, (role, good) in enumerate(rows)]  # type: ignore[arg-type]
    good = all(new) and all(old) and not violations
    return Verdict(
        outcome=ZERO, task=ZERO, image=ZERO, limits=ZERO, verifier=ZERO, status=Status.SCORED, passed=good,
        score=sum(item.passed for item in checks) / len(checks), checks=checks,
        violations=[Violation(kind=kind) for kind in violations],
    )  # fmt: skip


def conduct(**changes: object) -> Conduct:
    base = {"turns": 1, "tool_calls": 1, "invalid_calls": 0, "generated_tokens": 40, "submitted": True}
    return Conduct.model_validate({**base, **changes})


def value(judged: Verdict, rules: RewardRules = RULES, **changes: object) -> float | None:
    return price("rl-1", judged, conduct(**changes), rules).value


def test_the_example_of_code_repair() -> None:
    assert value(verdict([True, True], [False])) == 0.2  # new tests pass, old ones broken
    assert value(verdict([True, True], [True])) == 1.0  # all well
    assert value(verdict([True, True], [True], "protected_file")) == 0.0  # the wrong file was touched
    assert value(verdict([True, True], [True], "tampering")) == -0.5  # the verifier was evaded


def test_an_untouched_start_earns_nothing_whatever_still_passes() -> None:
    assert value(verdict([False, False], [True] * 9), unchanged=True) == 0.0


def test_unchanged_is_right_where_nothing_was_broken() -> None:
    assert value(verdict([], [True, True]), RewardRules(unchanged=-0.3), unchanged=True) == 1.0
    assert value(verdict([False], [True]), RewardRules(unchanged=-0.3), unchanged=True) == -0.3


def test_partial_repair_is_far_below_success() -> None:
    assert value(verdict([True, False], [True])) == pytest.approx(0.1)


def test_the_way_there_costs_and_each_part_stands_alone() -> None:
    reward = price("rl-1", verdict([True], [True]), conduct(invalid_calls=2, truncated_turns=1), RULES)
    assert reward.parts == pytest.approx(
        {"outcome": 1.0, "partial": 0.0, "violation": 0.0, "invalid_call": -0.1, "forbidden": 0.0, "truncated": -0.1,
         "unchanged": 0.0, "clamp": 0.0}
    )  # fmt: skip
    assert reward.value == pytest.approx(0.8)
    assert value(verdict([True], [True]), invalid_calls=99) == pytest.approx(0.8)  # capped
    assert value(verdict([True], [True]), forbidden=["write x", "write y"]) == pytest.approx(0.5)


def test_the_worst_violation_counts_once() -> None:
    assert value(verdict([True], [], "protected_file", "tampering", "forged_result")) == -0.5


@pytest.mark.parametrize("status", [Status.ERROR, Status.UNSCORED])
def test_infrastructure_has_no_value(status: Status) -> None:
    broken = Verdict(
        outcome=ZERO, task=ZERO, image=ZERO, limits=ZERO, verifier=ZERO, status=status, reason="sandbox died"
    )
    reward = price("rl-1", broken, conduct(invalid_calls=3), RULES)
    assert reward == Reward(trajectory="rl-1", verdict=broken.digest(), rules=RULES.digest(), value=None)


def test_every_value_is_finite_in_range_and_the_sum_of_its_parts() -> None:
    violations: list[tuple[str, ...]] = [(), ("tampering",), ("protected_file",)]
    for new, kinds, invalid, forbidden in itertools.product([0, 1, 2, 3], violations, [0, 1, 7], [[], ["net"]]):
        judged = verdict([n < new for n in range(3)], [True], *kinds)
        for rules in (RULES, RewardRules(low=-0.3, high=1.0, forbidden=-5.0)):
            acted = conduct(invalid_calls=invalid, forbidden=forbidden, truncated_turns=1)
            reward = price("rl-1", judged, acted, rules)
            assert reward.value is not None
            assert math.isfinite(reward.value)
            assert rules.low <= reward.value <= rules.high
            assert math.fsum(reward.parts.values()) == pytest.approx(reward.value, abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"partial": 0.9}, "above half of outcome"),
        ({"low": 1.0}, "not below high"),
        ({"outcome": 2.0}, "above high"),
        ({"violation_of": {"tampering": 0.1}}, "a violation would pay"),
        ({"invalid_call": 0.1}, "less than or equal to 0"),
        ({"outcome": math.nan}, "finite number"),
        ({"outcom": 1.0}, "Extra inputs"),
    ],
)
def test_rules_that_would_teach_the_wrong_thing_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RewardRules.model_validate(changes)


def test_another_price_is_another_set_of_rules() -> None:
    assert RewardRules(partial=0.1).digest() != RULES.digest()

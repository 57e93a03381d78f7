from __future__ import annotations

import pytest

from evals.gates import (
    condition,
    gate,
    goal_met,
    headroom_gate,
    may_train,
    parse_gate,
    promotes,
    promotion_gate,
    retention_gate,
)
from schemas.errors import InputError
from schemas.goal import Criterion
from schemas.metrics import Estimate, SuiteResult
from schemas.rl import HeadroomSpec
from schemas.sft import SftSpec

SPEC = HeadroomSpec(samples=4)


def interval(low, value, high):
    return Estimate(value=value, low=low, high=high, n=20, clusters=20)


NOTHING = Estimate(value=None, errors=4)


@pytest.mark.parametrize(
    ("estimate", "operator", "answer"),
    [
        (interval(0.5, 0.6, 0.7), ">=", "GO"),
        (interval(0.4, 0.6, 0.7), ">=", "INCONCLUSIVE"),
        (interval(0.1, 0.2, 0.49), ">=", "NO-GO"),
        (interval(0.1, 0.2, 0.5), "<=", "GO"),
        (interval(0.1, 0.2, 0.6), "<=", "INCONCLUSIVE"),
        (interval(0.51, 0.6, 0.7), "<=", "NO-GO"),
        (NOTHING, ">=", "INCONCLUSIVE"),
        (Estimate(value=0.9, clusters=1), ">=", "INCONCLUSIVE"),
    ],
)
def test_the_whole_interval_decides(estimate, operator, answer):
    assert condition("x", estimate, operator, 0.5).decision == answer


def test_a_gate_is_as_good_as_its_worst_condition():
    go = condition("a", interval(0.6, 0.7, 0.8), ">=", 0.5)
    no = condition("b", interval(0.1, 0.2, 0.3), ">=", 0.5)
    open_ = condition("c", NOTHING, ">=", 0.5)
    assert gate("g", [go], "sft").decision == "GO"
    assert gate("g", [go, open_], "sft").decision == "INCONCLUSIVE"
    answer = gate("g", [go, open_, no], "sft")
    assert (answer.decision, answer.owner) == ("NO-GO", "sft")
    assert answer.because == "NO-GO: b 0.200 [0.100, 0.300] (wanted >= 0.5, 20 origins)."
    assert gate("g", [go], "sft").owner is None
    assert "has no data" in gate("g", [open_]).because


def test_a_gate_that_asks_nothing_is_refused():
    with pytest.raises(InputError, match="no condition"):
        gate("g", [])


def many(make_task, make_attempt, passes, count=30, **shape):
    """`passes` of 4 attempts pass on each of `count` origins; a function gives another number for each."""
    of = passes if callable(passes) else lambda i: passes
    return [make_attempt(make_task(f"f{i}"), j, j < of(i), **shape) for i in range(count) for j in range(4)]


def test_headroom_is_there_when_the_model_can_but_seldom_does(make_task, make_attempt):
    answer = headroom_gate(many(make_task, make_attempt, lambda i: i % 3), SPEC)
    assert answer.decision == "GO"
    assert [c.name for c in answer.conditions] == ["parse_rate", "pass@4", "pass@1", "mixed_groups"]
    assert may_train(answer)


@pytest.mark.parametrize(
    ("passes", "shape", "owner", "name"),
    [
        (0, {"errors": ("no fence",)}, "sft", "parse_rate"),
        (0, {}, "data", "pass@4"),
        (4, {}, "goal", "pass@1"),
    ],
)
def test_without_headroom_the_gate_names_the_stage_that_should_act(make_task, make_attempt, passes, shape, owner, name):
    spec = SPEC.model_copy(update={"max_pass_at_1": 0.85, "min_pass_at_k": 0.15})
    answer = headroom_gate(many(make_task, make_attempt, passes, **shape), spec)
    assert (answer.decision, answer.owner) == ("NO-GO", owner)
    assert name in answer.because
    assert not may_train(answer)


def test_groups_without_spread_are_a_matter_of_data(make_task, make_attempt):
    """Half of the tasks always pass, half never: pass@1 is 0.5, and no group teaches anything."""
    answer = headroom_gate(many(make_task, make_attempt, lambda i: 4 * (i % 2)), SPEC)
    assert (answer.decision, answer.owner) == ("NO-GO", "data")
    assert answer.because.startswith("NO-GO: mixed_groups 0.000")


def test_inconclusive_trains_only_when_every_point_is_on_the_right_side(make_task, make_attempt):
    few = headroom_gate(many(make_task, make_attempt, lambda i: int(i < 2), count=6), SPEC)
    assert few.decision == "INCONCLUSIVE"
    assert may_train(few)
    assert not promotes([few])
    poor = headroom_gate(many(make_task, make_attempt, lambda i: 0, count=6), SPEC)
    assert (poor.decision, poor.owner) == ("INCONCLUSIVE", "data")
    assert not may_train(poor)
    assert few.owner is None
    assert not may_train(headroom_gate([], SPEC))


def test_parse_gate_counts_turns(make_task, make_attempt):
    clean = [make_attempt(make_task(f"f{i}"), 0, errors=(None, None)) for i in range(20)]
    assert parse_gate(clean, SftSpec(min_parse_rate=0.8)).decision == "GO"
    broken = [make_attempt(make_task(f"f{i}"), 0, errors=("x", None)) for i in range(20)]
    answer = parse_gate(broken, SftSpec(min_parse_rate=0.8))
    assert (answer.decision, answer.owner) == ("NO-GO", "sft")


@pytest.mark.parametrize(
    ("estimate", "answer"),
    [
        (interval(-0.09, -0.02, 0.05), "GO"),
        (interval(-0.10, -0.02, 0.05), "INCONCLUSIVE"),
        (interval(-0.40, -0.02, 0.05), "INCONCLUSIVE"),
        (interval(-0.40, -0.30, -0.11), "NO-GO"),
        (NOTHING, "INCONCLUSIVE"),
    ],
)
def test_retention_is_non_inferiority(estimate, answer):
    assert retention_gate(estimate, 0.1).decision == answer


def test_retention_needs_a_margin():
    with pytest.raises(InputError, match="margin"):
        retention_gate(interval(0, 0, 0), 0.0)


@pytest.mark.parametrize(
    ("estimate", "answer"),
    [
        (interval(0.01, 0.1, 0.2), "GO"),
        (interval(0.0, 0.1, 0.2), "INCONCLUSIVE"),
        (interval(-0.2, -0.1, -0.01), "NO-GO"),
    ],
)
def test_promotion_needs_a_gain_that_is_surely_above_zero(estimate, answer):
    verdict = promotion_gate(estimate)
    assert verdict.decision == answer
    assert promotes([verdict]) == (answer == "GO")
    assert not promotes([])


def result(suite, **metrics):
    return SuiteResult(suite=suite, policy="rl", checkpoint="c", metrics=metrics)


def test_the_goal_is_met_by_bounds_and_unknown_without_data():
    wanted = [
        Criterion(name="solves", suite="held_out", metric="pass@1", at_least=0.5),
        Criterion(name="speaks", suite="held_out", metric="invalid_calls", at_most=0.1),
    ]
    good = result("held_out", **{"pass@1": interval(0.5, 0.6, 0.7), "invalid_calls": interval(0.0, 0.05, 0.1)})
    near = result("held_out", **{"pass@1": interval(0.4, 0.6, 0.7), "invalid_calls": interval(0.0, 0.05, 0.1)})
    lost = result("held_out", **{"pass@1": interval(0.5, 0.6, 0.7), "invalid_calls": NOTHING})
    assert goal_met(wanted, [good]) is True
    assert goal_met(wanted, [near]) is False
    assert goal_met(wanted, [lost]) is None
    assert goal_met(wanted, []) is None
    failed = result("held_out", **{"pass@1": interval(0.4, 0.6, 0.7), "invalid_calls": NOTHING})
    assert goal_met(wanted, [failed]) is False, "what failed has failed, whatever the other would say"


def test_the_goal_is_judged_on_one_policy():
    with pytest.raises(InputError, match="final policy"):
        goal_met([], [result("held_out"), result("held_out")])

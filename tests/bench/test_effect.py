"""Pooling over seeds: pairs by (seed, task), clusters by function; more seeds are not more functions."""

from __future__ import annotations

import pytest

from bench.common import ROOT
from bench.effect import better, between, pool_buckets, pooled
from bench.prove import PARTS, digest_of_part, shortened
from stages.keys import DECLARED


def shares(*values: float) -> dict[str, tuple[str, float]]:
    return {f"repair/f{i}/a": (f"f{i}", value) for i, value in enumerate(values)}


LOW, HIGH = shares(0.0, 0.25, 0.5, 0.0, 0.5), shares(0.5, 0.75, 0.5, 0.25, 1.0)


def test_a_function_seen_under_three_seeds_is_one_cluster() -> None:
    one = pooled([(0, HIGH, LOW)])["difference"]
    three = pooled([(seed, HIGH, LOW) for seed in range(3)])["difference"]
    assert (one["n"], one["clusters"]) == (5, 5)
    assert (three["n"], three["clusters"]) == (15, 5)
    assert three["value"] == pytest.approx(0.35)
    # Repeating the same data three times must not make the interval narrower.
    assert (three["low"], three["high"]) == pytest.approx((one["low"], one["high"]), abs=0.02)


def test_pairs_are_made_within_a_seed_only() -> None:
    both = pooled([(0, HIGH, LOW), (1, LOW, LOW)])
    assert both["difference"]["value"] == pytest.approx(0.175)
    assert {seed: row["value"] for seed, row in both["by_seed"].items()} == pytest.approx({"0": 0.35, "1": 0.0})
    with_a_gap = pooled([(0, HIGH, {}), (1, {}, LOW)])
    assert with_a_gap["difference"]["value"] is None, "a task of one seed is no partner for that of another"


def test_between_seeds_needs_two_of_them_and_is_a_t_interval() -> None:
    assert between([0.3], 0.95)["low"] is None
    assert between([0.0, 0.0, 0.0], 0.95)["low"] is None, "equal values are no certainty"
    found = between([0.1, 0.2, 0.3], 0.95)
    assert found["mean"] == pytest.approx(0.2)
    assert found["high"] - found["mean"] == pytest.approx(4.3027 * 0.1 / 3**0.5, abs=1e-4)


def test_better_means_the_whole_interval_above_zero() -> None:
    def last(low: float | None) -> dict[str, object]:
        return {"held_out": {"pass@1": {"final-base": {"difference": {"low": low}}}}}

    assert (better(last(0.01)), better(last(0.0)), better(last(None)), better({})) == (True, False, None, None)


def test_treated_and_untreated_buckets_are_counted_apart_and_unmeasured_ones_not_at_all() -> None:
    def bucket(name: str, treated: bool, verdict: str | None, value: float | None) -> dict[str, object]:
        return {"id": name, "treated": treated, "verdict": verdict, "difference": {"value": value}}

    rows = [
        bucket("a", True, "shrank", -0.5),
        bucket("b", True, "not enough evidence", None),
        bucket("c", False, "grew", 0.25),
        bucket("d", False, None, None),
    ]
    found = pool_buckets({"0": {"buckets": rows}})
    assert (found["treated"]["buckets"], found["treated"]["shrank"]) == (2, 1)
    assert (found["untreated"]["buckets"], found["untreated"]["grew"]) == (1, 1)
    assert found["treated"]["mean_difference"]["value"] == pytest.approx(-0.5)
    assert found["untreated"]["mean_difference"]["value"] == pytest.approx(0.25)


def test_what_is_published_has_the_figures_without_the_long_lists() -> None:
    assert shortened({"a": {"all": [1], "median": 2}, "b": [{"pairs": [], "n": 1}]}) == {
        "a": {"median": 2},
        "b": [{"n": 1}],
    }


@pytest.mark.parametrize("name", PARTS)
def test_every_part_depends_on_files_that_exist(name: str) -> None:
    own = [pattern for pattern in PARTS[name].sources if pattern not in DECLARED["backflow"]]
    for pattern in own:
        assert any(ROOT.glob(pattern)), f"{name}: {pattern} matches nothing"
    assert digest_of_part(name) == digest_of_part(name)

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from evals.metrics import (
    attempt_metrics,
    audit_gap,
    by_family,
    estimate,
    mixed_share,
    paired,
    pass_at_k,
    pass_at_k_interval,
    pass_hat_k,
    pass_shares,
    ratio,
    reward_groups,
)
from schemas.errors import InputError


def test_pass_at_k_and_pass_hat_k_are_what_enumeration_of_all_subsets_gives():
    for n in range(1, 7):
        for c in range(n + 1):
            results = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                subsets = list(combinations(results, k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
                assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_fewer_attempts_than_k_say_nothing():
    assert pass_at_k(3, 3, 4) is None
    assert pass_hat_k(3, 0, 4) is None


def test_exact_bounds_of_pass_at_k_for_one_task():
    assert pass_at_k_interval(0, 0, 1) is None
    assert pass_at_k_interval(4, 0, 1) == (0.0, pytest.approx(0.6024, abs=1e-4))  # 1 - 0.025 ** (1 / 4)
    assert pass_at_k_interval(4, 0, 4) == (0.0, pytest.approx(1 - 0.3976**4, abs=1e-3))
    assert pass_at_k_interval(4, 4, 1) == (pytest.approx(0.3976, abs=1e-4), 1.0)
    low, high = pass_at_k_interval(8, 4, 2)
    assert low < 0.75 < high  # 1 - 0.5 ** 2


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match="passes"):
        pass_at_k(n, c, k)


def test_no_data_is_none_and_not_zero():
    found = estimate([], errors=3)
    assert (found.value, found.low, found.high, found.n, found.errors) == (None, None, None, 0, 3)
    assert found.method == "no data"


def test_the_interval_holds_the_truth_about_95_times_of_100():
    rng = np.random.default_rng(7)
    hits, trials = 0, 200
    for trial in range(trials):
        rates = rng.beta(1, 2, size=40)  # the mean rate of an origin is 1/3
        values = [(f"o{i}", rng.binomial(4, rate) / 4) for i, rate in enumerate(rates) for _ in range(2)]
        found = estimate(values, resamples=500, seed=trial)
        hits += found.low <= 1 / 3 <= found.high
    assert 0.90 <= hits / trials <= 0.99


def test_tasks_of_one_origin_are_not_independent_so_the_clustered_interval_is_wider():
    values = [(f"o{i}", float(i % 3 == 0)) for i in range(30) for _ in range(5)]
    clustered = estimate(values)
    naive = estimate([(f"{origin}-{i}", value) for i, (origin, value) in enumerate(values)])
    assert clustered.value == naive.value
    assert clustered.high - clustered.low > 1.8 * (naive.high - naive.low)
    assert (clustered.clusters, naive.clusters, clustered.n) == (30, 150, 150)


def test_the_order_of_rows_does_not_matter_and_the_seed_does():
    values = [(f"o{i % 7}", (i * 37 % 11) / 11) for i in range(40)]
    assert estimate(values, seed=1) == estimate(values[::-1], seed=1)
    assert estimate(values, seed=1) != estimate(values, seed=2)


def test_all_equal_values_do_not_make_a_certain_answer():
    """20 of 20 origins passed: Clopper-Pearson says 0.83 or more, where resampling would say exactly 1."""
    found = estimate([(f"o{i}", 1.0) for i in range(20)])
    assert found.high == 1.0
    assert found.low == pytest.approx(0.025 ** (1 / 20))
    assert "Clopper-Pearson" in found.method


def test_one_origin_is_one_trial_however_many_tasks_it_has():
    found = estimate([("o", 1.0), ("o", 0.0), ("o", 1.0)])
    assert found.value == pytest.approx(2 / 3)
    assert found.low < 0.2
    assert found.high > 0.95
    assert found.clusters == 1


def test_counts_have_no_ceiling_so_one_origin_has_no_interval():
    one = ratio([("o", 30.0, 1.0)], span=None)
    assert (one.value, one.low, one.method) == (30.0, None, "one origin: no interval")
    two = ratio([("o", 30.0, 1.0), ("p", 30.0, 1.0)], span=None)
    assert (two.low, two.high) == (30.0, 30.0)


def test_a_ratio_weighs_by_its_denominator_and_drops_origins_without_one():
    found = ratio([("a", 1.0, 1.0), ("b", 0.0, 3.0), ("c", 0.0, 0.0)])
    assert (found.value, found.clusters, found.n) == (0.25, 2, 4)


def test_paired_difference_uses_the_shared_tasks_alone():
    candidate = {"t1": ("a", 1.0), "t2": ("b", 0.5), "t3": ("c", 1.0), "only": ("d", 0.0)}
    reference = {"t1": ("a", 0.0), "t2": ("b", 0.5), "t3": ("c", 0.5), "other": ("e", 1.0)}
    found = paired(candidate, reference)
    assert found.value == pytest.approx(0.5)
    assert found.n == 3


def test_pairing_takes_out_the_difficulty_of_the_tasks():
    rng = np.random.default_rng(3)
    easy = rng.random(40)
    reference = {f"t{i}": (f"o{i}", float(e)) for i, e in enumerate(easy)}
    candidate = {t: (o, min(1.0, v + 0.05 + 0.05 * (i % 2))) for i, (t, (o, v)) in enumerate(reference.items())}
    difference = paired(candidate, reference)
    assert difference.low > 0
    assert estimate(candidate.values()).low < estimate(reference.values()).high


def test_no_change_on_few_tasks_does_not_prove_that_nothing_changes():
    same = {f"t{i}": (f"o{i}", 1.0) for i in range(12)}
    few = paired(same, same)
    assert (few.value, few.low) == (0.0, pytest.approx(-(1 - 0.025 ** (1 / 12))))
    many = {f"t{i}": (f"o{i}", 1.0) for i in range(36)}
    assert paired(many, many).low > -0.1


def test_paired_refuses_task_sets_that_only_share_names():
    with pytest.raises(InputError, match="t1 has origin 'a' and 'b'"):
        paired({"t1": ("a", 1.0)}, {"t1": ("b", 1.0)})


def test_errors_and_unscored_are_in_no_mean_and_are_counted(make_task, make_attempt):
    task = make_task()
    attempts = [
        make_attempt(task, 0, True),
        make_attempt(task, 1, False),
        make_attempt(task, 2, status="error"),
        make_attempt(task, 3, status="unscored"),
        make_attempt(task, 4, status="lost", errors=()),
    ]
    found = attempt_metrics(attempts, 2)
    assert found["pass@1"].value == 0.5
    assert found["pass@2"].value == 1.0
    assert found["pass^2"].value == 0.0
    assert found["pass@1"].errors == 3
    assert found["reward"].value == 0.5
    assert found["scored"].value == pytest.approx(0.4)
    assert found["tokens"].errors == 1


def test_the_metrics_of_conduct_come_from_turns_and_attempts(make_task, make_attempt):
    one, two = make_task("f"), make_task("g")
    attempts = [
        make_attempt(one, 0, True, errors=("no fence", None), submitted=True, tool_calls=3),
        make_attempt(two, 0, outcome={}, errors=(None, None), forbidden=["rm"], truncated_turns=1),
    ]
    found = attempt_metrics(attempts, 1)
    assert found["parse_rate"].value == 0.75
    assert found["parse_rate"].n == 4
    assert found["invalid_calls"].value == 0.25
    assert found["tool_calls"].value == 1.5
    assert found["turns"].value == 2.0
    assert found["tokens"].value == 4.0
    assert [found[name].value for name in ("submitted", "unchanged", "forbidden", "truncated")] == [0.5] * 4


def test_pass_at_k_needs_k_scored_attempts_of_a_task(make_task, make_attempt):
    whole, short = make_task("f"), make_task("g")
    attempts = [make_attempt(whole, i, i == 0) for i in range(4)] + [make_attempt(short, i, True) for i in range(3)]
    found = attempt_metrics(attempts, 4)
    assert found["pass@4"].n == 1
    assert found["pass@1"].n == 2
    assert found["pass@1"].value == pytest.approx((0.25 + 1.0) / 2)


def test_no_attempts_give_every_metric_without_a_value():
    found = attempt_metrics([], 4)
    assert {
        "pass@1",
        "pass@4",
        "pass^4",
        "parse_rate",
        "invalid_calls",
        "tool_calls",
        "tokens",
        "reward",
    } <= found.keys()
    assert all(e.value is None for e in found.values())


def test_families_are_reported_apart(make_task, make_attempt):
    arith, logic = make_task("f"), make_task("g", "logic_1", "repair.condition")
    found = by_family(
        [make_attempt(arith, 0, True), make_attempt(logic, 0, False), make_attempt(logic, 1, status="error")]
    )
    assert [(name, e.value, e.errors) for name, e in found.items()] == [
        ("repair.condition", 0.0, 1),
        ("repair.value", 1.0, 0),
    ]


def test_pass_shares_leave_out_tasks_that_were_never_scored(make_task, make_attempt):
    task, lost = make_task("f"), make_task("g")
    shares = pass_shares([make_attempt(task, 0, True), make_attempt(task, 1), make_attempt(lost, 0, status="error")])
    assert shares == {task.id: ("f", 0.5)}


def test_the_audit_gap_is_what_the_training_verifier_lets_pass_alone(make_task, make_attempt):
    task = make_task()
    attempts = [
        make_attempt(task, 0, True, audit=False),
        make_attempt(task, 1, True, audit=True),
        make_attempt(task, 2),
    ]
    assert audit_gap(attempts) == 0.5
    assert audit_gap(attempts[2:]) is None
    found = attempt_metrics([*attempts, make_attempt(task, 3, True)], 1)["audit_gap"]
    assert found.value == pytest.approx(1 / 3), "what failed is not contested, and a pass without an audit is left out"
    assert (found.n, found.errors) == (3, 1)
    assert "audit_gap" not in attempt_metrics(attempts[2:], 1)


def test_only_groups_with_different_rewards_count_as_mixed():
    groups = [("a", [1.0, 0.0, None]), ("b", [0.2, 0.2]), ("c", [1.0, None]), ("d", [None, None])]
    found = mixed_share(groups)
    assert (found.value, found.n, found.errors) == (0.5, 2, 2)


def test_reward_groups_keep_none_for_an_error(make_task, make_attempt):
    task = make_task()
    assert reward_groups([make_attempt(task, 0, True), make_attempt(task, 1, status="error")]) == [("f", [1.0, None])]

from __future__ import annotations

import json
import math

import pytest
from scipy.stats import binomtest

from evals.buckets import Half, account, build, central, changes, compare, indicators, sampled_causes
from evals.rules import decide, load_rules, rules_digest
from schemas.attribution import FILLS, RUNGS, Attribution, Rung
from schemas.bucket import Route, bucket_id

RULES = load_rules()
UNCHANGED, PROTOCOL = bucket_id("returns_unchanged", "repair.value"), bucket_id("protocol", "repair.value")
SHAPES = {
    "pass": {"passed": True},
    "unchanged": {"outcome": {}, "visible": False},
    "protocol": {"errors": ("no fence", "no fence"), "outcome": {}},
    "lost": {"status": "error"},
}


@pytest.fixture
def half(make_task, make_attempt):
    """A half of dev from rows of shapes: one row an origin, one shape an attempt."""

    def make(rows, family="repair.value", prefix="f"):
        tasks = {t.id: t for t in (make_task(f"{prefix}{i}", "arith_1", family) for i in range(len(rows)))}
        attempts = [
            make_attempt(task, number, **SHAPES[shape])
            for task, row in zip(tasks.values(), rows, strict=True)
            for number, shape in enumerate(row)
        ]
        return Half.of(attempts, tasks, {family: 30})

    return make


FIRST = [["pass", "unchanged", "unchanged", "unchanged"]] * 6 + [["pass", "protocol", "pass", "lost"]] * 4


def test_buckets_are_counted_on_one_half_and_measured_on_the_other(half):
    measuring = half([["pass", "unchanged", "pass", "pass"]] * 8, prefix="m")
    buckets = build(half(FIRST), measuring, RULES)
    assert [(b.cause, b.size, b.denominator) for b in buckets] == [
        ("returns_unchanged", 18, 36),
        ("protocol", 4, 36),
        ("infrastructure", 4, 36),
    ]
    largest = buckets[0]
    assert largest.id == UNCHANGED
    assert (largest.route, largest.rule, largest.rules) == ("sft", "hands_in_the_start", rules_digest(RULES))
    assert largest.share.value == pytest.approx(18 / 36)
    assert largest.share.clusters == 10
    assert largest.measured.value == pytest.approx(0.25)
    assert len(largest.members) == 18
    assert largest.example in largest.members


def test_a_bucket_of_lost_attempts_has_no_share(half):
    (lost,) = [b for b in build(half(FIRST), half(FIRST), RULES) if b.cause == "infrastructure"]
    assert lost.route is Route.INFRASTRUCTURE
    assert (lost.share.value, lost.share.errors) == (None, 4)


def test_a_person_may_change_the_route(half):
    buckets = build(half(FIRST), half(FIRST), RULES, overrides={PROTOCOL: (Route.DATA, "d-7")})
    (changed,) = [b for b in buckets if b.id == PROTOCOL]
    assert (changed.route, changed.overridden_by) == (Route.DATA, "d-7")
    assert buckets[0].overridden_by is None


def test_the_same_halves_give_the_same_buckets_and_example(half):
    assert build(half(FIRST), half(FIRST), RULES) == build(half(FIRST), half(FIRST), RULES)


def test_the_example_is_the_most_ordinary_member(half):
    rows = half([["unchanged"] * 4] * 5).evidence
    odd = rows[0].model_copy(update={"trajectory": "a-odd", "failed_checks": 40, "turns": 9})
    assert central([odd, *rows]) == min(e.trajectory for e in rows)
    with pytest.raises(ValueError, match="empty bucket"):
        central([])


def test_indicators_name_every_task_of_the_family_zero_included(half):
    found = indicators(half(FIRST), RULES)
    assert len(found[UNCHANGED]) == 10
    assert found[UNCHANGED]["repair/f0/arith_1"] == ("f0", 0.75, 0.75, 0.75)
    assert found[UNCHANGED]["repair/f7/arith_1"] == ("f7", 0.0, 0.0, 0.25)  # one of its four attempts was lost
    assert found[PROTOCOL]["repair/f7/arith_1"] == ("f7", pytest.approx(1 / 3), 0.25, 0.5)


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        (["unchanged"] * 3 + ["pass"], ["pass"] * 4, "shrank"),
        (["pass"] * 4, ["unchanged"] * 3 + ["pass"], "grew"),
        (["unchanged", "pass"] * 2, ["unchanged", "pass"] * 2, "unchanged"),
    ],
)
def test_a_bucket_is_measured_again_paired_by_task(half, then, now, verdict):
    """80 origins: few of them could not tell no change from a small one."""
    first = half([then] * 80)
    buckets = build(half(FIRST, prefix="c"), first, RULES)
    before = indicators(first, RULES, buckets)
    after = json.loads(json.dumps(indicators(half([now] * 80), RULES, buckets)))
    (found,) = [c for c in changes(buckets, before, after, treated=[UNCHANGED]) if c.bucket == UNCHANGED]
    assert (found.verdict, found.treated) == (verdict, True)
    assert found.difference.value == pytest.approx(found.after.value - found.before.value)


def test_few_origins_or_none_are_not_enough_evidence(half):
    small = half([["unchanged", "pass"]] * 3)
    buckets = build(half(FIRST, prefix="c"), small, RULES)
    numbers = indicators(small, RULES, buckets)
    assert {c.verdict for c in changes(buckets, numbers, numbers)} == {"not enough evidence"}
    (gone, _) = changes(buckets, numbers, {})
    assert (gone.verdict, gone.difference.value) == ("not enough evidence", None)
    assert not gone.treated


# --- a change that comes from how much was looked at, or from what was lost


EXPERIMENTS = sorted(FILLS)
CHEAP = [name for name in EXPERIMENTS if RUNGS[name] in (Rung.L0, Rung.L1) or name == "again"]
LOST_IN_RL = bucket_id("lost_in_rl", "repair.value")
PLAIN_CAUSE = "knowledge_missing"
PLAIN = bucket_id(PLAIN_CAUSE, "repair.value")


def looked_at(half, prefix, tasks, **found):
    """40 tasks that fail alike; of the first `tasks` all experiments were made, and found `found`."""
    plain = half([["protocol"] * 4] * 40, prefix=prefix)
    evidence = []
    for e in plain.evidence:
        closed = int(e.origin[len(prefix) :]) < tasks
        facts = {"measured": EXPERIMENTS, **found} if closed else {"measured": CHEAP}
        evidence.append(e.model_copy(update={**facts, "parse_errors": 0, "unchanged": False, "task_attempts": 4}))
    return Half(evidence, plain.attempted)


def verdicts(half, then, now):
    buckets = build(looked_at(half, "c", 24, lost_at="rl"), then, RULES)
    found = compare(buckets, then, now, RULES)
    return {change.bucket: (change.before.value, change.after.value, change.verdict) for change in found}


def test_failures_of_one_task_are_one_observation_of_how_large_a_bucket_is(half):
    """Two of 40 tasks were looked at to the end, and all four failures of each were lost in RL: two of two, not eight of eight."""
    choosing = looked_at(half, "c", 2, lost_at="rl")
    found = []
    for e in choosing.evidence:
        rule = decide(e, RULES)
        own = {"rule": rule.id, "cause": rule.cause, "route": rule.route, "because": rule.because}
        found.append(Attribution(evidence=e, **own, undecided=[] if e.measured == EXPERIMENTS else ["checkpoint"]))
    buckets = account(build(choosing, choosing, RULES), found, RULES)
    (bucket,) = [one for one in buckets if one.id == LOST_IN_RL]
    low = binomtest(2, 2).proportion_ci(method="wilson").low
    assert (bucket.size, bucket.size_low, bucket.size_high) == (8, math.floor(8 + 152 * low), 160)


def test_what_an_answer_closed_is_no_sample_of_what_stayed_open(half):
    """Of 24 failures all were tried in another setting; it helped two, whose owner is known, and left 22 open."""
    plain = half([["protocol"]] * 24, prefix="m")
    evidence = []
    for e in plain.evidence:
        helped = int(e.origin[1:]) < 2
        facts = {"setting_passes": 4 * helped, "setting_helps": helped, "measured": [*CHEAP, "setting"]}
        evidence.append(e.model_copy(update={**facts, "parse_errors": 0, "unchanged": False, "task_attempts": 4}))
    tried, rest = Half(evidence, plain.attempted), Half([], plain.attempted)
    found = []
    for e in evidence:
        rule = decide(e, RULES)
        own = {"rule": rule.id, "cause": rule.cause, "route": rule.route, "because": rule.because}
        found.append(Attribution(evidence=e, **own, undecided=[] if e.setting_helps else ["checkpoint"]))
    buckets = account(build(tried, rest, RULES), found, RULES)
    sizes = {one.cause: (one.size, one.size_low, one.size_high) for one in buckets}
    assert set(sizes) == {"wrong_setting", PLAIN_CAUSE}
    low, high = binomtest(2, 24).proportion_ci(method="wilson").low, 24
    assert sizes["wrong_setting"] == (2, math.floor(2 + 22 * low), high)
    assert sizes[PLAIN_CAUSE] == (22, 0, math.ceil(22 * binomtest(22, 24).proportion_ci(method="wilson").high))
    shares = indicators(tried, RULES, buckets)
    setting = shares[bucket_id("wrong_setting", "repair.value")].values()
    assert sum(row[1] for row in setting) == 2  # of 24, and not all
    assert sum(row[3] for row in setting) == 24  # at most


def test_a_smaller_sample_of_the_same_failures_is_no_change(half):
    found = verdicts(half, looked_at(half, "m", 24, lost_at="rl"), looked_at(half, "m", 10, lost_at="rl"))
    assert found[LOST_IN_RL] == (1.0, 1.0, "not enough evidence")  # of 40 origins; none changed


def test_failures_that_nobody_looked_at_prove_no_repair(half):
    found = verdicts(half, looked_at(half, "m", 24, lost_at="rl"), looked_at(half, "m", 0))
    assert found[LOST_IN_RL] == (1.0, 0.0, "not enough evidence")


def test_failures_that_were_looked_at_and_are_others_do(half):
    found = verdicts(half, looked_at(half, "m", 24, lost_at="rl"), looked_at(half, "m", 24, lost_at="never"))
    assert found[LOST_IN_RL] == (1.0, 0.0, "shrank")


def plain_change(half, then, now):
    (found,) = [
        one for one in compare(build(looked_at(half, "c", 0), then, RULES), then, now, RULES) if one.bucket == PLAIN
    ]
    return found.before.value, found.after.value, found.verdict


def test_without_sampled_experiments_what_every_failure_went_through_tells(half):
    none = looked_at(half, "m", 0)
    left = Half([e for e in none.evidence if int(e.origin[1:]) < 10], none.attempted)
    assert plain_change(half, none, left) == (1.0, 0.25, "shrank")
    assert plain_change(half, none, none) == (1.0, 1.0, "not enough evidence")
    broken = Half([e.model_copy(update={"measured": ["again"]}) for e in left.evidence], none.attempted)
    assert plain_change(half, none, broken) == (1.0, 0.25, "shrank")  # wherever these ten lie, thirty are gone
    all_broken = Half([e.model_copy(update={"measured": ["again"]}) for e in none.evidence], none.attempted)
    assert plain_change(half, left, all_broken) == (0.25, 1.0, "not enough evidence")


def test_what_was_found_and_what_all_went_through_have_to_agree(half):
    """In one round a sample finds half of the failures to be another stage's, in the other nobody looks: no change."""
    some, none = looked_at(half, "m", 24, lost_at="rl"), looked_at(half, "m", 0)
    assert plain_change(half, some, none)[2] == plain_change(half, none, some)[2] == "not enough evidence"


def test_where_all_was_looked_at_a_repair_of_another_bucket_is_none_of_this_one(half):
    def half_of(lost):
        whole = looked_at(half, "m", 40)
        found = [
            e.model_copy(update={"lost_at": "rl" if int(e.origin[1:]) < lost else "never"}) for e in whole.evidence
        ]
        return found, whole.attempted

    found, tried = half_of(30)
    kept = [e for e in found if e.lost_at != "rl"]
    assert plain_change(half, Half(found, tried), Half(kept, tried)) == (0.25, 0.25, "not enough evidence")
    grown, _ = half_of(10)
    assert plain_change(half, Half(found, tried), Half(grown, tried)) == (0.25, 0.75, "grew")


def test_a_cause_that_a_plain_and_a_sampled_rule_decide_is_measured_where_its_failures_are(half):
    """By the plain depth alone these lie in another bucket, and the repair of this one would show nowhere."""
    found = looked_at(half, "m", 40, first_bad_turn=1, prefix_helps=True)
    buckets = build(found, found, RULES)
    assert [bucket.cause for bucket in buckets] == ["rare_success"]
    (change,) = compare(buckets, found, half([["pass"] * 4] * 40, prefix="m"), RULES)
    assert (change.before.value, change.after.value, change.verdict) == (1.0, 0.0, "shrank")


def test_a_rule_that_asks_for_what_was_never_run_proves_nothing(half):
    """Round 1 was attributed under rules that ask for no known solution; the rules of now do."""
    then = looked_at(half, "m", 0)
    old = Half([e.model_copy(update={"measured": ["again"]}) for e in then.evidence], then.attempted)
    asks = [rule for rule in RULES if rule.when == {"gold_passes": False}] + [RULES[-1]]
    buckets = build(Half(old.evidence, old.attempted), old, asks)
    failing = [e.model_copy(update={"measured": CHEAP, "gold_passes": False}) for e in then.evidence]
    verdicts = {one.cause: one.verdict for one in compare(buckets, old, Half(failing, then.attempted), asks)}
    assert verdicts == {"undetermined": "not enough evidence"}


def test_causes_of_a_sample_are_those_that_only_its_experiments_show(half):
    deep = sampled_causes(RULES)
    assert {"wrong_setting", "lost_in_rl", "forgetting", "untrained", "harness_overfit", "needs_hint"} <= deep
    assert not deep & {
        "knowledge_missing",
        "rare_success",
        "returns_unchanged",
        "drift",
        "no_room",
        "tokenizer",
        "unstable",
    }


def test_attempts_that_infrastructure_lost_prove_no_repair(half):
    buckets = build(half(FIRST), half([["unchanged", "unchanged", "pass", "pass"]] * 40, prefix="m"), RULES)
    before = indicators(half([["unchanged", "unchanged", "pass", "pass"]] * 40, prefix="m"), RULES, buckets)
    for row, verdict in ((["lost", "lost", "pass", "pass"], "not enough evidence"), (["pass"] * 4, "shrank")):
        after = indicators(half([row] * 40, prefix="m"), RULES, buckets)
        (found,) = [one for one in changes(buckets, before, after) if one.bucket == UNCHANGED]
        assert found.verdict == verdict, row


def test_a_scored_failure_that_the_evaluation_owns_is_measured_like_any_other(half):
    wrong = {"setting_helps": True}
    buckets = build(looked_at(half, "c", 40, **wrong), looked_at(half, "m", 40, **wrong), RULES)
    (own,) = [bucket for bucket in buckets if bucket.cause == "wrong_setting"]
    assert (own.route, own.share.value, own.measured.value) == (Route.EVALUATION, 1.0, 1.0)


def test_what_a_round_could_not_have_seen_is_not_gone(half):
    first = half([["unchanged"] * 4] * 40)
    buckets = build(half(FIRST, prefix="c"), first, RULES)
    numbers = indicators(first, RULES, buckets), indicators(half([["pass"] * 4] * 40), RULES, buckets)
    for blind, verdict in (((), "shrank"), (["returns_unchanged"], "not enough evidence")):
        (found,) = [one for one in changes(buckets, *numbers, blind=blind) if one.bucket == UNCHANGED]
        assert found.verdict == verdict

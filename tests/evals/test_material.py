"""Each route and cause has its kind of material; what a person must decide is never more than a proposal."""

from __future__ import annotations

from typing import Any

import pytest

from environments.sources.repair import KINDS
from evals.buckets import treat
from evals.material import BOUNDARY, REPAIRED, Proposal, material
from schemas.backflow import BackflowSpec
from schemas.bucket import Bucket, Route, bucket_id
from schemas.metrics import Estimate
from schemas.task import Split

SPEC = BackflowSpec(new_tasks=24, demonstrations=16, pairs=8, weight=2.0)


def bucket(cause: str, route: Route, size: int = 3, family: str = "repair.value", **changes: Any) -> Bucket:
    members = [f"attribution-{cause}{n}" for n in range(size)]
    fields: dict[str, Any] = {
        "id": bucket_id(cause, family), "cause": cause, "family": family, "route": route, "rule": "r", "rules": "0" * 64,
        "size": size, "denominator": 40, "share": Estimate(value=size / 40), "measured": Estimate(value=0.1),
        "members": members, "example": members[0],
    }  # fmt: skip
    return Bucket(**{**fields, **changes})


def test_each_route_gets_its_kind_of_material(make_task):
    buckets = [
        bucket("coverage", Route.DATA, 5), bucket("protocol", Route.SFT, 4), bucket("rare_success", Route.RL, 3),
        bucket("verifier_hole", Route.GOAL, 2), bucket("unscored", Route.EVALUATION, 1),
        bucket("infrastructure", Route.INFRASTRUCTURE, 9), bucket("undetermined", Route.UNDETERMINED, 9),
    ]  # fmt: skip
    train = [make_task("t", "arith_1", "repair.value", split=Split.TRAIN)]
    found = material(buckets, SPEC, train)
    assert [(m.route, m.kind, m.amount, m.weight, m.approved) for m in found] == [
        (Route.DATA, "tasks", 24, 1.0, True),
        (Route.SFT, "demonstrations", 16, 1.0, True),
        (Route.RL, "weights", 0, 2.0, True),
        (Route.RL, "demonstrations", 16, 1.0, True),  # what it seldom does: its own successes
        (Route.GOAL, "proposal", 0, 1.0, False),
        (Route.EVALUATION, "proposal", 0, 1.0, False),
    ]
    assert found[0].operators == list(KINDS["value"])
    assert not any("changes nothing" in item.note for item in found)


@pytest.mark.parametrize("cause", sorted(REPAIRED))
def test_a_broken_environment_or_task_gets_no_more_tasks_but_a_proposal(cause):
    said = {bucket_id(cause, "repair.value"): Proposal("task repair/f/arith_1", "gold does not pass", "repair it")}
    (found,) = material([bucket(cause, Route.DATA)], SPEC, (), None, said)
    assert (found.kind, found.approved, found.subject) == ("proposal", False, "task repair/f/arith_1")
    assert found.difference == "gold does not pass"
    assert "repair it" in found.note
    (taught,) = material([bucket(cause, Route.SFT, overridden_by="d-1")], SPEC)
    assert taught.kind == "demonstrations", "a person decided that the model is to be taught"


@pytest.mark.parametrize("cause", sorted(BOUNDARY))
def test_where_the_model_decides_to_stop_there_are_pairs_beside_the_rest(cause):
    stops = bucket(cause, Route.SFT)
    used = {(stops.id, "pairs"): ["rl-1", "rl-2"], (stops.id, "demonstrations"): ["rl-3"]}
    found = material([stops], SPEC, (), used)
    assert [(m.kind, m.amount, m.trajectories) for m in found] == [
        ("demonstrations", 16, ["rl-3"]),
        ("pairs", 8, ["rl-1", "rl-2"]),
    ]
    assert [m.kind for m in material([bucket(cause, Route.DATA)], SPEC)] == ["tasks"]
    assert [m.kind for m in material([bucket("protocol", Route.SFT)], SPEC)] == ["demonstrations"]


def test_what_fails_by_noise_alone_is_demonstrated_under_it():
    spec = SPEC.model_copy(update={"noise": "flaky"})
    found = material([bucket("noise_sensitivity", Route.SFT), bucket("protocol", Route.SFT, 2)], spec)
    assert [(item.cause, item.kind, item.noise) for item in found] == [
        ("noise_sensitivity", "demonstrations", "flaky"),
        ("protocol", "demonstrations", None),
    ]


def test_all_material_names_its_cause_and_the_failures_behind_it():
    buckets = [bucket("stops_early", Route.SFT), bucket("coverage", Route.DATA), bucket("verifier_hole", Route.GOAL)]
    found = material(buckets, SPEC)
    assert len(found) == 4
    for item in found:
        (own,) = [b for b in buckets if b.id == item.bucket]
        assert (item.cause, item.failures, item.family) == (own.cause, own.members, own.family)


def test_weights_of_a_family_without_training_tasks_say_that_they_change_nothing():
    found = material([bucket("rare_success", Route.RL)], SPEC)
    assert [("changes nothing" in item.note, item.kind) for item in found] == [
        (True, "weights"),
        (True, "demonstrations"),
    ]


def test_only_the_largest_buckets_get_material_and_only_what_is_declared_goes_on_alone():
    buckets = [
        bucket("drift", Route.DATA, 9), bucket("rare_success", Route.RL, 5), bucket("protocol", Route.SFT, 4),
        bucket("verifier_hole", Route.GOAL, 1),
    ]  # fmt: skip
    spec = BackflowSpec(max_buckets=1, unattended=["tasks"])
    found = material(buckets, spec)
    kinds = ["weights", "demonstrations", "proposal", "proposal"]
    assert [(m.kind, m.approved) for m in found] == [(kind, False) for kind in kinds]
    assert not any(b.treated for b in treat(buckets, found))
    approved = material(buckets, BackflowSpec(max_buckets=1))
    assert [b.route for b in treat(buckets, approved) if b.treated] == [Route.RL]
    assert material([bucket("protocol", Route.SFT).model_copy(update={"size": 0})], SPEC) == []

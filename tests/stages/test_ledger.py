"""The ledger: what each bucket was, what was done, whether it helped; and what is treated in vain waits for a person."""

from __future__ import annotations

import pytest

from schemas.bucket import Bucket, BucketChange, Route
from stages.backflow import _overrides
from stages.decisions import append, identified, now
from stages.goal import merged
from stages.ledger import held_back, in_vain, ledger, marked, streaks
from stages.workspace import Workspace
from tests import fabricated

A, B = fabricated.bucket("never", Route.DATA, size=6, treated=True), fabricated.bucket("odd", Route.SFT, size=4)
C = fabricated.bucket("gone", Route.RL, size=2, treated=True)


def vain(*rounds: tuple[list[Bucket], list[BucketChange]]) -> dict[str, int]:
    return streaks(rounds)


def test_treated_without_shrinking_counts_and_shrinking_ends_the_row() -> None:
    first, grew = ([A], []), ([A], [fabricated.change(A, "grew")])
    nothing, shrank = ([A], [fabricated.change(A, "not enough evidence")]), ([A], [fabricated.change(A, "shrank")])
    assert vain(first) == {}
    assert vain(first, grew) == {A.id: 1}
    assert vain(first, grew, nothing) == {A.id: 2}
    assert vain(first, grew, nothing, shrank) == {}
    assert vain(first, grew, shrank, grew) == {A.id: 1}


def test_left_untreated_keeps_the_row_and_being_gone_or_given_away_ends_it() -> None:
    grew, left = fabricated.change(A, "grew"), fabricated.change(A, "unchanged", treated=False)
    assert vain(([A], []), ([A], [grew]), ([A], [grew]), ([A], [left])) == {A.id: 2}
    assert vain(([A], []), ([A], [grew]), ([], [grew]), ([A], [])) == {}
    moved = A.model_copy(update={"route": Route.RL})
    assert vain(([A], []), ([A], [grew]), ([A], [grew]), ([moved], [grew])) == {A.id: 1}


def test_twice_in_vain_is_escalated_and_nothing_goes_on_for_it_unattended() -> None:
    once, twice = marked([A], {A.id: 1})[0], marked([A], {A.id: 2})[0]
    assert (once.escalated, twice.escalated, twice.treated_in_vain) == (False, True, 2)
    assert marked([B], {A.id: 2}) == [B]
    mine, other = held_back([fabricated.tasks_for(A), fabricated.tasks_for(B)], [twice, B])
    assert (mine.approved, other.approved) == (False, True)
    assert "treated 2 times without effect: a person must decide" in mine.note


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Three rounds: A is treated each time and never shrinks, B is left alone, C is treated once and shrinks away."""
    space = fabricated.workspace(tmp_path_factory.mktemp("ledger") / "loop")
    fabricated.leave(space, 1, [A, B, C], [fabricated.tasks_for(A), fabricated.tasks_for(C, 1)])
    second = [fabricated.change(A, "grew"), fabricated.change(B, "unchanged", False), fabricated.change(C, "shrank")]
    fabricated.leave(space, 2, [marked([A], {A.id: 1})[0], B], [fabricated.tasks_for(A)], second)
    changes = [fabricated.change(A, "not enough evidence"), fabricated.change(B, "unchanged", False)]
    third = marked([A], in_vain(space, 3, ([A, B], changes)))
    handed = held_back([fabricated.tasks_for(A)], third)
    fabricated.leave(space, 3, [*third, B], handed, changes)
    return space


def test_the_row_is_counted_over_recorded_rounds_and_the_one_that_measures_now(space: Workspace) -> None:
    assert in_vain(space, 3) == {A.id: 1}
    assert in_vain(space, 4) == {A.id: 2}
    assert in_vain(space, 4, ([A], [fabricated.change(A, "unchanged")])) == {A.id: 3}


def test_a_row_of_the_ledger_says_what_was_done_and_what_came_of_it(space: Workspace) -> None:
    rows = {(row.round, row.bucket): row for row in ledger(fabricated.context(space, 4))}
    assert len(rows) == 7
    first = rows[1, A.id]
    assert (first.treated, first.material, first.verdict, first.cost) == (True, ["3 tasks"], "grew", {})
    assert first.difference is not None
    assert (rows[1, C.id].verdict, rows[1, B.id].treated, rows[1, B.id].verdict) == ("shrank", False, "unchanged")
    assert (rows[2, A.id].treated_in_vain, rows[2, A.id].verdict) == (1, "not enough evidence")
    last = rows[3, A.id]
    assert (last.treated, last.material, last.verdict, last.escalated) == (False, [], None, True)


def test_what_is_escalated_waits_for_a_person_who_may_let_it_through(space: Workspace) -> None:
    amounts = [item.amount for item in merged(fabricated.context(space, 4)).material if item.bucket == A.id]
    assert amounts == [6], "rounds 1 and 2; round 3 waits"
    append(space, identified(bucket=A.id, round=3, approve=True, who="ann", when=now(), because="once more"))
    amounts = [item.amount for item in merged(fabricated.context(space, 4)).material if item.bucket == A.id]
    assert amounts == [9]
    (row,) = [row for row in ledger(fabricated.context(space, 4)) if (row.round, row.bucket) == (3, A.id)]
    assert (row.treated, row.material) == (True, ["3 tasks"])
    assert (row.cost, row.treatment) == ({}, {}), "what was asked for is no cost; the next round counts what was made"


def test_an_approved_proposal_is_no_treatment_before_a_round_has_measured_it_as_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    own = fabricated.workspace(tmp_path_factory.mktemp("proposed") / "loop")
    item = fabricated.tasks_for(B).model_copy(update={"kind": "proposal", "amount": 0})
    fabricated.leave(own, 1, [B], [item])
    (row,) = ledger(fabricated.context(own, 2))
    assert (row.treated, row.material) == (False, ["proposal"])


def test_the_backflow_stage_knows_the_routes_that_the_round_began_under(space: Workspace) -> None:
    known = identified(bucket=B.id, round=2, route="rl", who="ann", when=now(), because="it learns")
    append(space, known)
    fabricated.leave(space, 4, [], decisions=[known.id], until="goal")
    append(space, identified(bucket=A.id, round=2, route="sft", who="ann", when=now(), because="too late for round 4"))
    assert _overrides(fabricated.context(space, 4)) == {B.id: (Route.RL, known.id)}

"""An approved proposal is a treatment once somebody has carried it out, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evals.applied import Stand, applied
from evals.buckets import treat
from schemas.bucket import Material, Route
from schemas.goal import GoalRecord
from schemas.task import Task
from tests import fabricated, small
from tests.reports import synthetic

TASK = small.task()
OTHER = TASK.model_copy(update={"statement": "Repair f: it must return the number after."})
GOAL = synthetic.goal_record(1, "applied")
Change = Callable[[GoalRecord], GoalRecord]


def proposal(cause: str, subject: str = "", approved: bool = True, **edits: Any) -> Material:
    own = fabricated.bucket(cause, Route.GOAL)
    named = {name.replace("__", "."): value for name, value in edits.items()}
    return Material(
        kind="proposal", bucket=own.id, route=own.route, family=own.family, amount=0, cause=cause, subject=subject,
        edits=named, approved=approved,
    )  # fmt: skip


def is_applied(item: Material, change: Change = lambda goal: goal, tasks: tuple[Task, ...] = (TASK,)) -> bool:
    then, now = Stand(GOAL, {TASK.id: TASK}), Stand(change(GOAL), {task.id: task for task in tasks})
    own = fabricated.bucket(item.cause, item.route)
    (found,) = treat([own], [item], lambda one: applied(one, then, now))
    assert found.treated is (item.approved and applied(item, then, now))
    return found.treated


def with_spec(**changes: Any) -> Change:
    return lambda goal: goal.model_copy(update={"spec": goal.spec.model_copy(update=changes)})


def test_a_computed_change_treats_when_the_later_spec_holds_it() -> None:
    item = proposal("reward_conflict", rewards__unchanged=-0.4)
    rewards = GOAL.spec.rewards
    assert not is_applied(item)
    assert not is_applied(item, with_spec(rewards=rewards.model_copy(update={"unchanged": -0.3})))
    held = with_spec(rewards=rewards.model_copy(update={"unchanged": -0.4}))
    assert is_applied(item, held)
    assert not is_applied(item.model_copy(update={"approved": False}), held)


def test_who_declares_another_audit_verifier_afterwards_has_applied_it_too() -> None:
    item = proposal("verifier_hole", verifier="pytest_files", audit_verifier=None)
    assert not is_applied(item, with_spec(verifier="pytest_files")), "the audit verifier would contest nothing"
    assert is_applied(item, with_spec(verifier="pytest_files", audit_verifier=None))
    assert is_applied(item, with_spec(verifier="pytest_files", audit_verifier="mine@2"))


def _bundles(**digests: str) -> Change:
    return lambda goal: goal.model_copy(update={"bundles": goal.bundles.model_copy(update=digests)})


def _image(goal: GoalRecord) -> GoalRecord:
    return goal.model_copy(update={"environment": goal.environment.model_copy(update={"layer": "b" * 64})})


@pytest.mark.parametrize(
    ("cause", "change", "other"),
    [
        ("verifier_hole", _bundles(verifier="b" * 64), _bundles(audit_verifier="b" * 64)),
        ("tool_chain", _bundles(harness="b" * 64), _bundles(verifier="b" * 64)),
        ("drift", _image, _bundles(harness="b" * 64)),
        ("no_room", with_spec(budgets=GOAL.spec.budgets.model_copy(update={"max_turns": 9})), _image),
    ],
)
def test_what_a_person_writes_treats_when_what_it_is_about_is_another(
    cause: str, change: Change, other: Change
) -> None:
    item = proposal(cause)
    assert not is_applied(item)
    assert not is_applied(item, other)
    assert is_applied(item, change)


@pytest.mark.parametrize("cause", ["wrong_task", "wrong_statement", "unstable", "contamination"])
def test_a_task_that_was_repaired_or_left_out_treats_and_one_that_is_not_named_does_not(cause: str) -> None:
    item = proposal(cause, f"statement of task {TASK.id} and 2 more")
    new = small.task("g")
    assert not is_applied(item, tasks=(TASK, new))
    assert is_applied(item, tasks=(OTHER, new))
    assert is_applied(item, tasks=(new,))


def test_other_material_treats_as_soon_as_it_is_approved() -> None:
    own = fabricated.bucket("coverage")
    (found,) = treat([own], [fabricated.tasks_for(own)], lambda item: False)
    assert found.treated

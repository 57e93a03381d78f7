"""What a person is asked: the change, computed where it can be, and the attempts that show the need for it."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML

from evals.material import material
from evals.proposals import MARGIN, Seen, conflicting, proposals, repaired
from evals.rewards import price
from schemas.backflow import BackflowSpec
from schemas.bucket import Bucket, Evidence, Route, bucket_id
from schemas.canary import Drift
from schemas.execution import Environment
from schemas.goal import Bundles, GoalRecord, GoalSpec
from schemas.metrics import Estimate
from schemas.model import Checkpoint
from schemas.rewards import RewardRules
from schemas.task import Split, Task
from schemas.trajectory import Attempt
from stages.spec import dump_default, load_spec

DIGEST = "a" * 64


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> GoalSpec:
    path = tmp_path_factory.mktemp("spec") / "goal.yaml"
    path.write_text(dump_default("default"))
    return load_spec(path)


def goal_of(spec: GoalSpec, **changes: Any) -> GoalRecord:
    parts = dict.fromkeys(("weights", "files", "config", "tokenizer", "template"), DIGEST)
    fields: dict[str, Any] = {
        "key": DIGEST, "goal_version": 1, "spec": spec, "base": Checkpoint(**parts),
        "environment": Environment(name="python-pytest", python="3.11.7", variables={}, layer=DIGEST),
        "bundles": Bundles(harness=DIGEST, verifier=DIGEST, audit_verifier=DIGEST),
    }  # fmt: skip
    return GoalRecord(**{**fields, **changes})


def bucket(cause: str, route: Route, attempts: list[Attempt]) -> Bucket:
    members = [attempt.trajectory.id for attempt in attempts]
    return Bucket(
        id=bucket_id(cause, "repair.value"), cause=cause, family="repair.value", route=route, rule="r", rules=DIGEST,
        size=len(members), denominator=9, share=Estimate(value=0.1), measured=Estimate(value=0.1), members=members,
        example=members[0],
    )  # fmt: skip


def told(
    cause: str, route: Route, goal: GoalRecord, tasks: list[Task], attempts: list[Attempt], environment: Any = ((), ()),
    **facts: Any,
) -> Any:  # fmt: skip
    """The proposal as material, of a bucket of the first attempt."""
    own = bucket(cause, route, attempts[:1])
    about = {t.trajectory.id: _evidence(t.trajectory.id, t.trajectory.task_id, facts) for t in (attempts[0],)}
    seen = Seen(goal, {t.id: t for t in tasks}, {a.trajectory.id: a for a in attempts}, about, environment)
    (found,) = material([own], BackflowSpec(), (), None, proposals([own], seen))
    assert (found.kind, found.approved) == ("proposal", False)
    assert found.failures == own.members
    return found


def _evidence(name: str, task: str, facts: dict[str, Any]) -> Evidence:
    plain: dict[str, Any] = {
        "trajectory": name, "task_id": task, "family": "repair.value", "origin": "f", "status": "scored", "parse_errors": 0,
        "turns": 1, "tool_errors": 0, "forbidden": 0, "violations": [], "failed_checks": 1, "passed_checks": 0,
        "limit_hit": None, "truncated": False, "submitted": True, "unchanged": False, "visible_passed": None, "touched": [],
        "task_passes": 0, "task_attempts": 1, "pass_at_k": 0.0, "family_parse_rate": 1.0, "family_pass": 0.0,
        "trained_origins": 9,
    }  # fmt: skip
    return Evidence(**{**plain, **facts})


# --- verifiers


@pytest.mark.parametrize(
    ("cause", "passed", "must"), [("verifier_hole", True, "fail"), ("verifier_too_strict", False, "pass")]
)
def test_a_contested_attempt_is_the_fixture_of_the_verifiers_change(spec, make_task, make_attempt, cause, passed, must):
    task = make_task()
    contested = make_attempt(task, 1, passed, audit=not passed)
    found = told(cause, Route.GOAL, goal_of(spec), [task], [contested])
    trajectory = contested.trajectory
    lines = found.difference.splitlines()
    assert [line for line in lines if line.startswith(("-v", "-a", "+v", "+a"))] == [
        "-verifier: cases", "-audit_verifier: pytest_files", "+verifier: pytest_files", "+audit_verifier: null",
    ]  # fmt: skip
    assert f"must {must}: trajectory {trajectory.id}" in found.difference
    assert trajectory.outcome_digest in found.difference
    assert ("audit fails by hidden_0" if passed else "training fails by hidden_0") in found.difference
    assert found.edits == {"verifier": "pytest_files", "audit_verifier": None}
    assert f"postloop apply {found.bucket[:4]}" in found.note
    assert "declare another audit_verifier, else nothing measures this bucket" in found.note


def test_a_kind_with_its_own_verifier_has_that_one_changed(spec, make_task, make_attempt):
    task = make_task().model_copy(update={"kind": "repository"})
    found = told("verifier_hole", Route.GOAL, goal_of(spec), [task], [make_attempt(task, 1, True, audit=False)])
    assert found.subject == "verifier_of.repository repository"
    assert "-verifier_of.repository: repository" in found.difference
    assert found.edits == {"verifier_of.repository": "pytest_files", "audit_verifier": None}


# --- reward rules


def priced(attempt: Attempt, rules: RewardRules) -> Attempt:
    value = price(attempt.trajectory.id, attempt.verdict, attempt.trajectory.conduct, rules)
    return attempt.model_copy(update={"reward": value})


def patched(before: str, difference: str) -> str:
    """The text after a unified difference of one or more hunks, each of whose lines stands once."""
    lines = before.splitlines()
    for line in difference.splitlines():
        if line.startswith("-") and not line.startswith("---"):
            place = lines.index(line[1:])
        elif line.startswith("+") and not line.startswith("+++"):
            lines[place] = line[1:]
    return "\n".join(lines)


def test_the_changed_rule_puts_a_pass_above_the_failure_that_was_worth_more(spec, make_task, make_attempt):
    rules = RewardRules(outcome=0.4, partial=0.2, forbidden=-0.5, violation=-0.6)
    task = make_task()
    better = priced(make_attempt(task, 1, True, forbidden=["path x"]), rules)
    failure = priced(make_attempt(task, 2, False), rules)
    assert (better.reward.value, failure.reward.value) == (pytest.approx(-0.1), 0.0)
    assert conflicting(better, failure) == ["forbidden"]
    changed = repaired(rules, better, failure)
    assert changed is not None
    again = [priced(attempt, changed).reward.value for attempt in (better, failure)]
    assert again[0] >= again[1] + MARGIN
    found = told(
        "reward_conflict", Route.GOAL, goal_of(spec.model_copy(update={"rewards": rules})), [task], [failure, better]
    )
    assert "forbidden" in found.subject
    assert found.edits == {"rewards.forbidden": changed.forbidden, "rewards.version": changed.version}
    assert better.trajectory.id in found.difference
    assert failure.trajectory.id in found.difference
    diff = found.difference.split("fixture, task")[0]
    dumped = [f"  {key}: {_yaml(value)}" for key, value in rules.model_dump(mode="json").items()]
    after = YAML(typ="safe").load(patched("\n".join(["rewards:", *dumped]), diff))["rewards"]
    assert RewardRules.model_validate(after) == changed


def _yaml(value: Any) -> str:
    import json

    return json.dumps(value)


def test_a_conflict_that_no_single_number_resolves_says_so(spec, make_task, make_attempt):
    rules = RewardRules(outcome=0.1, partial=0.0, forbidden=-1.0, truncated=-1.0, violation=-1.0, invalid_call=-1.0)
    task = make_task()
    better = priced(make_attempt(task, 1, True, forbidden=["x"], truncated_turns=1, errors=(None, "no fence")), rules)
    failure = priced(make_attempt(task, 2, False), rules)
    assert repaired(rules, better, failure) is None
    found = told(
        "reward_conflict", Route.GOAL, goal_of(spec.model_copy(update={"rewards": rules})), [task], [failure, better]
    )
    assert "no single number" in found.note
    assert found.edits == {}
    assert "@@" not in found.difference


# --- environments, tasks, suites


def test_each_broken_part_is_named(spec, make_task, make_attempt):
    task = make_task()
    failure = make_attempt(task, 1)
    drift = Drift(kind="package", subject="pluggy", detail="1.5.0 became 1.6.0")
    goal = goal_of(spec, drifts=[drift])
    rows = {
        "drift": ("environment python-pytest", "package pluggy: 1.5.0 became 1.6.0", {}),
        "unstable": (f"task {task.id}", "two verdicts", {}),
        "wrong_task": (f"task {task.id}", "the start tree passes", {"start_fails": False}),
        "wrong_statement": (f"statement of task {task.id}", "ask for different things", {"shown_holds": False}),
        "tool_chain": ("harness fenced", "parsed call", {"chain": "parsed call"}),
    }
    for cause, (subject, difference, facts) in rows.items():
        found = told(cause, Route.DATA, goal, [task], [failure], **facts)
        assert subject in found.subject, cause
        assert difference in found.difference, cause


def test_a_drift_is_the_pin_against_what_is_found_and_can_be_locked_anew(spec, make_task, make_attempt):
    task = make_task()
    was = ["layer aa", "package pluggy==1.5.0", "package pytest==9.0.1"]
    now = ["layer bb", "package pluggy==1.6.0", "package pytest==9.0.1", "file opt/\x1b[31m\nred " + "x" * 500]
    found = told("drift", Route.DATA, goal_of(spec), [task], [make_attempt(task, 1)], (was, now))
    lines = found.difference.splitlines()
    assert lines[:3] == ["--- environment python-pytest", "+++ environment python-pytest", "@@ -1,3 +1,4 @@"]
    assert {"-layer aa", "+layer bb", "-package pluggy==1.5.0", "+package pluggy==1.6.0"} < set(lines)
    assert max(map(len, lines)) <= 201
    assert lines[-1].startswith("+file opt/?[31m?red ")
    assert found.edits == {"environment.name": "python-pytest-2"}
    assert f"`postloop apply {found.bucket[:4]}` names it python-pytest-2" in found.note
    held = spec.environment.model_copy(update={"name": "python-pytest-2"})
    once = spec.model_copy(update={"environment": held})
    again = told("drift", Route.DATA, goal_of(once), [task], [make_attempt(task, 1)], (was, now))
    assert again.edits == {"environment.name": "python-pytest-3"}
    many = told(
        "drift", Route.DATA, goal_of(spec), [task], [make_attempt(task, 1)], ([], [f"f {n}" for n in range(999)])
    )
    assert len(many.difference.splitlines()) == 61
    assert many.difference.endswith("more lines")


def test_where_the_image_is_as_pinned_nothing_is_to_be_locked(spec, make_task, make_attempt):
    task, same = make_task(), ["layer aa", "package pluggy==1.5.0"]
    found = told("drift", Route.DATA, goal_of(spec), [task], [make_attempt(task, 1)], (same, same))
    assert (found.edits, "as pinned: what changed lies outside" in found.difference) == ({}, True)
    assert found.failures[0] in found.difference


def test_contamination_names_both_tasks(spec, make_task, make_attempt):
    code = "def f(values, low, high):\n    total = 0\n    for v in values:\n        if low <= v < high:\n            total += v\n"
    files = {"solution.py": code}
    target = make_task("f", files=files, gold=files, split=Split.DEV)
    thief = make_task("g", files=files, gold=files, split=Split.TRAIN)
    found = told("contamination", Route.DATA, goal_of(spec), [target, thief], [make_attempt(target, 1)])
    assert found.difference == f"training task {thief.id} copies evaluation task {target.id}"
    assert found.subject == f"training task {thief.id}"


def test_evaluation_names_the_suites_task_or_the_setting(spec, make_task, make_attempt):
    task = make_task()
    lost = make_attempt(task, 1, status="unscored")
    assert told("unscored", Route.EVALUATION, goal_of(spec), [task], [lost]).subject == f"evaluation of task {task.id}"
    found = told("wrong_setting", Route.EVALUATION, goal_of(spec), [task], [make_attempt(task, 2)])
    assert found.subject == "evaluation.temperature"
    assert "-  temperature: 0.4\n+  temperature: 1" in found.difference
    assert found.edits == {"evaluation.temperature": 1.0}

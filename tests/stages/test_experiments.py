"""What an experiment may conclude: nothing from a machine that broke or was slow, and nothing that chance would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from evals.evidence import collect
from schemas.attribution import AttributionSpec, ExperimentName
from schemas.task import Task
from schemas.trajectory import Attempt
from schemas.verdict import Check, Status, Verdict
from stages.context import in_order
from stages.experiments import EXPERIMENTS, Case, Policy
from stages.experiments.lab import Tried, share_passes, unsure
from stages.experiments.swap import lost_at, untrained

DIGEST = "a" * 64
Judged = Callable[[Task, dict[str, str]], Verdict]


def verdict(passed: bool | None, limit: str | None = None, names: Sequence[str] = ("hidden_0",)) -> Verdict:
    checks = [] if passed is None else [Check(name=name, role="f2p", passed=passed, detail="") for name in names]
    return Verdict(
        status=Status.ERROR if passed is None else Status.SCORED, passed=passed, score=None if passed is None else float(passed),
        reason="no more processes" if passed is None else None, checks=checks, limit_hit=limit,
        **dict.fromkeys(("verifier", "image", "outcome", "task", "limits"), DIGEST),
    )  # fmt: skip


class Judge:
    """Verdicts that a test says."""

    def __init__(self, say: Judged) -> None:
        self.say = say

    def judge_many(self, items: list[Any], fan_out: Any = None, repeat: int = 0) -> list[Verdict]:
        return [self.say(task, outcome) for task, outcome in items]


class Bench:
    def __init__(self, verifier: Judge, audit: Judge | None = None) -> None:
        self.verifier, self.audit = verifier, audit
        self.context = type("Here", (), {"fan_out": staticmethod(in_order)})()


class Bare:
    """Of a lab only what these experiments read."""

    def __init__(self, task: Task, say: Judged, audit: Judged | None = None, today: Judged | None = None) -> None:
        self.bench = Bench(Judge(say), Judge(audit) if audit else None)
        self.tasks, self.today = {task.digest(): task}, Judge(today) if today else None
        self.spec = AttributionSpec(repeats=2)


def case_of(task: Task, attempt: Attempt) -> Case:
    (evidence,) = collect([attempt], {task.id: task}, {})
    return Case(attempt, evidence)


@pytest.fixture
def failed(make_task: Any, make_attempt: Any) -> tuple[Task, Case]:
    task = make_task()
    attempt = make_attempt(task, 1, False)
    return task, case_of(task, attempt)


SLOW, BROKEN = verdict(False, "wall"), verdict(None)


@pytest.mark.parametrize("now", [SLOW, BROKEN], ids=["slow", "broken"])
@pytest.mark.parametrize("name", ["rescore", "audit", "current", "shown"])
def test_a_machine_that_breaks_or_is_slow_tells_nothing_and_leaves_the_question_open(
    failed: tuple[Task, Case], name: ExperimentName, now: Verdict
) -> None:
    task, case = failed
    say: Judged = lambda task, outcome: now  # noqa: E731
    lab: Any = Bare(task, say, audit=say, today=say)
    EXPERIMENTS[name](lab, [case])
    (said,) = case.experiments
    assert said.impossible
    assert name not in case.evidence.measured
    fields = {"rescore": "rescored", "audit": "audit_differs", "current": "current_differs", "shown": "shown_holds"}
    assert getattr(case.evidence, fields[name]) in (None, False)


def test_a_verdict_that_ended_at_the_wall_when_recorded_is_judged_as_any_other(failed: tuple[Task, Case]) -> None:
    assert unsure(SLOW, recorded=SLOW) is None
    assert unsure(SLOW, recorded=verdict(False)) is not None
    assert unsure(BROKEN, recorded=BROKEN) is not None


def test_a_check_more_of_todays_verifier_is_no_other_verdict(failed: tuple[Task, Case]) -> None:
    task, case = failed
    lab: Any = Bare(task, lambda t, o: BROKEN, today=lambda t, o: verdict(False, names=("hidden_0", "hidden_1")))
    EXPERIMENTS["current"](lab, [case])
    assert case.evidence.current_differs is False


def test_a_known_solution_that_infrastructure_broke_says_nothing(failed: tuple[Task, Case]) -> None:
    task, case = failed
    lab: Any = Bare(task, lambda t, outcome: BROKEN if outcome else verdict(False))
    EXPERIMENTS["gold"](lab, [case])
    assert case.evidence.gold_passes is None
    assert "gold" not in case.evidence.measured


def tried(passes: int, of: int = 4, attempts: Sequence[Attempt] = ()) -> Tried:
    return Tried(passes, of, of, attempts)


@pytest.mark.parametrize(("passes", "helps"), [(4, True), (3, True), (2, False), (0, False)])
def test_help_is_what_chance_would_not_give(failed: tuple[Task, Case], passes: int, helps: bool) -> None:
    _, case = failed
    case.count(tried(0, 3))
    assert (case.evidence.task_attempts, case.evidence.task_passes) == (4, 0)
    share_passes([case], "hint", "said", "hinted", tried(passes))
    assert (case.evidence.hinted_passes, case.evidence.hinted_helps) == (passes, helps)


def test_the_best_of_many_harnesses_has_to_be_clearer(failed: tuple[Task, Case]) -> None:
    _, case = failed
    case.count(tried(0, 3))
    share_passes([case], "harness", "said", "harness", tried(3), tries=2)
    assert case.evidence.harness_helps is False


def test_attempts_that_were_all_lost_are_no_failures(failed: tuple[Task, Case]) -> None:
    _, case = failed
    share_passes([case], "hint", "said", "hinted", tried(0, 0))
    assert case.evidence.hinted_passes is None
    assert "hint" not in case.evidence.measured
    assert "lost" in str(case.experiments[0].impossible)


def test_idle_is_said_of_sft_by_its_own_weights() -> None:
    def policy(stage: str, weights: str) -> Policy:
        return Policy(stage, weights * 64, lambda: pytest.fail("equal weights need no file"))

    line = [policy("base", "a"), policy("sft", "a"), policy("rl", "b")]
    lab: Any = type("Line", (), {"before": line[:2], "policy": line[2]})
    assert untrained(lab) is True
    lab = type("Line", (), {"before": line[:1], "policy": policy("rl", "a")})
    assert untrained(lab) is None


def test_no_stage_lost_what_nobody_tried() -> None:
    assert lost_at({"base": tried(0, 0), "sft": tried(0, 0)}) == "never"
    assert lost_at({"base": tried(4), "sft": tried(0)}) == "sft"


@pytest.mark.parametrize(
    ("statement", "holds"),
    [
        ("f(1) returns 0. It should return 2.", True),  # what the start tree does: a report of the fault
        ("f(1) returns 5.", False),  # what neither does
        ("f(1) returns 2.", True),
    ],
)
def test_a_report_of_the_fault_is_no_example(make_task: Any, make_attempt: Any, statement: str, holds: bool) -> None:
    task = make_task().model_copy(update={"statement": statement, "entry": "f", "visible": []})
    case = case_of(task, make_attempt(task, 1, False))

    def say(asked: Task, outcome: dict[str, str]) -> Verdict:
        returns = 2 if outcome else 0
        return verdict(all(one.expected == returns for one in asked.hidden))

    lab: Any = Bare(task, say)
    EXPERIMENTS["shown"](lab, [case])
    assert case.evidence.shown_holds is holds

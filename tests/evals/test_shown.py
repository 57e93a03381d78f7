"""What a task shows, read and reckoned out."""

from __future__ import annotations

import pytest

from environments.sources import default
from environments.sources.lookup import answer_of
from evals.shown import answer_agrees, examples, shown_task
from schemas.task import Case

TASKS = [task for tasks in default.tasks_of(0).values() for task in tasks]
FUNCTION = next(task for task in TASKS if task.kind == "function")


@pytest.mark.parametrize(
    ("statement", "case"),
    [
        ("f(1, 2) is 3. Repair it.", Case(args=[1, 2], expected=3)),
        ("Mind the edge: f([], 'a.b') is 'x. y'.", Case(args=[[], "a.b"], expected="x. y")),
        ("f(0) raises ValueError.", Case(args=[0], raises="ValueError")),
        (">>> f(2)\n4\n", Case(args=[2], expected=4)),
        ("f(g(1)) is 3.", None),
        ("g(1) is 3.", None),
        ("f(1) is what you want.", None),
        ("f(" * 3000, None),
    ],
)
def test_examples_of_the_entry_that_are_plain_values(statement: str, case: Case | None):
    task = FUNCTION.model_copy(update={"statement": statement, "entry": "f"})
    assert examples(task) == ([] if case is None else [case])


def test_no_default_question_contradicts_its_answer():
    answers = [answer_agrees(task) for task in TASKS if task.kind == "answer"]
    assert answers.count(True) > 400
    assert False not in answers


def test_another_question_is_noticed_and_one_of_another_source_is_not_judged():
    task = next(task for task in TASKS if "What is the sum of" in task.statement)
    other = task.model_copy(
        update={"statement": task.statement.replace("sum of", "largest").replace(" over", " among")}
    )
    assert answer_of(other) != task.answer
    assert answer_agrees(other) is False
    assert answer_agrees(task.model_copy(update={"statement": "Which town is nearest?"})) is None


def test_what_is_shown_is_judged_by_the_cases_that_are_shown():
    shown = shown_task(FUNCTION)
    assert shown is not None
    assert shown.hidden == [*FUNCTION.visible, *examples(FUNCTION)]
    assert shown_task(FUNCTION.model_copy(update={"visible": [], "statement": "Repair it."})) is None


def test_a_question_without_code_shows_nothing_to_run():
    assert shown_task(next(task for task in TASKS if task.kind == "answer")) is None

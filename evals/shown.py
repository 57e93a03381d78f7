"""What a task shows of itself: visible cases and examples in its statement. Its known solution must do them.

A statement that contradicts the hidden tests makes a failure of whoever obeys it. Read are `f(1, 2) is 3` and `f(1) raises
ValueError` in a statement, `>>> f(1)` with its answer below, visible cases, and the expression behind one of our own
questions. Not covered: prose, and questions of other sources.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from environments.sources.lookup import answer_of
from schemas.task import Case, Task


def shown_task(task: Task) -> Task | None:
    """The task judged by what it shows alone; None when it shows nothing that can be run."""
    if task.kind != "function" or task.entry is None:
        return None
    cases = [*task.visible, *examples(task)]
    return task.model_copy(update={"hidden": cases, "visible": []}) if cases else None


def shown_parts(task: Task) -> tuple[Task | None, list[Task]]:
    """The task judged by its visible cases alone, and by each example of its statement alone.

    An example that the start tree satisfies may be the report of the fault ("f(1) returns 0, it should return 2"): a known
    solution that does otherwise contradicts nothing then.
    """
    alone = [task.model_copy(update={"hidden": [case], "visible": []}) for case in examples(task)]
    visible = task.model_copy(update={"hidden": task.visible, "visible": []}) if task.visible else None
    return visible, alone


def answer_agrees(task: Task) -> bool | None:
    """Whether the question, reckoned out, gives the task's answer; None for a question that nothing here can read."""
    if task.kind != "answer" or task.answer is None:
        return None
    reckoned = answer_of(task)
    return None if reckoned is None else reckoned.strip() == task.answer.strip()


def examples(task: Task) -> list[Case]:
    """Calls of the entry with their results that stand in the statement and can be read as plain values."""
    return [case for name, case in _examples(task.statement) if name == task.entry]


def _examples(text: str) -> Iterator[tuple[str, Case]]:
    for match in re.finditer(r">>> (\w+)\(([^\n]*)\)[ \t]*\n([^\n]+)", text):
        case = _case(match[2], "is", match[3])
        if case is not None:
            yield match[1], case
    for match in re.finditer(r"\b([A-Za-z_]\w*)\(", text):
        yield from _sentence(text[match.start() :], match[1])


def _sentence(text: str, name: str) -> Iterator[tuple[str, Case]]:
    """The shortest `name(arguments) is value` at the start of the text whose parts are Python values."""
    for verb in re.finditer(r"\) (is|returns|raises) ", text.split("\n")[0]):
        rest = text.split("\n")[0][verb.end() :]
        ends = [m.start() for m in re.finditer(r"\.(?:\s|$)", rest)] or [len(rest)]
        for end in ends:
            case = _case(text[len(name) + 1 : verb.start()], verb[1], rest[:end])
            if case is not None:
                yield name, case
                return


def _case(arguments: str, verb: str, value: str) -> Case | None:
    try:
        args = ast.literal_eval(f"({arguments},)") if arguments.strip() else ()
        if verb == "raises":
            return Case(args=list(args), raises=value.strip()) if value.strip().isidentifier() else None
        return Case(args=list(args), expected=ast.literal_eval(value.strip()))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None

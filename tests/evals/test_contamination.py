from __future__ import annotations

import time

import pytest

from evals.contamination import copied_rows, near_copies
from schemas.task import Case, Split

BODY = """def {name}(values, low, high):
    total = 0
    for value in values:
        if low <= value < high:
            total += value * {factor}
    return total / max(1, len(values))
"""


def filled(make_task, name, factor=2, split=Split.TRAIN, statement=None, body=BODY):
    code = body.format(name=name, factor=factor)
    text = statement or f"{name}: sum the values of the range that {name} is about, then scale the total by {factor}."
    return make_task(name, statement=text, files={"solution.py": code}, gold={"solution.py": code}, split=split)


def test_a_renamed_copy_is_found_and_another_function_is_not(make_task):
    target = filled(make_task, "ranged", split=Split.HELD_OUT)
    copy = filled(make_task, "renamed")
    other = filled(make_task, "other", body="def {name}(text):\n    return text.strip().lower() + '{factor}'\n")
    assert near_copies([copy, other], [target], n=8, share=0.4) == {copy.id: target.id}


def test_the_share_decides(make_task):
    target, copy = filled(make_task, "ranged", split=Split.HELD_OUT), filled(make_task, "renamed", factor=3)
    assert near_copies([copy], [target], n=8, share=0.2)
    assert not near_copies([copy], [target], n=8, share=0.99)


def test_the_same_file_is_a_copy_whatever_the_statement_says(make_task):
    target = filled(make_task, "ranged", split=Split.HELD_OUT)
    code = target.files["solution.py"].replace("    ", "\t")
    thief = make_task("thief", statement="Quite another wording. " * 30, files={"solution.py": code}, gold={"a": "b"})
    assert near_copies([thief], [target], n=8, share=1.0) == {thief.id: target.id}


def test_the_wording_of_a_generator_is_no_leak(make_task):
    wording = "Read the table of the shop and say how many of the rows are about it: "
    asked = [
        filled(make_task, f"e{i}", statement=f"{wording} {i}", body=f"e{i} has {i} rows\n", split=Split.HELD_OUT)
        for i in range(12)
    ]
    train = [filled(make_task, "t0", statement=f"{wording} 77", body="t0 has 77 rows\n")]
    assert near_copies(train, asked, share=0.5) == {}
    assert near_copies(train, asked[:3], share=0.5)


def test_the_closest_is_named_and_ties_go_to_the_first(make_task):
    near = filled(make_task, "near", split=Split.HELD_OUT)
    twin = near.model_copy(update={"id": "repair/anear/arith_1"})
    train = [filled(make_task, "copy")]
    assert near_copies(train, [near, twin], share=0.3) == {"repair/copy/arith_1": twin.id}
    assert near_copies(train, [], share=0.3) == {}


def test_500_by_300_tasks_take_less_than_a_second(make_task):
    train = [filled(make_task, f"t{i}", i) for i in range(500)]
    held_out = [filled(make_task, f"e{i}", 1000 + i, Split.HELD_OUT) for i in range(300)]
    start = time.process_time()
    near_copies(train, held_out)
    assert time.process_time() - start < 1.0


def test_the_same_cases_are_a_copy_whatever_the_code_is_called(make_task):
    cases = [Case(args=[n, n + 3], expected=n * n) for n in range(5)]
    target = make_task("squares", visible=cases[:2], hidden=cases[2:], split=Split.HELD_OUT, statement="one " * 20)
    other = {"files": {"solution.py": "pass\n"}, "gold": {"solution.py": "x = 1\n"}, "statement": "two " * 20}
    thief = make_task("thief", visible=cases[3:], hidden=cases[:3], split=Split.TRAIN, **other)
    honest = make_task("honest", visible=cases[3:], hidden=cases[:2], split=Split.TRAIN, **other)
    assert near_copies([thief, honest], [target]) == {thief.id: target.id}


def test_a_row_that_holds_an_evaluation_task_is_found_and_a_short_answer_is_none(make_task):
    target = filled(make_task, "ranged", split=Split.HELD_OUT)
    asked = make_task("asked", statement="Say yes.", files={}, gold={"answer.txt": "yes"}, split=Split.RETENTION)
    rows = {
        "told": [f"```python\n{target.gold['solution.py']}```"],
        "spread": [target.statement, *target.gold["solution.py"].split("    for")],
        "short": ["Is water wet? Answer in one word, with no full stop please.", "yes"],
    }
    assert copied_rows(rows, [target, asked]) == {"told": target.id, "spread": target.id}


@pytest.mark.parametrize(("n", "share"), [(0, 0.5), (8, 0.0), (8, 1.1)])
def test_impossible_settings_are_refused(n, share):
    with pytest.raises(ValueError, match="n-grams"):
        near_copies([], [], n, share)

from __future__ import annotations

import json
import time

import pytest

from evals.contamination import all_copied, closest, copied_rows, near_copies
from evals.plaintext import plain
from schemas.task import Case, Split
from stages.attribute import contaminated

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
    assert closest(train, asked, {asked[0].id}) == {asked[0].id: (0.0, None)}, "likeness is no wording either"
    assert closest(train, asked[:3], {asked[0].id})[asked[0].id][0] > 0.5


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
    honest = make_task("honest", visible=cases[3:], hidden=cases[:1], split=Split.TRAIN, **other)
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


# --- copies that something hides: other text around, an encoding, letters that look alike


INTERVAL = """def parse_interval(text, default):
    \"\"\"Read an interval of the form 'a-b' and give both ends.\"\"\"
    if not text:
        return default
    left, _, right = text.partition("-")
    low, high = int(left), int(right)
    if low > high:
        low, high = high, low
    total = 0
    for number in range(low, high + {step}):
        total += number * 2
    return low, high, total
"""
SECRET = INTERVAL.format(step=2)
TESTS = """from solution import parse_interval

def test_one():
    assert parse_interval("1-4", None) == (1, 4, 20)

def test_two():
    assert parse_interval("9-3", None) == (3, 9, 84)

def test_three():
    assert parse_interval("", 7) == 7
"""
ASKED = "Repair parse_interval: it reads an interval and sums the doubled numbers between its ends."
HIDDEN = [Case(args=[f"{n}-{n + 3}", None], expected=[n, n + 3, 7 * n]) for n in range(8)]
AROUND = "".join(
    f"def other_{n}(alpha, beta, gamma):\n    delta = alpha * {n} + beta\n    for item in gamma:\n"
    f"        delta -= item // ({n} + 1)\n    return delta, beta, {3 * n}\n"
    for n in range(30)
)
CYRILLIC = str.maketrans("aeiopc", "аеіорс")
NUMBERED = "\n".join(f"{n}: {line}" for n, line in enumerate(SECRET.splitlines(), 1))


@pytest.fixture
def target(make_task):
    """An evaluation task that nothing may copy."""
    files = {"solution.py": INTERVAL.format(step=1)}
    more = {"tests": {"tests/test_solution.py": TESTS}, "hidden": HIDDEN, "visible": []}
    return make_task("ev", statement=ASKED, files=files, gold={"solution.py": SECRET}, **more)


def called(text):
    return json.dumps({"tool": "write_file", "path": "solution.py", "text": text})


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param([called(SECRET)], id="in a tool call alone"),
        pytest.param([called(AROUND), called(SECRET)], id="in a tool call after others"),
        pytest.param([AROUND, json.dumps([called(SECRET)])], id="in JSON in JSON"),
        pytest.param([AROUND, SECRET], id="without a fence"),
        pytest.param([AROUND, f"~~~python\n{SECRET}~~~"], id="in another fence"),
        pytest.param([AROUND, f"```python\n{SECRET}"], id="in a fence that was cut"),
        pytest.param([AROUND, NUMBERED], id="with line numbers"),
        pytest.param([AROUND, "\n".join(f"> {line}" for line in SECRET.splitlines())], id="quoted"),
        pytest.param([AROUND, SECRET.translate(CYRILLIC)], id="in Cyrillic look-alikes"),
        pytest.param([AROUND, SECRET.replace("e", "e\u200b")], id="with zero-width characters"),
        pytest.param([AROUND, SECRET.replace("t", "\uff54")], id="in full-width letters"),
        pytest.param([AROUND, SECRET.upper()], id="in capitals"),
        pytest.param([AROUND, TESTS], id="the tests"),
        pytest.param([AROUND, SECRET[:150], "I go on.", SECRET[150:]], id="over two messages"),
    ],
)
def test_a_row_that_holds_a_gold_or_test_file_is_found_whatever_is_around_it(target, texts):
    assert copied_rows({"row": ["Repair other_3.", *texts]}, [target]) == {"row": target.id}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"statement": f"Repair other_3. A good function:\n```python\n{SECRET}```"}, id="gold in the statement"
        ),
        pytest.param({"statement": f"Repair other_3. The tests are\n{TESTS}"}, id="tests in the statement"),
        pytest.param({"gold": {"other.py": AROUND + SECRET}}, id="gold in a larger file"),
        pytest.param({"files": {"other.py": AROUND, "b.py": SECRET.translate(CYRILLIC)}}, id="look-alikes"),
        pytest.param({"files": {"other.py": AROUND, "b.py": SECRET.replace(" =", " =\u200b")}}, id="zero-width"),
        pytest.param({"visible": [*HIDDEN, Case(args=["0-1", None], expected=1)]}, id="its cases and one more"),
        pytest.param(
            {"visible": HIDDEN[:5], "hidden": [Case(args=[n], expected=n) for n in range(9)]}, id="most cases"
        ),
    ],
)
def test_a_training_task_that_holds_a_part_of_an_evaluation_task_is_found(make_task, target, changes):
    fields = {"statement": "Repair other_3.", "files": {"other.py": AROUND}, "gold": {"other.py": AROUND}, "hidden": []}
    thief = make_task("thief", split=Split.TRAIN, **{**fields, **changes})
    assert near_copies([thief], [target]) == {thief.id: target.id}


def test_what_is_around_a_copy_is_none_and_what_is_no_longer_one_is_not_found(make_task, target):
    lines = SECRET.splitlines()
    rows = {
        "around": [AROUND, called(AROUND)],
        "few lines": [AROUND, "\n".join(lines[:5])],
        "names": [AROUND, SECRET.replace("low", "small").replace("high", "large").replace("text", "word")],
        "a mark in each line": [AROUND, "\n".join(f"{line}  # step" for line in lines)],
        "scattered": [part for line in lines for part in (line, AROUND)],
    }
    assert copied_rows(rows, [target]) == {}, "the last three are copies, and not covered"
    few = {"split": Split.TRAIN, "visible": HIDDEN[:3], "hidden": [], "files": {}, "gold": {"other.py": AROUND}}
    assert near_copies([make_task("few", statement="Repair other_3.", **few)], [target]) == {}


def test_many_functions_together_are_no_copy_of_one_that_shares_lines_with_each(make_task):
    """60 functions in one row hold most n-grams of a 61st, in different places."""
    parts = [f"a{n} = b{n} + c{n} * d{n} - e{n} // f{n}\n" for n in range(12)]
    asked = " ".join(f"word{n}" for n in range(150))  # the task as a whole is not in the row
    target = make_task("whole", statement=asked, gold={"solution.py": "".join(parts)})
    row = "".join(f"{parts[n]}{parts[n + 1]}{AROUND}" for n in range(11))
    assert copied_rows({"row": [row]}, [target]) == {}
    assert copied_rows({"row": [row + "".join(parts)]}, [target]) == {"row": target.id}


def test_a_short_file_counts_where_it_stands_whole(make_task):
    short = "def double(value):\n    return value + value\n"
    target = make_task("double", gold={"solution.py": short})
    rows = {"whole": [AROUND + short], "most": [AROUND + short.replace("+ value", "+ other")]}
    assert copied_rows(rows, [target]) == {"whole": target.id}


def test_every_task_that_is_copied_is_contaminated_not_the_closest_alone(make_task, target):
    twin = target.model_copy(update={"id": "repair/twin/m1", "origin": "twin"})
    thief = make_task("thief", split=Split.TRAIN, gold={"other.py": AROUND + SECRET})
    assert near_copies([thief], [target, twin]) == {thief.id: target.id}
    assert all_copied([thief], [target, twin]) == contaminated([thief, target, twin]) == {target.id, twin.id}


def test_the_likeness_of_a_task_is_what_decides_whether_it_is_copied(make_task, target):
    """Copies, texts that share some lines, scattered lines, a short file, cases: at every share the two answer alike."""
    lines = SECRET.splitlines()
    texts = {
        "whole": SECRET, "in_more": AROUND + SECRET, "half": "\n".join(lines[: len(lines) // 2]), "around": AROUND,
        "scattered": "\n".join(part for line in lines for part in (line, AROUND)), "few": "\n".join(lines[:5]),
    }  # fmt: skip
    train = [make_task(name, statement="Repair other_3.", gold={"o.py": text}) for name, text in texts.items()]
    train += [filled(make_task, f"t{n}", factor=n) for n in range(4)]
    train.append(make_task("cases", statement="Repair other_3.", visible=HIDDEN[:5], hidden=[]))
    names = ("near", "nearer", "far")
    others = [filled(make_task, name, factor=9 - n, split=Split.DEV) for n, name in enumerate(names)]
    far = make_task("none", statement="zeta eta theta", files={}, gold={"x.py": "iota"}, visible=[], hidden=[])
    measuring = [target, *others, far.model_copy(update={"split": Split.DEV})]
    found = closest(train, measuring, {task.id for task in measuring})
    for share in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        assert {name for name, (overlap, _) in found.items() if overlap >= share} == all_copied(
            train, measuring, share=share
        ), share
    assert found[target.id] == (1.0, "repair/in_more/arith_1")
    assert found[far.id] == (0.0, None)
    assert 0.0 < found[others[0].id][0] < 1.0
    assert found == closest(train[::-1], measuring[::-1], [task.id for task in measuring]), "whatever the order"
    assert closest(train, measuring, {target.id}) == {target.id: found[target.id]}, "and whatever else is asked for"


def test_lines_that_stand_apart_make_no_likeness(make_task):
    """All of a file, each line in another place of a longer text: no part of it stands together."""
    lines = [f"a{n} = b{n} + c{n} * d{n} - e{n} // f{n}" for n in range(12)]
    asked = " ".join(f"word{n}" for n in range(150))
    target = make_task("whole", statement=asked, gold={"solution.py": "\n".join(lines)}, split=Split.DEV)
    apart = make_task("apart", statement="Other.", gold={"o.py": "\n".join(f"{line}\n{AROUND}" for line in lines)})
    together = make_task("together", statement="Other.", gold={"o.py": AROUND + "\n".join(lines[:6])})
    (low, _), (high, nearest) = (
        closest(train, [target], {target.id})[target.id] for train in ([apart], [apart, together])
    )
    assert low < 0.25 < 0.4 < high < 0.6
    assert nearest == together.id


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("1: a = 1\n12:     b = 2", " a = 1\n     b = 2"),
        ('\\u0430\\n\\"x\\\\"', 'a\n"x"'),
        ("\u0440\u0430rse\u200b_\u0406d\u2014\u201cA\u201d", 'parse_id-"a"'),
    ],
)
def test_a_text_is_read_without_what_hides_a_copy(text, read):
    assert plain(text) == read


def test_a_text_of_marks_alone_is_read_in_time(make_task, target):
    start = time.process_time()
    hostile = ["`" * 100_000, "\\" * 100_000, "1 \t" * 50_000, ">" * 100_000, " " * 100_000]
    assert copied_rows({"row": hostile}, [target]) == {}
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize(("n", "share"), [(0, 0.5), (8, 0.0), (8, 1.1)])
def test_impossible_settings_are_refused(n, share):
    with pytest.raises(ValueError, match="n-grams"):
        near_copies([], [], n, share)

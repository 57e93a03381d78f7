"""Vectorised triage is the rules of `decide`, row by row, whatever the rows and the rules."""

from __future__ import annotations

import random
import types
from collections import Counter
from typing import Any, Literal, Union, get_args, get_origin

import pyarrow as pa
import pytest

from evals.rules import LISTS, NUMBERS, OPERATORS, ORDER, decide, load_rules
from evals.triage import columns_of, evidence_schema, first_match, triage, write_evidence
from schemas.bucket import Evidence, Route, Rule
from schemas.errors import InputError

RULES = load_rules()
WORDS = ("tampering", "protected_file", "forged_result", "solution.py")
FAMILIES = ("repair.value", "repair.condition", "lookup.table")


def some(annotation: Any, name: str, draw: random.Random) -> Any:
    """A value of a field's type, small enough that comparisons go both ways; None where it may be."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return draw.choice([some(part, name, draw) for part in parts])
    if origin is Literal:
        return draw.choice(parts)
    if origin is list:
        return draw.sample(WORDS, draw.randrange(3))
    if annotation is type(None):
        return None
    if annotation is bool:
        return draw.random() < 0.4
    if annotation is int:
        return draw.randrange(6)
    if annotation is float:
        return draw.choice([0.0, 0.25, 0.3, 0.5, 1.0])
    return draw.choice(FAMILIES) if name == "family" else draw.choice(WORDS)


def evidence(draw: random.Random) -> Evidence:
    return Evidence(**{n: some(field.annotation, n, draw) for n, field in Evidence.model_fields.items()})


def operand(name: str, operator: str, draw: random.Random) -> Any:
    value = some(Evidence.model_fields[name].annotation, name, draw)
    if operator in ORDER:
        return draw.choice([0, 1, 2, 0.3, 3, *sorted(NUMBERS)[:8]])
    if operator == "contains":
        return draw.choice([*WORDS, 1, None])
    return draw.choice(
        [[], [value], [value, None, True, 1], [some(Evidence.model_fields[name].annotation, name, draw), value]]
    )


def rule(number: int, draw: random.Random) -> Rule:
    when: dict[str, Any] = {}
    for name in draw.sample(sorted(Evidence.model_fields), draw.randrange(1, 3)):
        operators = [
            o for o in OPERATORS if (o not in ORDER or name in NUMBERS | LISTS) and (o != "contains" or name in LISTS)
        ]
        if draw.random() < 0.4:
            when[name] = draw.choice(
                [some(Evidence.model_fields[name].annotation, name, draw), None, True, False, 1, 0, "cpu", []]
            )
        else:
            when[name] = {
                o: operand(name, o, draw) for o in draw.sample(operators, draw.randrange(1, min(3, len(operators) + 1)))
            }
    return Rule(id=f"r{number}", cause=f"c{number}", route=Route.RL, when=when, because="random")  # fmt: skip


def last() -> Rule:
    return Rule(id="rest", cause="rest", route=Route.UNDETERMINED, when={}, because="rest")


def table_of(rows: list[Evidence]) -> Any:
    return pa.Table.from_pylist([row.model_dump(mode="json") for row in rows], schema=evidence_schema())


@pytest.mark.parametrize("seed", range(12))
def test_random_rules_decide_random_evidence_as_row_by_row(seed: int) -> None:
    """300 rows and 40 rules each; every operator, null, true against 1, lists."""
    draw = random.Random(seed)
    rows = [evidence(draw) for _ in range(300)]
    table = table_of(rows)
    for number in range(40):
        rules = [rule(number, draw), last()]
        found = [rules[i].id for i in first_match(table, rules)]
        assert found == [decide(row, rules).id for row in rows], rules[0].when


@pytest.mark.parametrize(
    ("when", "wanted"),
    [
        ({"parse_errors": True}, False),
        ({"truncated": 1}, True),
        ({"parse_errors": {"in": [True]}}, True),
        ({"pass_at_k": None}, True),
        ({"pass_at_k": {"le": 5}}, False),
        ({"first_bad_turn": {"in": [None]}}, False),
        ({"turns": {"gt": "first_bad_turn"}}, False),
        ({"violations": ["tampering"]}, True),
        ({"violations": {"ge": 2}}, False),
        ({"measured": {"contains": "rescore"}}, False),
        ({"turns": 2.0}, True),
    ],
)
def test_the_corners_of_a_comparison(when: dict[str, Any], wanted: bool) -> None:
    plain = evidence(random.Random(0)).model_copy(
        update={
            "parse_errors": 1, "truncated": True, "pass_at_k": None, "first_bad_turn": None, "turns": 2,
            "violations": ["tampering"], "measured": [],
        }
    )  # fmt: skip
    rules = [Rule(id="r", cause="c", route=Route.RL, when=when, because="x"), last()]
    assert decide(plain, rules).id == ("r" if wanted else "rest")
    assert first_match(table_of([plain]), rules).tolist() == [0 if wanted else 1]


def test_counts_are_those_of_the_buckets_over_files_and_row_groups(tmp_path: Any) -> None:
    draw = random.Random(1)
    rows = [evidence(draw) for _ in range(500)]
    assert write_evidence(tmp_path / "a.parquet", [rows[:200], rows[200:330]]) == 330
    assert write_evidence(tmp_path / "b.parquet", [rows[330:]]) == 170
    found = triage([tmp_path / "a.parquet", tmp_path / "b.parquet"], RULES, batch=64)
    assert found.counts == Counter((decide(row, RULES).cause, row.family) for row in rows)
    assert {name: n for name, n in found.rules.items() if n} == Counter(decide(row, RULES).id for row in rows)
    assert found.rows == 500
    assert len(found.counts) > 10


def test_a_row_that_no_rule_matches_and_a_column_that_is_not_there_are_refused(tmp_path: Any) -> None:
    import pyarrow.parquet as pq

    rows = [evidence(random.Random(2))]
    write_evidence(tmp_path / "a.parquet", [rows])
    never = Rule(id="r", cause="c", route=Route.RL, when={"turns": {"gt": 99}}, because="x")
    with pytest.raises(InputError, match="1 rows of evidence: none of 1 rules matches"):
        triage([tmp_path / "a.parquet"], [never])
    pq.write_table(table_of(rows).drop_columns(["turns"]), tmp_path / "old.parquet")
    with pytest.raises(InputError, match=r"old.parquet: no column turns"):
        triage([tmp_path / "old.parquet"], RULES)
    assert triage([], RULES).counts == {}


def test_only_the_columns_that_decide_are_read() -> None:
    compared = Rule(id="r", cause="c", route=Route.RL, when={"parse_errors": {"ge": "turns"}}, because="x")
    assert columns_of([compared, last()]) == ["family", "measured", "parse_errors", "turns"]

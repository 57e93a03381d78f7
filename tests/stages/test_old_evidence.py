"""Evidence of before a field was added: it is read, its table is triaged, and what it lacks is unknown, not zero."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from evals.evidence import collect
from evals.rules import check_rules, decide, load_rules
from evals.triage import evidence_fields, recorded, triage
from schemas.attribution import Attribution
from schemas.bucket import Rule
from schemas.task import Task
from schemas.trajectory import Attempt
from stages.attribute import likened
from stages.backflow import ATTRIBUTIONS, EVIDENCE, read_attributions, write_attributions
from stages.triage import _table

LATER = {"failed_tests", "similarity", "nearest_task"}
RULES = load_rules()


@pytest.fixture
def found(make_task: Callable[..., Task], make_attempt: Callable[..., Attempt]) -> list[Attribution]:
    tasks = [make_task("f"), make_task("g"), make_task("t", split="train")]
    attempts = [make_attempt(task, number) for task in tasks[:2] for number in range(3)]
    evidence = likened(collect(attempts, {task.id: task for task in tasks}, {}), tasks)
    decided = [(one, decide(one, RULES)) for one in evidence]
    return [
        Attribution(evidence=one, rule=rule.id, cause=rule.cause, route=rule.route, because=rule.because)
        for one, rule in decided
    ]


@pytest.fixture
def new(tmp_path: Path, found: list[Attribution]) -> Path:
    folder = tmp_path / "new"
    folder.mkdir()
    write_attributions(folder, found)
    return folder


@pytest.fixture
def old(tmp_path: Path, new: Path) -> Path:
    """The same as a version without the fields had written it."""
    folder = tmp_path / "old"
    folder.mkdir()
    rows = [json.loads(line) for line in (new / ATTRIBUTIONS).read_text().splitlines()]
    for row in rows:
        row["evidence"] = {name: value for name, value in row["evidence"].items() if name not in LATER}
    (folder / ATTRIBUTIONS).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    pq.write_table(pq.read_table(new / EVIDENCE).drop_columns(sorted(LATER)), folder / EVIDENCE)
    return folder


def asking(when: dict[str, object]) -> list[Rule]:
    return check_rules([{"id": "asked", "cause": "asked", "route": "rl", "when": when, "because": "b"}, *RULES])


def test_it_is_read_and_what_it_lacks_is_unknown(new: Path, old: Path, found: list[Attribution]) -> None:
    unknown = {"failed_tests": [], "similarity": None, "nearest_task": None}
    assert read_attributions(new) == found
    assert all(one.evidence.failed_tests == ["hidden_0"] for one in found)
    assert all(
        (one.evidence.similarity or 0.0) > 0 and one.evidence.nearest_task == "repair/t/arith_1" for one in found
    )
    assert [one.evidence for one in read_attributions(old)] == [
        one.evidence.model_copy(update=unknown) for one in found
    ]


def test_rules_of_then_read_the_old_table_and_new_ones_get_one_made_anew(
    new: Path, old: Path, tmp_path: Path, found: list[Attribution]
) -> None:
    made = tmp_path / "made.parquet"
    assert [_table(folder, RULES, made) for folder in (new, old)] == [new / EVIDENCE, old / EVIDENCE]
    assert triage([old / EVIDENCE, new / EVIDENCE], RULES).rows == 2 * len(found), "tables of both in one go"
    assert recorded([old / EVIDENCE]) == recorded([new / EVIDENCE])
    for when in (
        {"similarity": {"gt": 0}},
        {"failed_tests": {"contains": "hidden_0"}},
        {"nearest_task": "repair/t/arith_1"},
    ):
        rules = asking(when)
        tables = [_table(folder, rules, made) for folder in (new, old)]
        assert tables == [new / EVIDENCE, made]
        assert evidence_fields(made) >= LATER
        assert [triage([table], rules).rules["asked"] for table in tables] == [len(found), 0]

"""Preference pairs at a decision, and what keeps them from pushing one way only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evals.expectations import check_table, failures, pairs_frame
from schemas.bucket import Material, Route
from schemas.task import Split, Task
from schemas.trajectory import Attempt
from stages.context import Telemetry
from stages.pairs import Preference, _of_material, clean_pass, partner, write_pairs
from tests.small import attempt
from tests.small import task as make

NONE: Any = SimpleNamespace(telemetry=Telemetry(), spec=SimpleNamespace(seed=0))


def said(of: Task, number: int, passed: bool, *texts: str, **changes: Any) -> Attempt:
    """A rollout of so many turns with these texts; a pass submits."""
    made = attempt(of, number, passed, errors=(None,) * len(texts), submitted=passed, **changes)
    turns = [turn.model_copy(update={"text": text}) for turn, text in zip(made.trajectory.turns, texts, strict=True)]
    return made.model_copy(update={"trajectory": made.trajectory.model_copy(update={"turns": turns})})


def told(cause: str, amount: int = 8) -> Material:
    return Material(
        kind="pairs", bucket="0" * 12, route=Route.SFT, family="repair.value", amount=amount, cause=cause, approved=True
    )


def made_of(cause: str, named: list[Attempt], tasks: list[Task], amount: int = 8) -> list[Preference]:
    return _of_material(NONE, NONE, NONE, told(cause, amount), named, {task.id: task for task in tasks})


WHOLE = "```python\ndef f(x):\n    y = 1\n    return x + y\n```"


def test_what_stops_too_early_is_paired_with_a_stop_that_is_right() -> None:
    task = make(split=Split.TRAIN)
    named = [said(task, 1, False, "start"), said(task, 2, True, WHOLE)]
    decision, retention = made_of("stops_early", named, [task])
    assert (decision.kind, decision.chosen, decision.rejected) == ("decision", WHOLE, "start")
    assert (retention.kind, retention.chosen) == ("retention", WHOLE)
    assert retention.rejected == f"{WHOLE}\n\n{WHOLE}", "the same right answer, written on"
    assert decision.prompt == retention.prompt == [{"role": "user", "content": "x"}]


def test_what_never_stops_is_paired_with_a_going_on_that_is_right() -> None:
    task = make(split=Split.TRAIN)
    endless = said(task, 1, False, "on and on", truncated_turns=1)
    turns = [endless.trajectory.turns[0].model_copy(update={"stop": "length"})]
    endless = endless.model_copy(update={"trajectory": endless.trajectory.model_copy(update={"turns": turns})})
    decision, retention = made_of("never_stops", [endless, said(task, 2, True, WHOLE)], [task])
    assert (decision.chosen, decision.cut) == (WHOLE, True)
    assert retention.chosen == WHOLE
    assert WHOLE.startswith(retention.rejected), "the same right answer, broken off"
    assert retention.rejected != WHOLE
    assert not retention.cut


def test_a_rollout_of_many_turns_is_held_to_what_it_did_before() -> None:
    task = make(split=Split.TRAIN)
    passing = said(task, 2, True, "read", "edit", "submit")
    early = made_of("stops_early", [said(task, 1, False, "read", "submit"), passing], [task])
    assert [(p.kind, p.chosen, p.rejected) for p in early] == [
        ("decision", "edit", "submit"),
        ("retention", "submit", "edit"),
    ]
    late = made_of("never_stops", [said(task, 1, False, "read", "edit", "edit"), passing], [task])
    assert [(p.kind, p.chosen, p.rejected) for p in late] == [
        ("decision", "submit", "edit"),
        ("retention", "edit", "submit"),
    ]


def test_a_training_task_that_is_right_as_it_is_gives_pairs_of_the_boundary() -> None:
    intact = make("g", "intact_0", split=Split.TRAIN, made_by="intact")
    broken = make(split=Split.TRAIN)
    named = [
        said(intact, 1, False, "changed"), said(intact, 2, True, "as it is"), said(broken, 3, False, "start"),
        said(broken, 4, True, WHOLE),
    ]  # fmt: skip
    found = {pair.kind: pair for pair in made_of("returns_unchanged", named, [intact, broken])}
    assert (found["boundary"].chosen, found["boundary"].rejected) == ("as it is", "changed")
    assert (found["decision"].chosen, found["decision"].rejected) == (WHOLE, "start")


def test_a_partner_came_the_same_way_passed_and_took_a_clean_turn() -> None:
    task, other = make(split=Split.TRAIN), make("g", split=Split.TRAIN)
    failed = said(task, 1, False, "read", "submit")
    good = said(task, 2, True, "read", "edit")
    assert partner(failed, 1, [said(task, 3, True, "look", "edit"), said(other, 4, True, "read", "edit"), good]) == good
    assert partner(failed, 1, [said(task, 5, True, "read", "submit"), said(task, 6, True, "read")]) is None
    broken = good.trajectory.turns[1].model_copy(update={"tool_error": "no such line"})
    turns = [good.trajectory.turns[0], broken]
    refused = good.model_copy(update={"trajectory": good.trajectory.model_copy(update={"turns": turns})})
    assert partner(failed, 1, [refused]) is None
    assert clean_pass(good)
    assert not clean_pass(said(task, 7, True, "x", audit=False)), "a contested pass is not to be preferred"


def test_no_more_than_half_are_decisions_and_the_rest_holds_against_them() -> None:
    tasks = [make(f"f{n}", split=Split.TRAIN) for n in range(6)]
    named = [
        a for n, task in enumerate(tasks) for a in (said(task, n, False, "start"), said(task, n + 50, True, WHOLE))
    ]
    kinds = [pair.kind for pair in made_of("stops_early", named, tasks, amount=6)]
    assert (kinds.count("decision"), kinds.count("retention")) == (3, 3)


def test_rows_are_in_trls_format_and_a_bad_one_fails_the_table(tmp_path: Any) -> None:
    pytest.importorskip("trl")
    from trl.data_utils import is_conversational

    task = make(split=Split.TRAIN)
    pairs = made_of("stops_early", [said(task, 1, False, "start"), said(task, 2, True, WHOLE)], [task])
    rows = [pair.row() for pair in pairs]
    assert all(is_conversational(row) for row in rows)
    assert check_table("pairs", pairs_frame(rows))["success"]
    write_pairs(tmp_path, pairs)
    assert {path.name for path in tmp_path.iterdir()} == {"pairs.jsonl", "attempts.parquet", "edges.parquet"}
    for bad in ({"split": "dev"}, {"chosen": rows[0]["rejected"]}, {"kind": "other"}, {"id": rows[1]["id"]}):
        found = check_table("pairs", pairs_frame([{**rows[0], **bad}, rows[1]]))
        assert not found["success"], bad
        assert failures(found)

"""What a terminal shows: readable, and unable to be steered by what a model wrote."""

from __future__ import annotations

import dataclasses
import io
import re
import unicodedata
from collections import Counter

import pytest
from rich.console import Console, RenderableType
from rich.text import Text
from synthetic import attribution, make_view

from reports import tables
from reports.columns import Columns
from reports.view import RoundView
from schemas.attribution import Cost
from schemas.bucket import Route


def shown(what: RenderableType, *, colour: bool = False, width: int = 200) -> str:
    """As printed: with colour it holds rich's own escape sequences, and only those."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def looked_at(view: RoundView) -> RoundView:
    """With a sample attributed: three of four failures have an answer, one of them by attempts of a policy."""
    assert view.backflow is not None
    first, *rest = view.backflow.buckets
    buckets = [first.model_copy(update={"size_low": 14, "size_high": 26}), *rest]
    ladder = {"L0": Cost(experiments=9, executions=1257), "L2": Cost(experiments=4, attempts=44, tokens=7727)}
    said = [attribution(one, "some_pass", Route.RL) for one in view.attempts[:4]]
    quick = {"experiments": said[0].experiments[:1]}
    impossible = said[0].experiments[1].model_copy(update={"impossible": "no policy at hand"})
    said[1:3] = [said[1].model_copy(update=quick), said[2].model_copy(update={"experiments": [impossible]})]
    said[3] = said[3].model_copy(update={"undecided": ["checkpoint"]})
    backflow = view.backflow.model_copy(update={"buckets": buckets, "ladder": ladder})
    attributions = {one.trajectory: one for one in said}
    return dataclasses.replace(view, records={**view.records, "backflow": backflow}, attributions=attributions)


def renderables(view: RoundView) -> dict[str, RenderableType]:
    assert view.backflow is not None
    held = {attempt.trajectory.id: attempt for attempt in view.attempts}
    text = view.attempts[0].trajectory.turns[0].text
    return {
        "summary": tables.summary(view),
        "status": tables.status(view.history()),
        "failures": tables.failures(view.backflow.buckets, held, looked_at(view)),
        "matrix": tables.matrix(view),
        "attempt": tables.attempt(view.attempts[3]),
        "plan": tables.plan([tables.PlanRow(text, "run", text, {"seconds": 1.0})]),
    }


@pytest.mark.parametrize("name", ["summary", "status", "failures", "matrix", "attempt", "plan"])
def test_no_control_character_reaches_the_terminal(hostile_view: RoundView, name: str) -> None:
    what = renderables(hostile_view)[name]
    assert not {c for c in shown(what) if c != "\n" and unicodedata.category(c) in {"Cc", "Cf", "Cs"}}
    own = re.sub(r"\x1b\[[0-9;]*m", "", shown(what, colour=True))
    assert "\x1b" not in own
    shown(what).encode()


def test_markup_of_a_model_stays_text(hostile_view: RoundView) -> None:
    assert "[bold]x[/bold]" in shown(tables.attempt(hostile_view.attempts[0]))


def test_the_summary_has_intervals_gates_and_cost(view: RoundView) -> None:
    text = shown(tables.summary(view))
    assert "pass@1 0.457 [0.387, 0.527] n=192 (2 errors)" in text
    assert "against champion +0.127 [+0.058, +0.196] n=192" in text
    assert re.search(r"boundary +evaluation +NO-GO +.* → data should act", text)
    assert re.search(r"repairs_most +held_out +pass@1 +≥ 0.400 +.*not shown", text)
    assert "22 min 37 s, 310,517 prompt and 81,658 generated tokens, 3,966 sandbox executions" in text
    assert "4 infrastructure errors" in text


def test_status_is_one_line_a_round_and_a_dash_for_what_is_unknown() -> None:
    begun = make_view(rounds=1, stages=("goal", "data"))
    lines = shown(tables.status([begun, make_view()])).strip().splitlines()
    assert len(lines) == 3
    assert re.search(r"✓data ·sft .* – +2 GO +– +– +– / 0 ", lines[1])
    assert re.search(r"✓backflow +0.457 .* \d GO, NO-GO: boundary +not yet +yes +55 / 4", lines[2])
    assert "no round yet" in shown(tables.status([]))


def test_failures_name_size_share_route_rule_and_example(view: RoundView) -> None:
    assert view.backflow is not None
    text = shown(tables.failures(view.backflow.buckets, {a.trajectory.id: a for a in view.attempts}), width=140)
    assert re.search(r"never_solved +21/48 +0.44 +0.38 +data *\n +repair.offbyone +\[0.30, 0.58\]", text)
    assert re.search(
        r"never_solved in repair.offbyone\n +rule +no_pass_at_k *\n(.*\n)* +example +attribution-\w{8}: ", text
    )
    assert "goal (dec-0007)" in text
    assert "longest_run([0, 0]) gave 1, expected 2" in text
    assert "no failures" in shown(tables.failures([]))


def test_failures_show_bounds_the_first_bad_turn_and_what_each_rung_took(view: RoundView) -> None:
    seen = looked_at(view)
    assert seen.backflow is not None
    held = {one.trajectory.id: one for one in seen.attempts}
    text = shown(tables.failures(seen.backflow.buckets, held, seen), width=80)
    assert re.search(r"never_solved +21/48 +0.44.*\n +repair.offbyone +14–26 ", text)
    assert "0.58]" in text, "an interval is folded, never cut"
    assert "\n  bad turn  1 of 1: def longest_run(values):⏎" in text
    assert re.search(r"\nL0 +score again +9 +0 +1,257 +0 *\nL2 +let the policy go on +4 +44 +0 +7,727 *\n", text)
    assert "\n2 of 4 decided by the log, L0 and L1 alone, 1 with L2 or L3; 1 still open\n" in text
    assert "L1" not in shown(tables.failures(seen.backflow.buckets, held, view)), "nothing where none were made"


def test_the_matrix_has_a_column_a_round_and_fits_80_columns() -> None:
    view = make_view(rounds=7)
    older = view.previous
    assert older is not None
    assert older.backflow is not None
    fewer = older.backflow.model_copy(update={"buckets": older.backflow.buckets[1:]})
    gone = dataclasses.replace(view, previous=dataclasses.replace(older, records={"backflow": fewer}))
    lines = shown(tables.matrix(gone), width=80).splitlines()
    assert lines[0].split() == [
        "cause",
        "/",
        "family",
        "round",
        "3",
        "round",
        "4",
        "round",
        "5",
        "round",
        "6",
        "round",
        "7",
    ]
    assert lines[1].split() == ["never_solved", "21/48", "21/48", "21/48", "–", "21/48"]
    assert lines[2].split() == ["repair.offbyone", "treated", "treated", "treated", "treated"]
    assert lines[3].split() == ["shrank", "shrank", "shrank"], "what came later is known of the first three"
    assert max(map(len, lines)) <= 80
    assert "no bucket in any round" in shown(tables.matrix(make_view(rounds=1, stages=("goal",))))


@pytest.mark.parametrize("width", [80, 40, 12])
def test_a_narrow_terminal_gets_whole_words_and_loses_none(width: int) -> None:
    """Rich alone narrows in proportion, and folds an id in its middle."""
    rows = [("7d589d67de5c", "returns_unchanged in repair.condition", "infrastructure", "a longer reason")] * 2
    table = Columns("id", "cause", "route", "why")
    for row in rows:
        table.add_row(*map(Text, row))
    text = shown(table, width=width)
    assert max(map(len, text.splitlines())) <= width
    whole = " ".join((*("id", "cause", "route", "why"), *rows[0], *rows[1]))
    assert Counter("".join(text.split())) == Counter("".join(whole.split()))
    assert width < 80 or set(whole.split()) <= set(text.split())


def test_ids_give_way_last() -> None:
    row = (
        "attribution-9af32534b1c29f0e",
        "pass",
        "a/path/that/has/no/space/and/is/far/longer/than/the/terminal/is/wide",
    )
    for whole, kept in ((("attempt",), True), ((), False)):
        table = Columns("attempt", "is", "because", whole=whole)
        table.add_row(*map(Text, row))
        assert (row[0] in shown(table, width=48)) is kept


def test_a_cell_that_would_be_read_as_markup_is_refused() -> None:
    table = Columns("id")
    table.add_row("[bold]x[/bold]")
    with pytest.raises(TypeError, match="a cell is str, expected Text"):
        shown(table)


def test_a_transcript_reads_from_the_task_to_the_reward(view: RoundView) -> None:
    text = shown(tables.attempt(view.attempts[3]))
    order = [
        "repair the function",
        "model (2 tokens",
        "call",
        "observation",
        "turn 2",
        "outcome: solution.py",
        "verdict: failed",
        "reward 0.100",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "violation protected_file" in text
    assert "partial +0.100" in text


def test_a_plan_with_nothing_to_do_says_so() -> None:
    rows = [
        tables.PlanRow("goal", "up to date", "same key", {}),
        tables.PlanRow("sft", "run", "spec changed", {"seconds": 90.0, "tokens": None}),
    ]
    assert shown(tables.plan(rows[:1])).strip() == "up to date"
    text = shown(tables.plan(rows))
    assert re.search(r"sft +run +spec changed +1 min 30 s +–", text)
    assert re.search(r"all +1 min 30 s +–", text)

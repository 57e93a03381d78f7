"""The edit chain on the four cases that the routing table names, tool, harness, tokenizer and model, and the links between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from evals.chain import CUT, broken_link, round_trips
from schemas.base import digest_of
from schemas.task import Split
from schemas.trajectory import Purpose, Sampling, Trajectory, Turn
from schemas.verdict import Conduct

FILES = {"solution.py": "def f(x):\n    return x + 1\n"}
READ = {"name": "read_file", "arguments": {"path": "solution.py"}}
SHOWN = "1: def f(x):\n2:     return x + 1"
EDIT = {"path": "solution.py", "old": "return x + 1", "new": "return x - 1"}


class Bytes:
    """Ids are code points: a tokenizer that gives back all it took."""

    def raw(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    decode = raw

    def plain(self, text: str) -> str:
        return text


def turn(index: int, text: str, said: str, **fields: Any) -> Turn:
    """A turn after the environment said `said`; its tree is the start tree unless told otherwise."""
    rendered = f"<user>{said}<assistant>"
    return Turn(
        **{
            "index": index, "policy": "0" * 64, "messages": [{"role": "user", "content": said}], "rendered": rendered,
            "prompt_ids": list(map(ord, rendered)), "completion_ids": list(map(ord, text)), "logprobs": [0.0] * len(text),
            "text": text, "stop": "eos", "tree": digest_of(FILES), **fields,
        }
    )  # fmt: skip


def reading(**fields: Any) -> Turn:
    return turn(
        0,
        json.dumps({"tool": "read_file", "path": "solution.py"}),
        "repair f",
        **{"call": READ, "observation": SHOWN, **fields},
    )


def editing(said: str = SHOWN, call: dict[str, Any] = EDIT, **fields: Any) -> Turn:
    error = "the old text stands 0 times in solution.py, must be once"
    text = json.dumps({"tool": "replace_block", **call})
    return turn(1, text, said, **{"call": {"name": "replace_block", "arguments": call}, "tool_error": error, **fields})


def attempt(*turns: Turn) -> Trajectory:
    conduct = Conduct(turns=len(turns), tool_calls=len(turns), invalid_calls=0, generated_tokens=1, submitted=False)
    return Trajectory(
        id="rl-0", purpose=Purpose.RL, task_id="repair/f/arith_0", task="0" * 64, split=Split.TRAIN, family="repair.value",
        origin="f", harness="0" * 64, seed=0, sampling=Sampling(), status="done", turns=list(turns), stop="turn_limit",
        outcome={}, outcome_digest="0" * 64, conduct=conduct,
    )  # fmt: skip


def link(*turns: Turn) -> str | None:
    return broken_link(attempt(*turns), FILES, Bytes())


def test_an_edit_that_applied_has_no_broken_link():
    assert link(reading(), editing(tool_error=None)) is None


def test_the_model_asked_for_a_text_that_it_was_not_shown():
    assert link(reading(), editing(call={**EDIT, "old": "return x+1"})) == "model"


def test_the_tool_returned_another_text_than_the_file_holds():
    wrong = SHOWN.replace("x + 1", "x  + 1")
    assert link(reading(observation=wrong), editing(wrong, {**EDIT, "old": "return x  + 1"})) == "tool"


def test_the_tool_refused_a_match_that_is_there():
    assert link(reading(), editing()) == "tool"
    assert link(reading(), editing(tool_error="the tool timed out, try again")) == "tool"


def test_the_harness_put_another_text_into_the_message():
    changed = SHOWN.replace("+", "&plus;")
    edit = editing(changed, {**EDIT, "old": "return x &plus; 1"})
    assert link(reading(result=SHOWN, observation=changed), edit) == "harness"


def test_what_the_edit_needed_stood_behind_a_declared_cut():
    head = "1: def f(x):"
    cut = {"result": SHOWN, "observation": head + CUT, "observation_truncated": True}
    assert link(reading(**cut), editing(head + CUT, {**EDIT, "old": "return x + 1"})) == "cut"


def test_the_template_dropped_the_message():
    edit = editing(rendered="<user><assistant>", prompt_ids=list(map(ord, "<user><assistant>")))
    assert link(reading(), edit) == "template"


@pytest.mark.parametrize("field", ["prompt_ids", "completion_ids"])
def test_the_tokenizer_does_not_give_back_its_text(field: str):
    whole = editing(call={**EDIT, "old": "return x + 2"})
    lost = [number for number in getattr(whole, field) if chr(number) != " "]
    assert link(reading(), whole.model_copy(update={field: lost})) == "tokenizer"
    assert not round_trips(attempt(reading(), whole.model_copy(update={field: lost})), Bytes())


def test_the_harness_read_another_call_than_the_text_holds():
    read = {"name": "replace_block", "arguments": {**EDIT, "old": "return x + 2"}}
    assert link(reading(), editing().model_copy(update={"call": read})) == "parser"


def test_the_parser_refused_a_whole_call():
    refused = editing(tool_error=None, parse_error="no JSON object").model_copy(update={"call": None})
    assert link(reading(), refused) == "parser"


@pytest.mark.parametrize(
    "call",
    [
        {"tool": "replace_line", "path": "solution.py", "line": "2", "text": "x"},
        {"tool": "replace_line", "path": "solution.py", "line": True, "text": "x"},
        {"tool": "replace_line", "path": "solution.py", "line": 2},
        {"tool": "replace_block", "path": "solution.py", "old": "x"},
        {"tool": "replace_block", **EDIT, "why": "it is wrong"},
        {"tool": ["replace_block"], **EDIT},
    ],
)
def test_a_call_that_is_no_edit_is_the_models_protocol_and_no_link(call: dict[str, Any]):
    refused = editing(tool_error=None, parse_error="wrong arguments").model_copy(
        update={"call": None, "text": json.dumps(call), "completion_ids": list(map(ord, json.dumps(call)))}
    )
    assert link(reading(), refused) is None


def test_an_edit_that_was_refused_for_its_size_is_no_fault_of_the_tool():
    assert link(reading(), editing(tool_error="the new text has 200000 characters, at most 100000")) == "model"


def test_the_tree_is_not_what_the_calls_before_made_of_it():
    first = turn(
        0, json.dumps({"tool": "replace_block", **EDIT}), "repair f",
        call={"name": "replace_block", "arguments": EDIT}, observation="Done.", tree=digest_of(FILES),
    )  # fmt: skip
    assert link(first, editing("Done.", {**EDIT, "old": "return x - 1"})) == "file"


def test_a_call_of_any_shape_breaks_nothing():
    for call in (
        {"name": "replace_block", "arguments": []},
        {"name": 3},
        {},
        {"name": "replace_line", "arguments": {"path": 1}},
    ):
        broken = reading(call=call, tool_error="odd")
        link(broken, editing())
        link(editing().model_copy(update={"index": 0, "call": call}))

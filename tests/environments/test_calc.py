"""No line that a model writes may keep the calculator, and with it every other attempt of the harness, waiting."""

from __future__ import annotations

import time

import pytest

from environments.bundles import Bundle, builtin
from environments.sources.lookup import lookup_tasks
from schemas.task import Split

HOSTILE = ["round(7, -10000000)", "round(7.5, 10**9)", "9**9**9", "2**64**64", "sum([9**60]*9)", "(" * 190 + "1"]


@pytest.mark.parametrize("expression", HOSTILE)
def test_a_hostile_expression_is_answered_at_once(expression: str) -> None:
    task = lookup_tasks(0, lambda origin: Split.TRAIN, 1)[0]
    with Bundle(builtin("fenced"), timeout_s=5) as harness:
        harness.ask({"op": "start", "id": "a", "task": task.public(), "options": {"max_turns": 2, "max_tool_calls": 4}})
        began = time.monotonic()
        reply = harness.ask({"op": "act", "id": "a", "text": f"```calc\n{expression}\n```", "stop": "eos"})
        assert time.monotonic() - began < 1
        assert reply["event"]["tool_error"]

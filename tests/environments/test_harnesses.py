"""Conversations with the two harnesses, walked by hand through the real sandbox."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.bundles import Bundle, builtin
from environments.engines import Engine, open_engine
from environments.image import Image, build_image
from schemas.execution import Execution, Limits
from schemas.task import Case, Split, Task

BROKEN = "def add(a, b):\n    return a - b\n"
FIXED = "def add(a, b):\n    return a + b\n"
SHOWN = [Case(args=[0, 0], expected=0), Case(args=[1, 2], expected=3)]
FENCED_FIX = f"```python\n{FIXED}```"


def repair(**changes: Any) -> Task:
    base: dict[str, Any] = {
        "id": "repair/add/1", "kind": "function", "family": "repair.operator", "skill": "repair", "origin": "add",
        "split": Split.TRAIN, "statement": "add must return the sum of a and b.",
        "files": {"solution.py": BROKEN, "notes.txt": "do not touch\n"}, "editable": ["solution.py"], "entry": "add",
        "visible": [*SHOWN, Case(args=["a", 1], raises="TypeError")],
        "hidden": [Case(args=[8675309, 2], expected=8675311)],
        "gold": {"solution.py": FIXED}, "wrong": {}, "made_by": "hand",
    }  # fmt: skip
    return Task(**{**base, **changes})


def question(skill: str, **changes: Any) -> Task:
    return repair(
        id=f"{skill}/q/1", kind="answer", skill=skill, family=skill, statement="What is 12 * 149?", files={},
        editable=["answer.txt"], entry=None, visible=[], hidden=[], answer="1788", match="number", gold={}, **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sandbox() -> tuple[Engine, Image]:
    return open_engine("bubblewrap"), build_image(Path(tempfile.gettempdir()) / "postloop-test-images")


class Conversation:
    """The host's half: answers a wish for an execution with its result."""

    def __init__(self, bundle: Bundle, sandbox: tuple[Engine, Image], task: Task, **options: Any) -> None:
        self.bundle, (self.engine, self.image), self.id = bundle, sandbox, bundle.fresh_id()
        self.executions: list[Execution] = []
        self.first = self._take({"op": "start", "id": self.id, "task": task.public(), "options": options})

    def say(self, text: str) -> dict[str, Any]:
        return self._take({"op": "act", "id": self.id, "text": text, "stop": "eos"})

    def _take(self, request: dict[str, Any]) -> dict[str, Any]:
        reply = self.bundle.ask(request)
        while "execute" in reply:
            execution = Execution.model_validate(reply["execute"])
            self.executions.append(execution)
            result = self.engine.run(self.image.root, self.image.environment, execution, Limits(cpu_s=2)).result
            reply = self.bundle.ask({"op": "observe", "id": self.id, "result": result.model_dump(mode="json")})
        return reply


@pytest.fixture
def fenced() -> Iterator[Bundle]:
    with Bundle(builtin("fenced")) as bundle:
        yield bundle


@pytest.fixture
def tools() -> Iterator[Bundle]:
    with Bundle(builtin("tools")) as bundle:
        yield bundle


def test_fenced_repair_from_the_first_prompt_to_the_submission(fenced: Bundle, sandbox: Any) -> None:
    talk = Conversation(fenced, sandbox, repair(), max_turns=3)
    system, user = talk.first["messages"]
    assert system == {"role": "system", "content": "Reply with the whole corrected function in a ```python block."}
    assert user["content"] == f"```python\n{BROKEN}```\n`assert add(1, 2) == 3` failed: got -1."

    reply = talk.say("```python\ndef add(a, b):\n    return a * b\n```")
    observation = "`assert add(1, 2) == 3` failed: got 2. Reply with the whole corrected function."
    assert reply["messages"] == [{"role": "user", "content": observation}]
    assert reply["event"]["visible"] == {"passed": 1, "failed": 2, "first": "`assert add(1, 2) == 3` failed: got 2."}

    reply = talk.say(f"Here it is:\n{FENCED_FIX}\nIt adds.")
    assert (reply["done"], reply["stop"], reply["files"]) == (True, "submitted", {"solution.py": FIXED})
    assert reply["event"]["call"] == {"name": "write", "arguments": {"path": "solution.py"}}
    assert reply["event"]["visible"] == {"passed": 3, "failed": 0, "first": None}


def test_fenced_says_so_when_nothing_is_broken_and_takes_it_back_unchanged(fenced: Bundle, sandbox: Any) -> None:
    talk = Conversation(fenced, sandbox, repair(files={"solution.py": FIXED}))
    assert talk.first["messages"][1]["content"].endswith("```\nAll visible tests pass.")
    reply = talk.say(FENCED_FIX)
    assert (reply["stop"], reply["files"]) == ("submitted", {})


def test_no_hidden_case_is_in_anything_that_the_model_or_the_sandbox_sees(fenced: Bundle, sandbox: Any) -> None:
    talk = Conversation(fenced, sandbox, repair())
    reply = talk.say("```\ndef add(a, b):\n    return 7\n```")
    seen = str([talk.first, reply, [execution.model_dump() for execution in talk.executions]])
    assert "86753" not in seen


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (FIXED, "no ```python block"),
        (f"```python\n{FIXED}", "the ```python block has no end"),
        ("```python\nadd = sum\n```", "no `def add(` in the block"),
        ("", "no ```python block"),
    ],
)
def test_a_parse_error_comes_back_and_uses_up_a_turn(fenced: Bundle, sandbox: Any, text: str, problem: str) -> None:
    talk = Conversation(fenced, sandbox, repair(), max_turns=2)
    reply = talk.say(text)
    assert reply["event"]["parse_error"] == problem
    assert reply["messages"][0]["content"].startswith(f"Error: {problem}. Reply with")
    last = talk.say(text)
    assert (last["done"], last["stop"], last["files"]) == (True, "parse_limit", {})


@pytest.mark.parametrize("opening", ["```python\n", "```py\n", "```\n", "``` Python\r\n"])
def test_the_language_tag_may_be_missing(fenced: Bundle, sandbox: Any, opening: str) -> None:
    assert Conversation(fenced, sandbox, repair()).say(f"{opening}{FIXED}```")["stop"] == "submitted"


def test_the_turn_limit_keeps_what_was_written_last(fenced: Bundle, sandbox: Any) -> None:
    reply = Conversation(fenced, sandbox, repair(), max_turns=1).say("```python\ndef add(a, b):\n    return 1\n```")
    assert (reply["stop"], reply["files"]) == ("turn_limit", {"solution.py": "def add(a, b):\n    return 1\n"})


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("def add(a, b):\n    return nope\n", "failed: raised NameError."),
        ("def add(a, b):\n    return a +\n", "failed: SyntaxError."),
        ("def add(a, b):\n    while True:\n        pass\n", "failed: timed out."),
        ("import os\nos._exit(0)\ndef add(a, b):\n    return 1\n", "failed: no result."),
        ("def add(a, b):\n    return [None, 1.5, 'x', (1,), {'k': 2}]\n", "[None, 1.5, 'x', (1,), {'k': 2}]."),
        ("def add(a, b):\n    return {1}\n", "got a set."),
        ("import os\nos.write(1, b'visible [1]\\nvisible {\"i\": []}\\n')\ndef add(a, b):\n    return 1\n", "got 1."),
    ],
)
def test_whatever_the_code_does_the_observation_is_one_short_line(
    fenced: Bundle, sandbox: Any, code: str, seen: str
) -> None:
    reply = Conversation(fenced, sandbox, repair()).say(f"```python\n{code}```")
    observation = reply["messages"][0]["content"]
    assert seen in observation
    assert "\n" not in observation


def test_a_hint_stands_in_the_prompt(fenced: Bundle, sandbox: Any) -> None:
    assert (
        Conversation(fenced, sandbox, repair(), hint="look at line 2")
        .first["messages"][1]["content"]
        .endswith("\nHint: look at line 2")
    )


def test_fenced_lookup_computes_and_then_answers(fenced: Bundle, sandbox: Any) -> None:
    talk = Conversation(fenced, sandbox, question("lookup"), max_turns=2)
    assert talk.first["messages"] == [
        {"role": "system", "content": "Use ```calc blocks to compute, then reply Answer: NUMBER."},
        {"role": "user", "content": "What is 12 * 149?"},
    ]
    reply = talk.say("```calc\n12 * 149\n```\nAnswer: 5")  # what follows the first action is not read
    assert reply["messages"] == [{"role": "user", "content": "Result: 1788"}]
    assert reply["event"]["call"] == {"name": "calc", "arguments": {"expression": "12 * 149"}}
    reply = talk.say("Answer: 1788")
    assert (reply["stop"], reply["files"]) == ("submitted", {"answer.txt": "1788"})
    assert talk.executions == []


@pytest.mark.parametrize(
    ("expression", "observation"),
    [
        ("7 / 2", "3.5"), ("sum([1, 2, 3]) - 10 // 3", "3"), ("round(2 / 3, 2)", "0.67"), ("-2 ** 2", "-4"),
        ("6 / 2", "3"), ("9 ** 9 ** 9", "Error: exponent above 64."), ("10 ** 64", "more than 60 digits"),
        ("1 / 0", "division by zero"), ("__import__('os').getcwd()", "only numbers"), ("(1).real", "only numbers"),
        ("1 +", "not an arithmetic expression"), ("(" * 300, "not an arithmetic expression"), ("", "empty"),
        ("1 + " * 200 + "1", "longer than 400"), ("max()", "no finite number"), ("1j", "only numbers"),
        ("(-8) ** 0.5", "no finite number"),
    ],
)  # fmt: skip
def test_the_calculator_computes_arithmetic_and_nothing_else(
    fenced: Bundle, sandbox: Any, expression: str, observation: str
) -> None:
    reply = Conversation(fenced, sandbox, question("lookup")).say(f"```calc\n{expression}\n```")
    assert observation in reply["messages"][0]["content"]


def test_the_call_limit_ends_a_calculation_without_an_answer(fenced: Bundle, sandbox: Any) -> None:
    talk = Conversation(fenced, sandbox, question("lookup"), max_turns=9, max_tool_calls=1)
    talk.say("```calc\n1\n```")
    reply = talk.say("```calc\n2\n```")
    assert (reply["stop"], reply["files"]) == ("call_limit", {})


@pytest.mark.parametrize("name", ["fenced", "tools"])
def test_an_instruction_is_answered_in_plain_words(name: str, sandbox: Any) -> None:
    with Bundle(builtin(name)) as bundle:
        talk = Conversation(bundle, sandbox, question("instruction"))
        assert talk.first["messages"] == [{"role": "user", "content": "What is 12 * 149?"}]
        reply = talk.say(" It is 1788.\n")
    assert (reply["done"], reply["stop"], reply["files"]) == (True, "submitted", {"answer.txt": "It is 1788."})


def test_tools_read_run_edit_run_and_submit(tools: Bundle, sandbox: Any) -> None:
    talk = Conversation(tools, sandbox, repair(), max_turns=8)
    assert '{"tool": "replace_line", "path": "...", "line": 1, "text": "..."}' in talk.first["messages"][0]["content"]
    assert talk.first["messages"][1]["content"] == "add must return the sum of a and b.\nFiles: notes.txt, solution.py"

    said = talk.say('{"tool": "read_file", "path": "solution.py"}')["messages"][0]["content"]
    assert said == "1: def add(a, b):\n2:     return a - b"
    reply = talk.say('```json\n{"tool": "run_tests"}\n```')
    assert reply["event"]["visible"]["passed"] == 2
    assert "assert -1 == 3" in reply["event"]["visible"]["first"]
    assert reply["messages"][0]["content"].endswith("2 passed, 1 failed")

    talk.say('{"tool": "replace_line", "path": "solution.py", "line": 2, "text": "    return a * b"}')
    reply = talk.say('{"tool": "replace_block", "path": "solution.py", "old": "a * b", "new": "a + b"}')
    assert reply["event"]["files"] == {"solution.py": FIXED}
    assert talk.say('{"tool": "run_tests"}')["event"]["visible"] == {"passed": 3, "failed": 0, "first": None}
    reply = talk.say('{"tool": "submit"}')
    assert (reply["done"], reply["stop"], reply["files"]) == (True, "submitted", {"solution.py": FIXED})


@pytest.mark.parametrize(
    ("text", "error", "chain"),
    [
        ("I would edit line 2.", "no JSON object", {"parsed": False, "matched": None}),
        ('{"tool": "read_file", "path": ', "not a JSON object that can be read", {"parsed": False, "matched": None}),
        ('{"tool": "calc", "expression": "1"}', '"tool" must be one of', {"parsed": True, "matched": None}),
        ('{"tool": ["read_file"]}', '"tool" must be one of', {"parsed": True, "matched": None}),
        (
            '{"tool": "replace_line", "path": "solution.py", "line": "2", "text": ""}',
            'needs "line", a whole number',
            {"parsed": True, "matched": "replace_line"},
        ),
        ('{"tool": "submit", "force": true}', 'takes no "force"', {"parsed": True, "matched": "submit"}),
        ('{"tool": "read_file", "path": "\\ud800"}', "not a JSON object that can be read", {"parsed": False}),
        ('{"a":' * 5000, "not a JSON object that can be read", {"parsed": False}),
    ],
)
def test_tools_say_where_the_chain_broke(
    tools: Bundle, sandbox: Any, text: str, error: str, chain: dict[str, object]
) -> None:
    event = Conversation(tools, sandbox, repair()).say(text)["event"]
    assert error in event["parse_error"]
    assert chain.items() <= event["chain"].items()
    assert event["chain"]["executed"] is False


@pytest.mark.parametrize(
    ("call", "forbidden", "error"),
    [
        ('"replace_line", "path": "notes.txt", "line": 1, "text": "x"', True, "notes.txt is protected"),
        ('"read_file", "path": "../../etc/passwd"', True, "outside the working tree"),
        ('"read_file", "path": "/tests/test_hidden.py"', True, "outside the working tree"),
        ('"read_file", "path": "other.py"', False, "no file other.py"),
        ('"replace_line", "path": "solution.py", "line": 3, "text": "x"', False, "lines 1 to 2, not 3"),
        ('"replace_block", "path": "solution.py", "old": "a", "new": "b"', False, "stands 3 times"),
        ('"replace_block", "path": "solution.py", "old": "", "new": "b"', False, "stands 0 times"),
    ],
)
def test_tools_refuse_what_lies_outside(tools: Bundle, sandbox: Any, call: str, forbidden: bool, error: str) -> None:
    reply = Conversation(tools, sandbox, repair()).say(f'{{"tool": {call}}}')
    assert error in reply["event"]["tool_error"]
    assert (reply["event"]["forbidden"] is not None) is forbidden
    assert reply["event"]["files"] == {}
    assert error in reply["messages"][0]["content"]


def test_tools_cut_long_observations_and_end_at_their_limits(tools: Bundle, sandbox: Any) -> None:
    long = repair(files={"solution.py": BROKEN + "# filler\n" * 500})
    talk = Conversation(tools, sandbox, long, max_turns=9, max_tool_calls=2)
    reply = talk.say('{"tool": "read_file", "path": "solution.py"}')
    assert reply["event"]["observation_truncated"] is True
    assert reply["messages"][0]["content"].endswith("[cut]")
    assert len(reply["messages"][0]["content"]) < 700
    talk.say('{"tool": "replace_line", "path": "solution.py", "line": 2, "text": "    return 1"}')
    reply = talk.say('{"tool": "run_tests"}')
    assert reply["stop"] == "call_limit"
    assert "return 1" in reply["files"]["solution.py"]


def test_tools_answer_a_calculation_through_submit(tools: Bundle, sandbox: Any) -> None:
    talk = Conversation(tools, sandbox, question("lookup"))
    assert talk.say('{"tool": "calc", "expression": "12*149"}')["messages"][0]["content"] == "Result: 1788"
    assert talk.say('{"tool": "submit", "answer": "1788"}')["files"] == {"answer.txt": "1788"}


def test_sessions_are_apart_and_end(fenced: Bundle, sandbox: Any) -> None:
    one = Conversation(fenced, sandbox, question("lookup"), max_turns=1)
    two = Conversation(fenced, sandbox, question("instruction"))
    assert one.say("Answer: 1")["files"] == {"answer.txt": "1"}
    assert two.say("Answer: 1")["files"] == {"answer.txt": "Answer: 1"}
    assert fenced.ask({"op": "end", "id": two.id}) == {"id": two.id}

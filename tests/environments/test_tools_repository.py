"""The tools in a repository, and the calls by which a scripted policy solves such a task through them."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.bundles import Bundle, builtin
from environments.engines import Engine, open_engine
from environments.image import Image, build_image
from environments.toolcalls import edit_calls
from evals.verify import Verifier
from schemas.execution import Execution, Limits
from schemas.task import Split, Task

CORE = '''"""Prices."""

RATES = {"a": 1, "b": 2}


def price(kind, count):
    if count < 0:
        raise ValueError("count")
    return RATES[kind] + count


def total(items):
    result = 0
    for kind, count in items:
        result += price(kind, count)
    return result
'''
FIXED = CORE.replace("RATES[kind] + count", "RATES[kind] * count")
VISIBLE = "import pytest\n\nfrom shop import core\n\n\ndef test_price():\n    assert core.price('b', 3) == 6\n\n\n"
VISIBLE += "def test_refuses():\n    with pytest.raises(ValueError):\n        core.price('a', -1)\n"
HIDDEN = "from shop.core import total\n\n\ndef test_total():\n    assert total([('a', 2), ('b', 4)]) == 10\n\n\n"
HIDDEN += "def test_nothing():\n    assert total([]) == 0\n"
FILES = {
    "README.md": "A shop.\n", "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--no-such-option'\n",
    "src/shop/__init__.py": "", "src/shop/core.py": CORE, "tests/test_core.py": VISIBLE,
}  # fmt: skip


def shop(**changes: Any) -> Task:
    base: dict[str, Any] = {
        "id": "repository/shop/1", "kind": "repository", "family": "repair.repository", "skill": "repair",
        "origin": "shop", "split": Split.TRAIN, "statement": "price adds where it must multiply.", "files": FILES,
        "editable": ["src/shop/core.py", "src/shop/extra.py"], "tests": {"tests/test_total.py": HIDDEN},
        "f2p": ["tests/test_total.py::test_total"], "p2p": ["tests/test_total.py::test_nothing"],
        "gold": {"src/shop/core.py": FIXED}, "wrong": {"src/shop/core.py": CORE.replace("+ count", "- count")},
        "made_by": "hand",
    }  # fmt: skip
    return Task(**{**base, **changes})


@pytest.fixture(scope="module")
def sandbox() -> tuple[Engine, Image]:
    return open_engine("bubblewrap"), build_image(Path(tempfile.gettempdir()) / "postloop-test-images")


@pytest.fixture(scope="module")
def tools() -> Iterator[Bundle]:
    with Bundle(builtin("tools")) as bundle:
        yield bundle


class Conversation:
    """The host's half: answers a wish for an execution with its result."""

    def __init__(self, bundle: Bundle, sandbox: tuple[Engine, Image], task: Task, **options: Any) -> None:
        self.bundle, (self.engine, self.image), self.id = bundle, sandbox, bundle.fresh_id()
        self.first = self._take({"op": "start", "id": self.id, "task": task.public(), "options": options})

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        text = json.dumps({"tool": tool, **arguments})
        return self._take({"op": "act", "id": self.id, "text": text, "stop": "eos"})

    def said(self, tool: str, **arguments: Any) -> str:
        return str(self.call(tool, **arguments)["messages"][0]["content"])

    def _take(self, request: dict[str, Any]) -> dict[str, Any]:
        reply = self.bundle.ask(request)
        while "execute" in reply:
            execution = Execution.model_validate(reply["execute"])
            result = self.engine.run(
                self.image.root, self.image.environment, execution, Limits(cpu_s=4, wall_s=60)
            ).result
            reply = self.bundle.ask({"op": "observe", "id": self.id, "result": result.model_dump(mode="json")})
        return reply


@pytest.fixture
def talk(tools: Bundle, sandbox: tuple[Engine, Image]) -> Conversation:
    return Conversation(tools, sandbox, shop(), max_turns=20, max_tool_calls=20)


def test_the_prompt_names_the_tools_and_what_may_change_but_nothing_hidden(talk: Conversation) -> None:
    system, user = (message["content"] for message in talk.first["messages"])
    assert '{"tool": "read_file", "path": "...", "start": 1, "end": 1}' in system
    assert '{"tool": "write_file", "path": "...", "text": "..."}' in system
    assert user.splitlines() == [
        "price adds where it must multiply.", "5 files. You may change: src/shop/core.py, src/shop/extra.py",
    ]  # fmt: skip
    assert "test_total" not in system + user


def test_looking_around(talk: Conversation) -> None:
    assert talk.said("list_files").splitlines()[3:] == [
        "src/shop/core.py (16 lines, editable)", "tests/test_core.py (12 lines)",
    ]  # fmt: skip
    assert talk.said("list_files", path="tests") == "tests/test_core.py (12 lines)"
    assert talk.said("list_files", path="nowhere") == "no such files"
    assert talk.said("search", text="count < 0") == "src/shop/core.py:7: if count < 0:"
    assert talk.said("search", text="price", path="tests").splitlines() == [
        "tests/test_core.py:6: def test_price():", "tests/test_core.py:7: assert core.price('b', 3) == 6",
        "tests/test_core.py:12: core.price('a', -1)",
    ]  # fmt: skip
    assert talk.said("search", text="multiply") == "not found"
    assert talk.said("read_file", path="README.md") == "1: A shop."
    excerpt = "6: def price(kind, count):\n7:     if count < 0:\n[lines 6 to 7 of 16]"
    assert talk.said("read_file", path="src/shop/core.py", start=6, end=7) == excerpt


def test_the_visible_tests_run_in_the_agents_tree(talk: Conversation) -> None:
    """Whatever the project's own options are."""
    reply = talk.call("run_tests")
    assert reply["event"]["visible"]["passed"] == 1
    failure, counts = reply["messages"][0]["content"].splitlines()
    assert failure.startswith("tests/test_core.py::test_price - AssertionError: assert 5 == 6")
    assert counts == "1 passed, 1 failed"
    talk.call("replace_line", path="src/shop/core.py", line=9, text="    return RATES[kind] * count")
    assert talk.call("run_tests", path="tests/test_core.py")["event"]["visible"] == {
        "passed": 2,
        "failed": 0,
        "first": None,
    }
    talk.call("write_file", path="src/shop/core.py", text="import nothing_like_it\n")
    reply = talk.call("run_tests")
    assert reply["event"]["visible"]["failed"] == 1
    assert "ModuleNotFoundError" in reply["messages"][0]["content"]
    talk.call("write_file", path="src/shop/core.py", text="while True:\n    pass\n")
    assert talk.said("run_tests") == "the tests timed out"


@pytest.mark.parametrize(
    ("tool", "arguments", "forbidden", "error"),
    [
        ("write_file", {"path": "tests/test_core.py", "text": ""}, True, "tests/test_core.py is protected"),
        ("write_file", {"path": "conftest.py", "text": ""}, True, "conftest.py is protected"),
        ("write_file", {"path": "../x.py", "text": ""}, True, "outside the working tree"),
        ("replace_line", {"path": "README.md", "line": 1, "text": "x"}, True, "README.md is protected"),
        ("replace_block", {"path": "src/shop/extra.py", "old": "a", "new": "b"}, False, "no file src/shop/extra.py"),
        ("run_tests", {"path": "tests/test_total.py"}, False, "no file tests/test_total.py"),
        ("run_tests", {"path": "/etc/passwd"}, True, "outside the working tree"),
        ("search", {"text": " "}, False, "nothing to search for"),
        ("read_file", {"path": "src/shop/core.py", "start": "1"}, None, 'takes no "start" of this kind'),
        ("calc", {"expression": "1"}, None, '"tool" must be one of list_files'),
    ],
)  # fmt: skip
def test_what_the_tools_refuse(
    talk: Conversation, tool: str, arguments: dict[str, Any], forbidden: bool | None, error: str
) -> None:
    event = talk.call(tool, **arguments)["event"]
    assert error in (event["tool_error"] or event["parse_error"])
    assert (event["forbidden"] is not None) is bool(forbidden)
    assert event["files"] == {}


def test_a_new_file_where_it_may_be_made(talk: Conversation) -> None:
    reply = talk.call("write_file", path="src/shop/extra.py", text="X = 1\n")
    assert reply["event"]["files"] == {"src/shop/extra.py": "X = 1\n"}


def test_observations_are_bounded(tools: Bundle, sandbox: tuple[Engine, Image]) -> None:
    long = "".join(f"value_{number} = 'some text that fills a line' * {number}\n" for number in range(3000))
    tests = (
        "import pytest\n\n\n@pytest.mark.parametrize('x', range(200))\ndef test_x(x):\n    assert x < 0, 'no' * 500\n"
    )
    many = {f"docs/page_{number:04}.txt": "value_1 " * 300 + "\n" for number in range(300)}
    task = shop(files={**FILES, **many, "src/shop/core.py": long, "tests/test_core.py": tests})
    talk = Conversation(tools, sandbox, task, max_turns=20, max_tool_calls=20)
    for tool, arguments in (
        ("read_file", {"path": "src/shop/core.py"}), ("read_file", {"path": "src/shop/core.py", "start": 1, "end": 3000}),
        ("read_file", {"path": "docs/page_0001.txt"}), ("list_files", {}), ("search", {"text": "value_1"}), ("run_tests", {}),
    ):  # fmt: skip
        assert 0 < len(talk.said(tool, **arguments)) < 2100, tool
    assert talk.said("read_file", path="src/shop/core.py", start=2999) == (
        "2999: value_2998 = 'some text that fills a line' * 2998\n3000: value_2999 = 'some text that fills a line' * 2999\n"
        "[lines 2999 to 3000 of 3000]"
    )


# --- calls that reach an outcome -----------------------------------------------------------------------------------


def applied(start: dict[str, str], calls: list[dict[str, str]]) -> dict[str, str]:
    tree = dict(start)
    for call in calls:
        if call["tool"] == "write_file":
            tree[call["path"]] = call["text"]
        else:
            assert tree[call["path"]].count(call["old"]) == 1
            tree[call["path"]] = tree[call["path"]].replace(call["old"], call["new"])
    return tree


@pytest.mark.parametrize("outcome", ["gold", "wrong"])
def test_a_scripted_policy_reaches_the_outcome_through_the_tools(
    tools: Bundle, sandbox: tuple[Engine, Image], outcome: str
) -> None:
    task = shop()
    wanted: dict[str, str] = getattr(task, outcome)
    talk = Conversation(tools, sandbox, task, max_turns=20, max_tool_calls=20)
    for call in edit_calls(task.files, wanted):
        assert talk.said(**call) == "Done."
    reply = talk.call("submit")
    assert (reply["stop"], reply["files"]) == ("submitted", wanted)
    engine, image = sandbox
    with Bundle(builtin("repository")) as bundle:
        verifier = Verifier(bundle, image.environment, image.root, engine, Limits(cpu_s=8, wall_s=60))
        assert verifier.judge_many([(task, reply["files"])])[0].passed is (outcome == "gold")


def test_calls_are_small_and_one_for_each_change() -> None:
    after = FIXED.replace('"b": 2', '"b": 3').replace("result = 0", "result = 0  # sum")
    calls = edit_calls(
        FILES, {"src/shop/core.py": after, "README.md": FILES["README.md"], "src/shop/extra.py": "X = 1\n"}
    )
    assert [(call["tool"], call["path"]) for call in calls] == [
        ("replace_block", "src/shop/core.py"), ("replace_block", "src/shop/core.py"),
        ("replace_block", "src/shop/core.py"), ("write_file", "src/shop/extra.py"),
    ]  # fmt: skip
    assert calls[1] == {
        "tool": "replace_block", "path": "src/shop/core.py", "old": "    return RATES[kind] + count\n",
        "new": "    return RATES[kind] * count\n",
    }  # fmt: skip
    assert applied(FILES, calls)["src/shop/core.py"] == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "a\n"), ("a\n", ""), ("a\na\na\n", "a\nb\na\n"), ("a\n" * 50, "a\n" * 25 + "b\n" + "a\n" * 25), ("a", "a\n"),
        ("x\r\ny\r\n", "x\r\nz\r\n"), ("a\nb\n", "b\na\n"), ("aaa", "aa"), ("\n\n\n", "\n\n"), ("a\n\nb\n", "\na\n\nb\n"),
    ],
)  # fmt: skip
def test_calls_give_the_outcome_in_odd_cases(before: str, after: str) -> None:
    assert applied({"x": before}, edit_calls({"x": before}, {"x": after})) == {"x": after}


def test_calls_give_the_outcome_of_any_edit() -> None:
    """Seeded: random edits of a repetitive text."""
    rng = random.Random(3)
    for _ in range(300):
        lines = [rng.choice("abcd\n") + "\n" for _ in range(rng.randrange(30))]
        edited = [rng.choice("abcde") + "\n" if rng.random() < 0.2 else line for line in lines if rng.random() < 0.9]
        before, after = "".join(lines), "".join(edited)
        assert applied({"x": before}, edit_calls({"x": before}, {"x": after})) == {"x": after}

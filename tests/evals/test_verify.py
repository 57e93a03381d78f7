"""Verifiers judge what came out, and nothing that an attempt writes, prints or patches changes that."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.bundles import Bundle, builtin
from environments.engines import Engine, Outcome, open_engine
from environments.image import Image, build_image
from evals.verify import Verifier
from schemas.errors import SandboxError
from schemas.execution import Environment, Execution, ExecutionResult, Limits, Stop
from schemas.task import Case, Split, Task
from schemas.verdict import Status, Verdict

BROKEN = "def add(a, b):\n    return a - b\n"
FIXED = "def add(a, b):\n    return a + b\n"
LIMITS = Limits(cpu_s=1.5, wall_s=10, memory_mb=128)
FORGED_LINES = """
import json, os, sys
frame = sys._getframe()
while frame and "channel" not in frame.f_locals:
    frame = frame.f_back
if frame:
    for value in range(100):
        line = json.dumps({"i": 0, "value": ["i", hex(value)]})
        os.write(frame.f_locals["channel"], f"\\n{frame.f_locals['nonce']} {line}\\n".encode())
def add(a, b):
    return 0
"""
# Each is a cheat: none computes a + b for the hidden cases. `kind` is the violation it must be named as, if any.
CHEATS: dict[str, tuple[str, str | None]] = {
    "sys.exit at import": ("import sys\nsys.exit(0)\n", None),
    "os._exit at import": ("import os\nos._exit(0)\n", None),
    "os._exit in the call": ("import os\ndef add(a, b):\n    os._exit(0)\n", None),
    "an int equal to everything": (
        "class E(int):\n    def __eq__(self, other):\n        return True\n    def __ne__(self, other):\n"
        "        return False\n    __hash__ = int.__hash__\ndef add(a, b):\n    return E()\n",
        "not_primitive",
    ),
    "an object equal to everything, with a borrowed name": (
        "class E:\n    def __eq__(self, other):\n        return True\nE.__module__ = 'builtins'\n"
        "def add(a, b):\n    return E()\n",
        None,
    ),
    "a str subclass": ("class S(str):\n    pass\ndef add(a, b):\n    return S('4')\n", "not_primitive"),
    "a class that lies about itself": (
        "class M(type):\n    def __eq__(self, other):\n        return True\n    def __hash__(self):\n"
        "        return hash(int)\nclass E(metaclass=M):\n    __class__ = int\ndef add(a, b):\n    return E()\n",
        "not_primitive",
    ),
    "an exception of a builtin's name": (
        "class TypeError(Exception):\n    pass\ndef add(a, b):\n    raise TypeError()\n",
        None,
    ),
    "a forged summary on stdout": ("print('4 passed in 0.01s', flush=True)\ndef add(a, b):\n    return 0\n", None),
    "result lines with the nonce from the frames": (FORGED_LINES, "forged_result"),
    "a line for a case that does not exist": (FORGED_LINES.replace('"i": 0', '"i": 99'), "forged_result"),
    "a result line that is no result": (FORGED_LINES.replace('"i": 0', '"j": 0'), "forged_result"),
    "an endless loop": ("def add(a, b):\n    while True:\n        pass\n", None),
    "a memory bomb": ("def add(a, b):\n    x = []\n    while True:\n        x.append(bytearray(1 << 24))\n", None),
    "an endless print": ("def add(a, b):\n    while True:\n        print('4' * 1000)\n", None),
    "patched json and builtins": (
        "import json, builtins\njson.dumps = lambda *a, **k: '{\"end\": 1}'\nbuiltins.repr = lambda x: '4'\n"
        "builtins.type = lambda x: int\ndef add(a, b):\n    return a - b\n",
        None,
    ),
    "NaN": ("def add(a, b):\n    return float('nan')\n", None),
    "infinity": ("def add(a, b):\n    return float('inf')\n", None),
    "True for 1, a float for an int": ("def add(a, b):\n    return True if a + b == 1 else float(a + b)\n", None),
    "a value that contains itself": ("def add(a, b):\n    x = []\n    x.append(x)\n    return x\n", None),
    "reading expected values from /tests": (
        "import re, os\ntext = ''.join(open('/tests/' + n).read() for n in os.listdir('/tests'))\n"
        "found = re.findall(r'8675311', text)\ndef add(a, b):\n    return int(found[0])\n",
        None,
    ),
    "the visible cases as a table": ("def add(a, b):\n    return {(1, 2): 3, (0, 0): 0}[a, b]\n", None),
    "not Python": ("def add(a, b)\n    return a + b\n", None),
    "another function": ("def sub(a, b):\n    return a + b\n", None),
    "nothing": ("", None),
}


def task(**changes: Any) -> Task:
    hidden = [Case(args=[8675309, 2], expected=8675311), Case(args=[5, 0], expected=5), Case(args=[0, 1], expected=1)]
    base: dict[str, Any] = {
        "id": "repair/add/1", "kind": "function", "family": "repair.operator", "skill": "repair", "origin": "add",
        "split": Split.TRAIN, "statement": "add must return the sum of a and b.", "files": {"solution.py": BROKEN},
        "editable": ["solution.py"], "entry": "add", "visible": [Case(args=[1, 2], expected=3)],
        "hidden": [*hidden, Case(args=["a", 1], raises="TypeError")],
        "gold": {"solution.py": FIXED}, "wrong": {}, "made_by": "hand",
    }  # fmt: skip
    return Task(**{**base, **changes})


def returning(code: str, expected: Any) -> tuple[Task, dict[str, str]]:
    """A task whose one hidden case wants `expected`, and an attempt that evaluates `code`."""
    wanted = task(hidden=[Case(args=[1, 2], expected=expected)])
    return wanted, {"solution.py": f"def add(a, b):\n    return {code}\n"}


@pytest.fixture(scope="module")
def image() -> Image:
    return build_image(Path(tempfile.gettempdir()) / "postloop-test-images")


@pytest.fixture(scope="module")
def cases(image: Image) -> Iterator[Verifier]:
    with Bundle(builtin("cases")) as bundle:
        yield Verifier(bundle, image.environment, image.root, open_engine("bubblewrap"), LIMITS)


@pytest.fixture(scope="module")
def audit(image: Image) -> Iterator[Verifier]:
    with Bundle(builtin("pytest_files")) as bundle:
        limits = Limits(cpu_s=4, memory_mb=128)
        yield Verifier(bundle, image.environment, image.root, open_engine("bubblewrap"), limits, role="audit")


def judge(verifier: Verifier, outcome: dict[str, str], about: Task | None = None) -> Verdict:
    return verifier.judge_many([(about or task(), outcome)])[0]


def kinds(verdict: Verdict) -> set[str]:
    return {violation.kind for violation in verdict.violations}


@pytest.mark.parametrize("name", ["cases", "audit"])
def test_gold_passes_the_start_tree_does_not_and_roles_say_what_was_broken(
    name: str, request: pytest.FixtureRequest
) -> None:
    verifier: Verifier = request.getfixturevalue(name)
    gold, start = judge(verifier, {"solution.py": FIXED}), judge(verifier, {})
    assert (gold.status, gold.passed, gold.score, gold.violations) == (Status.SCORED, True, 1.0, [])
    assert [check.role for check in gold.checks] == ["f2p", "p2p", "f2p", "p2p"]
    assert (start.passed, start.score) == (False, 0.5)
    assert [check.passed for check in start.checks] == [False, True, False, True]
    assert gold.role == verifier.role


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_fails_and_is_scored_as_a_failure(cases: Verifier, name: str) -> None:
    code, kind = CHEATS[name]
    verdict = judge(cases, {"solution.py": code})
    assert (verdict.status, verdict.passed) == (Status.SCORED, False), verdict
    assert not any(check.passed for check in verdict.checks if check.role == "f2p") or kind == "forged_result"
    assert kinds(verdict) == ({kind} if kind else set()), verdict.violations


@pytest.mark.parametrize(
    "code",
    [
        f"import sys, os, json\nprint('working')\n{FIXED}",
        "class Total(int):\n    pass\ndef add(a, b):\n    return int(Total(a + b))\n",
        "from functools import lru_cache\n@lru_cache\ndef add(a, b):\n    return a + b\n",
        "def add(a, b):\n    print('4 passed', flush=True)\n    return a + b\n",
        "import atexit\natexit.register(lambda: 1 / 0)\n" + FIXED,
    ],
)
def test_an_honest_twin_passes_both(cases: Verifier, audit: Verifier, code: str) -> None:
    for verifier in (cases, audit):
        verdict = judge(verifier, {"solution.py": code})
        assert verdict.passed, verdict
        assert verdict.violations == []


@pytest.mark.parametrize(
    ("code", "limit"),
    [(CHEATS["an endless loop"][0], "cpu"), (CHEATS["a memory bomb"][0], "memory")],
)
def test_what_the_attempt_exhausts_is_its_own_failure(cases: Verifier, code: str, limit: str) -> None:
    verdict = judge(cases, {"solution.py": code})
    assert verdict.status is Status.SCORED
    if verdict.limit_hit is None:  # the allocation was refused first: the call raised MemoryError and the rest went on
        assert limit == "memory"
        assert "MemoryError" in verdict.checks[0].detail
    else:
        assert verdict.limit_hit == limit


@pytest.mark.parametrize("name", ["cases", "audit"])
def test_only_editable_files_reach_the_fresh_tree(name: str, request: pytest.FixtureRequest) -> None:
    verifier: Verifier = request.getfixturevalue(name)
    conftest = "def pytest_runtest_makereport(item, call):\n    raise SystemExit(0)\n"
    verdict = judge(verifier, {"solution.py": FIXED, "conftest.py": conftest, "json.py": "", "../tests/run.py": ""})
    assert kinds(verdict) == {"protected_file"}
    assert len(verdict.violations) == 3
    assert (verdict.passed, verdict.score) == (False, 1.0)


def test_a_file_that_cannot_fit_is_a_failure_of_the_attempt(cases: Verifier) -> None:
    verdict = judge(cases, {"solution.py": FIXED + "#" * (32 << 20)})
    assert (verdict.status, verdict.score) == (Status.SCORED, 0.0)


@pytest.mark.parametrize(
    ("code", "expected", "passed"),
    [
        ("3", 3, True), ("3.0", 3, False), ("True", 1, False), ("1", True, False), ("None", None, True),
        ("0.1 + 0.2", 0.3, True), ("0.3001", 0.3, False), ("-0.0", 0.0, True), ("3", 3.0, False), ("'3'", 3, False),
        ("[1, [2.0, None]]", [1, [2.0, None]], True), ("(1, 2)", [1, 2], False), ("[1, 2, 3]", [1, 2], False),
        ("{'b': [], 'a': 1}", {"a": 1, "b": []}, True), ("{'a': 1, 'c': 2}", {"a": 1, "b": 2}, False),
        ("{1: 1}", {"1": 1}, False), ("'\\ud800'", "?", False), ("'ä\\n😀'", "ä\n😀", True), ("10 ** 30", 10**30, True),
        ("10 ** 9999", 1, False), ("'x' * 10 ** 6", "x", False), ("iter([1])", [1], False),
        ("float('nan')", 0.5, False),
    ],
)  # fmt: skip
def test_values_are_compared_by_type_and_value(cases: Verifier, code: str, expected: Any, passed: bool) -> None:
    about, outcome = returning(code, expected)
    verdict = judge(cases, outcome, about)
    assert (verdict.status, verdict.passed, verdict.violations) == (Status.SCORED, passed, [])


def test_each_case_gets_its_own_arguments(cases: Verifier) -> None:
    about = task(hidden=[Case(args=[[1], 2], expected=[1, 2]), Case(args=[[1], 2], expected=[1, 2])])
    assert judge(cases, {"solution.py": "def add(a, b):\n    a.append(b)\n    return a\n"}, about).passed


@pytest.mark.parametrize(
    ("match", "answer", "text", "passed"),
    [
        ("number", "1788", "The answer is 1,788.", True), ("number", "1788", "12 * 149 = 1788.0", True),
        ("number", "1788", "1788 or 1789", False), ("number", "-3", "-3", True), ("number", "3", "nan", False),
        ("number", "3", "", False), ("number", "0.5", "It is 0.5000001", True), ("exact", "Paris", " paris\n", True),
        ("exact", "Paris", "Paris, France", False), ("contains", "Paris", "It is PARIS.", True),
        ("contains", "art", "It is Paris, a party.", False), ("contains", "Paris", "Paris " * 100, False),
        ("number", "7", "1e999", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["cases", "audit"])
def test_answers_are_compared_as_the_task_says(
    name: str, request: pytest.FixtureRequest, match: Any, answer: str, text: str, passed: bool
) -> None:
    about = task(kind="answer", answer=answer, match=match, editable=["answer.txt"], entry=None, hidden=[], files={})
    verdict = judge(request.getfixturevalue(name), {"answer.txt": text}, about)
    assert (verdict.passed, [check.role for check in verdict.checks]) == (passed, ["answer"])


PATCHED_REPORTS = """
try:
    from _pytest.reports import TestReport
    original = TestReport.from_item_and_call.__func__
    def forged(cls, item, call):
        report = original(cls, item, call)
        report.outcome, report.longrepr = "passed", None
        return report
    TestReport.from_item_and_call = classmethod(forged)
except ImportError:
    pass
def add(a, b):
    return 0
"""
PATCHED_TESTS = """
import sys
frame = sys._getframe()
while frame:
    if "same" in frame.f_globals:
        frame.f_globals["same"] = lambda got, wanted: True
    frame = frame.f_back
def add(a, b):
    return 0
"""


@pytest.mark.parametrize("code", [PATCHED_REPORTS, PATCHED_TESTS], ids=["reports", "comparison"])
def test_the_sentinels_of_the_audit_catch_tampering_with_pytest(audit: Verifier, cases: Verifier, code: str) -> None:
    verdict = judge(audit, {"solution.py": code})
    assert verdict.passed is False
    assert kinds(verdict) == {"tampering"}
    assert judge(cases, {"solution.py": code}).passed is False


@pytest.mark.parametrize("expected", [4, "on", True, [1, 2], {"a": 1}, 2.0**40, None], ids=repr)
def test_the_sentinels_of_the_audit_accuse_no_honest_attempt(audit: Verifier, expected: Any) -> None:
    """Neither the right value nor, when it is wrong, the very value that the decoy expects: chance decides which it is."""
    sys.path.insert(0, str(builtin("pytest_files")))
    try:
        from generate import changed  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    for value, passed in ((expected, True), (changed(expected), False)):
        about, outcome = returning(repr(value), expected)
        verdict = judge(audit, outcome, about)
        assert (verdict.passed, verdict.violations) == (passed, [])


@pytest.mark.parametrize("name", ["os._exit at import", "an int equal to everything", "a forged summary on stdout"])
def test_the_audit_agrees_on_plain_cheats(audit: Verifier, name: str) -> None:
    assert judge(audit, {"solution.py": CHEATS[name][0]}).passed is False


def test_the_same_key_gives_the_same_verdict_and_a_repeat_judges_again(cases: Verifier) -> None:
    one, two = cases.judge_many([(task(), {"solution.py": FIXED}), (task(), {"solution.py": FIXED})])
    assert one is two
    again = cases.judge_many([(task(), {"solution.py": FIXED})], repeat=1)[0]
    assert again.repeat == 1
    assert again.model_copy(update={"repeat": 0}).digest() == one.digest()


class Counting:
    """An engine that breaks the first `breaks` runs, or says wall for the first `walls`, and then is the real one."""

    name = "counting"

    def __init__(self, engine: Engine, breaks: int = 0, walls: int = 0) -> None:
        self.engine, self.breaks, self.walls, self.runs = engine, breaks, walls, 0

    def enforced(self) -> list[str]:
        return self.engine.enforced()

    def run(self, environment_root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        self.runs += 1
        if self.runs <= self.breaks:
            raise SandboxError("sandbox: it fell over; try again")
        if self.runs <= self.walls:
            return Outcome(ExecutionResult(stop=Stop.WALL, exit_code=None, stdout="", stderr=""), {})
        return self.engine.run(environment_root, environment, execution, limits)


@pytest.fixture
def counted(image: Image) -> Iterator[Any]:
    with Bundle(builtin("cases")) as bundle:

        def make(**breaks: int) -> tuple[Verifier, Counting]:
            engine = Counting(open_engine("bubblewrap"), **breaks)
            return Verifier(bundle, image.environment, image.root, engine, LIMITS, retries=2), engine

        yield make


def test_equal_executions_run_once_even_across_attempts(counted: Any) -> None:
    verifier, engine = counted()
    attempts = [(task(), {"solution.py": FIXED + f"# {n}\n"}) for n in range(3)]
    assert all(verdict.passed for verdict in verifier.judge_many([*attempts, *attempts]))
    assert engine.runs == 4  # three attempts and the start tree


def test_a_sandbox_that_recovers_is_retried_and_one_that_does_not_is_an_error_and_never_a_zero(counted: Any) -> None:
    verifier, _ = counted(breaks=2)
    assert judge(verifier, {"solution.py": FIXED}).passed
    verifier, engine = counted(breaks=9)  # the attempt, the start tree, and gold, which would show that others run
    verdict = judge(verifier, {"solution.py": FIXED + "#\n"})
    assert (verdict.status, verdict.score, verdict.passed) == (Status.ERROR, None, None)
    assert verdict.reason == "sandbox: it fell over; try again (tried 3 times)"
    assert judge(verifier, {"solution.py": FIXED + "#\n"}).passed  # an error is not remembered
    assert engine.runs > 3


def test_a_wall_time_out_counts_only_if_it_recurs(counted: Any) -> None:
    verifier, _ = counted(walls=1)
    assert judge(verifier, {"solution.py": FIXED}).passed
    verifier, _ = counted(walls=3)
    verdict = judge(verifier, {"solution.py": FIXED + "# slow\n"})
    assert (verdict.status, verdict.passed, verdict.limit_hit) == (Status.SCORED, False, "wall")


def test_a_verifier_that_dies_is_an_error_verdict(image: Image, tmp_path: Path) -> None:
    for file in builtin("cases").glob("*.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "main.py").write_text(
        (tmp_path / "main.py").read_text().replace("def results(request):", "def results(request):\n    os._exit(3)")
    )
    with Bundle(tmp_path) as bundle:
        verifier = Verifier(bundle, image.environment, image.root, open_engine("bubblewrap"), LIMITS)
        verdict = judge(verifier, {"solution.py": FIXED})
    assert verdict.status is Status.ERROR
    assert "ended before its answer" in (verdict.reason or "")

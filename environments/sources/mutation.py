"""Real code broken in one place: a function's syntax tree with one node replaced, printed again.

An operator is a class of mistake. `mutants` lists all that can be made of one function, in a fixed order; `outcomes`
and `killed_by` run them against cases in a child process. The code that runs there is our own with one fault, not
hostile: the child has limits on CPU, memory and wall time, and a budget of executed lines that ends endless loops at
the same point on every machine. It is no sandbox for code that a model wrote.
"""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import SandboxError
from schemas.task import Case

OPERATORS = ("arith", "boundary", "call", "compare", "index", "literal", "logic", "missing", "return", "swap")
CHILD = Path(__file__).with_name("_child.py")
WALL_S = 60.0
# A mutant that only ever fails in these ways is broken in its types: a fault nobody would have to look for.
CRUDE = frozenset({"TypeError", "NameError", "UnboundLocalError", "AttributeError", "SyntaxError", "RecursionError"})

_COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_ARITH: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
}
_CALLS = {
    "min": "max", "max": "min", "any": "all", "all": "any", "sum": "max", "lower": "upper", "upper": "lower",
    "lstrip": "rstrip", "rstrip": "lstrip", "strip": "lstrip", "startswith": "endswith", "endswith": "startswith",
    "ljust": "rjust", "rjust": "ljust", "find": "rfind", "rfind": "find", "isdigit": "isalpha", "isalpha": "isdigit",
    "isupper": "islower", "islower": "isupper", "keys": "values", "values": "keys", "title": "upper",
    "capitalize": "upper", "split": "rsplit", "extend": "append",
}  # fmt: skip
_UNWRAP = frozenset(
    {"abs", "sorted", "set", "reversed", "list", "str", "int", "round", "strip", "lower", "upper", "zfill"}
)
_STRINGS = {"": " ", " ": "", ",": ";", "-": "_", "_": "-", ":": "-", ".": ",", "=": ":", "0": "1", "*": "#", "/": "-"}


@dataclass(frozen=True)
class Mutant:
    """`number` counts the mutants of one operator in one function; the pair never changes while the function stands."""

    operator: str
    number: int
    entry: str
    source: str
    line: int


@dataclass(frozen=True)
class Outcome:
    """What cases say about one mutant: `failed` are indices; `hung` it used up its lines; `crude` see CRUDE."""

    failed: tuple[int, ...]
    hung: bool
    crude: bool

    @property
    def usable(self) -> bool:
        return bool(self.failed) and not self.hung and not self.crude


def mutants(source: str, entry: str) -> list[Mutant]:
    """All mutants of the function `entry`, in source order. ValueError if `source` is not that one function."""
    tree = ast.parse(source)
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef) or tree.body[0].name != entry:
        raise ValueError(f"{entry}: the source must hold this one function and nothing else")
    original = ast.unparse(tree) + "\n"
    seen = {original}
    found: list[tuple[int, int, str, str]] = []
    for line, column, operator, text in _changed(tree):
        if text not in seen:
            seen.add(text)
            found.append((line, column, operator, text))
    found.sort()
    counts = dict.fromkeys(OPERATORS, 0)
    out = []
    for line, _, operator, text in found:
        out.append(Mutant(operator, counts[operator], entry, text, line))
        counts[operator] += 1
    return out


def killed_by(mutant: Mutant, cases: Sequence[Case]) -> list[int]:
    """Indices of the cases that fail on the mutant; [] if none does or the mutant does not end."""
    outcome = outcomes([(mutant, cases)])[0]
    return [] if outcome.hung else list(outcome.failed)


def outcomes(jobs: Sequence[tuple[Mutant, Sequence[Case]]]) -> list[Outcome]:
    """Run every mutant on its cases, all in one child process; a mutant that kills the child counts as hung.

    SandboxError if the child cannot do even its first job.
    """
    done: list[Outcome] = []
    while len(done) < len(jobs):
        lines = _run_child(jobs[len(done) :])
        done += [_outcome(json.loads(line)) for line in lines]
        if len(done) < len(jobs):
            done.append(Outcome((), hung=True, crude=False))
    return done


def _run_child(jobs: Sequence[tuple[Mutant, Sequence[Case]]]) -> list[str]:
    request = "".join(
        json.dumps({"source": m.source, "entry": m.entry, "cases": [c.model_dump(mode="json") for c in cases]}) + "\n"
        for m, cases in jobs
    )
    argv = [sys.executable, "-I", str(CHILD)]
    try:
        result = subprocess.run(argv, input=request, capture_output=True, text=True, timeout=WALL_S, check=False)
        stdout, stderr = result.stdout, result.stderr
    except subprocess.TimeoutExpired as error:
        stdout, stderr = (
            part.decode() if isinstance(part, bytes) else part or "" for part in (error.stdout, error.stderr)
        )
    lines = stdout.splitlines(keepends=True)
    if not lines or lines[0] != "ready\n":
        raise SandboxError(
            f"mutants: the child process did not start: {stderr.strip()[-200:] or 'no output'}; run it again"
        )
    return [line for line in lines[1:] if line.endswith("\n")]


def _outcome(kinds: list[str]) -> Outcome:
    """`kinds` has per case: "" passed, "value" another value, "hung", or the name of the exception."""
    failed = tuple(i for i, kind in enumerate(kinds) if kind)
    crude = bool(failed) and all(kinds[i] in CRUDE for i in failed)
    return Outcome(failed, hung="hung" in kinds, crude=crude)


# ---- where a tree can be changed


def _changed(tree: ast.Module) -> Iterator[tuple[int, int, str, str]]:
    """(line, column, operator, the source with one change), in any order."""
    names = _local_names(tree)
    for parent in ast.walk(tree):
        if isinstance(parent, ast.comprehension) and parent.ifs:
            test = parent.ifs[0]
            yield test.lineno, test.col_offset, "missing", _printed(tree, parent, "ifs", parent.ifs[1:])
        for field, value in ast.iter_fields(parent):
            if isinstance(value, ast.expr):
                for operator, new in _expressions(value, parent, field, names):
                    yield value.lineno, value.col_offset, operator, _printed(tree, parent, field, new)
            elif isinstance(value, list):
                for i, item in enumerate(value):
                    if isinstance(item, ast.expr):
                        for operator, new in _expressions(item, parent, field, names):
                            items = [*value[:i], new, *value[i + 1 :]]
                            yield item.lineno, item.col_offset, operator, _printed(tree, parent, field, items)
                if value and isinstance(value[0], ast.stmt) and not isinstance(parent, ast.Module):
                    for line, operator, block in _blocks(value):
                        yield line, -1, operator, _printed(tree, parent, field, block)


def _printed(tree: ast.Module, parent: ast.AST, field: str, value: object) -> str:
    """The tree as source with another value in one field; the tree itself is left as it was."""
    original = getattr(parent, field)
    setattr(parent, field, value)
    try:
        return ast.unparse(tree) + "\n"
    finally:
        setattr(parent, field, original)


def _local_names(tree: ast.Module) -> list[str]:
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    names = [a.arg for a in function.args.args]
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in names:
            names.append(node.id)
    return names


# ---- changes of one expression: (operator, new expression)


def _expressions(node: ast.expr, parent: ast.AST, field: str, names: list[str]) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(getattr(node, "ctx", None), ast.Store) and not isinstance(node, ast.Subscript):
        return
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for op in _COMPARE.get(type(node.ops[0]), ()):
            yield "compare", ast.Compare(node.left, [op()], node.comparators)
    elif isinstance(node, ast.BinOp):
        yield from _binary(node, parent, field)
    elif isinstance(node, ast.Constant):
        yield from _constant(node, parent, field)
    elif isinstance(node, ast.BoolOp):
        yield "logic", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for i in range(len(node.values)):
            rest = node.values[:i] + node.values[i + 1 :]
            yield "logic", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        number = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if isinstance(number, int):
            yield from _negative(number, "index" if field == "slice" else "boundary")
        else:
            operator = "logic" if isinstance(node.op, ast.Not) else "return" if field == "value" else "arith"
            yield operator, node.operand
    elif isinstance(node, ast.IfExp):
        yield "swap", ast.IfExp(node.test, node.orelse, node.body)
        yield "return", node.body
    elif isinstance(node, ast.Call):
        yield from _call(node, parent, field)
    if field == "slice" and isinstance(node, ast.Name):
        yield "index", ast.BinOp(node, ast.Add(), ast.Constant(1))
        yield "index", ast.BinOp(node, ast.Sub(), ast.Constant(1))
    if _is_bound(parent, field) and isinstance(node, ast.Name | ast.Call | ast.Attribute):
        yield "boundary", ast.BinOp(node, ast.Add(), ast.Constant(1))
        yield "boundary", ast.BinOp(node, ast.Sub(), ast.Constant(1))
    if _is_test(parent, field) and not isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
        yield "logic", ast.UnaryOp(ast.Not(), node)
    if isinstance(parent, ast.Return):
        yield from _returned(node, names)


def _is_bound(parent: ast.AST, field: str) -> bool:
    """An end of a slice, or an argument of range()."""
    in_range = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "range"
    return (in_range and field == "args") or (isinstance(parent, ast.Slice) and field in ("lower", "upper"))


def _is_test(parent: ast.AST, field: str) -> bool:
    return (field == "test" and isinstance(parent, ast.If | ast.IfExp)) or (field == "ifs")


def _binary(node: ast.BinOp, parent: ast.AST, field: str) -> Iterator[tuple[str, ast.expr]]:
    small = isinstance(node.right, ast.Constant) and node.right.value == 1 and isinstance(node.op, ast.Add | ast.Sub)
    if small:
        yield "index" if field == "slice" else "boundary", node.left
    for op in _ARITH.get(type(node.op), ()):
        if not (small and op is ast.Mult):
            yield "arith", ast.BinOp(node.left, op(), node.right)
    if not isinstance(node.op, ast.Mult):
        yield "swap", ast.BinOp(node.right, node.op, node.left)


def _constant(node: ast.Constant, parent: ast.AST, field: str) -> Iterator[tuple[str, ast.expr]]:
    value = node.value
    if isinstance(value, bool):
        yield "literal", ast.Constant(not value)
    elif isinstance(value, int) and not (isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub)):
        index = field == "slice"
        changes = [value + 1, value - 1] if value > 0 else [1]
        if index and value == 0:
            changes.append(-1)
        for new in changes:
            vanishes = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add | ast.Sub) and new == 0
            divides = (
                isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.FloorDiv | ast.Mod | ast.Div) and new == 0
            )
            if not vanishes and not divides:
                yield "index" if index else "boundary", _number(new)
    elif isinstance(value, str) and field != "slice":
        new_text = _STRINGS.get(value)
        if new_text is not None:
            yield "literal", ast.Constant(new_text)
        elif value.swapcase() != value:
            yield "literal", ast.Constant(value.swapcase())


def _number(value: int) -> ast.expr:
    return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))


def _negative(size: int, operator: str) -> Iterator[tuple[str, ast.expr]]:
    """Neighbours of the constant -size; as an index also its mirror image 0 or size - 1."""
    yield operator, _number(-size - 1)
    if size > 1 or operator == "index":
        yield operator, _number(1 - size)
    if operator == "index" and size > 1:
        yield operator, _number(size - 1)


def _call(node: ast.Call, parent: ast.AST, field: str) -> Iterator[tuple[str, ast.expr]]:
    name = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
    if name in _CALLS:
        yield "call", ast.Call(_renamed(node.func, _CALLS[name]), node.args, node.keywords)
    if name == "append":
        yield "call", ast.Call(_renamed(node.func, "insert"), [ast.Constant(0), *node.args], [])
    if name == "sorted":
        kept = [k for k in node.keywords if k.arg != "reverse"]
        flipped = kept if len(kept) < len(node.keywords) else [*kept, ast.keyword("reverse", ast.Constant(True))]
        yield "call", ast.Call(node.func, node.args, flipped)
        if any(k.arg == "key" for k in node.keywords):
            yield "call", ast.Call(node.func, node.args, [k for k in node.keywords if k.arg != "key"])
    if name in _UNWRAP:
        inner = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0] if node.args else None
        if inner is not None:
            yield "call", inner
    if len(node.args) == 2 and name not in ("min", "max", "round", "insert"):
        yield "swap", ast.Call(node.func, node.args[::-1], node.keywords)
    if name in ("min", "max") and len(node.args) == 2:
        yield "call", node.args[0]
        yield "call", node.args[1]


def _renamed(func: ast.expr, name: str) -> ast.expr:
    if isinstance(func, ast.Attribute):
        return ast.Attribute(func.value, name, ast.Load())
    return ast.Name(name, ast.Load())


def _returned(node: ast.expr, names: list[str]) -> Iterator[tuple[str, ast.expr]]:
    """A wrong name, or only a part of what should come back."""
    if isinstance(node, ast.Name):
        for name in [name for name in names if name != node.id][:2]:
            yield "return", ast.Name(name, ast.Load())
    elif isinstance(node, ast.BinOp):
        yield "return", node.left
        yield "return", node.right
    elif isinstance(node, ast.Call) and node.args and not isinstance(node.args[0], ast.GeneratorExp):
        yield "return", node.args[0]
    elif isinstance(node, ast.Compare):
        yield "return", ast.UnaryOp(ast.Not(), node.left) if len(node.ops) > 1 else node.left
    elif isinstance(node, ast.List) and len(node.elts) == 2:
        yield "swap", ast.List(node.elts[::-1], ast.Load())


# ---- changes of one block: (line, operator, new block)


def _blocks(block: list[ast.stmt]) -> Iterator[tuple[int, str, list[ast.stmt]]]:
    for i, statement in enumerate(block):
        rest = block[i + 1 :]
        if isinstance(statement, ast.AugAssign):
            for op in _ARITH.get(type(statement.op), ()):
                new: ast.stmt = ast.AugAssign(statement.target, op(), statement.value)
                yield statement.lineno, "arith", [*block[:i], new, *rest]
            assign = ast.Assign([statement.target], statement.value, lineno=statement.lineno)
            yield statement.lineno, "missing", [*block[:i], assign, *rest]
        if isinstance(statement, ast.AugAssign | ast.Expr | ast.If) and len(block) > 1:
            yield statement.lineno, "missing", [*block[:i], *rest]
        if isinstance(statement, ast.If):
            yield from ((line, op, [*block[:i], *new_rest]) for line, op, new_rest in _branches(statement, rest))
        if isinstance(statement, ast.For | ast.While) and rest and isinstance(rest[0], ast.Return):
            early = copy.deepcopy(statement)
            early.body.append(rest[0])
            yield rest[0].lineno, "return", [*block[:i], early, *rest]
        if isinstance(statement, ast.Break):
            yield statement.lineno, "literal", [*block[:i], ast.Continue(), *rest]
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Tuple)
            and len(statement.value.elts) == 2
        ):
            swapped = ast.Assign(
                statement.targets, ast.Tuple(statement.value.elts[::-1], ast.Load()), lineno=statement.lineno
            )
            yield statement.lineno, "swap", [*block[:i], swapped, *rest]


def _branches(statement: ast.If, rest: list[ast.stmt]) -> Iterator[tuple[int, str, list[ast.stmt]]]:
    body, orelse = statement.body, statement.orelse
    if orelse and not (len(orelse) == 1 and isinstance(orelse[0], ast.If)):
        yield statement.lineno, "swap", [ast.If(statement.test, orelse, body), *rest]
    last = rest[0] if rest else None
    if not orelse and len(body) == 1 and isinstance(body[0], ast.Return) and isinstance(last, ast.Return):
        yield statement.lineno, "swap", [ast.If(statement.test, [last], []), body[0], *rest[1:]]

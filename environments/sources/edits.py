"""What changed between two versions of a Python file, in pieces that can be taken back one at a time.

A piece is a function with another body, a function that is new, or a stretch of lines outside of functions. Texts are cut
by the line numbers of the syntax tree, so all that is not part of a piece stays as its author wrote it.

Not covered: functions inside `if`, `try` or other functions, names that are defined twice (overloads, setters).
"""

from __future__ import annotations

import ast
import copy
import re
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple, cast

from environments.sources.mutation import mutants
from environments.sources.splits import order

Definition = ast.FunctionDef | ast.AsyncFunctionDef
_PARSING = threading.Lock()
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class Function(NamedTuple):
    """Lines `first` to `last` (0-based, `last` excluded), decorators included."""

    first: int
    last: int
    node: Definition


class Edit(NamedTuple):
    """`text` is the new file with one piece taken back: the start of a task whose answer is the new file."""

    kind: str  # changed | added | constant | file
    name: str  # the function, the assigned names, or nothing
    text: str


def lines_of(text: str) -> list[str]:
    """Lines with their ends, as the syntax tree counts them: only a newline ends one."""
    return _LINE.findall(text)


def parsed(text: str) -> ast.Module | None:
    """One at a time: on Python 3.11 two threads that parse disturb each other's count of the depth (SystemError, CPython issue
    106905), and proofs run on threads."""
    try:
        with _PARSING:
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def functions_of(text: str) -> dict[str, Function]:
    """Functions of the module and methods of its classes, by `name` or `Class.name`, that are defined once."""
    tree = parsed(text)
    found = list(definitions(tree)) if tree else []
    counts = Counter(name for name, _ in found)
    return {name: function for name, function in found if counts[name] == 1}


def definitions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """All of them, those that are defined twice too."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, Function(_first_line(node), node.end_lineno or node.lineno, node)
        elif isinstance(node, ast.ClassDef):
            yield from definitions(node, f"{prefix}{node.name}.")


def _first_line(node: Definition | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1


def behaves_alike(left: ast.AST, right: ast.AST) -> bool:
    """Equal but for docstrings, annotations and layout. What differs otherwise may still behave the same: tests tell."""
    one, other = (ast.dump(_Bare().visit(copy.deepcopy(node))) for node in (left, right))
    return one == other


def same_behaviour(old: str, new: str) -> bool:
    """Both are Python, and what differs is no behaviour."""
    left, right = parsed(old), parsed(new)
    return left is not None and right is not None and behaves_alike(left, right)


def stripped(tree: ast.Module) -> ast.Module:
    """The tree itself, without docstrings and annotations."""
    return cast(ast.Module, _Bare().visit(tree))


class _Bare(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


# --- pieces of a difference ------------------------------------------------------------------------------------------


def edits(old: str, new: str) -> list[Edit]:
    """Every piece of the difference, each taken back alone. Only texts that parse; in the order of the new file."""
    before, after = functions_of(old), functions_of(new)
    old_lines, new_lines = lines_of(old), lines_of(new)
    found = []
    for name, function in after.items():
        if name not in before:
            text = _without_body(new_lines, function)
            found += [Edit("added", name, text)] if text else []
        elif not behaves_alike(before[name].node, function.node):
            taken = old_lines[before[name].first : before[name].last]
            text = "".join([*new_lines[: function.first], *taken, *new_lines[function.last :]])
            found.append(Edit("changed", name, text))
    found += _outside(old_lines, new_lines, before, after)
    if len(found) > 1:
        found.append(Edit("file", "", old))
    return [edit for edit in found if edit.text != new and parsed(edit.text)]


def _without_body(lines: list[str], function: Function) -> str | None:
    """Signature and docstring stay. None for a body on the line of its `def`, or one that does nothing."""
    body = function.node.body
    documented = ast.get_docstring(function.node, clean=False) is not None
    rest = body[1:] if documented else body
    if not rest or body[0].lineno == function.node.lineno or all(isinstance(item, ast.Pass) for item in rest):
        return None
    keep = (body[0].end_lineno or 0) if documented else _body_line(rest[0]) - 1
    stub = " " * body[0].col_offset + "raise NotImplementedError\n"
    return "".join([*lines[:keep], stub, *lines[function.last :]])


def documented(function: Function) -> bool:
    return len(ast.get_docstring(function.node) or "") >= 30


def _body_line(node: ast.stmt) -> int:
    decorated = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return _first_line(node) + 1 if decorated else node.lineno  # type: ignore[arg-type]


def _outside(old: list[str], new: list[str], before: dict[str, Function], after: dict[str, Function]) -> list[Edit]:
    """Stretches that lie outside of all functions on both sides and are no mere comment."""
    inside_old, inside_new = _covered(before), _covered(after)
    found = []
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal" or inside_old & set(range(a, b)) or inside_new & set(range(c, d)):
            continue
        text = "".join([*new[:c], *old[a:b], *new[d:]])
        trees = parsed(text), parsed("".join(new))
        if trees[0] and trees[1] and not behaves_alike(trees[0], trees[1]):
            found.append(Edit("constant", _assigned(trees[1], c, max(d, c + 1)), text))
    return found


def _covered(functions: dict[str, Function]) -> set[int]:
    return {line for function in functions.values() for line in range(function.first, function.last)}


def _assigned(tree: ast.Module, first: int, last: int) -> str:
    """The name that the statement around these lines binds, or nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno - 1 < last and (node.end_lineno or 0) > first:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            return ast.unparse(target) if isinstance(target, ast.Name | ast.Attribute) else ""
    return ""


def changed_lines(old: str, new: str) -> int:
    """Lines removed and lines added."""
    codes = SequenceMatcher(None, lines_of(old), lines_of(new), autojunk=False).get_opcodes()
    return sum((b - a) + (d - c) for tag, a, b, c, d in codes if tag != "equal")


def added_lines(old: str, new: str) -> list[str]:
    left, right = lines_of(old), lines_of(new)
    codes = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    return [line for tag, _, _, c, d in codes if tag != "equal" for line in right[c:d]]


# --- edits that are plausible and wrong ------------------------------------------------------------------------------


def half_repairs(start: str, gold: str) -> Iterator[str]:
    """Gold with one of its stretches left as it was at the start."""
    old, new = lines_of(start), lines_of(gold)
    codes = [code for code in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if code[0] != "equal"]
    if len(codes) > 1:
        for _, a, b, c, d in codes:
            text = "".join([*new[:c], *old[a:b], *new[d:]])
            if text not in (start, gold) and parsed(text):
                yield text


def slips(start: str, gold: str, seed: int) -> Iterator[str]:
    """Gold with one small mistake in a function that the repair touches, in a shuffled order."""
    lines = lines_of(gold)
    touched = _touched(lines_of(start), lines)
    found = []
    for name, function in functions_of(gold).items():
        if touched & set(range(function.first, function.last)):
            found += [(order(seed, f"{name}:{text}"), text) for text in _mutated(lines, function)]
    yield from (text for _, text in sorted(found) if parsed(text))


def _touched(old: list[str], new: list[str]) -> set[int]:
    codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return {line for tag, _, _, c, d in codes if tag != "equal" for line in range(c, max(d, c + 1))}


def _mutated(lines: list[str], function: Function) -> Iterator[str]:
    source = textwrap.dedent("".join(lines[function.first : function.last]))
    try:
        with _PARSING:
            made = mutants(source, function.node.name)
    except (SyntaxError, ValueError, RecursionError):  # an async function, or a string that dedent spoils
        return
    indent = " " * function.node.col_offset
    for mutant in made:
        body = textwrap.indent(mutant.source, indent)
        yield "".join([*lines[: function.first], body, *lines[function.last :]])


# --- tests that must not be shown ------------------------------------------------------------------------------------


def without(text: str, names: set[str]) -> str | None:
    """The file without these functions (`name` or `Class.name`), or None if one of them is not found in it."""
    tree, functions = parsed(text), functions_of(text)
    if tree is None or not names <= functions.keys():
        return None
    gone = {line for name in names for line in range(functions[name].first, functions[name].last)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            body = {line for item in node.body for line in range(_body_line(item) - 1, item.end_lineno or 0)}
            if body <= gone:
                gone |= set(range(_first_line(node), node.end_lineno or 0))
    left = "".join(line for number, line in enumerate(lines_of(text)) if number not in gone)
    return left if parsed(left) else None

"""Parametrised tests: a decoy for each row whose expectation is a literal of the table.

pytest names such tests by their values, which would tell the real expectation. So where no ids are written, all rows
get plain ones, and the names that pytest would have given are computed here. They are used only when they account for
every test that matters.
"""

import ast
import itertools
from dataclasses import dataclass, field

from literals import scrambled_all, used_once

LONG = 100  # characters of a text from which on pytest may name it by its argument


@dataclass
class Rows:
    """`rows`: new name -> [(start, end, text)] of its decoy; `always`: such edits for every variant."""

    always: list[tuple[int, int, str]] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    rows: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)


def parametrized(source, function, names, rng):
    """Rows, or None when this test has no table of that form."""
    marks = [item for item in function.decorator_list if "parametrize" in source.text(item)]
    if len(marks) != 1 or not isinstance(marks[0], ast.Call) or len(marks[0].args) != 2:
        return None
    arguments, table = argument_names(marks[0].args[0]), marks[0].args[1]
    end = source.span(table)[1]
    if isinstance(table, ast.Name):
        table = source.constants.get(table.id)
    column = expected_column(function, arguments)
    rows = [row_of(row, len(arguments)) for row in table.elts] if isinstance(table, ast.List | ast.Tuple) else []
    ids = written_ids(marks[0].keywords, len(rows))
    if column is None or not rows or None in rows or ids is None:
        return None
    base = names[0].split("[")[0]
    if any(name.split("[")[0] != base for name in names):  # inherited by several classes
        return None
    given = [explicit or written for (_, explicit), written in zip(rows, ids or [None] * len(rows), strict=True)]
    new = [f"{base}[{item or f'c{index}'}]" for index, item in enumerate(given)]
    by_name = names_of(base, arguments, [values for values, _ in rows], given)
    if by_name is None or not set(names) <= by_name.keys():
        return None
    result = Rows(renamed={name: new[by_name[name]] for name in names})
    if not ids:
        result.always.append((end, end, f", ids={[f'c{index}' for index in range(len(rows))]!r}"))
    for name, (values, _) in zip(new, rows, strict=True):
        edits = scrambled_all(source, values[column], rng)  # for all rows, so that none depends on another
        if edits and name in result.renamed.values():
            result.rows[name] = edits
    return result


def argument_names(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [name.strip() for name in node.value.split(",") if name.strip()]
    if isinstance(node, ast.List | ast.Tuple) and all(isinstance(item, ast.Constant) for item in node.elts):
        return [item.value for item in node.elts]
    return []


def expected_column(function, arguments):
    """Number of the argument that stands alone on one side of an asserted equality, and nowhere else; else None."""
    for node in ast.walk(function):
        test = node.test if isinstance(node, ast.Assert) else None
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            for side in (test.comparators[0], test.left):
                if isinstance(side, ast.Name) and side.id in arguments and used_once(side.id, function):
                    return arguments.index(side.id)
    return None


def row_of(node, width):
    """(values, explicit id or None) of a row; None for another form."""
    given = None
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "param":
        ids = [item.value for item in node.keywords if item.arg == "id"]
        if ids and not (isinstance(ids[0], ast.Constant) and isinstance(ids[0].value, str)):
            return None
        given, values = (ids[0].value if ids else None), node.args
    elif width == 1:
        values = [node]
    else:
        values = node.elts if isinstance(node, ast.Tuple | ast.List) else []
    return (values, given) if len(values) == width else None


def written_ids(keywords, count):
    """The texts of `ids=[...]`; [] without one; None for ids that are computed."""
    if not keywords:
        return []
    if len(keywords) != 1 or keywords[0].arg != "ids" or not isinstance(keywords[0].value, ast.List | ast.Tuple):
        return None
    ids = [getattr(item, "value", None) for item in keywords[0].value.elts]
    return ids if len(ids) == count and all(isinstance(item, str) and item for item in ids) else None


def names_of(base, arguments, rows, given):
    """Names that pytest may give -> number of the row; None when two rows may have the same."""
    by_name = {}
    for index, (values, explicit) in enumerate(zip(rows, given, strict=True)):
        parts = [[explicit]] if explicit else [ids_of(*pair, index) for pair in zip(values, arguments, strict=True)]
        for choice in itertools.islice(itertools.product(*parts), 16):
            if by_name.setdefault(f"{base}[{'-'.join(choice)}]", index) != index:
                return None
    return by_name


def ids_of(node, argument, index):
    """What pytest may call a value: plain constants by their text, classes and functions by their name, else by number."""
    other = f"{argument}{index}"
    if isinstance(node, ast.Name | ast.Attribute):
        return [getattr(node, "attr", getattr(node, "id", "")), other]
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return [other]
    if isinstance(value, bytes):
        text = value.decode("ascii", "backslashreplace")
    elif isinstance(value, str):
        text = value.encode("unicode_escape").decode("ascii")
    else:
        return [str(value)] if value is None or isinstance(value, int | float | complex) else [other]
    return [text, other] if len(value) > LONG else [text]

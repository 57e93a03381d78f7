"""The project's own small pure functions: what repair tasks are made from.

Each module holds plain functions and a table `CASES = {name: (what it must do, [arguments, ...])}`. Arguments and
results are plain JSON values. Expected values are never written down: the function itself gives them. The source of a
function is what `ast.unparse` makes of it, so that a mutant differs from it in the broken place alone.

The modules of `reserved/` are in no data set: `functions()` does not have them, so nothing is trained, chosen or measured on
them before bench/planted.py draws from them.
"""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from schemas.base import Json, canonical

# Modules whose functions only ever measure: whoever changes a setting must not look at results on them.
SEALED = frozenset({"codes", "games", "kitchen", "logs", "measures", "music", "sports", "travel", "votes"})


@dataclass(frozen=True)
class Function:
    """One library function. `must` completes the sentence "NAME must ..."; `arguments` holds at least 8 rows."""

    name: str
    module: str
    source: str
    must: str
    arguments: tuple[list[Json], ...]
    call: Callable[..., object]

    @property
    def sealed(self) -> bool:
        return self.module in SEALED


@cache
def functions() -> dict[str, Function]:
    """Every function of the data sets by name, in order of module and name."""
    return _by_name(_of_package())


@cache
def reserved_functions() -> dict[str, Function]:
    """Every function that is in no data set."""
    return _by_name(_of_package("reserved."))


@cache
def every_function() -> dict[str, Function]:
    """Both: what a name stands for, wherever it comes from."""
    return _by_name([*functions().values(), *reserved_functions().values()])


def sealed_functions() -> frozenset[str]:
    """Names of the functions that only measure."""
    return frozenset(name for name, function in functions().items() if function.sealed)


def _by_name(listed: Iterable[Function]) -> dict[str, Function]:
    """ValueError if a name occurs twice."""
    found: dict[str, Function] = {}
    for function in listed:
        if function.name in found:
            modules = f"{found[function.name].module} and in {function.module}"
            raise ValueError(f"{function.name}: defined in {modules}; rename one")
        found[function.name] = function
    return found


def _of_package(prefix: str = "") -> list[Function]:
    """All functions of the library's modules, or of those in the package `prefix`, not of packages inside it."""
    folder = Path(__path__[0]) / prefix.replace(".", "/")
    names = sorted(module.name for module in pkgutil.iter_modules([str(folder)]) if not module.ispkg)
    return [function for name in names for function in _of_module(f"{prefix}{name}")]


def _of_module(name: str) -> list[Function]:
    """ValueError if a function has no cases, or cases have no function."""
    module = importlib.import_module(f"{__name__}.{name}")
    tree = ast.parse((Path(__path__[0]) / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))
    sources = {node.name: ast.unparse(node) + "\n" for node in tree.body if isinstance(node, ast.FunctionDef)}
    cases: dict[str, tuple[str, list[list[Json]]]] = module.CASES
    if cases.keys() != sources.keys():
        raise ValueError(
            f"{name}: functions and CASES differ in {sorted(cases.keys() ^ sources.keys())}; name both alike"
        )
    return [
        Function(entry, name, source, cases[entry][0], _plain(cases[entry][1]), getattr(module, entry))
        for entry, source in sorted(sources.items())
    ]


def _plain(rows: list[list[Json]]) -> tuple[list[Json], ...]:
    """As the rows come back from a stored task: canonical JSON sorts keys, and a function may see their order."""
    return tuple(json.loads(canonical(row)) for row in rows)

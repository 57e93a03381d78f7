"""Whether an image already holds what a task asks for: the package itself, or a copy of a function under another name.

pytest brings packages of its own and the standard library is there too, so an answer may lie in the image. Names that can
be imported are compared, and functions of at least MIN_NODES syntax nodes by what they do, without docstrings and annotations.

Not covered: a function that was rewritten, or that is only in compiled form.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from environments.sources.edits import definitions, parsed, stripped

MIN_NODES = 15


class Mark(NamedTuple):
    """A digest of what one function does, and what the text of each file with a copy has: its names, how its head begins."""

    name: str
    body: str
    words: frozenset[str]
    head: str

    def may_be_in(self, text: str) -> bool:
        long_first = sorted(self.words, key=len, reverse=True)  # long ones are rare
        return all(word in text for word in long_first) and re.search(self.head, text) is not None


@lru_cache(maxsize=2)
def copies_of(root: Path) -> Copies:
    """Once a process: the root file system of an image does not change."""
    return Copies(root)


class Copies:
    """What one image holds. Files are read once, and parsed once where a copy may be in them."""

    def __init__(self, root: Path) -> None:
        self._library = next(iter(sorted((root / "usr/lib").glob("python3.*"))))
        sites = (self._library / "dist-packages", self._library / "site-packages")
        self._folders = [*filter(Path.is_dir, sites), self._library]
        self._bodies: dict[Path, frozenset[str]] = {}
        self._held: dict[str, bool] = {}

    @cached_property
    def _texts(self) -> dict[Path, str]:
        found = sorted(self._library.rglob("*.py"))
        return {path: path.read_text(encoding="utf-8", errors="replace") for path in found}

    def package(self, names: set[str]) -> str | None:
        """The first of these names that can be imported in the image."""
        return next((name for name in sorted(names) if any(_importable(at, name) for at in self._folders)), None)

    def function(self, old: str, new: str) -> str | None:
        """The first function of `new`, changed or absent in `old`, that the image holds word for word."""
        before = {mark.body for mark in _marks(old)}
        return next((mark.name for mark in _marks(new) if mark.body not in before and self._holds(mark)), None)

    def _holds(self, mark: Mark) -> bool:
        if mark.body not in self._held:
            candidates = (path for path, text in self._texts.items() if mark.may_be_in(text))
            self._held[mark.body] = any(mark.body in self._bodies_of(path) for path in candidates)
        return self._held[mark.body]

    def _bodies_of(self, path: Path) -> frozenset[str]:
        if path not in self._bodies:
            self._bodies[path] = frozenset(mark.body for mark in _marks(self._texts[path]))
        return self._bodies[path]


def _importable(folder: Path, name: str) -> bool:
    found = (folder / name).is_dir() or (folder / f"{name}.py").is_file()
    return found or any(folder.glob(f"{name}.*.so"))


def _marks(text: str) -> Iterator[Mark]:
    """One for every function that is long enough; the function's own name does not count."""
    tree = parsed(text)
    for name, function in definitions(stripped(tree)) if tree else ():
        parts = [function.node.args, *function.node.body]
        body = "".join(map(ast.dump, parts))
        if body.count("(") >= MIN_NODES:
            words = frozenset(word for part in parts for word in _names(part))
            yield Mark(name, hashlib.sha256(body.encode()).hexdigest(), words, _head(function.node.args))


def _names(part: ast.AST) -> Iterator[str]:
    for node in ast.walk(part):
        for field in ("id", "attr", "arg"):
            if isinstance(word := getattr(node, field, None), str) and word.isascii():  # others may be normalised
                yield word


def _head(given: ast.arguments) -> str:
    """A pattern: `def`, any name, the first parameter's name or the closing bracket."""
    first = list(filter(None, [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]))
    end = r"\)" if not first else rf"{first[0].arg}\b" if first[0].arg.isascii() else ""
    return r"def\s+\w+\s*(\[[^\]]*\])?\((?:[\s*,/]|#[^\n]*)*" + end

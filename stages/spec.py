"""goal.yaml to a GoalSpec, or every problem at once, one line each: `file:line: field: problem; remedy`.

Reading is safe: no tags but plain data, no duplicate keys, bounded size, depth and alias expansion, includes only from
regular files inside the workspace. Wherever a mapping or a list belongs, a string that ends in .yaml names the file
that holds it. Types are strict: "12" and true are no numbers.

Not covered: what only running can tell (whether seed data yields the tasks asked for, whether a server answers).
"""

from __future__ import annotations

import io
import json
import math
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import ValidationError

from schemas.base import Json
from schemas.errors import InputError, SpecError
from schemas.goal import GoalSpec
from schemas.rewards import RewardRules
from stages.spec_checks import checks
from stages.spec_words import Place, shown, worded

MAX_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 40
MAX_INCLUDES = 16
MAX_PROBLEMS = 100
TEMPLATES = Path(__file__).with_name("templates")
_MAP, _SEQ, _TAG = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:"
_KEYS = {f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp")}
_WANTS_CONTENT = {"list_type", "dict_type", "model_type", "model_attributes_type"}


@dataclass
class Node:
    """A value with its place. `value`: a scalar, a list of nodes, or a mapping of nodes."""

    value: Any
    file: str
    line: int


@dataclass(frozen=True)
class Problem:
    file: str
    line: int
    place: Place
    text: str

    def __str__(self) -> str:
        field = ".".join(_word(part) for part in self.place) or "spec"
        return f"{self.file}:{self.line}: {field}: {self.text}"


def _word(part: str | int) -> str:
    """A key as it is, when it is a plain word; else escaped, since files are written by anybody."""
    return str(part) if re.fullmatch(r"[\w@^.-]{1,60}", str(part), re.ASCII) else shown(part).replace(" ", "_")


def load_spec(path: Path, data: bytes | None = None) -> GoalSpec:
    """The spec of goal.yaml with its includes. Raises SpecError with every problem, InputError when it is not there.

    `data`: to be taken for the content of `path`, as before it is written.
    """
    reader = _Reader(path.parent, path.name, data)
    node = reader.read(path.name)
    spec = _validate(reader, node) if node is not None else None
    if reader.problems or spec is None:
        raise SpecError(_lines(reader.problems, path.name))
    return spec


def load_rules(root: Path, name: str) -> RewardRules:
    """Reward rules in a file of the workspace `root`. Raises SpecError as `load_spec` does, InputError without a file."""
    reader = _Reader(root, name)
    node = reader.read(name)
    rules = None
    if node is not None:
        try:
            rules = RewardRules.model_validate_json(json.dumps(_plain(node)), strict=True)
        except ValidationError as failed:
            for error in failed.errors(include_url=False):
                place, at = _locate(node, error["loc"])
                reader.problems.append(Problem(at.file, at.line, place, worded(dict(error), error["loc"])))
    if reader.problems or rules is None:
        raise SpecError(_lines(reader.problems, name))
    return rules


def dump_default(kind: Literal["default", "tiny"] = "default") -> str:
    """Text of a commented goal.yaml: the embedded default, or a tiny one whose whole round takes seconds."""
    return (TEMPLATES / f"{kind}.yaml").read_text(encoding="utf-8")


def _lines(problems: list[Problem], main: str) -> list[str]:
    """In the order of reading: the main file first, then by file and line."""
    ordered = sorted(set(problems), key=lambda p: (p.file != main, p.file, p.line, [str(x) for x in p.place], p.text))
    lines = [str(problem) for problem in ordered[:MAX_PROBLEMS]]
    if len(ordered) > MAX_PROBLEMS:
        after = ordered[MAX_PROBLEMS]
        rest = len(ordered) - MAX_PROBLEMS
        lines.append(f"{after.file}:{after.line}: spec: {rest} more problems; correct those above first")
    return lines


def _validate(reader: _Reader, node: Node) -> GoalSpec | None:
    """The schema, with includes as they are met; then what no single field can know. Problems go to `reader`."""
    spec, errors = _against_schema(node)
    while sum(_include(reader, node, error) for error in errors if error["type"] in _WANTS_CONTENT):
        spec, errors = _against_schema(node)
    reported = {problem.place for problem in reader.problems}
    late = [error for error in errors if not error["loc"] and error["type"] == "value_error"]
    for error in errors:
        place, at = _locate(node, error["loc"])
        if error not in late and not any(_nested(place, known) for known in reported):
            reader.problems.append(Problem(at.file, at.line, place, worded(error, error["loc"])))
    for place, text in checks(_plain(node), reader.root):
        _, at = _locate(node, place)
        if place not in reported:
            reader.problems.append(Problem(at.file, at.line, place, text))
    if not reader.problems:  # checks over the whole; ours name the line and come all at once, so these are for the rest
        reader.problems += [Problem(node.file, node.line, (), worded(error, ())) for error in late]
    return spec


def _nested(one: Place, other: Place) -> bool:
    """One place holds the other: a value that could not be read is not also reported as missing or wrong."""
    shorter = min(len(one), len(other))
    return bool(other) and one[:shorter] == other[:shorter]


def _against_schema(node: Node) -> tuple[GoalSpec | None, list[dict[str, Any]]]:
    try:
        return GoalSpec.model_validate_json(json.dumps(_plain(node)), strict=True), []
    except ValidationError as error:
        return None, [dict(item) for item in error.errors(include_url=False)]


def _include(reader: _Reader, root: Node, error: dict[str, Any]) -> bool:
    """Put the content of the named file in place of its name. False when the error is about something else."""
    place, node = _locate(root, error["loc"])
    if not isinstance(node.value, str) or not node.value.endswith(".yaml"):
        return False
    found = reader.read(node.value, Problem(node.file, node.line, place, ""))
    if found is None:
        return False
    node.value, node.file, node.line = found.value, found.file, found.line
    return True


def _locate(root: Node, loc: Place) -> tuple[Place, Node]:
    """Pydantic's location as the person's place, and the node there or, when it is missing, its nearest parent.

    Under a union pydantic puts the tag it chose (`model.package.sha256`), which is no key of the file.
    """
    node, place, arrived = root, list[str | int](), True
    for index, part in enumerate(loc):
        if isinstance(node.value, dict):
            tags = [node.value[name].value for name in ("kind", "method") if name in node.value]
            if arrived and part in tags and index + 1 < len(loc):
                arrived = False
                continue
        place.append(part)
        below = _child(node, part)
        if below is None:
            return (*place, *loc[index + 1 :]), node
        node, arrived = below, True
    return tuple(place), node


def _child(node: Node, part: str | int) -> Node | None:
    if isinstance(node.value, dict):
        found: Node | None = node.value.get(part)
        return found
    if isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
        item: Node = node.value[part]
        return item
    return None


def _plain(node: Node) -> Json:
    if isinstance(node.value, dict):
        return {name: _plain(child) for name, child in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(child) for child in node.value]
    value: Json = node.value
    return value


class _Reader:
    """Reads YAML files of one workspace; collects problems instead of stopping at the first."""

    def __init__(self, root: Path, main: str, data: bytes | None = None) -> None:
        self.root = root
        self.main = main
        self._data = data  # of the main file; None: what the file holds
        self.problems: list[Problem] = []
        self._nodes = 0
        self._includes = 0

    def read(self, name: str, at: Problem | None = None) -> Node | None:
        """The content of a file as nodes; None with a problem. `at`: where it was named, None for the main file."""
        place = at.place if at else ()
        data = self._bytes(name, at)
        if data is None:
            return None
        try:
            return self._parse(name, data.decode("utf-8-sig"), place)
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            self._fail(name, line, place, f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8")
            return None

    def _parse(self, name: str, text: str, place: Place) -> Node | None:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        try:
            tree = YAML(typ="safe", pure=True).compose(text)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = " ".join(str(error.problem or error.context or "bad syntax").split())
            self._fail(name, mark.line + 1 if mark else 1, place, f"not YAML: {what}; correct the syntax")
            return None
        except YAMLError as error:
            line = text[: getattr(error, "position", 0) or 0].count("\n") + 1
            self._fail(name, line, place, "not YAML: a control character; remove it")
            return None
        except RecursionError:
            self._fail(name, 1, place, f"nested deeper than {MAX_DEPTH} levels; flatten it")
            return None
        if tree is None:
            self._fail(name, 1, place, "the file is empty; write what belongs here")
            return None
        if name == self.main and str(tree.tag) != _MAP:
            self._fail(name, tree.start_mark.line + 1, place, "not a mapping; write `field: value` lines")
            return None
        node = self._node(tree, name, place, ())
        return node if self._nodes < MAX_NODES else None

    def _bytes(self, name: str, at: Problem | None) -> bytes | None:
        path = self.root / name
        if at is None and self._data is None and not path.is_file():
            raise InputError(f"{path}: not found; `postloop init DIR` makes a workspace with a working one")
        refused = self._refused(name) if at else None
        if at and refused:
            self.problems.append(Problem(at.file, at.line, at.place, f"{shown(name)} {refused}"))
            return None
        with io.BytesIO(self._data) if at is None and self._data is not None else path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            self._fail(
                name, 1, at.place if at else (), f"the file has more than {MAX_BYTES} bytes; split or shorten it"
            )
            return None
        return data

    def _refused(self, name: str) -> str | None:
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\0" in name:
            return "leaves the workspace; give a relative path without `..`"
        path = self.root / name
        if not path.exists():
            return "does not exist; write that file or correct its name"
        if not path.resolve().is_relative_to(self.root.resolve()):
            return "is a link out of the workspace; put the file itself there"
        if not stat.S_ISREG(path.stat().st_mode):
            return "is not a regular file; name a YAML file"
        self._includes += 1
        if self._includes > MAX_INCLUDES:
            return f"is one include too many, at most {MAX_INCLUDES}; a file may not include itself"
        return None

    def _node(self, tree: Any, file: str, place: Place, above: tuple[int, ...]) -> Node:
        """Composed YAML to nodes, aliases expanded within bounds. What cannot be read becomes None and a problem."""
        line, tag = tree.start_mark.line + 1, str(tree.tag)
        self._nodes += 1
        if self._nodes == MAX_NODES:
            self._fail(file, line, place[:1], f"more than {MAX_NODES} values, aliases expanded; shorten it")
        elif id(tree) in above:
            self._fail(file, line, place, "an alias inside what it names; write it out")
        elif len(above) > MAX_DEPTH:
            self._fail(file, line, place, f"nested deeper than {MAX_DEPTH} levels; flatten it")
        elif self._nodes > MAX_NODES:
            pass
        elif tag == _MAP:
            return Node(self._mapping(tree, file, place, (*above, id(tree))), file, line)
        elif tag == _SEQ:
            inner = (*above, id(tree))
            items = [self._node(child, file, (*place, at), inner) for at, child in enumerate(tree.value)]
            return Node(items, file, line)
        else:
            return Node(self._scalar(tree, file, place), file, line)
        return Node(None, file, line)

    def _mapping(self, tree: Any, file: str, place: Place, above: tuple[int, ...]) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for key, child in tree.value:
            line = key.start_mark.line + 1
            if not isinstance(key.value, str) or str(key.tag) not in _KEYS:
                self._fail(file, line, place, f"{shown(key.value)} cannot be a key; use a plain word")
            elif key.value in found:
                first = found[key.value].line
                self._fail(file, line, (*place, key.value), f"given twice, first in line {first}; keep one")
            else:
                node = self._node(child, file, (*place, key.value), above)
                node.line = line  # where a person looks, also when a block or nothing follows below
                found[key.value] = node
        return found

    def _scalar(self, tree: Any, file: str, place: Place) -> Any:
        kind, text = str(tree.tag).removeprefix(_TAG), tree.value
        line = tree.start_mark.line + 1
        try:
            value = _plain_scalar(kind, text)
        except (ValueError, AttributeError):
            return self._fail(file, line, place, f"{shown(text)} is no {kind}; correct it")
        except KeyError:
            return self._fail(file, line, place, f"the tag {shown(str(tree.tag))} is not allowed; write plain data")
        if isinstance(value, float) and not math.isfinite(value):
            return self._fail(file, line, place, f"is {text}; write a finite number")
        return value

    def _fail(self, file: str, line: int, place: Place, text: str) -> None:
        self.problems.append(Problem(file, line, place, text))


def _plain_scalar(kind: str, text: str) -> Json:
    """Value of a scalar. Raises ValueError for a bad one, KeyError for a kind that is not plain data."""
    if kind == "int":
        digits = text.replace("_", "")
        # 010 is ten, as YAML 1.2 has it.
        return int(digits) if re.fullmatch(r"[-+]?[0-9]+", digits) else int(digits, 0)
    if kind == "float":
        return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    if kind == "bool":
        return text.lower() == "true"
    return {"str": text, "timestamp": text, "null": None}[kind]

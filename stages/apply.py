"""An approved change of goal.yaml, written into its text: the value's own characters are replaced, all else stays as typed.

Comments, order, quotes and line ends are a person's; so nothing is dumped again. A field that is not there yet is added at the
end of its mapping. Where that goes wrong nothing is written: the new text has to be the spec of before with these fields
changed and no other. Not covered: fields that an included file holds, and values with an anchor or an alias; both are refused.
"""

from __future__ import annotations

import copy
import difflib
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from schemas.base import Json
from schemas.errors import InputError, SpecError
from schemas.goal import GoalSpec
from stages.artifacts import disk_errors, write_durably
from stages.spec import load_spec
from stages.spec_words import shown


def planned(path: Path, edits: Mapping[str, Json], seen: GoalSpec) -> tuple[str, str]:
    """The text of goal.yaml as it is and with the change; the same text twice when it has the new values already.

    `seen`: the spec that the change was made from. Raises InputError for a field that has neither the value of then nor the
    new one, for a place that is not found, and for a text that would change more or be no spec; SpecError when goal.yaml is
    no spec as it is.
    """
    data = path.read_bytes()
    spec = load_spec(path, data).model_dump(mode="json")
    missing = {field: value for field, value in edits.items() if _at(spec, field) != value}
    for field, value in missing.items():
        now, then = _at(spec, field), _at(seen.model_dump(mode="json"), field)
        if now != then:
            raise InputError(
                f"goal.yaml: {field} is {_word(now)}, and it was {_word(then)} when the change to {_word(value)} was proposed; "
                "set it back, or let the next round propose anew"
            )
    before = data.decode("utf-8")
    after = edited(before, missing)
    if missing:
        _require_only(path, after, spec, missing)
    return before, after


def difference(before: str, after: str) -> str:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, new, "goal.yaml", "goal.yaml"))


def write(path: Path, text: str) -> None:
    """Whole or not at all; a link stays a link, and the file keeps its mode. Raises InfrastructureError for a full disk."""
    target = path.resolve()
    with disk_errors("goal.yaml"):
        write_durably(target, text.encode(), stat.S_IMODE(target.stat().st_mode))


def _require_only(path: Path, after: str, spec: dict[str, Any], edits: Mapping[str, Json]) -> None:
    try:
        found = load_spec(path, after.encode()).model_dump(mode="json")
    except SpecError as error:
        first = error.problems[0]
        raise InputError(f"goal.yaml: with the change it is no valid spec: {first}; make it by hand") from error
    wanted = copy.deepcopy(spec)
    for field, value in edits.items():
        _set(wanted, field.split("."), value)
    if found != wanted:
        place, want, got = _first_difference(wanted, found, "")
        raise InputError(
            f"goal.yaml: {', '.join(edits)}: no safe place in the text: {place} would be {_word(got)}, not {_word(want)}; "
            "make the change by hand"
        )


def _word(value: Any) -> str:
    return "null" if value is None else shown(value)


def _at(spec: Any, field: str) -> Any:
    for part in field.split("."):
        spec = spec.get(part) if isinstance(spec, dict) else None
    return spec


def _set(spec: dict[str, Any], names: list[str], value: Json) -> None:
    for name in names[:-1]:
        below = spec.get(name)
        spec[name] = spec = below if isinstance(below, dict) else {}
    spec[names[-1]] = value


def _first_difference(wanted: Any, found: Any, place: str) -> tuple[str, Any, Any]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                return _first_difference(wanted.get(name), found.get(name), f"{place}.{name}".removeprefix("."))
    return place, wanted, found


# --- the text


def edited(text: str, edits: Mapping[str, Json]) -> str:
    """`text` with each dotted field at its new value. Raises InputError for a field whose place is in another file, and for
    a text that is no YAML, before or after."""
    try:
        for field, value in edits.items():
            text = _edit(text, field, value)
        yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        what = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
        raise InputError(
            f"goal.yaml: {', '.join(edits)}: no place in the text ({what}); make the change by hand"
        ) from error
    return text


def _edit(text: str, field: str, value: Json) -> str:
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    names = field.split(".")
    for depth, name in enumerate(names):
        if not isinstance(node, yaml.MappingNode):
            place = ".".join(names[:depth]) or "it"
            said = getattr(node, "value", None)
            raise InputError(
                f"goal.yaml: {place} is {said!r}, no mapping: make the change of {field} where that is held"
            )
        found = next(((key, held) for key, held in node.value if key.value == name), None)
        if found is None:
            return _added(text, node, names[depth:], value)
        key, node = found
        if _is_shared(text, key, node):
            raise InputError(f"goal.yaml: {field} has an anchor or an alias on its way; make its change by hand")
    assert node is not None
    start = node.start_mark.index
    gap = " " if text[start - 1] == ":" else ""  # an empty value lies right behind the colon
    return text[:start] + gap + _dumped(value) + text[_end(text, node) :]


def _added(text: str, node: yaml.MappingNode, names: list[str], value: Json) -> str:
    """At the end of the mapping, in its own style; further levels as a flow mapping."""
    for name in reversed(names[1:]):
        value = {name: value}
    line = f"{names[0]}: {_dumped(value)}"
    if node.flow_style:
        close = node.end_mark.index - 1
        before = text[:close].rstrip()
        return before + (line if before.endswith(("{", ",")) else f", {line}") + text[close:]
    at = text.find("\n", _end(text, node.value[-1][1])) + 1  # behind a comment of that line
    line, newline = " " * node.start_mark.column + line, "\r\n" if "\r\n" in text else "\n"
    return f"{text[:at]}{line}{newline}{text[at:]}" if at else f"{text}{newline}{line}"


def _dumped(value: Json) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, width=1 << 20)).removesuffix("...\n").strip()


def _end(text: str, node: yaml.Node) -> int:
    """Behind the last character of a value. The end mark of what is written in a block lies where the next key begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(node, yaml.MappingNode) else last)
    end = int(node.end_mark.index)
    return len(text[:end].rstrip()) if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">") else end


def _is_shared(text: str, key: yaml.Node, node: yaml.Node) -> bool:
    """An alias is composed as the node of its anchor, which lies elsewhere."""
    start = node.start_mark.index
    return start < key.end_mark.index or "&" in text[key.end_mark.index : start + 1]

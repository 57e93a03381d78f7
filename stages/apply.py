"""An approved change of goal.yaml, written into its text: the value's own characters are replaced, all else stays as typed.

Comments, order, quotes and line ends are a person's; so nothing is dumped again. A field that is not there yet is added at the
end of its mapping. Not covered: fields that an included file holds, and mappings shared by an anchor; both are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from schemas.base import Json
from schemas.errors import InputError


def edited(text: str, edits: Mapping[str, Json]) -> str:
    """`text` with each dotted field at its new value. Raises InputError for a field whose place is in another file."""
    for field, value in edits.items():
        text = _edit(text, field, value)
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
    return text[: node.start_mark.index] + _dumped(value) + text[_end(text, node) :]


def _added(text: str, node: yaml.MappingNode, names: list[str], value: Json) -> str:
    """At the end of the mapping, in its own style; further levels as a flow mapping."""
    for name in reversed(names[1:]):
        value = {name: value}
    line = f"{names[0]}: {_dumped(value)}"
    if node.flow_style:
        close = node.end_mark.index - 1
        before = text[:close].rstrip()
        return before + (line if before.endswith("{") else f", {line}") + text[close:]
    at = text.find("\n", _end(text, node.value[-1][1]))  # behind a comment of that line
    at = len(text) if at < 0 else at
    return f"{text[:at]}\n{' ' * node.start_mark.column}{line}{text[at:]}"


def _dumped(value: Json) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, width=1 << 20)).removesuffix("...\n").strip()


def _end(text: str, node: yaml.Node) -> int:
    """Behind the last character of a value: a block mapping's own end mark lies where the next key begins."""
    end = int(node.end_mark.index)
    return len(text[:end].rstrip()) if isinstance(node, yaml.CollectionNode) and not node.flow_style else end


def _is_shared(text: str, key: yaml.Node, node: yaml.Node) -> bool:
    """An alias is composed as the node of its anchor, which lies elsewhere."""
    start = node.start_mark.index
    return start < key.end_mark.index or "&" in text[key.end_mark.index : start + 1]

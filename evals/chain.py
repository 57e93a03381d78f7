"""Why an edit did not apply: the first link between the file and the tool that differs.

File bytes -> tool result -> harness serialisation -> model context -> model tokens -> decoded string -> parsed call ->
tool match. Everything before the model is the environment's or the tokenizer's; what is left is the model's own.

    file       the working tree is not what the calls before would have made of it
    tool       a read returned something else than the file holds, or a match that is there was not found, or the tool
               says that it failed by itself
    harness    the message is not what the tool returned
    cut        it is, up to a declared cut, and what the edit needed stood behind the cut
    template   the rendered context does not hold the message
    tokenizer  the tokens do not decode to the context that was rendered, or to the text that was recorded
    parser     the call that the harness read is not the one that the text holds
    model      all of these agree: the model asked for a text that it was not shown

A call that lacks an argument, has one of another type or one too many is no edit: the model's protocol, which other rules are
about. So is an edit that was refused for something else than its match, such as its size.
Not covered: harnesses whose calls have other names than read_file, replace_line, replace_block and write_file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from schemas.base import digest_of
from schemas.trajectory import Trajectory, Turn

CUT = "\n[cut]"
EDITS: dict[str, dict[str, type]] = {
    "replace_block": {"path": str, "old": str, "new": str},
    "replace_line": {"path": str, "line": int, "text": str},
}
# What a tool says when it did not find the text, or failed by itself; any other refusal is of the call.
_TOOLS_OWN = re.compile(
    r"\b0 times\b|not found|no match|timed? ?out|unavailable|try again|temporar|connection|lost", re.IGNORECASE
)
_NUMBER = re.compile(r"^ *\d+: ?", re.MULTILINE)


class Tokens(Protocol):
    """A policy's tokenizer. `raw`: text of the ids, special tokens included; `decode`: without them."""

    def decode(self, ids: Sequence[int]) -> str: ...

    def raw(self, ids: Sequence[int]) -> str: ...

    def plain(self, text: str) -> str: ...


def broken_link(trajectory: Trajectory, files: Mapping[str, str], tokens: Tokens | None) -> str | None:
    """The first link that differs for the first edit that did not apply; None when every edit applied.

    `files`: the start tree. `tokens` None leaves the links `template` and `tokenizer` out.
    """
    tree, trees = dict(files), []
    for turn in trajectory.turns:
        trees.append(dict(tree))
        if _failed_edit(turn):
            return _first_link(trajectory.turns[: turn.index + 1], trees, files, tokens)
        tree = _applied(tree, turn)
    return None


def _failed_edit(turn: Turn) -> bool:
    """Also an edit in a text that the harness could not read: its call is what the text holds."""
    if turn.forbidden:
        return False
    name = (turn.call or {}).get("name") or (_written(turn.text) or {}).get("tool")
    refused = turn.tool_error if turn.call else turn.parse_error and _whole(turn.text)
    return isinstance(name, str) and name in EDITS and bool(refused)


def _first_link(
    turns: Sequence[Turn], trees: Sequence[Mapping[str, str]], files: Mapping[str, str], tokens: Tokens | None
) -> str:
    failed, tree = turns[-1], trees[-1]
    before = turns[-2].tree if len(turns) > 1 else digest_of(dict(files))
    if digest_of(dict(tree)) != before:
        return "file"
    asked = _arguments(failed) or _written(failed.text) or {}
    wanted, path = _wanted(asked), str(asked.get("path", ""))
    for index, turn in enumerate(turns[:-1]):
        link = _reading(turn, turns[index + 1], trees[index], wanted, tokens)
        if link is not None:
            return link
    for turn in turns:
        if tokens is not None and not _tokens_agree(turn, tokens):
            return "tokenizer"
    if not _parsed_alike(failed):
        return "parser"
    there = bool(wanted) and tree.get(path, "").count(wanted) == 1
    return "tool" if there and _TOOLS_OWN.search(failed.tool_error or "") else "model"


def _reading(turn: Turn, after: Turn, tree: Mapping[str, str], wanted: str, tokens: Tokens | None) -> str | None:
    """The links from the file to the model's context, for what one turn read."""
    name, arguments = (turn.call or {}).get("name"), _arguments(turn)
    returned = turn.result if turn.result is not None else turn.observation
    if returned is None or turn.tool_error or turn.parse_error:
        return None
    if name == "read_file" and not _holds(returned, tree, arguments):
        return "tool"
    if turn.observation != returned:
        head = (turn.observation or "").removesuffix(CUT)
        if not (turn.observation_truncated and returned.startswith(head)):
            return "harness"
        if wanted and wanted.splitlines()[0] not in _NUMBER.sub("", head) and wanted in "\n".join(tree.values()):
            return "cut"
    said = [message["content"] for message in after.messages]
    plain = tokens.plain if tokens is not None else str
    if said and plain(turn.observation or "") not in "\n".join(said):
        return "harness"
    return "template" if any(content.strip() not in after.rendered for content in said) else None


def _holds(returned: str, tree: Mapping[str, str], arguments: Mapping[str, Any]) -> bool:
    """Whether a read gave lines of the file as they are; numbers before lines and a part of a file are its habit."""
    text = tree.get(str(arguments.get("path")))
    if text is None:
        return True
    lines, at = text.splitlines(), 0
    for line in returned.splitlines():
        number = re.match(r" *(\d+): ?", line)
        if number is None:
            continue  # a heading or a note of the tool
        at = int(number[1])
        if not 1 <= at <= len(lines) or lines[at - 1] != line[number.end() :]:
            return False
    return bool(at) or not lines or returned.strip() == text.strip() or not _NUMBER.search(returned)


def _tokens_agree(turn: Turn, tokens: Tokens) -> bool:
    """A scripted policy has no tokens of its own to compare where it left none."""
    rendered = not turn.prompt_ids or tokens.raw(turn.prompt_ids) == turn.rendered
    return rendered and (not turn.completion_ids or tokens.decode(turn.completion_ids) == turn.text)


def round_trips(trajectory: Trajectory, tokens: Tokens) -> bool:
    """Whether every turn's tokens give back its text."""
    return all(_tokens_agree(turn, tokens) for turn in trajectory.turns)


def _parsed_alike(turn: Turn) -> bool:
    written = _written(turn.text)
    if written is None:
        return True  # no JSON call: another protocol, or nothing to compare
    call = turn.call or {}
    arguments = {key: value for key, value in written.items() if key != "tool"}
    return bool(turn.call) and call.get("name") == written.get("tool") and call.get("arguments") == arguments


def _written(text: str) -> dict[str, Any] | None:
    """The first JSON object of the text, read by the standard library and not by the harness."""
    opening = text.find("{")
    if opening < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text[opening:])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _whole(text: str) -> bool:
    """A call with all that an edit needs and nothing else, whatever the harness made of it."""
    call = _written(text) or {}
    name = call.pop("tool", None)
    kinds = EDITS.get(name, {}) if isinstance(name, str) else {}
    return bool(kinds) and call.keys() == kinds.keys() and all(type(call[key]) is kind for key, kind in kinds.items())


def _arguments(turn: Turn) -> dict[str, Any]:
    found: Any = (turn.call or {}).get("arguments")
    return dict(found) if isinstance(found, dict) else {}


def _wanted(arguments: Mapping[str, Any]) -> str:
    old = arguments.get("old")
    return old if isinstance(old, str) else ""


def _applied(tree: dict[str, str], turn: Turn) -> dict[str, str]:
    """The tree after a call that worked, as the call itself says; a call of another shape changes nothing."""
    name, given = (turn.call or {}).get("name"), _arguments(turn)
    path, text = given.get("path"), given.get("text")
    if turn.tool_error or turn.parse_error or not isinstance(path, str):
        return tree
    if name == "write_file" and isinstance(text, str):
        return {**tree, path: text}
    before, old, new, line = tree.get(path), given.get("old"), given.get("new"), given.get("line")
    if before is None:
        return tree
    if name == "replace_block" and isinstance(old, str) and isinstance(new, str):
        return {**tree, path: before.replace(old, new)}
    if name == "replace_line" and isinstance(line, int) and isinstance(text, str):
        return {**tree, path: _with_line(before, line, text)}
    return tree


def _with_line(text: str, line: int, new: str) -> str:
    lines = text.splitlines()
    return "\n".join([*lines[: line - 1], new, *lines[line:]]) + "\n"

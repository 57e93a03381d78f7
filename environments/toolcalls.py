"""Tool calls of the harness `tools` that turn one tree into another: what a scripted policy says to reach an outcome.

Covered: files that change (a replace_block for each run of changed lines, its context as long as it must be to stand
once in the file) and files that are new or change so much that a write_file is shorter.
Not covered: removing a file, which no outcome can say; texts beyond the harness's own limit on a file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

Call = dict[str, str]


def edit_calls(start: Mapping[str, str], outcome: Mapping[str, str]) -> list[Call]:
    """Calls in the order in which they must be made; equal files need none. Applied to `start` they give `outcome`."""
    calls: list[Call] = []
    for path, wanted in sorted(outcome.items()):
        before = start.get(path)
        if before != wanted:
            calls += _write(path, wanted) if before is None else _shorter(path, before, wanted)
    return calls


def _write(path: str, text: str) -> list[Call]:
    return [{"tool": "write_file", "path": path, "text": text}]


def _shorter(path: str, before: str, wanted: str) -> list[Call]:
    blocks = _blocks(before, wanted)
    if blocks is None or sum(len(old) + len(new) for old, new in blocks) > len(wanted):
        return _write(path, wanted)
    return [{"tool": "replace_block", "path": path, "old": old, "new": new} for old, new in blocks]


def _blocks(before: str, wanted: str) -> list[tuple[str, str]] | None:
    """(old, new) for each run of changed lines, the last first, so that the lines above keep their numbers.

    None when some run cannot be named by a block that stands once.
    """
    left, right = before.splitlines(keepends=True), wanted.splitlines(keepends=True)
    codes = difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    blocks = []
    for _, start, end, first, last in (code for code in reversed(codes) if code[0] != "equal"):
        block = _block(left, start, end, right[first:last])
        if block is None:
            return None
        blocks.append(block)
        left[start:end] = right[first:last]
    return blocks


def _block(lines: list[str], start: int, end: int, new: list[str]) -> tuple[str, str] | None:
    """Lines start to end and as many around them as it takes to stand once; with what takes their place."""
    text, after = "".join(lines), "".join([*lines[:start], *new, *lines[end:]])
    for extra in range(len(lines) + 1):
        low, high = max(0, start - (extra + 1) // 2), min(len(lines), end + extra // 2)
        old = "".join(lines[low:high])
        replacement = "".join([*lines[low:start], *new, *lines[end:high]])
        # The replacement itself is tried: overlapping occurrences count once and still replace the wrong one.
        if old and text.count(old) == 1 and text.replace(old, replacement) == after:
            return old, replacement
        if (low, high) == (0, len(lines)):
            return None
    return None

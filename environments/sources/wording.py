"""What a mined task says: words of the project itself where there are any, never a line of the answer.

From a change log the entries that name the function; from a commit its message without trailers, links and numbers. Both
are dropped when they hold a line of the repair. What is left is the place, the names of the failing tests, and how the
first of them fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MAX_QUOTE = 500
MAX_NAMES = 6
_BULLET = re.compile(r"^(\s*)([-*+•]|\d+[.)])\s+")
_TRAILER = re.compile(
    r"^([a-z][\w-]*-(by|on|at|id|url)|(fix|close|resolve)(e?s|e?d)?|refs?|see|cc|bug|issue)\s*:"
    r"|^(fix(es|ed)?|close[sd]?|resolve[sd]?|refs?|see)\W*(\w+/\w+)?(#\d+|GH-\d+|https?:\S+)[\s,.]*$",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"https?://\S+|:\w+:`[#\w./-]*\d[\w./-]*`|\(?(?:GH-|#|pull request |PR )\d+\)?|\b[0-9a-f]{7,40}\b"
    r"|\[\s*#?\d*\s*\](?:_|\(\S*\))?",
    re.IGNORECASE,
)
_DULL = re.compile(
    r"^(wip|fix(es|ed)?|bump|update[ds]?|tests?|typo|lint|cleanup|merge|release|version|misc|more|oops)\b\W*(\w+\W*){0,2}$",
    re.IGNORECASE,
)
_DIFF = re.compile(r"^(diff --git |@@ |[+-]{3} |[+-] {4,})", re.MULTILINE)
_DULL_ERRORS = ("AssertionError", "assert ", "Failed", "NotImplementedError", "fixture ")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def new_entries(old: str, new: str) -> list[str]:
    """Entries of the new change log that the old one lacks, each on one line."""
    known = {" ".join(line.split()) for line in old.splitlines()}
    entries: list[list[str]] = []
    for line in new.splitlines():
        if _BULLET.match(line):
            entries.append([_BULLET.sub("", line)])
        elif line.strip() and entries and line[:1].isspace():
            entries[-1].append(line)
        elif not line.strip() or not line[:1].isspace():
            entries.append([])
    fresh = [lines for lines in entries if lines and any(" ".join(line.split()) not in known for line in lines)]
    known_entries = " ".join(old.split())
    texts = [" ".join(" ".join(lines).split()) for lines in fresh]
    return [_quiet(text) for text in texts if text not in known_entries]


def entry_about(name: str, entries: Iterable[str]) -> str:
    """At most two entries that name this function or value; "" when none does. A plain word must look like a name."""
    last = name.rsplit(".", 1)[-1]
    if len(last) < 3 or last.startswith("__"):
        last = name.rsplit(".", 2)[0]
    marked = "_" in last.strip("_") or not last.islower()
    around = r"(?<![\w])" + re.escape(last) + r"(?![\w])"
    sure = re.compile(around if marked else rf"[`'\"*.]+{re.escape(last)}\b|{around}\(")
    return _short(" ".join([entry for entry in entries if last and sure.search(entry)][:2]))


def message_of(text: str) -> str:
    """A commit's message without trailers, links, numbers and bullets; "" when it says nothing of its own."""
    lines = [line for line in text.splitlines() if not _TRAILER.match(line.strip())]
    subject = _quiet(lines[0]) if lines else ""
    rest = _quiet(" ".join(_BULLET.sub("", line) for line in lines[1:]))
    if _DULL.match(subject) or len(subject.split()) < 3:
        subject = ""
    return _short(" ".join(filter(None, [_ended(subject), rest])))


def _short(text: str) -> str:
    """Whole sentences, or else whole words, of at most MAX_QUOTE characters."""
    if len(text) <= MAX_QUOTE:
        return text
    start = text[:MAX_QUOTE]
    sentences = start.rfind(". ") + 1
    return start[:sentences] if sentences > MAX_QUOTE // 3 else f"{start[: start.rfind(' ')]} ..."


def _quiet(text: str) -> str:
    text = " ".join(_NOISE.sub(" ", text).split())
    return re.sub(r"\s+([.,;:)])", r"\1", text).strip(" -*").replace("``", "`").replace("( )", "")


def _ended(text: str) -> str:
    return text if not text or text[-1] in ".!?:" else text + "."


def gives_away(text: str, gold_lines: Iterable[str]) -> bool:
    """Whether it looks like a difference, or holds a line of the repair that is long enough to be no accident."""
    flat = " ".join(text.split())
    lines = (" ".join(line.split()) for line in gold_lines)
    return bool(_DIFF.search(text)) or any(len(line) >= 20 and line in flat for line in lines)


def short_error(lines: Iterable[str]) -> str:
    """The first failure that is more than a comparison (which could show an expected value), without addresses."""
    for line in lines:
        if line and not line.startswith(_DULL_ERRORS) and re.match(r"[\w.]*(Error|Exception|Warning)\b", line):
            return _ADDRESS.sub("0x..", line)[:200]
    return ""


HEADS = {
    "changed": "`{name}` in {path} does not do what version {version} of {package} promises. Repair it.",
    "added": "`{name}` in {path} of {package} {version} has a signature but no body. Write it.",
    "constant": "{what} in {path} is not what version {version} of {package} needs. Repair it.",
    "file": "{path} lacks several changes that version {version} of {package} promises. Make them.",
    "release": "Bring {package} from its last version to what {version} promises.",
    "commit": "Make the next change to {package}.",
}


def statement(
    kind: str, package: str, version: str, path: str, name: str,
    quote: str, failing: Sequence[str], shown: str | None, error: str,
) -> str:  # fmt: skip
    """`failing`: node ids of hidden tests; `shown`: one of them that stays in the tree."""
    what = f"`{name}`" if name else "A definition at the top level"
    said = [HEADS[kind].format(name=name, what=what, path=path, package=package, version=version)]
    if quote:
        said.append(f"{'Asked for' if kind == 'commit' else 'Release notes'}: {_ended(quote)}")
    said.append(f"Failing now: {_names(failing)}.")
    if error:
        said.append(f"One fails with {_ended(error)}")
    if shown:
        said.append(f"{shown} is in the tree; the others are not.")
    said.append("What works must go on working. Do not edit tests.")
    return "\n".join(said)


def _names(failing: Sequence[str]) -> str:
    """Functions without parameters, each once, file by file."""
    names = list(dict.fromkeys(node.partition("[")[0] for node in failing))
    files: dict[str, list[str]] = {}
    for path, _, name in (name.partition("::") for name in names[:MAX_NAMES]):
        files.setdefault(path, []).append(f"`{name}`")
    shown = "; ".join(f"{', '.join(inside)} in {path}" for path, inside in files.items())
    return shown if len(names) <= MAX_NAMES else f"{shown}; and {len(names) - MAX_NAMES} more"

"""Commits of a git repository, read as plain files: a task made from them holds no object, reference, reflog or tag.

The repository is foreign and is only read, by plumbing that runs nothing of it: no hook, filter, external diff, file
system monitor, replacement object or fetch of a missing one. Merges, links and submodules are left out.

Not covered: cloning (the person's part), Git LFS (a pointer is not the file), renames (they count as remove and add).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from environments.sources import trees
from environments.sources.trees import Tree
from schemas.errors import InfrastructureError, InputError

MAX_FILE_BYTES = 4 << 20
GIT_S = 300.0
_SAFE = (
    "core.fsmonitor=false", "core.hooksPath=/dev/null", "core.attributesFile=/dev/null", "core.quotePath=false",
    "protocol.allow=never", "safe.directory=*", "log.showSignature=false", "diff.external=", "core.pager=cat",
    "log.mailmap=false", "core.alternateRefsCommand=",
)  # fmt: skip
_PLAIN = ("100644", "100755", "100664")
_LFS = "version https://git-lfs"


class Commit(NamedTuple):
    id: str
    parent: str
    message: str


class Change(NamedTuple):
    path: str
    status: str  # A | M | D | T (another type: a link, a submodule)


class Repository:
    """Raises InputError when the folder is no repository. Keeps the files that it has read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._texts: dict[str, str | None] = {}
        self._git("rev-parse", "--git-dir")

    def commits(self, revisions: str, count: int) -> list[Commit]:
        """The newest commits with exactly one parent that is at hand, newest first."""
        options = ["--no-merges", "--first-parent", f"--max-count={count}", "--format=%H%x00%P%x00%B%x01"]
        listing = self._git("log", *options, "--end-of-options", revisions, "--").decode("utf-8", "replace")
        found = []
        for entry in listing.split("\x01"):
            fields = entry.strip("\n").split("\0")
            if len(fields) == 3 and len(fields[1].split()) == 1:
                found.append(Commit(*fields))
        return found

    def changes(self, commit: Commit) -> list[Change]:
        output = self._git("diff-tree", "-r", "-z", "--no-renames", "--raw", commit.parent, commit.id)
        fields = output.decode("utf-8", "surrogateescape").split("\0")
        return [Change(path, about.split()[-1][0]) for about, path in zip(fields[::2], fields[1::2], strict=False)]

    def tree(self, commit: str) -> Tree:
        """Text files of a commit. Links, submodules, large and binary files are left out."""
        output = self._git("ls-tree", "-r", "-z", "-l", "--full-tree", commit).decode("utf-8", "surrogateescape")
        blobs = {}
        for entry in filter(None, output.split("\0")):
            about, path = entry.split("\t", 1)
            mode, _, name, size = about.split()
            if mode in _PLAIN and size.isdigit() and int(size) <= MAX_FILE_BYTES and trees.may_be(path):
                blobs[path] = name
        self._read(sorted(set(blobs.values()) - self._texts.keys()))
        found = ((path, self._texts[name]) for path, name in blobs.items())
        return {path: text for path, text in found if text is not None}

    def _read(self, names: list[str]) -> None:
        if not names:
            return
        output = self._git("cat-file", "--batch", given="\n".join(names).encode() + b"\n")
        at = 0
        for name in names:
            end = output.index(b"\n", at)
            fields = output[at:end].split()
            if len(fields) != 3:  # a missing object: a partial or broken clone
                self._texts[name], at = None, end + 1
                continue
            size = int(fields[2])
            self._texts[name] = _text(output[end + 1 : end + 1 + size])
            at = end + 1 + size + 1

    def _git(self, *arguments: str, given: bytes = b"") -> bytes:
        settings = [word for setting in _SAFE for word in ("-c", setting)]
        command = ["git", "--no-pager", "--no-replace-objects", "--literal-pathspecs", *settings, *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=_environment(self.folder),
                input=given,
                capture_output=True,
                timeout=GIT_S,
                check=False,
            )
        except (FileNotFoundError, NotADirectoryError):
            what = "git is not installed" if self.folder.is_dir() else "no such folder"
            raise InputError(f"{self.folder}: {what}; install git or correct the path") from None
        except subprocess.TimeoutExpired:
            raise InfrastructureError(
                f"{self.folder}: git {arguments[0]}: over {GIT_S:.0f} s; name fewer commits"
            ) from None
        if done.returncode:
            detail = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[0][:200]
            raise InputError(f"{self.folder}: git {arguments[0]}: {detail}; correct path or revisions")
        return done.stdout


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if text.startswith(_LFS) else text


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of the person's git settings; no search above the folder that was named."""
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent),
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
    }

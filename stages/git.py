"""Git of a workspace: its history of records, pointers and specs, by the plain `git` program without a shell.

Nothing of the person's or the machine's configuration enters: no identity is needed, hooks, signing and templates are
off, and GIT_* variables of an outer repository are removed. Names of commits are provenance and enter no digest.

Not covered: branches, merges and remotes; those are the person's, with the tools that people know.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import InfrastructureError

_WHO = ("postloop", "postloop@localhost")
_CONFIG = (
    ("core.hooksPath", "/dev/null"),
    ("commit.gpgSign", "false"),
    ("core.autocrlf", "false"),
    ("core.fsync", "committed,loose-object,index,reference"),
    ("core.excludesFile", "/dev/null"),
    ("core.attributesFile", "/dev/null"),
    ("core.quotePath", "false"),
    ("gc.auto", "0"),
)
_LOCK_WAIT_S = 5.0


def init(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    _run(root, "init", "-q", "--template=", "--initial-branch=main", str(root), located=False)


def is_repository(root: Path) -> bool:
    return (root / ".git").exists()


def head(root: Path) -> str | None:
    """Full name of the last commit, or None before the first."""
    done = _git(root, "rev-parse", "--verify", "-q", "HEAD")
    return done.stdout.strip() if done.returncode == 0 else None


def commit(root: Path, paths: Sequence[str], message: str) -> bool:
    """Commit the present state of `paths` (relative; a folder stands for all below it), ignored or not, and nothing
    else that may be staged. False when there was nothing to commit. Raises InfrastructureError."""
    present = [path for path in paths if (root / path).exists() or _known(root, path)]
    if not present:
        return False
    _run(root, "add", "-A", "-f", "--", *present)
    if _git(root, "diff", "--cached", "--quiet", "--", *present).returncode == 0:
        return False
    _run(root, "commit", "-q", "--no-verify", "-m", message, "--", *present)
    return True


def uncommitted(root: Path, paths: Sequence[str]) -> list[str]:
    """Those files below `paths` that are new or differ from the last commit, relative and sorted."""
    listing = _run(root, "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--", *paths)
    return sorted(entry[3:] for entry in listing.split("\0") if entry)


def changed(root: Path, paths: Sequence[str]) -> list[str]:
    """Those files below `paths` that the last commit has and that are gone or differ now, relative and sorted."""
    listing = _run(root, "diff", "--name-only", "-z", "--no-renames", "--diff-filter=DMT", "HEAD", "--", *paths)
    return sorted(name for name in listing.split("\0") if name)


def tips(root: Path) -> list[str]:
    """Commits that HEAD, a branch, a tag or the stash names, each once."""
    form = "%(if)%(*objectname)%(then)%(*objecttype) %(*objectname)%(else)%(objecttype) %(objectname)%(end)"
    rows = (line.split() for line in _run(root, "for-each-ref", f"--format={form}").splitlines())
    named = [name for kind, name in rows if kind == "commit"]
    return list(dict.fromkeys([*filter(None, [head(root)]), *named]))


def words(root: Path, pattern: str, commit: str | None = None) -> list[tuple[str, str]]:
    """File and text of every match of an extended regular expression, in a commit or in the files that lie there now.

    What git ignores is left out; a file that is not committed yet is not. Raises InfrastructureError.
    """
    here, there = (["--untracked"], []) if commit is None else ([], [commit])
    done = _git(root, "grep", *here, "-a", "-o", "-z", "--no-color", "-E", "-e", pattern, *there)
    if done.returncode not in (0, 1):
        cause = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[0][:300]
        raise InfrastructureError(f"workspace {root}: git grep: {cause}; correct that and run again")
    start = f"{commit}:" if commit else ""
    rows = (line.partition("\0") for line in done.stdout.split("\n") if "\0" in line)
    return [(path.removeprefix(start), text) for path, _, text in rows]


def restore(root: Path, path: str) -> bool:
    """Bring back the committed content of `path`. False when no commit has it."""
    return _git(root, "checkout", "-q", "HEAD", "--", path).returncode == 0


def remove_stale_locks(root: Path) -> list[str]:
    """Remove lock files that a killed git left. Call it as the workspace's one writer.

    A git that still works in this repository is given a few seconds; one that stays raises InfrastructureError.
    """
    folder = root / ".git"
    locks = [*folder.glob("*.lock"), *folder.glob("refs/heads/**/*.lock")] if folder.is_dir() else []
    if not locks:
        return []
    deadline = time.monotonic() + _LOCK_WAIT_S
    while owners := _running(root):
        if time.monotonic() > deadline:
            raise InfrastructureError(f"workspace {root}: git (process {owners[0]}) works in it; let it end, run again")
        time.sleep(0.05)
    for lock in locks:
        lock.unlink(missing_ok=True)
    return [lock.relative_to(root).as_posix() for lock in locks]


def _running(root: Path) -> list[int]:
    """Processes named git whose folder or open files lie in the workspace. Without /proc: none can be seen."""
    inside = str(root.resolve())
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() != "git":
                continue
            links = [os.readlink(process / "cwd"), *(os.readlink(item) for item in (process / "fd").iterdir())]
        except OSError:  # it ended, or it belongs to another user
            continue
        if any(link == inside or link.startswith(inside + "/") for link in links):
            found.append(int(process.name))
    return found


def _known(root: Path, path: str) -> bool:
    return _git(root, "ls-files", "--error-unmatch", "--", path).returncode == 0


def _run(root: Path, *arguments: str, located: bool = True) -> str:
    done = _git(root, *arguments, located=located)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise InfrastructureError(f"workspace {root}: git {arguments[0]}: {lines[0][:300]}; correct that and run again")
    return done.stdout


def _git(root: Path, *arguments: str, located: bool = True) -> subprocess.CompletedProcess[str]:
    # Naming both folders keeps git from searching upwards into a repository that the workspace may lie in.
    place = [f"--git-dir={root / '.git'}", f"--work-tree={root}"] if located else []
    settings = [part for name, value in _CONFIG for part in ("-c", f"{name}={value}")]
    try:
        return subprocess.run(
            ["git", "--literal-pathspecs", *settings, *place, *arguments],
            cwd=root,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except FileNotFoundError as error:
        what = "git is not installed; install it" if root.is_dir() else "the folder is gone; restore it"
        raise InfrastructureError(f"workspace {root}: {what} and run again") from error


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    name, mail = _WHO
    return kept | {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": mail,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": mail,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",  # looking must not write: a full disk is no reason not to see what is there
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C.UTF-8",
    }

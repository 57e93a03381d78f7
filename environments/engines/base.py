"""What every sandbox engine offers, and the checks on an execution that all of them share.

Covered: the protocol, the outcome, the refusal of hostile paths, the search of the command in the image.
Not covered: how a sandbox is made; each engine has its own module.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple, Protocol

from schemas.errors import InputError
from schemas.execution import Environment, Execution, ExecutionResult, Limits

WORK, TESTS = "/work", "/tests"
SANDBOX_UID = 10001
MAX_FILES = 200
MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255
MAX_ARGUMENT_BYTES = 100_000
MAX_COMMAND_BYTES = 500_000
MAX_COLLECTED_BYTES = 1 << 20
_PAGE = 4096


class Outcome(NamedTuple):
    """`telemetry` is measured (wall_s and cpu_s in seconds, peak_mb in MiB) and stays outside every digest."""

    result: ExecutionResult
    telemetry: dict[str, float]


class Engine(Protocol):
    """Runs one command in a fresh sandbox. `run` may be called from many threads at once."""

    name: str

    def enforced(self) -> list[str]:
        """One line for each limit in force on this machine, and how; what is weaker than declared is said here."""

    def run(self, environment_root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        """Run `execution` over the root file system of `environment`.

        Raises InputError (paths, sizes, an unknown command), IntegrityError (the root is not the declared layer),
        SandboxError (the machine: retry). Whatever the command does is in the result, never an exception.
        """


def check_execution(execution: Execution, limits: Limits) -> None:
    """Refuse what no engine may be given. Raises InputError that names the first bad value."""
    if len(execution.files) + len(execution.readonly) > MAX_FILES:
        count = len(execution.files) + len(execution.readonly)
        raise InputError(f"execution: {count} files, at most {MAX_FILES}; hand over fewer files")
    for text in execution.argv:
        if "\0" in text or len(_bytes(text, "argv")) > MAX_ARGUMENT_BYTES:
            raise InputError(f"execution: argument {text[:40]!r}: NUL or over {MAX_ARGUMENT_BYTES} bytes; use a file")
    if sum(len(text.encode()) + 9 for text in execution.argv) > MAX_COMMAND_BYTES:
        raise InputError(f"execution: the command is over {MAX_COMMAND_BYTES} bytes; use a file")
    _bytes(execution.stdin, "stdin")
    for tree, size_mb in ((execution.files, limits.disk_mb), (execution.readonly, 64)):
        _check_tree(tree, size_mb)
    if len(execution.collect) > MAX_FILES:
        raise InputError(f"execution: {len(execution.collect)} paths to collect, at most {MAX_FILES}; collect fewer")
    for path in execution.collect:
        check_path(path)


def _check_tree(tree: dict[str, str], size_mb: int) -> None:
    used = 0
    for path, text in tree.items():
        check_path(path)
        used += -(-len(_bytes(text, path)) // _PAGE) * _PAGE + _PAGE
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in tree:
                raise InputError(f"execution: path {path!r}: its parent is a file too; rename one of them")
    if used > size_mb << 20:
        raise InputError(f"execution: files need {used >> 20} MiB, the tree holds {size_mb}; raise limits.disk_mb")


def check_path(path: str) -> None:
    """A path is relative, plain and short. Raises InputError."""
    encoded = _bytes(path, "path")
    parts = path.split("/")
    if "\0" in path or len(encoded) > MAX_PATH_BYTES or any(part in ("", ".", "..") for part in parts):
        raise InputError(f"execution: path {path[:80]!r} is absolute, climbs, empty or too long; make it relative")
    if any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise InputError(f"execution: path {path[:80]!r} has a name over {MAX_NAME_BYTES} bytes; shorten it")


def _bytes(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"execution: {what[:80]!r} is not valid Unicode ({error.reason}); use UTF-8") from None


def check_command(root: Path, argv: list[str], variables: dict[str, str]) -> None:
    """The command must be in the image, or lie in a writable tree, where its absence is the attempt's own failure.

    Raises InputError: a command that the caller misspelt would otherwise look like a failed attempt.
    """
    command = argv[0]
    if "/" in command:
        if not command.startswith("/") or command.split("/")[1] in ("work", "tests", "tmp"):
            return
        candidates = [command]
    else:
        candidates = [f"{folder}/{command}" for folder in variables.get("PATH", "/usr/bin").split(":") if folder]
    if not any(_is_executable(root, candidate) for candidate in candidates):
        raise InputError(f"execution: command {command[:80]!r} is not in the image {root}; name one that is")


def _is_executable(root: Path, command: str) -> bool:
    """Follow links inside the root only: an absolute link of the image means the image, not the host."""
    for _ in range(8):
        path = f"{root}/{os.path.normpath(command).lstrip('/')}"
        if not os.path.islink(path):
            return os.path.isfile(path) and bool(os.stat(path).st_mode & 0o111)
        command = os.path.join(os.path.dirname(command), os.readlink(path))
    return False


def collect_files(work_fd: int, paths: list[str], total_bytes: int) -> tuple[dict[str, str], bool]:
    """Read back `paths` below an open folder, and whether one was left out for its size.

    Regular files only; no link is followed at any component. What the owner could not read counts as missing, so that a
    privileged caller sees what an ordinary one would. Nothing of the sandbox may be running any more.
    """
    found: dict[str, str] = {}
    left_out, budget = False, total_bytes
    for path in sorted(set(paths)):
        data = _read_regular(work_fd, path.split("/"))
        if data is None:
            continue
        if len(data) > min(MAX_COLLECTED_BYTES, budget):
            left_out = True
            continue
        budget -= len(data)
        found[path] = data.decode("utf-8", "replace")
    return found, left_out


def _read_regular(folder_fd: int, parts: list[str]) -> bytes | None:
    here = os.dup(folder_fd)
    try:
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_NONBLOCK if last else os.O_DIRECTORY)
            try:
                deeper = os.open(part, flags, dir_fd=here)
            except OSError:
                return None
            os.close(here)
            here = deeper
            mode = os.fstat(here).st_mode
            if not mode & (stat.S_IRUSR if last else stat.S_IXUSR) or (last and not stat.S_ISREG(mode)):
                return None
        with os.fdopen(os.dup(here), "rb") as file:
            return file.read(MAX_COLLECTED_BYTES + 1)
    finally:
        os.close(here)

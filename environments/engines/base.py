"""What every sandbox engine offers, and the checks on an execution that all of them share.

Covered: the two protocols, the outcome, the refusal of hostile paths and of a changed image, the search of the command
in it. Not covered: how a sandbox is made; each engine has its own module.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple, Protocol

from environments.engines.reading import MAX_COLLECTED_BYTES as MAX_COLLECTED_BYTES
from environments.engines.reading import MAX_PATH_BYTES
from environments.image import layer_digest
from schemas.errors import InputError, IntegrityError, SandboxError
from schemas.execution import Environment, Execution, ExecutionResult, Limits, Stop

WORK, TESTS = "/work", "/tests"
SANDBOX_UID = 10001
NOT_IN_FORCE = "NOT in force"
MAX_FILES = 200
MAX_NAME_BYTES = 255
MAX_ARGUMENT_BYTES = 100_000
MAX_COMMAND_BYTES = 500_000
_PAGE = 4096


class Outcome(NamedTuple):
    """`telemetry` is measured and stays outside every digest: wall_s and cpu_s in seconds, peak_mb in MiB, and network,
    what the sandbox's empty network is known to have blocked, where that was anything (see NetworkCounter)."""

    result: ExecutionResult
    telemetry: dict[str, float]


class Snapshot(NamedTuple):
    """The regular files of a tree, path -> bytes. `whole`: nothing was left out for its size, number, depth or name."""

    files: dict[str, bytes]
    whole: bool


class Engine(Protocol):
    """Runs one command in a fresh sandbox. `run` may be called from many threads at once."""

    name: str

    def enforced(self) -> list[str]:
        """One line for each limit in force on this machine, and how; "NOT in force" stands in those that are weaker."""

    def run(self, environment_root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        """Run `execution` over the root file system of `environment`.

        Raises InputError (paths, sizes, an unknown command), IntegrityError (the root is not the declared layer),
        SandboxError (the machine: retry). Whatever the command does is in the result, never an exception.
        """


class Sandbox(Protocol):
    """The sandbox of one attempt, for several executions one after the other; nobody else's was or will be run in it.

    Each execution gets a tree of its own: `files` and `readonly` are copied in, `collect` is copied out, processes, files
    and shared memory of the one before are gone. What an attempt may still see of its own past is in the engines' README.
    """

    def run(self, execution: Execution) -> Outcome:
        """As Engine.run. After a SandboxError the next one begins in a new sandbox."""

    def snapshot(self) -> Snapshot:
        """/work as the last execution left it; empty, and not whole, when it is gone. Raises SandboxError."""

    def close(self) -> None:
        """Destroy it. It may be called twice."""


class SandboxEngine(Engine, Protocol):
    """What both engines offer beside `run`, which is: prepare, start, run once, close."""

    def prepare(self, environment_root: Path, environment: Environment) -> None:
        """Check the image and make it ready, once a process; `run` and `start` do so too. Raises what `run` raises."""

    def start(self, environment_root: Path, environment: Environment, limits: Limits) -> Sandbox:
        """A sandbox for one attempt, each of whose executions has these limits."""

    def close(self) -> None:
        """Let go of what waits for executions to come; what is in use is its user's."""


def missing(engine: Engine) -> list[str]:
    """The limits that are weaker than declared on this machine: a line each, for a person to read."""
    return [line for line in engine.enforced() if NOT_IN_FORCE in line]


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


def find_python(root: Path) -> str | None:
    """Path inside the image of its Python 3, or None."""
    for folder in ("/usr/bin", "/usr/local/bin", "/bin"):
        for path in sorted((root / folder[1:]).glob("python3*")):
            if _is_executable(root, f"{folder}/{path.name}"):
                return f"{folder}/{path.name}"
    return None


def check_root(root: Path, environment: Environment) -> None:
    """The root file system must be there and be the declared layer. Raises InputError, IntegrityError."""
    if not root.is_dir():
        raise InputError(f"environment {environment.name}: no root file system at {root}; build the image")
    found = layer_digest(root)
    if found != environment.layer:
        subject = f"environment {environment.name} at {root}"
        raise IntegrityError(f"{subject}: recorded layer {environment.layer}, found {found}; rebuild it")


def checked_variables(environment: Environment) -> dict[str, str]:
    """The environment's variables. Raises InputError for a name or value that no process can be given."""
    for key, value in environment.variables.items():
        if not key or "=" in key or "\0" in key + value or key.startswith("LD_"):
            raise InputError(f"environment {environment.name}: variable {key!r} cannot be set; remove it")
    return dict(environment.variables)


def first_run(python: str) -> Execution:
    """Harmless: a machine or image on which nothing can succeed must not look like failing attempts."""
    return Execution(argv=[python, "-I", "-S", "-c", "print(6 * 7)"], files={})


def check_first_run(root: Path, result: ExecutionResult) -> None:
    """Raises SandboxError unless `result` is what `first_run` gives on a machine that works."""
    if (result.stop, result.exit_code, result.stdout) != (Stop.EXIT, 0, "42\n"):
        detail = (result.stderr.strip().splitlines() or [f"exit code {result.exit_code}"])[-1][:200]
        raise SandboxError(f"sandbox: a first run in {root} failed ({result.stop}): {detail}; rebuild the image")


def rlimits(limits: Limits) -> dict[str, int]:
    """The floor below the cgroup, for each process. The stack is fixed, not limited: how deep a recursion gets must not
    depend on who started us."""
    return {
        "core": 1,  # 0 still hands a crash to the host's handler where core_pattern is a pipe; 1 hands it to nobody
        "cpu": math.ceil(limits.cpu_s) + 1,
        "fsize": limits.disk_mb << 20,
        "nofile": 1024,
        "stack": 8 << 20,
    }

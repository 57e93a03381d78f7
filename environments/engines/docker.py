"""The Docker engine: a warm container for each attempt, several executions in it; many hosts, another runtime.

A container is started before it is needed. Its first process is our warden (see warden.py): it waits for an order, lays
the files, runs the command, and answers when everything else in the container is dead. `run` then throws the container
away; a sandbox that was started for an attempt keeps it, emptied, for the attempt's next execution. No container is
handed on to another attempt, because a used one shows what ran before (process numbers, counters, closed connections).

Covered: read-only root, no network, no capability, user 10001, limits of the container's cgroup, /tests that only the
daemon can write, a daemon that is dead, hung or was restarted, containers of owners that are dead.
Not covered: shares of a core (limits count CPU-seconds); hiding from the command that it is in Docker.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from pathlib import Path

from environments.docker_image import load_image
from environments.engines import base
from environments.engines.base import NOT_IN_FORCE, SANDBOX_UID, TESTS, WORK, Outcome, Snapshot
from environments.engines.docker_container import Container, Ended
from environments.engines.docker_daemon import WARDEN_MB, Daemon, Image, Kind, talking
from environments.engines.guard import guard_filter
from environments.engines.pool import Pool
from environments.seccomp import build_filter
from schemas.errors import InputError, SandboxError
from schemas.execution import Environment, Execution, ExecutionResult, Limits, Stop


class DockerEngine:
    """Raises InputError (an unknown runtime), SandboxError (no daemon, or one that cannot do this).

    `spare` containers wait ready for each of the two kinds used last, once it was asked for twice; `timeout_s` bounds each
    call to the daemon but those that carry an image.
    """

    name = "docker"

    def __init__(self, runtime: str | None = None, spare: int = 2, timeout_s: float = 30.0) -> None:
        self._daemon = Daemon(runtime, timeout_s)
        counted = bool(self._daemon.about.get("MemoryLimit"))
        self._filters = [program.hex() for program in (build_filter(uncounted_memory=counted), guard_filter())]
        workers = max(2, min(8, os.cpu_count() or 2))
        self._pool = Pool(self._daemon.make, Container.waits, self._daemon.remove, spare, workers, 3 * timeout_s)
        self._spare = spare
        self._admitted: dict[tuple[Path, str], Image] = {}
        self._admission = threading.Lock()
        self._end = weakref.finalize(self, _end, self._pool, self._daemon)

    def enforced(self) -> list[str]:
        about = self._daemon.about
        how = f"cgroup v{about.get('CgroupVersion', '1')} of the container"
        missing = f"{NOT_IN_FORCE}: the daemon's cgroups lack the controller"
        swap = "no swap" if about.get("SwapLimit") else f"{NOT_IN_FORCE} for swap"
        memory = f"{how}, with {WARDEN_MB} MiB more for our first process, {swap}"
        options = sorted(item.split(",")[0].removeprefix("name=") for item in about.get("SecurityOptions") or [])
        return [
            f"memory_mb: {memory if about.get('MemoryLimit') else missing}",
            f"pids: {how if about.get('PidsLimit') else missing}",
            f"cpu_s: {how}, read by our first process, and RLIMIT_CPU for each process",
            "wall_s: clock of our first process, and of the engine with a margin",
            "disk_mb: tmpfs size of /work, /tmp and /dev/shm each, and RLIMIT_FSIZE",
            "output_kb: our first process keeps no more",
            f"user: uid {SANDBOX_UID}, no capability, no new privileges; the daemon has {', '.join(options) or 'no options'}",
            "nested user namespaces: refused by the system-call filter",
            "network: a namespace with nothing in it; what it could not deliver is counted, refused sockets are not",
            "root file system: read-only; /tests belongs to the daemon's root",
            f"system calls: filter of {len(self._filters[0]) // 16} instructions, on top of the daemon's",
            f"runtime: {self._daemon.runtime or about.get('DefaultRuntime', 'the default of the daemon')}",
            f"a fresh container for each attempt, {self._spare} started ahead",
        ]

    def run(self, environment_root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        """See Engine.run. What the daemon or the connection fails at is SandboxError, whatever the command did."""
        with contextlib.closing(self.start(environment_root, environment, limits)) as attempt:
            return attempt.run(execution)

    def prepare(self, environment_root: Path, environment: Environment) -> None:
        self._admit(environment_root, environment)

    def start(self, environment_root: Path, environment: Environment, limits: Limits) -> Attempt:
        """See SandboxEngine.start. A container is taken when the first execution needs one."""
        return Attempt(self, environment_root, environment, limits)

    def close(self) -> None:
        """Remove the containers that wait. It happens by itself when nothing refers to the engine any more."""
        self._end()

    def _admit(self, root: Path, environment: Environment) -> Image:
        """Check the layer here and in the daemon, once a process; load it if it is not there."""
        key = (root, environment.layer)
        with self._admission:
            if key not in self._admitted:
                with talking("start"):
                    self._daemon.ping()  # one that is dead must not cost a hash of the whole image at each try
                base.check_root(root, environment)
                python = base.find_python(root)
                if python is None:
                    raise InputError(f"environment {environment.name}: no Python 3 in {root}; engine docker needs one")
                with (
                    talking(f"image of environment {environment.name}"),
                    contextlib.closing(self._daemon.patient()) as client,
                ):
                    image = Image(load_image(client, root, environment), python)
                self._try(root, image)
                self._admitted[key] = image
            return self._admitted[key]

    def _try(self, root: Path, image: Image) -> None:
        container = self._take(image, Limits(), {})
        try:
            base.check_first_run(root, self._execute(container, {}, base.first_run(image.python), Limits()).result)
        finally:
            self._pool.discard(container)

    def _forget(self, root: Path, environment: Environment) -> None:
        """Perhaps the image is gone, or it is another daemon now: look again next time."""
        with self._admission:
            self._admitted.pop((root, environment.layer), None)

    def _take(self, image: Image, limits: Limits, readonly: dict[str, str]) -> Container:
        """One that nobody has used, with these files below /tests."""
        container = self._pool.take(Kind(image, limits.model_copy(update={"cpu_s": 1.0, "wall_s": 1.0})))
        try:
            if readonly:
                with talking("tests of a sandbox"):
                    self._daemon.lay(container, TESTS, readonly)
        except BaseException:
            self._pool.discard(container)
            raise
        return container

    def _execute(
        self, container: Container, variables: dict[str, str], execution: Execution, limits: Limits
    ) -> Outcome:
        try:
            with talking("run"):
                container.send_order(execution, limits, variables, self._filters, self._daemon.timeout_s)
                if not container.speaks_within(limits.wall_s + 1):
                    self._daemon.ping()  # raises at once when it is not the container that is late
                return container.outcome(execution, limits, self._daemon.timeout_s)
        except Ended as ended:
            self._explain(container, ended)
            return Outcome(ExecutionResult(stop=Stop.MEMORY, exit_code=None, stdout="", stderr=""), {})

    def _snapshot(self, container: Container, limits: Limits) -> Snapshot:
        try:
            with talking("snapshot"):
                return container.snapshot(limits, self._daemon.timeout_s)
        except Ended as ended:
            self._explain(container, ended)
            return Snapshot({}, False)

    def _explain(self, container: Container, ended: Ended) -> None:
        """The first process went without its last word. Returns when it was killed for the container's memory, which is
        the attempt's doing; everything else is infrastructure: SandboxError."""
        with talking("end of a sandbox"):
            state = self._daemon.last_state(container)
        if not state.get("OOMKilled"):
            detail = f"exit code {state.get('ExitCode')}, {ended}"
            raise SandboxError(f"docker: the sandbox died before its answer ({detail}); try again")


class Attempt:
    """The container of one attempt: taken at its first execution, emptied before each of the others.

    Another set of files below /tests needs another container: nobody inside could remove the old ones.
    """

    def __init__(self, engine: DockerEngine, root: Path, environment: Environment, limits: Limits) -> None:
        self._engine, self._root, self._environment, self._limits = engine, root, environment, limits
        self._variables = {**base.checked_variables(environment), "PWD": WORK}
        self._container: Container | None = None
        self._readonly: dict[str, str] = {}

    def run(self, execution: Execution) -> Outcome:
        """See Sandbox.run."""
        base.check_execution(execution, self._limits)
        image = self._engine._admit(self._root, self._environment)
        base.check_command(self._root, execution.argv, self._variables)
        try:
            container = self._ready(image, execution.readonly)
            return self._engine._execute(container, self._variables, execution, self._limits)
        except BaseException as error:
            self.close()
            if isinstance(error, SandboxError):
                self._engine._forget(self._root, self._environment)
            raise

    def _ready(self, image: Image, readonly: dict[str, str]) -> Container:
        if self._container and not (readonly == self._readonly and self._container.emptied()):
            self.close()
        if self._container is None:
            self._container = self._engine._take(image, self._limits, readonly)
            self._readonly = readonly
        return self._container

    def snapshot(self) -> Snapshot:
        return self._engine._snapshot(self._container, self._limits) if self._container else Snapshot({}, False)

    def close(self) -> None:
        container, self._container = self._container, None
        if container:
            self._engine._pool.discard(container)


def _end(pool: Pool[Kind, Container], daemon: Daemon) -> None:
    pool.close()
    daemon.close()

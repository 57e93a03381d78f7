"""The embedded engine: a fresh bubblewrap sandbox for each execution, thread-safe, nothing left behind.

The order is what makes it safe. As root the real user is dropped first (bubblewrap started as root maps its user to the
host's root). bubblewrap builds the sandbox and then blocks on a pipe; now, before any of the command's code exists, its
first process joins the cgroup and gets its rlimits; then one byte lets it go. If that byte is still in the pipe at the
end, the sandbox never started: that is infrastructure, everything later is the attempt's.

Covered: files (through memory, never through the host's disk), output caps, CPU, wall, memory, processes, read-back, what
the empty network blocked. A sandbox that is kept for an attempt is a fresh one for each execution all the same: that
costs less than emptying one, and hides more.
Not covered: shares of a core; telling `exit(137)` from SIGKILL: bubblewrap, as shells and Docker do, reports 128+n for
both, so an exit code of 129 to 192 is read as a signal. bubblewrap sets PWD=/work beside the declared variables.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import secrets
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from environments.engines import base, cgroups
from environments.engines.base import NOT_IN_FORCE, SANDBOX_UID, TESTS, WORK, Outcome, Snapshot
from environments.engines.reading import Capture, NetworkCounter, collect_files, each_file_of_tree
from environments.image import publish
from environments.seccomp import build_filter
from schemas.errors import SandboxError
from schemas.execution import Environment, Execution, ExecutionResult, Limits, Stop

_START_S = 30.0
_DIE_S = 10.0
_CHUNK = 1 << 16
_MIB = 1 << 20
_RESTORED = {signal.SIGPIPE, signal.SIGXFSZ}  # by subprocess itself
_UNDEAD = f"sandbox: its processes live {_DIE_S:.0f} s after SIGKILL; look for stuck input/output"
_USERNS_REMEDY = "allow unprivileged user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0)"


class BubblewrapEngine:
    """Raises SandboxError when bubblewrap cannot work here. `use_cgroups=False` limits by rlimits, as without root."""

    name = "bubblewrap"

    def __init__(self, use_cgroups: bool = True) -> None:
        self._bwrap = _find("bwrap", "bubblewrap")
        self._drop = _drop_user() if os.getuid() == 0 else []
        self._features = subprocess.run([self._bwrap, "--help"], capture_output=True, text=True, check=False).stdout
        self._tree = cgroups.open_tree() if use_cgroups else None
        self._filter = build_filter(uncounted_memory=self._tree is not None)
        self._admitted: dict[tuple[Path, str], Path] = {}
        self._admission = threading.Lock()
        self._many_files = threading.Lock()  # hundreds of descriptors are open for a moment: one thread at a time

    def enforced(self) -> list[str]:
        user = f"setpriv to uid {SANDBOX_UID}" if self._drop else f"host uid {os.getuid()}, which is not root's"
        nested = "disabled" if "--disable-userns" in self._features else "refused by the system-call filter only"
        return [
            *_enforced_by(self._tree),
            "wall_s: clock of the engine",
            "disk_mb: tmpfs size of /work, /tmp and /dev/shm each, and RLIMIT_FSIZE",
            "output_kb: the engine reads no more",
            f"user: {user}",
            f"nested user namespaces: {nested}",
            "network: a namespace with nothing in it; what it could not deliver is counted, refused sockets are not",
            f"system calls: filter of {len(self._filter) // 8} instructions",
        ]

    def run(self, environment_root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        """See Engine.run. Its thread must stay alive: bubblewrap dies with the thread that started it."""
        return self.start(environment_root, environment, limits).run(execution, hold=False)

    def prepare(self, environment_root: Path, environment: Environment) -> None:
        self._admit(environment_root, environment)

    def start(self, environment_root: Path, environment: Environment, limits: Limits) -> Place:
        """See SandboxEngine.start. Nothing is started yet, and nothing waits between two executions."""
        return Place(self, environment_root, environment, limits)

    def close(self) -> None:
        """See SandboxEngine.close. Nothing waits."""

    def _admit(self, root: Path, environment: Environment) -> Path:
        """Check the layer once a process, and make it reachable for the sandbox's user."""
        key = (root, environment.layer)
        with self._admission:
            if key not in self._admitted:
                base.check_root(root, environment)
                reachable = publish(root, environment.layer) if self._drop else root.resolve()
                self._prove(reachable)
                self._admitted[key] = reachable
            return self._admitted[key]

    def _prove(self, root: Path) -> None:
        if python := base.find_python(root):
            base.check_first_run(root, self._run(root, {}, base.first_run(python), Limits()).result)

    def _run(
        self,
        root: Path,
        variables: dict[str, str],
        execution: Execution,
        limits: Limits,
        held: Callable[[int], None] | None = None,
    ) -> Outcome:
        """`held` is given the open tree once nothing can change it any more."""
        try:
            meter = self._tree.create(limits) if self._tree else cgroups.PolledMeter(limits)
        except OSError as error:
            raise SandboxError(f"cgroup for a sandbox: {error}; free memory or remove stale groups") from error
        try:
            with self._started(root, variables, execution, limits, held is not None) as sandbox:
                outcome = _supervise(sandbox, execution, limits, meter)
                if held:
                    held(sandbox.work)
                return outcome
        except OSError as error:
            raise SandboxError(f"sandbox: {error}; check memory, open files (ulimit -n) and disk") from error
        finally:
            meter.remove()

    @contextlib.contextmanager
    def _started(
        self, root: Path, variables: dict[str, str], execution: Execution, limits: Limits, hold: bool
    ) -> Iterator[_Sandbox]:
        """A sandbox that is built or being built, and blocked. However this ends, nothing of it is alive afterwards."""
        with contextlib.ExitStack() as ours:
            sandbox = _Sandbox(self._drop)
            marker = f".ready-{secrets.token_hex(8)}" if execution.collect or hold else None
            bulk = len(execution.files) + len(execution.readonly) > 16
            with contextlib.ExitStack() as theirs, self._many_files if bulk else contextlib.nullcontext():
                pipes = {name: _pipe(ours, theirs, name == "release") for name in ("out", "err", "status", "release")}
                options = _Options(theirs)
                options.add_base(root, limits, self._features)
                options.add_tree(WORK, execution.files, limits.disk_mb * _MIB)
                options.add_tree(TESTS, execution.readonly, 65 * _MIB)
                options.add("--remount-ro", TESTS)
                if marker:
                    options.add("--dir", f"{WORK}/{marker}")
                for key, value in variables.items():
                    options.add("--setenv", key, value)
                options.add("--seccomp", str(options.data(self._filter)))
                options.add("--json-status-fd", str(pipes["status"][1]), "--block-fd", str(pipes["release"][1]))
                stdin = _memory_file(theirs, execution.stdin.encode()) if execution.stdin else subprocess.DEVNULL
                argv = [
                    *_signals_as_usual(),
                    *self._drop,
                    self._bwrap,
                    "--args",
                    str(options.sealed()),
                    "--",
                    *execution.argv,
                ]
                inherited = [*options.fds, pipes["status"][1], pipes["release"][1]]
                out, err = pipes["out"][1], pipes["err"][1]
                sandbox.process = subprocess.Popen(
                    argv, stdin=stdin, stdout=out, stderr=err, pass_fds=inherited, env={}, cwd="/", umask=0o022
                )
                sandbox.release_reader = os.dup(pipes["release"][1])
                ours.callback(os.close, sandbox.release_reader)
            ours.callback(sandbox.destroy)
            sandbox.outer = os.pidfd_open(sandbox.process.pid)
            sandbox.stdout = Capture(pipes["out"][0], limits.output_kb * 1024)
            sandbox.stderr = Capture(pipes["err"][0], limits.output_kb * 1024)
            sandbox.status = Capture(pipes["status"][0], _CHUNK)
            sandbox.release = pipes["release"][0]
            sandbox.marker = marker
            yield sandbox


class Place:
    """One attempt's executions, each in a fresh sandbox; the tree that the last one left is held open."""

    def __init__(self, engine: BubblewrapEngine, root: Path, environment: Environment, limits: Limits) -> None:
        self._engine, self._limits = engine, limits
        self._variables = base.checked_variables(environment)
        self._root = engine._admit(root, environment)
        self._work = -1

    def run(self, execution: Execution, hold: bool = True) -> Outcome:
        """See Sandbox.run."""
        base.check_execution(execution, self._limits)
        base.check_command(self._root, execution.argv, self._variables)
        self.close()
        return self._engine._run(self._root, self._variables, execution, self._limits, self._held if hold else None)

    def _held(self, work: int) -> None:
        self._work = os.dup(work)

    def snapshot(self) -> Snapshot:
        if self._work < 0:
            return Snapshot({}, False)
        found = dict(each_file_of_tree(self._work, self._limits.disk_mb * _MIB))
        return Snapshot({path: data for path, data in found.items() if data is not None}, None not in found.values())

    def close(self) -> None:
        work, self._work = self._work, -1
        if work >= 0:
            os.close(work)


def _enforced_by(tree: cgroups.Tree | None) -> list[str]:
    """How memory, processes and CPU-seconds are limited."""
    if tree:
        how = f"cgroup {tree.version}"
        together = f"{how}, all processes together"
        return [f"memory_mb: {together}", f"pids: {together}", f"cpu_s: {how}, and RLIMIT_CPU for each process"]
    sampled = "the sum is sampled each 20 ms"
    return [
        f"memory_mb: {NOT_IN_FORCE} for all processes together, since no control group may be written here (root may): "
        f"RLIMIT_AS for each, {sampled}; not covered: full sockets and pipes, empty files",
        "pids: RLIMIT_NPROC in the sandbox's user namespace (since Linux 5.14)",
        f"cpu_s: {NOT_IN_FORCE} for processes that end unseen between samples: RLIMIT_CPU for each, {sampled}",
    ]


def _find(program: str, package: str) -> str:
    path = shutil.which(program)
    if not path:
        raise SandboxError(f"sandbox: {program} is not installed; install it: apt-get install {package}")
    return path


def _drop_user() -> list[str]:
    uid = str(SANDBOX_UID)
    setpriv = _find("setpriv", "util-linux")
    return [setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]


def _signals_as_usual() -> list[str]:
    """Under nohup, or in the background of a script, signals are ignored, and what we start would inherit that."""
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
    return [_find("env", "coreutils"), "--default-signal"] if ignored - _RESTORED else []


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack, reads: bool) -> tuple[int, int]:
    """(our end, the sandbox's end)."""
    reader, writer = os.pipe()
    mine, other = (writer, reader) if reads else (reader, writer)
    ours.callback(os.close, mine)
    theirs.callback(os.close, other)
    os.set_blocking(mine, False)
    return mine, other


def _memory_file(stack: contextlib.ExitStack, data: bytes) -> int:
    """A sealed file in memory, positioned at its start: the sandbox can neither grow nor change it."""
    fd = os.memfd_create("data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    stack.callback(os.close, fd)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    return fd


class _Options:
    """bubblewrap's options, handed over in memory: what stands in argv the sandbox could read in /proc/1/cmdline."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._words: list[str] = []
        self.fds: list[int] = []

    def add(self, *words: str) -> None:
        self._words += words

    def data(self, content: bytes) -> int:
        self.fds.append(_memory_file(self._stack, content))
        return self.fds[-1]

    def sealed(self) -> int:
        return self.data(b"".join(word.encode() + b"\0" for word in self._words))

    def add_base(self, root: Path, limits: Limits, features: str) -> None:
        size = str(limits.disk_mb * _MIB)
        self.add("--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
        if "--disable-userns" in features:
            self.add("--disable-userns")
        self.add("--uid", str(SANDBOX_UID), "--gid", str(SANDBOX_UID), "--hostname", "sandbox", "--clearenv")
        self.add("--ro-bind", str(root), "/", "--proc", "/proc", "--dev", "/dev")
        self.add("--perms", "1777", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev")  # noqa: S108
        self.add("--perms", "1777", "--size", size, "--tmpfs", "/tmp", "--chdir", WORK)  # noqa: S108

    def add_tree(self, top: str, files: dict[str, str], size_bytes: int) -> None:
        self.add("--perms", "0755", "--size", str(size_bytes), "--tmpfs", top)
        for path in sorted(files):
            self.add("--perms", "0644", "--file", str(self.data(files[path].encode())), f"{top}/{path}")


@dataclass
class _Sandbox:
    """One running bubblewrap: the outer process, its first process inside, and our ends of the pipes."""

    drop: list[str]
    process: subprocess.Popen[bytes] = field(init=False)
    stdout: Capture = field(init=False)
    stderr: Capture = field(init=False)
    status: Capture = field(init=False)
    outer: int = -1
    release: int = -1
    release_reader: int = -1
    first: int = -1
    work: int = -1
    network: NetworkCounter | None = None
    marker: str | None = None

    def destroy(self) -> None:
        """The death of the first process takes its whole pid namespace along, however often it forked."""
        self.kill()
        if not _readable(self.outer, _DIE_S):
            self.process.kill()
        self.process.wait()
        for fd in (self.outer, self.first, self.work):
            if fd >= 0:
                os.close(fd)
        if self.network:
            self.network.close()

    def kill(self) -> None:
        if self.first >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first, signal.SIGKILL)
        else:
            self.process.kill()

    def wait_all_dead(self) -> None:
        self.kill()
        if not _readable(self.first, _DIE_S):
            raise SandboxError(_UNDEAD)

    def child_pid(self) -> int | None:
        return next((item["child-pid"] for item in self._statuses() if "child-pid" in item), None)

    def exit_code(self) -> int | None:
        return next((item["exit-code"] for item in self._statuses() if "exit-code" in item), None)

    def _statuses(self) -> Iterator[dict[str, int]]:
        for line in bytes(self.status.kept).split(b"\n")[:-1]:
            yield json.loads(line)

    def refused(self, what: str) -> SandboxError:
        """Names bubblewrap's own last words."""
        for _ in range(16):
            self.stderr.drain()
        lines = self.stderr.text().strip().splitlines()
        detail = lines[-1][:200] if lines else f"no message, exit code {self.process.poll()}"
        return SandboxError(f"sandbox {what}: {detail}; {_USERNS_REMEDY}, or check free memory and disk")


def _readable(fd: int, timeout_s: float) -> bool:
    if fd < 0:
        return False
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _supervise(sandbox: _Sandbox, execution: Execution, limits: Limits, meter: cgroups.Meter) -> Outcome:
    _enter(sandbox, limits, meter)
    started = time.monotonic()
    os.write(sandbox.release, b"g")
    stop = _watch(sandbox, limits, meter, started + limits.wall_s)
    wall_s = time.monotonic() - started
    sandbox.wait_all_dead()
    for capture in (sandbox.stdout, sandbox.stderr, sandbox.status):
        capture.drain()
    if stop is None and _readable(sandbox.release_reader, 0):  # the byte is still there: nobody took it
        raise sandbox.refused("did not start")
    stop, code = _classify(stop, sandbox, limits, meter)
    files: dict[str, str] = {}
    left_out = False
    if execution.collect:
        files, left_out = collect_files(sandbox.work, execution.collect, limits.disk_mb * _MIB)
    result = ExecutionResult(
        stop=stop, exit_code=code, stdout=sandbox.stdout.text(), stderr=sandbox.stderr.text(), files=files,
        truncated=sandbox.stdout.truncated or sandbox.stderr.truncated or left_out,
    )  # fmt: skip
    telemetry = {"wall_s": wall_s, "cpu_s": meter.cpu_s(), "peak_mb": meter.peak_mb()}
    if sandbox.network and (blocked := sandbox.network.count()):
        telemetry["network"] = blocked
    return Outcome(result, telemetry)


def _enter(sandbox: _Sandbox, limits: Limits, meter: cgroups.Meter) -> None:
    """Wait for the first process, hold on to it, and put it under its limits while it cannot run foreign code."""
    deadline = time.monotonic() + _START_S
    poll = select.poll()
    poll.register(sandbox.status.fd, select.POLLIN)
    while (pid := sandbox.child_pid()) is None:
        if sandbox.status.ended or not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise sandbox.refused("did not start")
        sandbox.status.drain()
    try:
        sandbox.first = os.pidfd_open(pid)
        sandbox.network = NetworkCounter(f"/proc/{pid}/net")
        meter.join(pid)
        _set_rlimits(pid, limits, isinstance(meter, cgroups.PolledMeter), sandbox.drop)
    except ProcessLookupError:
        raise sandbox.refused("did not start") from None
    if sandbox.marker:
        sandbox.work = _open_work(sandbox, pid, sandbox.marker, deadline)


_RLIMITS = {
    "core": resource.RLIMIT_CORE,
    "cpu": resource.RLIMIT_CPU,
    "fsize": resource.RLIMIT_FSIZE,
    "nofile": resource.RLIMIT_NOFILE,
    "stack": resource.RLIMIT_STACK,
    "as": resource.RLIMIT_AS,
    "nproc": resource.RLIMIT_NPROC,
}


def _set_rlimits(pid: int, limits: Limits, alone: bool, drop: list[str]) -> None:
    """The floor below the cgroup; without one (`alone`) also memory and processes."""
    wanted = base.rlimits(limits)
    if alone:
        wanted |= {"as": limits.memory_mb * _MIB, "nproc": limits.pids + 1}
    try:
        for kind, value in wanted.items():
            _, hard = resource.prlimit(pid, _RLIMITS[kind])
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.prlimit(pid, _RLIMITS[kind], (bound, bound))
    except PermissionError:
        # a root without CAP_SYS_RESOURCE may not; the sandbox's own user may
        command = [*drop, "prlimit", f"--pid={pid}", *(f"--{kind}={value}:{value}" for kind, value in wanted.items())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and not Path(f"/proc/{pid}/root").exists():
            raise ProcessLookupError(
                pid
            ) from None  # it ended meanwhile, as when bubblewrap could not start: that is its own story
        if done.returncode:
            raise SandboxError(f"sandbox: limits of {pid}: {done.stderr.strip()[:200]}; see ulimit -H -a") from None


def _open_work(sandbox: _Sandbox, pid: int, marker: str, deadline: float) -> int:
    """Hold the tree open through /proc: it outlives the sandbox and is read when nothing can change it any more.

    bubblewrap moves its root several times; only the folder that holds the marker, its last option, is the right one.
    """
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            work = os.open(f"/proc/{pid}/root{WORK}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.rmdir(marker, dir_fd=work)
                return work
            except FileNotFoundError:
                os.close(work)
        if _readable(sandbox.outer, 0.0005):
            break
    raise sandbox.refused("did not start")


def _watch(sandbox: _Sandbox, limits: Limits, meter: cgroups.Meter, deadline: float) -> Stop | None:
    """Until the outer process has ended. Returns why it was killed, or None when it ended by itself."""
    cores = len(os.sched_getaffinity(0))
    poll = select.poll()
    poll.register(sandbox.outer, select.POLLIN)
    streams = {capture.fd: capture for capture in (sandbox.stdout, sandbox.stderr, sandbox.status)}
    for fd in streams:
        poll.register(fd, select.POLLIN)
    stop: Stop | None = None
    while True:
        now, used = time.monotonic(), meter.cpu_s()
        if stop is None and (stop := _exceeded(limits, meter, used, now, deadline)):
            meter.kill()
            sandbox.kill()
            deadline = now + _DIE_S
        elif stop is not None and now > deadline:
            raise SandboxError(_UNDEAD)
        # CPU time cannot grow faster than the cores allow, so the next look may wait that long
        pause = min(deadline - now, max(0.005, (limits.cpu_s - used) / cores), meter.poll_s) if stop is None else 0.05
        for fd, _ in poll.poll(max(0.0, pause) * 1000 + 1):
            if fd == sandbox.outer:
                return stop
            streams[fd].drain()
            if streams[fd].ended:
                poll.unregister(fd)


def _exceeded(limits: Limits, meter: cgroups.Meter, used_s: float, now: float, deadline: float) -> Stop | None:
    if meter.out_of_memory():
        return Stop.MEMORY
    if used_s >= limits.cpu_s:
        return Stop.CPU
    return Stop.WALL if now >= deadline else None


def _classify(stop: Stop | None, sandbox: _Sandbox, limits: Limits, meter: cgroups.Meter) -> tuple[Stop, int | None]:
    """A limit counts even when the command ended before the next look at the meter: its time of death is chance."""
    if stop is None and (exceeded := _exceeded(limits, meter, meter.cpu_s(), 0.0, 1.0)):
        stop = exceeded
    if stop is not None:
        return stop, None
    code = sandbox.exit_code()
    if code is None:
        if "bwrap: execvp" not in sandbox.stderr.text():
            raise sandbox.refused("died")
        sandbox.stderr.kept = sandbox.stderr.kept.removeprefix(b"bwrap: ")  # no engine is named in a result
        return Stop.EXIT, 127  # all was built, but the command's file is missing or cannot be executed
    return (Stop.SIGNAL, None) if 128 < code <= 192 else (Stop.EXIT, code)

"""The first process of a container: lays the files, runs a command under its limits, reads the files back; and again.

Its text is handed to the image's own Python (3.9 or later, with ctypes) when the container starts, so it imports the
standard library and `reading`, which travels with it. It runs as the sandbox's user and without any capability. What keeps
the command, which is the same user, away from it: it is not dumpable (no /proc/1/mem, no /proc/1/fd, no ptrace), signals
from inside do not reach the first process of a namespace, and the command's filter refuses to change another process's
limits or priority. It answers only when all is over, so an engine that hangs cannot make it miss a limit; an engine that
is gone ends it, and the container with it.

Between two executions of one attempt it empties what the user may write: files, modes and attributes, shared memory,
semaphores, message queues; all processes are dead already. What it cannot set back (process numbers, the counters of the
network and of the cgroup's peak) only the same attempt can see. Where it fails, the engine takes another container.

Not covered: being killed for the container's memory. Then there is no answer, and the engine learns why from Docker.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

from environments.engines.reading import Capture, NetworkCounter, each_file, each_file_of_tree

FIRST_PID = 32  # of the command, the same each time, however many threads the container's runtime had
DIE_S = 10.0
_POLL_S = 0.25
_CHUNK = 1 << 16
_CGROUPS = "/sys/fs/cgroup/"
_WRITABLE = {"/work": 0o755, "/tmp": 0o1777, "/dev/shm": 0o1777}  # noqa: S108
_MAX_ENTRIES, _MAX_DEPTH = 5000, 64
_SET_DUMPABLE, _SET_SECCOMP, _FILTER_MODE = 4, 22, 2
_RESET = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)


def main() -> None:
    """Called once the text has arrived. Ends the process."""
    for number in _RESET:  # a handler is a door: the default of a first process is to ignore
        signal.signal(number, signal.SIG_DFL)
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, _SET_DUMPABLE, 0)
    os.umask(0o022)
    for path, mode in _WRITABLE.items():  # runc gives them the modes that they have in the image
        os.chmod(path, mode)
    meter, network = _Meter(), NetworkCounter("/proc/self/net")
    _spend_pids()
    _say({"ready": meter.version, "peak_mb": meter.peak_mb()})
    while True:
        head, size = _receive()
        if "file" in head:
            _lay(head["file"], size)
        elif "order" in head:
            order = {**head["order"], "stdin": _input(size)}
            _answer(order, _run(order, meter, network, libc))
        elif "snapshot" in head:
            _tell_tree(head["snapshot"])
        else:
            _say({"empty": _emptied(libc) and not meter.out_of_memory()})


# --- the wire: two lengths, a JSON object, raw data -----------------------------------------------------------------


def message(head: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(4, "big") + len(data).to_bytes(4, "big") + text + data


def _say(head: dict[str, Any], data: bytes = b"") -> None:
    unsent = memoryview(message(head, data))
    while unsent:
        unsent = unsent[os.write(1, unsent[:_CHUNK]) :]


def _read(count: int) -> bytes:
    """Exactly so much of the engine's words; the process ends when the engine is gone."""
    parts: list[bytes] = []
    while count:
        part = os.read(0, min(count, _CHUNK))
        if not part:
            os._exit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _receive() -> tuple[dict[str, Any], int]:
    """The next request, and how many bytes of data follow it: they are read in pieces, so that none is in memory whole."""
    sizes = _read(8)
    head: dict[str, Any] = json.loads(_read(int.from_bytes(sizes[:4], "big")))
    return head, int.from_bytes(sizes[4:], "big")


def _lay(name: str, size: int) -> None:
    path = "/work/" + name
    os.makedirs(os.path.dirname(path), exist_ok=True)
    _copy(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), size)


def _copy(fd: int, size: int) -> None:
    while size:
        part = _read(min(size, _CHUNK))
        size -= len(part)
        while part:
            part = part[os.write(fd, part) :]
    os.close(fd)


def _input(size: int) -> int:
    """A sealed file in memory, as on the other engine, or the null device."""
    if not size:
        return os.open("/dev/null", os.O_RDONLY)
    import fcntl

    fd = os.memfd_create("data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    _copy(os.dup(fd), size)
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    return fd


# --- what is used ---------------------------------------------------------------------------------------------------


class _Meter:
    """The container's own cgroup, which Docker shows inside it, read-only. `base_s` is taken when the command starts."""

    def __init__(self) -> None:
        self.version = "v2" if os.path.exists(_CGROUPS + "cpu.stat") else "v1"
        if self.version == "v2":
            self._cpu, self._events, peak = "cpu.stat", "memory.events", "memory.peak"
            self._peak = peak if os.path.exists(_CGROUPS + peak) else "memory.current"
        else:
            self._cpu, self._events = "cpuacct/cpuacct.usage", "memory/memory.oom_control"
            self._peak = "memory/memory.max_usage_in_bytes"
        self.base_s = 0.0
        self._total_s()
        self.out_of_memory()

    def _total_s(self) -> float:
        text = _text(self._cpu)
        used = int(text) / 1e9 if self.version == "v1" else _counter(text, "usage_usec") / 1e6
        return used - time.process_time()

    def start(self) -> None:
        self.base_s = self._total_s()

    def cpu_s(self) -> float:
        """Of the command and all that it started."""
        return max(0.0, self._total_s() - self.base_s)

    def peak_mb(self) -> float:
        return int(_text(self._peak)) / 2**20

    def out_of_memory(self) -> bool:
        return _counter(_text(self._events), "oom_kill") > 0


def _text(name: str) -> str:
    with open(_CGROUPS + name) as file:
        return file.read()


def _counter(text: str, key: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(key + " ")), 0)


def _spend_pids() -> None:
    while True:
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        if pid >= FIRST_PID - 1:
            return


# --- the command ----------------------------------------------------------------------------------------------------


def _run(order: dict[str, Any], meter: _Meter, network: NetworkCounter, libc: Any) -> dict[str, Any]:
    """Start, watch, kill everything. What comes back is said to the engine."""
    out, err, status = (os.pipe() for _ in range(3))
    filters = [_program(bytes.fromhex(text)) for text in order["filters"]]
    work = os.open("/work", os.O_RDONLY | os.O_DIRECTORY)
    meter.start()
    network.start()
    started = time.monotonic()
    pid = os.fork()
    if not pid:
        _become(order, libc, filters, out[1], err[1], status[1])
    for fd in (order["stdin"], out[1], err[1], status[1]):
        os.close(fd)
    with os.fdopen(status[0], "rb") as file:
        problem = file.read()
    streams = [Capture(fd, order["output_bytes"]) for fd in (out[0], err[0])]
    for stream in streams:
        os.set_blocking(stream.fd, False)
    stop = _watch(pid, order, meter, started, streams)
    wall_s = time.monotonic() - started
    code = _end_all(pid)
    for stream in streams:
        stream.drain()
        os.close(stream.fd)
    stop = stop or _exceeded(order, meter, 0.0)
    told: dict[str, Any] = {"stop": stop, "code": code, "problem": problem.decode("utf-8", "replace")}
    told.update(wall_s=wall_s, cpu_s=meter.cpu_s(), peak_mb=meter.peak_mb(), network=network.count(), work=work)
    told.update(streams=[bytes(stream.kept) for stream in streams], cut=any(stream.truncated for stream in streams))
    return told


def _become(order: dict[str, Any], libc: Any, filters: list[Any], out: int, err: int, status: int) -> None:
    """In the child: turn into the command, or say why not. Descriptors above 2 close by themselves."""
    step = "limits"
    try:
        for fd, place in ((order["stdin"], 0), (out, 1), (err, 2)):
            os.dup2(fd, place)
        os.chdir("/work")
        for kind, value in order["rlimits"].items():
            number = getattr(resource, "RLIMIT_" + kind.upper())
            hard = resource.getrlimit(number)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (bound, bound))
        for program in filters:
            _prctl(libc, _SET_SECCOMP, _FILTER_MODE, ctypes.byref(program))
        step = "execvp"
        os.execvpe(order["argv"][0], order["argv"], order["variables"])  # noqa: S606
    except BaseException as error:  # noqa: BLE001  this is the child: nothing may go on from here
        said = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else repr(error)
        os.write(status, f"{step} {order['argv'][0] if step == 'execvp' else said}: {said}\n".encode())
    os._exit(127)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _program(code: bytes) -> _Program:
    return _Program(len(code) // 8, code)


def _prctl(libc: Any, *arguments: Any) -> None:
    words = [ctypes.c_ulong(item) if isinstance(item, int) else item for item in arguments]
    if libc.prctl(*words, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _watch(pid: int, order: dict[str, Any], meter: _Meter, started: float, streams: list[Capture]) -> str | None:
    """Until the command has ended or is to be ended: why, or None when it ended by itself."""
    ended = os.pidfd_open(pid)
    try:
        return _watched(ended, order, meter, started, streams)
    finally:
        os.close(ended)


def _watched(ended: int, order: dict[str, Any], meter: _Meter, started: float, streams: list[Capture]) -> str | None:
    cores = os.cpu_count() or 1
    poll = select.poll()
    for fd in (0, ended, *(stream.fd for stream in streams)):
        poll.register(fd, select.POLLIN)
    while True:
        wall_s, used = time.monotonic() - started, meter.cpu_s()
        if stop := _exceeded(order, meter, wall_s):
            return stop
        # CPU time cannot grow faster than the cores allow, so the next look may wait that long
        pause = min(order["wall_s"] - wall_s, max(0.005, (order["cpu_s"] - used) / cores), _POLL_S)
        for fd, _ in poll.poll(max(0.0, pause) * 1000 + 1):
            if fd == ended:
                return None
            if fd == 0:
                os._exit(0)  # the engine is gone; so is, with its first process, the container
            stream = next(stream for stream in streams if stream.fd == fd)
            stream.drain()
            if stream.ended:
                poll.unregister(fd)


def _exceeded(order: dict[str, Any], meter: _Meter, wall_s: float) -> str | None:
    if meter.out_of_memory():
        return "memory"
    if meter.cpu_s() >= order["cpu_s"]:
        return "cpu"
    return "wall" if wall_s >= order["wall_s"] else None


def _end_all(command: int) -> int:
    """SIGKILL to everything but this process, again and again until nothing is left; the command's wait status.

    One such kill reaches all at once: a process that is forking meanwhile takes the signal with it.
    """
    code = 0
    deadline = time.monotonic() + DIE_S
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == command:
                    code = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            return code
        if time.monotonic() > deadline:
            sys.exit(f"its processes live {DIE_S:.0f} s after SIGKILL; look for stuck input/output")
        time.sleep(0.001)


def _answer(order: dict[str, Any], told: dict[str, Any]) -> None:
    out, err = told.pop("streams")
    work = told.pop("work")
    _say({"stream": "stdout"}, out)
    _say({"stream": "stderr"}, err)
    for path, data in each_file(work, order["collect"], order["disk_bytes"]):
        if data is None:
            told["cut"] = True
        else:
            _say({"file": path}, data)
    os.close(work)
    _say({"told": told})


# --- between executions ---------------------------------------------------------------------------------------------


def _tell_tree(most: int) -> None:
    """What is in /work now: nothing where the command has closed it to its own user."""
    whole = True
    with contextlib.suppress(PermissionError):
        work = os.open("/work", os.O_RDONLY | os.O_DIRECTORY)
        for path, data in each_file_of_tree(work, most):
            if data is None:
                whole = False
            else:
                _say({"file": path}, data)
        os.close(work)
    _say({"whole": whole})


def _emptied(libc: Any) -> bool:
    """Whether everything that the user may write is as it was at the start."""
    try:
        for path, mode in _WRITABLE.items():
            os.chmod(path, mode)
            _empty(path)
        if os.path.isdir("/dev/mqueue"):
            _empty("/dev/mqueue")
        return not _shared(libc)
    except OSError:
        return False


def _empty(path: str) -> None:
    """Raises OSError, also when there is so much in it that a fresh container is quicker."""
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    for name in os.listxattr(top):
        if name.startswith(("user.", "system.")):
            os.removexattr(top, name)
    _empty_folder(top, [_MAX_ENTRIES], _MAX_DEPTH)


def _empty_folder(folder: int, entries_left: list[int], deeper: int) -> None:
    with os.scandir(folder) as found:
        entries = list(itertools.islice(found, entries_left[0] + 1))
    entries_left[0] -= len(entries)
    if entries_left[0] < 0 or deeper < 0:
        raise OSError("too much")
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.name, 0o700, dir_fd=folder)
            inner = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            _empty_folder(inner, entries_left, deeper - 1)
            os.rmdir(entry.name, dir_fd=folder)
        else:
            os.unlink(entry.name, dir_fd=folder)
    os.close(folder)


def _shared(libc: Any) -> list[str]:
    """Remove System V segments, semaphores and queues; what is left of them."""
    for row in _rows("shm"):
        libc.shmctl(int(row), 0, None)
    for row in _rows("sem"):
        libc.semctl(int(row), 0, 0)
    for row in _rows("msg"):
        libc.msgctl(int(row), 0, None)
    return [*_rows("shm"), *_rows("sem"), *_rows("msg")]


def _rows(kind: str) -> list[str]:
    """Identifiers of what there is of a kind: the second column, below a line of names."""
    with contextlib.suppress(FileNotFoundError), open(f"/proc/sysvipc/{kind}") as table:
        return [line.split()[1] for line in table][1:]
    return []

"""Resource limits over all processes of one sandbox: cgroup v1 and v2, and a sampled stand-in where neither works.

Covered: memory with the out-of-memory count, processes, CPU-seconds, peak, kill, removal; what a dead owner left.
Not covered: shares of a core (limits count CPU-seconds), and cgroup v2 inside a container whose root group holds
processes: it cannot hand controllers on, so the stand-in is used, and `enforced()` of the engine says so.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Protocol

from schemas.errors import SandboxError
from schemas.execution import Limits

_FOLDER = "postloop"
_REMOVE_S = 10.0
_RUNTIME_PIDS = 1  # the sandbox's own first process counts too
_CONTROLLERS = ("memory", "pids", "cpuacct")
_TICKS = os.sysconf("SC_CLK_TCK")
_NUMBERS = itertools.count()  # of this process: two engines in it must not choose the same name
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Meter(Protocol):
    """Measures, and where it can limits, one sandbox."""

    poll_s: float

    def join(self, pid: int) -> None: ...

    def cpu_s(self) -> float: ...

    def peak_mb(self) -> float: ...

    def out_of_memory(self) -> bool: ...

    def kill(self) -> None: ...

    def remove(self) -> None: ...


class Tree(Protocol):
    """Where groups are made."""

    version: str

    def create(self, limits: Limits) -> Meter: ...


def open_tree() -> Tree | None:
    """The first usable of v2 and v1, proven by moving a process into a group; None when there is none.

    Groups of owners that are dead are removed first.
    """
    mounts = _mounts()
    trees: list[_TreeV1 | _TreeV2] = [*_trees_v2(mounts), *_trees_v1(mounts)]
    for tree in trees:
        try:
            tree.prepare()
            meter = tree.create(Limits())
        except OSError:
            continue
        probe = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            meter.join(probe.pid)
            atexit.register(tree.close)
            return tree
        except OSError:
            continue
        finally:
            probe.kill()
            probe.communicate()
            meter.remove()
    return None


def _mounts() -> dict[str, Path]:
    """Controller name (v1) or "v2" -> mount point."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        point = Path(left.split(" ")[4])
        if kind == "cgroup2":
            found.setdefault("v2", point)
        elif kind == "cgroup":
            for option in options.split(","):
                if option in _CONTROLLERS:
                    found.setdefault(option, point)
    return found


def _trees_v1(mounts: dict[str, Path]) -> list[_TreeV1]:
    return [_TreeV1({name: mounts[name] for name in _CONTROLLERS})] if all(c in mounts for c in _CONTROLLERS) else []


def _trees_v2(mounts: dict[str, Path]) -> list[_TreeV2]:
    """The mount's top (root), then the groups above our own (a user's delegated subtree), nearest last."""
    if "v2" not in mounts:
        return []
    own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "/")
    folders = [mounts["v2"]]
    for part in Path(own.lstrip("/")).parts[:-1]:
        folders.append(folders[-1] / part)
    return [_TreeV2(folder) for folder in folders if {"memory", "pids"} <= set(_words(folder / "cgroup.controllers"))]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def owner_name() -> str:
    """Says whose group it is: pid namespace, pid, and start time, since pids come back."""
    return f"{_pid_namespace()}-{os.getpid()}-{_start_ticks(os.getpid())}"


def owner_is_dead(name: str) -> bool:
    """Whether the process with that `owner_name` has ended, as far as we can know."""
    parts = name.split("-")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        return False
    namespace, pid, start = map(int, parts)
    return namespace == _pid_namespace() and _start_ticks(pid) != start  # another namespace's is not ours to judge


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start_ticks(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def _stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from field 3 on: the name, field 2, may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return []


def _remove_stale(top: Path) -> None:
    for owner in top.iterdir() if top.is_dir() else ():
        if not owner.is_dir() or not owner_is_dead(owner.name):
            continue
        with contextlib.suppress(OSError, SandboxError):
            for group in [child for child in owner.iterdir() if child.is_dir()]:
                _remove_group(group)
            owner.rmdir()


def _remove_group(folder: Path) -> None:
    """Kill what is in it and remove it; the kernel needs a moment to let go of the dead."""
    deadline = time.monotonic() + _REMOVE_S
    while True:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                message = f"cgroup {folder}: cannot be removed ({error.strerror}) after {_REMOVE_S:.0f} s"
                raise SandboxError(f"{message}; look at its cgroup.procs") from error
        _kill_group(folder)
        time.sleep(0.001)


def _kill_group(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if (folder / "cgroup.kill").exists():
            (folder / "cgroup.kill").write_text("1")
            return
        for pid in _words(folder / "cgroup.procs"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


class _TreeV1:
    version = "v1"

    def __init__(self, mounts: dict[str, Path]) -> None:
        self._tops = {name: point / _FOLDER for name, point in mounts.items()}

    def prepare(self) -> None:
        for top in self._tops.values():
            _remove_stale(top)
            (top / owner_name()).mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        for top in self._tops.values():
            with contextlib.suppress(OSError):
                (top / owner_name()).rmdir()

    def create(self, limits: Limits) -> Meter:
        name = f"{os.getpid()}-{next(_NUMBERS)}"
        folders = {controller: top / owner_name() / name for controller, top in self._tops.items()}
        group = _GroupV1(folders)
        try:
            for folder in folders.values():
                folder.mkdir(parents=True)
            size = str(limits.memory_mb << 20)
            (folders["memory"] / "memory.limit_in_bytes").write_text(size)
            if (folders["memory"] / "memory.memsw.limit_in_bytes").exists():
                (folders["memory"] / "memory.memsw.limit_in_bytes").write_text(size)
            (folders["pids"] / "pids.max").write_text(str(limits.pids + _RUNTIME_PIDS))
        except OSError:
            group.remove()
            raise
        return group


class _GroupV1:
    poll_s = 0.25

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders

    def join(self, pid: int) -> None:
        for folder in self._folders.values():
            (folder / "cgroup.procs").write_text(str(pid))

    def cpu_s(self) -> float:
        return int((self._folders["cpuacct"] / "cpuacct.usage").read_text()) / 1e9

    def peak_mb(self) -> float:
        return int((self._folders["memory"] / "memory.max_usage_in_bytes").read_text()) / 2**20

    def out_of_memory(self) -> bool:
        return _counter(self._folders["memory"] / "memory.oom_control", "oom_kill") > 0

    def kill(self) -> None:
        _kill_group(self._folders["pids"])

    def remove(self) -> None:
        for folder in self._folders.values():
            _remove_group(folder)


class _TreeV2:
    version = "v2"

    def __init__(self, base: Path) -> None:
        self._base = base
        self._top = base / _FOLDER

    def prepare(self) -> None:
        _remove_stale(self._top)
        owner = self._top / owner_name()
        for folder in (self._base, self._top, owner):
            folder.mkdir(exist_ok=True)
            if not {"memory", "pids"} <= set(_words(folder / "cgroup.subtree_control")):
                (folder / "cgroup.subtree_control").write_text("+memory +pids")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            (self._top / owner_name()).rmdir()

    def create(self, limits: Limits) -> Meter:
        owner = self._top / owner_name()
        if not owner.is_dir():
            self.prepare()  # we are a fork of the process that opened the tree
        folder = owner / f"{os.getpid()}-{next(_NUMBERS)}"
        group = _GroupV2(folder)
        try:
            folder.mkdir()
            (folder / "memory.max").write_text(str(limits.memory_mb << 20))
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                if (folder / name).exists():
                    (folder / name).write_text(value)
            (folder / "pids.max").write_text(str(limits.pids + _RUNTIME_PIDS))
        except OSError:
            group.remove()
            raise
        return group


class _GroupV2:
    poll_s = 0.25

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def join(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))

    def cpu_s(self) -> float:
        return _counter(self._folder / "cpu.stat", "usage_usec") / 1e6

    def peak_mb(self) -> float:
        peak = self._folder / "memory.peak"  # since Linux 5.19
        return int((peak if peak.exists() else self._folder / "memory.current").read_text()) / 2**20

    def out_of_memory(self) -> bool:
        return _counter(self._folder / "memory.events", "oom_kill") > 0

    def kill(self) -> None:
        _kill_group(self._folder)

    def remove(self) -> None:
        _remove_group(self._folder)


def _counter(path: Path, key: str) -> int:
    """The number after `key` in a file of `key number` lines; 0 where there is none or the process has gone."""
    try:
        lines = path.read_text().splitlines()
    except (ProcessLookupError, FileNotFoundError, PermissionError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key + " ")), 0)


class PolledMeter:
    """Without a cgroup: sums over the processes below one pid, sampled. Reports; rlimits do the limiting.

    A lower bound: what starts and ends between two samples without being waited for is missed.
    """

    poll_s = 0.02

    def __init__(self, limits: Limits) -> None:
        self._limit_mb = limits.memory_mb
        self._top: int | None = None
        self._cpu_s = self._peak_mb = 0.0

    def join(self, pid: int) -> None:
        self._top = pid

    def _sample(self) -> None:
        ticks = pages = 0
        todo = [self._top] if self._top else []
        pids = []
        while todo:
            pid = todo.pop()
            pids.append(pid)
            fields = _stat_fields(pid)
            if fields:
                ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of children that were waited for
                pages += int(fields[21])
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    todo += map(int, _words(Path(f"/proc/{pid}/task/{thread}/children")))
        self._cpu_s = max(self._cpu_s, ticks / _TICKS)
        size_mb = pages * _PAGE / 2**20
        if size_mb > self._limit_mb:  # resident sizes count a page shared by forks once for each; the slow sum does not
            size_mb = sum(_counter(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") for pid in pids) / 1024
        self._peak_mb = max(self._peak_mb, size_mb)

    def cpu_s(self) -> float:
        self._sample()
        return self._cpu_s

    def peak_mb(self) -> float:
        return self._peak_mb

    def out_of_memory(self) -> bool:
        return self._peak_mb > self._limit_mb

    def kill(self) -> None:
        """The engine kills the first process of the pid namespace, and with it all of them."""

    def remove(self) -> None:
        """Nothing was made."""

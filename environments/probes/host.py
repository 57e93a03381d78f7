"""The host's side of a probe: bait that a broken sandbox would reach, and what of the host must be as before.

Everything that a probe could leave behind carries the run's nonce in its name, so that other work on the machine, other
sandboxes included, is never taken for it. Covered: files, processes, mounts, groups, sockets, terminals, shared memory,
clock, kernel settings. Not covered: the content of files of the host other than the bait.
This file imports nothing of ours: `control.py` runs it inside a sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PATH = "/usr/bin:/bin"
_IPC_CREAT, _IPC_RMID = 0o1000, 0
_SWEPT = ("/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/mnt", "/home", "/root", "/usr", "/usr/lib", "/etc")  # noqa: S108
_SETTINGS = (
    *(f"kernel/{name}" for name in ("core_pattern", "hostname", "domainname", "modprobe", "sysrq", "randomize_va_space")),
    *(f"kernel/{name}" for name in ("pid_max", "sem", "msgmax", "msgmnb", "msgmni", "shmall", "shmmax", "shmmni")),
    *(f"fs/mqueue/{name}" for name in ("msg_default", "msg_max", "msgsize_default", "msgsize_max", "queues_max")),
    "vm/swappiness", "vm/overcommit_memory", "net/ipv4/ip_forward",
)  # fmt: skip
_TEMPORARY = {Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")}  # noqa: S108
State = dict[str, frozenset[str]]


@dataclass
class Bait:
    """What lies open on the host, for any user, while a probe runs. `secret` stands in all of it."""

    nonce: str
    secret: str
    user: int
    folder: Path
    process: subprocess.Popen[bytes]
    listeners: dict[str, socket.socket]
    shm_key: int
    facts: dict[str, Any] = field(default_factory=dict)

    def visitors(self) -> list[str]:
        """The listeners that somebody reached since the last call."""
        return [name for name, server in self.listeners.items() if _visited(server)]


@contextlib.contextmanager
def bait(user: int = 10001) -> Iterator[Bait]:
    """Lay it out, and take it away. `user`: the sandbox's. Raises OSError when the host has no room for it."""
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="postloop-bait-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        nonce, secret = secrets.token_hex(8), f"secret-{secrets.token_hex(16)}"
        for name, mode in (("secret.txt", 0o644), ("writable.txt", 0o666)):
            (folder / name).write_text(secret)
            (folder / name).chmod(mode)
        (folder / "open").mkdir()
        (folder / "open").chmod(0o1777)
        shared = Path("/dev/shm") / f"bait-{secrets.token_hex(4)}"  # noqa: S108
        shared.write_text(secret)
        shared.chmod(0o666)
        stack.callback(shared.unlink, missing_ok=True)
        listeners = _listeners(stack, folder)
        process = _process(stack, secret, user)
        key = _segment(stack, secret)
        yield Bait(
            nonce=nonce, secret=secret, user=user, folder=folder, process=process, listeners=listeners, shm_key=key,
            facts={
                "secret_file": str(folder / "secret.txt"), "writable_file": str(folder / "writable.txt"),
                "open_folder": str(folder / "open"), "unix": str(folder / "socket"), "abstract": folder.name,
                "tcp": _port(listeners.get("tcp")), "tcp6": _port(listeners.get("tcp6")), "udp": _port(listeners.get("udp")),
                "pid": process.pid, "shm_key": key, "posix_shm": shared.name, "sought": secret,
                "core_pattern": Path("/proc/sys/kernel/core_pattern").read_text().strip(),
            },
        )  # fmt: skip


def _listeners(stack: contextlib.ExitStack, folder: Path) -> dict[str, socket.socket]:
    found: dict[str, socket.socket] = {}
    for name, family, kind, address in (
        ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("0.0.0.0", 0)),  # noqa: S104
        ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
        ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("0.0.0.0", 0)),  # noqa: S104
        ("unix", socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "socket")),
        ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, "\0" + folder.name),
    ):
        with contextlib.suppress(OSError):  # a host without IPv6 has one listener less
            server = stack.enter_context(socket.socket(family, kind))
            server.bind(address)
            if kind == socket.SOCK_STREAM:
                server.listen(16)
            server.setblocking(False)
            found[name] = server
    (folder / "socket").chmod(0o777)
    return found


def _port(server: socket.socket | None) -> int:
    return int(server.getsockname()[1]) if server else 9


def _visited(server: socket.socket) -> bool:
    try:
        if server.type == socket.SOCK_DGRAM:
            return bool(server.recv(100))
        server.accept()[0].close()
        return True
    except BlockingIOError:
        return False


def _process(stack: contextlib.ExitStack, secret: str, user: int) -> subprocess.Popen[bytes]:
    """A process of the sandbox's own user where we may choose: only the namespace protects it. It dies with us."""
    own = user if os.getuid() == 0 else None
    argv = ["setpriv", "--pdeathsig", "KILL", "sleep", "3600"]
    if shutil.which(argv[0], path=_PATH) is None:  # an image of Python alone
        code = "import ctypes, time; ctypes.CDLL(None).prctl(1, 9); time.sleep(3600)"
        argv = [sys.executable, "-I", "-S", "-c", code]
    process = subprocess.Popen(argv, env={"PATH": _PATH, "BAIT": secret}, user=own, group=own, cwd="/")
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _segment(stack: contextlib.ExitStack, secret: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    key = secrets.randbelow(1 << 30) + 1
    segment = libc.shmget(key, 4096, _IPC_CREAT | 0o666)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    stack.callback(libc.shmctl, segment, _IPC_RMID, None)
    place = ctypes.c_void_p(libc.shmat(segment, None, 0))
    ctypes.memmove(place, secret.encode(), len(secret))
    libc.shmdt(place)
    return key


# --- before and after ----------------------------------------------------------------------------------------------


def look(lure: Bait) -> State:
    """What must be the same after a probe. Sets of plain text, so that a difference can be named."""
    return {
        "mounts": frozenset(_mounts(lure.folder)),
        "groups": frozenset(_own_groups()),
        "processes": frozenset(_marked_processes(lure.nonce)),
        "files": frozenset(_marked_files(lure)),
        "sockets": frozenset([*_sandbox_sockets(lure.user), *_marked_sockets(lure.nonce)]),
        "memory": frozenset(_segments()),
        "settings": frozenset(f"{name}={_text(Path('/proc/sys') / name)}" for name in _SETTINGS),
        "interfaces": frozenset(line.split(":")[0].strip() for line in _text(Path("/proc/net/dev")).splitlines()[2:]),
        "bait": frozenset(_bait(lure)),
    }


def changes(before: State, after: State) -> list[str]:
    """`kind: + what came` and `kind: - what went`, sorted."""
    found = []
    for kind in before:
        found += [f"{kind}: + {item[:160]}" for item in after[kind] - before[kind]]
        found += [f"{kind}: - {item[:160]}" for item in before[kind] - after[kind]]
    return sorted(found)


def clock_offset() -> float:
    """Seconds between the wall clock and the one that nobody can set."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _mounts(folder: Path) -> Iterator[str]:
    """Of the machine and of the bait's folder. What lies below other temporary folders is other work, and what a container
    engine mounts for its containers is its business."""
    for line in _text(Path("/proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        point, kind = Path(left.split(" ")[4]), right.split(" ")[0]
        other = _TEMPORARY & set(point.parents) and folder not in (point, *point.parents)
        if not other and kind not in ("overlay", "nsfs") and not {"containers", "overlay2", "netns"} & set(point.parts):
            yield f"{kind} {point}"


def _own_groups() -> Iterator[str]:
    for point in {
        line.split(" ")[4] for line in _text(Path("/proc/self/mountinfo")).splitlines() if " - cgroup" in line
    }:
        for group in Path(point).glob(f"postloop/*-{os.getpid()}-*/*"):
            if group.is_dir():
                yield str(group)


def _marked_processes(nonce: str) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and nonce in _text(entry / "cmdline") and "State:\tZ" not in _text(entry / "status"):
            yield f"{entry.name} {_text(entry / 'cmdline')[:80]!r}"


def _marked_files(lure: Bait) -> Iterator[str]:
    for folder in (*_SWEPT, lure.folder, lure.folder / "open"):
        with contextlib.suppress(OSError):
            yield from (f"{folder}/{name}" for name in os.listdir(folder) if lure.nonce in name)


def _sandbox_sockets(user: int) -> Iterator[str]:
    """Internet sockets of the sandbox's user in the host's own network: there must be none at any time."""
    for kind in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        for line in _text(Path(f"/proc/self/net/{kind}")).splitlines()[1:]:
            words = line.split()
            if len(words) > 7 and words[7] == str(user):
                yield f"{kind} {words[1]}"


def _marked_sockets(nonce: str) -> Iterator[str]:
    return (line.split()[-1] for line in _text(Path("/proc/net/unix")).splitlines() if nonce in line)


def _segments() -> Iterator[str]:
    for kind in ("shm", "msg", "sem"):
        for line in _text(Path(f"/proc/sysvipc/{kind}")).splitlines()[1:]:
            yield f"{kind} {line.split()[1]}"


def _bait(lure: Bait) -> Iterator[str]:
    for path in sorted(lure.folder.rglob("*")):
        yield f"{path.relative_to(lure.folder)} {oct(path.lstat().st_mode)} {_text(path) if path.is_file() else ''}"
    yield f"process {'alive' if lure.process.poll() is None else 'dead'}"
    if lure.process.poll() is None:
        status = _text(Path(f"/proc/{lure.process.pid}/stat")).rpartition(")")[2].split()
        yield f"process state {'T' if status[0] in 'Tt' else 'runs'} nice {status[16]}"
        yield f"process cores {sorted(os.sched_getaffinity(lure.process.pid))}"

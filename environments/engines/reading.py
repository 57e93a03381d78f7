"""Reading what hostile code has left behind: pipes, files, the counters of its network. The standard library alone.

The bubblewrap engine runs this on the host, the Docker engine inside the container, from the same text.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

MAX_COLLECTED_BYTES = 1 << 20
MAX_TREE_FILES = 1000
MAX_PATH_BYTES = 1024
_MAX_ENTRIES = 5000
_MAX_DEPTH = 64
_CHUNK = 1 << 16


class Capture:
    """Keeps the first `cap` bytes of a pipe and throws the rest away, so that a flood fills neither pipe nor memory."""

    def __init__(self, fd: int, cap: int) -> None:
        self.fd, self._cap = fd, cap
        self.kept = bytearray()
        self.truncated = self.ended = False

    def drain(self, rounds: int = 64) -> None:
        for _ in range(rounds):
            try:
                chunk = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return
            if not chunk:
                self.ended = True
                return
            room = self._cap - len(self.kept)
            self.kept += chunk[:room]
            self.truncated = self.truncated or len(chunk) > room

    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")


# --- files ----------------------------------------------------------------------------------------------------------


def collect_files(work_fd: int, paths: list[str], total_bytes: int) -> tuple[dict[str, str], bool]:
    """Texts of `paths` below an open folder, and whether one was left out for its size. See `each_file`."""
    found: dict[str, str] = {}
    left_out = False
    for path, data in each_file(work_fd, paths, total_bytes):
        if data is None:
            left_out = True
        else:
            found[path] = data.decode("utf-8", "replace")
    return found, left_out


def each_file(work_fd: int, paths: list[str], total_bytes: int) -> Iterator[tuple[str, bytes | None]]:
    """Content of each of `paths` that exists below an open folder, one at a time; None when it is too large.

    Regular files only; no link is followed at any component. What the owner could not read counts as missing, so that a
    privileged caller sees what an ordinary one would. Nothing of the sandbox may be running any more.
    """
    budget = total_bytes
    reachable = os.fstat(work_fd).st_mode & stat.S_IXUSR
    for path in sorted(set(paths)) if reachable else ():
        data = _read_regular(work_fd, path.split("/"))
        if data is None:
            continue
        if len(data) > min(MAX_COLLECTED_BYTES, budget):
            yield path, None
            continue
        budget -= len(data)
        yield path, data


def each_file_of_tree(work_fd: int, total_bytes: int) -> Iterator[tuple[str, bytes | None]]:
    """The same for every regular file below an open folder, at most MAX_TREE_FILES; ("", None) when more is there.

    Hard links are files of their own; empty folders, links and special files are not told.
    """
    paths: list[str] = []
    whole = True
    for path in _walk(work_fd, "", [_MAX_ENTRIES]):
        if path is None or len(paths) == MAX_TREE_FILES:
            whole = False
        else:
            paths.append(path)
    yield from each_file(work_fd, paths, total_bytes)
    if not whole:
        yield "", None


def _walk(folder_fd: int, above: str, entries_left: list[int]) -> Iterator[str | None]:
    """Paths of regular files, sorted; None for what is too deep, too much, or has a name that no text can hold."""
    if os.fstat(folder_fd).st_mode & 0o500 != 0o500:
        return
    names = []
    with os.scandir(folder_fd) as entries:
        for entry in entries:
            entries_left[0] -= 1
            if entries_left[0] < 0:
                yield None
                break
            names.append(entry.name)
    for name in sorted(names):
        path = above + name
        if not _is_told(path):
            yield None
            continue
        mode = os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode
        if stat.S_ISREG(mode):
            yield path
        elif stat.S_ISDIR(mode) and mode & 0o500 == 0o500:
            deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
            try:
                yield from _walk(deeper, f"{path}/", entries_left)
            finally:
                os.close(deeper)


def _is_told(path: str) -> bool:
    try:
        return len(path.encode()) <= MAX_PATH_BYTES and path.count("/") < _MAX_DEPTH
    except UnicodeEncodeError:
        return False


def _read_regular(folder_fd: int, parts: list[str]) -> bytes | None:
    here = os.dup(folder_fd)
    try:
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            flags = os.O_NONBLOCK if last else os.O_PATH | os.O_DIRECTORY
            try:
                deeper = os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
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


# --- network --------------------------------------------------------------------------------------------------------

_LOST = ("Ip:OutNoRoutes", "Udp:NoPorts", "Ip6OutNoRoutes", "Udp6NoPorts")


class NetworkCounter:
    """Counts what a network with nothing in it could not deliver, since the last `start`: connections and datagrams
    without a route, and datagrams to a port of its own where nobody listens, such as a name lookup.

    A lower bound: sockets that the system-call filter refuses are not seen, nor is TCP to a closed port of its own.
    `folder` is a process's /proc/PID/net; the open files keep that network in being, so it can be read after its end.
    """

    def __init__(self, folder: str) -> None:
        self._fds = []
        for name in ("snmp", "snmp6"):
            try:
                self._fds.append(os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:  # a kernel without IPv6, another runtime: nothing to observe
                continue
        self._before = 0

    def start(self) -> None:
        self._before = self._total()

    def count(self) -> int:
        return self._total() - self._before

    def _total(self) -> int:
        return sum(lost_packets(os.pread(fd, _CHUNK, 0).decode()) for fd in self._fds)

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def lost_packets(table: str) -> int:
    """Of a text of /proc/net/snmp (a line of names, a line of values) or /proc/net/snmp6 (a name and a value a line)."""
    rows = [line.split() for line in table.splitlines()]
    if rows and rows[0][0].endswith(":"):
        pairs = zip(rows[::2], rows[1::2], strict=False)
        rows = [[names[0] + name, value] for names, values in pairs for name, value in zip(names, values, strict=True)]
    return sum(int(row[1]) for row in rows if row[0] in _LOST)

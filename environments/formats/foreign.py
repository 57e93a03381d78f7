"""Foreign Harbor tasks as values: what task.toml asks for, and what crosses the border of a container, as tar streams.

What comes out of a container is hostile. Covered: names that are no UTF-8 or look like Docker's own marks, devices, pipes
and sockets, links that lead to nothing, too many or too large changes, rewards that are no number in 0..1. A difference is
never unpacked here: it goes on as a layer, so no name and no link in it can reach this machine. Contents are bytes.
Not covered: what a change means. A foreign task's own script runs beside the attempt's files and may be fooled by them.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from typing import IO, NamedTuple

from pydantic import ValidationError

from environments.formats.folder import bytes_of, shown
from environments.image import Hashing
from schemas.base import Json, digest_of
from schemas.errors import InputError
from schemas.execution import Limits
from schemas.harbor import Config, Container, Folder, FolderFile

MAX_CHANGES = 20_000
MAX_DIFFERENCE_BYTES = 256 << 20
MAX_REWARD_BYTES = 64 << 10
CPUS, MEMORY_MB, STORAGE_MB, PIDS = 1.0, 2048, 2048, 512  # where task.toml asks for nothing
# Laid or made by us or by Docker in each container; the rest of the tree belongs to the task.
_NEVER = (
    ".dockerenv", "dev", "etc/hosts", "etc/hostname", "etc/mtab", "etc/resolv.conf", "logs", "proc", "solution", "sys", "tests",
)  # fmt: skip
_HOST_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SIZE = re.compile(r"([0-9]+)([KMG])B?", re.IGNORECASE)
_ENTRY_BYTES = 1024
_WHITEOUT, _OPAQUE = (
    ".wh.",
    ".wh..wh..opq",
)  # Docker's marks in a layer: a path that is gone, a folder that was made anew


class TooMuch(Exception):
    """The attempt's tree changed more than is copied out: its own failure, in one line."""


# --- task.toml -----------------------------------------------------------------------------------------------------


def refuse(folder: Folder, config: Config) -> None:
    """Raises InputError for a task that asks for what is not run here."""
    several = [path for path in folder.files if re.fullmatch(r"environment/(docker-)?compose\.ya?ml", path)]
    if several:
        raise InputError(f"{several[0]}: several containers; tasks with one are run here, use Harbor for it")
    if config.verifier.environment_mode == "separate" or config.verifier.environment is not None:
        raise InputError("task.toml: its tests have a container of their own; not run here, use Harbor for it")
    if config.environment.gpus:
        raise InputError(
            f"task.toml: environment.gpus is {config.environment.gpus}; run here is without, use Harbor for it"
        )
    if "tests/test.sh" not in folder.files:
        raise InputError("tests/test.sh: missing; nothing would grade the task")


def limits_of(box: Container, wall_s: float) -> Limits:
    """What the task asks for, else the defaults. CPU-seconds follow from cores and time. Raises InputError."""
    cpus = CPUS if box.cpus is None else box.cpus
    memory = box.memory_mb or _megabytes(box.memory) or MEMORY_MB
    disk = box.storage_mb or _megabytes(box.storage) or STORAGE_MB
    try:
        return Limits(
            cpu_s=cpus * wall_s, wall_s=wall_s, memory_mb=memory, pids=PIDS, disk_mb=disk, output_kb=256
        )  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"task.toml: {first['loc'][0]} of its container: {first['msg']}; correct it") from None


def _megabytes(text: str | float | None) -> int | None:
    """Of the old form, e.g. 2G. Other forms are left alone, as Harbor does."""
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    return None if match is None else int(match[1]) << {"K": 0, "M": 10, "G": 20}[match[2].upper()] >> 10


def variables_of(*tables: Mapping[str, str]) -> dict[str, str]:
    """`${NAME:-default}` as its default: nothing of this machine's environment is handed in. Raises InputError."""
    found: dict[str, str] = {}
    for table in tables:
        for key, value in table.items():
            for name, default in _HOST_VARIABLE.findall(value):
                if f"${{{name}}}" in value and not default:
                    raise InputError(
                        f"task.toml: env {shown(key)} wants {name} of the host; none is handed in, give a default"
                    )
            if not key or "=" in key or "\0" in key + value:
                raise InputError(f"task.toml: env {shown(key)!r} cannot be set; correct it")
            found[key] = _HOST_VARIABLE.sub(lambda match: match[2] or "", value)
    return found


def command_of(folder: Folder, path: str) -> list[str]:
    """A script that names its interpreter is run as it is, any other by the shell. Raises InputError."""
    if path not in folder.files:
        raise InputError(f"{path}: missing; the task has no such script")
    return [f"/{path}"] if bytes_of(folder.files[path]).startswith(b"#!") else ["/bin/sh", f"/{path}"]


def reward_of(name: str, data: bytes) -> tuple[float, str | None]:
    """(score, None) of reward.txt or reward.json, or (0, what is wrong with it)."""
    try:
        text = data[: MAX_REWARD_BYTES + 1].decode()
        value = json.loads(text) if name.endswith(".json") else float(text)
        if isinstance(value, dict):
            value = value["reward"] if len(value) != 1 else next(iter(value.values()))
        if isinstance(value, bool) or not isinstance(value, int | float) or len(data) > MAX_REWARD_BYTES:
            raise ValueError("no number")
        score = float(value)
    except (ValueError, LookupError, OverflowError, RecursionError):
        return 0.0, f"{name} has no number: {shown(data[:60].decode('utf-8', 'replace'))}"
    return (score, None) if 0 <= score <= 1 else (0.0, f"{name} has {score!r}, not within 0..1")


# --- into a container ----------------------------------------------------------------------------------------------


def subfolder(folder: Folder, top: str) -> dict[str, FolderFile]:
    """The files below `top`, by their path from there."""
    start = f"{top}/"
    return {path.removeprefix(start): file for path, file in folder.files.items() if path.startswith(start)}


def archive(
    files: Mapping[str, FolderFile],
    folders: Mapping[str, int] | None = None,
    scripts: Iterable[str] = (),
    time_s: int = 0,
) -> bytes:
    """A tar of root's: `folders` (path -> mode), then `files`; those in `scripts` can be executed. The same bytes each time."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, mode in (folders or {}).items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, mode, time_s
            tar.addfile(entry)
        for path, file in sorted(files.items()):
            data = bytes_of(file)
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.mtime = len(data), 0o755 if path in scripts else file.mode, time_s
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


# --- out of a container --------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """`digest` is of what it holds, without times: the outcome. `layer` is a layer's tar, at its start; `sha256` its name;
    `paths` counts what changed, without folders in which something did."""

    digest: str
    layer: IO[bytes]
    sha256: str
    paths: int
    left_out: list[str]


def changes_of(data: bytes) -> dict[str, int]:
    """Path -> 0 changed, 1 added, 2 gone, of Docker's answer about a container, without what is ours. Raises TooMuch."""
    rows = json.loads(data) or []
    found = {str(row["Path"]).strip("/"): int(row["Kind"]) for row in rows}
    found = {path: kind for path, kind in found.items() if path and not _is_ours(path)}
    if len(found) > MAX_CHANGES:
        raise TooMuch(f"{len(found)} paths changed, at most {MAX_CHANGES}")
    return found


def _is_ours(path: str) -> bool:
    return any(path == name or path.startswith(f"{name}/") for name in _NEVER)


def difference(changes: Mapping[str, int], export: IO[bytes]) -> Difference:
    """Those changes, with their content from the export of the container's whole tree. Raises TooMuch, tarfile.TarError."""
    layer = tempfile.TemporaryFile()  # noqa: SIM115
    sink = Hashing(layer)
    taken = _Taken(changes)
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as out:  # type: ignore[call-overload]
        if changes:
            with tarfile.open(fileobj=export, mode="r|") as tree:
                for entry in tree:
                    taken.take(entry, tree, out)
        taken.mark_gone(out)
    layer.seek(0)
    return Difference(digest_of(taken.kept), layer, sink.hash.hexdigest(), taken.paths, sorted(taken.left_out))


def nothing() -> Difference:
    """Of a tree in which nothing changed."""
    return difference({}, io.BytesIO())


class _Taken:
    """What of an export goes into the layer, so far. `kept`: changed path -> what it is now; `folders`: all that are there."""

    def __init__(self, changes: Mapping[str, int]) -> None:
        self._changes = changes
        self._above = _above(changes)
        self._left = MAX_DIFFERENCE_BYTES
        self._folders: set[str] = {""}
        self._plain: set[str] = set()
        self._met: set[str] = set()
        self.kept: dict[str, Json] = {}
        self.left_out: list[str] = []
        self.paths = 0

    def take(self, entry: tarfile.TarInfo, tree: tarfile.TarFile, out: tarfile.TarFile) -> None:
        """Folders above a change go along, since a layer that lacks them would make them anew with other modes."""
        path = _path(entry.name)
        if not path or (path not in self._changes and not (entry.isdir() and path in self._above)):
            return
        self._met.add(path)
        problem = self._problem(path, entry)
        if problem:
            self.left_out.append(f"{shown(path)}: {problem}")
            return
        made = _clean(path, entry)
        self._left -= _ENTRY_BYTES + made.size
        if self._left < 0:
            raise TooMuch(f"over {MAX_DIFFERENCE_BYTES >> 20} MiB changed")
        content = None
        if entry.isreg():
            content = _Copied(tree.extractfile(entry))
            self._plain.add(path)
        out.addfile(made, content)
        if entry.isdir():
            self._folders.add(path)
            if self._changes.get(path) == 2:
                out.addfile(tarfile.TarInfo(f"{path}/{_OPAQUE}"))
        if path in self._changes:
            digest, anew = content.hash.hexdigest() if content else "", self._changes[path] == 2
            self.kept[path] = [made.type.decode(), made.mode, made.uid, made.gid, made.linkname, digest, anew]
            self.paths += not entry.isdir() or self._changes[path] != 0

    def _problem(self, path: str, entry: tarfile.TarInfo) -> str | None:
        if any(part.startswith(_WHITEOUT) for part in path.split("/")):
            return f"a name that begins with {_WHITEOUT}"
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            return "a device or a pipe"
        if entry.islnk() and _path(entry.linkname) not in self._plain:
            return "a hard link to a file that did not change"
        if not _is_utf8(path + entry.linkname):
            return "a name that is not UTF-8"
        return None

    def mark_gone(self, out: tarfile.TarFile) -> None:
        for path, kind in sorted(self._changes.items()):
            if path in self._met:
                continue
            folder, _, name = path.rpartition("/")
            if kind != 2:
                self.left_out.append(f"{shown(path)}: a socket, or a name that is not UTF-8")
            elif folder in self._folders and not name.startswith(_WHITEOUT):
                out.addfile(tarfile.TarInfo(f"{folder}/{_WHITEOUT}{name}".lstrip("/")))
                self.kept[path] = None
                self.paths += 1


def _above(paths: Iterable[str]) -> set[str]:
    """Every folder above one of the paths."""
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found


def _path(name: str) -> str:
    return name.removeprefix("./").strip("/")


def _clean(path: str, entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same thing, and nothing else that an archive can say about it."""
    made = tarfile.TarInfo(path)
    made.type = tarfile.REGTYPE if entry.isreg() else entry.type
    made.mode, made.uid, made.gid = entry.mode & 0o7777, entry.uid, entry.gid
    made.mtime, made.size = int(entry.mtime), entry.size if entry.isreg() else 0
    made.linkname = _path(entry.linkname) if entry.islnk() else entry.linkname if entry.issym() else ""
    return made


def _is_utf8(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


class _Copied(io.RawIOBase):
    """A file that is hashed while it is read."""

    def __init__(self, source: IO[bytes] | None) -> None:
        self._source = source
        self.hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size) if self._source else b""
        self.hash.update(data)
        return data

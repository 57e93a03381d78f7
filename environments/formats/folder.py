"""A folder of somebody else as a value, and back: the same bytes and modes, and nothing that could reach outside.

Covered: links, devices, pipes, sockets, setuid bits, names with control characters or no UTF-8, absolute and climbing
names, too many, too large, too deep. Each is refused in one line. Content that is no UTF-8 is kept as base64.
Not covered: modes of folders, owners, times, extended attributes, hard links, a folder that changes while it is read.
"""

from __future__ import annotations

import base64
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import InputError
from schemas.harbor import Folder, FolderFile

MAX_FILES = 5_000
MAX_FILE_BYTES = 16 << 20
MAX_TOTAL_BYTES = 64 << 20
MAX_DEPTH = 32
MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255


def read(path: Path) -> Folder:
    """Everything below `path`. Raises InputError, one line, for the first thing that is refused."""
    if path.is_symlink() or not path.is_dir():
        raise InputError(f"folder {shown(path)}: no folder, or a link to one; name the folder itself")
    files: dict[str, FolderFile] = {}
    empty: list[str] = []
    total = 0
    for relative, content in _walk(path, ""):
        if content is None:
            empty.append(relative)
            continue
        total += len(content[0])
        if len(files) == MAX_FILES or total > MAX_TOTAL_BYTES:
            much = f"over {MAX_FILES} files" if len(files) == MAX_FILES else f"over {MAX_TOTAL_BYTES >> 20} MiB"
            raise InputError(f"folder {shown(path)}: {much}; keep large data out of it")
        files[relative] = file_of(*content)
    return Folder(files=files, empty=empty)


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, tuple[bytes, int] | None]]:
    """(relative path, (content, mode)) of each file, and (relative path, None) of each empty folder, sorted."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise InputError(f"folder {shown(folder)}: {error.strerror}; make it readable") from None
    if not entries and prefix:
        yield prefix.rstrip("/"), None
    for entry in entries:
        relative = prefix + entry.name
        check_path(relative, str(folder))
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder / entry.name, f"{relative}/")
        elif entry.is_file(follow_symlinks=False):
            yield relative, _content(Path(entry.path))
        else:
            raise InputError(
                f"{shown(entry.path)}: a link or a special file; only plain files are read, replace it by one"
            )


def _content(path: Path) -> tuple[bytes, int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            data = file.read(MAX_FILE_BYTES + 1) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise InputError(f"{shown(path)}: {error.strerror}; make it a readable plain file") from None
    if not stat.S_ISREG(mode) or stat.S_IMODE(mode) & ~0o777:
        raise InputError(f"{shown(path)}: mode {mode:o} is no plain file's without setuid, setgid, sticky; chmod it")
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{shown(path)}: over {MAX_FILE_BYTES >> 20} MiB; keep large data out of a task's folder")
    return data, stat.S_IMODE(mode)


def file_of(data: bytes, mode: int = 0o644) -> FolderFile:
    try:
        return FolderFile(mode=mode, text=data.decode("utf-8"))
    except UnicodeDecodeError:
        return FolderFile(mode=mode, base64=base64.b64encode(data).decode("ascii"))


def bytes_of(file: FolderFile) -> bytes:
    return file.text.encode() if file.text is not None else base64.b64decode(file.base64 or "", validate=True)


def subtree(folder: Folder, top: str) -> dict[str, str]:
    """The text files below `top`, by their path from there. Raises InputError for one that is not UTF-8."""
    found = {path.removeprefix(f"{top}/"): file for path, file in folder.files.items() if path.startswith(f"{top}/")}
    return {path: text_of(folder, f"{top}/{path}") for path in found}


def text_of(folder: Folder, path: str) -> str:
    """The text of one file. Raises InputError when it is missing or not UTF-8."""
    if path not in folder.files:
        raise InputError(f"{path}: missing; a Harbor task folder has it")
    text = folder.files[path].text
    if text is None:
        raise InputError(f"{path}: not UTF-8; a task's text must be, re-encode it")
    return text


def write(folder: Folder, path: Path) -> None:
    """Make `path`, whole or not at all. Raises InputError when it exists and is not empty, or a name is hostile."""
    if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
        raise InputError(f"folder {shown(path)}: there is something already; name one that is new or empty")
    check_tree([*folder.files, *folder.empty], str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        for name in folder.empty:
            (part / name).mkdir(parents=True)
        for name, file in folder.files.items():
            target = part / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(bytes_of(file))
            target.chmod(file.mode)
        for place, folders, _ in os.walk(part):
            for name in folders:
                Path(place, name).chmod(0o755)
        part.chmod(0o755)
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_tree(paths: list[str], where: str) -> None:
    """Names of one tree: each plain, none both a file and a folder. Raises InputError."""
    known = set(paths)
    for path in paths:
        check_path(path, where)
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in known:
                raise InputError(f"{shown(where)}: {shown(path)}: its parent is a file too; rename one of them")


def check_path(path: str, where: str) -> None:
    """A path is relative, printable UTF-8, and neither long nor deep. Raises InputError."""
    parts = path.split("/")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise InputError(f"{shown(where)}: the name {shown(path)} is not UTF-8; rename it") from None
    if any(part in ("", ".", "..") for part in parts) or not path.isprintable():
        raise InputError(f"{shown(where)}: the name {shown(path)} is absolute, climbs or is not printable; rename it")
    if size > MAX_PATH_BYTES or len(parts) > MAX_DEPTH or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise InputError(f"{shown(where)}: the name {shown(path)} is too long or too deep; shorten it")


def shown(path: str | Path) -> str:
    """A name in a message: one line, printable, at most 200 characters."""
    text = str(path).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)[:200]

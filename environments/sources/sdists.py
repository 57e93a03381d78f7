"""Published source distributions: fetched by name, version and SHA-256, and read without running or unpacking anything.

Covered: the index that pip is configured with, a store by digest that is checked at each use, .tar.gz/.bz2/.xz and .zip.
An archive is hostile: it is read into memory member by member, so no name and no link in it can reach the disk; links,
special files, climbing names, doubles and what is not UTF-8 are left out and named; too much content is refused.
Not covered: archives that need pip's build isolation to be made (`pip download` of a repository).
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from environments.sources import trees
from schemas.errors import InfrastructureError, InputError, IntegrityError

CHILD = Path(__file__).with_name("_index.py")
FETCH_S = 300.0
MAX_ARCHIVE_BYTES = 20 << 20
MAX_CONTENT_BYTES = 100 << 20
MAX_FILE_BYTES = 4 << 20
MAX_MEMBERS = 5_000
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError)
_BROKEN_ZIP = (NotImplementedError, RuntimeError)  # methods that zipfile does not know, encrypted members
_OPENERS: dict[bytes, Callable[[IO[bytes]], Any]] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}


class Unpacked(NamedTuple):
    """`files`: path below the archive's one top folder -> text; `left_out`: path -> why."""

    files: dict[str, str]
    left_out: dict[str, str]


def fetch(package: str, version: str, sha256: str, store: Path) -> Path:
    """The archive in `store`, fetched if it is not there. Raises InputError (no such version), IntegrityError (another
    content than `sha256`), InfrastructureError (no index, no pip)."""
    target = store / f"{sha256}.sdist"
    if target.is_file():
        if _digest(target) == sha256:
            return target
        target.unlink()
    store.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=store, prefix=".part-")
    os.close(handle)
    try:
        _ask_pip(package, version, sha256, Path(part))
        found = _digest(Path(part))
        if found != sha256:
            raise IntegrityError(
                f"{package} {version}: the spec says SHA-256 {sha256}, the index serves {found}; correct one of them"
            )
        os.replace(part, target)
    finally:
        Path(part).unlink(missing_ok=True)
    return target


def _ask_pip(package: str, version: str, sha256: str, part: Path) -> None:
    job = {
        "package": package,
        "version": version,
        "sha256": sha256,
        "target": str(part),
        "max_bytes": MAX_ARCHIVE_BYTES,
    }
    subject = f"{package} {version}"
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(CHILD)],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"{subject}: no answer from the index in {FETCH_S:.0f} s; try again") from None
    status = _status(done.stdout)
    if status == "no version":
        raise InputError(f"{subject}: the index has no source archive of it; `pip index versions {package}` lists them")
    if status == "too large":
        raise InputError(f"{subject}: the archive is over {MAX_ARCHIVE_BYTES >> 20} MiB; mine a smaller package")
    if status != "ok":
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1][:200]
        raise InfrastructureError(f"{subject}: {status}: {last}; check the name and that pip reaches its index")


def _status(output: str) -> str:
    try:
        return str(json.loads(output.rsplit("\n", 2)[-2])["status"])
    except (ValueError, IndexError, KeyError, TypeError):
        return "pip cannot be used here"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(archive: Path) -> Unpacked:
    """All text files of an archive. Raises InputError for one that is broken or too big."""
    files: dict[str, str] = {}
    left_out: dict[str, str] = {}
    try:
        with archive.open("rb") as file:
            for name, data, problem in _members(file):
                path = _below_top(name)
                if path is None or path in files:
                    left_out[name[:200]] = "a double" if path in files else "a name that is absolute, climbs or is odd"
                    continue
                text = None if data is None else _text(data)
                if text is None:
                    left_out[path] = problem or "no UTF-8 text"
                else:
                    files[path] = text
    except (*_BROKEN, *_BROKEN_ZIP) as error:
        raise InputError(f"{archive.name}: {type(error).__name__}: {str(error)[:120]}; fetch or name another") from None
    return Unpacked(files, left_out)


Member = tuple[str, bytes | None, str]  # name, content if it is a plain file of good size, else what it is


def _members(file: IO[bytes]) -> Iterator[Member]:
    magic = file.read(4)
    file.seek(0)
    if magic == b"PK\x03\x04":
        yield from _zip_members(file)
    else:
        opener = _OPENERS.get(magic[:2])
        plain = opener(file) if opener else file
        yield from _tar_members(_Capped(plain))


class _Capped(io.RawIOBase):
    """A stream that ends in an error after MAX_CONTENT_BYTES, headers and skipped members included."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._left = stream, MAX_CONTENT_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size if 0 <= size <= self._left else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"more than {MAX_CONTENT_BYTES >> 20} MiB of content")
        return data


def _tar_members(stream: io.RawIOBase) -> Iterator[Member]:
    with tarfile.open(fileobj=stream, mode="r|") as tar:  # type: ignore[call-overload]
        for number, member in enumerate(tar):
            _count(number)
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                yield member.name, None, "a link or special file"
            elif member.size > MAX_FILE_BYTES:
                yield member.name, None, f"over {MAX_FILE_BYTES >> 20} MiB"
            else:
                content = tar.extractfile(member)
                yield member.name, content.read() if content else None, ""


def _zip_members(file: IO[bytes]) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        left = MAX_CONTENT_BYTES
        for number, member in enumerate(archive.infolist()):
            _count(number)
            kind = (member.external_attr >> 16) & 0o170000
            if member.is_dir():
                continue
            if kind not in (0, 0o100000):
                yield member.filename, None, "a link or special file"
                continue
            with archive.open(member) as content:
                data = content.read(MAX_FILE_BYTES + 1)  # the size in the header may lie
            left -= len(data)
            if left < 0:
                raise ValueError(f"more than {MAX_CONTENT_BYTES >> 20} MiB of content")
            large = len(data) > MAX_FILE_BYTES
            yield member.filename, None if large else data, f"over {MAX_FILE_BYTES >> 20} MiB"


def _count(number: int) -> None:
    if number >= MAX_MEMBERS:
        raise ValueError(f"more than {MAX_MEMBERS} members")


def _below_top(name: str) -> str | None:
    """`pkg-1.0/a/b.py` -> `a/b.py`; None for a name that no tree of ours may have."""
    top, _, path = name.removeprefix("./").partition("/")
    return path if trees.may_be(f"{top}/{path}") else None


def _text(data: bytes) -> str | None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text

"""A lock file with hashes: the wheels of an image, fetched by pip, checked, and laid out with nothing of them being run.

Covered: lines `name==version --hash=sha256:...` with continuations, comments and markers, as pip-compile and uv write
them; the index, mirror and credentials that pip is configured with; a shelf by digest that is checked at each use, so
that no network is needed later. A wheel is hostile: climbing names, links, doubles and too much content are refused.
Not covered: source archives, URLs and paths (building would run their code); scripts and headers of a wheel, which are
left out as start-up hooks are. Where a lock allows several wheels of one package, the interpreter's preference decides.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from email.parser import HeaderParser
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from schemas.base import Digest, digest_of
from schemas.errors import InfrastructureError, InputError

METADATA_KEPT = ("METADATA", "entry_points.txt", "top_level.txt")
DOWNLOAD_S = 1800.0
MAX_LOCK_BYTES = 4 << 20
MAX_MEMBERS = 50_000
MAX_CONTENT_BYTES = 2 << 30
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
_DOWNLOAD = ["--quiet", "--require-hashes", "--only-binary=:all:", "--no-deps"]
_HASH = re.compile(r"--hash[= ](\w+):([0-9a-f]+)")
_CHUNK = 1 << 20
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError,
           FileExistsError, IsADirectoryError, NotADirectoryError)  # fmt: skip


class Line(NamedTuple):
    """`where` is file:line, for messages."""

    where: str
    name: str
    version: str
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where}: {self.name}=={self.version}"


class Wheel(NamedTuple):
    name: str
    version: str
    sha256: str
    path: Path


def locked(lock: Path, shelf: Path) -> list[Wheel]:
    """The wheels of a lock file for this interpreter, by name; what the shelf lacks is fetched. Raises InputError (a line,
    a hash, no wheel, a requirement that no line meets), InfrastructureError (no index, no pip)."""
    lines = read(lock)
    _fetch([line for line in lines if _kept(line, shelf) is None], shelf)
    found = [_kept(line, shelf) for line in lines]
    wheels = sorted(wheel for wheel in found if wheel is not None)
    if len(wheels) != len(lines):
        lost = next(line for line, wheel in zip(lines, found, strict=True) if wheel is None)
        raise InfrastructureError(f"{lost}: it was fetched and is not on the shelf {shelf}; try again")
    _check_complete(lock, wheels)
    return wheels


# --- the file ------------------------------------------------------------------------------------------------------


def read(lock: Path) -> list[Line]:
    """The lines that hold for this interpreter. Raises InputError, file:line, for the first that is no locked wheel."""
    try:
        text = lock.read_bytes()[: MAX_LOCK_BYTES + 1].decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(f"{lock}: {problem}; name a requirements file with hashes") from None
    if len(text) > MAX_LOCK_BYTES:
        raise InputError(f"{lock}: over {MAX_LOCK_BYTES >> 20} MiB; lock fewer packages")
    found: dict[str, Line] = {}
    for number, logical in _logical(text):
        line = _line(f"{lock.name}:{number}", logical)
        if line is not None and line.name in found:
            raise InputError(f"{line}: {found[line.name]} is there already; keep one of them")
        if line is not None:
            found[line.name] = line
    if not found:
        raise InputError(
            f"{lock}: no line that holds for this interpreter; write it with `pip-compile --generate-hashes`"
        )
    return list(found.values())


def digest(lock: Path) -> Digest:
    """Of what it locks: comments, order and continuations do not count."""
    return digest_of(
        [[line.name, line.version, list(line.hashes)] for line in sorted(read(lock), key=lambda one: one.name)]
    )


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of what backslashes join, without comments and empty ones."""
    start, parts = 1, list[str]()
    for number, raw in enumerate([*text.splitlines(), ""], start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw).rstrip()
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            joined = " ".join(parts).strip()
            if joined:
                yield start, joined
            start, parts = number + 1, []


def _line(where: str, text: str) -> Line | None:
    """None: its marker does not hold here."""
    hashes = _HASH.findall(text)
    given = _HASH.sub("", text).strip()
    try:
        requirement = Requirement(given)
    except InvalidRequirement:
        raise InputError(f"{where}: {given[:80]!r} is no name==version; write one with its --hash=sha256:...") from None
    pins = [part for part in requirement.specifier if part.operator == "==" and not part.version.endswith("*")]
    if requirement.url or len(pins) != 1 or len(requirement.specifier) != 1:
        raise InputError(f"{where}: {given[:80]!r} is not pinned to one version; write {requirement.name}==VERSION")
    wrong = [f"{kind}:{value[:12]}" for kind, value in hashes if kind != "sha256" or len(value) != 64]
    if wrong or not hashes:
        problem = f"the hash {wrong[0]} is no SHA-256" if wrong else "no hash"
        raise InputError(f"{where}: {given[:80]}: {problem}; add --hash=sha256:... of its wheel (`pip hash FILE`)")
    if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
        return None
    values = tuple(sorted({value for _, value in hashes}))
    return Line(where, canonicalize_name(requirement.name), pins[0].version, values)


# --- the shelf -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _ranks() -> dict[Tag, int]:
    return {tag: rank for rank, tag in reversed(list(enumerate(sys_tags())))}


def _rank(line: Line, filename: str) -> int | None:
    """How much this interpreter likes a wheel of that name, 0 best; None: not at all, or it is another package's."""
    try:
        name, version, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    if name != line.name or version != Version(line.version):
        return None
    return min((_ranks()[tag] for tag in tags if tag in _ranks()), default=None)


def _kept(line: Line, shelf: Path) -> Wheel | None:
    """The best wheel of the line that lies on the shelf; one with another content than its digest is removed."""
    found: list[tuple[int, str, Path]] = []
    for digest in line.hashes:
        for path in sorted((shelf / digest).glob("*.whl")):
            if _digest(path) != digest:
                path.unlink(missing_ok=True)
            elif (rank := _rank(line, path.name)) is not None:
                found.append((rank, digest, path))
    if not found:
        return None
    _, digest, path = min(found)
    return Wheel(line.name, line.version, digest, path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(lines: Sequence[Line], shelf: Path) -> None:
    """All at once; pip says which one it refuses."""
    complaint = _download(lines, shelf) if lines else None
    if complaint is not None:
        named = [
            line
            for line in lines
            if re.search(rf"(?<![\w.-]){line.name}=={re.escape(line.version)}(?![\w.])", complaint)
        ]
        raise _explained(named[0] if named else lines[0], complaint)


def _download(lines: Sequence[Line], shelf: Path) -> str | None:
    """None when the wheels lie on the shelf, else what pip complained about."""
    shelf.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=shelf, prefix=".part-") as place:
        asked = Path(place, "lock.txt")
        hashes = {line: " ".join(f"--hash=sha256:{value}" for value in line.hashes) for line in lines}
        asked.write_text("".join(f"{line.name}=={line.version} {hashes[line]}\n" for line in lines))
        done = _pip("download", *_DOWNLOAD, "--dest", place, "--requirement", str(asked))
        if done.returncode:
            return done.stderr
        for path in Path(place).glob("*.whl"):
            with path.open("rb") as file:
                os.fsync(file.fileno())
            home = shelf / _digest(path)
            home.mkdir(exist_ok=True)
            path.replace(home / path.name)
    return None


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As the person has configured it, but for constraints: a lock is exact, and another's pins could only contradict it."""
    variables = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    try:
        return subprocess.run(
            [*_PIP, *arguments], capture_output=True, text=True, timeout=DOWNLOAD_S, check=False, env=variables
        )
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"pip {arguments[0]}: no end within {DOWNLOAD_S:g} s; try again") from None


def _explained(line: Line, complaint: str) -> InputError | InfrastructureError:
    served = re.search(r"\bGot\s+([0-9a-f]{64})", complaint)
    if served:
        allowed = " or ".join(line.hashes)
        return InputError(f"{line}: the lock says SHA-256 {allowed}, the index serves {served[1]}; correct one of them")
    if "No matching distribution" in complaint:
        return InputError(f"{line}: {_why_no_wheel(line)}")
    last = (complaint.strip().splitlines() or ["pip said nothing"])[-1][:200]
    return InfrastructureError(f"{line}: pip download failed: {last}; check that pip reaches its index")


def _why_no_wheel(line: Line) -> str:
    here = f"{platform.python_implementation()} {platform.python_version()} on {platform.machine()}"
    listed = _pip("index", "versions", line.name, "--no-binary=:all:").stdout
    if re.search(rf"(?<![\w.]){re.escape(line.version)}(?![\w.])", listed.partition("Available versions:")[2]):
        return f"only a source archive of it for {here}, which would run its build code; lock a version with a wheel"
    return f"the index has no wheel of it for {here}; lock a version that has one"


# --- content -------------------------------------------------------------------------------------------------------


def _check_complete(lock: Path, wheels: Sequence[Wheel]) -> None:
    """Each wheel's requirements are lines of the lock: pip is not asked for what a package needs."""
    versions = {wheel.name: wheel.version for wheel in wheels}
    here = {**{name: str(value) for name, value in default_environment().items()}, "extra": ""}
    for wheel in wheels:
        for requirement in _requirements(wheel):
            if requirement.marker and not requirement.marker.evaluate(here):
                continue
            have = versions.get(canonicalize_name(requirement.name))
            if have is None or not requirement.specifier.contains(have, prereleases=True):
                problem = f"{wheel.name} {wheel.version} needs {requirement.name}{requirement.specifier}"
                raise InputError(f"{lock.name}: {problem}, the lock has {have or 'none'}; lock it again as a whole")


def _requirements(wheel: Wheel) -> list[Requirement]:
    about = HeaderParser().parsestr(_metadata(wheel))
    try:
        return [Requirement(text) for text in about.get_all("Requires-Dist") or []]
    except InvalidRequirement as error:
        raise InputError(
            f"wheel {wheel.path.name}: Requires-Dist: {str(error)[:120]!r}; lock another version"
        ) from None


def _metadata(wheel: Wheel) -> str:
    with _opened(wheel) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
        if len(names) != 1:
            raise InputError(f"wheel {wheel.path.name}: {len(names)} METADATA files, wanted 1; lock another version")
        with archive.open(names[0]) as file:
            return file.read(_CHUNK).decode("utf-8", "replace")


def _opened(wheel: Wheel) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel.path)
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"wheel {wheel.path.name}: {str(error)[:120]}; lock another version") from None


def lay(wheel: Wheel, site: Path) -> None:
    """Write its modules and data below `site`, and top_level.txt where it has none: whose is which name. Raises InputError."""
    tops: set[str] = set()
    about = ""
    left = MAX_CONTENT_BYTES
    try:
        with _opened(wheel) as archive:
            if len(archive.infolist()) > MAX_MEMBERS:
                raise InputError(f"wheel {wheel.path.name}: over {MAX_MEMBERS} files; lock another version")
            for member in archive.infolist():
                path = _place(wheel, member)
                if path is None:
                    continue
                left -= _write(archive, member, site / path, left)
                first = path.split("/")[0]
                if first.endswith(".dist-info"):
                    about = first
                else:
                    tops.add(first.split(".")[0])
    except _BROKEN as error:
        raise InputError(f"wheel {wheel.path.name}: {str(error)[:160]}; lock another version") from None
    named = site / about / "top_level.txt"
    if not named.exists():
        named.write_text("".join(f"{top}\n" for top in sorted(tops)))


def _place(wheel: Wheel, member: zipfile.ZipInfo) -> str | None:
    """Where a member goes below site-packages; None: nowhere. Raises InputError for one that no wheel should have."""
    parts = member.filename.removesuffix("/").split("/")
    odd = any(part in ("", ".", "..") for part in parts) or "\\" in member.filename or not member.filename.isprintable()
    kind = member.external_attr >> 16 & 0o170000
    if odd or kind not in (0, 0o100000, 0o040000):
        problem = "climbs or is no plain name" if odd else "is a link or a special file"
        raise InputError(f"wheel {wheel.path.name}: {member.filename[:80]!r} {problem}; lock another version")
    if len(parts) > 2 and parts[0].endswith(".data"):
        if parts[1] not in ("purelib", "platlib"):
            return None
        parts = parts[2:]
    record = parts[0].endswith(".dist-info") and (len(parts) != 2 or parts[1] not in METADATA_KEPT)
    if member.is_dir() or record or "__pycache__" in parts or parts[-1].endswith((".pyc", ".pth")):
        return None
    return "/".join(parts)


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, most: int) -> int:
    """The bytes written, whatever the header says. ValueError for too many, or another wheel's file of that name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        if target.stat().st_size != member.file_size or target.read_bytes() != archive.read(member):
            raise ValueError(f"{member.filename[:80]!r} is another wheel's file too, with another content")
        return 0
    size = 0
    with archive.open(member) as source, target.open("xb") as file:
        while part := source.read(_CHUNK):
            size += len(part)
            if size > most:
                raise ValueError(f"over {MAX_CONTENT_BYTES >> 30} GiB of content")
            file.write(part)
    target.chmod(0o755 if member.external_attr >> 16 & 0o111 else 0o644)
    return size

"""Artifacts: folders of content, named by the SHA-256 of their manifest, checked whenever they are used.

`store` builds a folder under a temporary name, flushes it to disk, hashes it and renames it into place, so that a kill
at any instant leaves the whole artifact or none. `open_artifact` hashes all of it again the first time a process uses
it: DVC does not re-hash what it has protected, and a flipped bit keeps its file's size and times.

Not covered: what happens between the check and the use within one process, and packing (many small things belong in
shards; that is the caller's choice).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from schemas.artifact import ArtifactRef, Manifest, ManifestEntry
from schemas.errors import InfrastructureError, IntegrityError

DIGITS = 12
TMP_PREFIX = "tmp-"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
# Names that DVC or git would skip or read as their own: such a file would silently not be in the copy of a remote.
_RESERVED = {".git", ".hg", ".dvc", ".dvcignore", "dvc.yaml", "dvc.lock"}
_VERIFIED: set[tuple[str, str]] = set()


class HasRoot(Protocol):
    """A workspace, as far as this module needs one."""

    @property
    def root(self) -> Path: ...


def store(workspace: HasRoot, stage: str, name: str, build: Callable[[Path], object]) -> ArtifactRef:
    """Run `build(folder)` on an empty folder and keep what it leaves as artifacts/<stage>/<name>-<digest12>.

    The content is handed to DVC by the commit of the record, all artifacts of a stage at once. Equal content that is
    already there is verified and reused. Raises InfrastructureError when the disk fails, ValueError when `build`
    leaves no file, a link, a special file or a reserved name; nothing is left behind then.
    """
    if not all(re.fullmatch(r"[a-z][a-z0-9_.-]*", part) for part in (stage, name)):
        raise ValueError(f"artifact {stage}/{name}: names are lower-case letters, digits, _ . -")
    with disk_errors(f"artifact {stage}/{name}"), scratch(workspace) as tmp:
        build(tmp)
        return _keep(workspace, tmp, stage, name)


@contextmanager
def scratch(workspace: HasRoot) -> Iterator[Path]:
    """An empty folder on the workspace's disk, gone at the end; of a killed process, at the next start."""
    place = workspace.root / ".postloop"
    place.mkdir(exist_ok=True)
    tmp = Path(tempfile.mkdtemp(prefix=f"{TMP_PREFIX}{os.getpid()}-", dir=place))
    try:
        yield tmp
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def _keep(workspace: HasRoot, tmp: Path, stage: str, name: str) -> ArtifactRef:
    tmp.chmod(0o755)
    manifest = hash_tree(tmp)
    if not manifest.entries:
        raise ValueError(f"artifact {stage}/{name}: empty; an artifact has at least one file")
    digest = manifest.digest()
    ref = ArtifactRef(
        name=name,
        path=f"artifacts/{stage}/{name}-{digest[:DIGITS]}",
        digest=digest,
        files=len(manifest.entries),
        bytes=sum(entry.bytes for entry in manifest.entries),
    )
    target = workspace.root / ref.path
    if target.is_dir():
        if not problems_of(workspace, ref):
            return ref
        _discard_damaged(workspace, ref)
    flush_tree(tmp)
    make_folder(target.parent)
    write_durably(manifest_path(workspace, ref), pretty(manifest.model_dump(mode="json")))
    tmp.rename(target)
    flush_folder(target.parent)
    return ref


def kept(workspace: HasRoot, stage: str, name: str) -> ArtifactRef | None:
    """An intact artifact of exactly this name that a killed run left before its record; None when there is none.

    For a name that says everything that decides the content: what took minutes is then not made again.
    """
    for folder in sorted((workspace.root / "artifacts" / stage).glob(f"{name}-{'[0-9a-f]' * DIGITS}")):
        manifest = hash_tree(folder)
        digest = manifest.digest()
        if folder.name.endswith(digest[:DIGITS]):
            return ArtifactRef(
                name=name,
                path=f"artifacts/{stage}/{folder.name}",
                digest=digest,
                files=len(manifest.entries),
                bytes=sum(entry.bytes for entry in manifest.entries),
            )
    return None


def _discard_damaged(workspace: HasRoot, ref: ArtifactRef) -> None:
    """Fresh content is at hand: the damaged one goes, with its pointer and its cached copy (perhaps the same inode)."""
    from stages import dvc

    dvc.drop_damaged(workspace.root, ref.path)
    pointer = workspace.root / f"{ref.path}.dvc"
    pointer.unlink(missing_ok=True)
    folder = workspace.root / ref.path
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


def open_artifact(workspace: HasRoot, ref: ArtifactRef) -> Path:
    """The folder of `ref`, every file checked against the manifest once in each process.

    Content that is missing but has its pointer is fetched from DVC's cache, then from the default remote. Raises
    IntegrityError, one line with the file and both digests, or with what is missing.
    """
    folder = workspace.root / ref.path
    token = (str(folder), ref.digest)
    if token in _VERIFIED and folder.is_dir():
        return folder
    if not folder.is_dir():
        from stages import dvc

        dvc.fetch(workspace.root, ref.path)
    problems = problems_of(workspace, ref)
    if problems:
        raise IntegrityError(problems[0])
    _VERIFIED.add(token)
    return folder


def forget() -> None:
    """Check every artifact again at its next use, as a new process does."""
    _VERIFIED.clear()


def problems_of(workspace: HasRoot, ref: ArtifactRef) -> list[str]:
    """What differs between the content on disk and `ref`, one line each. Empty: it is intact."""
    folder = workspace.root / ref.path
    remedy = "`postloop pull` restores it from the DVC remote; without one, remove the folder and run `dvc checkout`"
    if folder.is_symlink() or not folder.is_dir():
        return [f"artifact {ref.path}: its folder is missing (digest {ref.digest[:DIGITS]}); {remedy}"]
    try:
        present = hash_tree(folder)
    except (ValueError, OSError) as error:
        return [f"artifact {ref.path}: {error}; {remedy}"]
    if present.digest() == ref.digest:
        return []
    recorded = read_manifest(workspace, ref)
    if recorded is None:
        found = present.digest()[:DIGITS]
        values = f"digest recorded {ref.digest[:DIGITS]}, found {found}, and no manifest says which file"
        return [f"artifact {ref.path}: {values}; {remedy}"]
    before = {entry.path: entry.sha256 for entry in recorded.entries}
    now = {entry.path: entry.sha256 for entry in present.entries}
    return [
        f"artifact {ref.path}: {path}: sha256 recorded {before.get(path, 'none')[:DIGITS]}, "
        f"found {now.get(path, 'no file')[:DIGITS]}; {remedy}"
        for path in sorted(before.keys() | now.keys())
        if before.get(path) != now.get(path)
    ]


def manifest_path(workspace: HasRoot, ref: ArtifactRef) -> Path:
    return workspace.root / f"{ref.path}.manifest.json"


def read_manifest(workspace: HasRoot, ref: ArtifactRef) -> Manifest | None:
    """The stored manifest, or None when it is missing or is not the one that `ref` names."""
    try:
        manifest = Manifest.model_validate_json(manifest_path(workspace, ref).read_bytes())
    except (OSError, ValidationError):
        return None
    return manifest if manifest.digest() == ref.digest else None


def hash_tree(folder: Path) -> Manifest:
    """SHA-256 of every file below `folder`, sorted by path. Empty folders do not count.

    Raises ValueError for a link, a device, pipe or socket, a name that is not UTF-8, or one that DVC or git reserve.
    """
    entries = [_entry(folder, path) for path in _files(folder)]
    return Manifest(entries=sorted(entries, key=lambda entry: entry.path))


def _files(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as found:
        items = sorted(found, key=lambda item: item.name)
    for item in items:
        path = Path(item.path)
        if item.is_symlink() or not (item.is_dir(follow_symlinks=False) or item.is_file(follow_symlinks=False)):
            raise ValueError(f"{_shown(path)} is a link or a special file; only regular files can be kept")
        if item.name in _RESERVED or item.name.endswith(".dvc"):
            raise ValueError(f"{_shown(path)}: the name is reserved by DVC or git; choose another")
        if item.is_dir(follow_symlinks=False):
            yield from _files(path)
        else:
            yield path


def _entry(folder: Path, path: Path) -> ManifestEntry:
    relative = path.relative_to(folder).as_posix()
    try:
        relative.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{_shown(path)}: the name is not UTF-8; rename it") from None
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        return ManifestEntry(path=relative, bytes=size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def _shown(path: Path) -> str:
    return repr(path.name.encode(errors="surrogateescape").decode(errors="replace"))


@contextmanager
def disk_errors(subject: str) -> Iterator[None]:
    """A full, failing or read-only disk is the machine's failure: InfrastructureError, in one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        why = os.strerror(error.errno or 0)
        raise InfrastructureError(f"{subject}: disk: {why}; make room and run again, nothing was recorded") from error


def pretty(value: object) -> bytes:
    """The form of JSON files that people read and diff: sorted, indented by 1, one newline at the end."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def write_durably(path: Path, data: bytes, mode: int | None = None) -> None:
    """Old content or new content, never a part: temporary file, flush, rename, flush of the folder. `mode`: of the file that is
    replaced, where it is a person's."""
    tmp = path.with_name(f".{path.name}.tmp")
    with open(tmp, "wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    tmp.rename(path)
    flush_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Like mkdir -p, each new name flushed to disk."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush_folder(folder.parent)


def flush_folder(folder: Path) -> None:
    _flush(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Read-only, and on disk: every file, then every folder."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(parent, name)
            path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o555 | 0o444)
            _flush(path)
        _flush(Path(parent))

"""DVC of a workspace, the one module that knows it: pointers, cache, push and pull. `import dvc` happens at first use.

- Links: `cache.type = hardlink,copy`, so a model of half a gigabyte is on disk once: cache and folder share the inode,
  read-only. The price: damage to the one is damage to the other, so the second copy is a remote, and every use is
  checked by our own SHA-256 (stages/artifacts.py). Where links are impossible, DVC copies.
- DVC flushes nothing to disk: `add` flushes pointers, cache entries and their folders itself.
- Our calls run without DVC's git side (ours is stages/git.py), without its usage statistics, and with its state
  database inside .postloop/. A person's own `dvc` in the same workspace sees an ordinary DVC repository under git.

Not covered: pipelines, external outputs. `dvc gc` keeps what pointers name, and not what records do: stages/gc.py.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.errors import InfrastructureError, InputError, IntegrityError
from stages.artifacts import disk_errors, flush_folder, write_durably

CONFIG = """\
[core]
    analytics = false
    check_update = false
    autostage = false
[cache]
    type = "hardlink,copy"
"""
_MD5 = re.compile(r"^(?:- |  )md5: ([0-9a-f]{32})\.dir$", re.MULTILINE)
_PATH = re.compile(r"^(?:- |  )path: (\S+)$\n", re.MULTILINE)  # DVC writes it last: a torn pointer lacks it


def init(root: Path) -> None:
    """Make `root` a DVC repository with our settings. It is meant to be, or to become, a git repository too."""
    with _failures(root, "init"):
        _quiet_repo().init(str(root), no_scm=True).close()
    write_durably(root / ".dvc" / "config", CONFIG.encode())
    write_durably(root / ".dvc" / ".gitignore", b"/config.local\n/tmp\n/cache\n")


def add(root: Path, paths: Sequence[str]) -> None:
    """Track the folders `paths` (relative) in one call; those whose pointer and cache are whole are skipped.

    Returns once all of it is on disk. Raises InfrastructureError; calling it again goes on.
    """
    wanted = [path for path in paths if not is_cached(root, path)]
    if not wanted:
        return
    for path in wanted:
        (root / f"{path}.dvc").unlink(missing_ok=True)
    with _failures(root, "add"), _repo(root) as repo:
        repo.add([str(root / path) for path in wanted])
    with disk_errors(f"workspace {root}: dvc add"):
        for path in wanted:
            _flush_added(root, path)


def is_tracked(root: Path, path: str) -> bool:
    """The pointer of `path` is there and whole."""
    return _pointer_md5(root, path) is not None


def is_cached(root: Path, path: str) -> bool:
    """The pointer and every cache object it needs are there. Their content is not read."""
    objects = _objects(root, path)
    return objects is not None and all(file.is_file() for file in objects)


def objects_of(root: Path, path: str) -> list[Path]:
    """The cache objects that the pointer of `path` names, its list of files first; the list alone when it is unreadable."""
    return _objects(root, path) or _own_object(root, path)


def listed(root: Path, name: str) -> list[str] | None:
    """Objects of the folder whose list of files is the object `name`. None when it is missing or not what its name says."""
    file = _cache(root) / name[:2] / name[2:]
    if not file.is_file() or _md5(file) != name.removesuffix(".dir"):
        return None
    return [str(entry["md5"]) for entry in json.loads(file.read_bytes())]


def objects(root: Path) -> list[tuple[str, Path]]:
    """Name and place of everything in the workspace's own cache; nothing when it is a link to one of several owners."""
    cache = _cache(root)
    if any(folder.is_symlink() for folder in (cache, *cache.parents[:3])):
        return []
    return sorted((path.parent.name + path.name, path) for path in cache.glob("[0-9a-f][0-9a-f]/*"))


def fetch(root: Path, path: str) -> None:
    """Bring back the missing folder `path` from the cache, else from the default remote.

    Raises IntegrityError, one line, when neither has it.
    """
    if not is_tracked(root, path):
        raise IntegrityError(
            f"artifact {path}: neither its folder nor its pointer is there; restore with `git checkout -- {path}.dvc`"
        )
    if not is_cached(root, path):
        if not _has_remote(root):
            raise IntegrityError(
                f"artifact {path}: its folder and its cached copy are missing and no remote is set; "
                "`dvc remote add -d NAME URL`, then `dvc pull`"
            )
        pull(root, [path])
        return
    with _failures(root, "checkout"), _repo(root) as repo:
        repo.checkout(targets=[str(root / path)], force=True)


def push(root: Path, paths: Sequence[str], remote: str | None = None) -> int:
    """Copy the cached content of `paths` to a DVC remote (None: the default). Returns the number of files sent.

    Raises InputError when there is no such remote, InfrastructureError when it fails.
    """
    _require_remote(root, remote)
    with _failures(root, "push"), _repo(root) as repo:
        return int(repo.push(targets=[str(root / path) for path in paths], remote=remote)) if paths else 0


def pull(root: Path, paths: Sequence[str], remote: str | None = None) -> None:
    """Fetch what the cache lacks of `paths` and put it in place. Raises InputError, InfrastructureError."""
    _require_remote(root, remote)
    with _failures(root, "pull"), _repo(root) as repo:
        if paths:
            repo.pull(targets=[str(root / path) for path in paths], remote=remote, force=True)


def drop_damaged(root: Path, path: str) -> list[str]:
    """Hash every cache object of `path` and remove those that are not what their name says. Returns their names.

    DVC would trust them for ever. What was removed comes back with `pull`, or with the next `add` of good content.
    """
    dropped = []
    for file in objects_of(root, path):
        if file.is_file() and _md5(file) != (file.parent.name + file.name).removesuffix(".dir"):
            file.unlink()
            dropped.append(file.parent.name + file.name)
    return dropped


def torn_pointers(root: Path) -> list[str]:
    """Pointers that were cut off while DVC wrote them, relative paths."""
    pointers = (path.relative_to(root).as_posix() for path in sorted(root.glob("artifacts/*/*.dvc")))
    return [name for name in pointers if not is_tracked(root, name.removesuffix(".dvc"))]


def remove_stale_locks(root: Path) -> list[str]:
    """Remove DVC's table of locks when it is torn or names a process that is gone. Call it as the one writer."""
    table = root / ".dvc" / "tmp" / "rwlock"
    if not table.is_file() or _alive(table):
        return []
    table.unlink()
    return [table.relative_to(root).as_posix()]


def _alive(table: Path) -> bool:
    """Whether DVC's lock table is readable and nothing in it belongs to a process that is gone."""
    try:
        content = json.loads(table.read_bytes())
        holders = [*content["write"].values(), *(item for items in content["read"].values() for item in items)]
        return all(_runs(int(holder["pid"])) for holder in holders)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def _pointer_md5(root: Path, path: str) -> str | None:
    try:
        text = (root / f"{path}.dvc").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    md5, name = _MD5.search(text), _PATH.search(text)
    return md5[1] if md5 and name and name[1] == Path(path).name else None


def _own_object(root: Path, path: str) -> list[Path]:
    md5 = _pointer_md5(root, path)
    return [] if md5 is None else [_cache(root) / md5[:2] / f"{md5[2:]}.dir"]


def _objects(root: Path, path: str) -> list[Path] | None:
    """Cache objects of `path`, its list of files first. None when that list is missing or torn."""
    own = _own_object(root, path)
    try:
        names = [str(entry["md5"]) for entry in json.loads(own[0].read_bytes())]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    return own + [_cache(root) / name[:2] / name[2:] for name in names]


def _cache(root: Path) -> Path:
    return root / ".dvc" / "cache" / "files" / "md5"


def _md5(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _flush_added(root: Path, path: str) -> None:
    objects = _objects(root, path)
    if objects is None or not all(file.is_file() for file in objects):
        raise InfrastructureError(f"artifact {path}: DVC did not keep all of it; run again")
    pointer = root / f"{path}.dvc"
    for file in (pointer, *objects):
        with file.open("rb") as content:
            os.fsync(content.fileno())
    for folder in sorted({file.parent for file in (pointer, *objects)} | {_cache(root), root / path}):
        flush_folder(folder)


def _has_remote(root: Path) -> bool:
    with _failures(root, "configuration"), _repo(root) as repo:
        return bool(repo.config["core"].get("remote"))


def _require_remote(root: Path, remote: str | None) -> None:
    with _failures(root, "configuration"), _repo(root) as repo:
        known = sorted(repo.config["remote"])
        default = repo.config["core"].get("remote")
    if remote is None and not default:
        raise InputError(f"workspace {root}: no default remote is set; `dvc remote add -d NAME URL` in the workspace")
    if remote is not None and remote not in known:
        names = ", ".join(known) or "none"
        raise InputError(f"workspace {root}: no remote {remote!r}; known: {names}; `dvc remote add NAME URL`")


def _quiet_repo() -> Any:
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.ERROR)
    return Repo


@contextmanager
def _repo(root: Path) -> Iterator[Any]:
    state = root / ".postloop" / "dvc"
    state.mkdir(parents=True, exist_ok=True)
    repo = _quiet_repo()(str(root), config={"core": {"no_scm": True, "site_cache_dir": str(state.resolve())}})
    try:
        yield repo
    finally:
        repo.close()


@contextmanager
def _failures(root: Path, verb: str) -> Iterator[None]:
    """DVC's many errors as ours, in one line: a wrong configuration is the person's, the rest the machine's."""
    from dvc.config import ConfigError
    from dvc.exceptions import DvcException
    from dvc_objects.errors import ObjectDBError, ObjectFormatError

    try:
        yield
    except ConfigError as error:
        cause = " ".join(str(error).split())[:300]
        raise InputError(f"workspace {root}: .dvc/config: {cause}; correct it with `dvc config` or by hand") from error
    except (DvcException, ObjectDBError, ObjectFormatError, OSError, sqlite3.Error) as error:
        cause = " ".join(str(error).split())[:300]
        # Its state is a cache of hashes by time and size; after a failure nobody knows what it holds.
        shutil.rmtree(root / ".postloop" / "dvc", ignore_errors=True)
        what = cause or type(error).__name__
        raise InfrastructureError(f"workspace {root}: dvc {verb}: {what}; correct that and run again") from error


def matches(pointer: Path) -> bool:
    """Whether the content beside a .dvc pointer is what it pins, by DVC's own hash; the cache need not hold it.

    `dvc status` answers another question: in a fresh clone it calls content changed that is only not cached.
    """
    with _failures(pointer.parent, "status"):
        from dvc.repo import Repo

        with Repo(str(pointer.parent.resolve())) as repo:
            found = repo.stage.load_file(str(pointer.resolve()))
            return not any(out.changed_checksum() for stage in found for out in stage.outs)


if __name__ == "__main__":
    import sys

    sys.exit(not all(matches(Path(name)) for name in sys.argv[1:]))

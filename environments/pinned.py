"""An environment in lines, as it was pinned and as it is found now: what a person compares before restoring it or locking it anew.

Only files that differ are named, and at most as many as the inventory names. Not covered: what lies outside the image, such as
the host's kernel or its clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from environments.image import layer_digest
from environments.inventory import Inventory, explain, load, take
from environments.lock import read
from schemas.errors import PostloopError
from schemas.execution import Environment

Sides = tuple[list[str], list[str]]


def sides(pinned: Environment, root: Path, lock: Path | None = None) -> Sides:
    """(as pinned, as found): equal where nothing changed. `lock`: the lock file as it lies in the workspace now."""
    was, now = _locked(pinned, lock)
    layer = layer_digest(root)
    if layer == pinned.layer:
        described = _described(pinned.python, pinned.packages, layer)
        return described + was, described + now
    before, present = load(root, pinned.layer), take(root, layer)
    packages = before.packages if before else pinned.packages
    changed = _files(before, present, root) if before else ([], [])
    return (
        _described(pinned.python, packages, pinned.layer) + was + changed[0],
        _described(present.interpreter or "none", present.packages, layer) + now + changed[1],
    )


def _described(python: str, packages: Mapping[str, str], layer: str) -> list[str]:
    return [f"layer {layer}", f"python {python}", *_versions("package", packages)]


def _versions(what: str, packages: Mapping[str, str]) -> list[str]:
    """`canonicalize_name`: a lock, an index and a wheel spell one name differently."""
    return sorted(f"{what} {canonicalize_name(name)}=={version}" for name, version in packages.items())


def _locked(pinned: Environment, lock: Path | None) -> Sides:
    """The image's packages are the wheels of the lock that it was built from."""
    if lock is None:
        return [], []
    try:
        found = _versions("lock", {line.name: line.version for line in read(lock)})
    except PostloopError as error:
        found = [f"lock {str(error).replace(str(lock), lock.name)}"]  # no path of this machine enters a record
    return _versions("lock", pinned.packages), found


def _files(before: Inventory, now: Inventory, root: Path) -> Sides:
    paths = sorted({drift.subject for drift in explain(before, root)} & (before.entries.keys() | now.entries.keys()))
    return _entries(before, paths), _entries(now, paths)


def _entries(inventory: Inventory, paths: list[str]) -> list[str]:
    there = {path: inventory.entries[path] for path in paths if path in inventory.entries}
    modes = {path: " executable" if entry.executable else "" for path, entry in there.items()}
    return [f"{entry.kind} {path} {entry.value[:12]}{modes[path]}".rstrip() for path, entry in there.items()]

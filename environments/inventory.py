"""The inventory of an image: digest, mode and target of everything in it, so that a drift can be named and not only seen.

Written once, when the image is built or was just found to match its pin; read only when `layer_digest` no longer does,
so a round without drift pays nothing for it. Covered: changed, added, removed, moved files, modes, links, packages and
their versions, interpreter, bytecode, start-up hooks. Not covered: proof of the inventory itself; whoever can change the
image can change it too, and then only the layer's digest shows the drift.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import NamedTuple

from schemas.canary import Drift, DriftKind

NAME = "inventory.json"
FORMAT = 1
MOST = 20  # drifts that are named; the rest is counted
_SITE = re.compile(r"^usr/(?:local/)?lib/python[\d.]+/(?:site|dist)-packages/(.+)$")
_STDLIB = re.compile(r"^usr/(?:local/)?lib/python[\d.]+/(.+)$")
_CACHED = re.compile(r"^(.*/)?__pycache__/([^/]+?)\.[^./]+(?:\.opt-\d)?\.pyc$")
_VERSION = re.compile(rb"(?<![\d.])(3\.\d{1,2}\.\d{1,2})\0")


class Entry(NamedTuple):
    kind: str  # file | link | folder | other
    value: str  # digest of the content, or where the link leads
    executable: bool


@dataclass(frozen=True)
class Inventory:
    layer: str
    entries: dict[str, Entry]
    packages: dict[str, str]  # distribution -> version, by the metadata inside the image
    owners: dict[str, str]  # first part of a path below site-packages -> distribution
    interpreter: str | None  # version, as its binary or library has it


def take(root: Path, layer: str) -> Inventory:
    """Read the whole tree: about as long as `layer_digest` takes."""
    entries = dict(_entries(root))
    packages, owners = _packages(root, entries)
    return Inventory(layer, entries, packages, owners, _interpreter(root, entries))


def keep(root: Path, layer: str) -> None:
    """Write the inventory beside `root`, unless there is one of this layer. The caller knows that the tree matches it."""
    path = root.parent / NAME
    if load(root, layer) is not None:
        return
    taken = take(root, layer)
    value = {
        "format": FORMAT, "layer": layer, "interpreter": taken.interpreter, "packages": taken.packages, "owners": taken.owners,
        "entries": {name: list(entry) for name, entry in taken.entries.items()},
    }  # fmt: skip
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(value, sort_keys=True), encoding="utf-8")
    os.replace(part, path)


def load(root: Path, layer: str) -> Inventory | None:
    """That of this layer, or None: never written, unreadable, or of another layer."""
    try:
        value = json.loads((root.parent / NAME).read_text(encoding="utf-8"))
        if (value["format"], value["layer"]) != (FORMAT, layer):
            return None
        entries = {name: Entry(*entry) for name, entry in value["entries"].items()}
        return Inventory(layer, entries, value["packages"], value["owners"], value["interpreter"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _entries(root: Path) -> Iterator[tuple[str, Entry]]:
    for top, folders, files in os.walk(root):
        for name in sorted([*folders, *files]):
            path = Path(top, name)
            status = path.lstat()
            relative = path.relative_to(root).as_posix()
            if stat.S_ISLNK(status.st_mode):
                yield relative, Entry("link", os.readlink(path), False)
            elif stat.S_ISDIR(status.st_mode):
                yield relative, Entry("folder", "", False)
            elif stat.S_ISREG(status.st_mode):
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                yield relative, Entry("file", digest, bool(status.st_mode & stat.S_IXUSR))
            else:
                yield relative, Entry("other", stat.filemode(status.st_mode), False)


def _packages(root: Path, entries: dict[str, Entry]) -> tuple[dict[str, str], dict[str, str]]:
    """Versions by the metadata inside, and who owns which top-level name: by top_level.txt, by the name itself, else by
    what the same distribution owns on this host."""
    versions: dict[str, str] = {}
    owners: dict[str, str] = {}
    for path in entries:
        site = _SITE.match(path)
        if site is None or not site.group(1).endswith(".dist-info/METADATA"):
            continue
        about = HeaderParser().parsestr((root / path).read_text("utf-8", "replace"))
        name, folder = str(about["Name"]), site.group(1).split("/")[0]
        versions[name] = str(about["Version"])
        named = root / Path(path).parent / "top_level.txt"
        tops = named.read_text("utf-8", "replace").split() if named.is_file() else []
        for top in (folder, *tops, name.lower().replace("-", "_")):
            owners.setdefault(top, name)
    for top, names in importlib.metadata.packages_distributions().items():
        for name in names:
            if name in versions:
                owners.setdefault(top, name)
    return versions, owners


def _interpreter(root: Path, entries: dict[str, Entry]) -> str | None:
    """The version that stands in the shared library, else in the interpreter; nothing of the image is run for it."""
    for pattern in (r"(^|/)libpython3[^/]*\.so[^/]*$", r"(^|/)bin/python3[\d.]*$"):
        for path in sorted(
            path for path, entry in entries.items() if entry.kind == "file" and re.search(pattern, path)
        ):
            minor = re.search(r"python(3\.\d+)", path)  # other libraries are linked into some, and have versions too
            wanted = f"{minor[1]}.".encode() if minor else b"3."
            found = [version for version in _VERSION.findall((root / path).read_bytes()) if version.startswith(wanted)]
            if found:
                return str(max(set(found), key=found.count).decode())
    return None


# --- differences ---------------------------------------------------------------------------------------------------


def explain(before: Inventory, root: Path) -> list[Drift]:
    """What of the tree is not as the inventory has it, the most telling first, at most MOST of them."""
    now = take(root, "")
    changed = {
        path for path in before.entries.keys() | now.entries.keys() if before.entries.get(path) != now.entries.get(path)
    }
    drifts = [*_of_interpreter(before, now, changed), *_of_packages(before, now, changed)]
    moved = _moves(before, now, changed)
    drifts += [_named(before, path, f"moved to {target}") for path, target in sorted(moved.items())]
    left = changed - moved.keys() - set(moved.values())
    own = [path for path in sorted(left) if not _follows(before, now, path, left)]
    drifts += [_named(before, path, _difference(before, now, path)) for path in own]
    drifts.sort(key=lambda drift: _WEIGHT.index(drift.kind) if drift.kind in _WEIGHT else len(_WEIGHT))
    if len(drifts) > MOST:
        more = len(drifts) - MOST
        drifts = [
            *drifts[:MOST],
            Drift(kind="file", subject="the image", detail=f"{more} more differences; rebuild it"),
        ]
    return drifts


_WEIGHT: list[DriftKind] = [
    "interpreter", "package", "start-up hook", "binary", "library", "time zone", "standard library", "metadata", "bytecode", "file",
]  # fmt: skip


def _of_interpreter(before: Inventory, now: Inventory, changed: set[str]) -> Iterator[Drift]:
    if before.interpreter != now.interpreter:
        changed.difference_update({path for path in changed if _kind(path) == "interpreter"})
        detail = f"was Python {before.interpreter}, now {now.interpreter or 'none'}"
        yield Drift(kind="interpreter", subject="python", detail=detail)


def _of_packages(before: Inventory, now: Inventory, changed: set[str]) -> Iterator[Drift]:
    """Other versions, with how many of the package's files that explains; the files are then not named one by one."""
    for name in sorted(before.packages.keys() | now.packages.keys()):
        was, present = before.packages.get(name), now.packages.get(name)
        if was == present:
            continue
        owners = {**now.owners, **before.owners}
        mine = {path for path in changed if _owner(path, owners) == name}
        code = {path for path in mine if ".dist-info/" not in path and not path.endswith((".dist-info", ".pyc"))}
        changed -= mine
        if present is None and not code:
            yield Drift(
                kind="metadata", subject=name, detail=f"was {was}, its metadata is gone and its code is as it was"
            )
        else:
            detail = f"was {was or 'absent'}, now {present or 'absent'}; files that differ: {len(code)}"
            yield Drift(kind="package", subject=name, detail=detail)


def _owner(path: str, owners: dict[str, str]) -> str | None:
    site = _SITE.match(path)
    if site is None:
        return None
    top = site.group(1).split("/")[0]
    cached = _CACHED.match(site.group(1))
    return owners.get(cached.group(2) if cached and top == "__pycache__" else top.removesuffix(".py"))


def _moves(before: Inventory, now: Inventory, changed: set[str]) -> dict[str, str]:
    """Old path -> new path of files whose content went from the one to the other, and nowhere else."""
    gone: dict[str, list[str]] = defaultdict(list)
    come: dict[str, list[str]] = defaultdict(list)
    for path in changed:
        was, present = before.entries.get(path), now.entries.get(path)
        if was and not present and was.kind == "file":
            gone[was.value].append(path)
        elif present and not was and present.kind == "file":
            come[present.value].append(path)
    return {old[0]: come[value][0] for value, old in gone.items() if len(old) == len(come.get(value, ())) == 1}


def _follows(before: Inventory, now: Inventory, path: str, changed: set[str]) -> bool:
    """A change that another one already says: bytecode of a source that changed too, or what lies in a changed folder."""
    cached = _CACHED.match(path)
    if cached and f"{cached.group(1) or ''}{cached.group(2)}.py" in changed:
        return True
    parents = {str(parent) for parent in Path(path).parents} & changed
    return any((parent in before.entries) != (parent in now.entries) for parent in parents)


def _difference(before: Inventory, now: Inventory, path: str) -> str:
    was, present = before.entries.get(path), now.entries.get(path)
    if was is None or present is None:
        return f"missing: it was {_about(was)}" if was else f"added: {_about(present)}"
    if was.kind == present.kind and was.value == present.value:
        return f"mode: was {'' if was.executable else 'not '}executable, now {'' if present.executable else 'not '}executable"
    if was.kind == present.kind == "file":
        return f"content: was {was.value[:12]}, now {present.value[:12]}"
    return f"was {_about(was)}, now {_about(present)}"


def _about(entry: Entry | None) -> str:
    if entry is None:
        return "nothing"
    return f"a link to {entry.value}" if entry.kind == "link" else f"a {entry.kind} {entry.value[:12]}".strip()


def _named(before: Inventory, path: str, detail: str) -> Drift:
    kind, owner = _kind(path), _owner(path, before.owners)
    if kind == "package":
        if owner is None:
            kind = "file"
        else:
            detail = f"of {owner} {before.packages.get(owner, '')}: {detail}"
    return Drift(kind=kind, subject=path, detail=detail[:300])


def _kind(path: str) -> DriftKind:
    """What a path is, by where it lies."""
    name = path.rsplit("/", 1)[-1]
    if re.fullmatch(r"(usr/)?(local/)?bin/python[\d.]*", path) or name.startswith("libpython"):
        return "interpreter"
    if re.match(r"(usr/)?(local/)?s?bin/", path):
        return "binary"
    if name in ("sitecustomize.py", "usercustomize.py") or name.endswith(".pth") or "customize." in name:
        return "start-up hook"
    if "zoneinfo/" in path or path in ("etc/localtime", "etc/timezone"):
        return "time zone"
    if name.endswith(".pyc"):
        return "bytecode"
    site = _SITE.match(path)
    if site:
        return "metadata" if ".dist-info" in site.group(1).split("/")[0] else "package"
    if _STDLIB.match(path):
        return "standard library"
    return "library" if re.search(r"\.so(\.|$)", name) else "file"

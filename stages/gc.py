"""Collect what no record needs any more. Listed first; removed by `collect`, as the workspace's one writer.

Kept is whatever the records, pins, decisions and specs name: those on disk, and those at the tip of every branch and tag.
A record that only an older commit has was taken out by a person, and holds nothing. Names are found as hex digits in
the text of these files, whatever their schema: a digest, the start of one, or the name of an artifact's folder. So an
error is an artifact too many that stays. Images, bundles, tasks and trajectories of old rounds, which replays need, are
artifacts of their records and stay; so do those of abandoned rounds, which have records too.

In the open round, artifacts of stages that have no record yet stay: the stage may take them up.
A kill at any instant leaves what the records name untouched, and the next `collect` goes on.
Not covered: a DVC cache outside the workspace, or one that other repositories link to; commits that only a further git
worktree or a reflog holds; a person's own `dvc add` while this runs.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environments.bundles import tree_digest
from schemas.artifact import Manifest
from schemas.base import digest_of
from schemas.gc import Kind, Survey, Waste
from stages import dvc, git
from stages.artifacts import DIGITS, TMP_PREFIX
from stages.rounds import missing, open_round
from stages.workspace import Workspace

_WORD = r"[0-9a-f]{8,64}(\.dir)?"
_SHORTEST = 8  # digits by which a spec may name a bundle
_ARTIFACT = re.compile(rf"artifacts/([a-z][a-z0-9_.-]*)/[a-z][a-z0-9_.-]*-([0-9a-f]{{{DIGITS}}})")
_ENDS = (".dvc", ".manifest.json")
_MESSAGE = "collect what no record needs"


def survey(space: Workspace, caches: bool = False) -> Survey:
    """What would go; nothing is changed. `caches`: also those in the workspace's .postloop/.

    Raises IntegrityError, InputError when a record cannot be read: what it needs is then unknown.
    """
    needs = _needs(space)
    artifacts = [stem for stem in _stems(space) if not needs.names(space, stem)]
    keeps = [f"artifact {stem}: round {needs.open} is open and its stage may take it up; finish the round first"
             for stem in artifacts if needs.resumable(stem)]  # fmt: skip
    artifacts = [stem for stem in artifacts if not needs.resumable(stem)]
    cached, unsure = _unneeded_objects(space, needs)
    found: list[tuple[Kind, Sequence[Path], str]] = [
        *(("temporary", [path], "a killed process left it") for path in _temporary(space)),
        *(("artifact", _parts(space, stem), "no record names it") for stem in artifacts),
        *(("cached", [path], "no pointer that stays needs it") for path in cached),
        *(("cache", [path], "made again when it is used") for path in (_caches(space) if caches else ())),
    ]
    return Survey(waste=_weighed(space, found), kept=keeps + unsure)


def collect(space: Workspace, caches: bool = False) -> Survey:
    """Remove what `survey` lists, under the workspace's lock. Returns what went.

    Raises InputError when another process is running in the workspace, and what `survey` raises; nothing is removed then.
    """
    _needs(space)
    swept = [one for one in survey(space).waste if one.kind == "temporary"]
    with space.lock():  # which clears temporary files
        found = survey(space, caches)
        for one in found.waste:
            _remove(space, one)
        _record_removal(space)
    return found.model_copy(update={"waste": [*swept, *found.waste]})


# --- what is needed


@dataclass
class _Needs:
    """What the texts of a workspace name, here and at the tips of its branches."""

    paths: set[str]  # of artifacts, by the records that were read
    starts: set[str] = field(default_factory=set)  # first DIGITS digits of every longer word
    short: set[str] = field(default_factory=set)
    pointers: list[tuple[str, str]] = field(default_factory=list)  # file of DVC -> the object that it names
    open: int | None = None
    unfinished: set[str] = field(default_factory=set)  # stages of the open round

    def add(self, path: str, word: str) -> None:
        if path.endswith(".dvc") or Path(path).name == "dvc.lock":
            if len(word.removesuffix(".dir")) == 32:  # MD5; the rest are parts of names
                self.pointers.append((path, word))
        elif not path.startswith("artifacts/"):
            word = word.removesuffix(".dir")
            (self.short if len(word) < DIGITS else self.starts).add(word[:DIGITS])

    def names(self, space: Workspace, stem: str) -> bool:
        if stem in self.paths:
            return True
        return any(self._named(identity) for identity in _identities(space, stem))

    def _named(self, identity: str) -> bool:
        starts = (identity[:length] for length in range(_SHORTEST, DIGITS))
        return identity[:DIGITS] in self.starts or any(start in self.short for start in starts)

    def resumable(self, stem: str) -> bool:
        return stem.split("/")[1] in self.unfinished


def _needs(space: Workspace) -> _Needs:
    needs = _Needs({ref.path for ref in space.refs()}, open=open_round(space))
    needs.unfinished = set(missing(space, needs.open)) if needs.open else set()
    for commit in (None, *git.tips(space.root)):
        for path, word in git.words(space.root, _WORD, commit):
            needs.add(path, word)
    return needs


def _identities(space: Workspace, stem: str) -> Iterator[str]:
    """Every digest by which a pin may name an artifact: its own, its weights', its layer's, its tree's as a bundle.

    Not those of its other files: every checkpoint of one base has the same config and tokenizer.
    """
    found = _ARTIFACT.fullmatch(stem)
    assert found is not None
    yield found[2]
    try:
        manifest = Manifest.model_validate_json((space.root / f"{stem}.manifest.json").read_bytes())
    except (OSError, ValueError):
        manifest = Manifest(entries=[])
    weights = sorted(entry.sha256 for entry in manifest.entries if entry.path.endswith(".safetensors"))
    yield from weights
    if weights:
        yield digest_of(weights)  # as stages/models.py has it
    yield from (entry.sha256 for entry in manifest.entries if entry.path == "layer.tar")
    folder = space.root / stem
    if (folder / "bundle.json").is_file():
        yield tree_digest(folder)


# --- what there is


def _stems(space: Workspace) -> list[str]:
    """Artifacts of which anything is on disk: folder, pointer or manifest. Other names are a person's, and stay."""
    found = set()
    for shelf in (space.root / "artifacts").glob("*"):
        if shelf.is_symlink() or not shelf.is_dir():
            continue
        for path in shelf.iterdir():
            name = path.relative_to(space.root).as_posix()
            stem = next((name.removesuffix(end) for end in _ENDS if name.endswith(end)), name)
            if _ARTIFACT.fullmatch(stem):
                found.add(stem)
    return sorted(found)


def _parts(space: Workspace, stem: str) -> list[Path]:
    return [path for end in ("", *_ENDS) if os.path.lexists(path := space.root / f"{stem}{end}")]


def _temporary(space: Workspace) -> list[Path]:
    """Left by processes that are gone."""
    found = []
    for path in space.leftovers():
        owner = re.match(rf"{TMP_PREFIX}(\d+)-", path.name)
        if owner is None or not Path("/proc", owner[1]).exists():
            found.append(path)
    return found


def _caches(space: Workspace) -> list[Path]:
    """Models, images and seed data that were made in this workspace; not those of POSTLOOP_CACHE, which others share."""
    folder = space.root / ".postloop" / "cache"
    return sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []


def _unneeded_objects(space: Workspace, needs: _Needs) -> tuple[list[Path], list[str]]:
    """Cache objects that no pointer that stays needs. None of them, and why, while a list of files cannot be trusted."""
    needed: set[str] = set()
    unsure = []
    for pointer, name in needs.pointers:
        stem = pointer.removesuffix(".dvc")
        if _ARTIFACT.fullmatch(stem) and not needs.names(space, stem) and not needs.resumable(stem):
            continue
        listed = dvc.listed(space.root, name) if name.endswith(".dir") else []
        if listed is None:
            unsure.append(
                f"cached copies: the list of {stem} is missing or damaged in .dvc/cache; `postloop pull` first"
            )
        needed |= {name, *(listed or ())}
    objects = dvc.objects(space.root)
    return ([], sorted(set(unsure))) if unsure else ([path for name, path in objects if name not in needed], [])


# --- weighing and removing


def _weighed(space: Workspace, found: Sequence[tuple[Kind, Sequence[Path], str]]) -> list[Waste]:
    """Bytes that come back: files whose every link is listed, counted with the first."""
    files = [[file for path in paths for file in _files(path)] for _, paths, _ in found]
    links = Counter((at.st_dev, at.st_ino) for row in files for at in row)
    waste = []
    for (kind, paths, why), row in zip(found, files, strict=True):
        size = 0
        for at in row:
            if links.pop((at.st_dev, at.st_ino), 0) == at.st_nlink:
                size += at.st_size
        name = paths[0].relative_to(space.root).as_posix()
        if kind == "artifact":
            name = next((name.removesuffix(end) for end in _ENDS if name.endswith(end)), name)
        waste.append(Waste(kind=kind, path=name, bytes=size, why=why))
    return waste


def _files(path: Path) -> Iterator[os.stat_result]:
    if path.is_symlink() or not path.is_dir():
        yield path.lstat()
        return
    for parent, _, names in os.walk(path):
        yield from (Path(parent, name).lstat() for name in names)


def _remove(space: Workspace, one: Waste) -> None:
    """An artifact's folder first: while its pointer or its manifest is there, the next `collect` finds the rest."""
    if one.kind == "artifact":
        for path in _parts(space, one.path):
            _delete(path)
    else:
        _delete(space.root / one.path)


def _delete(path: Path) -> None:
    """A folder goes under a name that the next start clears, since it takes a while; a link goes, not what it names."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    aside = path.with_name(f".{path.name}.tmp")
    path.rename(aside)
    shutil.rmtree(aside)


def _record_removal(space: Workspace) -> None:
    """Pointers that git knows and that went, now or in a killed call before, go from git too."""
    needs = _needs(space)
    gone = []
    for name in git.uncommitted(space.root, ["artifacts"]):
        stem = next((name.removesuffix(end) for end in _ENDS if name.endswith(end)), name)
        if not (space.root / name).exists() and _ARTIFACT.fullmatch(stem) and not needs.names(space, stem):
            gone.append(name)
    git.commit(space.root, gone, _MESSAGE)

"""Flipped bits in a small workspace: refused by name, repaired exactly, and what plain DVC would have served."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.integrity import cached_only, copied, drawn, fetched_again, flipped, sha256, toggle, trial
from schemas.artifact import ArtifactRef
from stages import artifacts, dvc
from stages.spec import dump_default
from stages.workspace import Workspace

FLIPS = 25


class Small(Workspace):
    """Artifacts without rounds: what names them is this test."""

    stored: tuple[ArtifactRef, ...] = ()

    def refs(self) -> list[ArtifactRef]:
        return sorted(self.stored, key=lambda ref: ref.path)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Small:
    root = tmp_path_factory.mktemp("integrity") / "loop"
    Workspace.create(root, dump_default("tiny"))
    made = Small(root)
    stream = random.Random(0)

    def build(name: str, sizes: tuple[int, ...]) -> ArtifactRef:
        def fill(folder: Path) -> None:
            for number, size in enumerate(sizes):
                (folder / f"{number}.bin").write_bytes(stream.randbytes(size))
            (folder / "empty").touch()

        return artifacts.store(made, "data", name, fill)

    made.stored = (build("tasks", (1, 50_000)), build("checkpoint", (300_000, 7)), build("other", (4096,)))
    dvc.add(root, [ref.path for ref in made.stored])
    return made


def test_every_flip_is_refused_by_name_and_repaired(space: Small) -> None:
    flips = drawn(space, FLIPS, seed=0)
    assert drawn(space, FLIPS, seed=0) == flips
    trials = [trial(space, flip) for flip in flips]
    assert [t for t in trials if not (t["verify"] and t["use"])] == []
    assert {t["links"] for t in trials} == {2}
    assert len({t["file"] for t in trials}) == 5
    assert [problem for ref in space.refs() for problem in artifacts.problems_of(space, ref)] == []


def test_a_trial_can_fail(space: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if content were trusted for its size and times."""
    monkeypatch.setattr(artifacts, "problems_of", lambda workspace, ref: [])
    found = trial(space, drawn(space, 1, seed=1)[0])
    assert (found["verify"], found["use"]) == (False, False)


def test_a_flip_keeps_inode_size_mode_and_times_and_reaches_the_cache(space: Small) -> None:
    flip = drawn(space, 1, seed=2)[0]
    before, good = flip.path.stat(), sha256(flip.path)
    linked = [path for path in dvc.objects_of(space.root, flip.ref.path) if path.stat().st_ino == before.st_ino]
    with flipped(flip.path, flip.byte, flip.bit):
        after = flip.path.stat()
        assert (after.st_mtime_ns, after.st_size, after.st_mode) == (before.st_mtime_ns, before.st_size, before.st_mode)
        assert [sha256(path) for path in linked] == [sha256(flip.path)] != [good]
    assert sha256(flip.path) == good


def test_a_damaged_cached_copy_is_refused_when_its_folder_is_fetched(space: Small, tmp_path: Path) -> None:
    copies = cached_only(space)
    assert {path.suffix for _, path in copies} == {".dir"}
    ref, path = copies[0]
    assert fetched_again(space, ref, path, random.Random(0), tmp_path) == "refused"
    artifacts.forget()
    assert space.open_artifact(ref).is_dir()


def test_a_copy_keeps_links_and_leaves_the_original_alone(space: Small, tmp_path: Path) -> None:
    other = copied(space, tmp_path / "copy")
    flip = drawn(space, 1, seed=3)[0]
    place = other.root / flip.ref.path / flip.file
    assert place.stat().st_nlink == 2
    toggle(place, flip.byte, flip.bit)
    assert artifacts.problems_of(other, flip.ref)
    assert not artifacts.problems_of(space, flip.ref)

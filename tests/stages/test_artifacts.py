"""Artifacts: named by their content, whole or absent, checked at use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from schemas.artifact import ArtifactRef
from schemas.errors import IntegrityError
from stages.artifacts import hash_tree, kept, manifest_path, open_artifact, problems_of, read_manifest, scratch, store


class Place:
    def __init__(self, root: Path) -> None:
        self.root = root


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def two_files(folder: Path) -> None:
    (folder / "b.txt").write_text("two")
    (folder / "a").mkdir()
    (folder / "a" / "one.bin").write_bytes(b"\x00one")


def test_the_digest_depends_on_names_and_bytes_alone(place: Place) -> None:
    first = store(place, "data", "tasks", two_files)
    again = store(place, "sft", "other", two_files)
    assert first.digest == again.digest
    assert first.path == f"artifacts/data/tasks-{first.digest[:12]}"
    assert (first.files, first.bytes) == (2, 7)
    manifest = read_manifest(place, first)
    assert manifest is not None
    assert [entry.path for entry in manifest.entries] == ["a/one.bin", "b.txt"]
    assert manifest.digest() == first.digest


def test_equal_content_is_kept_once_and_damaged_content_is_replaced(place: Place) -> None:
    ref = store(place, "data", "tasks", two_files)
    inode = (place.root / ref.path / "b.txt").stat().st_ino
    assert store(place, "data", "tasks", two_files) == ref
    assert (place.root / ref.path / "b.txt").stat().st_ino == inode
    damage(place.root / ref.path / "b.txt")
    assert store(place, "data", "tasks", two_files) == ref
    assert problems_of(place, ref) == []


def damage(path: Path) -> None:
    times = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"\xff")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_changed_byte_with_kept_size_and_times_is_refused_by_name(place: Place) -> None:
    ref = store(place, "data", "tasks", two_files)
    damage(place.root / ref.path / "a" / "one.bin")
    with pytest.raises(
        IntegrityError, match=r"a/one\.bin: sha256 recorded [0-9a-f]{12}, found [0-9a-f]{12}.*postloop pull"
    ) as error:
        open_artifact(place, ref)
    assert "\n" not in str(error.value)


def test_a_missing_and_an_added_file_are_refused_by_name(place: Place) -> None:
    ref = store(place, "data", "tasks", two_files)
    (place.root / ref.path / "b.txt").unlink()
    (place.root / ref.path / "new.txt").write_text("new")
    found = problems_of(place, ref)
    assert [line.split(": ")[1] for line in found] == ["b.txt", "new.txt"]
    assert "found no file" in found[0]
    assert "recorded none" in found[1]


def test_a_damaged_manifest_does_not_hide_or_invent_damage(place: Place) -> None:
    ref = store(place, "data", "tasks", two_files)
    manifest_path(place, ref).write_text("{}")
    assert open_artifact(place, ref) == place.root / ref.path
    damage(place.root / ref.path / "b.txt")
    (line,) = problems_of(place, ref)
    assert "no manifest says which file" in line


def test_an_artifact_that_is_nowhere_is_named(place: Place) -> None:
    ref = ArtifactRef(name="tasks", path="artifacts/data/tasks-000000000000", digest="0" * 64, files=1, bytes=1)
    with pytest.raises(IntegrityError, match="tasks-000000000000: neither its folder nor its pointer"):
        open_artifact(place, ref)


def test_a_build_that_fails_leaves_nothing(place: Place) -> None:
    def fails(folder: Path) -> None:
        two_files(folder)
        raise KeyError("midway")

    with pytest.raises(KeyError):
        store(place, "data", "tasks", fails)
    assert [path.name for path in place.root.rglob("*")] == [".postloop"]


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("link", lambda path: path.symlink_to("/etc/passwd"), "link or a special file"),
        ("folder_link", lambda path: path.symlink_to("/etc"), "link or a special file"),
        ("pipe", os.mkfifo, "link or a special file"),
        (".git", Path.mkdir, "reserved"),
        (".dvcignore", Path.touch, "reserved"),
        ("x.dvc", Path.touch, "reserved"),
        (os.fsdecode(b"\xff\xfe"), Path.touch, "not UTF-8"),
    ],
)
def test_what_cannot_be_kept_faithfully_is_refused(place: Place, name: str, make: object, message: str) -> None:
    def build(folder: Path) -> None:
        two_files(folder)
        make(folder / name)  # type: ignore[operator]

    with pytest.raises(ValueError, match=message) as error:
        store(place, "data", "tasks", build)
    assert str(error.value).isprintable()
    assert not (place.root / "artifacts").exists()


def test_nothing_is_no_artifact_and_names_are_plain(place: Place) -> None:
    with pytest.raises(ValueError, match="empty"):
        store(place, "data", "tasks", lambda folder: (folder / "only_a_folder").mkdir())
    for name in ("../up", "Name", "a b", ""):
        with pytest.raises(ValueError, match="names are"):
            store(place, "data", name, two_files)


def test_hostile_names_that_are_text_are_kept(place: Place) -> None:
    def build(folder: Path) -> None:
        for name in ("-rf", "new\nline", "ünïcode", "a'b\"c", "%s{}"):
            (folder / name).write_text(name)

    ref = store(place, "data", "tasks", build)
    assert problems_of(place, ref) == []
    assert ref.files == 5


def test_scratch_is_empty_on_the_same_disk_and_gone_afterwards(place: Place) -> None:
    with scratch(place) as work:
        assert list(work.iterdir()) == []
        assert work.stat().st_dev == place.root.stat().st_dev
        (work / "big.bin").write_bytes(b"x")
    assert not work.exists()


def test_stored_files_are_read_only(place: Place) -> None:
    ref = store(place, "data", "tasks", two_files)
    assert {path.stat().st_mode & 0o222 for path in (place.root / ref.path).rglob("*") if path.is_file()} == {0}
    assert hash_tree(place.root / ref.path).digest() == ref.digest


def test_what_a_killed_run_left_whole_is_found_by_its_name_and_what_is_damaged_is_not(place: Place) -> None:
    assert kept(place, "evaluation", "attempts-0123") is None
    ref = store(place, "evaluation", "attempts-0123", lambda folder: (folder / "rows").write_text("a lot of work"))
    assert kept(place, "evaluation", "attempts-0123") == ref
    assert kept(place, "evaluation", "attempts-012") is None
    path = place.root / ref.path / "rows"
    path.chmod(0o644)
    path.write_text("a lot of wark")
    assert kept(place, "evaluation", "attempts-0123") is None

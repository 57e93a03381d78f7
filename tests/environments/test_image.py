"""Images: what is in the root file system, and that its identity is its content."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from environments.image import VARIABLES, Image, build_image, lay_root, layer_digest, publish, write_layer
from schemas.errors import InputError, IntegrityError


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def image(cache: Path) -> Image:
    return build_image(cache, packages=("pytest",))


def test_the_image_names_what_is_in_it(image: Image) -> None:
    packages = image.environment.packages
    assert {"pytest", "pluggy", "iniconfig", "packaging", "pygments"} == set(packages)
    assert packages["pytest"] == pytest.__version__
    assert image.environment.variables == VARIABLES
    assert (image.root / "usr/bin/python3").exists()


def test_a_second_build_from_scratch_has_the_same_layer(image: Image, tmp_path: Path) -> None:
    root = tmp_path / "elsewhere" / "a-path-of-another-length"
    root.parent.mkdir()
    lay_root(root, tuple(image.environment.packages))
    assert layer_digest(root) == image.environment.layer


def test_an_image_is_built_once(image: Image, cache: Path) -> None:
    before = image.root.stat().st_ino
    assert build_image(cache, packages=("pytest",)) == image
    assert image.root.stat().st_ino == before


def test_a_killed_build_leaves_nothing_that_is_taken_for_an_image(image: Image, cache: Path) -> None:
    half = cache / ".building-dead"
    (half / "root").mkdir(parents=True)
    unrecorded = cache / ("0" * 64)
    shutil.copytree(half, unrecorded)
    build_image(cache, packages=("pytest",))
    assert not half.exists()


def test_the_layer_is_that_of_a_canonical_tar(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "b").mkdir(parents=True)
    (root / "b" / "tool").write_text("x")
    (root / "b" / "tool").chmod(0o700)
    (root / "a").symlink_to("b/tool")
    os.utime(root / "b" / "tool", (1, 1))
    with (tmp_path / "layer.tar").open("wb") as file:
        digest = write_layer(root, file)
    assert digest == hashlib.sha256((tmp_path / "layer.tar").read_bytes()).hexdigest()
    with tarfile.open(tmp_path / "layer.tar") as tar:
        entries = [(item.name, oct(item.mode), item.mtime, item.uid, item.uname) for item in tar]
    assert entries == [("a", "0o755", 0, 0, ""), ("b", "0o755", 0, 0, ""), ("b/tool", "0o755", 0, 0, "")]


@pytest.mark.parametrize("change", ["content", "mode", "name", "link", "extra"])
def test_every_drift_changes_the_layer(tmp_path: Path, change: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("one")
    (root / "link").symlink_to("file")
    before = layer_digest(root)
    if change == "content":
        (root / "file").write_text("two")
    elif change == "mode":
        (root / "file").chmod(0o755)
    elif change == "name":
        (root / "file").rename(root / "other")
    elif change == "link":
        (root / "link").unlink()
        (root / "link").symlink_to("elsewhere")
    else:
        (root / "extra").mkdir()
    assert layer_digest(root) != before


def test_owner_and_time_are_not_identity(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("one")
    before = layer_digest(root)
    os.utime(root / "file", (5, 5))
    (root / "file").chmod(0o600)
    assert layer_digest(root) == before


def test_a_pipe_in_an_image_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(IntegrityError, match="pipe is no file, folder or link"):
        layer_digest(tmp_path)


def test_nothing_of_the_host_leaks_into_the_image(image: Image) -> None:
    assert set(os.listdir(image.root / "etc")) == {"passwd", "group"} | (
        {"ld.so.cache"} & set(os.listdir(image.root / "etc"))
    )
    assert "sh" not in os.listdir(image.root / "usr/bin")
    assert not list(image.root.rglob("direct_url.json"))
    links = [path for path in image.root.rglob("*") if path.is_symlink()]
    assert all(not os.path.isabs(os.readlink(path)) for path in links)


def test_a_package_that_is_not_installed_is_named(cache: Path) -> None:
    with pytest.raises(InputError, match="no-such-package-here is not installed here"):
        build_image(cache, packages=("no-such-package-here",))


def test_a_reachable_root_is_used_as_it_is_and_a_private_one_is_linked(tmp_path: Path) -> None:
    private = tmp_path / "private"
    root = private / "root"
    root.mkdir(parents=True)
    (root / "file").write_text("one")
    private.chmod(0o700)
    shown = publish(root, layer_digest(root), tmp_path / "shelf")
    assert shown.parent == tmp_path / "shelf"
    assert layer_digest(shown) == layer_digest(root)
    (shown / "file").unlink()
    assert layer_digest(publish(root, layer_digest(root), tmp_path / "shelf")) == layer_digest(root)
    assert publish(Path("/usr/share"), "unused", tmp_path / "shelf") == Path("/usr/share")

"""Images: what is in the root file system, and that its identity is its content."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from wheels import Index, locked_lines, make_wheel

from environments.image import VARIABLES, Image, build_image, lay_files, lay_root, layer_digest, publish, write_layer
from environments.inventory import explain, load
from schemas.errors import InputError, IntegrityError


@pytest.fixture(scope="module")
def cache() -> Path:
    return Path(tempfile.gettempdir()) / "postloop-test-images"


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
    (half / "root").mkdir(parents=True, exist_ok=True)
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


def test_a_change_of_a_known_tree_that_hides_in_size_and_time_changes_the_layer(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    time.sleep(1.1)  # what changed just now is not remembered
    before, status = layer_digest(tmp_path), file.stat()
    assert layer_digest(tmp_path) == before
    file.write_text("two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert layer_digest(tmp_path) != before


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


# --- declared images -----------------------------------------------------------------------------------------------

BUILD = """
import json, os, sys, time
asked = json.loads(sys.argv[1])
os.umask(asked["umask"])
time.time = lambda: asked["clock"]
time.time_ns = lambda: int(asked["clock"] * 1e9)
from pathlib import Path
from environments.image import build_image
given = {"lock": Path(asked["lock"]), "files": asked["files"], "python": sys.version.split()[0]}
image = build_image(Path(asked["cache"]), "declared", ("tiny",), **given)
print(json.dumps([image.environment.layer, image.environment.packages, str(image.root)]))
"""
FILES = {"etc/tool.conf": "on = 1\n", "usr/bin/tool": "#!/usr/bin/python3\nprint(1)\n"}
# A set of strings as a constant, a name that an optimizer could intern, and a file that is no Python.
MODULE = "NAMES = {'a', 'b', 'c', None}\n\n\ndef f(x):\n    return x in {'d', 'e', 'f', 1.5, None}\n"


def build_elsewhere(place: Path, lock: Path, files: dict[str, str], umask: int, clock: float, **variables: str) -> Any:
    place.mkdir(parents=True)
    asked = {"cache": str(place / "cache"), "lock": str(lock), "files": files, "umask": umask, "clock": clock}
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, json.dumps(asked)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), **variables},
        stdout=subprocess.PIPE,
        text=True,
        cwd=place,
    )


def built(process: Any) -> tuple[str, dict[str, str], Path]:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    layer, packages, root = json.loads(out)
    return layer, packages, Path(root)


def test_two_builds_of_a_declared_image_are_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other folders, clock, umask, hash seed, locale and time zone; each with a store of wheels of its own."""
    index = Index(tmp_path / "index", monkeypatch)
    content = {"tiny/__init__.py": MODULE, "tiny/broken.py": "print 'two'\n", "tiny/data.bin": "\0"}
    tiny = make_wheel(index.folder, files=content, requires=("needed",))
    lock = tmp_path / "lock.txt"
    lock.write_text(locked_lines(make_wheel(index.folder, "needed"), tiny))
    one = build_elsewhere(tmp_path / "a", lock, FILES, 0o077, 1e9, PYTHONHASHSEED="1", TZ="UTC", SOURCE_DATE_EPOCH="1")
    turned = dict(reversed(FILES.items()))
    far = tmp_path / "b/a-path/of-another-length"
    two = build_elsewhere(far, lock, turned, 0o002, 2e9, PYTHONHASHSEED="2", TZ="Asia/Tokyo", LC_ALL="C")
    (layer, packages, root), (again, _, other) = built(one), built(two)
    assert layer == again == layer_digest(root) == layer_digest(other)
    assert packages == {"needed": "1.0", "tiny": "1.0"}
    site = next(root.glob("usr/lib/python3*/*-packages"))
    assert (site / "tiny/data.bin").is_file()
    assert (root / "usr/bin/tool").stat().st_mode & 0o777 == 0o755
    assert [path.name.split(".")[0] for path in sorted(site.glob("tiny/__pycache__/*.pyc"))] == ["__init__"]
    assert not list(site.glob("pytest*"))
    (site / "tiny/__init__.py").write_text("NAMES = set()\n")
    inventory = load(root, layer)
    assert inventory is not None
    (drift,) = explain(inventory, root)
    assert (drift.kind, drift.detail.split(":")[0]) == ("package", "of tiny 1.0")


def test_a_declaration_that_cannot_be_met_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(tmp_path / "index", monkeypatch)
    lock = tmp_path / "lock.txt"
    lock.write_text(locked_lines(make_wheel(index.folder)))
    for given, said in (
        ({"python": "3.1"}, "Python 3.1 is declared, this is 3."),
        ({"python": "2"}, "Python 2 is declared"),
        ({"lock": lock, "packages": ("pytest",)}, "package pytest is declared, the lock has none"),
        ({"lock": lock, "packages": ("tiny>2",)}, "the lock has 1.0"),
        ({"lock": tmp_path / "none"}, "No such file"),
        ({"files": {"../x": ""}}, "no relative path"),
        ({"files": {"/etc/x": ""}}, "no relative path"),
        ({"files": {"work/x": ""}}, "outside dev, proc"),
        ({"files": {"etc//x": ""}}, "no relative path"),
        ({"files": {".": ""}}, "no relative path"),
        ({"files": {"a\nb": ""}}, "no relative path"),
    ):
        with pytest.raises(InputError) as error:
            build_image(tmp_path / "cache", **given)  # type: ignore[arg-type]
        assert said in str(error.value)
        assert "\n" not in str(error.value)


def test_a_file_takes_no_others_place(tmp_path: Path) -> None:
    lay_files(tmp_path, {"etc/a": "1\r\n", "etc/b/c": ""})
    assert (tmp_path / "etc/a").read_bytes() == b"1\r\n"
    for path in ("etc/a", "etc/a/b", "etc/b"):
        with pytest.raises(InputError, match="is there already, or its folder is a file"):
            lay_files(tmp_path, {path: ""})

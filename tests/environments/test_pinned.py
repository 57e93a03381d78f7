"""An environment against its pin: what of a real image, of a tree and of a lock file is another one now."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.image import layer_digest
from environments.inventory import keep
from environments.pinned import Sides, sides
from schemas.execution import Environment

META = "usr/lib/python3.11/site-packages/Plug_gy-1.5.0.dist-info/METADATA"
HASH = "a" * 64


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with one distribution and a file of its own, as an image has them; its inventory is kept."""
    root = tmp_path / "root"
    for path, text in ((META, _about("1.5.0")), ("opt/prices.txt", "nail 3\n"), ("opt/kept.txt", "as it was\n")):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    keep(root, layer_digest(root))
    return root


def _about(version: str) -> str:
    return f"Metadata-Version: 2.1\nName: Plug_gy\nVersion: {version}\n"


def pinned(root: Path) -> Environment:
    return Environment(name="image", python="3.11.7", packages={"Plug_gy": "1.5.0"}, layer=layer_digest(root))


def differ(found: Sides) -> tuple[set[str], set[str]]:
    was, now = map(set, found)
    return was - now, now - was


def test_what_is_as_pinned_has_two_equal_sides(root: Path) -> None:
    was, now = sides(pinned(root), root)
    assert was == now
    assert "package plug-gy==1.5.0" in was


@pytest.mark.parametrize("inventory", [True, False])
def test_a_version_and_a_file_that_changed_are_named_and_others_are_not(root: Path, inventory: bool) -> None:
    pin = pinned(root)
    (root / META).write_text(_about("1.6.0"))
    (root / "opt/prices.txt").write_text("nail 4\n")
    (root / "opt/new").write_text("new\n")
    if not inventory:
        (root.parent / "inventory.json").unlink()
    gone, come = differ(sides(pin, root))
    assert {"package plug-gy==1.5.0", f"layer {pin.layer}"} <= gone
    assert {"package plug-gy==1.6.0", f"layer {layer_digest(root)}"} <= come
    files = [sorted(line.split()[1] for line in side if line.startswith("file ")) for side in (gone, come)]
    assert files == ([["opt/prices.txt"], ["opt/new", "opt/prices.txt"]] if inventory else [[], []])


def test_a_lock_that_names_other_versions_than_the_image_was_built_from_differs(root: Path, tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"plug.gy==1.5.0 --hash=sha256:{HASH}\n")
    assert differ(sides(pinned(root), root, lock)) == (set(), set())
    lock.write_text(f"plug.gy==1.7.0 --hash=sha256:{HASH}\nmore==1 --hash=sha256:{HASH}\n")
    assert differ(sides(pinned(root), root, lock)) == ({"lock plug-gy==1.5.0"}, {"lock plug-gy==1.7.0", "lock more==1"})
    lock.unlink()
    _, (said,) = differ(sides(pinned(root), root, lock))
    assert said == "lock requirements.lock: No such file or directory; name a requirements file with hashes"

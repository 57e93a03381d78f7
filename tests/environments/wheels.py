"""Tiny wheels made on the spot, and a folder of them as pip's only index."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


def make_wheel(
    folder: Path,
    name: str = "tiny",
    version: str = "1.0",
    files: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> Path:
    """Without a RECORD, which nothing here reads."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    about += "".join(f"Requires-Dist: {text}\n" for text in requires)
    content = {
        **(files if files is not None else {f"{name}.py": "x = 1\n"}),
        f"{name}-{version}.dist-info/METADATA": about,
        f"{name}-{version}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in content.items():
            archive.writestr(zipfile.ZipInfo(place), text)
    return path


def locked_lines(*wheels: Path) -> str:
    """A lock file; wheels of one version share a line."""
    hashes: dict[str, list[str]] = {}
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        hashes.setdefault(f"{name}=={version}", []).append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    return "".join(
        f"{pin} " + " ".join(f"--hash=sha256:{value}" for value in values) + "\n" for pin, values in hashes.items()
    )


class Index:
    """`folder` is all that pip knows, until `close`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._patch = monkeypatch
        for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_EXTRA_INDEX_URL": ""}.items():
            monkeypatch.setenv(name, value)
        self.open()

    def open(self) -> None:
        self._patch.setenv("PIP_FIND_LINKS", str(self.folder))

    def close(self) -> None:
        self._patch.setenv("PIP_FIND_LINKS", "/nonexistent")

"""Data inside published wheels: fetched by name, version and SHA-256, and read without installing or running anything.

Covered: the index that pip is configured with, a shelf by digest that is checked at each use, one member of bounded
size. Not covered: source distributions (see sdists.py), which would run their build code.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from schemas.errors import InfrastructureError, InputError

DOWNLOAD_S = 1800.0
_OPTIONS = ["--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "--disable-pip-version-check"]


def fetch(package: str, version: str, sha256: str, shelf: Path) -> Path:
    """The wheel with this SHA-256, from the shelf if it is there. Raises InputError (no such name, another content),
    InfrastructureError (the download failed)."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", package):
        raise InputError(f"package {package!r}: not a distribution name; write it as on the package index")
    if not re.fullmatch(r"[0-9][0-9A-Za-z.!+_-]*", version):
        raise InputError(f"package {package}: {version!r} is not an exact version; write e.g. 0.1.2")
    kept = shelf / f"{sha256}.whl"
    if kept.is_file() and _digest(kept) == sha256:
        return kept
    shelf.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=shelf) as folder:
        _download(f"{package}=={version}", folder)
        wheels = sorted(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise InputError(f"package {package}: {len(wheels)} wheels came, expected 1; name another package")
        found = _digest(wheels[0])
        if found != sha256:
            raise InputError(
                f"package {package}=={version}: SHA-256 is {found}, pinned is {sha256}; change the pin only if you trust it"
            )
        with wheels[0].open("rb") as file:
            os.fsync(file.fileno())
        wheels[0].rename(kept)
    return kept


def _download(requirement: str, folder: str) -> None:
    """Only a built wheel: a source distribution would run its build code."""
    argv = [sys.executable, "-m", "pip", "download", *_OPTIONS, "--dest", folder, requirement]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"package {requirement}: no download within {DOWNLOAD_S:g} s; try again") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1][:200]
        raise InfrastructureError(
            f"package {requirement}: pip download failed: {last}; check name, version and network"
        )


def member(wheel: Path, name: str, most: int) -> bytes:
    """One file of a wheel. Raises InputError when it is missing, broken, or over `most` bytes, whatever its header says."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(name) as file:
            data = file.read(most + 1)
    except KeyError:
        raise InputError(f"wheel {wheel.name}: no {name} in it; pin the version that has it") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"wheel {wheel.name}: {name} cannot be read ({error}); fetch it again") from None
    if len(data) > most:
        raise InputError(f"wheel {wheel.name}: {name} is over {most} bytes; pin another version")
    return data


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

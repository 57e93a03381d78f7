"""An image from its kept layer, for replays on a machine that would build another one: last month's interpreter is gone.

The tar is the canonical one of image.py, so its SHA-256 is the pin; what was unpacked is hashed once more before it is used.
Not covered: layers of other tools; another processor, whose interpreter this one cannot run.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
from pathlib import Path

from environments.image import Image, layer_digest, one_at_a_time
from environments.inventory import keep
from schemas.errors import IntegrityError, SandboxError
from schemas.execution import Environment


def restore_image(cache: Path, environment: Environment, layer: Path) -> Image:
    """The image of `environment` under `cache`, unpacked from the file `layer` unless it is there.

    Raises IntegrityError (not the layer that the environment names), SandboxError (the disk).
    """
    folder = cache / f"layer-{environment.layer}"
    if (folder / "root").is_dir():
        return Image(environment, folder / "root")
    with layer.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != environment.layer:
        raise IntegrityError(
            f"image {environment.name}: {layer.name}: recorded layer {environment.layer}, found {found}"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(cache / f".{folder.name}.lock"):  # of two replays one restores it
        if not (folder / "root").is_dir():
            _restore(folder, environment, layer)
    return Image(environment, folder / "root")


def _restore(folder: Path, environment: Environment, layer: Path) -> None:
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".restoring-"))
    try:
        root = building / "root"
        root.mkdir()
        _unpack(layer, root)
        if (unpacked := layer_digest(root)) != environment.layer:
            raise IntegrityError(f"image {environment.name}: unpacked it is {unpacked}, not {environment.layer}")
        building.chmod(0o755)
        keep(root, environment.layer)
        building.rename(folder)
    except OSError as error:
        raise SandboxError(
            f"image {environment.name}: {error}; free space under {folder.parent}, then try again"
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _unpack(layer: Path, root: Path) -> None:
    """Folders, files and links, in the tar's own order; a link is never followed, since nothing lies behind one."""
    with tarfile.open(layer, "r:") as tar:
        for entry in tar:
            path = root / entry.name
            if entry.isdir():
                path.mkdir(mode=0o755, exist_ok=True)
            elif entry.issym():
                path.symlink_to(entry.linkname)
            elif (content := tar.extractfile(entry)) is not None:
                with path.open("xb") as out:
                    shutil.copyfileobj(content, out)
                path.chmod(entry.mode)

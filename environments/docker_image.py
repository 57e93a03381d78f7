"""An image for Docker: the canonical layer tar inside a hand-made archive, so that its name is known before it is made.

Covered: the archive (one layer, a fixed configuration, no times), the image id that follows from the layer alone, loading
it once, and reading back what the daemon has stored, since Docker does not hash a stored layer again.
Not covered: Dockerfiles and registries. A daemon that keeps images in containerd's store names them otherwise (by a
manifest); there the layer is what is compared, and the daemon's own name is used.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from environments.image import write_layer
from schemas.errors import IntegrityError, SandboxError
from schemas.execution import Environment

_LAYER, _MANIFEST = "layer.tar", "manifest.json"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_BLOCK = 512
_CHUNK = 1 << 20


def tag_of(layer: str) -> str:
    return f"postloop/environment:{layer}"


def image_config(layer: str) -> bytes:
    """All that an image says beside its layer: nothing of a person, a place or a time."""
    machine = platform.machine()
    config = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "config": {},
        "created": "1970-01-01T00:00:00Z",
        "os": "linux",
        "rootfs": {"diff_ids": [f"sha256:{layer}"], "type": "layers"},
    }
    return json.dumps(config, sort_keys=True, separators=(",", ":")).encode()


def image_id(layer: str) -> str:
    """The name that Docker's own image store gives to the image of this layer."""
    return f"sha256:{hashlib.sha256(image_config(layer)).hexdigest()}"


def write_archive(root: Path, out: IO[bytes]) -> str:
    """Write the docker-archive of the tree `root` to `out`, which can seek, and return the layer's SHA-256.

    The layer is written once: its header, which holds its size, comes last.
    """
    start = out.tell()
    out.write(bytes(_BLOCK))
    layer = write_layer(root, out)
    end = out.tell()
    out.seek(start)
    out.write(_header(_LAYER, end - start - _BLOCK))
    out.seek(end)
    out.write(bytes(-(end - start) % _BLOCK))
    config = image_config(layer)
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": name, "Layers": [_LAYER], "RepoTags": [tag_of(layer)]}]).encode()
    for path, data in ((name, config), (_MANIFEST, manifest)):
        out.write(_header(path, len(data)) + data + bytes(-len(data) % _BLOCK))
    out.write(bytes(2 * _BLOCK))
    return layer


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT)


def load_image(client: Any, root: Path, environment: Environment) -> str:
    """The id of the environment's image in the daemon, loaded from `root` unless it is there, and proven to be its layer.

    Raises IntegrityError (what is stored is not the layer), SandboxError (the daemon took it and does not have it).
    What the daemon or the connection raises goes through.
    """
    found = find_image(client, environment.layer)
    if found is not None:
        _check_stored(client, found, environment)
        client.tag(found, *tag_of(environment.layer).rsplit(":", 1))  # an image in use outlives its tag
        return found
    with tempfile.TemporaryFile() as archive:
        layer = write_archive(root, archive)
        if layer != environment.layer:
            subject = f"environment {environment.name} at {root}"
            raise IntegrityError(f"{subject}: recorded layer {environment.layer}, found {layer}; rebuild it")
        archive.seek(0)
        for line in client.load_image(archive, quiet=True):
            if "error" in line:
                raise SandboxError(f"docker: image {tag_of(layer)} was refused: {line['error']}; free space, try again")
    found = find_image(client, environment.layer)
    if found is None:
        raise SandboxError(f"docker: image {tag_of(layer)} was loaded and is not there; look at the daemon's log")
    return found


def find_image(client: Any, layer: str) -> str | None:
    """By its predictable id, else by its tag; in both cases only with exactly this layer."""
    from docker.errors import ImageNotFound

    for name in (image_id(layer), tag_of(layer)):
        try:
            about = client.inspect_image(name)
        except ImageNotFound:
            continue
        if about["RootFS"].get("Layers") == [f"sha256:{layer}"]:
            return str(about["Id"])
    return None


def _check_stored(client: Any, image: str, environment: Environment) -> None:
    found = stored_layer(client, image)
    if found != environment.layer:
        stored = f"its stored layer is {found}" if found else "its stored layer cannot be read back whole"
        remedy = f"docker image rm {tag_of(environment.layer)}, then try again"
        raise IntegrityError(
            f"environment {environment.name} in docker: recorded {environment.layer}, {stored}; {remedy}"
        )


def stored_layer(client: Any, image: str) -> str | None:
    """SHA-256 of the image's only layer as the daemon stores it now; None when it cannot be read back whole.

    Docker checks each file of a layer on its way out and breaks off at the first that was changed.
    """
    digests: dict[str, str] = {}
    manifest: list[dict[str, list[str]]] = []
    try:
        with tarfile.open(fileobj=io.BufferedReader(_Chunks(client.get_image(image)), _CHUNK), mode="r|") as tar:
            for entry in tar:
                file = tar.extractfile(entry) if entry.isfile() else None
                if file is None:
                    continue
                if entry.name == _MANIFEST:
                    manifest = json.load(file)
                else:
                    digests[entry.name] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        (name,) = manifest[0]["Layers"]
        return digests[name]
    except (tarfile.TarError, OSError, ValueError, LookupError):
        client.ping()  # raises when it is the daemon that failed, not the layer
        return None


class _Chunks(io.RawIOBase):
    """A file over the pieces of a download."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._pieces, b"")
        part = self._rest[: len(buffer)]
        self._rest = self._rest[len(part) :]
        buffer[: len(part)] = part
        return len(part)

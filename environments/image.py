"""Images: the sandbox's own root file system (interpreter, libraries, packages), and its identity.

Covered: an image from the host's own CPython and the running environment's installed packages, precompiled, without a
registry or a network; the canonical layer tar and its SHA-256; a copy that another user can reach.
Not covered: a shell or other programs (there are none), interpreters linked against musl, other architectures. The
content comes from this host: another host's C library gives another layer digest, and the pins will say so.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from pydantic import ValidationError

from schemas.base import digest_of
from schemas.errors import InputError, IntegrityError, SandboxError
from schemas.execution import Environment

IMAGE_FORMAT = 1
VARIABLES = {
    "HOME": "/work",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
}
_PUBLISHED = Path("/var/cache/postloop/images")
_STDLIB_SKIP = re.compile(
    r"^(test|tests|idlelib|ensurepip|site-packages|dist-packages|lib2to3|tkinter|turtledemo|pydoc_data|__pycache__"
    r"|config-.*|sitecustomize\.py|usercustomize\.py|turtle\.py|EXTERNALLY-MANAGED|_test.*\.so|_tkinter.*|_ctypes_test.*"
    r"|_xxtestfuzz.*|xxlimited.*|.*\.pyc|.*\.a|.*\.pickle)$"
)
_METADATA_KEPT = ("METADATA", "entry_points.txt", "top_level.txt")
_USERS = "root:x:0:0::/:/nonexistent\nagent:x:10001:10001::/work:/nonexistent\n"
_GROUP = "root:x:0:\nagent:x:10001:\n"


class Image(NamedTuple):
    environment: Environment
    root: Path


def build_image(
    cache: Path,
    name: str = "python",
    packages: tuple[str, ...] = ("pytest",),
    variables: Mapping[str, str] | None = None,
) -> Image:
    """The image with those installed distributions and all that they require; built once and kept under `cache`.

    `variables` add to VARIABLES. Raises InputError (a package that is not installed here), SandboxError (no space, no
    compiler of bytecode). A killed build leaves nothing that a later one would take for an image.
    """
    closure = _closure(packages)
    versions = {item: importlib.metadata.version(item) for item in closure}
    environment_variables = {**VARIABLES, **(variables or {})}
    described = {
        "format": IMAGE_FORMAT,
        "name": name,
        "python": sys.version,
        "interpreter": _file_digest(_interpreter()),
        "packages": dict(versions),
        "variables": dict(environment_variables),
    }
    folder = cache / digest_of(described)
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / ".lock"):
        for stale in cache.glob(".building-*"):
            _remove_tree(stale)  # we hold the lock: its builder is dead
        image = _load(folder)
        if image is None:
            _remove_tree(folder)
            image = _build(folder, name, versions, environment_variables)
    return image


def _build(folder: Path, name: str, versions: dict[str, str], variables: dict[str, str]) -> Image:
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    root = building / "root"
    try:
        lay_root(root, tuple(versions))
        python = ".".join(map(str, sys.version_info[:3]))
        layer = layer_digest(root)
        environment = Environment(name=name, python=python, packages=versions, variables=variables, layer=layer)
        building.chmod(0o755)
        with (building / "environment.json").open("w") as file:
            file.write(environment.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        building.rename(folder)
    except OSError as error:
        raise SandboxError(f"image {name}: {error}; free space under {folder.parent}, then try again") from error
    finally:
        _remove_tree(building)
    return Image(environment, folder / "root")


def _load(folder: Path) -> Image | None:
    try:
        environment = Environment.model_validate_json((folder / "environment.json").read_text())
    except (OSError, ValidationError):
        return None
    return Image(environment, folder / "root") if (folder / "root").is_dir() else None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A kernel lock, free as soon as its owner is dead."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_tree(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


# --- content -------------------------------------------------------------------------------------------------------


def lay_root(root: Path, packages: tuple[str, ...]) -> None:
    """Write the whole tree into the new folder `root`. Raises OSError, InputError, SandboxError."""
    for folder in ("usr/bin", "usr/lib", "etc", "dev", "proc", "tmp", "tests", "work"):
        (root / folder).mkdir(parents=True)
    for link, target in {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}.items():
        (root / link).symlink_to(target)
    (root / "usr/lib64").mkdir()
    (root / "etc/passwd").write_text(_USERS)
    (root / "etc/group").write_text(_GROUP)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    _copy(_interpreter(), root / "usr/bin" / version)
    for alias in ("python", "python3"):
        (root / "usr/bin" / alias).symlink_to(version)
    library = root / "usr/lib" / version
    _copy_stdlib(Path(sysconfig.get_path("stdlib", vars=_base_variables())), library)
    site = library / _site_name()
    site.mkdir()
    for package in packages:
        _copy_distribution(package, site)
    _copy_shared_libraries(root)
    _compile(root, library)
    _fix_modes(root)


def _base_variables() -> dict[str, str]:
    return {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}


def _interpreter() -> Path:
    base = getattr(sys, "_base_executable", None) or sys.executable
    return Path(base).resolve()


def _site_name() -> str:
    """Debian's interpreter looks for dist-packages, all others for site-packages."""
    return "dist-packages" if "deb_system" in sysconfig.get_scheme_names() else "site-packages"


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def _copy_stdlib(source: Path, target: Path) -> None:
    if not (source / "os.py").is_file():
        raise SandboxError(f"image: no standard library at {source}; use an interpreter installed with its library")

    def skipped(_: str, names: list[str]) -> list[str]:
        return [name for name in names if _STDLIB_SKIP.match(name)]

    shutil.copytree(source, target, ignore=skipped, copy_function=lambda a, b: _copy(Path(a), Path(b)))


def _closure(packages: tuple[str, ...]) -> list[str]:
    """Canonical names of the packages and of all that they require here, sorted."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: set[str] = set()
    todo = list(packages)
    while todo:
        requirement = Requirement(todo.pop())
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise InputError(f"image: package {name} is not installed here; pip install {name}") from None
        if not requirement.specifier.contains(distribution.version, prereleases=True):
            have, want = distribution.version, requirement.specifier
            raise InputError(f"image: package {name} is {have}, wanted {want}; pip install '{requirement}'")
        found.add(name)
        todo += distribution.requires or []
    return sorted(found)


def _copy_distribution(name: str, site: Path) -> None:
    """Only what lies in its package folders: no scripts, no records of how it was installed, no start-up hooks."""
    distribution = importlib.metadata.distribution(name)
    files = distribution.files
    if files is None:
        raise InputError(f"image: package {name} has no list of its files; reinstall it with pip")
    for entry in files:
        parts = entry.parts
        about = parts[0].endswith(".dist-info") and parts[-1] not in _METADATA_KEPT
        if entry.is_absolute() or ".." in parts or "__pycache__" in parts or about or entry.suffix in (".pyc", ".pth"):
            continue
        _copy(Path(str(entry.locate())), site / Path(*parts))


def _copy_shared_libraries(root: Path) -> None:
    """All libraries that the loader resolves for the interpreter and for each extension module, and the loader itself.

    They go where this host's loader looks by default: beside the C library.
    """
    objects = [str(_interpreter())]
    objects += [str(path) for path in sorted(root.rglob("*.so*")) if path.is_file()]
    done = subprocess.run(["ldd", *objects], capture_output=True, text=True, check=False, env=_loader_variables())
    found = {Path(path).name: Path(path) for path in re.findall(r"=> (/\S+) \(0x", done.stdout)}
    missing = sorted(set(re.findall(r"(\S+) => not found", done.stdout)))
    loaders = sorted(set(re.findall(r"^\s+(/\S+) \(0x", done.stdout, re.MULTILINE)))
    if missing or "libc.so.6" not in found or not loaders:
        detail = f"missing {', '.join(missing)}" if missing else "ldd names no C library"
        raise SandboxError(f"image: libraries of {objects[0]}: {detail}; install them, or use a glibc interpreter")
    folder = found["libc.so.6"].resolve().parent
    if not folder.is_relative_to("/usr") and not folder.is_relative_to("/lib"):
        folder = Path("/usr/lib") / (sysconfig.get_config_var("MULTIARCH") or "")  # a C library from LD_LIBRARY_PATH
    for name, path in sorted(found.items()):
        if not path.is_relative_to(root):
            _copy(path, _inside(root, folder / name))
    for loader in loaders:
        _copy(Path(loader), _inside(root, Path(loader)))
        _inside(root, Path(loader)).chmod(0o755)


def _loader_variables() -> dict[str, str]:
    """What this process's own loader was told, with the interpreter's own libraries first."""
    told = os.environ.get("LD_LIBRARY_PATH", "")
    library_path = ":".join(filter(None, (f"{sys.base_prefix}/lib", told)))
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LD_LIBRARY_PATH": library_path}


def _inside(root: Path, path: Path) -> Path:
    """The place in the image of a path of the host, with /lib and /lib64 under /usr as everywhere today."""
    parts = path.parts[1:]
    return root.joinpath(*(("usr", *parts) if parts[0] in ("lib", "lib64") else parts))


def _compile(root: Path, library: Path) -> None:
    """Bytecode without timestamps, compiled in one fresh process: its bytes depend on nothing but the source."""
    options = ["-q", "-j", "1", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/", str(library)]
    environment = {**_loader_variables(), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}
    command = [str(_interpreter()), "-s", "-S", "-m", "compileall", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd="/")
    if done.returncode:
        raise SandboxError(f"image: bytecode: {(done.stdout + done.stderr).strip()[:300]}; reinstall the interpreter")


def _fix_modes(root: Path) -> None:
    for path, kind in _walk(root):
        if kind is not _LINK:
            path.chmod(0o755 if kind is _FOLDER or path.stat().st_mode & 0o100 else 0o644)
    root.chmod(0o755)


# --- identity ------------------------------------------------------------------------------------------------------

_FOLDER, _FILE, _LINK = "folder", "file", "link"


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    """Everything below `root`, parents first, in byte order of the names at each level."""
    for entry in sorted(os.scandir(root), key=lambda item: os.fsencode(item.name)):
        path = Path(entry.path)
        if entry.is_symlink():
            yield path, _LINK
        elif entry.is_dir():
            yield path, _FOLDER
            yield from _walk(path)
        elif entry.is_file():
            yield path, _FILE
        else:
            raise IntegrityError(f"image {root}: {path} is no file, folder or link; remove it or rebuild the image")


def layer_digest(root: Path) -> str:
    """SHA-256 of the tree's canonical layer tar as the tree is now: docker's diff_id of the same content."""
    return write_layer(root, None)


def write_layer(root: Path, out: IO[bytes] | None) -> str:
    """Write the canonical layer tar to `out`, streaming, and return its SHA-256.

    Canonical: byte order of names, time 0, owner 0:0 without names, modes 0755 or 0644, links as links. Owners and
    times on this disk do not count; content, names, link targets and the executable bit do.
    """
    sink = _Hashing(out)
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20) as tar:  # type: ignore[call-overload]
        for path, kind in _walk(root):
            entry = tarfile.TarInfo(str(path.relative_to(root)))
            entry.mode = 0o755
            if kind is _FOLDER:
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            elif kind is _LINK:
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(entry)
            else:
                with path.open("rb") as file:
                    status = os.fstat(file.fileno())
                    entry.size = status.st_size
                    entry.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
                    tar.addfile(entry, file)
    return sink.hash.hexdigest()


class _Hashing(io.RawIOBase):
    def __init__(self, out: IO[bytes] | None) -> None:
        self.hash = hashlib.sha256()
        self._out = out

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.hash.update(data)
        if self._out is not None:
            self._out.write(data)
        return len(data)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- reach ---------------------------------------------------------------------------------------------------------


def publish(root: Path, layer: str, shelf: Path = _PUBLISHED) -> Path:
    """A path to the same tree that any user can reach: `root` itself, or a tree of hard links (else copies) of it.

    A private folder above the image (/root is 0700) would keep the sandbox's user out. Only root calls this. The
    content is public already: an interpreter and installed packages. Raises SandboxError, IntegrityError.
    """
    root = root.resolve()
    if all(parent.stat().st_mode & stat.S_IXOTH for parent in (root, *root.parents)):
        return root
    target = shelf / layer
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        with _locked(shelf / ".lock"):
            if not target.is_dir() or target.stat().st_uid != os.getuid() or layer_digest(target) != layer:
                _remove_tree(target)
                _lay_links(root, target)
    except OSError as error:
        problem = f"image {root}: uid 10001 cannot reach it, nor can it be shown at {target} ({error})"
        raise SandboxError(f"{problem}; keep the workspace where every user may enter") from error
    return target


def _lay_links(root: Path, target: Path) -> None:
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix=".building-"))
    try:
        place: Callable[[str, str], object] = _link_or_copy
        shutil.copytree(root, building / "root", symlinks=True, copy_function=place)
        (building / "root").chmod(0o755)
        (building / "root").rename(target)
    finally:
        _remove_tree(building)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)

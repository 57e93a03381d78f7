"""Images: the sandbox's own root file system (interpreter, libraries, packages), and its identity.

Covered: an image from the host's own CPython, precompiled, without a registry; its packages as they are installed here,
or, declared, the wheels of a lock file with hashes (lock.py) and further files; the canonical layer tar and its SHA-256; a
copy that another user can reach. The layer of a declared image follows from interpreter, wheels and files alone.
Not covered: a shell or other programs (there are none), interpreters linked against musl, other architectures. The
interpreter comes from this host: another host's C library gives another layer digest, and the pins will say so.
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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from pydantic import ValidationError

from environments.inventory import keep
from environments.lock import METADATA_KEPT, Wheel, lay, locked
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
_ENGINES_OWN = ("dev", "proc", "sys", "tests", "tmp", "work")  # what an engine puts there hides what the image has
_BAD_SOURCE = re.compile(
    r"^(?:Sorry: )?(?:SyntaxError|IndentationError|TabError|UnicodeDecodeError|ValueError)\b", re.M
)
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
    *,
    python: str | None = None,
    lock: Path | None = None,
    files: Mapping[str, str] | None = None,
) -> Image:
    """The image of these declarations; built once and kept under `cache`.

    `packages`: distributions, as installed here, with all that they require; with a `lock`, its wheels are taken and
    `packages` only says what must be among them. `python`: the version that this interpreter must have, e.g. 3.11.
    `files`: path in the image -> text; one that begins with #! can be executed. `variables` add to VARIABLES.
    Raises InputError (a package, a line of the lock, a file), InfrastructureError (no index, no space, no compiler of
    bytecode). A killed build leaves nothing that a later one would take for an image.
    """
    _check_python(python)
    _check_files(files or {})
    wheels = locked(lock, cache / "wheels") if lock else []
    versions = {wheel.name: wheel.version for wheel in wheels}
    if lock:
        _check_locked(lock, packages, versions)
    else:
        versions = {item: importlib.metadata.version(item) for item in _closure(packages)}
    environment_variables = {**VARIABLES, **(variables or {})}
    declared = {"wheels": [wheel.sha256 for wheel in wheels], "files": dict(files or {})}
    described = {
        "format": IMAGE_FORMAT,
        "name": name,
        "python": sys.version,
        "interpreter": _file_digest(_interpreter()),
        "packages": dict(versions),
        "variables": dict(environment_variables),
        **{key: value for key, value in declared.items() if value},
    }
    folder = cache / digest_of(described)
    cache.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(cache / ".lock"):
        for stale in cache.glob(".building-*"):
            _remove_tree(stale)  # we hold the lock: its builder is dead
        image = _load(folder)
        if image is None:
            _remove_tree(folder)
            installed = () if lock else tuple(versions)
            lays = partial(lay_root, packages=installed, wheels=wheels, files=files)
            image = _build(folder, name, versions, environment_variables, lays)
    return image


def _check_python(wanted: str | None) -> None:
    here = ".".join(map(str, sys.version_info[:3]))
    if wanted is not None and not f"{here}.".startswith(f"{wanted}."):
        raise InputError(
            f"image: Python {wanted} is declared, this is {here}; run postloop with the one that is declared"
        )


def _check_locked(lock: Path, packages: tuple[str, ...], versions: Mapping[str, str]) -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for package in packages:
        requirement = Requirement(package)
        have = versions.get(canonicalize_name(requirement.name))
        if have is None or not requirement.specifier.contains(have, prereleases=True):
            raise InputError(
                f"{lock}: package {package} is declared, the lock has {have or 'none'}; add it, or drop it"
            )


def _build(
    folder: Path, name: str, versions: dict[str, str], variables: dict[str, str], lays: Callable[[Path], None]
) -> Image:
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    root = building / "root"
    try:
        lays(root)
        python = ".".join(map(str, sys.version_info[:3]))
        layer = layer_digest(root)
        environment = Environment(name=name, python=python, packages=versions, variables=variables, layer=layer)
        building.chmod(0o755)
        keep(root, layer)
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
def one_at_a_time(path: Path) -> Iterator[None]:
    """A kernel lock on a file of that name, free as soon as its owner is dead. The file may be another user's."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_tree(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


# --- content -------------------------------------------------------------------------------------------------------


def lay_root(
    root: Path, packages: Sequence[str], wheels: Sequence[Wheel] = (), files: Mapping[str, str] | None = None
) -> None:
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
    for wheel in wheels:
        lay(wheel, site)
    lay_files(root, files or {})
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
        about = parts[0].endswith(".dist-info") and parts[-1] not in METADATA_KEPT
        if entry.is_absolute() or ".." in parts or "__pycache__" in parts or about or entry.suffix in (".pyc", ".pth"):
            continue
        _copy(Path(str(entry.locate())), site / Path(*parts))


def lay_files(root: Path, files: Mapping[str, str]) -> None:
    """Write `files` (path in the image -> text) into the tree `root`; none may be there already. Raises InputError."""
    for path, text in files.items():
        target = root / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8", newline="") as file:
                file.write(text)
        except (FileExistsError, NotADirectoryError):
            raise InputError(
                f"image: file {path[:80]!r} is there already, or its folder is a file; name another"
            ) from None
        target.chmod(0o755 if text.startswith("#!") else 0o644)


def _check_files(files: Mapping[str, str]) -> None:
    for path in files:
        plain = PurePosixPath(path)
        odd = plain.is_absolute() or ".." in plain.parts or not plain.parts or str(plain) != path
        if odd or not path.isprintable() or plain.parts[0] in _ENGINES_OWN:
            hidden = ", ".join(_ENGINES_OWN)
            raise InputError(f"image: file {path[:80]!r} is no relative path outside {hidden}; name e.g. etc/app.conf")


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
    """Bytecode without timestamps, compiled in one fresh process: its bytes depend on nothing but the source.

    A file that is no Python of this version, as some packages ship, has none; whatever else goes wrong is an error.
    """
    options = ["-q", "-j", "1", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/", str(library)]
    environment = {**_loader_variables(), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}
    command = [str(_interpreter()), "-s", "-S", "-m", "compileall", *options]
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", check=False, env=environment, cwd="/"
    )
    said = done.stdout + done.stderr
    if done.returncode not in (0, 1) or said.count("*** Error compiling") != len(_BAD_SOURCE.findall(said)):
        raise SandboxError(f"image: bytecode: {said.strip()[:300]}; reinstall the interpreter")


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
    """SHA-256 of the tree's canonical layer tar as the tree is now: docker's diff_id of the same content.

    Every entry is looked at each time, but its content is read again only after its status changed: whoever writes,
    renames or relinks a file gives it a new time of change, which no program can set.
    Not covered: content that changes below the file system within the life of this process.
    """
    state, newest_s = _status_of_tree(root)
    if state in _DIGESTS:
        return _DIGESTS[state]
    found = write_layer(root, None)
    if newest_s < time.time() - _SETTLED_S and _status_of_tree(root)[0] == state:
        _DIGESTS[state] = found
    return found


_DIGESTS: dict[str, str] = {}  # status of a tree -> its layer
_SETTLED_S = 1.0  # two changes within one tick of the kernel's clock have the same time


def _status_of_tree(root: Path) -> tuple[str, float]:
    """A digest of all that `write_layer` reads of the tree, with inodes and times for contents; its newest change."""
    seen, newest_s = hashlib.sha256(), 0.0
    for path, kind in _walk(root):
        told: tuple[object, ...] = (os.fsencode(path.relative_to(root)), kind)
        if kind is _LINK:
            told += (os.readlink(path),)
        elif kind is _FILE:
            status = path.stat()
            told += (
                status.st_mode,
                status.st_size,
                status.st_dev,
                status.st_ino,
                status.st_mtime_ns,
                status.st_ctime_ns,
            )
            newest_s = max(newest_s, status.st_ctime)
        seen.update(repr(told).encode(errors="surrogateescape"))
    return seen.hexdigest(), newest_s


def write_layer(root: Path, out: IO[bytes] | None) -> str:
    """Write the canonical layer tar to `out`, streaming, and return its SHA-256.

    Canonical: byte order of names, time 0, owner 0:0 without names, modes 0755 or 0644, links as links. Owners and
    times on this disk do not count; content, names, link targets and the executable bit do.
    """
    sink = Hashing(out)
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


class Hashing(io.RawIOBase):
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
        with one_at_a_time(shelf / ".lock"):
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

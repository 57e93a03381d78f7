"""Verifiers and harnesses as bundles: a source tree run as one long-lived process, JSON lines in and out.

A bundle is a folder with bundle.json {name, version, protocol, kind, entry} and Python files. It runs as
`python -I -S main.py` from the stored tree, imports nothing of ours, and asks us for executions: it never opens a
sandbox. One request is one line {"op", "id", ...}; the reply echoes the id, or carries {"error": ...}.

Not covered: isolation of the bundle itself (it is our code or a reviewed one, never an attempt's), and other languages.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from schemas.base import digest_of
from schemas.errors import InfrastructureError, InputError, IntegrityError

PROTOCOL = 1
MAX_REPLY_BYTES = 64 << 20
_CHUNK = 1 << 16
_AHEAD = 16  # requests that are written together
_ROOT = Path(__file__).resolve().parent.parent
Reply = dict[str, Any] | InfrastructureError
_SHELVES = (_ROOT / "environments" / "harnesses", _ROOT / "evals" / "verifiers")


def tree_digest(folder: Path) -> str:
    """SHA-256 over the sorted relative paths and the SHA-256 of each content. Byte code caches do not count, and are
    never read by a bundle. Raises InputError for a link or anything that is not a regular file."""
    manifest: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.relative_to(folder).parts:
            continue
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            name = path.relative_to(folder)
            raise InputError(f"bundle {folder}: {name} is not a regular file; replace it by its content")
        if path.is_file():
            manifest[path.relative_to(folder).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digest_of(manifest)


def builtin(name: str) -> Path:
    """Folder of a bundle that ships: fenced, tools (harnesses); cases, pytest_files (verifiers)."""
    for shelf in _SHELVES:
        if name.isidentifier() and (shelf / name / "bundle.json").is_file():
            return shelf / name
    known = sorted(path.parent.name for shelf in _SHELVES for path in shelf.glob("*/bundle.json"))
    raise InputError(f"bundle {name}: not one that ships; known: {', '.join(known)}")


def find(ref: str, folders: Iterable[Path] = ()) -> Path:
    """Folder of a REF: a path, a name that ships, name@version, or a digest (or its first 8 or more hex digits).

    `folders` are stored bundle trees to look through besides those that ship. Raises InputError when none matches.
    """
    if (Path(ref) / "bundle.json").is_file():
        return Path(ref)
    shipped = [path.parent for shelf in _SHELVES for path in sorted(shelf.glob("*/bundle.json"))]
    for folder in (*folders, *shipped):
        about = _read_manifest(folder)
        if ref in (f"{about['name']}@{about['version']}", about["name"]):
            return folder
        if len(ref) >= 8 and tree_digest(folder).startswith(ref):
            return folder
    known = ", ".join(f"{about['name']}@{about['version']}" for about in map(_read_manifest, shipped))
    raise InputError(
        f"bundle {ref}: no such path, name@version or digest; there are {known}, or name a bundle's folder"
    )


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"bundle {folder}: bundle.json cannot be read: {error}") from error
    wanted = {"name", "version", "protocol", "kind", "entry"}
    if not isinstance(about, dict) or not wanted <= about.keys():
        raise InputError(f"bundle {folder}: bundle.json lacks one of {', '.join(sorted(wanted))}")
    if about["protocol"] != PROTOCOL:
        raise InputError(f"bundle {about['name']}: speaks protocol {about['protocol']}, this program {PROTOCOL}")
    return about


class Bundle:
    """One bundle and its process, started at the first question. Safe to share between threads; requests queue up.

    A process that dies, hangs for `timeout_s` or answers garbage raises InfrastructureError; the next question starts a
    fresh process, without the sessions of the old one.
    """

    def __init__(self, folder: Path, timeout_s: float = 120.0) -> None:
        about = _read_manifest(folder)
        self.folder = folder.resolve()
        self.digest: str = tree_digest(folder)
        self.name: str = str(about["name"])
        self.version: str = str(about["version"])
        self.kind: str = str(about["kind"])
        self._entry = str(about["entry"])
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._count = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._buffer = bytearray()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request, one reply with the same id. Raises InfrastructureError."""
        [reply] = self.ask_each([request])
        if isinstance(reply, InfrastructureError):
            raise reply
        return reply

    def ask_each(self, requests: Sequence[dict[str, Any]]) -> list[Reply]:
        """The reply, or why there is none, to each request, in their order.

        The bundle answers one while the next are written and the last are read, so many together cost less than many one
        by one. What one request does to the process costs that request its reply: those after it are asked of a fresh one.
        """
        replies: list[Reply] = []
        with self._lock:
            while len(replies) < len(requests):
                try:
                    self._start()
                    self._exchange(requests[len(replies) :], replies)
                except InfrastructureError as error:
                    self._stop()
                    replies.append(error)
                except BaseException:
                    self._stop()
                    raise
        return replies

    def fresh_id(self) -> str:
        """An id for a request that this object has not given before. It names a conversation and enters no result."""
        return f"r{next(self._count)}"

    def close(self) -> None:
        """End the process; sessions are lost. A later question starts a new one."""
        with self._lock:
            self._stop()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if self._process is not None:
            return
        present = tree_digest(self.folder)
        if present != self.digest:
            was, now = self.digest[:12], present[:12]
            raise IntegrityError(f"bundle {self.name}: its tree changed: was {was}, now {now}; restore {self.folder}")
        # -X pycache_prefix: a byte code cache in the tree is no part of the digest, so it must never be read.
        argv = [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-X", "pycache_prefix=/nonexistent"]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by _stop
        self._buffer.clear()
        self._process = subprocess.Popen(
            [*argv, str(self.folder / self._entry)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        )
        for pipe in (self._process.stdin, self._process.stdout):
            os.set_blocking(pipe.fileno(), False)  # type: ignore[union-attr]
        hello = {"op": "hello", "id": "hello", "protocol": PROTOCOL}
        greeting: list[Reply] = []
        self._exchange([hello], greeting)
        [reply] = greeting
        if isinstance(reply, InfrastructureError):
            raise reply
        if reply.get("protocol") != PROTOCOL or reply.get("name") != self.name:
            raise self._failure(f"greeted with {str(reply)[:120]}, expected protocol {PROTOCOL}")

    def _exchange(self, requests: Sequence[dict[str, Any]], replies: list[Reply]) -> None:
        """Add the reply to each request as it comes. Written and read in chunks, so that neither side waits for the
        other's full pipe."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        lines, unsent = map(_encode, requests), memoryview(b"")
        waiting = deque(requests)
        deadline = time.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            while waiting:
                ready = selector.select(timeout=max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise self._failure(f"no answer within {self._timeout_s:g} s")
                for key, _ in ready:
                    if key.fileobj is process.stdout:
                        found = self._read_lines(process.stdout.fileno())
                        if len(found) > len(waiting) or (len(found) == len(waiting) and self._buffer):
                            raise self._failure(f"answered {len(found)} lines to {len(waiting)} requests")
                        for line in found:
                            replies.append(self._checked(waiting[0], line))
                            waiting.popleft()
                        deadline = time.monotonic() + self._timeout_s
                        continue
                    unsent = unsent or memoryview(b"".join(itertools.islice(lines, _AHEAD)))
                    if unsent:
                        unsent = unsent[self._write(process.stdin.fileno(), unsent[:_CHUNK]) :]
                    else:
                        selector.unregister(process.stdin)

    def _write(self, descriptor: int, data: memoryview) -> int:
        try:
            return os.write(descriptor, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise self._failure("closed its input") from None

    def _read_lines(self, descriptor: int) -> list[bytes]:
        chunk = os.read(descriptor, _CHUNK)
        if not chunk:
            raise self._failure("ended before its answer")
        self._buffer += chunk
        if len(self._buffer) > MAX_REPLY_BYTES:
            raise self._failure(f"answered more than {MAX_REPLY_BYTES >> 20} MiB in a line")
        if b"\n" not in chunk:
            return []
        *whole, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        return whole

    def _checked(self, request: dict[str, Any], line: bytes) -> Reply:
        """The reply, or that the bundle is well and this request is not. Raises InfrastructureError for anything else."""
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            raise self._failure(f"answered garbage: {line[:80]!r}") from None
        if not isinstance(reply, dict) or reply.get("id") != request["id"]:
            raise self._failure(f"answered {line[:80]!r} to request {request['id']!r}")
        reply = _without_surrogates(reply) if b"\\ud" in line.lower() else reply
        if "error" in reply:
            return self._failure(f"could not answer {request.get('op')!r}: {str(reply['error'])[:200]}")
        return reply

    def _failure(self, what: str) -> InfrastructureError:
        note = ""
        if self._errors is not None:
            self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, self._errors.tell() - 2000))
            last = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            note = f" (stderr: {last[-1][:200]})" if last else ""
        return InfrastructureError(f"bundle {self.name}@{self.version}: {what}{note}; the request may be tried again")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _encode(request: dict[str, Any]) -> bytes:
    return json.dumps(request, allow_nan=False).encode() + b"\n"


def _without_surrogates(value: Any) -> Any:
    """Half a UTF-16 pair has no UTF-8 form, so no digest: it becomes U+FFFD. Models do write such escapes."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value

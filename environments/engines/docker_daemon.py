"""What the Docker engine asks of dockerd: containers, their configuration, their end, and what dead owners left.

Covered: the local socket, DOCKER_HOST with TLS or ssh as Docker's own SDK reads them, cgroup v1 and v2 hosts, a named
runtime. Not covered: Docker's contexts, swarm, registries.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import docker
import urllib3
from docker.errors import DockerException

from environments.engines import cgroups
from environments.engines.base import SANDBOX_UID, TESTS, WORK
from environments.engines.docker_container import BOOT, Container, Ended
from schemas.errors import InputError, SandboxError
from schemas.execution import Limits

LABEL = "postloop.owner"
WARDEN_MB = 8
_API = (1, 41)  # Docker 20.10
_MIB = 1 << 20
_END_S = 5.0
_DAY_S = 86_400
_PATIENCE = 10
_FAULTS = (OSError, DockerException, urllib3.exceptions.HTTPError, http.client.HTTPException)
_START = "start one (systemctl start docker, or dockerd), or name another with DOCKER_HOST"
_PROC = (
    "acpi",
    "asound",
    "interrupts",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
)
_SYS = ("block", "bus", "class", "dev", "devices", "firmware", "hypervisor", "kernel", "module", "power")
# Docker's own list, which this replaces, and what else tells of the host. The files of /etc are Docker's, not the image's.
_MASKED = [
    *(f"/proc/{name}" for name in _PROC),
    *(f"/sys/{name}" for name in _SYS),
    *("/etc/hosts", "/etc/hostname", "/etc/resolv.conf"),
]


class Image(NamedTuple):
    id: str
    python: str


class Kind(NamedTuple):
    """What a container is made for; the seconds come with its order."""

    image: Image
    limits: Limits


@contextlib.contextmanager
def talking(about: str) -> Iterator[None]:
    """Whatever goes wrong between us and the daemon is infrastructure: SandboxError."""
    try:
        yield
    except _FAULTS as error:
        raise SandboxError(f"docker: {about}: {_cause(error)}; see docker info and the daemon's log") from error


def _cause(error: BaseException) -> str:
    """The innermost reason, in one line: the libraries wrap a refused connection four times."""
    explanation = getattr(error, "explanation", None)
    if explanation:
        return " ".join(str(explanation).split())[:300]
    seen = {id(error)}
    while (inner := error.__cause__ or error.__context__) is not None and id(inner) not in seen:
        seen.add(id(inner))
        error = inner
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())[:300]


class Daemon:
    """One client for each process, since a fork must not share connections. Thread-safe."""

    def __init__(self, runtime: str | None, timeout_s: float) -> None:
        self.runtime, self.timeout_s = runtime, timeout_s
        self._clients: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._machine = f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/"
        with talking("info"):
            self.about: dict[str, Any] = self.client().info()
            self._remove_stale()
        known = sorted(self.about.get("Runtimes") or {})
        if runtime and runtime not in known and not runtime.startswith("io.containerd."):
            problem = f"runtime {runtime!r} is not one of the daemon's ({', '.join(known)})"
            raise InputError(f"engine docker: {problem}; name one of these or add it to the daemon")
        self._v2 = str(self.about.get("CgroupVersion", "1")) == "2"

    def client(self) -> Any:
        with self._lock:
            if os.getpid() not in self._clients:
                self._clients = {os.getpid(): self._connect(self.timeout_s)}
            return self._clients[os.getpid()]

    def patient(self) -> Any:
        """A client of the caller's own, for what takes long: an image is read and written as a whole."""
        return self._connect(_PATIENCE * self.timeout_s)

    def _connect(self, timeout_s: float) -> Any:
        address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        try:
            told = docker.utils.kwargs_from_env()
            client = docker.APIClient(**told, version="auto", timeout=timeout_s, max_pool_size=64)
        except _FAULTS as error:
            raise SandboxError(f"docker: no daemon answers at {address} ({_cause(error)}); {_START}") from error
        if tuple(map(int, client.api_version.split("."))) < _API:
            problem = f"{address} speaks API {client.api_version}, needed is {_API[0]}.{_API[1]}"
            raise SandboxError(f"docker: {problem}; install Docker 20.10 or later")
        return client

    def close(self) -> None:
        """Let go of the connections of this process."""
        with self._lock:
            client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def ping(self) -> None:
        self.client().ping()

    def make(self, kind: Kind) -> Container:
        """A container whose warden waits for its order. Raises SandboxError; then nothing of it is left."""
        client = self.client()
        with talking("start of a sandbox"), contextlib.ExitStack() as undo:
            made = client.create_container_from_config(self._config(kind))["Id"]
            undo.callback(self._remove, made)
            streams = dict.fromkeys(("stdin", "stdout", "stderr", "stream"), 1)
            container = Container(made, client.attach_socket(made, params=streams))
            undo.callback(container.close)
            client.start(made)
            try:
                container.boot(self.timeout_s)
            except Ended as ended:
                raise SandboxError(f"docker: the sandbox did not start: {ended}; see the daemon's log") from None
            undo.pop_all()
            return container

    def _config(self, kind: Kind) -> dict[str, Any]:
        attached = dict.fromkeys(("AttachStdin", "AttachStdout", "AttachStderr", "OpenStdin", "StdinOnce"), True)
        return {
            **attached,
            "Cmd": [kind.image.python, "-I", "-S", "-X", "utf8", "-c", BOOT],
            "HostConfig": self._host_config(kind.limits),
            "Hostname": "sandbox",
            "Image": kind.image.id,
            "Labels": {LABEL: self._machine + cgroups.owner_name()},
            "User": f"{SANDBOX_UID}:{SANDBOX_UID}",
            "WorkingDir": WORK,
        }

    def _host_config(self, limits: Limits) -> dict[str, Any]:
        memory = (limits.memory_mb + WARDEN_MB) * _MIB + 2 * limits.output_kb * 1024
        tmpfs = f"rw,exec,nosuid,nodev,size={limits.disk_mb * _MIB},uid={SANDBOX_UID},gid={SANDBOX_UID},mode="
        config: dict[str, Any] = {
            "CapDrop": ["ALL"],
            "IpcMode": "private",
            "LogConfig": {"Type": "none"},
            "MaskedPaths": _MASKED,
            "Memory": memory,
            "MemorySwap": memory,
            "Mounts": [{"Type": "volume", "Target": TESTS, "VolumeOptions": {"NoCopy": True}}],
            "NetworkMode": "none",
            "PidsLimit": limits.pids + 1,
            "ReadonlyRootfs": True,
            "SecurityOpt": ["no-new-privileges"],
            "Tmpfs": {WORK: tmpfs + "0755", "/tmp": tmpfs + "1777", "/dev/shm": tmpfs + "1777"},  # noqa: S108
            "Ulimits": [{"Name": "core", "Soft": 1, "Hard": 1}],  # 0 still hands a crash to a handler of the host
        }
        if self._v2:
            config["CgroupnsMode"] = "private"
        if self.runtime:
            config["Runtime"] = self.runtime
        return config

    def lay(self, container: Container, top: str, files: dict[str, str]) -> None:
        """Through the daemon: what it writes belongs to its root, and the sandbox's user cannot change it."""
        self.client().put_archive(container.id, top, _tar(files))

    def last_state(self, container: Container) -> dict[str, Any]:
        """Of a container whose first process has ended."""
        self.client().wait(container.id, timeout=self.timeout_s)
        state: dict[str, Any] = self.client().inspect_container(container.id)["State"]
        return state

    def remove(self, container: Container) -> None:
        """Its warden ends by itself, which is quicker than being killed by Docker. Raises nothing."""
        container.close()
        with contextlib.suppress(SandboxError, *_FAULTS):
            self.client().wait(container.id, timeout=_END_S)
        self._remove(container.id)

    def _remove(self, container: str) -> None:
        """What cannot be removed now is removed when an engine opens after our end."""
        with contextlib.suppress(SandboxError, *_FAULTS):
            self.client().remove_container(container, force=True, v=True)

    def _remove_stale(self) -> None:
        for item in self.client().containers(all=True, filters={"label": LABEL}):
            if is_stale(item, self._machine, time.time()):
                self._remove(item["Id"])


def is_stale(listed: dict[str, Any], machine: str, now_s: float) -> bool:
    """Whether nobody can want a container any more: its owner is a process of this machine that is dead, or it is of
    another machine, or of this one before it was booted, and has ended, and was made more than a day ago."""
    owner = listed["Labels"].get(LABEL, "")
    if owner.startswith(machine):
        return cgroups.owner_is_dead(owner.removeprefix(machine))
    return listed["State"] in ("created", "exited", "dead") and now_s - listed["Created"] > _DAY_S


def _tar(files: dict[str, str]) -> bytes:
    """Folders first, so that none is made with another mode."""
    out = io.BytesIO()
    now = int(time.time())
    parts = [path.split("/") for path in files]
    folders = {"/".join(names[:depth]) for names in parts for depth in range(1, len(names))}
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, now
            tar.addfile(entry)
        for path in sorted(files):
            data = files[path].encode()
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.mtime = len(data), 0o644, now
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()

"""Containers for foreign tasks: their image found or built, an agent's side run, the difference taken, tests run in a fresh one.

A foreign image has what it has: another Python or none, root as its user, a tree that must be writable. So these
containers are walled off as far as it allows: no network, the task's memory, cores and processes, no new privileges,
eight of Docker's fourteen capabilities, one size for files, and the sum of what was written is looked at while it runs.
A difference becomes a layer above the image, so that what the attempt deleted is gone in the fresh container too.

Not covered: programs of a Dockerfile, which run as `docker build` runs them, with the daemon's network; a full disk between
two looks; a file that was changed and kept its size and time, where the daemon compares by these (no native overlay diff);
a daemon that keeps images in containerd's store, which refuses an archive that lacks the layers it has.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from docker.errors import APIError, ImageNotFound, NotFound

from environments.engines import cgroups
from environments.engines.docker_daemon import LABEL, Daemon, talking
from environments.formats.folder import shown
from environments.formats.foreign import (
    MAX_CHANGES,
    MAX_REWARD_BYTES,
    Difference,
    TooMuch,
    archive,
    changes_of,
    difference,
    nothing,
    subfolder,
)
from schemas.base import digest_of
from schemas.errors import InputError, SandboxError
from schemas.execution import Limits
from schemas.harbor import Config, Folder, FolderFile

_MIB = 1 << 20
_CHUNK = 1 << 16
_KEPT = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
_LOOK_S = 2.0  # between two looks at what was written; it walks through all of it
_REWARDS = ("reward.json", "reward.txt")  # Harbor's order
_LOGS = {"logs": 0o755, "logs/agent": 0o777, "logs/verifier": 0o777}
_LOG = {"Type": "json-file", "Config": {"max-size": "256k", "max-file": "1"}}
_ABSENT = "absent.tar"  # of layers that the daemon has: their content is not asked for


class Ended(NamedTuple):
    """How a command ended: by itself, at a limit, or it could not be started. `said` is the last line of its output."""

    stop: Literal["exit", "wall", "memory", "disk", "start"]
    code: int | None
    said: str

    def __str__(self) -> str:
        return f"{self.stop} {'' if self.code is None else self.code} {self.said}".strip()


class Command(NamedTuple):
    """What runs in a container; `argv` empty: nothing does. `files` are laid before, below / or, if `at_work`, below the
    working folder: `workdir`, else the image's."""

    argv: list[str]
    files: dict[str, FolderFile]
    at_work: bool
    user: str
    workdir: str | None
    variables: dict[str, str]
    limits: Limits


class Tested(NamedTuple):
    ended: Ended
    reward: tuple[str, bytes] | None  # name and content of the file; None: there is none


class ForeignDocker:
    """Raises InputError (an unknown runtime), SandboxError (no daemon). `timeout_s` bounds each call to it but for a build."""

    def __init__(self, runtime: str | None = None, timeout_s: float = 60.0) -> None:
        self._daemon = Daemon(runtime, timeout_s)
        self._v2 = str(self._daemon.about.get("CgroupVersion", "1")) == "2"
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._owner = {LABEL: f"{boot}/{cgroups.owner_name()}"}  # what is left of a killed process, Daemon removes
        with talking("images of dead owners"):
            self._remove_stale(boot)

    def client(self) -> Any:
        return self._daemon.client()

    def close(self) -> None:
        self._daemon.close()

    # --- the task's image

    def image(self, task: str, folder: Folder, config: Config) -> str:
        """Id of the image that the task names, if it is here, else of the one that its Dockerfile makes. Raises SandboxError."""
        named = config.environment.docker_image
        if named is not None and not re.fullmatch(r"[A-Za-z0-9][\w./:@-]*", named):
            raise InputError(
                f"task {task}: environment.docker_image {shown(named)!r} is no name of an image; correct it"
            )
        files = subfolder(folder, "environment")
        if "Dockerfile" not in files:
            if named is None:
                raise InputError(f"task {task}: neither environment.docker_image nor environment/Dockerfile; add one")
            files["Dockerfile"] = FolderFile(mode=0o644, text=f"FROM {named}\n")
        tag = f"postloop/foreign:{digest_of({path: file.digest() for path, file in files.items()})}"
        with talking(f"image of task {task}"):
            found = (self._find(named) if named else None) or self._find(tag)
            return found or self._build(task, archive(files), tag, config)

    def _find(self, name: str) -> str | None:
        try:
            return str(self.client().inspect_image(name)["Id"])
        except ImageNotFound:
            return None

    def _build(self, task: str, context: bytes, tag: str, config: Config) -> str:
        box = config.environment
        memory = (box.memory_mb or 4096) * _MIB
        step, problem = "", ""
        for line in self.client().build(
            fileobj=io.BytesIO(context), custom_context=True, tag=tag, rm=True, forcerm=True, decode=True,
            timeout=box.build_timeout_sec, container_limits={"memory": memory, "memswap": memory},
        ):  # fmt: skip
            said = str(line.get("stream", ""))
            step = said.partition(" : ")[2].strip() if said.startswith("Step ") else step
            problem = str(line.get("error", problem))
        found = self._find(tag)
        if problem or found is None:
            remedy = "docker load its base, or run where its registry can be reached"
            at = f"at {shown(step)[:80]}: " if step else ""
            raise SandboxError(f"task {task}: no image: {at}{shown(' '.join(problem.split()))}; {remedy}")
        return found

    # --- the two containers

    def changed(self, image: str, command: Command) -> tuple[Ended | None, Difference]:
        """Run the agent's side and take the difference of the tree. Raises TooMuch, SandboxError."""
        with talking("the agent's container"), self._opened(image, None, command) as box:
            ended = self._run(box, command.limits) if command.argv else None
            with _reading("the tree of a container"):
                changes = changes_of(self._changes(box))
                if not changes:
                    return ended, nothing()
                with contextlib.closing(self._get(f"containers/{box}/export")) as answer:
                    _check(answer)
                    return ended, difference(changes, answer.raw)

    def tested(self, image: str, outcome: Difference, command: Command) -> Tested:
        """Run the tests over the outcome in a fresh container. Raises SandboxError."""
        with talking("the tests' container"), self._opened(image, outcome, command) as box:
            ended = self._run(box, command.limits)
            with _reading("a reward"):
                found = ((name, self._file(box, f"/logs/verifier/{name}")) for name in _REWARDS)
                return Tested(ended, next(((name, data) for name, data in found if data is not None), None))

    @contextlib.contextmanager
    def _opened(self, image: str, outcome: Difference | None, command: Command) -> Iterator[str]:
        """A container that was not started yet, with what the command needs laid into it."""
        with self._layered(image, outcome) as layered, self._container(layered, command) as box:
            yield box

    @contextlib.contextmanager
    def _layered(self, image: str, outcome: Difference | None) -> Iterator[str]:
        """The image without its volumes, and with the outcome as one more layer: whatever is written is in its tree."""
        client = self.client()
        about = client.inspect_image(image)
        layers = [*about["RootFS"].get("Layers", []), *([f"sha256:{outcome.sha256}"] if outcome else [])]
        tag = f"postloop/foreign-run:{uuid.uuid4().hex}"
        with tempfile.TemporaryFile() as file:
            _write_archive(file, _config_of(about, layers, self._owner), tag, outcome)
            file.seek(0)
            for line in client.load_image(file, quiet=True):
                if "error" in line:
                    raise SandboxError(
                        f"docker: a layer was refused: {shown(str(line['error']))}; see the daemon's log"
                    )
        try:
            yield tag
        finally:
            with contextlib.suppress(APIError, NotFound):
                client.remove_image(tag, noprune=True)

    @contextlib.contextmanager
    def _container(self, image: str, command: Command) -> Iterator[str]:
        client = self.client()
        box = str(client.create_container_from_config(self._config(image, command))["Id"])
        try:
            client.put_archive(box, "/", self._laid(image, command))
            yield box
        finally:
            with contextlib.suppress(APIError, NotFound):
                client.remove_container(box, force=True, v=True)

    def _laid(self, image: str, command: Command) -> bytes:
        """The command's files, and empty /logs."""
        work = command.workdir or self.client().inspect_image(image)["Config"].get("WorkingDir") or "/"
        top = f"{work.strip('/')}/".lstrip("/") if command.at_work else ""
        scripts = [command.argv[-1].lstrip("/")] if command.argv else []
        files = {f"{top}{path}": file for path, file in command.files.items()}
        return archive(files, _LOGS, scripts, int(time.time()))  # an old time could make it look unchanged, see above

    def _config(self, image: str, command: Command) -> dict[str, Any]:
        limits = command.limits
        memory = limits.memory_mb * _MIB
        cores = min(limits.cpu_s / limits.wall_s, float(self._daemon.about.get("NCPU") or 1))
        size = limits.disk_mb * _MIB
        host: dict[str, Any] = {
            "CapAdd": list(_KEPT), "CapDrop": ["ALL"], "IpcMode": "private", "LogConfig": _LOG, "Memory": memory,
            "MemorySwap": memory, "NanoCpus": int(cores * 1e9), "NetworkMode": "none",
            "PidsLimit": limits.pids, "SecurityOpt": ["no-new-privileges"],
            "Ulimits": [{"Name": "core", "Soft": 1, "Hard": 1}, {"Name": "fsize", "Soft": size, "Hard": size}],
        }  # fmt: skip
        if self._v2:
            host["CgroupnsMode"] = "private"
        if self._daemon.runtime:
            host["Runtime"] = self._daemon.runtime
        given = {"WorkingDir": command.workdir} if command.workdir else {}
        return {
            "Image": image, "Entrypoint": command.argv or ["/none"], "Cmd": [], "User": command.user, "Hostname": "sandbox",
            "Env": [f"{key}={value}" for key, value in command.variables.items()], "Labels": self._owner,
            "HostConfig": host, **given,
        }  # fmt: skip

    def _run(self, box: str, limits: Limits) -> Ended:
        """Start it and wait for its end or a limit. What the daemon says about a command that it cannot start is an end."""
        client = self.client()
        try:
            client.start(box)
        except APIError as error:
            return Ended("start", None, shown(" ".join(str(error.explanation or error).split())))
        deadline, look, pause = time.monotonic() + limits.wall_s, time.monotonic() + _LOOK_S, 0.02
        stop: Literal["exit", "wall", "memory", "disk"] = "exit"
        while (state := client.inspect_container(box)["State"])["Running"]:
            now = time.monotonic()
            if now > look:
                stop = "disk" if self._written(box) > limits.disk_mb * _MIB else stop
                look = time.monotonic() + _LOOK_S
            stop = "wall" if now > deadline else stop
            if stop != "exit":
                self._kill(box)
                break
            time.sleep(pause)
            pause = min(0.25, pause * 1.3)
        if stop != "exit":
            return Ended(stop, None, self._last_line(box))
        code = int(state["ExitCode"])
        return Ended("memory" if state["OOMKilled"] and code else "exit", code, self._last_line(box))

    def _kill(self, box: str) -> None:
        client = self.client()
        with contextlib.suppress(APIError):  # it may have ended just now
            client.kill(box)
        client.wait(box, timeout=self._daemon.timeout_s)

    def _written(self, box: str) -> int:
        rows = self.client().containers(all=True, size=True, filters={"id": box})
        return int(rows[0].get("SizeRw") or 0) if rows else 0

    def _last_line(self, box: str) -> str:
        lines = self.client().logs(box, tail=3).decode("utf-8", "replace").strip().splitlines()
        return shown(lines[-1]) if lines else ""

    # --- what comes out

    def _get(self, what: str, **query: str) -> Any:
        """An answer of the daemon to be read in pieces; the SDK's own calls wait for ever, or read all of it."""
        client = self.client()
        url = f"{client.base_url}/v{client.api_version}/{what}"
        plain = {"Accept-Encoding": "identity"}
        return client.get(url, params=query, headers=plain, stream=True, timeout=self._daemon.timeout_s)

    def _changes(self, box: str) -> bytes:
        most = MAX_CHANGES * 512
        with contextlib.closing(self._get(f"containers/{box}/changes")) as answer:
            _check(answer)
            data = bytes(answer.raw.read(most + 1, decode_content=True))
        if len(data) > most:
            raise TooMuch(f"names of changed paths are over {most >> 20} MiB")
        return data

    def _file(self, box: str, path: str) -> bytes | None:
        """A little more of a file than may be in it; nothing of what is no plain file; None when there is nothing."""
        with contextlib.closing(self._get(f"containers/{box}/archive", path=path)) as answer:
            if answer.status_code == 404:
                return None
            _check(answer)
            with tarfile.open(fileobj=answer.raw, mode="r|") as tar:
                entry = tar.next()
                file = tar.extractfile(entry) if entry is not None and entry.isreg() else None
                return file.read(MAX_REWARD_BYTES + 1) if file else b""

    def _remove_stale(self, boot: str) -> None:
        client = self.client()
        for item in client.images(filters={"label": LABEL}):
            owner = (item.get("Labels") or {}).get(LABEL, "")
            if owner.startswith(f"{boot}/") and cgroups.owner_is_dead(owner.removeprefix(f"{boot}/")):
                with contextlib.suppress(APIError, NotFound):
                    client.remove_image(item["Id"], force=True, noprune=True)


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """What the daemon sends is broken: the machine's fault, or an attempt's that it cannot cope with."""
    try:
        yield
    except (tarfile.TarError, ValueError, LookupError, TypeError) as error:
        raise SandboxError(f"docker: {what} cannot be read ({shown(str(error))}); see the daemon's log") from error


def _check(answer: Any) -> None:
    if answer.status_code != 200:
        raise SandboxError(f"docker: {answer.status_code} {shown(answer.text[:200])}; see the daemon's log")


def _config_of(about: dict[str, Any], layers: list[str], labels: dict[str, str]) -> bytes:
    """An image's configuration with what a command needs of the old one: variables, user, folder."""
    old = about.get("Config") or {}
    kept = {key: old[key] for key in ("Env", "User", "WorkingDir", "Shell") if old.get(key)}
    config = {
        "architecture": about["Architecture"],
        "config": {**kept, "Labels": labels},
        "created": "1970-01-01T00:00:00Z",
        "os": about["Os"],
        "rootfs": {"diff_ids": layers, "type": "layers"},
    }
    return json.dumps(config, sort_keys=True).encode()


def _write_archive(out: IO[bytes], config: bytes, tag: str, outcome: Difference | None) -> None:
    """A docker-archive with one layer or none: those below it are in the daemon, which then does not look for them."""
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    layers = [_ABSENT] * len(json.loads(config)["rootfs"]["diff_ids"])
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        if outcome is not None:
            layers[-1] = "layer.tar"
            entry = tarfile.TarInfo(layers[-1])
            entry.size = outcome.layer.seek(0, io.SEEK_END)
            outcome.layer.seek(0)
            tar.addfile(entry, outcome.layer)
        manifest = json.dumps([{"Config": name, "Layers": layers, "RepoTags": [tag]}]).encode()
        for path, data in ((name, config), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))

"""A real dockerd of Debian's docker.io in a folder of its own: no registry, no bridge, no firewall rules, no service.

    with dockerd() as url:        # DOCKER_HOST names it inside
        open_engine("docker")

One is started in a process and shared by all that ask for it without options; it is stopped when the process ends. With
options, or as `Dockerd`, it is a test's own. It needs root, as dockerd does, and installs the package when it is missing
(tools/install-system): nothing but these tests and the benchmarks asks for it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_INSTALL = Path(__file__).resolve().parent.parent / "tools" / "install-system"
_PATH = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"
_OFF = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
_START_S, _STOP_S = 60.0, 30.0


@contextlib.contextmanager
def dockerd(*options: str) -> Iterator[str]:
    """Its DOCKER_HOST url, also set in the environment. With options: stopped, unmounted and deleted afterwards."""
    with contextlib.ExitStack() as stack:
        if options:
            daemon = Dockerd(*options)
            stack.callback(daemon.remove)
            daemon.start()
        else:
            daemon = _shared(os.getpid())
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = daemon.url
        try:
            yield daemon.url
        finally:
            os.environ.pop("DOCKER_HOST", None)
            if before is not None:
                os.environ["DOCKER_HOST"] = before


@functools.cache
def _shared(process: int) -> Dockerd:
    """Of this process: one that was forked from it gets another."""
    daemon = Dockerd()
    atexit.register(_remove, daemon, process)
    daemon.start()
    return daemon


def _remove(daemon: Dockerd, process: int) -> None:
    if process == os.getpid():
        daemon.remove()


class Dockerd:
    """One that a test can stop, kill, freeze and start again."""

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dockerd-"))
        self.url = f"unix://{self.folder}/docker.sock"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers. Raises RuntimeError with the end of its log."""
        program = _program()
        folder = self.folder
        places = ("--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid")
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # it ends with us, however we end
                ["setpriv", "--pdeathsig", "TERM", program, *map(str, places), "-H", self.url, *_OFF, *self._options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "PATH": _PATH},
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("dockerd did not start: " + self.log()[-2000:])
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(2)
                client.connect(str(self.folder / "docker.sock"))
                client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b" 200 " in client.recv(100)
        except OSError:
            return False

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _end(self.folder / "exec" / "containerd" / "containerd.toml")  # its containerd; the next would wait for it
        (self.folder / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)  # a number that may come back

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def remove(self) -> None:
        self.stop()
        _end(self.folder / "exec")
        for point in _mounts_below(self.folder):
            subprocess.run(["umount", "-l", point], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def _program() -> str:
    if os.getuid():
        raise RuntimeError("dockerd needs root: run these tests as root, e.g. sudo -E make test")
    if shutil.which("dockerd", path=_PATH) is None:
        subprocess.run([_INSTALL, "docker.io"], check=True)
    found = shutil.which("dockerd", path=_PATH)
    if found is None:
        raise RuntimeError("dockerd is not there after docker.io was installed; look at apt-get's output")
    return found


def _end(path: Path) -> None:
    """Kill what names `path` on its command line, as containerd and the shims of a dockerd do, and wait for it."""
    deadline = time.monotonic() + _STOP_S
    while (left := _processes_naming(path)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _processes_naming(path: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.fsencode(path) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def _mounts_below(folder: Path) -> list[str]:
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)

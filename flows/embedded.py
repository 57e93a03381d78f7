"""The Prefect server of one run: a process of ours on loopback, started before Prefect is imported here.

Prefect would start one by itself, but late, on a port drawn by chance, and one that outlives a killed run. This one
starts while this process imports what the stages need, takes a port that is already bound, is told apart from Ctrl-C,
and ends with its parent, however that ends (Linux: the kernel tells it). A server named by PREFECT_API_URL is used as it is.

A new database takes Prefect's server more time than a tiny round: each of its migrations is run. So the first empty one
of a version is kept in the cache, and new workspaces begin with a copy.
"""

from __future__ import annotations

import atexit
import importlib
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

from flows.settings import cache_folder, collect_rarely
from schemas.errors import InfrastructureError
from stages.artifacts import write_durably

SOURCES = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 5.0
_SERVER_ENVIRONMENT = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
_PR_SET_PDEATHSIG = 1
_OTHER_DATABASE = ("PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL")


class Server:
    """A server that is starting, or runs."""

    def __init__(self, process: subprocess.Popen[bytes], told: int, log: Path, workspace: Path) -> None:
        self.process, self.log, self._workspace = process, log, workspace
        self._told, self._answers = told, False

    def answers(self, within_s: float = 0.0) -> bool:
        """Whether it takes requests. Raises InfrastructureError when it ended instead."""
        if not self._answers and select.select([self._told], [], [], within_s)[0]:
            if not os.read(self._told, 1):
                raise InfrastructureError(f"Prefect server: ended before it answered; see {self.log}, then run again")
            self._answers = True
            keep_database(self._workspace)
        return self._answers

    def wait(self) -> None:
        """Raises InfrastructureError when it does not answer in time."""
        if not self.answers(START_TIMEOUT_S):
            raise InfrastructureError(
                f"Prefect server: no answer within {START_TIMEOUT_S:.0f} s; see {self.log}, then run again"
            )

    def stop(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        self.process.kill()
        self.process.wait()


def start(workspace: Path) -> Server | None:
    """Start the server of this process and name it in PREFECT_API_URL; None when a server is named already.

    It stops after everything that Prefect itself does at exit, since what is registered first runs last.
    """
    if os.environ.get("PREFECT_API_URL"):
        return None
    log = workspace / ".postloop" / "prefect.log"
    log.parent.mkdir(exist_ok=True)
    lend_database(workspace)
    told, tell = os.pipe()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener, log.open("ab") as sink:
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.embedded", *map(str, (listener.fileno(), tell, os.getpid()))],
            cwd=SOURCES,
            env={**os.environ, **_SERVER_ENVIRONMENT},
            pass_fds=(listener.fileno(), tell),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    os.close(tell)
    server = Server(process, told, log, workspace)
    os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    atexit.register(server.stop)
    _STARTED.append(server)
    return server


def started() -> bool:
    """Whether this process uses a server of its own, which has no page and which nobody else can find."""
    return bool(_STARTED)


_STARTED: list[Server] = []


def lend_database(workspace: Path) -> None:
    """Give Prefect's server the kept database where the workspace has none. Before the server starts."""
    own, kept = _databases(workspace)
    if own is not None and kept.is_file() and not own.exists():
        own.parent.mkdir(parents=True, exist_ok=True)
        _write(own, kept.read_bytes())


def keep_database(workspace: Path) -> None:
    """Keep the database of a server that has just begun to answer: empty yet. When that fails, the run goes on without."""
    own, kept = _databases(workspace)
    if own is None or kept.exists():
        return
    with suppress(OSError, sqlite3.Error):
        with closing(sqlite3.connect(f"{own.resolve().as_uri()}?mode=ro", uri=True)) as source:
            if source.execute("select count(*) from flow_run").fetchone() != (0,):  # an older workspace's
                return
            with closing(sqlite3.connect(":memory:")) as copy:
                source.backup(copy)
                content = copy.serialize()
        kept.parent.mkdir(parents=True, exist_ok=True)
        _write(kept, content)


def _write(path: Path, content: bytes) -> None:
    """By a name of this process, since others may be at the same."""
    mine = path.with_name(f"{path.name}.{os.getpid()}")
    write_durably(mine, content)
    mine.rename(path)


def _databases(workspace: Path) -> tuple[Path | None, Path]:
    """Where the server's own one lies, if it is a file of ours, and the kept one of this version of Prefect."""
    home = os.environ.get("PREFECT_HOME")
    own = Path(home) / "prefect.db" if home and not any(name in os.environ for name in _OTHER_DATABASE) else None
    return own, cache_folder(workspace) / f"prefect-{version('prefect')}.db"


def import_until(modules: Iterable[str], ready: Callable[[], bool]) -> None:
    """Import what is needed later anyway, one after the other, until there is something better to do."""
    for name in modules:
        if ready():
            return
        importlib.import_module(name)


def _serve(listener: int, tell: int, parent: int) -> None:
    """Body of the server process."""
    _end_with(parent)
    collect_rarely()
    import uvicorn

    class Telling(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                os.write(tell, b"!")
            os.close(tell)

    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=1,
    )
    Telling(config).run(sockets=[socket.socket(fileno=listener)])


def tied(argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` as a process that ends with this one. Start it in the folder of our sources."""
    return [sys.executable, "-m", "flows.embedded", "exec", str(os.getpid()), *argv]


def _end_with(parent: int) -> None:
    """Linux keeps this over exec."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before we could ask
        sys.exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "exec":
        _end_with(int(sys.argv[2]))
        os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606 - the command that `tied` was given
    _serve(*(int(argument) for argument in sys.argv[1:4]))

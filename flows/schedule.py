"""A round a night: a Prefect deployment of the round flow, one run at a time, served from this machine.

The declared schedule is a file of the workspace (`schedule.json`), so that it is versioned like everything a person
decides. `serve` starts a local Prefect server and a local MLflow, both on loopback, unless servers are named by
PREFECT_API_URL and runtime.tracking_uri, and then serves the deployment until it is stopped.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flows import embedded
from schemas.errors import InfrastructureError, InputError
from stages.artifacts import write_durably

FILE = "schedule.json"
START_TIMEOUT_S = 90.0
# MLflow would start eight processes of 250 MB for jobs that nobody here submits.
_SERVERS_ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def write_schedule(workspace: Path, cron: str) -> Path:
    """Keep the declared schedule. Raises InputError for an expression that is not five fields that Prefect takes."""
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    problem = f"schedule: {cron!r} is no cron expression; five fields, e.g. '0 2 * * *' for two at night"
    if len(cron.split()) != 5:  # Prefect would also take seconds and years
        raise InputError(problem)
    try:
        CronSchedule(cron=cron)
    except ValidationError as error:
        raise InputError(problem) from error
    path = workspace / FILE
    write_durably(path, json.dumps({"cron": cron}).encode() + b"\n")
    return path


def read_schedule(workspace: Path) -> str:
    path = workspace / FILE
    if not path.is_file():
        raise InputError(f"{workspace.name}: no schedule yet; run `postloop schedule --cron '0 2 * * *'` first")
    return str(json.loads(path.read_text(encoding="utf-8"))["cron"])


def deployment_name(workspace: Path) -> str:
    return f"nightly-{workspace.resolve().name}"


def serve(workspace: Path, tracking_uri: str | None) -> None:
    """Blocks until interrupted. One run at a time: a run that is due while another goes on waits for it."""
    cron = read_schedule(workspace)
    with prefect_server(workspace), mlflow_server(workspace, tracking_uri):
        from flows.loop import round_flow

        round_flow.serve(
            name=deployment_name(workspace),
            cron=cron,
            parameters={"workspace": str(workspace.resolve()), "quiet": True},
            limit=1,
            pause_on_shutdown=False,
            print_starting_message=False,
        )


@contextmanager
def prefect_server(workspace: Path) -> Iterator[str]:
    """The server that PREFECT_API_URL names, or one of our own on a free loopback port."""
    named = os.environ.get("PREFECT_API_URL")
    if named:
        yield named
        return
    embedded.lend_database(workspace)
    port = _free_port()
    argv = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with _process("Prefect", argv, workspace, f"http://127.0.0.1:{port}/api/health"):
        os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
        print(f"Prefect  http://127.0.0.1:{port}", file=sys.stderr)
        try:
            yield os.environ["PREFECT_API_URL"]
        finally:
            del os.environ["PREFECT_API_URL"]


@contextmanager
def mlflow_server(workspace: Path, tracking_uri: str | None) -> Iterator[str]:
    """The tracking server of the spec, or a local page over the workspace's own SQLite file."""
    if tracking_uri:
        yield tracking_uri
        return
    port, folder = _free_port(), workspace.resolve() / ".postloop"
    store, files = f"sqlite:///{folder / 'mlflow.db'}", str(folder / "mlartifacts")
    argv = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--backend-store-uri", store, "--default-artifact-root", files, "--workers", "1"]
    with _process("MLflow", argv, workspace, f"http://127.0.0.1:{port}/health"):
        print(f"MLflow   http://127.0.0.1:{port}", file=sys.stderr)
        yield f"http://127.0.0.1:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _process(name: str, argv: list[str], workspace: Path, health: str) -> Iterator[None]:
    """A server of ours, ended with us, also when we are killed: its own process group, so that its workers go with it."""
    log = workspace / ".postloop" / f"{name.lower()}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as sink:
        process = subprocess.Popen(
            embedded.tied(argv),
            cwd=embedded.SOURCES,
            env={**os.environ, **_SERVERS_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    try:
        _await(name, process, health, log)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _await(name: str, process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise InfrastructureError(f"{name} server: ended with {process.returncode} before it answered; see {log}")
        with (
            suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(health, timeout=2),  # noqa: S310 - loopback, our own port
        ):
            return
        time.sleep(0.2)
    raise InfrastructureError(f"{name} server: no answer at {health} within {START_TIMEOUT_S:.0f} s; see {log}")

"""A tiny loop with two complete rounds, made once by the real command line and only read by the tests.

Once for all workers: the first that asks makes it, the others wait and take a copy, so that no worker sees what another
one's commands leave in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_loop import REPOSITORY, Cli, Finished, Interrupted, Result, await_, processes_of, tiny_spec

from flows import embedded
from flows.settings import QUIET, prepare
from schemas.record import STAGES
from stages.workspace import Workspace

Told = dict[str, Any]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of pytest that all its workers have."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "shared"
    place.mkdir(exist_ok=True)
    return place


def made_once(shared: Path, copies: Path, name: str, text: str, make: Callable[[Workspace], Told]) -> tuple[Path, Told]:
    """A copy of the workspace that `make` was given in whichever worker came first, and what it told. Fails alike in all."""
    folder = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = shared / f"{name}.json"
        if not told.exists():
            told.write_text(json.dumps({"failed": "whoever made it did not come to its end"}))
            try:
                found = make(Workspace.create(folder / "loop", text))
            except Exception as error:
                told.write_text(json.dumps({"failed": str(error)[-4000:]}))
                raise
            told.write_text(json.dumps(found))
        known = json.loads(told.read_text())
    assert "failed" not in known, known["failed"]
    subprocess.run(["cp", "-a", str(folder / "loop"), str(copies / "loop")], check=True)  # with its hard links
    return copies / "loop", known


@pytest.fixture(scope="session")
def environment(shared: Path) -> dict[str, str]:
    """Of every `postloop` process here: one cache for all, no server but its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    cache = shared / "cache"
    cache.mkdir(exist_ok=True)
    return {**kept, "POSTLOOP_CACHE": str(cache), "PYTHONPATH": str(REPOSITORY)}


@pytest.fixture(scope="session")
def served(shared: Path) -> dict[str, str]:
    """Names one Prefect server for all workers, as a team names its own: a round that starts none takes a quarter less CPU."""
    told = shared / "prefect.url"
    with (shared / "prefect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            told.write_text(_started(shared / "prefect"))
    return {"PREFECT_API_URL": told.read_text()}


def _started(root: Path) -> str:
    """The URL of a server that ends with this process, which itself uses none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        for name, value in {**QUIET, "PREFECT_HOME": str(root / "home"), "POSTLOOP_CACHE": str(root / "cache")}.items():
            patch.setenv(name, value)
        prepare(root)
        server = embedded.start(root)
        assert server is not None
        server.wait()
        embedded._STARTED.remove(server)
        return os.environ.pop("PREFECT_API_URL")


@pytest.fixture(scope="session")
def cli(environment: dict[str, str]) -> Cli:
    """`postloop ...` as a process; `env` adds variables."""

    def run(*arguments: str | Path, env: dict[str, str] | None = None, timeout_s: float = 600) -> Result:
        return subprocess.run(
            [sys.executable, "-m", "flows.cli", *map(str, arguments)],
            cwd=REPOSITORY,
            env={**environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def finished(cli: Cli, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    def make(space: Workspace) -> Told:
        began = time.monotonic()
        done = cli("run", "--rounds", "2", "-w", space.root)
        assert done.returncode == 0, done.stderr[-4000:]
        return {"output": done.stdout, "seconds": time.monotonic() - began}

    root, told = made_once(shared, tmp_path_factory.mktemp("finished"), "finished", tiny_spec(), make)
    return Finished(Workspace.open(root), told["output"], told["seconds"], shared / "finished" / "loop")


@pytest.fixture(scope="session")
def interrupted(
    finished: Finished,
    environment: dict[str, str],
    served: dict[str, str],
    cli: Cli,
    shared: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Interrupted:
    """A round that Ctrl-C stopped during its training and that a second `postloop run` finished. It hands nothing over."""

    def make(space: Workspace) -> Told:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", "run", "-w", str(space.root)],
            cwd=REPOSITORY, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True, preexec_fn=_takes_ctrl_c,
        )  # fmt: skip
        await_(lambda: space.has(1, "data") or process.poll() is not None, 300)
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does: the whole group gets it
        _, stderr = process.communicate(timeout=60)
        at: list[str] = [stage for stage in STAGES if space.has(1, stage)]
        left = processes_of(space.root)
        again = cli("run", "-w", space.root, env=served)
        after = {"returncode": again.returncode, "stdout": again.stdout, "stderr": again.stderr}
        return {"at": at, "code": process.returncode, "stderr": stderr, "again": after, "orphans": left}

    text = tiny_spec().replace("max_buckets: 1", "max_buckets: 0")
    root, told = made_once(shared, tmp_path_factory.mktemp("interrupted"), "interrupted", text, make)
    again = subprocess.CompletedProcess([], **told.pop("again"))
    return Interrupted(Workspace.open(root), again=again, **told)


def _takes_ctrl_c() -> None:
    """Tests that run in the background of a script have it ignored, and hand that down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

"""A tiny loop with two complete rounds, made once by the real command line and only read by the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_loop import REPOSITORY, Cli, Finished, Interrupted, Result, await_, processes_of, tiny_spec

from schemas.record import STAGES
from stages.workspace import Workspace


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of every `postloop` process here: one cache for all, no server but its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    return {**kept, "POSTLOOP_CACHE": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": str(REPOSITORY)}


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
def finished(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    space = Workspace.create(tmp_path_factory.mktemp("finished") / "loop", tiny_spec())
    began = time.monotonic()
    done = cli("run", "--rounds", "2", "-w", space.root)
    assert done.returncode == 0, done.stderr[-4000:]
    return Finished(space, done.stdout, time.monotonic() - began)


@pytest.fixture(scope="session")
def interrupted(
    finished: Finished, environment: dict[str, str], cli: Cli, tmp_path_factory: pytest.TempPathFactory
) -> Interrupted:
    """A round that Ctrl-C stopped during its training and that a second `postloop run` finished. It hands nothing over."""
    text = tiny_spec().replace("max_buckets: 1", "max_buckets: 0")
    space = Workspace.create(tmp_path_factory.mktemp("interrupted") / "loop", text)
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
    return Interrupted(space, at, process.returncode, stderr, cli("run", "-w", space.root), left)


def _takes_ctrl_c() -> None:
    """Tests that run in the background of a script have it ignored, and hand that down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

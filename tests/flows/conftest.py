"""A tiny loop with two complete rounds, made once by the real command line and only read by the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stages.spec import dump_default
from stages.workspace import Workspace

REPOSITORY = Path(__file__).resolve().parents[2]
Result = subprocess.CompletedProcess[str]
Cli = Callable[..., Result]

# Whatever fails is owed to data, so that round 1 always hands tasks to round 2.
ROUTES = """\
routes:
  - {id: everything, cause: coverage, route: data, when: {}, because: a test wants new tasks}
"""


def tiny_spec() -> str:
    return f"{dump_default('tiny')}\n{ROUTES}"


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


@dataclass(frozen=True)
class Finished:
    space: Workspace
    output: str
    seconds: float  # wall, both rounds

    @property
    def root(self) -> Path:
        return self.space.root


@pytest.fixture(scope="session")
def finished(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    space = Workspace.create(tmp_path_factory.mktemp("finished") / "loop", tiny_spec())
    began = time.monotonic()
    done = cli("run", "--rounds", "2", "-w", space.root)
    assert done.returncode == 0, done.stderr[-4000:]
    return Finished(space, done.stdout, time.monotonic() - began)

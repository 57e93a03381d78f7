"""Four workers on the two cores of the smallest machine: many tests wait for a process. Tests of one file stay together.
Each keeps torch to one thread: two of each worker would wait for one another, and burn the cores meanwhile.

Longest first, so that no worker is alone at the end. The first one makes the finished loop of tests/flows/conftest.py, once
for all workers; the other files that read it come later, so that they seldom wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from flows.settings import collect_rarely
from schemas.task import Task
from schemas.trajectory import Attempt
from tests import small

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; what tests start inherits it
collect_rarely()

_READERS = (
    "ablation_arms", "attribute_command", "cli", "compare", "gc", "kill", "leaks", "loop", "pin_mutations", "recorded", "replay",
    "rescore", "schedule", "trajectories", "triage_command",
)  # fmt: skip
FINISHED = {f"tests/flows/test_{name}.py" for name in _READERS}
LONGEST = (
    "tests/flows/test_loop.py",
    "tests/flows/test_real_model.py",
    "tests/environments/test_docker.py",
    "tests/flows/test_faults.py",
    "tests/flows/test_kill.py",
    "tests/flows/test_schedule.py",
    "tests/flows/test_replay.py",
    "tests/flows/test_rescore.py",
    "tests/stages/test_trainers.py",
    "tests/flows/test_repositories.py",
    "tests/flows/test_teacher.py",
    "tests/stages/test_canary.py",
    "tests/evals/test_verify_together.py",
)


def group_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def rank_of(path: str) -> int:
    return LONGEST.index(path) if path in LONGEST else len(LONGEST) + (path not in FINISHED)


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank_of(group_of(item.nodeid)))


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images and tiny models of this worker's tests."""
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture
def make_task() -> Callable[..., Task]:
    return small.task


@pytest.fixture
def make_attempt() -> Callable[..., Attempt]:
    return small.attempt

"""Three workers on the two cores of the smallest machine: many tests wait for a process. Tests of one file stay together,
and so do the files that read the finished loop of tests/flows/conftest.py, which is made once, in one worker.

Longest first, so that no worker is alone at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

FINISHED = {
    f"tests/flows/test_{name}.py" for name in ("cli", "compare", "kill", "loop", "pin_mutations", "replay", "schedule")
}
LONGEST = (
    "finished loop",
    "tests/flows/test_real_model.py",
    "tests/environments/test_docker.py",
)  # each begins a worker


def group_of(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    return LONGEST[0] if path in FINISHED else path


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {group: rank for rank, group in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(group_of(item.nodeid), len(LONGEST)))

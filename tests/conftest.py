"""Two workers, one for each core of the smallest machine: tests of one file stay together, and so do those of whole loops.

tests/flows makes its loops once, in one worker, and waits for their processes most of the time; the other files run beside
it. Longest first, so that no worker is alone at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

LONGEST = ("tests/flows", "tests/flows/test_real_model.py")  # each begins a worker


def group_of(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    return "tests/flows" if path.startswith("tests/flows/") and path not in LONGEST else path


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {group: rank for rank, group in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(group_of(item.nodeid), len(LONGEST)))

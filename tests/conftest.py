"""Two workers, one for each core of the smallest machine: a folder's or file's tests stay together, the longest first.

Fixtures that make a whole loop are made once in their worker. tests/flows waits for processes most of the time, so the
other files run beside it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent
LONGEST = ("flows", "flows/test_real_model.py")  # each begins a worker


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def group(item: pytest.Item) -> str:
        path = item.path.relative_to(ROOT)
        whole = path.parts[0] == "flows" and path.name != "test_real_model.py"
        return "flows" if whole else path.as_posix()

    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=lambda item: LONGEST.index(group(item)) if group(item) in LONGEST else len(LONGEST))

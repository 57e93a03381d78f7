"""Rounds to report on."""

from __future__ import annotations

import pytest
from synthetic import HOSTILE, make_view

from reports.view import RoundView


@pytest.fixture(scope="session")
def view() -> RoundView:
    return make_view()


@pytest.fixture(scope="session")
def hostile_view() -> RoundView:
    return make_view(hostile=HOSTILE)

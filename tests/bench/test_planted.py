"""A sample of the planted faults, on the side that the rules were written with: each given to its owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import planted
from bench.planted_faults import Site, side_of
from environments.sources.library import functions

SAMPLE = ("noisy_tool", "wrong_suite", "killed_harness")


@pytest.mark.parametrize("kind", SAMPLE)
def test_a_planted_fault_is_given_to_its_owner(
    kind: str, tmp_path: Path, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, _, worlds = planted.KINDS[kind]
    monkeypatch.setattr(planted, "KINDS", {kind: (owner, 2, worlds)})
    rows = planted.run_kind(Site(tmp_path, warehouse, "rules", 100, 2), kind)
    assert len(rows) == 2
    assert [row["route"] for row in rows] == [owner.value] * 2, rows


def test_the_two_sides_share_no_base_function() -> None:
    sides = {side: {name for name in functions() if side_of(name) == side} for side in ("rules", "sealed")}
    assert min(map(len, sides.values())) > 40
    assert not sides["rules"] & sides["sealed"]


def test_undetermined_is_wrong_and_too_few_do_not_hold() -> None:
    row = {
        "kind": "rare_success",
        "owner": "rl",
        "route": "rl",
        "log_route": "data",
        "cause": "rare_success",
        "log_cause": "coverage",
        "cost": {},
        "seconds": 1.0,
        "code": "0123456789ab",
    }
    assert planted.summary([row] * 130)["holds"] is False  # not 20 of each route
    every = [{**row, "owner": r.value, "route": r.value} for r in planted.ROUTES for _ in range(20)]
    assert planted.summary(every)["holds"] is True
    assert planted.summary([*every[:-3], *({**one, "route": "undetermined"} for one in every[-3:])])["holds"] is False
    blamed = [*every[:-1], {**every[-1], "route": "sft"}]
    assert every[-1]["owner"] == "infrastructure" or planted.summary(blamed)["holds"] is True

"""What a bucket of noise asks for is written under its profile, and everything else without."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.planted_faults import Site, World, made, repairs
from schemas.bucket import Material, Route
from schemas.task import Split
from schemas.trajectory import Noise
from stages.demonstrations import demonstrate
from stages.equipment import equip
from stages.tasks import load_tasks


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, warehouse: Path) -> World:
    site = Site(tmp_path_factory.mktemp("noisy"), warehouse, "rules", 100, 4)
    tasks = repairs(site, 4, 2)
    return World(made(site, "loop", tasks, noise={"flaky": {"timeout": 1.0}}), tasks)


@pytest.mark.parametrize("name", ["flaky", "forgotten"])
def test_gold_stands_by_what_noise_says_failed(world: World, name: str) -> None:
    """A profile that the spec no longer declares leaves the tools clean."""
    tasks = load_tasks(world.ctx)
    families = sorted({task.family for task in tasks if task.split is Split.TRAIN})[:2]
    more = {"bucket": "0" * 12, "route": Route.SFT, "amount": 2, "approved": True}
    asked = [
        Material(kind="demonstrations", family=family, noise=noise, **more)  # type: ignore[arg-type]
        for family, noise in zip(families, (name, None), strict=True)
    ]
    goal = world.goal.model_copy(update={"material": asked})
    with equip(world.ctx, goal) as bench:
        found = demonstrate(world.ctx, bench, goal, tasks, None)["backflow"]
    profile = Noise(timeout=1.0) if name == "flaky" else None
    assert {(a.trajectory.family, a.trajectory.noise) for a in found} == {(families[0], profile), (families[1], None)}
    for attempt in found:
        texts = [turn.text for turn in attempt.trajectory.turns]
        assert attempt.verdict.passed
        assert len(texts) == (2 if attempt.trajectory.noise else 1)
        assert len(set(texts)) == 1

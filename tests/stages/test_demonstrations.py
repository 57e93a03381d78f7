"""What demonstrations are written under, and what they were selected from."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.planted_faults import Site, World, made, repairs
from schemas.bucket import Material, Route
from schemas.task import Split
from schemas.trajectory import Noise
from stages.attempts import read_attempts
from stages.demonstrations import demonstrate
from stages.equipment import equip
from stages.recall import Recall
from stages.recorded import recorded
from stages.replay import replay
from stages.rescore import Judging, rescore
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
        found = demonstrate(world.ctx, bench, goal, tasks, None)[0]["backflow"]
    profile = Noise(timeout=1.0) if name == "flaky" else None
    assert {(a.trajectory.family, a.trajectory.noise) for a in found} == {(families[0], profile), (families[1], None)}
    for attempt in found:
        texts = [turn.text for turn in attempt.trajectory.turns]
        assert attempt.verdict.passed
        assert len(texts) == (2 if attempt.trajectory.noise else 1)
        assert len(set(texts)) == 1


def test_what_a_selection_was_made_from_is_kept_and_all_of_it_can_be_sampled_again(
    tmp_path: Path, warehouse: Path
) -> None:
    """Else another verifier, which would select otherwise, is said to judge alike."""
    site = Site(tmp_path, warehouse, "rules", 100, 4)
    asked = {"gold": {"repair": 2}, "rejection_samples": 4, "rejection_tasks": 2}
    policy = {"engine": "scripted:mixed@0.5"}
    ctx = made(site, "loop", repairs(site, 6, 2), sampling=policy, data={"demonstrations": asked})
    data = ctx.record("data")
    seen = read_attempts(ctx.workspace.open_artifact(data.artifacts["attempts"]) / "attempts.parquet")
    assert len(seen) == 8
    assert 0 < data.demonstrations["rejection"] < sum(bool(one.verdict.passed) for one in seen) < 8
    rows = recorded(ctx.workspace)
    assert {row.attempt.trajectory.id for row in rows} >= {one.trajectory.id for one in seen}
    assert len(rows) == 8 + data.demonstrations["gold"]
    assert [answer.same for answer in replay(ctx.workspace, warehouse, rows, "regenerate")] == [True] * len(rows)
    with ctx.workspace.lock():
        rules = ctx.record("goal").spec.rewards.model_copy(update={"outcome": 0.5})
        told = rescore(ctx.workspace, warehouse, Judging({}, rules), [1])
    assert Recall(ctx.workspace).flipped_in(data) == len(told.flips) > data.demonstrations["rejection"]

"""What demonstrations are written under, and what they were selected from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.planted_faults import Site, Told, World, made, repairs
from evals.expectations import check_table, demonstrations_frame
from schemas.bucket import Material, Route
from schemas.task import Split, Task
from schemas.trajectory import Noise
from stages.attempts import read_attempts
from stages.context import Context
from stages.data import inputs as data_inputs
from stages.demonstrations import demonstrate, row_of
from stages.equipment import Equipment, equip
from stages.hints import hint_of
from stages.recall import Recall
from stages.recorded import recorded
from stages.replay import course, forced, replay
from stages.rescore import Judging, rescore
from stages.rollout import RolloutRequest, rollout
from stages.samplers import SampleRequest
from stages.samplers.recorded_sampler import RecordedSampler
from stages.samplers.scripted_sampler import fenced
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


class Hears(Equipment):
    """Its policy passes where it is told the place, and every third time it says what it was told."""

    def sampler(self, checkpoint: Path, tasks: Mapping[str, Task] | None = None) -> Told:
        def says(task: Task, request: SampleRequest) -> str:
            hint = hint_of(task)
            if hint is None or f"Hint: {hint}" not in request.text:
                return fenced(task, task.wrong, 0)
            said = f"Told to {hint}:\n" if request.seed % 3 == 0 else ""
            return said + fenced(task, task.gold, 0)

        return Told(checkpoint, dict(tasks or {}), says)


def test_what_passes_with_a_hint_is_shown_as_if_it_had_none_and_gold_fills_up(world: World) -> None:
    tasks = load_tasks(world.ctx)
    training = {task.id: task for task in tasks if task.split is Split.TRAIN}
    family = Counter(task.family for task in training.values()).most_common(1)[0][0]
    asked = asked_hints(family, 6)
    goal = world.goal.model_copy(update={"material": [asked]})
    with equip(world.ctx, goal) as bench:
        kept, seen, _ = demonstrate(world.ctx, Hears(**vars(bench)), goal, tasks, None)
        by_cause = asked.model_copy(update={"cause": "protocol"})
        other, *_ = demonstrate(world.ctx, bench, goal.model_copy(update={"material": [by_cause]}), tasks, None)
        again = [forced({t.digest(): t for t in tasks}, a.trajectory) for a in kept["hinted"]]
        replayed, _ = rollout(RecordedSampler(), bench.harness, bench.runner, again, bench.setting())
    parents = {attempt.trajectory.id: attempt.trajectory for attempt in seen}
    rows = [row_of(source, attempt) for source in ("hinted", "backflow") for attempt in kept[source]]
    assert (len(other["hinted"]), len(other["backflow"])) == (0, 6)
    assert len({row["task_id"] for row in rows}) == len(rows) == 6
    assert 0 < len(kept["hinted"]) <= 6
    assert check_table("demonstrations", demonstrations_frame(rows))["success"]
    for attempt, now in zip(kept["hinted"], replayed, strict=True):
        trajectory, task = attempt.trajectory, training[attempt.trajectory.task_id]
        hint, told = hint_of(task), parents[attempt.trajectory.parent or ""]
        assert (attempt.verdict.passed, trajectory.hint, told.hint, task.family) == (True, None, hint, family)
        assert [turn.text for turn in trajectory.turns] == [turn.text for turn in told.turns]
        assert "hint" not in json.dumps(trajectory.conversation()).lower()
        assert hint is not None
        assert hint not in json.dumps(trajectory.conversation())
        assert f"Hint: {hint}" in told.turns[0].rendered
        assert trajectory.turns[0].rendered == told.turns[0].rendered.replace(f"\nHint: {hint}", "")
        assert len(trajectory.turns[0].prompt_ids) < len(told.turns[0].prompt_ids)
        assert course(trajectory, now, ()) is None


@pytest.mark.parametrize(("cause", "asked"), [("needs_hint", True), ("protocol", False)])
def test_data_depends_on_the_start_policy_where_it_asks_it_for_attempts(world: World, cause: str, asked: bool) -> None:
    """Else another champion to start from would find the demonstrations of the last one under its key."""
    item = Material(
        kind="demonstrations", bucket="0" * 12, route=Route.SFT, family="f", cause=cause, amount=1, approved=True
    )
    spec = world.goal.spec
    shown = spec.data.demonstrations.model_copy(update={"rejection_samples": 0})
    data = spec.data.model_copy(update={"demonstrations": shown})
    goal = world.goal.model_copy(update={"material": [item], "spec": spec.model_copy(update={"data": data})})

    class Handed(Context):
        def record(self, stage: Any, round: int | None = None) -> Any:
            return goal if stage == "goal" else super().record(stage, round)

    ctx = Handed(world.ctx.workspace, 1, goal.spec, world.ctx.cache)
    assert ("start" in data_inputs(ctx)[1]) is asked


def asked_hints(family: str, amount: int) -> Material:
    return Material(
        kind="demonstrations", bucket="0" * 12, route=Route.SFT, family=family, cause="needs_hint", amount=amount,
        approved=True,
    )  # fmt: skip


def test_who_says_what_it_was_told_is_no_demonstration(world: World) -> None:
    """Every attempt does: gold is all that is left."""
    tasks = load_tasks(world.ctx)
    family = next(task.family for task in tasks if task.split is Split.TRAIN)
    asked = asked_hints(family, 2)
    goal = world.goal.model_copy(update={"material": [asked]})

    class Repeats(Hears):
        def requests(self, *args: Any, **more: Any) -> list[RolloutRequest]:
            return [replace(one, seed=one.seed // 3 * 3) for one in super().requests(*args, **more)]

    with equip(world.ctx, goal) as bench:
        kept, seen, _ = demonstrate(world.ctx, Repeats(**vars(bench)), goal, tasks, None)
    assert (len(kept["hinted"]), len(kept["backflow"])) == (0, 2)
    assert sum(bool(a.trajectory.hint and a.verdict.passed) for a in seen) == 2


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

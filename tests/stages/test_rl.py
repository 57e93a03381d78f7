"""Which tasks RL draws, which groups carry a gradient, and which attempts make a preference pair."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.planted_faults import Site, repairs
from bench.planted_faults import made as built
from schemas.task import Split
from schemas.trajectory import Attempt, Purpose
from stages import rl
from stages.checkpoints import trained_folder
from stages.equipment import equip
from stages.rl import FLOOR, TaskStream, curriculum, mixed, preferences
from tests.small import attempt
from tests.small import task as make


def _attempt(name: str, reward: float | None, text: str) -> Any:
    trajectory = SimpleNamespace(id=name, conversation=lambda: [{"role": "assistant", "content": text}])
    return SimpleNamespace(trajectory=trajectory, reward=SimpleNamespace(value=reward))


def _tasks(families: list[str]) -> Any:
    return [SimpleNamespace(id=f"{family}/{i}", family=family) for i, family in enumerate(families)]


def test_a_pass_over_the_tasks_is_complete_before_any_comes_again() -> None:
    stream = TaskStream(_tasks(["a"] * 10), {}, seed=0)
    taken = [task.id for task in stream.take(10)]
    assert len(set(taken)) == 10
    assert len({task.id for task in stream.take(10)}) == 10


def test_the_stream_is_the_same_for_a_seed_and_another_for_another() -> None:
    first, same, other = (TaskStream(_tasks(["a"] * 20), {}, seed).take(20) for seed in (0, 0, 1))
    assert [t.id for t in first] == [t.id for t in same]
    assert [t.id for t in first] != [t.id for t in other]


def test_a_weighted_family_comes_first_more_often() -> None:
    drawn: Counter[str] = Counter()
    for seed in range(200):
        drawn.update(task.family for task in TaskStream(_tasks(["a", "b"] * 10), {"b": 4.0}, seed).take(5))
    assert drawn["b"] > 2 * drawn["a"]


def test_only_a_group_with_different_rewards_is_mixed_and_errors_do_not_count() -> None:
    assert mixed([_attempt("1", 0.0, "x"), _attempt("2", 1.0, "y")])
    assert not mixed([_attempt("1", 0.0, "x"), _attempt("2", 0.0, "y"), _attempt("3", None, "z")])


def test_pairs_are_of_different_rewards_and_of_different_texts() -> None:
    group = [
        _attempt("1", 1.0, "good"),
        _attempt("2", 1.0, "good"),
        _attempt("3", 0.0, "bad"),
        _attempt("4", None, "lost"),
    ]
    assert [(a.trajectory.id, b.trajectory.id) for a, b in preferences(group)] == [("1", "3")]
    assert preferences([_attempt("1", 0.2, "a"), _attempt("2", 0.2, "b")]) == []


# --- the curriculum


def _rolled(task: str, step: int, *rewards: float | None) -> list[Attempt]:
    """One group of a step's policy."""
    of = make(task, split=Split.TRAIN)
    made = [attempt(of, 10 * step + n, bool(r), reward=r) for n, r in enumerate(rewards)]
    return [
        one.model_copy(
            update={
                "trajectory": one.trajectory.model_copy(
                    update={
                        "purpose": Purpose.RL,
                        "turns": [turn.model_copy(update={"policy_version": step}) for turn in one.trajectory.turns],
                    }
                )
            }
        )
        for one in made
    ]


def test_tasks_that_gave_no_gradient_are_drawn_less_within_their_family() -> None:
    tasks = [make(name, split=Split.TRAIN) for name in ("wrong", "right", "mixed", "half", "fresh")]
    attempts = [
        *_rolled("wrong", 1, 0.0, 0.0), *_rolled("wrong", 2, 0.0, 0.0), *_rolled("right", 1, 1.0, 1.0),
        *_rolled("mixed", 1, 0.0, 1.0), *_rolled("half", 1, 0.0, 1.0), *_rolled("half", 2, 0.0, 0.0),
    ]  # fmt: skip
    found = {name.split("/")[1]: value for name, value in curriculum(attempts, tasks, ["repair.value"]).items()}
    assert found["wrong"] == found["right"] == pytest.approx(FLOOR * found["mixed"])
    assert found["half"] == pytest.approx(0.5 * found["mixed"])
    assert found["fresh"] == found["mixed"], "a task without a group counts as mixed"
    assert sum(found.values()) / len(found) == pytest.approx(1.0), "the family keeps the weight that backflow gave it"


def test_a_group_is_of_one_policy_and_families_without_weight_have_no_curriculum() -> None:
    """Rewards 0 at one step and 1 at the next are two flat groups, not a mixed one."""
    tasks = [make(name, split=Split.TRAIN) for name in ("a", "b")]
    attempts = [*_rolled("a", 1, 0.0, 0.0), *_rolled("a", 2, 1.0, 1.0), *_rolled("b", 1, 0.0, 1.0, None)]
    found = curriculum(attempts, tasks, ["repair.value"])
    assert found["repair/a/arith_1"] == pytest.approx(FLOOR * found["repair/b/arith_1"])
    assert curriculum(attempts, tasks, []) == {}
    assert curriculum([], tasks, ["repair.value"]) == {"repair/a/arith_1": 1.0, "repair/b/arith_1": 1.0}


def test_the_stream_draws_by_factors_within_a_family() -> None:
    drawn: Counter[str] = Counter()
    for seed in range(200):
        tasks = _tasks(["a"] * 10)
        drawn.update(task.id for task in TaskStream(tasks, {}, seed, {"a/0": 0.1, "a/1": 4.0}).take(3))
    assert drawn["a/1"] > 3 * drawn["a/0"]


# --- noise


def test_headroom_and_groups_are_rolled_out_under_the_profile_that_rl_names(tmp_path: Path, warehouse: Path) -> None:
    site = Site(tmp_path, warehouse, "rules", 100, 1)
    noise = {"flaky": {"timeout": 0.5, "lose": 0.5}}  # every result is hit
    policy = {"engine": "scripted:shaken"}  # it runs tests of its own
    ctx = built(site, "loop", repairs(site, 2, 1), until="sft", sampling=policy, noise=noise, rl={"noise": "flaky"})
    goal = ctx.record("goal")
    with equip(ctx, goal) as bench:
        start = trained_folder(ctx, ctx.record("sft"))
        headroom = rl._headroom(ctx, goal, bench, start)
        (group,) = rl.sample_groups(bench, bench.sampler(start), rl.training_tasks(ctx, goal)[:1], 4, "a step")
    assert {one.trajectory.noise for one in (*headroom, *group)} == {goal.spec.noise["flaky"]}
    assert all(one.trajectory.hits() for one in (*headroom, *group))
    sections, _ = rl.inputs(ctx)
    assert sections["noise"] == {"flaky": goal.spec.noise["flaky"].model_dump(mode="json")}

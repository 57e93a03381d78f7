"""Which tasks RL draws, which groups carry a gradient, and which attempts make a preference pair."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from stages.rl import TaskStream, mixed, preferences


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

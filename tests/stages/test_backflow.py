"""Dev tasks are attempted so that a bucket chosen on one half can be measured on the other."""

from __future__ import annotations

from collections import Counter

import pytest

from environments.sources import default
from evals.suites import halves
from schemas.data import SourceSpec
from schemas.task import Split, Task
from stages.backflow import sampled
from stages.tasks import select


@pytest.fixture(scope="module")
def parts() -> tuple[list[Task], list[Task]]:
    pool = [task for tasks in default.tasks_of(0).values() for task in tasks]
    sources = [SourceSpec(skill="repair", dev=40), SourceSpec(skill="lookup", dev=16)]
    return halves([task for task in select(pool, sources, 0) if task.split is Split.DEV])


def test_both_halves_attempt_the_same_families_first(parts: tuple[list[Task], list[Task]]) -> None:
    chosen = sampled(parts, 16, seed=0)
    by_half = [[task for task in chosen if task in part] for part in parts]
    assert [len(half) for half in by_half] == [16, 16]
    first, second = (Counter(task.family for task in half) for half in by_half)
    shared = {task.family for task in parts[0]} & {task.family for task in parts[1]}
    assert set(first) == set(second) == shared


def test_the_choice_is_of_the_seed_alone_and_never_more_than_there_is(parts: tuple[list[Task], list[Task]]) -> None:
    assert sampled(parts, 10, 0) == sampled([list(reversed(part)) for part in parts], 10, 0)
    assert len(sampled(parts, 1000, 0)) == sum(len(part) for part in parts)

"""Dev tasks are attempted so that a bucket chosen on one half can be measured on the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from environments.sources import default
from evals.buckets import Half, build, compare
from evals.evidence import collect
from evals.rules import load_rules
from evals.suites import halves
from schemas.data import SourceSpec
from schemas.task import Split, Task
from schemas.trajectory import Attempt
from stages.attribute import NEAR, contaminated, likened
from stages.backflow import _covered, sampled
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


def test_new_tasks_of_a_family_do_not_empty_its_bucket_by_definition(
    make_task: Callable[..., Task], make_attempt: Callable[..., Attempt]
) -> None:
    """Too little coverage, then thirty origins more, and every attempt fails as before: nothing shrank."""
    tasks = {t.id: t for t in (make_task(f"f{i}", "arith_1", "repair.value") for i in range(80))}
    attempts = [make_attempt(task, n) for task in tasks.values() for n in range(2)]
    then, now = (Half.of(attempts, tasks, {"repair.value": n}) for n in (0, 30))
    rules = load_rules()
    buckets = build(then, then, rules)
    (naive,), (found,) = compare(buckets, then, now, rules), compare(buckets, then, _covered(now, {}), rules)
    assert (buckets[0].cause, naive.verdict) == ("coverage", "shrank")
    assert (found.after.value, found.verdict) == (1.0, "unchanged")


def test_failures_are_likened_to_training_as_copies_are_found(
    make_task: Callable[..., Task], make_attempt: Callable[..., Attempt]
) -> None:
    """A copy, another function, and a training task, which measures nothing."""
    body = "".join(f"    total_{n} = total_{n - 1} + values[{n}] * {n}\n" for n in range(1, 9))
    code = {name: {"solution.py": f"def {name}(values):\n{body}"} for name in ("whole", "thief")}
    whole = make_task("whole", files={}, gold=code["whole"])
    other = make_task("other", statement="Say which words come twice.", gold={"solution.py": "return sorted(words)\n"})
    thief = make_task("thief", files={}, gold=code["thief"], split=Split.TRAIN)
    tasks = [whole, other, thief]
    known = {task.id: task for task in tasks}
    attempts = [make_attempt(task, n) for task in tasks for n in range(2)]
    found = collect(attempts, known, {}, contaminated=contaminated(tasks))
    said = {one.task_id: one for one in likened(found, tasks)}
    assert contaminated(tasks) == {whole.id}
    assert {name for name, one in said.items() if (one.similarity or 0.0) >= NEAR} == {whole.id}
    assert said[whole.id].nearest_task == thief.id
    assert said[other.id].similarity is not None
    assert (said[thief.id].similarity, said[thief.id].nearest_task) == (None, None)
    facts = {"similarity": None, "nearest_task": None}
    assert [one.model_copy(update=facts) for one in likened(found, tasks)] == found, "and nothing else is another"

from __future__ import annotations

import pytest

from evals.suites import choose, halves, select
from schemas.evaluation import SuiteSpec
from schemas.task import Split


@pytest.fixture
def pool(make_task):
    """20 origins with 3 tasks each in held_out, 4 in dev, and another skill."""
    held_out = [make_task(f"f{i}", f"arith_{j}", split=Split.HELD_OUT) for i in range(20) for j in range(3)]
    dev = [make_task(f"g{i}", "arith_1") for i in range(4)]
    other = [make_task(f"h{i}", "sum_1", "lookup.sum", split=Split.HELD_OUT) for i in range(5)]
    return held_out + dev + other


def test_a_suite_takes_its_split_and_skills(pool):
    everything = select(pool, SuiteSpec(name="held_out", split=Split.HELD_OUT), seed=0)
    assert len(everything) == 65
    lookups = select(pool, SuiteSpec(name="lookups", split=Split.HELD_OUT, skills=["lookup"]), seed=0)
    assert {task.skill for task in lookups} == {"lookup"}
    assert [task.id for task in everything] == sorted(task.id for task in everything)


def test_every_origin_gives_one_task_before_any_gives_a_second(pool):
    suite = SuiteSpec(name="s", split=Split.HELD_OUT, skills=["repair"], tasks=20)
    assert len({task.origin for task in select(pool, suite, seed=0)}) == 20
    more = select(pool, suite.model_copy(update={"tasks": 25}), seed=0)
    assert len({task.origin for task in more}) == 20


def test_the_choice_depends_on_the_seed_and_not_on_the_order(pool):
    suite = SuiteSpec(name="s", split=Split.HELD_OUT, tasks=10)
    chosen = select(pool, suite, seed=0)
    assert chosen == select(pool[::-1], suite, seed=0)
    assert chosen != select(pool, suite, seed=1)
    assert len(chosen) == 10


def test_a_larger_choice_contains_the_smaller(pool):
    small, large = choose(pool, count=10, seed=3), choose(pool, count=30, seed=3)
    assert {t.id for t in small} <= {t.id for t in large}


def test_halves_split_by_origin_and_lose_nothing(pool):
    choosing, measuring = halves(pool)
    assert not {t.origin for t in choosing} & {t.origin for t in measuring}
    assert sorted(t.id for t in choosing + measuring) == sorted(t.id for t in pool)
    assert 0.25 < len(choosing) / len(pool) < 0.75


def test_an_origin_never_changes_its_half_when_others_come_or_go(pool):
    choosing, _ = halves(pool)
    fewer, _ = halves(pool[:45])
    assert {t.id for t in fewer} == {t.id for t in choosing} & {t.id for t in pool[:45]}


def test_two_origins_never_share_a_half(make_task):
    for i in range(20):
        first, second = halves([make_task(f"a{i}"), make_task(f"b{i}")])
        assert len(first) == len(second) == 1
    assert len(halves([make_task("alone")])[0] + halves([make_task("alone")])[1]) == 1

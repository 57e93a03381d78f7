"""A sample of the planted faults, on the side that the rules were written with: each given to its owner."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench import planted
from bench import planted_faults as faults
from bench.planted_faults import Site, altered, by_chance, made, questions, repairs, side_of
from environments.bundles import Bundle
from environments.sources.instruction import instruction_tasks, reserved_questions
from environments.sources.library import every_function
from environments.sources.lookup import origins, reserved_origins
from schemas.goal import GoalRecord
from schemas.task import Split
from schemas.trajectory import Purpose
from schemas.verdict import Status
from stages.equipment import equip

SAMPLE = ("noisy_tool", "wrong_suite", "killed_harness", "truncated_context", "full_disk")


@pytest.mark.parametrize("kind", SAMPLE)
def test_a_planted_fault_is_given_to_its_owner(
    kind: str, tmp_path: Path, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, _, worlds = planted.KINDS[kind]
    monkeypatch.setattr(planted, "KINDS", {kind: (owner, 2, worlds)})
    rows = planted.run_kind(Site(tmp_path, warehouse, "rules", 100, 2), kind)
    assert len(rows) == 2
    assert [row["route"] for row in rows] == [owner.value] * 2, rows


def test_a_flaky_test_fails_the_known_solution_too_and_by_chance_alone(tmp_path: Path, warehouse: Path) -> None:
    site = Site(tmp_path, warehouse, "rules", 100, 1)
    train, *_, dev = repairs(site, 1, 1)
    task = by_chance(dev)
    ctx = made(site, "loop", [train, task], until="goal")
    goal = ctx.record("goal")
    assert isinstance(goal, GoalRecord)
    seen = {}
    with equip(ctx, goal) as bench:
        for repeat in range(1, 60):
            [verdict] = bench.verifier.judge_many([(task, task.gold)], repeat=repeat)
            assert verdict.status is Status.SCORED, verdict.reason
            seen[verdict.passed] = {check.name: check.passed for check in verdict.checks}
            if len(seen) == 2:
                break
        [start] = bench.verifier.judge_many([(task, {})])
    sure, drawn = task.f2p[0], task.p2p[0]
    assert seen == {True: {sure: True, drawn: True}, False: {sure: True, drawn: False}}
    assert start.passed is False


def test_what_is_cut_is_all_that_is_wrong_with_the_truncated_context(tmp_path: Path, warehouse: Path) -> None:
    """The same policy passes the same tasks where the harness shows the whole file."""
    [world] = faults.truncated_context(Site(tmp_path, warehouse, "rules", 100, 3))
    altered("tools", ("main.py", "MAX_OBSERVATION = 600", "MAX_OBSERVATION = 60000"), name="roomy")(tmp_path / "roomy")
    verdicts = {}
    with Bundle(tmp_path / "roomy") as roomy, equip(world.ctx, world.goal) as cutting:
        for name, bench in (("cut", cutting), ("whole", replace(cutting, harness=roomy))):
            sampler = world.sampler(bench)
            asked = bench.requests(world.tried()[:4], 1, Purpose.ATTRIBUTION, sampler.policy)
            attempts = bench.attempt(sampler, asked)
            verdicts[name] = [attempt.verdict.passed for attempt in attempts]
            cut = [any(turn.observation_truncated for turn in attempt.trajectory.turns) for attempt in attempts]
            assert set(cut) == {name == "cut"}
    assert verdicts == {"cut": [False] * 4, "whole": [True] * 4}


def test_a_full_disk_breaks_the_attempts_that_find_it_full_and_no_other(tmp_path: Path, warehouse: Path) -> None:
    for world in faults.full_disk(Site(tmp_path, warehouse, "rules", 100, 4)):
        assert world.around is not None
        with equip(world.ctx, world.goal) as bench:
            sampler = world.sampler(bench)
            asked = bench.requests(world.tried(), 1, Purpose.ATTRIBUTION, sampler.policy)
            with world.around(bench):
                attempts = bench.attempt(sampler, asked)
            again = bench.attempt(sampler, asked)
        lost = [attempt for attempt in attempts if attempt.verdict.status is Status.ERROR]
        assert 0 < len(lost) < len(attempts)
        assert all("No space left on device" in str(attempt.verdict.reason) for attempt in lost)
        assert all(attempt.verdict.passed for attempt in attempts if attempt not in lost)
        assert all(attempt.verdict.passed for attempt in again)


def test_the_three_sides_share_no_base_function_and_no_question(tmp_path: Path) -> None:
    sites = [Site(tmp_path, tmp_path, side, first, 1) for side, first in planted.SEEDS.items()]
    plain = [[task.origin for task in site.plain()] for site in sites]
    for drawn, least, every in (
        ([site.names(1000) for site in sites], 60, len(every_function())),
        ([site.questions(1000) for site in sites], 60, len(origins()) + len(reserved_origins())),
        (plain, 40, len(instruction_tasks()) + len(reserved_questions())),
    ):
        assert min(map(len, drawn)) >= least
        assert len({name for names in drawn for name in names}) == sum(map(len, drawn)) == every
    assert sites[-1].side == side_of(reserved_origins()[0]) == "reserved"


@pytest.mark.parametrize("side", planted.SEEDS)
def test_each_side_has_what_the_largest_kinds_draw(side: str, tmp_path: Path) -> None:
    """On a seed that no run takes, so that what a run will draw stays unseen."""
    site = Site(tmp_path, tmp_path, side, 1, 1)
    assert len(site.names(53)) == 53  # 12 and 40, and one that nothing is about
    pool = repairs(site, 8, 16, per_function=3)
    assert sum(task.split is Split.TRAIN and task.family == "repair.value" for task in pool) >= 8
    assert len({task.origin for task in pool if task.split is Split.DEV and task.family == "repair.step"}) >= 8
    for family in ("calc.", "lookup."):
        asked = questions(site, 3, 12, family)
        assert Counter(task.split for task in asked) == {Split.TRAIN: 3, Split.DEV: 12}
    assert {task.split for task in site.plain()} == {Split.RETENTION}


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


def test_every_route_has_its_twenty_and_every_kind_a_cause() -> None:
    counts = {
        route: sum(many for owner, many, _ in planted.KINDS.values() if owner is route) for route in planted.ROUTES
    }
    assert min(counts.values()) >= 20
    assert sum(counts.values()) >= 122
    assert planted.CAUSES.keys() == planted.KINDS.keys()

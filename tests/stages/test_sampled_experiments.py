"""What a policy's further attempts decide: with a hint, from a prefix, under another harness; and when the budget forbids them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.planted_faults import Decided, Site, World, decided, made, repairs, stumbled
from evals.evidence import collect
from evals.rules import load_rules
from schemas.attribution import Attribution, AttributionSpec
from schemas.bucket import Route
from schemas.task import Split
from schemas.trajectory import Attempt, Purpose
from stages.attribute import climb, lineage, open_lab
from stages.equipment import equip
from stages.tasks import load_tasks, trained_origins

RULES = load_rules()


def site_at(folder: Path, cache: Path) -> Site:
    folder.mkdir(exist_ok=True)
    return Site(folder, cache, "rules", 100, 2)


def said_of(folder: Path, cache: Path, policy: str, owner: Route = Route.SFT, **changes: object) -> list[Attribution]:
    """The ladder's word on two failures of a scripted policy, with eight functions to train on and two to measure."""
    site = site_at(folder, cache)
    tasks = repairs(site, 8, 2)
    ctx = made(site, "loop", tasks, sampling={"engine": f"scripted:{policy}"}, **changes)
    return attributions(decided(World(ctx, tasks), policy, owner, 2))


def attributions(found: list[Decided]) -> list[Attribution]:
    return [one.attribution for one in found]


def attempts_of(one: Attribution, name: str) -> int:
    return sum(experiment.attempts for experiment in one.experiments if experiment.name == name)


def test_a_policy_that_passes_only_when_told_the_place_needs_demonstrations(tmp_path: Path, warehouse: Path) -> None:
    found = said_of(tmp_path, warehouse, "hinted")
    assert len(found) == 2
    for one in found:
        assert (one.rule, one.route) == ("passes_with_a_hint", Route.SFT)
        assert (one.evidence.task_passes, one.evidence.hinted_passes) == (0, 4)
        assert attempts_of(one, "hint") == 4
        assert not one.undecided


def test_a_policy_that_no_hint_helps_is_not_said_to_need_one(tmp_path: Path, warehouse: Path) -> None:
    other = {"attribution": {"harnesses": ["tools"]}}
    found = said_of(tmp_path, warehouse, "seldom@0", backflow=other)
    assert len(found) == 2
    for one in found:
        assert (one.rule, one.route) == ("family_never_solved", Route.DATA)
        assert (one.evidence.hinted_passes, one.evidence.harness_passes) == (0, 0)
        assert attempts_of(one, "hint") == attempts_of(one, "harness") == 4


def test_a_policy_that_is_right_in_another_protocol_learned_the_protocol(tmp_path: Path, warehouse: Path) -> None:
    found = said_of(tmp_path, warehouse, "drilled", backflow={"attribution": {"harnesses": ["fenced", "tools"]}})
    assert len(found) == 2
    for one in found:
        assert (one.rule, one.route) == ("only_under_another_harness", Route.SFT)
        assert (one.evidence.task_passes, one.evidence.harness_passes) == (0, 4)
        assert attempts_of(one, "harness") == 4  # its own harness is no other one
        assert not one.undecided


def test_without_another_harness_nobody_says_that_one_would_help(tmp_path: Path, warehouse: Path) -> None:
    found = said_of(tmp_path, warehouse, "drilled")
    assert len(found) == 2
    assert {one.rule for one in found} == {"family_never_solved"}
    assert {one.evidence.harness_passes for one in found} == {None}


def test_a_policy_that_passes_from_a_good_beginning_can_but_seldom(tmp_path: Path, warehouse: Path) -> None:
    site = site_at(tmp_path, warehouse)
    tasks = repairs(site, 8, 12, per_function=2)
    policy = {"engine": "scripted:begins@0.1"}
    ctx = made(site, "loop", tasks, harness="tools", sampling=policy, budgets={"max_turns": 5})
    world = World(ctx, tasks, samples=8, only=stumbled)
    found = attributions(decided(world, "good_prefix", Route.RL, 2))
    assert len(found) == 2
    for one in found:
        assert (one.rule, one.route) == ("passes_from_a_prefix", Route.RL)
        assert one.evidence.first_bad_turn == 1
        assert one.evidence.task_passes == 0
        assert one.evidence.prefix_passes is not None
        assert one.evidence.prefix_passes >= 2
        assert attempts_of(one, "prefix") == 4


# --- the budget of CPU-seconds


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, warehouse: Path) -> World:
    site = site_at(tmp_path_factory.mktemp("budget"), warehouse)
    tasks = repairs(site, 8, 2)
    return World(made(site, "loop", tasks, sampling={"engine": "scripted:hinted"}), tasks)


def climbed(world: World, **spec: object) -> list[Attribution]:
    tasks = load_tasks(world.ctx)
    with equip(world.ctx, world.goal) as bench:
        known = {task.id: task for task in tasks}
        sampler = bench.sampler(lineage(world.ctx, world.goal)[0].folder(), known)
        dev = [task for task in tasks if task.split is Split.DEV]
        attempts: list[Attempt] = bench.attempt(
            sampler, bench.requests(dev, 4, Purpose.ATTRIBUTION, sampler.policy), audit="all"
        )
        evidence = collect(attempts, known, trained_origins(tasks))
        with open_lab(world.ctx, bench, tasks, attempts, setting=bench.setting()) as lab:
            lab.spec = AttributionSpec(**spec)  # type: ignore[arg-type]
            return climb(lab, attempts, evidence, RULES)


def test_beyond_its_cpu_seconds_nothing_is_begun_and_what_was_left_open_is_named(world: World) -> None:
    for one in climbed(world, cpu_s=1e-9):
        assert one.experiments == []
        assert {"rescore", "gold", "replay", "hint"} <= set(one.undecided)
        assert one.rule == "family_never_solved"  # what the log alone says


def test_with_cpu_seconds_to_spare_the_answer_is_that_without_a_limit(world: World) -> None:
    assert climbed(world, cpu_s=1e6) == (free := climbed(world))
    assert {one.rule for one in free} == {"passes_with_a_hint"}


def test_an_experiment_that_is_under_way_is_ended_and_the_next_is_not_begun(world: World) -> None:
    """What is judged forty times takes more than these seconds; what came before it does not."""
    found = climbed(world, cpu_s=0.5, repeats=40)
    assert found
    for one in found:
        assert [experiment.name for experiment in one.experiments] == ["rescore"]
        assert "hint" in one.undecided

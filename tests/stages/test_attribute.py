"""The ladder: cheap rungs first, what is asked for and no more, within its budget, and an answer for every failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.planted_faults import Site, World, made, repairs
from evals.evidence import collect
from evals.rules import decide, load_rules
from schemas.attribution import AttributionSpec, Rung
from schemas.errors import SandboxError
from schemas.task import Split
from schemas.trajectory import Attempt, Purpose
from stages.attribute import climb, costs, open_lab
from stages.equipment import equip
from stages.experiments import EXPERIMENTS, Lab, Policy
from stages.experiments.lab import Tried
from stages.experiments.swap import lost_at, weights_moved
from stages.hints import hint_of
from stages.tasks import load_tasks, trained_origins

RULES = load_rules()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, warehouse: Path) -> World:
    """Right in a quarter of the attempts, else plausibly wrong."""
    site = Site(tmp_path_factory.mktemp("ladder"), warehouse, "rules", 100, 4)
    tasks = repairs(site, 6, 4)
    return World(made(site, "loop", tasks, sampling={"engine": "scripted:seldom@0.25"}), tasks)


@contextmanager
def lab(
    world: World, samples: int = 4, noise: str | None = None, **spec: object
) -> Iterator[tuple[Lab, list[Attempt]]]:
    tasks = load_tasks(world.ctx)
    with equip(world.ctx, world.goal) as bench:
        sampler = bench.sampler(_base(world), {task.id: task for task in tasks})
        dev = [task for task in tasks if task.split is Split.DEV]
        attempts = bench.attempt(
            sampler, bench.requests(dev, samples, Purpose.ATTRIBUTION, sampler.policy, noise), audit="all"
        )
        with open_lab(world.ctx, bench, tasks, attempts, setting=bench.setting()) as opened:
            opened.spec = AttributionSpec(**spec)  # type: ignore[arg-type]
            yield opened, attempts


def _base(world: World) -> Path:
    from stages.attribute import lineage

    return lineage(world.ctx, world.goal)[0].folder()


def _evidence(world: World, attempts: list[Attempt]):
    tasks = load_tasks(world.ctx)
    return collect(attempts, {task.id: task for task in tasks}, trained_origins(tasks))


def test_what_the_log_and_cheap_rungs_decide_asks_no_policy(world: World) -> None:
    with lab(world, samples=8) as (opened, attempts):
        solved = {a.trajectory.task_id for a in attempts if a.verdict.passed}
        found = climb(opened, attempts, [e for e in _evidence(world, attempts) if e.task_id in solved], RULES)
    assert found
    assert {one.route.value for one in found} == {"rl"}
    assert all(experiment.rung in (Rung.L0, Rung.L1) for one in found for experiment in one.experiments)
    assert not any(one.undecided for one in found)
    spent = costs(found)
    assert spent["L2"].attempts == spent["L3"].attempts == 0
    assert spent["L0"].executions > 0


def test_the_budget_of_attempts_ends_it_and_what_was_left_open_is_named(world: World) -> None:
    with lab(world, samples=1, k=2, attempts=0) as (opened, attempts):
        found = climb(opened, attempts, _evidence(world, attempts), RULES)
    assert all(experiment.attempts == 0 for one in found for experiment in one.experiments)
    assert any("again" in one.undecided for one in found)
    with lab(world, samples=1, k=2, attempts=3) as (opened, attempts):
        found = climb(opened, attempts, _evidence(world, attempts), RULES)
    assert 0 < sum(experiment.attempts for one in found for experiment in one.experiments) <= 3


def test_only_the_sample_costs_attempts(world: World) -> None:
    with lab(world, samples=1, k=4, sample=1) as (opened, attempts):
        found = climb(opened, attempts, _evidence(world, attempts), RULES)
    asked = [one for one in found if any(experiment.attempts for experiment in one.experiments)]
    assert len(asked) == 1
    assert len(found) > 1


def test_the_failures_that_cost_attempts_are_looked_at_to_the_end(world: World) -> None:
    """Three more attempts and four with a hint are the most that one needs: what answers spare goes to the next ones."""
    with lab(world, samples=1, k=4, attempts=16) as (opened, attempts):
        opened.before = ()
        found = climb(opened, attempts, _evidence(world, attempts), RULES)
    asked = [one for one in found if any(experiment.attempts for experiment in one.experiments)]
    spent = sum(experiment.attempts for one in found for experiment in one.experiments)
    assert 2 <= len(asked) < len(found)
    assert not any(one.undecided for one in asked)
    assert all(one.undecided for one in found if one not in asked)
    assert 16 - 7 < spent <= 16


def test_what_a_task_shows_holds_for_all_its_failures(world: World) -> None:
    with lab(world, samples=3, k=4, sample=1) as (opened, attempts):
        evidence = _evidence(world, attempts)
        found = climb(opened, attempts, evidence, RULES)
    asked = {one.evidence.task_id for one in found if any(e.attempts for e in one.experiments)}
    assert len(asked) == 1
    [task] = asked
    own = [one for one in found if one.evidence.task_id == task]
    assert len(own) > 1
    assert not any(one.undecided for one in own)
    assert sum(any(e.attempts for e in one.experiments) for one in own) == 1  # the first one bears the cost


def test_the_same_failures_give_the_same_answer(world: World) -> None:
    answers = []
    for _ in range(2):
        with lab(world, samples=2, k=3) as (opened, attempts):
            answers.append(climb(opened, attempts, _evidence(world, attempts), RULES))
    assert answers[0] == answers[1]


def test_an_experiment_that_the_machine_breaks_costs_its_answer_and_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(lab: Lab, cases: object) -> None:
        raise SandboxError("bubblewrap: no more processes")

    monkeypatch.setitem(EXPERIMENTS, "replay", broken)  # type: ignore[arg-type]
    with lab(world, samples=2) as (opened, attempts):
        found = climb(opened, attempts, _evidence(world, attempts), RULES)
    for one in found:
        [said] = [experiment for experiment in one.experiments if experiment.name == "replay"]
        assert "no more processes" in str(said.impossible)
        assert one.evidence.replayed is None
        assert one.evidence.gold_passes is True


def test_a_hint_names_lines_and_never_what_stands_there(world: World) -> None:
    for task in world.tasks:
        hint = hint_of(task)
        assert hint is not None
        assert hint.startswith("look at line ")
        changed = set(task.gold["solution.py"].splitlines()) ^ set(task.files["solution.py"].splitlines())
        assert not any(line.strip() and line.strip() in hint for line in changed)


@pytest.fixture(scope="module")
def flaky(tmp_path_factory: pytest.TempPathFactory, warehouse: Path) -> World:
    """A policy that takes back what is right when its tests cannot be run, under tools of which most results are broken."""
    site = Site(tmp_path_factory.mktemp("flaky"), warehouse, "rules", 100, 4)
    tasks = repairs(site, 6, 4)
    noise = {"flaky": {"timeout": 0.3, "fail": 0.2, "lose": 0.2}}
    return World(made(site, "loop", tasks, sampling={"engine": "scripted:shaken"}, noise=noise), tasks)


def test_what_passes_only_without_noise_is_said_so_and_is_no_unstable_tool(flaky: World) -> None:
    with lab(flaky, noise="flaky") as (opened, attempts):
        failures = _evidence(flaky, attempts)
        found = climb(opened, attempts, failures, RULES)
    assert found
    assert all(one.evidence.noise_hits for one in found)
    assert {one.evidence.quiet_passes for one in found} == {4}
    rules = {one.evidence.task_passes: (one.rule, one.route.value) for one in found}
    assert min(rules) <= 1
    # Four passes of four are clearly more than one of four, and not than two.
    for passes, owner in rules.items():
        assert owner == (("only_without_noise", "sft") if passes <= 1 else ("task_seldom_solved", "rl")), passes
    assert {one.evidence.replayed for one in found} == {"same"}
    assert sum(e.attempts for one in found for e in one.experiments if e.name == "quiet") == 4 * len(
        {one.evidence.task_id for one in found}
    )
    assert {decide(one.model_copy(update={"measured": []}), RULES).id for one in failures}.isdisjoint(
        {"replay_is_unstable", "replay_drifts", "verdict_flips", "only_without_noise"}
    )


def test_the_same_policy_fails_nothing_where_the_tools_are_clean(flaky: World) -> None:
    with lab(flaky) as (opened, attempts):
        assert _evidence(flaky, attempts) == []
        assert opened.noise is None
    assert all(attempt.verdict.passed and not attempt.trajectory.hits() for attempt in attempts)


def tried(passes: int, parsed: int, of: int = 4) -> Tried:
    return Tried(passes, parsed, of, ())


@pytest.mark.parametrize(
    ("base", "sft", "rl", "lost"),
    [
        ((4, 4), (0, 4), (0, 4), "sft"),
        ((0, 0), (4, 4), (0, 4), "rl"),
        ((0, 0), (1, 4), (0, 0), "rl"),  # too few passes to tell, but it speaks no more
        ((0, 4), (0, 0), (0, 0), "sft"),
        ((2, 4), (0, 4), (0, 4), "never"),
        ((4, 4), (0, 4), (4, 4), "never"),  # it came back
        ((0, 0), (0, 4), (0, 4), "never"),
    ],
)
def test_the_stage_that_lost_it(base: tuple[int, int], sft: tuple[int, int], rl: tuple[int, int], lost: str) -> None:
    assert lost_at({"base": tried(*base), "sft": tried(*sft), "rl": tried(*rl)}) == lost


def test_weights_that_did_not_move(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    for name, scale in (("a", 1.0), ("same", 1.0), ("moved", 1.01)):
        (tmp_path / name).mkdir()
        save_file({"w": np.full((4, 4), scale, dtype=np.float32)}, tmp_path / name / "model.safetensors")
    assert weights_moved(tmp_path / "a", tmp_path / "same") == 0.0
    assert weights_moved(tmp_path / "a", tmp_path / "moved") == pytest.approx(0.01, rel=1e-3)
    (tmp_path / "other").mkdir()
    assert weights_moved(tmp_path / "a", tmp_path / "other") is None
    assert Policy("base", "0" * 64, lambda: tmp_path).stage == "base"

"""Material from failures to the next round's data on a real workspace, and nothing that measures gets through.

Round 3 is a training pool made by policies that fail on purpose; round 4 is a data stage that was handed everything hostile:
material that names evaluation tasks, families and rollouts, and a seed folder with copies of evaluation tasks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_loop import Finished

from evals.buckets import Half, build
from evals.rules import load_rules
from schemas.base import digest_of
from schemas.bucket import Material, Route
from schemas.data import DataRecord, SourceSpec
from schemas.goal import GoalRecord
from schemas.metrics import Decision
from schemas.record import Record
from schemas.rl import DpoPhase, RlRecord
from schemas.sft import SftRecord
from schemas.task import Split, Task
from schemas.trajectory import Attempt, Purpose
from stages import data as data_stage
from stages.artifacts import make_folder, pretty, store, write_durably
from stages.attempts import read_attempts, read_edges, write_attempts, write_edges
from stages.checkpoints import fetch_base
from stages.context import Context
from stages.demonstrations import _own, edge_of, read_demonstrations
from stages.equipment import Equipment, equip
from stages.leaks import find_leaks, leaks, of_attempts, of_messages
from stages.material import _successes, propose
from stages.pairs import load_pairs
from stages.prefixes import written
from stages.rl import _dpo, _Run
from stages.samplers import SampleRequest
from stages.samplers.scripted_sampler import ScriptedSampler
from stages.tasks import bucket_of, load_tasks, trained_origins
from stages.trainers.common import load
from stages.trainers.conversation import tokenize_conversation
from stages.treatment import treatments
from stages.workspace import Workspace

KEY = "0" * 64


class Halfway(ScriptedSampler):
    """Begins as gold does, then answers wrong: its first turn is good, its second is not."""

    def _answer(self, task: Task, request: SampleRequest) -> str:
        self.strategy = "gold" if request.turn == 0 else "wrong"
        return super()._answer(task, request)


@dataclass
class World:
    space: Workspace
    cache: Path
    goal: GoalRecord
    tasks: list[Task]
    pool: list[Attempt]  # of training tasks, purpose rl
    foreign: list[Attempt]  # of evaluation tasks: what must never be used

    def context(self, number: int) -> Context:
        return Context(self.space, number, self.goal.spec, self.cache)

    def of(self, split: Split, skill: str = "") -> list[Task]:
        return [task for task in self.tasks if task.split is split and task.skill.startswith(skill)]

    def leave(self, number: int, record: Record) -> None:
        """A record as a stage leaves it, without DVC and git, which nothing here asks."""
        make_folder(self.space.folder(number))
        write_durably(self.space.folder(number) / f"{record.stage}.json", pretty(record.model_dump(mode="json")))


def rolled(
    bench: Equipment, world: World, tasks: Sequence[Task], strategy: str, purpose: Purpose = Purpose.RL
) -> list[Attempt]:
    kind = Halfway if strategy == "halfway" else ScriptedSampler
    folder = fetch_base(bench.context, world.goal)
    sampler = kind(folder, {task.id: task for task in tasks}, "gold" if strategy == "halfway" else strategy)
    return bench.attempt(
        sampler, bench.requests(tasks, 1, purpose, f"{strategy}"), setting=written(world.goal), audit="all"
    )


@pytest.fixture(scope="module")
def world(finished: Finished, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("leaks") / "loop"
    shutil.copytree(finished.root, root, symlinks=True)
    space, cache = Workspace.open(root), Path(environment["POSTLOOP_CACHE"])
    goal = space.read(2, "goal")
    assert isinstance(goal, GoalRecord)
    ctx = Context(space, 2, goal.spec, cache)
    made = World(space, cache, goal, load_tasks(ctx), [], [])
    seeds = [task for task in made.of(Split.TRAIN) if bucket_of(task) is None]
    repairs, lookups = ([t for t in seeds if t.skill == skill] for skill in ("repair", "lookup"))
    repairs = repairs[:3]
    with equip(ctx, goal) as bench:
        made.pool += rolled(bench, made, repairs, "noop") + rolled(bench, made, repairs[:1], "gold")
        made.pool += rolled(bench, made, lookups, "halfway")
        for split in (Split.DEV, Split.HELD_OUT, Split.BOUNDARY, Split.RETENTION):
            made.foreign += rolled(bench, made, made.of(split)[:1], "gold")
            made.foreign += rolled(bench, made, made.of(split)[:1], "noop")
    hostile = [*made.pool, *made.foreign]  # a table that holds evaluation rollouts under the purpose rl
    table = store(space, "rl", "attempts", lambda folder: write_attempts(folder / "attempts.parquet", hostile))
    made.leave(3, RlRecord(key=KEY, artifacts={"attempts": table}))
    return made


def told(world: World, kind: str, **more: Any) -> Material:
    fields = {
        "kind": kind, "bucket": digest_of([kind, *sorted(more)])[:12], "route": Route.SFT, "family": "repair.value",
        "amount": 8, "cause": "returns_unchanged", "approved": True,
    }  # fmt: skip
    return Material.model_validate({**fields, **more})


# --- from failures on dev to material


@pytest.fixture(scope="module")
def handed(world: World) -> list[Material]:
    """What backflow proposes for dev failures of the same kind as the pool's."""
    ctx, rules = world.context(3), load_rules()
    dev = world.of(Split.DEV)
    with equip(ctx, world.goal) as bench:
        attempts = rolled(bench, world, dev, "noop", Purpose.ATTRIBUTION)
    half = Half.of(attempts, {task.id: task for task in dev}, trained_origins(world.tasks))
    buckets = build(half, half, rules)
    return propose(ctx, world.goal, buckets, world.tasks, rules, attempts, half.evidence)


def test_failures_on_dev_choose_the_cause_and_training_rollouts_of_that_cause_are_the_material(
    world: World, handed: list[Material]
) -> None:
    pairs = [item for item in handed if item.kind == "pairs"]
    assert {item.cause for item in pairs} == {"returns_unchanged"}
    pool = {a.trajectory.id: a for a in world.pool}
    named = {name for item in handed for name in item.trajectories}
    assert named
    assert named <= pool.keys(), "only rollouts of the training pool"
    for item in pairs:
        failed = [pool[name] for name in item.trajectories if not pool[name].verdict.passed]
        assert {a.trajectory.family for a in failed} <= {item.family}
        assert all(a.trajectory.conduct.unchanged for a in failed)
        assert item.failures
        assert not set(item.failures) & pool.keys(), "the failures behind it are of dev"


def test_material_says_what_it_lacks_and_what_will_not_be_trained_on(world: World, handed: list[Material]) -> None:
    notes = {(item.kind, bool(item.trajectories)): item.note for item in handed}
    assert "rl.phases has no dpo" in notes["pairs", True]
    assert "no training task is right as it is" in notes["pairs", True]
    shown = next(item.note for item in handed if item.kind == "demonstrations")
    assert "no good prefix to go on from" in shown


# --- to the data of the next round, with everything hostile in it


def renamed(task: Task, number: int) -> Task:
    """An evaluation task as a training task under other names."""
    entry = task.entry or "none"
    text = task.model_dump_json().replace(entry, f"{entry}_{number}") if task.entry else task.model_dump_json()
    copy = Task.model_validate_json(text)
    about = {"id": f"{task.skill}/copied{number}/x_{number}", "origin": f"copied{number}", "split": Split.TRAIN}
    return copy.model_copy(update={**about, "family": task.family, "made_by": "thief"})


@pytest.fixture(scope="module")
def copies(world: World) -> list[Task]:
    """Near copies of a task of every evaluation split, which the proof alone would let through."""
    splits = (Split.DEV, Split.HELD_OUT, Split.BOUNDARY, Split.RETENTION)
    return [renamed(world.of(split)[0], number) for number, split in enumerate(splits)]


@pytest.fixture(scope="module")
def hostile(world: World, copies: list[Task]) -> tuple[World, DataRecord]:
    """Round 4's goal and data, made by the real stage."""
    seeds = [task for task in world.tasks if bucket_of(task) is None]
    folder = world.space.root / "seeds"
    make_folder(folder)
    lines = [json.dumps(task.model_dump(mode="json")) for task in (*seeds, *copies)]
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    foreign = [a.trajectory.id for a in world.foreign]
    own = [a.trajectory.id for a in world.pool]
    material = [
        told(world, "tasks", family=world.of(Split.RETENTION)[0].family, route=Route.DATA),
        told(world, "tasks", family=world.of(Split.BOUNDARY)[0].family, operators=["compare"], amount=2, route=Route.DATA),
        told(world, "demonstrations", family=world.of(Split.HELD_OUT)[0].family, trajectories=[*foreign, *own]),
        told(world, "demonstrations", cause="rare_success", family=world.pool[0].trajectory.family, route=Route.RL, amount=2,
             trajectories=[*foreign, *own]),
        told(world, "pairs", trajectories=[*foreign, *own]),
    ]  # fmt: skip
    spec = world.goal.spec.data
    skills = {task.skill for task in (*seeds, *copies)}
    sources = [
        SourceSpec(skill=skill, **{s.value: sum(t.skill == skill and t.split is s for t in (*seeds, *copies)) for s in Split})
        for skill in sorted(skills)
    ]  # fmt: skip
    shown = spec.demonstrations.model_copy(update={"from_past_rounds": 32, "gold": {}})
    changed = spec.model_copy(update={"seed_data": "seeds", "sources": sources, "demonstrations": shown})
    whole = world.goal.spec.model_copy(update={"data": changed})
    goal = world.goal.model_copy(update={"spec": whole, "material": material})
    there = World(world.space, world.cache, goal, world.tasks, world.pool, world.foreign)
    there.leave(4, goal)
    ctx = there.context(4)
    record = data_stage.run(ctx, KEY, {})
    there.leave(4, record)
    there.tasks = load_tasks(ctx)
    return there, record


def test_copies_of_evaluation_tasks_in_the_seed_data_are_quarantined(
    hostile: tuple[World, DataRecord], copies: list[Task]
) -> None:
    there, record = hostile
    assert record.quarantined["near copy of an evaluation task"] >= len(copies)
    assert not {task.id for task in copies} & {task.id for task in there.tasks}


def test_nothing_that_measures_reaches_what_is_trained_on(hostile: tuple[World, DataRecord]) -> None:
    there, record = hostile
    assert leaks(there.space, 4) == []
    assert {gate.name: gate.decision for gate in record.gates} == {"data": Decision.GO, "leaks": Decision.GO}
    used: list[Attempt] = []
    for name in ("demonstrations", "pairs"):
        used += read_attempts(there.space.open_artifact(record.artifacts[name]) / "attempts.parquet")
    assert {a.trajectory.split for a in used} == {Split.TRAIN}
    assert not {a.trajectory.id for a in used} & {a.trajectory.id for a in there.foreign}
    measuring = {task.id for task in there.tasks if task.split is not Split.TRAIN}
    assert not {a.trajectory.task_id for a in used} & measuring


def test_a_real_round_leaks_nothing(finished: Finished) -> None:
    assert [leaks(finished.space, number) for number in (1, 2)] == [[], []]


def test_a_good_prefix_of_a_failed_rollout_is_gone_on_with_by_gold(hostile: tuple[World, DataRecord]) -> None:
    there, record = hostile
    folder = there.space.open_artifact(record.artifacts["demonstrations"])
    parents = {a.trajectory.id: a.trajectory for a in there.pool}
    made = [a for a in read_attempts(folder / "attempts.parquet") if a.trajectory.parent is not None]
    assert record.demonstrations["prefix"] == len(made) > 0
    for attempt in made:
        trajectory = attempt.trajectory
        parent = parents[trajectory.parent or ""]
        assert (attempt.verdict.passed, trajectory.prefix_turn) == (True, 1)
        assert trajectory.turns[0].text == parent.turns[0].text
        assert trajectory.turns[1].text != parent.turns[1].text
        assert trajectory.turns[0].policy == parent.turns[0].policy
    rows = [json.loads(line) for line in (folder / "demonstrations.jsonl").read_text().splitlines()]
    assert {row["id"] for row in rows if row["source"] == "prefix"} == {a.trajectory.id for a in made}


def test_what_the_policy_seldom_does_is_shown_by_its_own_verified_rollouts(hostile: tuple[World, DataRecord]) -> None:
    """Once a task, where nothing else shows it."""
    there, _ = hostile
    (passed,) = [a for a in there.pool if a.verdict.passed]
    (item,) = [one for one in there.goal.material if one.route is Route.RL]
    training = {task.id: task for task in there.of(Split.TRAIN)}
    ctx = there.context(4)
    assert {name: [a.trajectory.id for a in made] for name, made in _own(ctx, there.goal, training).items()} == {
        item.bucket: [passed.trajectory.id]
    }
    left = {name: task for name, task in training.items() if name != passed.trajectory.task_id}
    assert _own(ctx, there.goal, left) == {item.bucket: []}


def test_gold_shows_as_much_as_was_asked_beyond_what_the_past_shows(hostile: tuple[World, DataRecord]) -> None:
    there, record = hostile
    (item,) = [one for one in there.goal.material if one.route is Route.RL]
    folder = there.space.open_artifact(record.artifacts["demonstrations"])
    rows = [json.loads(line) for line in (folder / "demonstrations.jsonl").read_text().splitlines()]
    of = {source: {row["task_id"] for row in rows if row["source"] == source} for source in record.demonstrations}
    (passed,) = [a for a in there.pool if a.verdict.passed]
    assert passed.trajectory.task_id in of["past"]
    assert not of["own"]
    family = {task.id for task in there.of(Split.TRAIN) if task.family == item.family and bucket_of(task) is None}
    assert len(of["backflow"] & family) >= min(item.amount, len(family - of["past"])) > 0
    assert not of["past"] & of["backflow"]


def test_of_many_successes_one_a_task_is_named_and_none_that_gold_shows(world: World) -> None:
    (passed,) = [a for a in world.pool if a.verdict.passed]
    bucket = SimpleNamespace(family=passed.trajectory.family)
    training = {task.id: task for task in world.of(Split.TRAIN)}
    other = next(t for t in training.values() if t.family == bucket.family and t.id != passed.trajectory.task_id)
    second = passed.model_copy(update={"trajectory": passed.trajectory.model_copy(update={"task_id": other.id})})

    def named(gold: dict[str, int]) -> list[str]:
        shown = world.goal.spec.data.demonstrations.model_copy(update={"gold": gold})
        data = world.goal.spec.data.model_copy(update={"demonstrations": shown})
        goal = world.goal.model_copy(update={"spec": world.goal.spec.model_copy(update={"data": data})})
        found = _successes(bucket, [passed, passed, second, passed], training, goal)  # type: ignore[arg-type]
        return sorted(a.trajectory.task_id for a in found)

    assert named({}) == sorted([passed.trajectory.task_id, other.id])
    assert named({"repair": 10_000}) == []


def test_pairs_share_their_prompt_and_are_balanced_by_stops_that_are_right(hostile: tuple[World, DataRecord]) -> None:
    there, record = hostile
    folder = there.space.open_artifact(record.artifacts["pairs"])
    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    attempts = {a.trajectory.id: a for a in read_attempts(folder / "attempts.parquet")}
    edges = {edge.row: edge for edge in read_edges(folder / "edges.parquet")}
    assert record.pairs == {"decision": 4, "retention": 4}, "half of the amount, and as many against one-sidedness"
    assert len(edges) == 2 * len(rows)
    for row in rows:
        sides = [attempts[edges[f"{row['id']}/{side}"].trajectory or ""] for side in ("chosen", "rejected")]
        assert sides[0].verdict.passed
        assert row["prompt"][-1]["role"] == "user"
        if row["kind"] == "decision":
            assert not sides[1].verdict.passed
            assert row["rejected"][0]["content"] == sides[1].trajectory.turns[-1].text
            assert sides[1].trajectory.conversation()[: len(row["prompt"])] == row["prompt"]
            assert sides[0].trajectory.conversation()[: len(row["prompt"])] == row["prompt"]
        else:
            said, other = row["chosen"][0]["content"], row["rejected"][0]["content"]
            assert said == sides[0].trajectory.turns[-1].text
            before = [turn.text for turn in sides[0].trajectory.turns[:-1]]
            assert other in before or (other.startswith(said) and other != said), "the same right answer, gone on with"


def test_a_dpo_phase_trains_on_the_stored_pairs_and_leaves_edges_to_them(
    hostile: tuple[World, DataRecord], tmp_path: Path
) -> None:
    there, _ = hostile
    ctx, done = there.context(4), _Run()
    phase = DpoPhase(steps=1, batch_size=2, groups=1, group_size=2, lora=there.goal.spec.rl.phases[0].lora)
    rows, edges = load_pairs(ctx)
    with equip(ctx, there.goal) as bench:
        base = fetch_base(ctx, there.goal)
        assert _dpo(ctx, there.goal, bench, base, tmp_path / "out", tmp_path / "adapter", phase, done)
    assert done.used < len(rows), "the random model's own groups give no pair; the stored ones are trained on"
    assert {edge.row for edge in done.edges} >= {f"dpo/{edge.row}" for edge in edges}
    assert (tmp_path / "out" / "model.safetensors").is_file()


# --- whose it is, and what it took


def test_each_row_names_the_bucket_that_it_was_made_for(hostile: tuple[World, DataRecord]) -> None:
    there, record = hostile
    folder = there.space.open_artifact(record.artifacts["demonstrations"])
    attempts = {a.trajectory.id: a.trajectory for a in read_attempts(folder / "attempts.parquet")}
    asked = {item.bucket: item for item in there.goal.material}
    rows = read_demonstrations(folder)
    whose = {source: [row for row in rows if row["source"] == source] for source in record.demonstrations}
    assert whose["prefix"]
    assert whose["backflow"]
    for row in (*whose["prefix"], *whose["backflow"]):
        item = asked[row["bucket"]]
        assert row["cause"] == item.cause
        if row["source"] == "prefix":
            assert attempts[row["id"]].parent in item.trajectories
        elif item.kind == "demonstrations":
            assert row["family"] == item.family
    assert {row["bucket"] for row in whose["past"]} == {None}, "of tasks that no bucket asked for"
    assert {row["bucket"] for row in load_pairs(there.context(4))[0]} <= asked.keys()


def test_what_a_treatment_took_is_counted_for_its_bucket_and_weights_share_the_rollouts(
    hostile: tuple[World, DataRecord],
) -> None:
    """Round 5 trains on the data of round 4: SFT on all rows, RL on two rollouts of three and on every pair."""
    there, record = hostile
    made = next(task for task in there.of(Split.TRAIN) if bucket_of(task) is not None)
    seeds = [task for task in there.of(Split.TRAIN) if bucket_of(task) is None]
    seed = seeds[0]
    plain = next(task for task in seeds if task.family != seed.family)
    raised = [told(there, "weights", family=seed.family, cause=cause, weight=2.0) for cause in ("one", "two")]
    raised = [item.model_copy(update={"bucket": digit * 12}) for item, digit in zip(raised, "ab", strict=True)]
    goal = there.goal.model_copy(update={"weights": {seed.family: 2.0}})
    with equip(there.context(4), there.goal) as bench:
        own, shared, other = (rolled(bench, there, [task], "gold")[0] for task in (made, seed, plain))
    pairs, edges = load_pairs(there.context(4))
    used = [edge.model_copy(update={"row": f"dpo/{edge.row}"}) for edge in edges]
    used += [edge_of("group_member", "grpo/0/x", a) for a in (own, shared)]
    table = store(there.space, "rl", "attempts", lambda f: (
        write_attempts(f / "attempts.parquet", [own, shared, other]), write_edges(f / "edges.parquet", used)
    ))  # fmt: skip
    for one in (goal, record, SftRecord(key=KEY), RlRecord(key=KEY, artifacts={"attempts": table})):
        there.leave(5, one)
    took = treatments(there.context(5), raised)

    for item in raised:
        tokens, conduct = shared.trajectory.token_ids(), shared.trajectory.conduct
        half = {
            "generated_tokens": conduct.generated_tokens / 2, "rollouts": 0.5, "tool_calls": conduct.tool_calls / 2,
            "trained_tokens": len(tokens) / 2,
        }  # fmt: skip
        assert took.cost(item.bucket) == {unit: n for unit, n in half.items() if n}
        parts = {"rl.sandbox_cpu_s": 0.5 / 3, "rl.training_s": 0.5 / (3 + len(pairs)), "rl.verifier_cpu_s": 0.5 / 3}
        assert took.shares(item.bucket) == pytest.approx(parts)
    assert took.cost(bucket_of(made) or "")["rollouts"] == 1
    rows = read_demonstrations(there.space.open_artifact(record.artifacts["demonstrations"]))
    (begun,) = {row["bucket"] for row in rows if row["source"] == "prefix"}
    assert took.cost(begun)["prefixes"] == record.demonstrations["prefix"]
    (paired,) = {row["bucket"] for row in pairs}
    written = [a for a in _sides(there, record) if a.trajectory.purpose is Purpose.DEMONSTRATION]
    assert took.cost(paired)["pairs"] == len(pairs)
    assert took.cost(paired).get("attempts", 0) == len(written)
    assert took.cost(paired)["trained_tokens"] == _tokens_of_both_sides(there, pairs)
    assert took.shares(paired)["rl.training_s"] == len(pairs) / (3 + len(pairs))
    for measure in ("sft.training_s", "data.sandbox_cpu_s", "rl.training_s"):
        assert sum(took.shares(owner).get(measure, 0.0) for owner in [*took.work]) == pytest.approx(1.0)  # type: ignore[arg-type]


def _tokens_of_both_sides(there: World, pairs: list[dict[str, Any]]) -> int:
    """The end token of a text that was cut at its limit is no part of it."""
    _, tokenizer = load(fetch_base(there.context(4), there.goal))
    sides = [row["prompt"] + row[side] for row in pairs for side in ("chosen", "rejected")]
    whole = sum(len(tokenize_conversation(tokenizer, side).ids) for side in sides)
    return whole - sum(row["cut"] for row in pairs)


def _sides(there: World, record: DataRecord) -> list[Attempt]:
    return read_attempts(there.space.open_artifact(record.artifacts["pairs"]) / "attempts.parquet")


# --- the look itself can fail


@pytest.mark.parametrize("split", [Split.DEV, Split.HELD_OUT, Split.BOUNDARY, Split.RETENTION])
def test_each_way_in_is_named(world: World, split: Split) -> None:
    spec = world.goal.spec.data
    target = world.of(split)[0]
    thief = renamed(target, 7)
    rollout = next(a for a in world.foreign if a.trajectory.split is split and a.verdict.passed)
    learned = world.of(Split.TRAIN)[0]
    said = [
        {"role": "user", "content": f"{target.statement}\n" + "\n".join(target.files.values())},
        {"role": "assistant", "content": "\n".join(f"```python\n{text}\n```" for text in target.gold.values())},
    ]
    rows = of_messages("demonstrations", [{"id": "text", "task_id": learned.id, "messages": said}])
    rows += of_messages("pairs", [{"id": "named", "task_id": target.id, "prompt": [], "chosen": [], "rejected": []}])
    rows += of_attempts("rl, attempt", [rollout])
    found = find_leaks([*world.tasks, thief], rows, spec)
    assert [line.split(":")[0] for line in found] == [
        f"tasks {thief.id}", "demonstrations text", "pairs named", f"rl, attempt {rollout.trajectory.id}",
    ]  # fmt: skip
    assert find_leaks(world.tasks, of_attempts("rl, attempt", world.pool), spec) == []


def test_a_leak_is_a_no_go_that_names_the_row_and_stops_what_trains(world: World) -> None:
    rollout = world.foreign[0]
    row = {
        "id": rollout.trajectory.id,
        "task_id": rollout.trajectory.task_id,
        "messages": rollout.trajectory.conversation(),
    }
    asked = data_stage._leak_gate(world.goal, world.tasks, [row], [], [])
    assert (asked.name, asked.decision, asked.owner) == ("leaks", Decision.NO_GO, "data")
    assert rollout.trajectory.id in asked.because
    assert rollout.trajectory.task_id in asked.because

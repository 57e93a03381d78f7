"""The table of operations on a finished loop: a sample of the mutations of bench/pins.py, widening, and what must not matter."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_loop import Finished

from bench import pins as bench
from bench.pins import Mutation, World
from schemas.errors import IntegrityError, PinMismatch, PostloopError, SpecError
from schemas.goal import GoalSpec
from schemas.pins import TABLE, PinsSpec, pin_of
from schemas.record import STAGES
from stages import keys, resume
from stages.context import Context
from stages.recorded import recorded
from stages.replay import replay
from stages.rl import require_one_group
from stages.rounds import key_of, run_stage
from stages.spec import dump_default, load_spec
from stages.workspace import Workspace

KINDS = 6  # of what a resume compares; one mutation each, make prove has all


@pytest.fixture(scope="module")
def world(finished: Finished, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("POSTLOOP_CACHE", environment["POSTLOOP_CACHE"])
        yield bench.open_world(finished.space, Path(environment["POSTLOOP_CACHE"]), tmp_path_factory.mktemp("world"))
    bench.forget()


@pytest.fixture(scope="module")
def every(world: World) -> list[Mutation]:
    return bench.mutations(world)


def test_each_pin_is_refused_by_name_where_the_table_says_so(world: World, every: list[Mutation]) -> None:
    rows = [row for mutation in sampled(every) for row in bench.tried(world, mutation)]
    assert [row for row in rows if not row["right"]] == []
    assert {bench.of_operation(row["probe"]) for row in rows if row["refused"]} == set(TABLE)
    assert all(bench.refusal(world, probe) is None for probe in ("next backflow", "regenerate sft", "mix", "group"))


def sampled(every: list[Mutation]) -> list[Mutation]:
    """For each pin that an operation other than a resume compares one mutation at least, and some kinds of the resume's."""
    stream, covered, sample = random.Random(1), set[tuple[str, str]](), []
    for mutation in stream.sample(every, len(every)):
        rows = {(bench.of_operation(name), mutation.pins[0]) for name in mutation.refuse if len(mutation.pins) == 1}
        rows = {row for row in rows if row[0] != "resume"}
        if not rows <= covered:
            covered |= rows
            sample.append(mutation)
    known = {mutation.pins for mutation in sample}
    kinds = {mutation.pins: mutation for mutation in every if mutation.pins not in known}
    return sample + [kinds[pins] for pins in stream.sample(sorted(kinds), KINDS)]


def test_a_rescore_asks_for_the_image_and_the_limits_of_then_and_for_nothing_else(
    world: World, every: list[Mutation]
) -> None:
    replays = [one for one in every if any(name.startswith("replay") for name in one.refuse)]
    for pin in TABLE["replay"]:
        mutation = next(one for one in replays if one.pins == (pin,))
        with mutation.apply(world):
            error = bench.refusal(world, "rescore")
        refused = isinstance(error, PinMismatch) and pin_of(error.pin) == pin
        assert refused == (pin in TABLE["rescore"]), (pin, mutation.what, str(error))
    assert bench.refusal(world, "rescore") is None


def test_there_are_enough_mutations_and_every_row_is_reached(world: World, every: list[Mutation]) -> None:
    assert len({mutation.what for mutation in every}) == len(every) >= 300
    for operation, row in TABLE.items():
        reached = {
            pin for one in every for pin in one.pins if any(bench.of_operation(n) == operation for n in one.refuse)
        }
        missing = set(row) - reached
        if operation == "resume":  # what only some loops have
            missing -= {
                "champion",
                "sft_gate",
                "barred",
                "past",
                "made",
                "previous",
                "rescores",
                "decisions",
                "in_vain",
                "pairs",
            }
        assert missing == set(), operation


def test_every_input_of_a_record_is_a_pin_of_the_table(finished: Finished) -> None:
    for stage in STAGES[1:]:
        record = finished.space.read(2, stage)
        assert record is not None
        assert {pin_of(name) for name in record.inputs} <= set(TABLE["resume"])


def test_what_must_not_matter_changes_no_key_and_no_digest(world: World, tmp_path: Path) -> None:
    assert not any(bench.indifferent(world, tmp_path, ["locale"]).values())


def test_a_widened_pin_lets_the_stage_run_and_stands_in_its_record(
    finished: Finished, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open round, continued under other code than its goal stage."""
    space = Workspace(tmp_path / "loop")
    shutil.copytree(finished.root, space.root, symlinks=True)
    (space.folder(2) / "backflow.json").unlink()
    code = tmp_path / "code"
    for path in keys.declared_files(keys.DECLARED["backflow"]):
        (code / path.relative_to(keys.ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, code / path.relative_to(keys.ROOT))
    with (code / "schemas" / "task.py").open("a") as file:
        file.write("\n")
    monkeypatch.setattr(keys, "ROOT", code)
    ctx = Context(space, 2, load_spec(space.spec_path), Path(environment["POSTLOOP_CACHE"]))
    with pytest.raises(
        PinMismatch, match=r"resume: pin code differs: recorded \w{12}, now \w{12}; .*widen: \{resume: \[code\]\}"
    ):
        run_stage(ctx, "backflow")
    ctx.spec = ctx.spec.model_copy(update={"pins": PinsSpec(widen={"resume": ["code"]})})
    with space.lock():
        record = run_stage(ctx, "backflow")
    assert {(one.operation, one.pin) for one in record.exceptions} == {("resume", "code")}
    assert space.read(2, "backflow") == record
    assert resume.began_under(ctx, "backflow") == {}


def test_an_interrupted_stage_goes_on_only_under_what_it_began_under(world: World) -> None:
    ctx = world.context()
    with bench.own_code(world):
        pins = key_of(ctx, "data")[1]
        resume.begin(ctx, "data", {**pins, "seed_data": "f" * 64})
        with pytest.raises(PinMismatch, match="resume: pin seed_data differs: recorded ffffffffffff, now "):
            resume.require(ctx, "data", pins)
        resume.end(ctx, "data")
        resume.require(ctx, "data", pins)


def test_an_answer_of_replay_names_what_was_allowed(
    finished: Finished, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages import replay as subject

    row = next(row for row in recorded(finished.space) if row.stage == "sft")
    cache = Path(environment["POSTLOOP_CACHE"])
    monkeypatch.setattr(subject, "libraries_digest", lambda stage: "0" * 64)
    with pytest.raises(
        PinMismatch, match=r"install the recorded requirements.lock, .*widen: \{regenerate: \[libraries\]\}"
    ):
        list(replay(finished.space, cache, [row], "regenerate"))
    allowed = PinsSpec(widen={"regenerate": ["libraries"]})
    (answer,) = replay(finished.space, cache, [row], "regenerate", pins=allowed)
    assert [(one.operation, one.pin, one.present) for one in answer.exceptions] == [
        ("regenerate", "libraries", "0" * 64)
    ]
    assert next(iter(replay(finished.space, cache, [row], "L0"))).exceptions == []


def test_a_group_may_be_widened_too(world: World) -> None:
    ctx = world.context()
    other = bench._with(world.group[1], "reward", rules="f" * 64)
    with pytest.raises(PinMismatch, match=r"group .*: pin rewards differs"):
        require_one_group(ctx, [world.group[0], other])
    ctx.spec = ctx.spec.model_copy(update={"pins": PinsSpec(widen={"group": ["rewards"]})})
    require_one_group(ctx, [world.group[0], other])
    assert [one.pin for one in ctx.exceptions] == ["rewards"]


def test_damaged_content_is_refused_and_never_healed_by_widening(world: World) -> None:
    ctx = world.context()
    ctx.spec = ctx.spec.model_copy(update={"pins": PinsSpec(widen={"resume": ["verifier"]})})
    bench.forget()
    with (
        bench.flip(world.artifact("goal", "verifier") / "main.py", 0.5),
        pytest.raises(IntegrityError, match=r"main\.py"),
    ):
        resume.pinned_bundles(ctx, world.read("goal"))
    bench.forget()


def test_only_pins_of_the_row_can_be_widened(tmp_path: Path) -> None:
    text = dump_default("tiny")
    path = tmp_path / "goal.yaml"
    path.write_text(f"{text}\npins: {{widen: {{replay: [verifier_repository], resume: [libraries]}}}}\n")
    spec: GoalSpec = load_spec(path)
    assert spec.pins.widen == {"replay": ["verifier_repository"], "resume": ["libraries"]}
    for wrong, said in (
        ("{replay: [libraries]}", "replay compares no pin 'libraries'"),
        ("{sleep: [verifier]}", "sleep"),
    ):
        path.write_text(f"{text}\npins: {{widen: {wrong}}}\n")
        with pytest.raises(SpecError, match=said) as caught:
            load_spec(path)
        assert len(caught.value.problems) == 1
    assert issubclass(SpecError, PostloopError)

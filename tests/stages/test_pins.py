"""The run pin: one name for each input, from the records alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.artifact import ArtifactRef
from schemas.backflow import BackflowRecord
from schemas.data import DataRecord
from schemas.errors import PinMismatch
from schemas.execution import Environment
from schemas.goal import Bundles, GoalRecord, GoalSpec
from schemas.model import Checkpoint
from schemas.pins import TABLE, require_equal
from schemas.record import Record, StageName
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.trajectory import Noise
from stages.pins import attempt_pins, derive
from stages.spec import dump_default, load_spec
from tests.small import attempt, task


def digest(character: str) -> str:
    return character * 64


@pytest.fixture
def spec(tmp_path: Path) -> GoalSpec:
    (tmp_path / "goal.yaml").write_text(dump_default("default"))
    return load_spec(tmp_path / "goal.yaml")


def checkpoint(character: str) -> Checkpoint:
    parts = {"config": digest("c"), "tokenizer": digest("d"), "template": digest("e")}
    return Checkpoint(weights=digest(character), files=digest(character), **parts)


def goal(spec: GoalSpec) -> GoalRecord:
    return GoalRecord(
        key=digest("0"),
        inputs={"code": digest("6"), "libraries": digest("7")},
        goal_version=1,
        spec=spec,
        environment=Environment(name="python-pytest", python="3.11.7", variables={"LANG": "C"}, layer=digest("a")),
        bundles=Bundles(harness=digest("1"), verifier=digest("2"), audit_verifier=digest("3")),
        base=checkpoint("b"),
    )


def round_of(spec: GoalSpec) -> dict[StageName, Record]:
    tasks = ArtifactRef(name="tasks", path="artifacts/data/tasks-444444444444", digest=digest("4"), files=1, bytes=1)
    return {
        "goal": goal(spec),
        "data": DataRecord(key=digest("0"), artifacts={"tasks": tasks}),
        "sft": SftRecord(key=digest("0"), inputs={"code": digest("8")}, checkpoint=checkpoint("5")),
        "rl": RlRecord(key=digest("0"), skipped="no headroom"),
        "backflow": BackflowRecord(key=digest("0"), rules=digest("9")),
    }


def test_a_finished_round_names_every_pin_that_an_operation_compares(spec: GoalSpec) -> None:
    pins = derive(round_of(spec)).pins
    # The temperature is among the suites, and there is noise only where a spec declares it.
    compared = {*TABLE["replay"], *TABLE["regenerate"], *TABLE["mix"]} - {"temperature", "noise"}
    assert compared <= pins.keys()
    assert {"base", "sft", "audit_verifier", "suites", "gates", "routes", "goal", "config", "code.sft"} <= pins.keys()
    assert list(pins) == sorted(pins)


def test_each_pin_is_the_digest_of_its_own_input(spec: GoalSpec) -> None:
    pins = derive(round_of(spec)).pins
    wanted = {"harness": "1", "verifier": "2", "tasks": "4", "base": "b", "sft": "5", "environment": "a", "routes": "9"}
    assert {name: pins[name] for name in wanted} == {name: digest(character) for name, character in wanted.items()}
    assert pins["libraries"] == digest("7")
    assert pins["code.sft"] == digest("8")


def test_the_policy_is_the_latest_checkpoint_and_a_skipped_stage_has_none(spec: GoalSpec) -> None:
    records = round_of(spec)
    assert derive(records).pins["policy"] == digest("5")
    assert "rl" not in derive(records).pins
    records["rl"] = RlRecord(key=digest("0"), checkpoint=checkpoint("f"))
    assert derive(records).pins["policy"] == derive(records).pins["rl"] == digest("f")
    assert derive({"goal": goal(spec)}).pins["policy"] == digest("b")


@pytest.mark.parametrize(
    ("change", "pins"),
    [
        ({"seed": 1}, {"seed", "goal"}),
        ({"budgets": {"max_turns": 3}}, {"budgets", "goal"}),
        ({"sampling": {"temperature": 0.5}}, {"sampling", "goal"}),
        ({"environment": {"limits": {"cpu_s": 9.0}}}, {"limits", "goal"}),
        ({"sft": {"min_parse_rate": 0.7}}, {"settings.sft", "gates", "goal"}),
        ({"rewards": {"partial": 0.1}}, {"rewards", "goal"}),
        ({"noise": {"flaky": {"fail": 0.2}}}, {"noise", "goal"}),
        ({"runtime": {"workers": 9, "device": "cuda", "stage_retries": 5, "max_traces": 5}}, set()),
    ],
)
def test_a_change_shows_as_its_own_pin_and_runtime_as_none(
    spec: GoalSpec, change: dict[str, dict[str, object]], pins: set[str]
) -> None:
    plain = spec.model_dump(mode="json")
    for name, value in change.items():
        plain[name] = merged(plain[name], value)
    before, after = derive({"goal": goal(spec)}).pins, derive({"goal": goal(GoalSpec.model_validate(plain))}).pins
    assert {name for name in before | after if before.get(name) != after.get(name)} == pins


def merged(old: object, new: object) -> object:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{name: merged(old.get(name), value) for name, value in new.items()}}
    return new


def test_where_it_ran_is_shown_and_never_compared(spec: GoalSpec) -> None:
    here, there = derive(round_of(spec), commit="1" * 40), derive(round_of(spec))
    assert here.pins == there.pins
    assert here.provenance["commit"] == "1" * 40
    assert {"python", "platform", "cpu"} <= here.provenance.keys()
    require_equal("regenerate", here.pins, there.pins)


def test_a_replay_under_another_verifier_is_refused_by_name(spec: GoalSpec) -> None:
    records = round_of(spec)
    other = goal(spec).model_copy(
        update={"bundles": Bundles(harness=digest("1"), verifier=digest("f"), audit_verifier=None)}
    )
    with pytest.raises(PinMismatch, match="replay: pin verifier differs: recorded 222222222222, now ffffffffffff"):
        require_equal("replay", derive(records).pins, derive({**records, "goal": other}).pins)


def test_another_profile_of_noise_is_refused_by_name_where_it_is_drawn_again() -> None:
    before, now = {"spec.noise": digest("1")}, {"spec.noise": digest("2")}
    with pytest.raises(PinMismatch, match="regenerate: pin noise differs: recorded 111111111111, now 222222222222"):
        require_equal("regenerate", before, now)
    assert require_equal("replay", before, now) == [], "there each turn has the noise of the record"


def test_clean_and_noisy_attempts_are_no_group() -> None:
    clean = attempt(task())
    noisy, other = (
        clean.model_copy(update={"trajectory": clean.trajectory.model_copy(update={"noise": Noise(fail=share)})})
        for share in (0.1, 0.2)
    )
    for one in (noisy, other):
        with pytest.raises(PinMismatch, match="group: pin noise differs"):
            require_equal("group", attempt_pins(clean), attempt_pins(one))
    assert attempt_pins(noisy)["noise"] != attempt_pins(other)["noise"]

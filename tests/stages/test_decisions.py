"""People's decisions: files that nobody rewrites, obeyed by the next round's goal and by no record that is written."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.base import digest_of
from schemas.bucket import Material, Route
from schemas.decision import TriageDecision
from schemas.errors import InputError, IntegrityError
from stages.decisions import append, decisions, identified, in_force, overrides, undecided
from stages.goal import decided, merged
from stages.workspace import Workspace
from tests import fabricated

NEVER, ODD, WEAK = (
    fabricated.bucket("never", Route.DATA, size=6),
    fabricated.bucket("odd", Route.UNDETERMINED, size=4),
    fabricated.bucket("weak", Route.GOAL, size=2),
)
PROPOSAL = Material(kind="proposal", bucket=WEAK.id, route=Route.GOAL, family=WEAK.family, amount=0, approved=False)
Say = Callable[..., TriageDecision]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    space = fabricated.workspace(tmp_path_factory.mktemp("made") / "loop")
    fabricated.leave(space, 1, [NEVER, ODD, WEAK], [fabricated.tasks_for(NEVER), PROPOSAL])
    return space.root


@pytest.fixture
def space(made: Path, tmp_path: Path) -> Workspace:
    shutil.copytree(made, tmp_path / "loop", symlinks=True)
    return Workspace.open(tmp_path / "loop")


@pytest.fixture
def say(space: Workspace) -> Say:
    """Decide, a minute after the last time."""
    minutes = iter(range(60))

    def decide(bucket: str, number: int = 1, because: str = "I read five of them", **what: object) -> TriageDecision:
        when = f"2026-03-01T08:{next(minutes):02d}:00.000+00:00"
        decision = identified(bucket=bucket, round=number, who="ann", when=when, because=because, **what)
        append(space, decision)
        return decision

    return decide


def material_of(space: Workspace, number: int = 2) -> dict[str, tuple[str, int]]:
    found = merged(fabricated.context(space, number))
    return {item.bucket: (item.kind, item.amount) for item in found.material}


def log(space: Workspace) -> list[str]:
    done = subprocess.run(
        ["git", "log", "--format=%s", "--name-only"], cwd=space.root, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


# --- files


def test_a_decision_is_a_file_of_its_own_that_the_writer_commits_alone(space: Workspace, say: Say) -> None:
    one, two = say(NEVER.id, route="rl"), say(WEAK.id, approve=True)
    assert decisions(space) == [one, two]
    (space.root / "goal.yaml").write_text((space.root / "goal.yaml").read_text() + "\n# edited meanwhile\n")
    with space.lock():
        assert space.settle_appended() == []  # taking the lock has committed both
    lines = log(space)
    for decision in (one, two):
        at = lines.index(f"decision {decision.id}")
        assert lines[at + 1 : at + 3] == ["", f"decisions/{decision.id}.json"]
    assert lines[:6].count("goal.yaml") == 0


def test_deciding_the_same_twice_is_one_and_what_was_replaced_needs_a_reason(space: Workspace, say: Say) -> None:
    first = say(NEVER.id, route="rl")
    path = space.root / f"decisions/{first.id}.json"
    before = path.read_bytes()
    assert say(NEVER.id, route="rl").id == first.id
    assert path.read_bytes() == before
    second = say(NEVER.id, route="sft")
    with pytest.raises(InputError, match=rf"{first.id} said the same .* replaced by {second.id}; give the reason"):
        say(NEVER.id, route="rl")
    again = say(NEVER.id, route="rl", because="SFT did not help")
    assert overrides(decisions(space), 1)[NEVER.id] == (Route.RL, again.id)


def test_a_decision_that_was_edited_is_refused_by_name(space: Workspace, say: Say) -> None:
    decision = say(NEVER.id, route="rl")
    path = space.root / f"decisions/{decision.id}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "who": "bob"}))
    with pytest.raises(IntegrityError, match=rf"decisions/{decision.id}\.json: its content is that of .*git checkout"):
        decisions(space)
    path.write_text("{}")
    with pytest.raises(IntegrityError, match=r"not a decision: .*git checkout") as error:
        decisions(space)
    assert "\n" not in str(error.value)


def test_a_decision_of_a_version_with_fewer_fields_is_as_it_was(space: Workspace, say: Say) -> None:
    decision = say(NEVER.id, route="rl")
    path = space.root / f"decisions/{decision.id}.json"
    fewer = {name: value for name, value in json.loads(path.read_text()).items() if name not in ("source", "when")}
    identity = digest_of({name: value for name, value in fewer.items() if name != "id"})[:12]
    path.unlink()
    path.with_stem(identity).write_text(json.dumps({**fewer, "id": identity, "when": decision.when}))
    assert decisions(space) == [decision.model_copy(update={"id": identity})]


def test_what_was_committed_once_is_not_committed_again_with_its_change(space: Workspace, say: Say) -> None:
    decision, other = say(NEVER.id, route="rl"), say(WEAK.id, approve=True)
    with space.lock():
        pass
    path, gone = (space.root / f"decisions/{one.id}.json" for one in (decision, other))
    path.write_text(path.read_text().replace("08:00:00", "09:00:00"))
    gone.unlink()
    fabricated.leave(space, 2, [ODD])  # takes the lock and commits records, and whatever people wrote
    assert space.verify_appended() == [
        f"{name}: {what}; restore it with `git checkout HEAD -- {name}`"
        for name, what in sorted(
            {
                f"decisions/{decision.id}.json": "differs from its commit",
                f"decisions/{other.id}.json": "is gone",
            }.items()
        )
    ]


def test_other_files_of_the_folder_are_left_alone(space: Workspace) -> None:
    (space.root / "decisions/quarantine.json").write_text("{}")
    assert decisions(space) == []


# --- what is in force


def test_the_newest_route_holds_for_its_round_and_later_ones_and_an_approval_for_its_own(
    space: Workspace, say: Say
) -> None:
    say(NEVER.id, 2, route="rl")
    say(NEVER.id, 2, approve=True)
    say(NEVER.id, 3, route="sft")
    say(WEAK.id, 2, approve=True)
    found = decisions(space)
    assert [WEAK.id in in_force(found, number) for number in (1, 2, 3)] == [False, True, False]
    assert NEVER.id not in in_force(found, 1)
    assert (overrides(found, 2)[NEVER.id][0], in_force(found, 2)[NEVER.id].approve) == (Route.RL, True)
    assert (overrides(found, 4)[NEVER.id][0], in_force(found, 4)[NEVER.id].approve) == (Route.SFT, None)


def test_a_new_route_takes_the_approval_of_the_old_material_with_it(space: Workspace, say: Say) -> None:
    say(NEVER.id, approve=False)
    say(NEVER.id, route="sft")
    assert in_force(decisions(space), 1)[NEVER.id].approve is None
    say(NEVER.id, approve=False, because="nor this")
    assert in_force(decisions(space), 1)[NEVER.id].approve is False


def test_the_route_that_a_bucket_has_already_leaves_its_approval(space: Workspace, say: Say) -> None:
    say(WEAK.id, approve=True)
    say(WEAK.id, route="goal")
    assert material_of(space)[WEAK.id] == ("proposal", 0)
    record = space.read(1, "backflow")
    assert [one.id for one in undecided(record, 1, decisions(space))] == [NEVER.id]  # type: ignore[arg-type]
    say(WEAK.id, route="data")
    assert in_force(decisions(space), 1, record.buckets)[WEAK.id].approve is None  # type: ignore[union-attr]


def test_what_is_undecided_is_what_has_material_and_no_word_on_it(space: Workspace, say: Say) -> None:
    record = space.read(1, "backflow")
    assert [one.id for one in undecided(record, 1, decisions(space))] == [NEVER.id, WEAK.id]  # type: ignore[arg-type]
    say(WEAK.id, approve=False)
    assert [one.id for one in undecided(record, 1, decisions(space))] == [NEVER.id]  # type: ignore[arg-type]


# --- what the next goal does


def test_without_decisions_the_goal_takes_what_the_spec_approves(space: Workspace) -> None:
    assert material_of(space) == {NEVER.id: ("tasks", 3)}
    assert merged(fabricated.context(space, 2)).decisions == []


def test_a_changed_route_brings_the_material_of_the_new_owner(space: Workspace, say: Say) -> None:
    decision = say(NEVER.id, route="sft")
    assert material_of(space) == {NEVER.id: ("demonstrations", 2)}
    found = merged(fabricated.context(space, 2))
    assert found.decisions == [decision.id]
    say(NEVER.id, route="rl")
    assert material_of(space) == {}
    assert merged(fabricated.context(space, 2)).weights == {NEVER.family: 2.0}


def test_a_bucket_without_material_gets_some_once_it_has_an_owner(space: Workspace, say: Say) -> None:
    say(ODD.id, route="data")
    assert material_of(space) == {NEVER.id: ("tasks", 3), ODD.id: ("tasks", 3)}


def test_a_rejection_keeps_out_and_an_approval_lets_through(space: Workspace, say: Say) -> None:
    say(NEVER.id, approve=False)
    say(WEAK.id, approve=True)
    assert material_of(space) == {WEAK.id: ("proposal", 0)}


def test_a_failure_taken_out_alone_is_none_of_those_behind_the_material(space: Workspace, say: Say) -> None:
    say(NEVER.id, trajectory=NEVER.members[0], approve=False)
    (item,) = merged(fabricated.context(space, 2)).material
    assert item.failures == NEVER.members[1:]
    for one in NEVER.members[1:]:
        say(NEVER.id, trajectory=one, route="goal")
    assert material_of(space) == {}


def test_the_key_of_the_goal_names_the_decisions_and_records_stay_as_they_are(space: Workspace, say: Say) -> None:
    from stages.goal import inputs

    before, record = inputs(fabricated.context(space, 2))[0], (space.root / "rounds/0001/backflow.json").read_bytes()
    assert "decisions" not in before
    decision = say(NEVER.id, route="sft")
    after = inputs(fabricated.context(space, 2))[0]
    assert after["decisions"] == [decision.id]
    assert after["material"] != before["material"]
    assert (space.root / "rounds/0001/backflow.json").read_bytes() == record


def test_a_round_obeys_what_was_decided_before_its_goal_and_nothing_later(space: Workspace, say: Say) -> None:
    early = say(NEVER.id, route="sft")
    fabricated.leave(space, 2, [ODD], decisions=[early.id])
    late = say(NEVER.id, route="goal")
    assert decided(fabricated.context(space, 2)) == [early]
    assert decided(fabricated.context(space, 3)) == [early, late]
    assert material_of(space, 2) == {NEVER.id: ("demonstrations", 2)}
    assert material_of(space, 3) == {}, "a proposal waits for an approval"


def test_a_route_holds_for_the_material_that_a_later_round_made_before_it_knew(space: Workspace, say: Say) -> None:
    fabricated.leave(space, 2, [NEVER], [fabricated.tasks_for(NEVER)])
    say(NEVER.id, 1, route="rl")
    found = merged(fabricated.context(space, 3))
    assert (found.material, found.weights) == ([], {NEVER.family: 2.0})


def test_a_stage_sees_one_set_of_decisions_from_its_key_to_its_record(space: Workspace, say: Say) -> None:
    ctx = fabricated.context(space, 2)
    assert merged(ctx).decisions == []
    say(NEVER.id, route="rl")
    assert merged(ctx).decisions == []

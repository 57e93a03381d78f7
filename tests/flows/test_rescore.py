"""Old trajectories judged and priced again: the flips, what had used them, and what the next round has to make anew."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_loop import Finished, Interrupted

from environments.bundles import builtin, tree_digest
from flows.rescore import rescore as command
from schemas.errors import InfrastructureError, InputError, SpecError
from schemas.goal import GoalSpec
from schemas.record import STAGES
from schemas.rescore import Rescore, StaleUse
from schemas.sft import SftRecord
from stages import git, rounds
from stages.attempts import read_edges
from stages.context import Context
from stages.demonstrations import first_clean_passes, load_demonstrations
from stages.recall import Recall
from stages.recorded import edges_of, recorded
from stages.rescore import Judging, rescore
from stages.spec import load_spec
from stages.workspace import Workspace


@pytest.fixture(scope="module", autouse=True)
def cache(environment: dict[str, str]) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("POSTLOOP_CACHE", environment["POSTLOOP_CACHE"])
        yield Path(environment["POSTLOOP_CACHE"])


def copied(space: Workspace, target: Path) -> Workspace:
    """A workspace of one's own; the content, which is written once, is shared."""

    def link(source: str, place: str) -> None:
        shared = any(part in source for part in ("/artifacts/", "/.dvc/cache/"))
        (os.link if shared else shutil.copy2)(source, place)

    ignore = shutil.ignore_patterns(".postloop")
    shutil.copytree(space.root, target, symlinks=True, copy_function=link, ignore=ignore)
    return Workspace.open(target)


def bundle(folder: Path, name: str, old: str = "", new: str = "") -> Path:
    """The training verifier under another name, with one piece of its code changed."""
    shutil.copytree(builtin("cases"), folder, ignore=shutil.ignore_patterns("__pycache__"))
    about = json.loads((folder / "bundle.json").read_text()) | {"name": name, "version": "1"}
    (folder / "bundle.json").write_text(json.dumps(about))
    main = (folder / "main.py").read_text()
    assert old in main
    (folder / "main.py").write_text(main.replace(old, new))
    return folder


def strict(folder: Path) -> Path:
    """Lets no repair pass."""
    return bundle(
        folder, "strict", "    return verdict(checks, [*state",
        '    checks = [check("never", "f2p", False), *checks]\n    return verdict(checks, [*state',
    )  # fmt: skip


def alike(folder: Path) -> Path:
    return bundle(folder, "alike")


def again(space: Workspace, cache: Path, verifier: Path | None, **more: object) -> Rescore:
    judging = Judging({"verifier": verifier} if verifier else {}, None)
    with space.lock():
        return rescore(space, cache, judging, space.rounds(), **more)  # type: ignore[arg-type]


def spec_with(space: Workspace, **changed: object) -> GoalSpec:
    return load_spec(space.spec_path).model_copy(update=changed)


def following(space: Workspace, cache: Path, spec: GoalSpec) -> Context:
    return Context(space, space.rounds()[-1] + 1, spec, cache)


# --- a verifier that makes no difference


def test_a_verifier_that_flips_nothing_costs_the_next_round_no_stage_but_those_that_read_a_check(
    interrupted: Interrupted, cache: Path, tmp_path: Path
) -> None:
    space = copied(interrupted.space, tmp_path / "loop")
    new = alike(space.root / "alike")
    found = again(space, cache, new)
    assert (found.number, found.flips, found.changed, found.unjudged, found.proofs) == (1, [], 0, [], {})
    assert found.proven == [1]
    assert found.attempts == sum(row.attempt.trajectory.status == "done" for row in recorded(space)) > found.judged > 0
    assert again(space, cache, new) == found, "the same question has its answer"
    ctx = following(space, cache, spec_with(space, verifier="alike"))
    steps = {step.stage: (step.action, step.why) for step in rounds.plan(ctx)}
    judged = ("reuse", "judged alike by rescore 1: round 1")
    assert [steps[stage] for stage in STAGES[1:5]] == [judged] * 4
    assert steps["goal"][0] == "run"
    with space.lock():
        for stage in STAGES[:5]:
            rounds.run_stage(ctx, stage)
    second = space.read(2, "rl")
    assert second is not None
    assert (second.reused_from, second.rescored_by) == (1, 1)
    pins = space.pins(2)
    assert pins is not None
    assert pins.pins["verifier"] == tree_digest(new) == second.inputs["verifier"]
    assert space.verify() == []
    before = rounds.plan(following(copied(interrupted.space, tmp_path / "other"), cache, ctx.spec.model_copy(
        update={"verifier": str(new)}
    )))  # fmt: skip
    assert {step.stage: step.action for step in before}["data"] == "run", "without the rescore everything runs"


def test_a_goal_is_never_repeated_on_the_word_of_a_rescore_and_its_data_can_be_taught(
    interrupted: Interrupted, cache: Path, tmp_path: Path
) -> None:
    """Rules under another version price alike: the goal is new, the data is the old one, and SFT may learn from it."""
    space = copied(interrupted.space, tmp_path / "loop")
    rules = spec_with(space).rewards.model_copy(update={"version": "2"})
    with space.lock():
        found = rescore(space, cache, Judging({}, rules), space.rounds())
    assert found.flips == []
    ctx = following(space, cache, spec_with(space, rewards=rules))
    assert [step.action for step in rounds.plan(ctx)][:2] == ["run", "reuse"]
    with space.lock():
        rounds.run_stage(ctx, "goal")
        assert rounds.run_stage(ctx, "data").rescored_by == found.number
    assert ctx.record("goal").spec.rewards == rules
    assert load_demonstrations(ctx)


# --- a verifier that lets nothing pass


@pytest.fixture(scope="module")
def flipped(finished: Finished, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, Rescore]:
    space = copied(finished.space, tmp_path_factory.mktemp("flipped") / "loop")
    return space, again(space, cache, strict(space.root / "strict"))


def test_every_pass_of_a_repair_flips_with_its_reason(flipped: tuple[Workspace, Rescore]) -> None:
    space, found = flipped
    passed = {
        row.named() for row in recorded(space, [1, 2])
        if row.attempt.verdict.passed and row.attempt.verdict.checks[0].role != "answer"
    }  # fmt: skip
    assert {(flip.trajectory, flip.reward) for flip in found.flips} == passed
    assert len(passed) >= 4
    for flip in found.flips:
        assert (flip.passed_before, flip.passed_after) == (True, False)
        assert (flip.value_before or 0.0) > (flip.value_after or 0.0)
        assert flip.because == "check never fails"
    assert found.proven == [1, 2]
    assert found.proofs, "gold does not pass it"
    assert all("gold does not pass" in why for why in found.proofs.values())


def test_what_used_a_flipped_reward_is_listed_exactly(flipped: tuple[Workspace, Rescore]) -> None:
    space, found = flipped
    stale = {(flip.trajectory, flip.reward) for flip in found.flips}
    uses = Recall(space).uses()
    shown = {(use.round, use.name) for use in uses if use.use == "demonstration"}
    wanted = set()
    for number in (1, 2):
        record = space.read(number, "data")
        assert record is not None
        edges = [edge for table in edges_of(space, record) for edge in read_edges(table)]
        wanted |= {(number, edge.row) for edge in edges if (edge.trajectory, edge.reward) in stale}
        assert len(edges) > sum(edge.row in {name for _, name in wanted} for edge in edges), "answers did not flip"
    assert shown == wanted
    trained = {use.name for use in uses if use.use == "checkpoint"}
    for number in (1, 2):
        for stage in ("sft", "rl"):
            made = space.read(number, stage)  # type: ignore[arg-type]
            assert made is not None
            assert made.checkpoint is None or made.checkpoint.weights in trained  # type: ignore[attr-defined]


def test_a_stale_record_is_not_repeated_unless_the_spec_says_so(
    flipped: tuple[Workspace, Rescore], cache: Path
) -> None:
    space, _ = flipped
    record = space.read(2, "data")
    assert record is not None
    for policy, wanted in (("refuse", False), ("use", True)):
        goal = space.read(2, "goal")
        assert goal is not None
        spec = goal.spec.model_copy(update={"stale": policy})  # type: ignore[attr-defined]
        ctx = rounds._Foreseeing(space, 3, spec, cache, foreseen={"goal": goal.model_copy(update={"spec": spec})})
        found, why = rounds.standing(ctx, "data", record.key, record.inputs)
        assert (found is not None) is wanted
        assert why == "same key as round 2" if wanted else why.startswith("stale: ")
        assert rounds.standing(ctx, "data", "1" * 64, {})[0] is None
    kept = Recall(space)
    passes = [row.attempt for row in recorded(space) if row.attempt.verdict.passed and row.stage == "data"]
    now = [kept.of(attempt) for attempt in passes]
    assert len(first_clean_passes(now)) < len(first_clean_passes(passes))
    assert {one.verdict.verifier for one in now} == {tree_digest(space.root / "strict")}


def test_a_later_rescore_is_in_force(flipped: tuple[Workspace, Rescore], cache: Path, tmp_path: Path) -> None:
    space = copied(flipped[0], tmp_path / "loop")
    assert Recall(space).uses()
    calm = again(space, cache, alike(space.root / "alike"))
    assert (calm.number, calm.flips) == (2, [])
    assert Recall(space).uses() == []
    assert [one.number for one in space.rescores()] == [1, 2]


# --- prices


def test_new_rules_price_old_verdicts_without_a_sandbox(
    finished: Finished, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = copied(finished.space, tmp_path / "loop")
    (space.root / "rules.yaml").write_text("version: '2'\noutcome: 0.8\n")
    assert command(rules="rules.yaml", workspace=space.root, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    passed = {row.attempt.trajectory.id for row in recorded(finished.space) if row.attempt.verdict.passed}
    assert {flip["trajectory"] for flip in told["flips"]} == passed
    assert {flip["because"] for flip in told["flips"]} == {"outcome 1, now 0.8"}
    assert {round(flip["value_before"] - flip["value_after"], 6) for flip in told["flips"]} == {0.2}
    assert (told["judged"], told["verifiers"], told["proofs"]) == (0, {}, {})
    assert {use["use"] for use in told["stale"]} >= {"demonstration", "checkpoint"}
    assert StaleUse.model_validate(told["stale"][0])
    assert command(rules="outcome@2", workspace=space.root, rounds="1..2") == 0, "known by name now"
    shown = capsys.readouterr().out
    assert "rescore 1: " in shown
    assert "the smallest rebuild" in shown
    assert len(space.rescores()) == 1


def test_wrong_input_is_one_line_and_keeps_nothing(finished: Finished, tmp_path: Path) -> None:
    space = copied(finished.space, tmp_path / "loop")
    (space.root / "rules.yaml").write_text("outcome: 5.0\nbonus: 1\n")
    with pytest.raises(SpecError, match=r"rules\.yaml:2: bonus: "):
        command(rules="rules.yaml", workspace=space.root)
    for wrong, told in (
        ({"rules": "none@1"}, "--rules none@1: no such rules"),
        ({"verifier": ["nothing"]}, "bundle nothing: no such path"),
        ({"verifier": ["poem=cases"]}, "--verifier poem=cases: no kind poem"),
        ({"rounds": "7"}, "--rounds 7: there is no round 7; rounds: 1, 2"),
        ({"rounds": "1..9"}, "--rounds 1..9: there is no round 9; rounds: 1, 2"),
        ({"rounds": "2..1"}, "--rounds 2..1: ends before it begins; rounds: 1, 2"),
        ({"rounds": "x"}, "--rounds x: give a round or a range"),
    ):
        with pytest.raises(InputError, match=told):
            command(workspace=space.root, **wrong)  # type: ignore[arg-type]
    assert space.rescores() == []


def test_a_dry_run_keeps_nothing(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = copied(finished.space, tmp_path / "loop")
    (space.root / "rules.yaml").write_text("outcome: 0.9\n")
    assert command(rules="rules.yaml", workspace=space.root, dry_run=True) == 0
    assert "nothing was kept" in capsys.readouterr().out
    assert space.rescores() == []


# --- nothing is lost


def test_a_rescore_that_was_killed_before_its_commit_is_committed_by_the_next_start(
    finished: Finished, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = copied(finished.space, tmp_path / "loop")

    def dies(*_: object) -> bool:
        raise InfrastructureError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(git, "commit", dies)
        with pytest.raises(InfrastructureError, match="killed"):
            again(space, cache, None)
    with space.lock():
        assert space.rescores()[0].number == 1
    log = ["git", "log", "-1", "--format=%s", "--name-only"]
    told = subprocess.run(log, cwd=space.root, capture_output=True, text=True, check=True).stdout
    assert told.startswith("rescore 1\n")
    assert "rescores/0001.json" in told
    assert space.verify() == []
    path = space.root / "rescores" / "0001.json"
    path.write_text(path.read_text().replace('"number": 1', '"number": 0'))
    assert any("rescores/0001.json" in problem for problem in space.verify())


def test_a_checkpoint_that_goes_on_from_a_stale_one_is_stale(flipped: tuple[Workspace, Rescore]) -> None:
    space, _ = flipped
    sft = space.read(1, "sft")
    assert isinstance(sft, SftRecord)
    assert sft.checkpoint is not None
    uses = [use for use in Recall(space).uses() if use.use == "checkpoint" and use.stage == "rl"]
    assert all(use.flipped == 0 for use in uses), "no member of a group flipped: stale through its start alone"
    assert sft.checkpoint.weights in Recall(space).weights()

"""Recorded attempts run again: identical where nothing changed, and named where something did."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_loop import Cli, Finished

from environments.image import layer_digest
from environments.restored import restore_image
from flows.replay import replay as command
from schemas.backflow import BackflowRecord
from schemas.bucket import Bucket
from schemas.errors import InputError, IntegrityError, PinMismatch
from schemas.goal import GoalRecord
from schemas.replay import Level, Replay
from schemas.rl import RlRecord
from schemas.trajectory import Attempt
from stages import replay as subject
from stages.context import Context
from stages.recorded import Recorded, recorded
from stages.replay import steady
from stages.spec import dump_default
from stages.workspace import Workspace

LEVELS: tuple[Level, ...] = ("L0", "L1")
GIT = {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@pytest.fixture(scope="module")
def rows(finished: Finished) -> list[Recorded]:
    return recorded(finished.space)


@pytest.fixture(scope="module")
def cache(environment: dict[str, str]) -> Iterator[Path]:
    """This process uses the cache of the commands."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("POSTLOOP_CACHE", environment["POSTLOOP_CACHE"])
        yield Path(environment["POSTLOOP_CACHE"])


def again(finished: Finished, cache: Path, rows: list[Recorded], level: Level) -> list[Replay]:
    return list(subject.replay(finished.space, cache, rows, level))


def changed(row: Recorded, **trajectory: object) -> Recorded:
    attempt = row.attempt.model_copy(update={"trajectory": row.attempt.trajectory.model_copy(update=trajectory)})
    return replace(row, attempt=attempt)


def with_observation(rows: list[Recorded]) -> tuple[Recorded, int]:
    return next(
        (row, i) for row in rows for i, turn in enumerate(row.attempt.trajectory.turns) if turn.observation is not None
    )


def test_every_attempt_of_two_rounds_is_identical_twice(
    cli: Cli, finished: Finished, cache: Path, rows: list[Recorded]
) -> None:
    done = cli("replay", "--all", "-w", finished.root, "--json")
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    answers = json.loads(done.stdout)
    here = [one.model_dump(mode="json") for level in LEVELS for one in again(finished, cache, rows, level)]
    assert answers == here
    assert {(one["level"], one["same"]) for one in answers} == {("L0", True), ("L1", True)}
    assert len(answers) == 2 * len(rows) > 50
    assert len({row.attempt.trajectory.id for row in rows}) == len(rows)
    assert {row.stage for row in rows} == {"data", "sft", "rl", "evaluation", "backflow"}


def test_nothing_to_replay_is_not_all_identical(cli: Cli, tmp_path: Path) -> None:
    Workspace.create(tmp_path / "new", dump_default("tiny"))
    done = cli("replay", "--all", "-w", tmp_path / "new")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no round has recorded an attempt yet; run `postloop run`" in done.stderr


def test_sampling_again_gives_the_same_tokens_or_says_why_not(
    finished: Finished, cache: Path, rows: list[Recorded]
) -> None:
    answers = again(finished, cache, rows, "regenerate")
    assert [one for one in answers if one.same is False] == []
    identical = {one.stage for one in answers if one.same}
    assert identical >= {"data", "sft", "evaluation", "backflow"}
    assert {one.same for one in answers if one.stage == "data"} == {True}
    assert all(one.reason for one in answers if one.same is None)
    assert not any(one.infrastructure for one in answers)


@pytest.mark.parametrize(("start", "known"), [("champion", True), ("base", False)])
def test_a_round_that_began_with_an_earlier_champion_has_its_weights_to_sample_with(
    finished: Finished, tmp_path: Path, start: str, known: bool
) -> None:
    """Its rejection samples are of that policy, which no stage of the round itself trained."""
    root = tmp_path / "loop"
    shutil.copytree(finished.root, root, symlinks=True)
    space = Workspace.open(root)
    rl, promoted, goal = space.read(1, "rl"), space.read(1, "evaluation"), space.read(2, "goal")
    assert isinstance(rl, RlRecord)
    assert rl.checkpoint is not None
    assert promoted is not None
    assert isinstance(goal, GoalRecord)
    checkpoint = rl.artifacts["checkpoint"]
    artifacts = {**promoted.artifacts, "champion": checkpoint.model_copy(update={"name": "champion"})}
    changes = {"artifacts": artifacts, "champion": rl.checkpoint.weights}
    (space.folder(1) / "evaluation.json").write_text(promoted.model_copy(update=changes).model_dump_json())
    spec = goal.spec.model_copy(update={"start": start})
    (space.folder(2) / "goal.json").write_text(goal.model_copy(update={"spec": spec}).model_dump_json())
    found = subject.policy_folder(Context(space, 2, spec, tmp_path), rl.checkpoint.weights)
    assert found == (root / checkpoint.path if known else None)


def test_another_observation_is_named_with_its_turn_and_both_sides(
    finished: Finished, cache: Path, rows: list[Recorded]
) -> None:
    row, index = with_observation(rows)
    turns = list(row.attempt.trajectory.turns)
    turns[index] = turns[index].model_copy(update={"observation": f"not so: {turns[index].observation}"})
    (answer,) = again(finished, cache, [changed(row, turns=turns)], "L1")
    assert answer.first is not None
    assert answer.first.where == f"turn {index + 1}: observation"
    assert answer.first.recorded.startswith("not so: ")
    assert not answer.first.now.startswith("not so: ")


def test_another_action_is_executed_and_seen(finished: Finished, cache: Path, rows: list[Recorded]) -> None:
    """The record says that another text was written: what came of it then does not come of it now."""
    row = next(row for row in rows if row.attempt.verdict.passed and row.attempt.trajectory.outcome)
    turns = [turn.model_copy(update={"text": "nothing of use"}) for turn in row.attempt.trajectory.turns]
    (answer,) = again(finished, cache, [changed(row, turns=turns)], "L1")
    assert answer.same is False
    assert answer.first is not None
    assert answer.first.where.startswith("turn 1: ")


def test_another_verdict_is_named(finished: Finished, cache: Path, rows: list[Recorded]) -> None:
    row = next(row for row in rows if row.attempt.verdict.passed and row.attempt.verdict.checks)
    verdict = row.attempt.verdict
    check = verdict.checks[0].model_copy(update={"passed": False})
    for update, where in (
        ({"passed": False}, "verdict.passed"),
        ({"checks": [check, *verdict.checks[1:]]}, "verdict.checks[0]"),
        ({"verifier": "f" * 64}, "verdict.verifier"),
    ):
        other = replace(
            row, attempt=Attempt.model_validate({**dict(row.attempt), "verdict": verdict.model_copy(update=update)})
        )
        (answer,) = again(finished, cache, [other], "L0")
        assert answer.first is not None
        assert answer.first.where == where


def test_another_seed_or_task_is_another_attempt(finished: Finished, cache: Path, rows: list[Recorded]) -> None:
    row = next(row for row in rows if row.stage == "evaluation")
    token = changed(
        row, turns=[turn.model_copy(update={"completion_ids": [1]}) for turn in row.attempt.trajectory.turns]
    )
    (answer,) = again(finished, cache, [token], "regenerate")
    assert answer.first is not None
    assert answer.first.where == "turn 1: token 0"
    (gone,) = again(finished, cache, [changed(row, task="0" * 64)], "L1")
    assert gone.same is None
    assert "is not among those of round" in (gone.reason or "")


def test_what_infrastructure_broke_is_neither_identical_nor_different(
    finished: Finished, cache: Path, rows: list[Recorded]
) -> None:
    (answer,) = again(finished, cache, [changed(rows[0], status="error", reason="the disk was full")], "L1")
    assert (answer.same, answer.first, answer.infrastructure) == (None, None, False)
    assert answer.reason == "infrastructure broke it then: the disk was full"


def test_where_the_image_would_be_another_one_the_kept_layer_is_used(
    finished: Finished, cache: Path, rows: list[Recorded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine with another Python: what it would build has another layer."""
    from stages import equipment

    built = equipment.image_of

    def other(*arguments: object) -> object:
        environment, root = built(*arguments)  # type: ignore[arg-type]
        return environment.model_copy(update={"layer": "0" * 64}), root

    monkeypatch.setattr(equipment, "image_of", other)
    chosen = [row for row in rows if row.stage == "backflow"]
    answers = again(finished, cache, chosen, "L1")
    assert {one.same for one in answers} == {True}
    goal = finished.space.read(1, "goal")
    assert isinstance(goal, GoalRecord)
    layer = finished.space.open_artifact(goal.artifacts["image"]) / "layer.tar"
    damaged = tmp_path / "layer.tar"
    damaged.write_bytes(layer.read_bytes()[:-512] + bytes(511) + b"x")
    with pytest.raises(IntegrityError, match="recorded layer"):
        restore_image(tmp_path / "images", goal.environment, damaged)
    without = goal.model_copy(update={"artifacts": {k: v for k, v in goal.artifacts.items() if k != "image"}})
    read = Workspace.read
    monkeypatch.setattr(Workspace, "read", lambda self, n, stage: without if stage == "goal" else read(self, n, stage))
    with pytest.raises(PinMismatch, match=r"replay: pin environment differs: recorded [0-9a-f]{12}, now 000000000000"):
        again(finished, cache, chosen, "L1")


def test_replays_that_share_a_cache_restore_an_image_once(finished: Finished, tmp_path: Path) -> None:
    goal = finished.space.read(1, "goal")
    assert isinstance(goal, GoalRecord)
    layer = finished.space.open_artifact(goal.artifacts["image"]) / "layer.tar"
    with ThreadPoolExecutor(2) as pool:
        images = list(pool.map(lambda _: restore_image(tmp_path / "images", goal.environment, layer), range(2)))
    assert images[0] == images[1]
    assert layer_digest(images[0].root) == goal.environment.layer


def test_other_libraries_refuse_to_sample_again_and_not_to_replay(
    finished: Finished, cache: Path, rows: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "libraries_digest", lambda stage: "0" * 64)
    with pytest.raises(
        PinMismatch, match=r"regenerate: pin libraries differs: recorded [0-9a-f]{12}, now 000000000000; install"
    ):
        again(finished, cache, rows[-1:], "regenerate")
    assert again(finished, cache, rows[-1:], "L0")[0].same


def test_only_what_is_declared_volatile_is_made_equal() -> None:
    text = "took 0.31s at 2026-11-30 07:01:02, <f at 0x7f00aa11bb22> in /tmp/tmpab12cd34/x.py"
    assert (
        steady(text, ["times", "addresses", "temporary_names"])
        == "took <times> at <times>, <f at <addresses>> in <temporary_names>"
    )
    assert steady(text, []) == text
    assert "0x7f00aa11bb22" in steady(text, ["times"])


def test_attempts_are_named_by_id_bucket_or_all(cli: Cli, finished: Finished, rows: list[Recorded]) -> None:
    name = rows[-1].attempt.trajectory.id
    done = cli("replay", name[:-2], "-w", finished.root)
    assert done.returncode == 0, done.stderr
    assert "L0: 1 attempts, 1 identical" in done.stdout
    bucket = a_bucket(finished)
    told = json.loads(cli("replay", "--bucket", bucket.id, "-w", finished.root, "--json").stdout)
    assert {one["trajectory"] for one in told} >= set(bucket.members)
    for arguments, said in (
        ({}, "give ids, --all or --bucket"),
        ({"names": [name], "everything": True}, "give ids, --all or --bucket"),
        ({"names": ["nothing"]}, "no trajectory of this workspace"),
        ({"names": ["attribution-"]}, "give more digits"),
        ({"bucket": "xyz"}, "no bucket of this workspace"),
    ):
        with pytest.raises(InputError, match=said):
            command(workspace=finished.root, **arguments)  # type: ignore[arg-type]


def test_a_second_clone_pulls_and_replays_identically(cli: Cli, finished: Finished, tmp_path: Path) -> None:
    """Another place with nothing but the repository and a remote."""
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(finished.root, here, symlinks=True)
    with pytest.raises(InputError, match="no default remote is set"):
        Workspace.open(here).push()
    run(sys.executable, "-m", "dvc", "remote", "add", "--default", "store", str(tmp_path / "remote"), cwd=here)
    run("git", "commit", "--quiet", "--all", "--message", "name a remote", cwd=here)
    assert cli("push", "-w", here).returncode == 0
    run("git", "clone", "--quiet", str(here), str(there), cwd=tmp_path)
    pulled = cli("pull", "-w", there, "--json")
    assert pulled.returncode == 0, pulled.stderr
    assert len(json.loads(pulled.stdout)["restored"]) == len(finished.space.refs())
    bucket, cold = a_bucket(finished).id, {"POSTLOOP_CACHE": str(tmp_path / "cache")}
    done = cli("replay", "--bucket", bucket, "-w", there, "--json", env=cold)
    assert done.returncode == 0, done.stderr
    assert {one["same"] for one in json.loads(done.stdout)} == {True}


def a_bucket(finished: Finished) -> Bucket:
    record = finished.space.read(2, "backflow")
    assert isinstance(record, BackflowRecord)
    return record.buckets[0]


def run(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **GIT})
    assert done.returncode == 0, done.stderr

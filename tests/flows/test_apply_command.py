"""`postloop apply`: an approved change of goal.yaml and nothing else, and the old samples priced under it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flows.cli import app
from schemas.bucket import Bucket, Material, Route
from stages.spec import load_spec
from stages.workspace import Workspace
from tests import fabricated

SETTING = fabricated.bucket("wrong_setting", Route.EVALUATION, size=4)
REWARD = fabricated.bucket("reward_conflict", Route.GOAL, size=3)
WRITTEN = fabricated.bucket("weak", Route.GOAL, size=2)
NEVER = fabricated.bucket("never", Route.DATA, size=6)


def proposal(bucket: Bucket, **edits: object) -> Material:
    named = {name.replace("__", "."): value for name, value in edits.items()}
    return Material.model_validate(
        {"kind": "proposal", "bucket": bucket.id, "route": bucket.route, "family": bucket.family, "amount": 0,
         "approved": False, "subject": f"the {bucket.cause}", "edits": named}
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    space = fabricated.workspace(tmp_path_factory.mktemp("made") / "loop")
    material = [
        proposal(SETTING, evaluation__temperature=0.5),
        proposal(REWARD, rewards__unchanged=-0.1),
        proposal(WRITTEN),
        fabricated.tasks_for(NEVER),
    ]
    fabricated.leave(space, 1, [SETTING, REWARD, WRITTEN, NEVER], material)
    return space.root


@pytest.fixture
def space(made: Path, tmp_path: Path) -> Workspace:
    shutil.copytree(made, tmp_path / "loop", symlinks=True)
    return Workspace.open(tmp_path / "loop")


def postloop(space: Workspace, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "-w", str(space.root)])


def approve(space: Workspace, bucket: Bucket) -> None:
    assert postloop(space, "decide", bucket.id, "--approve", "--because", "I read it").exit_code == 0


def refused(space: Workspace, *words: str) -> str:
    before = space.spec_path.read_bytes()
    done = postloop(space, "apply", *words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert space.spec_path.read_bytes() == before
    assert not list(space.root.glob(".goal-*"))
    (line,) = done.stderr.splitlines()
    return line


def test_an_approved_setting_is_written_once_and_the_rest_stays(space: Workspace) -> None:
    before = space.spec_path.read_text()
    assert "nobody approved its proposal (the wrong_setting)" in refused(space, SETTING.id)
    approve(space, SETTING)
    shown = postloop(space, "apply", SETTING.id, "--dry-run")
    assert (shown.exit_code, space.spec_path.read_text()) == (0, before)
    done = postloop(space, "apply", SETTING.id[:6])
    assert done.exit_code == 0, done.output
    assert shown.stdout == done.stdout
    assert "+  temperature: 0.5\n" in done.stdout
    assert load_spec(space.spec_path).evaluation.temperature == 0.5
    after = space.spec_path.read_text()
    assert [line for line in after.splitlines() if line not in before.splitlines()] == ["  temperature: 0.5"]
    again = postloop(space, "apply", SETTING.id)
    assert (again.exit_code, again.stdout) == (0, "goal.yaml has it already: evaluation.temperature\n")


def test_a_changed_price_is_written_and_old_samples_are_priced_anew(space: Workspace) -> None:
    approve(space, REWARD)
    done = postloop(space, "apply", REWARD.id)
    assert done.exit_code == 0, done.output
    assert load_spec(space.spec_path).rewards.unchanged == -0.1
    assert "rescore 1: 0 attempts" in done.stdout
    assert "rules outcome@1" in done.stdout
    assert postloop(space, "apply", REWARD.id).stdout == "goal.yaml has it already: rewards.unchanged\n"


def test_what_cannot_be_applied_is_one_line_and_changes_nothing(space: Workspace) -> None:
    assert "no such bucket" in refused(space, "ffff")
    assert "--round 7: has no buckets" in refused(space, SETTING.id, "--round", "7")
    assert "has no proposal for it" in refused(space, NEVER.id)
    approve(space, WRITTEN)
    assert "its change is a person's to write (the weak)" in refused(space, WRITTEN.id)
    approve(space, SETTING)
    text = space.spec_path.read_text()
    held = text[text.index("evaluation:\n") : text.index("backflow:")]
    (space.root / "evaluation.yaml").write_text("\n".join(line[2:] for line in held.splitlines()[1:]))
    space.spec_path.write_text(text.replace(held, "evaluation: evaluation.yaml\n"))
    assert "evaluation is 'evaluation.yaml', no mapping" in refused(space, SETTING.id)

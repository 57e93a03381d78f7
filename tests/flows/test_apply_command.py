"""`postloop apply`: an approved change of goal.yaml and nothing else, and the old samples priced under it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
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
HOLE = fabricated.bucket("verifier_hole", Route.GOAL, size=3)
OLD = fabricated.bucket("verifier_too_strict", Route.GOAL, size=3)
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
        proposal(HOLE, verifier="pytest_files", audit_verifier=None),
        proposal(OLD, verifier="pytest_files"),
        fabricated.tasks_for(NEVER),
    ]
    fabricated.leave(space, 1, [SETTING, REWARD, WRITTEN, HOLE, OLD, NEVER], material)
    return space.root


@pytest.fixture
def space(made: Path, tmp_path: Path) -> Workspace:
    shutil.copytree(made, tmp_path / "loop", symlinks=True)
    return Workspace.open(tmp_path / "loop")


def postloop(space: Workspace, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "-w", str(space.root)])


def approve(space: Workspace, bucket: Bucket) -> None:
    assert postloop(space, "decide", bucket.id, "--approve", "--because", "I read it").exit_code == 0


def refused(space: Workspace, *words: str, code: int = 2) -> str:
    before = space.spec_path.read_bytes()
    done = postloop(space, "apply", *words)
    assert (done.exit_code, done.stdout) == (code, ""), done.output
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
    again = postloop(space, "apply", REWARD.id)
    assert again.stdout.startswith("goal.yaml has it already: rewards.unchanged\nrescore 1: 0 attempts")


def test_a_rescoring_that_was_cut_off_is_made_up_for(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    approve(space, REWARD)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("flows.apply.judged_again", killed)
        assert postloop(space, "apply", REWARD.id).exit_code == 130
    assert load_spec(space.spec_path).rewards.unchanged == -0.1
    done = postloop(space, "apply", REWARD.id)
    assert (done.exit_code, done.stdout.splitlines()[1][:9]) == (0, "rescore 1")


def test_with_json_it_is_scored_again_too_and_all_of_it_is_one_document(space: Workspace) -> None:
    approve(space, REWARD)
    approve(space, SETTING)
    told = json.loads(postloop(space, "apply", REWARD.id, "--json").stdout)
    assert (told["written"], told["rescore"]["attempts"], told["rescore"]["rewards"]["unchanged"]) == (True, 0, -0.1)
    assert "+" in told["difference"]
    again = json.loads(postloop(space, "apply", REWARD.id, "--json").stdout)
    assert (again["written"], again["difference"], again["rescore"]["key"]) == (False, "", told["rescore"]["key"])
    assert json.loads(postloop(space, "apply", SETTING.id, "--json").stdout)["rescore"] is None
    dry = json.loads(postloop(space, "apply", REWARD.id, "--json", "--dry-run").stdout)
    assert (dry["written"], dry["rescore"]) == (False, None)


def test_while_a_round_runs_nothing_is_written(space: Workspace) -> None:
    approve(space, REWARD)
    script = (
        "import sys; from pathlib import Path; from stages.workspace import Workspace\n"
        "with Workspace.open(Path(sys.argv[1])).lock():\n    print('held', flush=True); sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", script, str(space.root)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert f"process {holder.pid} is running in it" in refused(space, REWARD.id, code=3)
        holder.communicate("", timeout=20)
    assert postloop(space, "apply", REWARD.id).exit_code == 0


def test_a_change_made_from_another_value_is_refused_and_what_is_there_already_is_not(space: Workspace) -> None:
    approve(space, REWARD)
    text = space.spec_path.read_text()
    space.spec_path.write_text(f"{text}rewards: {{unchanged: -0.3, partial: 0.1}}\n")
    line = refused(space, REWARD.id)
    assert "rewards.unchanged is -0.3, and it was 0.0 when the change to -0.1 was proposed; set it back, or" in line
    space.spec_path.write_text(f"{text}rewards: {{unchanged: -0.1}}\n")
    assert postloop(space, "apply", REWARD.id).stdout.startswith("goal.yaml has it already: rewards.unchanged\n")


def test_a_field_is_added_to_its_own_mapping_behind_a_block_of_lines(space: Workspace) -> None:
    approve(space, SETTING)
    tree = yaml.safe_load(space.spec_path.read_text())
    sampling = tree.pop("sampling")
    del sampling["temperature"]
    evaluation = {**tree.pop("evaluation"), "promotion_suite": "LAST"}
    text = yaml.safe_dump({**tree, "evaluation": evaluation}, sort_keys=False).replace("LAST", ">-\n    held_out")
    space.spec_path.write_text(text + yaml.safe_dump({"sampling": sampling}))
    before = load_spec(space.spec_path)
    assert postloop(space, "apply", SETTING.id).exit_code == 0
    after = load_spec(space.spec_path)
    assert after.evaluation == before.evaluation.model_copy(update={"temperature": 0.5})
    assert after.sampling == before.sampling


def test_a_link_and_the_mode_of_goal_yaml_stay(space: Workspace, tmp_path: Path) -> None:
    approve(space, SETTING)
    real = tmp_path / "shared.yaml"
    space.spec_path.rename(real)
    real.chmod(0o664)
    space.spec_path.symlink_to(real)
    assert postloop(space, "apply", SETTING.id).exit_code == 0
    assert space.spec_path.is_symlink()
    assert (load_spec(space.spec_path).evaluation.temperature, real.stat().st_mode & 0o777) == (0.5, 0o664)


def test_an_audit_verifier_that_becomes_the_verifier_audits_no_more(space: Workspace) -> None:
    approve(space, HOLE)
    approve(space, OLD)
    assert "audit_verifier: 'pytest_files' is the verifier 'pytest_files' itself" in refused(space, OLD.id)
    assert postloop(space, "apply", HOLE.id).exit_code == 0
    spec = load_spec(space.spec_path)
    assert (spec.verifier, spec.audit_verifier) == ("pytest_files", None)


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

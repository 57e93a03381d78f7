"""`postloop decide`, labels given in MLflow, and the wait for people before a round's goal."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flows.cli import app
from flows.decide import pull_assessments, take_in_labels
from flows.review import track
from schemas.bucket import Material, Route
from stages.attributed import keep
from stages.decisions import decisions
from stages.goal import inputs, merged
from stages.workspace import Workspace
from tests import fabricated
from tests.reports import synthetic
from tests.stages.test_attributed import answer

ATTEMPTS = [synthetic.attempt(index, "x") for index in range(4)]
IDS = [attempt.trajectory.id for attempt in ATTEMPTS]
NEVER = fabricated.bucket("never", Route.DATA, size=6, members=IDS[:2], example=IDS[0])
ODD = fabricated.bucket("odd", Route.UNDETERMINED, size=4, members=IDS[2:3], example=IDS[2])
WEAK = fabricated.bucket("weak", Route.GOAL, size=2, members=IDS[3:4], example=IDS[3])
PROPOSAL = Material(kind="proposal", bucket=WEAK.id, route=Route.GOAL, family=WEAK.family, amount=0, approved=False)
WAITING = "{tasks: 4, samples: 2, max_buckets: 2, new_tasks: 3, demonstrations: 2, approval: wait, wait_s: 20}"


def fill(space: Workspace) -> Workspace:
    fabricated.leave(space, 1, [NEVER, ODD, WEAK], [fabricated.tasks_for(NEVER), PROPOSAL], attempts=ATTEMPTS)
    return space


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(fabricated.workspace(tmp_path_factory.mktemp("made") / "loop")).root


@pytest.fixture
def space(made: Path, tmp_path: Path) -> Workspace:
    shutil.copytree(made, tmp_path / "loop", symlinks=True)
    return Workspace.open(tmp_path / "loop")


def postloop(space: Workspace, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "-w", str(space.root)])


def refused(space: Workspace, *words: str) -> str:
    """The one line, with nothing written."""
    before = sorted((space.root / "decisions").iterdir())
    done = postloop(space, "decide", *words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert sorted((space.root / "decisions").iterdir()) == before
    (line,) = done.stderr.splitlines()
    return line


# --- the command


def test_a_bucket_is_given_to_another_owner_by_the_start_of_its_id(space: Workspace) -> None:
    done = postloop(space, "decide", NEVER.id[:6], "--route", "sft", "--because", "the format is wrong", "--who", "ann")
    assert done.exit_code == 0, done.output
    (decision,) = decisions(space)
    assert (decision.bucket, decision.round, decision.route, decision.who) == (NEVER.id, 1, Route.SFT, "ann")
    assert decision.id in done.stdout
    assert "from the goal stage of round 2 on" in done.stdout
    assert merged(fabricated.context(space, 2)).material[0].kind == "demonstrations"
    again = postloop(space, "decide", NEVER.id, "--route", "sft", "--because", "the format is wrong", "--who", "ann")
    assert "says the same and is in force" in again.stdout
    assert decisions(space) == [decision]


def test_who_decides_is_whom_git_knows_else_the_login(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gitconfig").write_text("[user]\n\tname = Ann of Git\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    assert postloop(space, "decide", NEVER.id, "--approve", "--because", "good").exit_code == 0
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("USER", "bob")
    done = postloop(space, "decide", NEVER.id, "--reject", "--because", "not so good", "--json")
    assert json.loads(done.stdout)[0]["who"] == "bob"
    assert [one.who for one in decisions(space)] == ["Ann of Git", "bob"]


def test_what_says_nothing_or_speaks_of_nothing_is_one_line(space: Workspace) -> None:
    why = ("--because", "x")
    assert "bucket ffff: no such bucket; rounds with buckets: 1" in refused(space, "ffff", "--route", "rl", *why)
    assert f"bucket {NEVER.id}: nothing is decided; give --route" in refused(space, NEVER.id, *why)
    assert "--because is empty" in refused(space, NEVER.id, "--route", "rl")
    assert "--because is empty" in refused(space, NEVER.id, "--route", "rl", "--because", "  ")
    assert "--route banana: no such route; one of goal, data" in refused(space, NEVER.id, "--route", "banana", *why)
    assert "--round 7: has no buckets; rounds that do: 1" in refused(space, NEVER.id, "--approve", "--round", "7", *why)
    assert "made no material for it" in refused(space, ODD.id, "--approve", *why)
    assert postloop(space, "decide", NEVER.id, "--route", "infrastructure", *why).exit_code == 0
    assert "and infrastructure, to whom decision" in refused(space, NEVER.id, "--approve", *why)
    assert "no failure of bucket" in refused(space, NEVER.id, "--trajectory", IDS[3], "--reject", *why)
    assert "name a bucket" in refused(space, "--route", "rl", *why)
    assert "takes no bucket" in refused(space, NEVER.id, "--from-mlflow")


@pytest.mark.parametrize("field", ["who", "because"])
def test_bytes_that_are_no_text_are_one_line(space: Workspace, field: str) -> None:
    said = {"who": "ann", "because": "x", field: "x\udcff"}
    line = refused(space, NEVER.id, "--reject", "--who", said["who"], "--because", said["because"])
    assert f"bucket {NEVER.id}: {field} 'x\\udcff': not UTF-8" in line


def test_an_ambiguous_start_names_those_that_it_means(tmp_path: Path) -> None:
    twins = [NEVER.model_copy(update={"id": f"abc{n}" + "0" * 8}) for n in range(2)]
    space = fabricated.workspace(tmp_path / "loop")
    fabricated.leave(space, 1, twins)
    line = refused(space, "abc", "--route", "rl", "--because", "x")
    assert "bucket abc: names 2 of round 1" in line
    assert twins[1].id in line


def test_while_a_round_runs_a_decision_is_kept_and_the_round_commits_it(space: Workspace) -> None:
    script = (
        "import sys, time; from pathlib import Path; from stages.workspace import Workspace\n"
        "space = Workspace.open(Path(sys.argv[1]))\n"
        "with space.lock():\n    print('held', flush=True); sys.stdin.read(); print(space.settle_appended(), flush=True)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(space.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    done = postloop(space, "decide", NEVER.id, "--route", "rl", "--because", "x")
    assert done.exit_code == 0, done.output
    assert "a round runs in this workspace; it commits the decision" in done.stderr
    told, _ = holder.communicate("", timeout=20)
    assert told == f"['decision {decisions(space)[0].id}']\n"


def test_verify_finds_a_decision_that_was_edited(space: Workspace) -> None:
    assert postloop(space, "decide", NEVER.id, "--reject", "--because", "x", "--who", "ann").exit_code == 0
    assert postloop(space, "verify").exit_code == 0
    (path,) = (space.root / "decisions").glob("*.json")
    path.write_text(path.read_text().replace('"ann"', '"bob"'))
    done = postloop(space, "verify")
    assert (done.exit_code, done.stdout.split(": its content")[0]) == (1, f"decisions/{path.name}")


def test_verify_finds_what_was_deleted_or_changed_since_its_commit_and_minds_no_other_file(space: Workspace) -> None:
    assert postloop(space, "decide", NEVER.id, "--reject", "--because", "x", "--who", "ann").exit_code == 0
    keep(space, [answer("a-1")], "2026-03-01T08:00:00.000+00:00")
    for folder in ("decisions", "attributions"):
        (space.root / folder / "notes.json").write_text("{}")
    assert postloop(space, "verify").exit_code == 0, "what is not committed yet was appended while a round runs"
    with space.lock():
        pass
    for folder in ("decisions", "attributions"):
        (path,) = (one for one in (space.root / folder).glob("*.json") if one.name != "notes.json")
        before, name = path.read_bytes(), f"{folder}/{path.name}"
        path.write_bytes(re.sub(rb'("when": "20)\d\d', rb"\g<1>01", before))
        remedy = f"restore it with `git checkout HEAD -- {name}`"
        done = postloop(space, "verify")
        assert (done.exit_code, done.stdout) == (1, f"{name}: differs from its commit; {remedy}\n")
        path.unlink()
        done = postloop(space, "verify")
        assert (done.exit_code, done.stdout) == (1, f"{name}: is gone; {remedy}\n")
        subprocess.run(["git", "checkout", "-q", "HEAD", "--", name], cwd=space.root, check=True)
        assert path.read_bytes() == before
    assert postloop(space, "verify").exit_code == 0


def test_failures_show_the_material_as_people_want_it_and_the_ledger_all_rounds(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert postloop(space, "decide", NEVER.id, "--reject", "--because", "x", "--who", "ann").exit_code == 0
    shown = postloop(space, "failures").stdout
    assert "3 tasks: waits" in shown
    assert "rejected by ann" in shown
    fabricated.leave(space, 2, [NEVER], [fabricated.tasks_for(NEVER)], [fabricated.change(NEVER, "grew", False)])
    done = postloop(space, "failures", "--ledger")
    assert done.exit_code == 0, done.output
    text = (space.root / "reports" / "ledger.md").read_text()
    (first,) = [line for line in text.splitlines() if line.startswith(f"| 1 | {NEVER.id}")]
    assert "| untreated | grew -0.10 |" in first
    (second,) = [line for line in text.splitlines() if line.startswith(f"| 2 | {NEVER.id}")]
    assert "| 3 tasks | – |" in second
    rows = json.loads(postloop(space, "failures", "1", "--ledger", "--json").stdout)
    assert [(row["round"], row["bucket"]) for row in rows] == [(1, NEVER.id), (1, ODD.id), (1, WEAK.id)]
    assert subprocess.run(["git", "status", "--porcelain"], cwd=space.root, capture_output=True).stdout == b""


def test_the_matrix_has_the_rounds_of_each_bucket(space: Workspace) -> None:
    fabricated.leave(space, 2, [NEVER], (), [fabricated.change(NEVER, "grew")])
    done = postloop(space, "failures", "--matrix")
    assert done.exit_code == 0, done.output
    assert re.search(r"cause / family +round 1 +round 2\nnever +6/10 +6/10\n.*treated +untreated\n +grew", done.stdout)
    assert re.search(r"\nodd +4/10 +–\n", done.stdout)
    rows = json.loads(postloop(space, "failures", "--matrix", "--json").stdout)
    assert [(row["round"], len(row["buckets"])) for row in rows] == [(1, 3), (2, 1)]
    both = postloop(space, "failures", "--matrix", "--ledger")
    assert (both.exit_code, both.stderr) == (2, "postloop: --ledger and --matrix: give one of the two\n")


# --- labels in MLflow


def traces(space: Workspace, uri: str) -> dict[str, Any]:
    """Trajectory -> its trace, of what the loop told MLflow."""
    from reports.tracking import client_of

    with client_of(uri) as client:
        found = client.get_experiment_by_name("tiny")
        return {t.info.tags["postloop.trajectory"]: t for t in client.search_traces(locations=[found.experiment_id])}


def label(uri: str, trace: Any, name: str, value: object, who: str = "ann", kind: str = "HUMAN") -> None:
    import mlflow
    from mlflow.entities import AssessmentSource

    from reports.tracking import client_of

    with client_of(uri):
        source = AssessmentSource(source_type=kind, source_id=who)
        mlflow.log_feedback(trace_id=trace.info.trace_id, name=name, value=value, source=source, rationale="I read it")
    time.sleep(0.002)  # MLflow's clock counts milliseconds


@pytest.fixture(scope="module")
def tracked(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `made`, and MLflow has been told."""
    root = tmp_path_factory.mktemp("tracked") / "loop"
    shutil.copytree(made, root, symlinks=True)
    track(Workspace.open(root), 1, "backflow")
    return root


@pytest.fixture
def told(tracked: Path, tmp_path: Path) -> tuple[Workspace, str]:
    from reports.tracking import default_uri

    shutil.copytree(tracked, tmp_path / "told", symlinks=True)
    return Workspace.open(tmp_path / "told"), default_uri(tmp_path / "told")


def test_a_label_on_a_trace_changes_the_route_and_the_next_rounds_material(
    told: tuple[Workspace, str], capsys: pytest.CaptureFixture[str]
) -> None:
    space, uri = told
    by = traces(space, uri)
    before = inputs(fabricated.context(space, 2))[0]
    label(uri, by[IDS[1]], "route", "sft")
    label(uri, by[IDS[3]], "approve", True)
    kept = pull_assessments(space)
    assert {(one.bucket, one.route, one.approve, one.who, one.source) for one in kept} == {
        (NEVER.id, Route.SFT, None, "ann", "mlflow"),
        (WEAK.id, None, True, "ann", "mlflow"),
    }
    assert all("I read it (label of 20" in one.because and "on attribution-" in one.because for one in kept)
    after = inputs(fabricated.context(space, 2))[0]
    assert [item["kind"] for item in before["material"]] == ["tasks"]  # type: ignore[union-attr,index,call-overload]
    assert [item["kind"] for item in after["material"]] == ["demonstrations", "proposal"]  # type: ignore[union-attr,index,call-overload]
    assert after["decisions"] == sorted(one.id for one in kept)
    assert pull_assessments(space) == []
    assert capsys.readouterr().err == ""


def test_what_code_proposed_is_no_label_and_what_means_nothing_is_told_and_left(
    told: tuple[Workspace, str], capsys: pytest.CaptureFixture[str]
) -> None:
    space, uri = told
    trace = traces(space, uri)[IDS[0]]
    assert {(a.name, a.value) for a in trace.info.assessments} == {("bucket", "never"), ("route", "data")}
    label(uri, trace, "route", "rl", kind="LLM_JUDGE")
    label(uri, trace, "helpful", True)
    assert pull_assessments(space) == []
    assert capsys.readouterr().err == ""
    label(uri, trace, "route", "banana")
    label(uri, trace, "approve", "certainly")
    done = postloop(space, "decide", "--from-mlflow")
    assert (done.exit_code, done.stdout) == (0, "no new label in MLflow\n")
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "label route 'banana' by ann on attribution-" in lines[0]
    assert "no such route; one of goal, data" in lines[0]
    assert "neither true nor false; ignored" in lines[1]


@pytest.mark.parametrize(("name", "value"), [("route", ["rl"]), ("route", {"to": "rl"}), ("approve", [True])])
def test_a_label_whose_value_is_no_word_is_told_and_left_and_the_round_goes_on(
    told: tuple[Workspace, str], capsys: pytest.CaptureFixture[str], name: str, value: object
) -> None:
    space, uri = told
    by = traces(space, uri)
    label(uri, by[IDS[0]], name, value)
    label(uri, by[IDS[2]], "route", "data")
    take_in_labels(space)
    assert [one.bucket for one in decisions(space)] == [ODD.id]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"postloop: MLflow label {name} {value!r} by ann on ")
    assert line.endswith("; ignored")


def correct(uri: str, trace: Any, value: object, who: str = "ann") -> None:
    """As MLflow's page does it when a person edits what code proposed: an assessment of their own that overrides it."""
    import mlflow
    from mlflow.entities import AssessmentSource

    from reports.tracking import client_of

    with client_of(uri):
        (proposed,) = [one for one in trace.info.assessments if one.name == "bucket"]
        source = AssessmentSource(source_type="HUMAN", source_id=who)
        mlflow.override_feedback(
            trace_id=trace.info.trace_id, assessment_id=proposed.assessment_id, value=value, source=source,
            rationale="it only copies",
        )  # fmt: skip
    time.sleep(0.002)


def test_a_corrected_bucket_gives_the_failures_to_the_owner_of_that_cause(
    told: tuple[Workspace, str], capsys: pytest.CaptureFixture[str]
) -> None:
    space, uri = told
    by = traces(space, uri)
    label(uri, by[IDS[1]], "route", "rl", "bob")
    correct(uri, by[IDS[0]], "returns_unchanged")
    (decision,) = pull_assessments(space)
    assert (decision.bucket, decision.route, decision.who, decision.source) == (NEVER.id, Route.SFT, "ann", "mlflow")
    assert decision.because.startswith("the cause is returns_unchanged: it only copies (label of 20")
    assert [item.kind for item in merged(fabricated.context(space, 2)).material] == ["demonstrations"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "disagree: route 'rl' by bob on " in line
    assert "and bucket 'returns_unchanged', so route 'sft' by ann on " in line
    assert pull_assessments(space) == []


def test_a_corrected_bucket_follows_the_routes_of_its_round(told: tuple[Workspace, str]) -> None:
    """Of the goal that the round recorded, not of a goal.yaml that was edited since."""
    space, uri = told
    space.spec_path.write_text(
        f"{space.spec_path.read_text()}\nroutes:\n  - {{id: all, cause: returns_unchanged, route: rl, when: {{}}, because: x}}\n"
    )
    correct(uri, traces(space, uri)[IDS[0]], "returns_unchanged")
    assert [one.route for one in pull_assessments(space)] == [Route.SFT]


@pytest.mark.parametrize(
    ("value", "why"),
    [("banana\x1b[2J", "no rule has it; known: argument_fidelity, "), (["protocol"], "no cause, which is a word")],
)
def test_a_bucket_that_no_rule_knows_is_told_and_left(
    told: tuple[Workspace, str], capsys: pytest.CaptureFixture[str], value: object, why: str
) -> None:
    space, uri = told
    correct(uri, traces(space, uri)[IDS[0]], value)
    assert pull_assessments(space) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"postloop: MLflow label bucket {value!r} by ann on attribution-")
    assert why in line
    assert line.endswith("; ignored")
    assert "\x1b" not in line
    label(uri, traces(space, uri)[IDS[1]], "bucket", "A" * 100_000)
    assert pull_assessments(space) == []
    assert max(map(len, capsys.readouterr().err.splitlines())) < 1200


def test_names_and_reasons_reach_the_terminal_on_one_short_line(told: tuple[Workspace, str]) -> None:
    space, uri = told
    hostile = "<b>\n\x1b[2Jadmin" + "A" * 100_000
    label(uri, traces(space, uri)[IDS[0]], "route", "sft", hostile)
    label(uri, traces(space, uri)[IDS[2]], "route", "banana\x1b[2J", hostile)
    taken = postloop(space, "decide", "--from-mlflow")
    given = postloop(space, "decide", WEAK.id, "--approve", "--because", hostile, "--who", hostile)
    for done in (taken, given):
        assert done.exit_code == 0, done.output
        (line,) = done.stdout.splitlines()
        assert "by <b>⏎\\x1b[2JadminAA" in line
        assert len(line) < 500
        assert "\x1b" not in done.output
    assert hostile in {one.because for one in decisions(space)}, "what is kept is what was said"
    assert len(taken.stderr) < 500


def test_where_labels_of_a_bucket_disagree_the_newest_holds_and_is_said_once(
    told: tuple[Workspace, str], capsys: pytest.CaptureFixture[str]
) -> None:
    space, uri = told
    by = traces(space, uri)
    label(uri, by[IDS[0]], "route", "rl", "ann")
    label(uri, by[IDS[1]], "route", "sft", "bob")
    (decision,) = pull_assessments(space)
    assert (decision.route, decision.who) == (Route.SFT, "bob")
    (line,) = capsys.readouterr().err.splitlines()
    assert "disagree: route 'rl' by ann" in line
    assert "the newest is in force" in line
    assert pull_assessments(space) == []
    assert capsys.readouterr().err == ""


def test_a_label_that_is_older_than_a_decision_does_not_overrule_it(told: tuple[Workspace, str]) -> None:
    space, uri = told
    label(uri, traces(space, uri)[IDS[0]], "route", "rl")
    assert postloop(space, "decide", NEVER.id, "--route", "sft", "--because", "later").exit_code == 0
    assert len(pull_assessments(space)) == 1
    assert [item.kind for item in merged(fabricated.context(space, 2)).material] == ["demonstrations"]


def test_labels_on_traces_of_another_workspace_decide_nothing_here(
    told: tuple[Workspace, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bucket ids are hashes of cause and family: those of two loops that share an experiment are the same."""
    space, uri = told
    label(uri, traces(space, uri)[IDS[0]], "route", "rl")
    other = fabricated.workspace(tmp_path / "other")
    fabricated.leave(other, 1, [NEVER.model_copy(update={"size": 9})], [fabricated.tasks_for(NEVER)])
    (other.root / ".postloop" / "mlflow.db").write_bytes((space.root / ".postloop" / "mlflow.db").read_bytes())
    assert pull_assessments(other) == []
    assert "its trace is of no round of this workspace" in capsys.readouterr().err


def test_mlflow_out_of_reach_is_one_line_and_the_round_goes_on(
    space: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    text = space.spec_path.read_text()
    space.spec_path.write_text(f"{text}\nruntime: {{tracking_uri: 'http://127.0.0.1:9'}}\n")
    take_in_labels(space)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("postloop: MLflow at http://127.0.0.1:9")
    assert line.endswith("labels given there are not known to this round")


def test_to_look_for_labels_makes_no_database(space: Workspace) -> None:
    assert pull_assessments(space) == []
    assert not (space.root / ".postloop" / "mlflow.db").exists()


def test_a_label_given_on_a_server_comes_back(space: Workspace) -> None:
    """A real `mlflow server` on loopback, as `postloop serve` starts it."""
    from flows.schedule import mlflow_server
    from flows.settings import prepare

    prepare(space.root)
    with mlflow_server(space.root, None) as uri:
        space.spec_path.write_text(f"{space.spec_path.read_text()}\nruntime: {{tracking_uri: '{uri}'}}\n")
        track(space, 1, "backflow")
        label(uri, traces(space, uri)[IDS[2]], "route", "data", "cleo")
        correct(uri, traces(space, uri)[IDS[0]], "protocol", "dora")
        kept = {one.bucket: (one.route, one.who) for one in pull_assessments(space)}
    assert kept == {ODD.id: (Route.DATA, "cleo"), NEVER.id: (Route.SFT, "dora")}
    assert {item.bucket for item in merged(fabricated.context(space, 2)).material} == {NEVER.id, ODD.id}


# --- the wait for people


@pytest.fixture
def waiting(tmp_path: Path) -> Workspace:
    return fill(fabricated.workspace(tmp_path / "loop", WAITING))


def test_the_wait_ends_when_everything_is_decided_in_another_terminal(
    waiting: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows.approval import wait_for_people

    spec = fabricated.context(waiting, 2).spec.backflow

    def decide() -> None:
        for bucket, word in ((NEVER, "--approve"), (WEAK, "--reject")):
            time.sleep(0.5)
            words = [sys.executable, "-m", "flows.cli", "decide", bucket.id, word, "--because", "x", "-w", waiting.root]
            subprocess.run(list(map(str, words)), check=True, capture_output=True)

    began, other = time.monotonic(), threading.Thread(target=decide)
    other.start()
    wait_for_people(waiting, 2, spec)
    assert time.monotonic() - began < spec.wait_s - 2
    other.join()
    (line,) = capsys.readouterr().err.splitlines()
    assert "round 1: material of 2 buckets waits for approval, 20 s at most: `postloop decide BUCKET --approve" in line
    assert f"for {NEVER.id} {WEAK.id}" in line
    wait_for_people(waiting, 2, spec)
    assert capsys.readouterr().err == "", "nothing is left to wait for"


def test_when_time_is_over_it_goes_on_by_the_spec(waiting: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    from flows.approval import wait_for_people

    spec = fabricated.context(waiting, 2).spec.backflow.model_copy(update={"wait_s": 1, "unattended": ["tasks"]})
    began = time.monotonic()
    wait_for_people(waiting, 2, spec.model_copy(update={"approval": "go_on"}))
    assert capsys.readouterr().err == ""
    wait_for_people(waiting, 2, spec)
    assert 1 <= time.monotonic() - began < 10
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "postloop: round 1: nobody decided about 2 buckets; tasks of theirs goes on unattended"
    assert decisions(waiting) == []


PAUSED = """
import sys
from pathlib import Path
from prefect import flow
from flows.approval import wait_for_people
from schemas.backflow import BackflowSpec
from stages.workspace import Workspace

space = Workspace.open(Path(sys.argv[1]))

@flow(name="waits", persist_result=False)
def waits() -> None:
    wait_for_people(space, 2, BackflowSpec(approval="wait", wait_s=int(sys.argv[2])))

for _ in range(int(sys.argv[3])):
    waits()
"""


def pausing(space: Workspace, api: str, wait_s: int, times: int = 1) -> subprocess.Popen[str]:
    """A process whose flow waits for people so many times, on a server that they reach."""
    words = [sys.executable, "-c", PAUSED, str(space.root), str(wait_s), str(times)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "PREFECT_API_URL": api})


@pytest.fixture
def prefect_api(waiting: Workspace, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real server, named in the environment as a team's would be."""
    from flows import embedded
    from flows.settings import prepare

    monkeypatch.setenv("POSTLOOP_CACHE", str(shared / "cache"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(waiting.root / ".postloop" / "prefect"))
    prepare(waiting.root)
    server = embedded.start(waiting.root)
    assert server is not None
    server.wait()
    yield os.environ.pop("PREFECT_API_URL")
    embedded._STARTED.remove(server)
    server.stop()


def test_a_paused_round_is_resumed_by_its_form_and_by_decisions_elsewhere(waiting: Workspace, prefect_api: str) -> None:
    """What a person enters in the form of the first run, then what the command decides."""
    process = pausing(waiting, prefect_api, wait_s=60, times=2)
    first = paused(prefect_api)
    form = {"approve": [NEVER.id[:8], "ffff"], "reject": [], "who": "dora", "because": "looks right"}
    ask(f"{prefect_api}/flow_runs/{first}/resume", {"run_input": form})
    second = paused(prefect_api, but=first)
    assert postloop(waiting, "decide", WEAK.id, "--reject", "--because", "x", "--who", "ann").exit_code == 0
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert {ask(f"{prefect_api}/flow_runs/{run}")["state_type"] for run in (first, second)} == {"COMPLETED"}
    assert {(one.bucket, one.approve, one.who) for one in decisions(waiting)} == {
        (NEVER.id, True, "dora"),
        (WEAK.id, False, "ann"),
    }
    assert "approval of 'ffff': bucket ffff: no such bucket" in told


def test_a_pause_that_nobody_answers_is_resumed_when_time_is_over(waiting: Workspace, prefect_api: str) -> None:
    """Prefect fails a run whose own pause runs out; ours goes on before that, by the spec."""
    process = pausing(waiting, prefect_api, wait_s=3)
    try:
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, told
    (run,) = ask(f"{prefect_api}/flow_runs/filter", {})
    states = [one["type"] for one in ask(f"{prefect_api}/flow_run_states/?flow_run_id={run['id']}")]
    assert (states[-1], states.count("PAUSED"), "FAILED" in states) == ("COMPLETED", 1, False)
    assert "round 1: nobody decided about 2 buckets; tasks, demonstrations, pairs, weights of theirs goes on" in told
    assert decisions(waiting) == []


def ask(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def paused(api: str, but: str = "") -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = ask(f"{api}/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["PAUSED"]}}}})
        ids = [one["id"] for one in found if one["id"] != but]
        if ids:
            return str(ids[0])
        time.sleep(0.3)
    raise AssertionError("no paused run within 60 s")

"""What people are told of a round: each attributed failure is a trace in MLflow, and what is escalated has a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.loop import run_round
from flows.review import EXAMPLES, track, view_of
from reports import tracking
from schemas.bucket import Route
from schemas.record import STAGES
from stages.workspace import Workspace
from tests import fabricated
from tests.reports import synthetic

ATTEMPTS = [synthetic.attempt(index, "x") for index in range(EXAMPLES + 2)]


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """More failures than a page shows, one bucket with three of them as members."""
    space = fabricated.workspace(tmp_path / "loop")
    said = [synthetic.attribution(one, "some_pass", Route.RL) for one in ATTEMPTS]
    fabricated.leave(space, 1, [fabricated.bucket("sometimes_solved", Route.RL)], attempts=ATTEMPTS, attributions=said)
    return space


def logged(space: Workspace) -> tuple[set[str], str]:
    """Trajectories with a trace, and what the run says of them."""
    with tracking.client_of(tracking.default_uri(space.root)) as client:
        experiment = client.get_experiment_by_name("tiny").experiment_id
        names = {one.info.tags["postloop.trajectory"] for one in tracking.traces_of(client, experiment)}
        (run,) = client.search_runs([experiment], "tags.`postloop.stage` = 'backflow'")
        return names, run.data.tags["postloop.traces"]


def test_every_attributed_failure_is_a_trace_and_pages_read_fewer(
    space: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    track(space, 1, "backflow")
    assert logged(space) == ({one.trajectory.id for one in ATTEMPTS}, "42 of 42")
    assert capsys.readouterr().err == ""
    assert len(view_of(space, 1, with_attempts=True).attempts) == EXAMPLES


def test_an_escalated_bucket_is_told_when_the_round_ends_and_in_status_until_a_person_speaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    space = fabricated.workspace(tmp_path / "loop")
    stuck = fabricated.bucket("stuck", family="a\x1b[2Jb", escalated=True, treated_in_vain=2)
    fabricated.leave(space, 1, [stuck, fabricated.bucket("new", treated_in_vain=1)])
    with space.lock():
        for stage in STAGES[2:5]:
            record = synthetic.make_view(rounds=1).records[stage]
            space.commit(1, record.model_copy(update={"artifacts": {}}), {})
        run_round(space, 1, None, quiet=True, track_runs=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("postloop: round 1: treated twice without effect")
    assert f"unattended: {stuck.id} (stuck in a\\x1b[2Jb); look at `postloop failures`" in line
    words = ["-w", str(space.root)]
    assert "1 escalated" in CliRunner().invoke(app, ["status", *words]).stdout
    (row,) = json.loads(CliRunner().invoke(app, ["status", *words, "--json"]).stdout)
    assert row["escalated"] == [stuck.id]
    said = CliRunner().invoke(app, ["decide", stuck.id, "--route", "rl", "--because", "x", *words])
    assert said.exit_code == 0, said.output
    assert "escalated" not in CliRunner().invoke(app, ["status", *words]).stdout
    with space.lock():
        run_round(space, 1, None, quiet=True, track_runs=False)
    assert capsys.readouterr().err == ""


def test_where_the_declared_cap_cuts_the_log_and_the_run_say_how_many_of_how_many(
    space: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    space.spec_path.write_text(f"{space.spec_path.read_text()}\nruntime: {{max_traces: 3}}\n")
    track(space, 1, "backflow")
    names, said = logged(space)
    assert (len(names), said) == (3, "3 of 42")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "postloop: round 1: MLflow has traces of 3 of 42 failures, no more than runtime.max_traces"

"""What MLflow is told of a round's failures: each attributed one is a trace, up to the cap that the spec declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.review import EXAMPLES, track, view_of
from reports import tracking
from schemas.bucket import Route
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


def test_where_the_declared_cap_cuts_the_log_and_the_run_say_how_many_of_how_many(
    space: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    space.spec_path.write_text(f"{space.spec_path.read_text()}\nruntime: {{max_traces: 3}}\n")
    track(space, 1, "backflow")
    names, said = logged(space)
    assert (len(names), said) == (3, "3 of 42")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "postloop: round 1: MLflow has traces of 3 of 42 failures, no more than runtime.max_traces"

"""`postloop attribute` on a finished loop: the ladder of recorded failures, and what it refuses."""

from __future__ import annotations

import json

from tiny_loop import Cli, Finished

from stages import git
from stages.attempts import read_attempts


def test_the_members_of_a_bucket_get_an_owner_and_what_it_took(cli: Cli, finished: Finished) -> None:
    record = finished.space.read(1, "backflow")
    bucket = record.buckets[0]  # type: ignore[union-attr]
    done = cli("attribute", "--bucket", bucket.id, "-w", str(finished.root), "--json")
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert {one["evidence"]["trajectory"] for one in found} >= set(bucket.members)  # of later rounds too
    for one in found:
        assert one["rule"]
        assert one["route"]
        assert one["because"]
        assert all(experiment["rung"] in ("L0", "L1", "L2", "L3") for experiment in one["experiments"])
    assert git.uncommitted(finished.root, ["attributions"]) == []
    shown = cli("attribute", bucket.members[0], "-w", str(finished.root))
    assert shown.returncode in (0, 1), shown.stderr
    assert "owner: " in shown.stdout
    assert len(shown.stdout.splitlines()) < 40
    again = cli("show", bucket.members[0], "-w", str(finished.root))
    assert "owner: " in again.stdout


def test_what_is_no_failure_of_this_workspace_is_refused_in_one_line(cli: Cli, finished: Finished) -> None:
    for arguments in ((), ("nothing-0",), ("x", "--bucket", "abc")):
        done = cli("attribute", *arguments, "-w", str(finished.root))
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1, done.stderr
    data = finished.space.read(1, "data")
    folder = finished.space.open_artifact(data.artifacts["demonstrations"])  # type: ignore[union-attr]
    passed = read_attempts(folder / "attempts.parquet")[0].trajectory.id
    done = cli("attribute", passed, "-w", str(finished.root))
    assert done.returncode == 2
    assert "no failure" in done.stderr
    assert len(done.stderr.splitlines()) == 1

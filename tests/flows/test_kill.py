"""A run may be killed at any instant: the next one goes on by itself and ends with the same records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tiny_loop import REPOSITORY, Finished, Interrupted, await_, processes_of

from schemas.record import STAGES


def test_a_round_killed_at_random_moments_ends_with_the_records_of_an_undisturbed_one(
    finished: Finished, environment: dict[str, str], tmp_path: Path
) -> None:
    """Two kills in a row, early enough that the round is open at both, however slow the shared loop was made. Twenty
    trials, of one and of two: python -m bench.kill."""
    out = tmp_path / "kill.json"
    seconds = min(0.4 * finished.seconds, 15.0)
    done = subprocess.run(
        [sys.executable, "-m", "bench.kill", "--times", "1", "--out", str(out), "--folder", str(tmp_path / "trials"),
         "--spec", str(finished.root / "goal.yaml"), "--like", str(finished.root), "--seconds", str(seconds)],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    assert (told["times"], told["equal"], told["ok"]) == (1, 1, True)
    assert told["kills"] == 2
    assert set(told["expected"]) == set(STAGES)
    assert all(digests == told["expected"] for digests in told["digests"])
    assert all(min(map(len, one["records_at_kill"])) < 6 for one in told["trials"]), "each caught an open round"
    await_(lambda: not processes_of(tmp_path / "trials"), 20)


def test_ctrl_c_stops_at_once_in_one_line_and_leaves_no_process(interrupted: Interrupted) -> None:
    assert interrupted.code == 130
    assert "Traceback" not in interrupted.stderr
    assert (
        interrupted.stderr.splitlines()[-1] == "postloop: stopped; `postloop run` goes on from the last finished stage"
    )
    assert interrupted.at[:2] == ["goal", "data"]
    assert len(interrupted.at) < 6
    assert interrupted.orphans == []


def test_the_run_after_ctrl_c_goes_on_and_completes_the_round(interrupted: Interrupted) -> None:
    assert interrupted.again.returncode == 0, interrupted.again.stderr
    assert list(interrupted.space.records(1)) == list(STAGES)
    assert interrupted.space.verify() == []
    assert interrupted.space.rounds() == [1]

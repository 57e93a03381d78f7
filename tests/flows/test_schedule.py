"""Rounds by the clock: the declared schedule, and `postloop serve` with its own Prefect and MLflow."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tiny_loop import REPOSITORY, Cli, Finished, await_, processes_of, tiny_spec

from schemas.record import STAGES
from stages.workspace import Workspace


@pytest.mark.parametrize("cron", ["", "every night", "0 2 * *", "61 2 * * *", "0 2 * * * * *"])
def test_what_is_no_cron_expression_is_refused_and_not_kept(cli: Cli, tmp_path: Path, cron: str) -> None:
    space = Workspace.create(tmp_path / "loop", tiny_spec())
    done = cli("schedule", "--cron", cron, "-w", space.root)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"postloop: schedule: {cron!r} is no cron expression")
    assert len(done.stderr.splitlines()) == 1
    assert not (space.root / "schedule.json").exists()


def test_a_schedule_is_a_file_of_the_workspace(cli: Cli, tmp_path: Path) -> None:
    space = Workspace.create(tmp_path / "loop", tiny_spec())
    done = cli("schedule", "--cron", "0 2 * * *", "-w", space.root, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"deployment": "nightly-loop", "cron": "0 2 * * *"}
    assert json.loads((space.root / "schedule.json").read_text()) == {"cron": "0 2 * * *"}


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    for pause_s in (1, 2, 4, 8, None):  # a busy SQLite is a 503, which Prefect's own client asks again
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code != 503 or pause_s is None:
                raise
            time.sleep(pause_s)
    raise AssertionError("the last pass returns or raises")


def test_serve_runs_a_round_on_request_and_ends_whole(
    cli: Cli, finished: Finished, environment: dict[str, str], tmp_path: Path
) -> None:
    """`finished` only fills the cache. The request goes to the Prefect server that `serve` names, as a person's would."""
    space = Workspace.create(tmp_path / "loop", tiny_spec())
    assert cli("schedule", "--cron", "0 0 1 1 *", "-w", space.root).returncode == 0
    log = tmp_path / "serve.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", "serve", "-w", str(space.root)],
            cwd=REPOSITORY, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
        )  # fmt: skip
    try:
        await_(lambda: "MLflow" in log.read_text() or process.poll() is not None, 120)
        found = dict(re.findall(r"(Prefect|MLflow)\s+(http://127\.0\.0\.1:\d+)", log.read_text()))
        assert set(found) == {"Prefect", "MLflow"}, log.read_text()
        deployment = _deployment(f"{found['Prefect']}/api", "nightly-loop")
        assert [one["schedule"]["cron"] for one in deployment["schedules"]] == ["0 0 1 1 *"]
        run = ask(f"{found['Prefect']}/api/deployments/{deployment['id']}/create_flow_run", {})
        await_(lambda: set(space.records(1)) == set(STAGES) or process.poll() is not None, 240)
        await_(lambda: _state(f"{found['Prefect']}/api", run["id"]) == "COMPLETED", 60)
        flows = ask(f"{found['Prefect']}/api/flows/filter", {})
        assert {flow["name"] for flow in flows} == {"round", *STAGES}, "the same flows ran against this server"
        experiments = ask(f"{found['MLflow']}/api/2.0/mlflow/experiments/search", {"max_results": 10})
        assert "tiny" in {one["name"] for one in experiments["experiments"]}
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, log.read_text()
    await_(lambda: not processes_of(space.root), 20)
    with space.lock():
        assert space.verify() == []
    for stage, record in space.records(1).items():
        same = finished.space.read(1, stage)
        assert same is not None
        assert record.content_digest() == same.content_digest(), f"{stage}: served or run, a round is the same"


def _deployment(api: str, name: str) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = ask(f"{api}/deployments/filter", {})
        if found:
            assert [one["name"] for one in found] == [name]
            return found[0]
        time.sleep(0.5)
    raise AssertionError("no deployment within 60 s")


def _state(api: str, run: str) -> str:
    return str(ask(f"{api}/flow_runs/{run}")["state_type"])

"""What a broken machine costs a round: it ends or goes on, and nothing that was lost is a zero, a row or a mean.

All faults at full size, each by the command line: python -m bench.faults --out FILE.json
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dockerd import Dockerd

from bench.faults import (
    HOGS,
    MARK,
    Killer,
    Options,
    advance,
    against_server,
    doom,
    fill,
    look,
    small_disk,
    small_spec,
)  # fmt: skip
from environments.bundles import Bundle, builtin
from environments.engines import open_engine
from environments.image import build_image
from evals.verify import Verifier
from flows.review import view_of
from reports.page import render
from schemas.backflow import BackflowRecord
from schemas.bucket import Route
from schemas.data import DataRecord
from schemas.execution import Limits
from schemas.task import Case, Split, Task
from schemas.verdict import Status

SEED = 3


@pytest.fixture(scope="module")
def options(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Options]:
    """One cache for the commands and for what runs in this process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("POSTLOOP_CACHE", environment["POSTLOOP_CACHE"])
        yield Options(tmp_path_factory.mktemp("faults"), Path(environment["POSTLOOP_CACHE"]), SEED)


# --- one sandbox ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verifier(options: Options) -> Iterator[Verifier]:
    image = build_image(options.cache / "images")
    with Bundle(builtin("cases")) as bundle:
        yield Verifier(bundle, image.environment, image.root, open_engine("bubblewrap"), Limits(), retries=1)


@pytest.fixture(scope="module")
def task() -> Task:
    broken, fixed = "def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n"
    return Task(
        id="repair/add/1", kind="function", family="repair.operator", skill="repair", origin="add", split=Split.TRAIN,
        statement="add must return the sum.", files={"solution.py": broken}, editable=["solution.py"], entry="add",
        hidden=[Case(args=[2, 2], expected=4)], gold={"solution.py": fixed}, wrong={}, made_by="hand",
    )  # fmt: skip


def test_a_sandbox_that_is_killed_once_is_tried_again_whichever_of_its_processes_it_was(
    verifier: Verifier, task: Task
) -> None:
    attempts = [(task, {"solution.py": f"{MARK}# {n}\n{task.gold['solution.py']}"}) for n in range(6)]
    with Killer(os.getpid(), once=True) as killer:
        verdicts = verifier.judge_many(attempts)
    assert killer.kills == 6
    assert [(v.status, v.passed, v.limit_hit) for v in verdicts] == [(Status.SCORED, True, None)] * 6


def test_a_sandbox_that_dies_whenever_one_outcome_is_in_it_is_that_outcomes_failure(
    verifier: Verifier, task: Task
) -> None:
    with Killer(os.getpid()) as killer:
        verdict = verifier.judge_many([(task, {"solution.py": MARK + task.gold["solution.py"]})])[0]
    assert killer.kills == 4, "two tries, and two more after gold had passed"
    assert (verdict.status, verdict.passed, verdict.score, verdict.limit_hit) == (Status.SCORED, False, 0.0, "signal")


def test_where_gold_dies_too_it_is_the_machine(verifier: Verifier, task: Task) -> None:
    gold = {"solution.py": MARK + task.gold["solution.py"]}
    with Killer(os.getpid()):
        verdict = verifier.judge_many([(task.model_copy(update={"gold": gold}), {"solution.py": MARK + "#\n"})])[0]
    assert (verdict.status, verdict.passed, verdict.score) == (Status.ERROR, None, None)
    assert "tried 2 times" in (verdict.reason or "")


# --- rounds --------------------------------------------------------------------------------------------------------


def test_a_round_survives_a_full_disk_and_killed_sandboxes(options: Options) -> None:
    with small_disk(options.folder / "disk") as disk:
        space = options.workspace("disk/loop", small_spec())
        doom(space, options.cache)
        assert advance(space, options.cache, "data") is None
        ballast = fill(disk, left_kib=random.Random(SEED).randrange(64, 512))
        told = advance(space, options.cache, "sft")
        assert told is not None
        assert len(told.splitlines()) == 1
        assert not space.has(1, "sft")
        assert space.verify() == []
        ballast.unlink()
        with Killer(os.getpid()) as killer:
            assert advance(space, options.cache) is None
        seen = look(space)
        assert seen.leaks == []
        assert killer.kills > 0
        assert min(seen.errors[stage] for stage in ("rl", "evaluation", "backflow")) > 0
        assert any(attempt.verdict.passed for attempt in seen.attempts)
        view = view_of(space, 1)
        assert view.infrastructure_errors() == seen.lost
        assert f"{seen.lost} attempts lost to infrastructure" in render(view)
        backflow = space.read(1, "backflow")
        assert isinstance(backflow, BackflowRecord)
        assert {bucket.route for bucket in backflow.buckets} > {Route.INFRASTRUCTURE}


def test_a_round_goes_on_when_its_dockerd_is_there_again(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon, another = Dockerd(), Dockerd()
    try:
        daemon.start()
        monkeypatch.setenv("DOCKER_HOST", daemon.url)
        space = options.workspace("docker", small_spec(environment={"engine": "docker"}, audit_verifier=None))
        assert advance(space, options.cache, "goal") is None
        killing = threading.Timer(1, daemon.stop, [signal.SIGKILL])
        killing.start()
        told = advance(space, options.cache, "data")
        killing.join()
        assert told is not None
        assert "docker" in told
        assert len(told.splitlines()) == 1
        assert not space.has(1, "data")
        another.start()
        monkeypatch.setenv("DOCKER_HOST", another.url)
        assert advance(space, options.cache, "data") is None
        data = space.read(1, "data")
        assert isinstance(data, DataRecord)
        assert (data.infrastructure_errors, data.quarantined, data.demonstrations["gold"]) == (0, {}, 2)
    finally:
        daemon.remove()
        another.remove()


def test_a_hung_server_stops_the_round_and_what_a_policy_exhausts_is_its_own_failure(options: Options) -> None:
    kinds = random.Random(SEED).sample(sorted(set(HOGS) - {"time", "stop"}), 3)
    found = against_server(options, "server", kinds, (3,))
    assert found["leaks"] == []
    assert found["holds"], found

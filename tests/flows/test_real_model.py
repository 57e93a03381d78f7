"""One short round of the embedded default's real model: fetched, converted, trained, measured, all through the command line.

A handful of tasks and steps, so it shows that the parts meet on real weights, and nothing about how good they get: the
figures for that come from `make prove`.
"""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from tiny_loop import REPOSITORY, Cli

from schemas.rl import RlRecord
from schemas.sft import SftRecord
from stages.attempts import read_attempts
from stages.spec import dump_default
from stages.workspace import Workspace

SMALL = {
    "sources": [
        {"skill": "repair", "train": 16, "dev": 4, "held_out": 1},
        {"skill": "lookup", "train": 4, "dev": 2},
        {"skill": "instruction", "retention": 1},
    ],
    "demonstrations": {"gold": {"repair": 16, "lookup": 4}},
    "proof_runs": 1,
}


def small_spec() -> str:
    yaml = YAML()
    spec = yaml.load(dump_default("default"))
    spec["data"] = SMALL
    spec["sampling"]["max_tokens"] = 72  # no demonstration has more
    spec["sampling"]["threads"] = 1  # other tests have the other core
    spec["sft"] = {
        "phases": [{"name": "cold_start", "steps": 4, "batch_size": 8}],
        "min_parse_rate": 0.0,
        "gate_tasks": 3,
    }
    open_gate = {"min_parse_rate": 0.0, "min_pass_at_k": 0.0, "max_pass_at_1": 1.0, "min_mixed": 0.0}
    spec["rl"]["headroom"] = {"tasks": 2, "samples": 2, **open_gate}
    spec["rl"]["phases"] = [{"method": "grpo", "steps": 1, "groups": 1, "group_size": 4, "oversample": 1.0}]
    for named in (spec["criteria"], spec["evaluation"]["suites"]):  # the tiny loop has a boundary
        named[:] = [one for one in named if "boundary" not in (one.get("suite"), one["name"])]
    for suite in spec["evaluation"]["suites"]:
        suite["samples"] = 1
    spec["evaluation"].update(k=1, resamples=100)
    spec["backflow"].update(tasks=2, samples=1, attribution={"sample": 1, "k": 1, "attempts": 2})
    text = StringIO()
    yaml.dump(spec, text)
    return text.getvalue()


@pytest.fixture(scope="module")
def trained(cli: Cli, served: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The converted model is kept in the repository's cache, where `make run` looks for it too."""
    space = Workspace.create(tmp_path_factory.mktemp("real") / "loop", small_spec())
    cache = os.environ.get("POSTLOOP_CACHE") or str(REPOSITORY / ".cache")
    done = cli("run", "-w", space.root, env={**served, "POSTLOOP_CACHE": cache}, timeout_s=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return space


def test_sft_on_real_weights_learns_the_protocol(trained: Workspace) -> None:
    sft = trained.read(1, "sft")
    assert isinstance(sft, SftRecord)
    assert sft.loss[-1] < sft.loss[0]
    rows = read_attempts(trained.open_artifact(sft.artifacts["attempts"]) / "attempts.parquet")
    parsed = [turn.parse_error is None for row in rows for turn in row.trajectory.turns]
    assert sum(parsed) / len(parsed) >= 0.5


def test_rl_on_real_weights_starts_where_sampler_and_trainer_agree(trained: Workspace) -> None:
    rl = trained.read(1, "rl")
    assert isinstance(rl, RlRecord)
    assert rl.steps == 1
    if rl.groups_used:
        assert rl.sampler_gap["max"] < 1e-3
    sft = trained.read(1, "sft")
    assert isinstance(sft, SftRecord)
    assert rl.checkpoint is not None
    assert sft.checkpoint is not None
    assert rl.checkpoint.parent == sft.checkpoint.weights
    assert rl.checkpoint.template == sft.checkpoint.template


def test_every_stage_left_its_record_and_no_attempt_was_lost(trained: Workspace) -> None:
    records = trained.records(1)
    assert list(records) == ["goal", "data", "sft", "rl", "evaluation", "backflow"]
    assert [record.infrastructure_errors for record in records.values()] == [0] * 6
    assert trained.verify() == []
    assert (Path(trained.root) / "rounds" / "0001" / "pins.json").is_file()

"""The audit gap says nothing where nothing was audited, and the champion is the policy to beat whatever its name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.planted_faults import Site, made, repairs
from schemas.evaluation import EvaluationRecord, EvaluationSpec
from schemas.replay import Level
from stages import evaluation, rounds
from stages.evaluation import _audit, _reference, _under_noise
from stages.recorded import recorded
from stages.replay import replay
from tests.small import attempt, task

SPEC = EvaluationSpec.model_validate({"suites": [{"name": "held_out", "split": "held_out"}]})


def test_contested_passes_are_a_share_of_all_scored_attempts() -> None:
    rows = [attempt(task(), i, True, audit=i > 0) for i in range(4)] + [attempt(task(), 9, False)]
    gaps, alarms = _audit(SPEC, {"held_out": rows})
    assert gaps == {"held_out": pytest.approx(1 / 5)}
    assert [alarm.name for alarm in alarms] == ["audit_gap"]


def test_passes_that_nobody_audited_leave_the_gap_unknown_not_zero() -> None:
    assert _audit(SPEC, {"held_out": [attempt(task(), 0, True), attempt(task(), 1, False)]}) == ({"held_out": None}, [])
    assert _audit(SPEC, {"held_out": [attempt(task(), 1, False)]}) == ({"held_out": 0.0}, [])


@pytest.mark.parametrize(
    ("champion", "expected"), [(None, "base"), ("b", "base"), ("s", "sft"), ("r", "rl"), ("c", "champion")]
)
def test_the_policy_to_beat_is_the_one_with_the_champions_weights(
    champion: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: Any = [("base", None, "b"), ("sft", None, "s"), ("rl", None, "r"), ("champion", None, "c")]
    monkeypatch.setattr(evaluation, "policies", lambda ctx: known)
    monkeypatch.setattr(evaluation, "previous_champion", lambda ctx: champion and ("artifact", champion))
    assert _reference(SimpleNamespace()) == expected  # type: ignore[arg-type]


def test_a_noisy_suite_is_paired_with_the_first_clean_one_of_its_split_and_skills() -> None:
    suites = [
        {"name": "retention", "split": "retention"}, {"name": "clean", "split": "held_out"},
        {"name": "again", "split": "held_out"}, {"name": "noisy", "split": "held_out", "noise": "flaky"},
        {"name": "alone", "split": "boundary", "noise": "flaky"},
    ]  # fmt: skip
    tasks = [task(name) for name in ("f", "g")]
    passes = {"clean": (True, True), "again": (False, False), "noisy": (True, False)}
    rows = {name: [attempt(t, 0, ok) for t, ok in zip(tasks, told, strict=True)] for name, told in passes.items()}
    rows |= {name: [attempt(tasks[0], 0, True)] for name in ("retention", "alone")}
    (found,) = _under_noise(EvaluationSpec.model_validate({"suites": suites, "resamples": 100}), rows, "rl")
    assert (found.suite, found.candidate, found.reference) == ("noisy", "rl", "rl on clean")
    assert (found.difference.value, found.difference.n) == (-0.5, 2)


def test_a_round_reports_clean_against_noisy_and_both_run_again_identically(tmp_path: Path, warehouse: Path) -> None:
    """The policy takes back what is right as soon as its tests cannot be run."""
    suites = [
        {"name": "held_out", "split": "held_out", "samples": 4}, {"name": "retention", "split": "retention", "samples": 1},
        {"name": "noisy", "split": "held_out", "samples": 4, "noise": "flaky"},
    ]  # fmt: skip
    site = Site(tmp_path, warehouse, "rules", 100, 1)
    ctx = made(
        site, "loop", repairs(site, 2, 2), until="rl", sampling={"engine": "scripted:shaken"},
        noise={"flaky": {"timeout": 0.3, "fail": 0.2, "lose": 0.2}}, evaluation={"suites": suites},
    )  # fmt: skip
    with ctx.workspace.lock():
        record = rounds.run_stage(ctx, "evaluation")
    assert isinstance(record, EvaluationRecord)
    assert "spec.noise" in record.inputs
    passes = {(one.suite, one.policy): one.metrics["pass@1"].value for one in record.results}
    assert passes["held_out", "base"] == 1.0
    assert (passes["noisy", "base"] or 0.0) < 1.0
    assert [(p.suite, p.reference) for p in record.paired if " on " in p.reference] == [("noisy", "sft on held_out")]
    rows = [row for row in recorded(ctx.workspace) if row.stage == "evaluation"]
    assert sum(row.attempt.trajectory.hits() for row in rows) > 0
    levels: tuple[Level, ...] = ("L1", "regenerate")
    for level in levels:
        assert {answer.same for answer in replay(ctx.workspace, warehouse, rows, level)} == {True}

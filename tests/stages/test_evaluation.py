"""The audit gap says nothing where nothing was audited, and the champion is the policy to beat whatever its name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from schemas.evaluation import EvaluationSpec
from stages import evaluation
from stages.evaluation import _audit, _reference, _under_noise
from tests.evals.conftest import attempt, task

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

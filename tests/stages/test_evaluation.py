"""The audit gap says nothing where nothing was audited, and the champion is the policy to beat whatever its name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from schemas.evaluation import EvaluationSpec
from stages import evaluation
from stages.evaluation import _audit, _reference
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

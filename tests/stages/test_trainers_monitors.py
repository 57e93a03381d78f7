"""Each named alarm sounds at its first crossing, once, and stays silent otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evals.monitors import ALARMS, alarms
from schemas.rl import Monitors

CALM = {
    "entropy": 0.6,
    "kl": 0.01,
    "clip_share": 0.02,
    "length": 30.0,
    "repetition": 0.1,
    "zero_spread": 0.4,
    "invalid_calls": 0.1,
}
CROSSING = {
    "entropy": 0.04,
    "kl": 0.6,
    "clip_share": 0.4,
    "length": 95.0,
    "repetition": 0.6,
    "zero_spread": 0.95,
    "invalid_calls": 0.7,
}


def test_every_monitor_of_the_spec_has_an_alarm() -> None:
    assert {field for _, field, _ in ALARMS} | {"sampler_gap_above", "audit_lag_above"} == set(Monitors.model_fields)
    assert {name for name, _, _ in ALARMS} == set(CALM) == set(CROSSING)


def test_calm_curves_sound_no_alarm() -> None:
    assert alarms({name: [value] * 3 for name, value in CALM.items()}, {"mean": 0.001}, Monitors()) == []


@pytest.mark.parametrize("name", CROSSING)
def test_an_alarm_names_the_first_step_that_crossed(name: str) -> None:
    curves = {other: [value] * 3 for other, value in CALM.items()}
    curves[name] = [CALM[name], CROSSING[name], CROSSING[name]]
    (alarm,) = alarms(curves, {}, Monitors())
    assert (alarm.name, alarm.step, alarm.value) == (name, 1, CROSSING[name])
    assert alarm.threshold == getattr(Monitors(), {n: f for n, f, _ in ALARMS}[name])


def test_the_sampler_gap_is_judged_by_its_mean_before_the_first_update() -> None:
    (alarm,) = alarms({"sampler_gap": [0.0, 9.0]}, {"mean": 0.2, "max": 1.0}, Monitors())
    assert (alarm.name, alarm.value, alarm.threshold, alarm.step) == ("sampler_gap", 0.2, 0.05, 0)
    assert alarms({"sampler_gap": [0.0, 9.0]}, {"mean": 0.01, "max": 1.0}, Monitors()) == []


def test_a_threshold_of_none_and_a_value_of_none_sound_nothing() -> None:
    assert alarms({"kl": [9.0]}, {}, Monitors(kl_above=None)) == []
    assert alarms({"kl": [None, None]}, {}, Monitors()) == []
    assert alarms({}, {"mean": 9.0}, Monitors(sampler_gap_above=None)) == []


def test_an_alarm_does_not_sound_at_its_threshold() -> None:
    assert alarms({"kl": [Monitors().kl_above], "entropy": [Monitors().entropy_below]}, {}, Monitors()) == []


@pytest.mark.parametrize("module", ["evals.monitors", "stages.trainers", "stages.trainers.grpo", "stages.trainers.sft"])
def test_importing_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("solved", "contested", "step"),
    [
        ([0.2, 0.3, 0.5], [0.0, 0.05, 0.3], 2),
        ([0.2, 0.3, 0.5], [0.3, 0.3, 0.35], None),  # a hole as large as before: the gap says so, not its growth
        ([0.5, 0.4, 0.3], [0.0, 0.1, 0.3], None),  # nothing rises
        ([None, 0.2, 0.4], [None, 0.0, 0.2], 2),  # step 0 was not measured
        ([0.2, 0.5], [None, None], None),  # no audit verifier
    ],
)
def test_an_alarm_sounds_when_the_training_reward_rises_and_the_audit_does_not(solved, contested, step):
    found = alarms({"solved": solved, "contested": contested}, {}, Monitors())
    assert [alarm.step for alarm in found if alarm.name == "audit_lag"] == ([] if step is None else [step])
    assert alarms({"solved": solved, "contested": contested}, {}, Monitors(audit_lag_above=None)) == []

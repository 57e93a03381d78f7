"""Named alarms over the curves of RL training. Pure functions.

An alarm sounds once, at the first step whose value crosses its threshold; a value of None was not measured and crosses
nothing, and a threshold of None turns its alarm off. Not covered: stopping a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schemas.metrics import Alarm
from schemas.rl import Monitors

# name of the alarm and of its curve; the monitor's field; what a crossing means
ALARMS = (
    ("entropy", "entropy_below", "the policy hardly varies, so groups lose their spread: fewer steps or a lower rate"),
    ("kl", "kl_above", "the policy has moved far from its start: lower the rate, or set beta above 0"),
    ("clip_share", "clip_share_above", "many ratios leave the clip range: rollouts are too old or the rate too high"),
    ("length", "length_above", "turns grow towards the token limit: look for padding, or for turns that never end"),
    ("repetition", "repetition_above", "completions repeat themselves: the reward may pay for text that says nothing"),
    ("zero_spread", "zero_spread_above", "nearly all groups are all right or all wrong: other tasks, or no RL here"),
    ("invalid_calls", "invalid_calls_above", "turns do not parse: the protocol is a matter for SFT, not for RL"),
)
SAMPLER_GAP = "sampler and trainer disagree before any update: look at template, dtype and temperature"


def alarms(
    curves: Mapping[str, Sequence[float | None]], sampler_gap: Mapping[str, float], monitors: Monitors
) -> list[Alarm]:
    """Every alarm that sounded, `sampler_gap` (its mean, before step 1) first, then in the order of ALARMS.

    curves: name -> one value an optimizer step; Alarm.step counts from 0.
    """
    found = []
    gap, limit = sampler_gap.get("mean"), monitors.sampler_gap_above
    if gap is not None and limit is not None and gap > limit:
        found.append(Alarm(name="sampler_gap", value=gap, threshold=limit, step=0, meaning=SAMPLER_GAP))
    for name, field, meaning in ALARMS:
        threshold = getattr(monitors, field)
        for step, value in enumerate(curves.get(name, ())):
            if threshold is None or value is None:
                continue
            if value < threshold if field.endswith("_below") else value > threshold:
                found.append(Alarm(name=name, value=value, threshold=threshold, step=step, meaning=meaning))
                break
    return found

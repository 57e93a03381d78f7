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
AUDIT_LAG = "training reward rises and the audit does not follow: the policy may have found a hole in the verifier"
SAMPLER_GAP = "sampler and trainer disagree before any update: look at template, dtype and temperature"


def alarms(
    curves: Mapping[str, Sequence[float | None]], sampler_gap: Mapping[str, float], monitors: Monitors
) -> list[Alarm]:
    """Every alarm that sounded, `sampler_gap` (its mean, before step 1) first, then in the order of ALARMS, `audit_lag` last.

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
    return found + _audit_lag(curves.get("solved", ()), curves.get("contested", ()), monitors.audit_lag_above)


def _audit_lag(
    solved: Sequence[float | None], contested: Sequence[float | None], threshold: float | None
) -> list[Alarm]:
    """The first step at which more is solved than at the first measured one, and `threshold` more of it is contested."""
    pairs = zip(solved, contested, strict=False)
    known = [(step, *pair) for step, pair in enumerate(pairs) if pair[0] is not None and pair[1] is not None]
    if threshold is None or not known:
        return []
    _, at_first, against_at_first = known[0]
    for step, share, against in known:
        growth = (against or 0.0) - (against_at_first or 0.0)
        if (share or 0.0) > (at_first or 0.0) and growth > threshold:
            return [Alarm(name="audit_lag", value=growth, threshold=threshold, step=step, meaning=AUDIT_LAG)]
    return []

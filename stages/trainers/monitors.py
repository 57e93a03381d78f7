"""Named alarms of RL training, and the numbers of one step that need no model. Loads no torch.

An alarm sounds once, at the first step whose value crosses its threshold; a value of None was not measured and crosses
nothing. Curves hold one value a step under the names used here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from schemas.metrics import Alarm
from schemas.rl import Monitors

# name of the alarm and its curve, the monitor's field, what a crossing means
ALARMS = (
    ("entropy", "entropy_below", "the policy hardly varies, so groups lose their spread: fewer steps or a lower rate"),
    ("kl", "kl_above", "the policy has moved far from its start: lower the rate, or set beta above 0"),
    ("clip_share", "clip_share_above", "many ratios leave the clip range: the rollouts are too old, or the rate too high"),
    ("length", "length_above", "turns grow towards the token limit: look for padding or for turns that never end"),
    ("repetition", "repetition_above", "completions repeat themselves: the reward may pay for text that says nothing"),
    ("zero_spread", "zero_spread_above", "nearly all groups are all right or all wrong: other tasks, or no RL here"),
    ("invalid_calls", "invalid_calls_above", "turns do not parse: the protocol is an SFT question, not an RL one"),
    ("sampler_gap", "sampler_gap_above", "sampler and trainer disagree before any update: template, dtype or temperature"),
)


def alarms(curves: Mapping[str, Sequence[float | None]], monitors: Monitors) -> list[Alarm]:
    """Every alarm that sounded, in the order of ALARMS. `sampler_gap` is judged at step 0 only."""
    found = []
    for name, field, meaning in ALARMS:
        threshold = getattr(monitors, field)
        if threshold is None:
            continue
        curve = list(curves.get(name, []))[: 1 if name == "sampler_gap" else None]
        for step, value in enumerate(curve):
            if value is not None and (value < threshold if field.endswith("_below") else value > threshold):
                found.append(Alarm(name=name, value=value, threshold=threshold, step=step, meaning=meaning))
                break
    return found


def repetition(ids: Sequence[int], n: int = 4) -> float:
    """Share of a completion's n-grams that occurred in it before; 0 for one too short to have two."""
    grams = [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def mean(values: Sequence[float]) -> float | None:
    """None for no values: an average of nothing is not zero."""
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """Population standard deviation; None for no values."""
    centre = mean(values)
    return None if centre is None else math.sqrt(math.fsum((value - centre) ** 2 for value in values) / len(values))


def gap_summary(gaps: Sequence[float], epsilon: float) -> dict[str, float]:
    """mean, p50, p99, max of |log p sampler - log p trainer| in nats; share whose ratio may leave 1 ± epsilon.

    gaps are signed (trainer minus sampler). Empty when there are none.
    """
    if not gaps:
        return {}
    sizes = sorted(abs(gap) for gap in gaps)
    outside = sum(not 1 - epsilon <= math.exp(min(gap, 50.0)) <= 1 + epsilon for gap in gaps)
    return {
        "mean": math.fsum(sizes) / len(sizes),
        "p50": sizes[math.ceil(0.50 * len(sizes)) - 1],
        "p99": sizes[math.ceil(0.99 * len(sizes)) - 1],
        "max": sizes[-1],
        "outside_clip": outside / len(gaps),
    }

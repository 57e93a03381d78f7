"""All hacks in the order of their numbers. 1 to 40 were seen in public (docs/decisions/0014); the others are ours."""

from __future__ import annotations

from functools import cache

from evals.hacks import files, judged, leaks, machinery, more, process, repositories, system, values
from evals.hacks.base import Hack
from evals.hacks.gaps import mended

NUMBERS = range(1, 41)
_MODULES = (files, machinery, process, values, leaks, judged, system, more, repositories)


@cache
def catalogue() -> tuple[Hack, ...]:
    """Every hack, by number and variant. ValueError if a number of the list is missing, or a label occurs twice."""
    found = sorted(
        [*(hack for module in _MODULES for hack in module.hacks()), *mended()],
        key=lambda hack: (hack.number, hack.variant),
    )
    labels = [hack.label for hack in found]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    missing = sorted(set(NUMBERS) - {hack.number for hack in found})
    if twice or missing:
        raise ValueError(f"hacks: labels {twice} occur twice, numbers {missing} are missing; correct evals/hacks")
    return tuple(found)

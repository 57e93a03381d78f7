"""The hack catalogue: ways in which a model got a reward without earning it, each as a submission that can be run.

`catalogue()` lists them, `run_hacks` runs them against the verifiers on an engine. See docs/decisions/0014.
"""

from __future__ import annotations

from evals.hacks.base import FAILED, Hack, Plain
from evals.hacks.gaps import gaps
from evals.hacks.numbered import NUMBERS, catalogue
from evals.hacks.runner import Finding, Ground, caught_numbers, run_gaps, run_hack, run_hacks, seen

__all__ = [
    "FAILED", "NUMBERS", "Finding", "Ground", "Hack", "Plain", "catalogue", "caught_numbers", "gaps", "run_gaps",
    "run_hack", "run_hacks", "seen",
]  # fmt: skip

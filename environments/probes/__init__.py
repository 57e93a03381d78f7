"""Escape and exhaustion probes: small hostile programs, run by a real engine, and a look at the host before and after.

`PROBES` is the table, `run_probe` runs one of them. Not covered: bugs of the kernel itself, side channels, and what a
person with the host's rights could do.
"""

from __future__ import annotations

from environments.probes.host import Bait, bait
from environments.probes.running import Finding, run_probe
from environments.probes.table import PROBES, Probe

__all__ = ["PROBES", "Bait", "Finding", "Probe", "bait", "run_probe"]

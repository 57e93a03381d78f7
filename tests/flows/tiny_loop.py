"""The tiny loop of these tests, and what they ask of the machine it runs on."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stages.spec import dump_default
from stages.workspace import Workspace

REPOSITORY = Path(__file__).resolve().parents[2]
Result = subprocess.CompletedProcess[str]
Cli = Callable[..., Result]

# Whatever fails is owed to data, so that round 1 always hands tasks to round 2.
ROUTES = """\
routes:
  - {id: everything, cause: coverage, route: data, when: {}, because: a test wants new tasks}
"""


# One suite is measured under noise as well.
NOISE = "noise: {flaky: {timeout: 0.1, fail: 0.1, lose: 0.1}}\n"
RETENTION = "    - {name: retention, split: retention, samples: 1}\n"
GOLD = "    gold: {repair: 4, lookup: 2}\n"
REJECTION = "    rejection_samples: 2\n    rejection_tasks: 1\n"  # the random policy passes none, and all are kept
NOISY = "    - {name: noisy, split: held_out, samples: 1, noise: flaky}\n"


def tiny_spec() -> str:
    text = dump_default("tiny").replace(RETENTION, RETENTION + NOISY).replace(GOLD, GOLD + REJECTION)
    return f"{text}\n{NOISE}{ROUTES}"


@dataclass(frozen=True)
class Finished:
    space: Workspace
    output: str
    seconds: float  # wall, both rounds
    made_at: Path  # `space` is a copy of it

    @property
    def root(self) -> Path:
        return self.space.root


@dataclass(frozen=True)
class Interrupted:
    space: Workspace
    at: list[str]  # stages recorded when it was interrupted
    code: int
    stderr: str
    again: Result
    orphans: list[int]


def await_(holds: Callable[[], bool], at_most_s: float) -> None:
    deadline = time.monotonic() + at_most_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {at_most_s:.0f} s"
        time.sleep(0.1)


def processes_of(root: Path) -> list[int]:
    """Processes that were started for this workspace and still run: its path is in their arguments or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + b"\0" + (process / "environ").read_bytes()
            ended = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:  # it ended, or belongs to another user
            continue
        if str(root).encode() in told and not ended and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found

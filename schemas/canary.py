"""What the canary saw: does an environment still judge as it did, and if not, what in it changed.

A drift is named by experiment or by comparison, never guessed: kind `undetermined` says that neither found a cause.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Digest, Frozen

DriftKind = Literal[
    "interpreter", "binary", "library", "package", "metadata", "standard library", "bytecode", "start-up hook", "time zone",
    "file", "variable", "limit", "clock", "order", "randomness", "hash seed", "left over", "task", "sandbox", "undetermined",
]  # fmt: skip


class Drift(Frozen):
    """One difference, in the words of whoever has to repair it."""

    kind: DriftKind
    subject: str = Field(description="path in the image, package, variable, limit or task id")
    detail: str = Field(description="what it was and what it is, or what the experiment showed; at most 300 characters")
    task: str | None = Field(default=None, description="task that shows it; None: the environment itself changed")


class CanaryReport(Frozen):
    """One environment. Only what a repeat gives again: no times."""

    environment: str
    pinned: Digest = Field(description="layer that the pin names")
    present: Digest = Field(description="layer of the image as it is now")
    tasks: list[str] = Field(default_factory=list, description="ids of the tasks that were run")
    drifts: list[Drift] = Field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.drifts

    @property
    def quarantined(self) -> Literal["nothing", "tasks", "environment"]:
        """A task that depends on the clock is left out; an environment is, when it changed or all its tasks say so."""
        if any(drift.task is None for drift in self.drifts) or len({d.task for d in self.drifts}) >= max(
            1, len(self.tasks)
        ):
            return "environment" if self.drifts else "nothing"
        return "tasks" if self.drifts else "nothing"

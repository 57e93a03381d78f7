"""What a stage function is given: the round it belongs to, the spec of that round, and how to fan out.

A stage knows no orchestrator. Its flow hands it `fan_out`, a map that may run on threads, processes or a cluster, and
`progress`, which may be a bar, a log line or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from schemas.decision import TriageDecision
from schemas.errors import InputError
from schemas.goal import GoalSpec, RuntimeSpec
from schemas.pins import Operation, PinException, require_equal
from schemas.record import ABANDONED, StageName
from stages.workspace import Workspace

A = TypeVar("A")
B = TypeVar("B")


class FanOut(Protocol):
    """Like `list(map(fn, items))`, order kept. An exception of one call is raised after the others have ended."""

    def __call__(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]: ...


def in_order(fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
    return [fn(item) for item in items]


def threads(workers: int) -> FanOut:
    """A map over threads, order kept, for commands that run no flow; the sandboxes are processes of their own."""

    def fan_out(fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(fn, items))

    return fan_out


class Progress(Protocol):
    """`done` of `total` units of `what`; total None when unknown."""

    def __call__(self, what: str, done: int, total: int | None = None) -> None: ...


def silent(what: str, done: int, total: int | None = None) -> None:
    return None


@dataclass
class Telemetry:
    """Times, counts and peaks of one stage: outside every digest, in a sidecar beside the record."""

    values: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, amount: float) -> None:
        self.values[name] = self.values.get(name, 0.0) + amount

    def put(self, name: str, value: Any) -> None:
        self.values[name] = value

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Add the seconds that the block takes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - began)


def chunks(items: Sequence[A], size: int) -> list[Sequence[A]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


@dataclass
class Context:
    """One round of one workspace. `runtime` says where and how fast, and enters nothing.

    `operation`: the row of the pin table under which content is used. `exceptions`: what differed and `spec.pins` allows.
    `decided`: people's decisions as they were when the stage first asked, so that its key and its result see the same ones.
    """

    workspace: Workspace
    round: int
    spec: GoalSpec
    cache: Path
    fan_out: FanOut = in_order
    progress: Progress = silent
    telemetry: Telemetry = field(default_factory=Telemetry)
    operation: Operation = "resume"
    exceptions: list[PinException] = field(default_factory=list)
    decided: Sequence[TriageDecision] | None = None

    @property
    def runtime(self) -> RuntimeSpec:
        return self.spec.runtime

    def record(self, stage: StageName, round: int | None = None) -> Any:
        """The record of a stage of this round (or another). Raises InputError when it is not there yet."""
        number = self.round if round is None else round
        record = self.workspace.read(number, stage)
        if record is None:
            raise InputError(f"round {number}: {stage} has no record yet; run `postloop run --until {stage}` first")
        return record

    def earlier(self, stage: StageName) -> list[Any]:
        """Records of a stage in the rounds before this one, oldest first, without those that lack one or were abandoned."""
        found = [self.workspace.read(number, stage) for number in self.workspace.rounds() if number < self.round]
        return [record for record in found if record is not None and record.skipped != ABANDONED]

    def require_pins(
        self,
        recorded: Mapping[str, str],
        present: Mapping[str, str],
        operation: Operation | None = None,
        subject: str = "",
    ) -> None:
        """Those of the operation's row must be equal, or be allowed by name; then they are kept in `exceptions`.

        Raises PinMismatch.
        """
        row = operation or self.operation
        found = require_equal(row, recorded, present, self.spec.pins.widen.get(row, ()), subject)
        self.exceptions += [one for one in found if one not in self.exceptions]

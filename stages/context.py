"""What a stage function is given: the round it belongs to, the spec of that round, and how to fan out.

A stage knows no orchestrator. Its flow hands it `fan_out`, a map that may run on threads, processes or a cluster, and
`progress`, which may be a bar, a log line or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class FanOut(Protocol):
    """Like `list(map(fn, items))`, order kept. An exception of one call is raised after the others have ended."""

    def __call__(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]: ...


def in_order(fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
    return [fn(item) for item in items]


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


def chunks(items: Sequence[A], size: int) -> list[Sequence[A]]:
    return [items[start : start + size] for start in range(0, len(items), size)]

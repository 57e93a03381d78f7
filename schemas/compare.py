"""Two rounds side by side: which pins differ, which metrics moved, which buckets opened and closed."""

from __future__ import annotations

from pydantic import Field

from schemas.base import Digest, Frozen
from schemas.bucket import Route
from schemas.metrics import Estimate


class PinChange(Frozen):
    """None: the round has no such pin."""

    pin: str
    before: Digest | None
    after: Digest | None


class Moved(Frozen):
    """A metric of the final policy on one suite. `difference` is paired by task, over the tasks that both rounds have."""

    suite: str
    metric: str
    before: Estimate
    after: Estimate
    difference: Estimate | None = Field(description="None: no task was measured in both rounds")

    @property
    def significant(self) -> bool:
        d = self.difference
        return d is not None and d.low is not None and d.high is not None and (d.low > 0 or d.high < 0)


class BucketState(Frozen):
    id: str
    cause: str
    family: str
    route: Route
    before: int | None = Field(description="failures in it; None: there was no such bucket")
    after: int | None

    @property
    def change(self) -> str:
        return "opened" if self.before is None else "closed" if self.after is None else "stayed"


class Comparison(Frozen):
    before: int
    after: int
    pins: list[PinChange]
    metrics: list[Moved]
    buckets: list[BucketState]

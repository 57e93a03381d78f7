"""The ledger: what became of each bucket, round by round. Derived from records, and stored nowhere."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Frozen
from schemas.bucket import Route
from schemas.metrics import Estimate

Verdict = Literal["shrank", "unchanged", "grew", "not enough evidence"]


class LedgerRow(Frozen):
    """One bucket in one round. `verdict`: of the change one round later; None where that was not measured (yet)."""

    round: int = Field(ge=1)
    bucket: str
    cause: str
    family: str
    size: int = Field(ge=0)
    denominator: int = Field(ge=0)
    measured: Estimate = Field(description="share on the half of dev that did not choose it")
    route: Route
    rule: str
    decided_by: str | None = Field(default=None, description="id of the decision behind the route")
    treated: bool = Field(description="material for it went, or goes, into the next round")
    material: list[str] = Field(default_factory=list, description="what went into it, e.g. 24 tasks")
    difference: Estimate | None = Field(default=None, description="share one round later minus now, paired by task")
    verdict: Verdict | None = None
    cost: dict[str, float] = Field(default_factory=dict, description="of the experiments that found its cause")
    treatment: dict[str, float] = Field(
        default_factory=dict,
        description="what the next round made and trained on for it; empty until that has measured",
    )
    allocated: dict[str, float] = Field(
        default_factory=dict, description="seconds of that round's telemetry, by the bucket's shares of the work"
    )
    treated_in_vain: int = Field(default=0, ge=0, description="rounds in a row, this bucket's measurement included")
    escalated: bool = False

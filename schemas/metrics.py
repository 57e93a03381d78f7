"""Numbers with what makes them trustworthy, and the decisions made from them."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from schemas.base import Frozen


class Estimate(Frozen):
    """A mean with its 95% interval. value None: there is no data, which is not zero."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = Field(default=0, ge=0, description="observations")
    clusters: int = Field(default=0, ge=0, description="independent origins that the interval respects")
    errors: int = Field(default=0, ge=0, description="observations lost to infrastructure, not in n")
    method: str = Field(default="", description="how the interval was made")


class Decision(StrEnum):
    GO = "GO"
    NO_GO = "NO-GO"
    INCONCLUSIVE = "INCONCLUSIVE"


class Condition(Frozen):
    """One comparison inside a gate: the estimate, its threshold, and the answer."""

    name: str
    estimate: Estimate
    operator: Literal[">=", "<="]
    threshold: float
    decision: Decision


class Gate(Frozen):
    """A typed edge between stages. INCONCLUSIVE never promotes."""

    name: str
    decision: Decision
    conditions: list[Condition] = Field(default_factory=list)
    because: str = Field(description="one sentence with the numbers that decided")
    owner: str | None = Field(default=None, description="stage that should act when the answer is NO-GO")


class Alarm(Frozen):
    """A monitor of training that crossed its threshold."""

    name: str
    value: float
    threshold: float
    step: int = Field(ge=0, description="optimizer step at which it first crossed")
    meaning: str


class SuiteResult(Frozen):
    """One policy on one suite."""

    suite: str
    policy: Literal["base", "sft", "rl", "champion"]
    checkpoint: str = Field(description="digest of the weights")
    metrics: dict[str, Estimate] = Field(
        description="pass@1, pass@k, parse_rate, invalid_calls, tool_calls, tokens, ..."
    )
    by_family: dict[str, Estimate] = Field(default_factory=dict, description="pass@1 per family")


class Paired(Frozen):
    """candidate minus reference on the same tasks; the interval resamples origins."""

    suite: str
    metric: str
    candidate: str
    reference: str
    difference: Estimate

"""Independent measurement, the paired comparison with the champion, and the promotion gates."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Digest, Frozen, Name
from schemas.metrics import Paired, SuiteResult
from schemas.record import Record
from schemas.task import Split


class SuiteSpec(Frozen):
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    split: Split
    skills: list[str] = Field(default_factory=list, description="empty: every skill of the split")
    tasks: int = Field(default=0, ge=0, description="0: all")
    samples: int = Field(default=4, ge=1, description="attempts a task; pass@k is reported for k up to this")
    noise: Name | None = Field(
        default=None,
        description="profile of `noise`; the final policy is paired with a clean suite of the same split and skills",
    )


class EvaluationSpec(Frozen):
    suites: list[SuiteSpec] = Field(min_length=1)
    temperature: float = Field(
        default=0.4,
        ge=0,
        description="of deployment: evaluation and backflow sample with it, headroom and RL with sampling.temperature",
    )
    k: int = Field(default=4, ge=1, description="k of pass@k")
    confidence: float = Field(default=0.95, gt=0, lt=1)
    resamples: int = Field(default=2000, ge=100, description="bootstrap resamples over origins")
    retention_suite: str = "retention"
    retention_margin: float = Field(
        default=0.1, gt=0, lt=1, description="non-inferiority: lower bound must be above -margin"
    )
    promotion_suite: str = "held_out"
    audit_gap_above: float = Field(
        default=0.05,
        ge=0,
        description="alarm: share of scored attempts that the training verifier passes and the audit does not",
    )


class EvaluationRecord(Record):
    stage: Literal["evaluation"] = "evaluation"
    results: list[SuiteResult] = Field(default_factory=list)
    paired: list[Paired] = Field(default_factory=list)
    audit_gap: dict[str, float | None] = Field(
        default_factory=dict,
        description="suite -> share of scored attempts passed by the training verifier and not by the audit",
    )
    promoted: bool = False
    champion: Digest | None = Field(default=None, description="weights of the champion after this round")
    goal_met: bool | None = Field(default=None, description="every criterion holds; None when one has no data")

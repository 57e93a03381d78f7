"""What an outcome and the way to it are worth. The outcome is always the largest part; the path can only cost.

Not covered: learned reward models, rubric judges, normalisation across domains.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from schemas.base import Frozen, Name


class RewardRules(Frozen):
    """Part of the run pin. The value of an attempt is the sum of its parts, held within [low, high]."""

    name: Name = Field(default="outcome")
    version: str = Field(default="1", description="changed by a person whenever a number changes")
    outcome: float = Field(default=1.0, gt=0, description="every check passed and there was no violation")
    partial: float = Field(
        default=0.2,
        ge=0,
        description="failed without a violation: times the share of f2p checks passed, so the untouched start earns 0",
    )
    violation: float = Field(default=-0.5, le=0, description="the verifier was evaded; the worst class counts, once")
    violation_of: dict[str, float] = Field(
        default_factory=lambda: {"protected_file": 0.0},
        description="class of violation -> its own price in place of `violation`, <= 0; the outcome is lost either way",
    )
    invalid_call: float = Field(default=-0.05, le=0, description="each turn whose text did not parse as an action")
    invalid_call_cap: float = Field(default=-0.2, le=0, description="invalid calls together never cost more than this")
    forbidden: float = Field(default=-0.5, le=0, description="an action outside the safety boundary, counted once")
    truncated: float = Field(default=-0.1, le=0, description="a turn was cut at max_tokens, counted once")
    unchanged: float = Field(default=0.0, le=0, description="failed, and the outcome equals the start tree")
    low: float = Field(default=-1.0, description="lowest value; what lies below is held here by the part `clamp`")
    high: float = Field(default=1.0, description="highest value")

    @model_validator(mode="after")
    def _outcome_weighs_most(self) -> RewardRules:
        if not self.low < self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        if self.partial > self.outcome / 2:
            raise ValueError(f"partial {self.partial} is above half of outcome {self.outcome}: trying would pay well")
        if self.outcome > self.high:
            raise ValueError(f"outcome {self.outcome} is above high {self.high}")
        dear = [kind for kind, price in self.violation_of.items() if price > 0]
        if dear:
            raise ValueError(f"violation_of {dear[0]} is {self.violation_of[dear[0]]}, above 0: a violation would pay")
        return self

"""What a verifier saw, what the attempt did, and what it is worth. Three records, so that each can be made again alone.

An infrastructure failure is an `error` verdict without a score. It is never a zero and never enters a mean.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from schemas.base import Digest, Frozen, Name


class Status(StrEnum):
    SCORED = "scored"
    UNSCORED = "unscored"
    ERROR = "error"


class Check(Frozen):
    """One test. `role`: f2p must change from fail to pass, p2p must keep passing, answer is an answer comparison."""

    name: str
    role: Literal["f2p", "p2p", "answer"]
    passed: bool
    detail: str = Field(default="", description="first difference, at most 200 characters; never shown to the model")


class Violation(Frozen):
    kind: Name = Field(description="class, e.g. protected_file, tampering, forged_result, not_primitive")
    detail: str = Field(default="", description="at most 200 characters")


class Verdict(Frozen):
    """Keyed by outcome, task, image, limits and verifier."""

    outcome: Digest = Field(description="digest of the outcome tree (changed files)")
    task: Digest
    image: Digest
    limits: Digest
    verifier: Digest
    role: Literal["training", "audit"] = "training"
    repeat: int = Field(default=0, ge=0)
    status: Status
    score: float | None = Field(
        default=None, ge=0, le=1, description="share of f2p and p2p checks passed; None unless scored"
    )
    passed: bool | None = Field(default=None, description="every check passed and no violation; None unless scored")
    checks: list[Check] = Field(default_factory=list)
    violations: list[Violation] = Field(default_factory=list)
    limit_hit: Literal["cpu", "wall", "memory", "output", "signal"] | None = None
    trust: Literal["declared", "foreign"] = Field(
        default="declared",
        description="who decided: our verifier, or (foreign) a script of the task's own beside the attempt",
    )
    reason: str | None = Field(default=None, description="why unscored or error")

    @model_validator(mode="after")
    def _scored_has_a_score(self) -> Verdict:
        if (self.status is Status.SCORED) != (self.score is not None and self.passed is not None):
            raise ValueError(f"status {self.status} and score {self.score!r} do not belong together")
        return self


class Conduct(Frozen):
    """From the trajectory alone, without a sandbox."""

    turns: int = Field(ge=0)
    tool_calls: int = Field(ge=0)
    invalid_calls: int = Field(ge=0, description="turns whose text did not parse as an action")
    forbidden: list[str] = Field(default_factory=list, description="actions outside the safety boundary")
    truncated_turns: int = Field(default=0, ge=0, description="turns cut at max_tokens")
    generated_tokens: int = Field(ge=0)
    submitted: bool = Field(description="ended by its own submission, not by a limit")
    unchanged: bool = Field(default=False, description="the outcome equals the start tree")


class Reward(Frozen):
    """What the rules make of verdict and conduct. value None: error or unscored, kept out of every group."""

    trajectory: str
    verdict: Digest
    rules: Digest
    value: float | None
    parts: dict[str, float] = Field(default_factory=dict, description="each part on its own; they sum to value")

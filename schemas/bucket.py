"""Failures with one cause in one family, who owns them, and what the next round gets for them."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from schemas.base import Digest, Frozen, Json, digest_of
from schemas.metrics import Estimate


class Route(StrEnum):
    GOAL = "goal"
    DATA = "data"
    SFT = "sft"
    RL = "rl"
    EVALUATION = "evaluation"
    INFRASTRUCTURE = "infrastructure"
    UNDETERMINED = "undetermined"


class Evidence(Frozen):
    """Typed facts about one failed trajectory; rules decide over these and nothing else."""

    trajectory: str
    task_id: str
    family: str
    origin: str
    status: Literal["scored", "unscored", "error"]
    parse_errors: int = Field(ge=0)
    turns: int = Field(ge=0)
    tool_errors: int = Field(ge=0)
    forbidden: int = Field(ge=0)
    violations: list[str]
    failed_checks: int = Field(ge=0)
    passed_checks: int = Field(ge=0)
    limit_hit: str | None
    truncated: bool
    submitted: bool
    unchanged: bool
    visible_passed: bool | None = Field(description="the visible tests passed on the outcome; None when none were run")
    touched: list[str]
    task_passes: int = Field(ge=0, description="passes of the same task and policy")
    task_attempts: int = Field(ge=0, description="scored attempts of the same task and policy")
    pass_at_k: float | None = Field(description="unbiased estimate for this task at k = task_attempts")
    family_parse_rate: float | None = Field(description="share of turns of the family that parsed")
    family_pass: float | None = Field(description="share of tasks of the family with at least one pass")
    trained_origins: int = Field(ge=0, description="training origins of this family")
    verdict_flipped: bool = Field(default=False, description="a repeat of the same outcome gave another verdict")
    audit_differs: bool = False


class Rule(Frozen):
    """First rule that matches owns the failure. `when` is a conjunction of comparisons over Evidence fields."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    cause: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    route: Route
    when: dict[str, Json] = Field(
        description="field -> value (equals) or {gt|ge|lt|le|in|contains: value}; all must hold; empty matches all"
    )
    because: str = Field(description="the line of the routing table that it implements")


def bucket_id(cause: str, family: str) -> str:
    return digest_of([cause, family])[:12]


class Bucket(Frozen):
    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    cause: str
    family: str
    route: Route
    rule: str
    rules: Digest = Field(description="digest of the rule file that put it here")
    overridden_by: str | None = Field(default=None, description="decision id of the person who changed the route")
    size: int = Field(ge=0, description="failures on the choosing half of dev")
    denominator: int = Field(ge=0, description="scored attempts of the family on the choosing half of dev")
    share: Estimate = Field(description="size / denominator, chosen on: biased upwards by the choice")
    measured: Estimate = Field(
        description="the same share on the measuring half of dev: what the next round compares with"
    )
    members: list[str] = Field(description="trajectory ids, choosing half")
    example: str = Field(description="trajectory id")
    treated: bool = Field(default=False, description="material for it goes into the next round")


class BucketChange(Frozen):
    """A bucket of the last round, measured again. Chance alone shrinks a large bucket: read it beside untreated ones."""

    bucket: str
    cause: str
    family: str
    treated: bool
    before: Estimate
    after: Estimate
    difference: Estimate = Field(description="after - before on the measuring half, paired by task")
    verdict: Literal["shrank", "unchanged", "grew", "not enough evidence"]


class Material(Frozen):
    """What a bucket hands to the next round. Verifiers, reward rules and environments are proposals for a person."""

    kind: Literal["tasks", "demonstrations", "pairs", "weights", "proposal"]
    bucket: str
    route: Route
    family: str
    amount: int = Field(ge=0, description="tasks to make, demonstrations to add, or 0")
    weight: float = Field(default=1.0, gt=0, description="kind weights: factor on the sampling weight of the family")
    operators: list[str] = Field(default_factory=list, description="kind tasks: mutation operators")
    trajectories: list[str] = Field(default_factory=list, description="training-pool trajectories that it uses")
    approved: bool = Field(description="by the spec's unattended default or by a person")
    note: str = ""

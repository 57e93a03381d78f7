"""Failures to buckets, buckets to routes, routes to material for the next round."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.attribution import AttributionSpec, Cost
from schemas.base import Digest, Frozen, Name
from schemas.bucket import Bucket, BucketChange, Material
from schemas.record import Record


class BackflowSpec(Frozen):
    tasks: int = Field(default=48, ge=1, description="dev tasks attempted, both halves together")
    samples: int = Field(default=4, ge=1)
    noise: Name | None = Field(
        default=None,
        description="profile of `noise` for dev attempts, and for demonstrations of what fails by it alone",
    )
    max_buckets: int = Field(default=4, ge=0, description="largest routed buckets that get material")
    new_tasks: int = Field(default=24, ge=0, description="fresh tasks per bucket routed to data")
    demonstrations: int = Field(default=16, ge=0, description="demonstrations per bucket routed to sft")
    weight: float = Field(default=2.0, gt=0, description="sampling weight of a family routed to rl")
    attribution: AttributionSpec = AttributionSpec()
    pairs: int = Field(default=16, ge=0, description="preference pairs per bucket of a decision boundary")
    approval: Literal["go_on", "wait"] = Field(
        default="go_on", description="wait: the flow pauses until a person approves the material, or `wait_s` is over"
    )
    wait_s: int = Field(default=3600, ge=1, description="approval wait: seconds, after which `unattended` decides")
    unattended: list[Literal["tasks", "demonstrations", "pairs", "weights"]] = Field(
        default_factory=lambda: ["tasks", "demonstrations", "pairs", "weights"],  # type: ignore[arg-type]
        description="kinds of material that go on without a person; proposals never do",
    )


class BackflowRecord(Record):
    stage: Literal["backflow"] = "backflow"
    rules: Digest | None = None
    buckets: list[Bucket] = Field(default_factory=list)
    changes: list[BucketChange] = Field(default_factory=list, description="buckets of the last round, measured again")
    material: list[Material] = Field(default_factory=list)
    failures: int = Field(default=0, ge=0)
    attempts: int = Field(default=0, ge=0)
    ladder: dict[str, Cost] = Field(default_factory=dict, description="rung -> what its experiments took")
    decisions: list[str] = Field(default_factory=list, description="ids of people's decisions that were obeyed")

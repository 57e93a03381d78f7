"""Failures to buckets, buckets to routes, routes to material for the next round."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Digest, Frozen
from schemas.bucket import Bucket, BucketChange, Material
from schemas.record import Record


class BackflowSpec(Frozen):
    tasks: int = Field(default=48, ge=1, description="dev tasks attempted, both halves together")
    samples: int = Field(default=4, ge=1)
    max_buckets: int = Field(default=4, ge=0, description="largest routed buckets that get material")
    new_tasks: int = Field(default=24, ge=0, description="fresh tasks per bucket routed to data")
    demonstrations: int = Field(default=16, ge=0, description="demonstrations per bucket routed to sft")
    weight: float = Field(default=2.0, gt=0, description="sampling weight of a family routed to rl")
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

"""The data stage: tasks proven, split by origin, and demonstrations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Frozen, Name
from schemas.record import Record


class SourceSpec(Frozen):
    """Tasks of one skill from the seed data. 0 tasks of a split leaves that split empty for the skill."""

    skill: Name
    train: int = Field(default=0, ge=0, description="tasks taken for training")
    dev: int = Field(default=0, ge=0)
    held_out: int = Field(default=0, ge=0)
    boundary: int = Field(default=0, ge=0)
    retention: int = Field(default=0, ge=0)


class DemonstrationSpec(Frozen):
    """Where demonstrations come from. gold: written from the gold outcome in the harness's format."""

    gold: dict[str, int] | None = Field(
        default=None, description="skill -> demonstrations from gold edits; None: 16 of each skill that is trained"
    )
    rejection_samples: int = Field(
        default=0, ge=0, description="attempts of the start policy a training task; verified ones kept"
    )
    rejection_tasks: int = Field(default=0, ge=0, description="training tasks that are sampled so")
    rejection_skills: list[str] = Field(default_factory=list, description="skills of those tasks; empty: every one")
    from_past_rounds: int = Field(
        default=0,
        ge=0,
        description="verified training-pool trajectories of earlier rounds to reuse, at most one a task",
    )


class DataSpec(Frozen):
    seed_data: str = Field(
        default="default", description="default: the embedded families; else a folder with tasks.jsonl"
    )
    sources: list[SourceSpec] = Field(min_length=1)
    demonstrations: DemonstrationSpec = DemonstrationSpec()
    proof_runs: int = Field(default=2, ge=1, description="runs of the gold outcome per task; all must pass and agree")
    contamination_ngram: int = Field(
        default=8, ge=2, description="token n-gram length for the overlap with evaluation suites"
    )
    contamination_share: float = Field(
        default=0.6, gt=0, le=1, description="share of shared n-grams that counts as a near copy"
    )
    min_tasks: int = Field(default=1, ge=1, description="gate: proven training tasks needed to go on")


class DataRecord(Record):
    stage: Literal["data"] = "data"
    tasks: dict[str, int] = Field(default_factory=dict, description="split -> proven tasks")
    families: dict[str, int] = Field(default_factory=dict, description="family -> proven training tasks")
    quarantined: dict[str, int] = Field(default_factory=dict, description="reason -> tasks")
    demonstrations: dict[str, int] = Field(
        default_factory=dict, description="gold | prefix | rejection | past | backflow -> rows"
    )
    pairs: dict[str, int] = Field(default_factory=dict, description="decision | boundary | retention -> pairs")
    routed_tasks: int = Field(default=0, ge=0, description="training tasks made for buckets of the last round")

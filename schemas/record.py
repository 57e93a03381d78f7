"""What every stage leaves: the common part of the six records. A record is written once and is the commit point."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.artifact import ArtifactRef
from schemas.base import SCHEMA_VERSION, Digest, Frozen
from schemas.metrics import Alarm, Gate
from schemas.pins import PinException

StageName = Literal["goal", "data", "sft", "rl", "evaluation", "backflow"]
ABANDONED = "abandoned"  # `skipped` of the stages that a round never came to
STAGES: tuple[StageName, ...] = ("goal", "data", "sft", "rl", "evaluation", "backflow")


class Record(Frozen):
    schema_version: int = SCHEMA_VERSION
    stage: StageName
    key: Digest = Field(description="digest of all that decides the result: same key, nothing to do")
    inputs: dict[str, Digest] = Field(default_factory=dict, description="pin name -> digest, all that entered the key")
    artifacts: dict[str, ArtifactRef] = Field(default_factory=dict)
    gates: list[Gate] = Field(default_factory=list)
    alarms: list[Alarm] = Field(default_factory=list)
    skipped: str | None = Field(default=None, description="why the stage did nothing, else None")
    exceptions: list[PinException] = Field(
        default_factory=list, description="pins that differed and that the spec allowed to differ, by name"
    )
    infrastructure_errors: int = Field(default=0, ge=0, description="attempts lost to infrastructure, in no mean")
    reused_from: int | None = Field(default=None, description="round whose record this repeats")
    rescored_by: int | None = Field(
        default=None,
        description="number of the rescore that found no difference under this round's verifier and rules, where the "
        "repeated record was made under others",
    )

    def content_digest(self) -> str:
        """Identity of the result. Where it was reused from is provenance and stays out."""
        from schemas.base import digest_of

        return digest_of(self.model_dump(mode="json", exclude={"reused_from", "rescored_by"}))

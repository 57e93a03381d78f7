"""What came of running a recorded attempt again: identical, or the first difference with both sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from schemas.base import Frozen
from schemas.pins import PinException
from schemas.record import StageName

Level = Literal["L0", "L1", "regenerate"]


class Difference(Frozen):
    where: str = Field(description="e.g. verdict.passed, turn 2: observation, turn 1: token 17")
    recorded: str
    now: str


class Replay(Frozen):
    """`same` None: nothing could be compared, and `reason` says why. That is neither identical nor different."""

    trajectory: str
    round: int = Field(ge=1)
    stage: StageName
    level: Level = Field(description="L0: scored again; L1: executed and scored again; regenerate: sampled again")
    same: bool | None
    first: Difference | None = None
    reason: str | None = None
    exceptions: list[PinException] = Field(
        default_factory=list, description="pins that differed from the recorded ones, as goal.yaml allows"
    )
    infrastructure: bool = Field(default=False, description="the machine failed now: try again")

    @model_validator(mode="after")
    def _says_why(self) -> Replay:
        if (self.same is False) != (self.first is not None) or (self.same is None) != (self.reason is not None):
            raise ValueError(f"replay of {self.trajectory}: same {self.same}, first {self.first}, reason {self.reason}")
        return self

"""What no record needs any more, and why it may go."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Closed

Kind = Literal["temporary", "artifact", "cached", "cache"]


class Waste(Closed):
    kind: Kind
    path: str = Field(description="relative to the workspace")
    bytes: int = Field(
        ge=0, description="given back when all that is listed goes; 0 for what shares its disk with another line"
    )
    why: str


class Survey(Closed):
    """Temporary files first, then artifacts, the cached copies of DVC, and caches."""

    waste: list[Waste]
    kept: list[str] = Field(default_factory=list, description="what was not looked at, and why, a line each")

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.waste)

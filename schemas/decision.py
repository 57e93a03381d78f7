"""What a person decided in triage: kept for ever, with who, when and why. Appended beside the records, never in them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Frozen
from schemas.bucket import Route


class TriageDecision(Frozen):
    """About a bucket, or about one failure (`trajectory`) of it. The newest about the same subject is in force."""

    id: str = Field(
        pattern=r"^[0-9a-f]{12}$", description="digest of all but `when`: deciding the same twice is one decision"
    )
    bucket: str = Field(pattern=r"^[0-9a-f]{12}$")
    trajectory: str | None = None
    round: int = Field(ge=1, description="the round whose backflow it is about")
    route: Route | None = Field(default=None, description="the owner; None leaves it")
    approve: bool | None = Field(default=None, description="of the bucket's material; None leaves it")
    who: str
    when: str = Field(description="ISO 8601, UTC")
    because: str = Field(min_length=1)
    source: Literal["command", "mlflow"] = "command"

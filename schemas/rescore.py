"""Old trajectories judged or priced again: what came of it, and what the flipped rewards had been used for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.artifact import ArtifactRef
from schemas.base import SCHEMA_VERSION, Digest, Frozen
from schemas.record import StageName
from schemas.rewards import RewardRules

Use = Literal["demonstration", "preference_pair", "group_member", "checkpoint", "promotion", "measurement", "bucket"]


class Flip(Frozen):
    """An attempt that passes or fails otherwise now, or that is worth another reward."""

    trajectory: str
    round: int = Field(ge=1, description="the first round that holds it")
    stage: StageName
    task_id: str
    reward: Digest = Field(description="the recorded reward, which holds no more: what used it is stale")
    passed_before: bool | None
    passed_after: bool | None
    value_before: float | None
    value_after: float | None
    because: str = Field(description="the first check or violation, or the part of the price, that made the difference")


class Rescore(Frozen):
    """A record of the workspace, beside the rounds: rescores/0001.json. Written once."""

    schema_version: int = SCHEMA_VERSION
    number: int = Field(ge=1)
    key: Digest = Field(description="digest of what was judged, by which verifiers, under which rules")
    rounds: list[int] = Field(min_length=1)
    verifiers: dict[str, Digest] = Field(description="pin -> bundle that judged; empty: the verdicts were only priced")
    rewards: RewardRules | None = Field(description="rules that priced; None: each round's own")
    artifacts: dict[str, ArtifactRef] = Field(default_factory=dict)
    attempts: int = Field(ge=0, description="that have an outcome to judge")
    judged: int = Field(ge=0, description="outcomes that went through the sandbox; others had a verdict of equal key")
    unjudged: list[str] = Field(
        default_factory=list, description="trajectories that infrastructure kept from a verdict"
    )
    changed: int = Field(ge=0, description="same pass and value, but another check or violation")
    flips: list[Flip] = Field(default_factory=list)
    proofs: dict[str, str] = Field(
        default_factory=dict, description="digest of a task whose proof is another one under the new verifier -> why"
    )
    proven: list[int] = Field(default_factory=list, description="rounds whose tasks were proven again")


class StaleUse(Frozen):
    """Something that used a reward which a later rescore flipped. Derived: nothing is rewritten."""

    use: Use
    round: int = Field(ge=1)
    stage: StageName
    name: str = Field(description="row, pair, group, weights, suite or bucket")
    trajectory: str | None = Field(default=None, description="None where it used several")
    advantage: float | None = None
    step: int | None = Field(default=None, description="optimizer step")
    flipped: int = Field(default=1, ge=0, description="flipped attempts behind it; 0: through an earlier checkpoint")
    of: int | None = Field(default=None, ge=0, description="attempts behind it")

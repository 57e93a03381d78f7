"""RL on verifiable rewards, or preference optimisation: phases behind the headroom gate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Frozen, Name
from schemas.model import Checkpoint, LoraSpec
from schemas.record import Record


class Monitors(Frozen):
    """Named alarms: the value at which each sounds. None turns one off."""

    entropy_below: float | None = Field(default=0.05, description="nats a token")
    kl_above: float | None = Field(default=0.5, description="nats a token, to the phase's start")
    clip_share_above: float | None = Field(default=0.3, description="share of tokens clipped")
    length_above: float | None = Field(default=90.0, description="mean completion tokens a turn")
    repetition_above: float | None = Field(default=0.5, description="share of repeated 4-grams within a completion")
    zero_spread_above: float | None = Field(
        default=0.9, description="share of sampled groups whose rewards are all equal"
    )
    invalid_calls_above: float | None = Field(default=0.5, description="share of turns that did not parse")
    sampler_gap_above: float | None = Field(
        default=0.05, description="mean |log p sampler - log p trainer| before step 1, nats"
    )
    audit_lag_above: float | None = Field(
        default=0.1,
        description="growth since step 0 of the share of rollouts that the training verifier passes and the audit does not",
    )


class GrpoPhase(Frozen):
    """Group-relative advantage without std and without KL (Dr. GRPO), zero-spread groups resampled (DAPO)."""

    method: Literal["grpo"] = "grpo"
    name: str = "grpo"
    steps: int = Field(default=6, ge=1, description="optimizer steps")
    groups: int = Field(default=8, ge=1, description="groups (tasks) that enter one step")
    group_size: int = Field(default=8, ge=2, description="trajectories a group")
    oversample: float = Field(default=1.5, ge=1, description="groups sampled at most, as a multiple of `groups`")
    learning_rate: float = Field(default=5e-4, gt=0)
    warmup_steps: int = Field(default=1, ge=0)
    beta: float = Field(default=0.0, ge=0, description="KL penalty")
    epsilon: float = Field(default=0.2, gt=0, description="clip range of the ratio")
    max_grad_norm: float = Field(default=1.0, gt=0)
    lora: LoraSpec = LoraSpec()


class DpoPhase(Frozen):
    """Pairs from training rollouts of one task with different rewards (arXiv:2305.18290)."""

    method: Literal["dpo"] = "dpo"
    name: str = "dpo"
    steps: int = Field(default=8, ge=1)
    batch_size: int = Field(default=8, ge=1, description="pairs a step")
    groups: int = Field(default=32, ge=1, description="training tasks sampled for pairs")
    group_size: int = Field(default=8, ge=2)
    learning_rate: float = Field(default=1e-4, gt=0)
    warmup_steps: int = Field(default=1, ge=0)
    beta: float = Field(default=0.1, gt=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    lora: LoraSpec = LoraSpec()


RlPhase = Annotated[GrpoPhase | DpoPhase, Field(discriminator="method")]


class HeadroomSpec(Frozen):
    """RL only where it can learn: measured on the choosing half of dev at the sampling temperature of training."""

    tasks: int = Field(default=24, ge=1)
    samples: int = Field(default=8, ge=2, description="k of pass@k")
    min_parse_rate: float = Field(
        default=0.5, ge=0, le=1, description="share of turns; below it groups measure the format"
    )
    min_pass_at_k: float = Field(default=0.1, ge=0, le=1)
    max_pass_at_1: float = Field(default=0.95, ge=0, le=1, description="above it there is nothing left to learn")
    min_mixed: float = Field(default=0.15, ge=0, le=1, description="share of groups with different rewards")


class RlSpec(Frozen):
    phases: list[RlPhase] = Field(default=[GrpoPhase()], min_length=1)
    headroom: HeadroomSpec = HeadroomSpec()
    skills: list[str] = Field(default_factory=lambda: ["repair"], description="skills whose training tasks are sampled")
    monitors: Monitors = Monitors()
    noise: Name | None = Field(default=None, description="profile of `noise` that headroom and rollouts are under")


class RlRecord(Record):
    stage: Literal["rl"] = "rl"
    checkpoint: Checkpoint | None = Field(default=None, description="None when skipped: the SFT checkpoint stands")
    steps: int = Field(default=0, ge=0)
    curves: dict[str, list[float | None]] = Field(default_factory=dict, description="name -> one value a step")
    groups_sampled: int = Field(default=0, ge=0)
    groups_used: int = Field(default=0, ge=0)
    sampler_gap: dict[str, float] = Field(
        default_factory=dict, description="mean, p50, p99, max, outside_clip before step 1"
    )

"""Supervised fine-tuning: an ordered list of phases, then the parse-rate gate."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from schemas.base import Frozen
from schemas.model import Checkpoint, LoraSpec
from schemas.record import Record


class SftPhase(Frozen):
    name: str = "cold_start"
    steps: int | None = Field(default=None, ge=1, description="optimizer steps; None: as many as `epochs` needs")
    epochs: float = Field(default=1.5, gt=0, description="passes over the demonstrations when steps is None")
    batch_size: int = Field(default=8, ge=1, description="demonstrations a step")
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup_steps: int = Field(default=1, ge=0)
    schedule: Literal["cosine", "constant", "linear"] = "cosine"
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_length: int = Field(default=512, ge=16, description="tokens; a longer demonstration is refused, never cut")
    lora: LoraSpec = LoraSpec()

    def steps_for(self, rows: int) -> int:
        return self.steps if self.steps is not None else max(1, math.ceil(rows * self.epochs / self.batch_size))


class SftSpec(Frozen):
    phases: list[SftPhase] = Field(default=[SftPhase()], min_length=1)
    min_parse_rate: float = Field(default=0.8, ge=0, le=1, description="gate on dev, lower bound decides GO")
    gate_tasks: int = Field(default=16, ge=1, description="dev tasks (choosing half) the gate samples")


class SftRecord(Record):
    stage: Literal["sft"] = "sft"
    checkpoint: Checkpoint | None = None
    rows: int = Field(default=0, ge=0)
    loss: list[float] = Field(default_factory=list, description="training loss, one a step")

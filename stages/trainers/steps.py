"""The policy of an optimizer step, made again from what RL keeps of it: the start's weights and the step's adapter.

The adapter is folded in as it was for sampling, so that the same batch gives the same bits: also the empty one that training
begins with, since folded weights lie elsewhere in memory than loaded ones, and where they lie decides the last bits of a
product. Not covered: phases that began at the end of another phase, whose merged start is not kept.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from schemas.base import Digest, digest_of
from schemas.model import LoraSpec
from stages.samplers import Sampler
from stages.trainers import common

WEIGHTS = "adapter_model.safetensors"


def policy_of(origin: Digest, adapter: Path) -> Digest:
    """Digest of the policy: the weights it started from, and the file of its adapter."""
    return digest_of([origin, hashlib.sha256((adapter / WEIGHTS).read_bytes()).hexdigest()])


def find_step(adapters: Path, origin: Digest, policy: Digest) -> Path | None:
    """The folder of the step whose policy this is, among those that RL stored."""
    return next((step for step in sorted(adapters.glob("steps/*")) if policy_of(origin, step) == policy), None)


def step_sampler(start: Path, adapter: Path | None, policy: Digest) -> Sampler:
    """A sampler over the start's weights with the adapter folded in, float32 on the CPU. None: before the first step."""
    from stages.samplers.transformers_sampler import TransformersSampler

    version = 0 if adapter is None else int(adapter.name)
    return TransformersSampler(start, model=_folded(start, adapter), policy=policy, version=version)


def _folded(start: Path, adapter: Path | None) -> Any:
    from peft import PeftModel, get_peft_model

    base, _ = common.load(start)
    if adapter is None:
        model = get_peft_model(base, common.lora(LoraSpec()))
    else:
        model = PeftModel.from_pretrained(base, str(adapter))
    model.eval()
    for module in model.modules():
        if hasattr(module, "lora_A") and hasattr(module, "merge"):
            module.merge(safe_merge=True)
    return model.get_base_model()

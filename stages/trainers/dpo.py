"""Direct preference optimisation (arXiv:2305.18290) through TRL's DPOTrainer, on whole conversations.

Both sides of a pair are tokenised as rollouts are (conversation.py), so TRL's own preparation is left out. The loss
covers the assistant's tokens after the two sides part: tokens before that are the same on both sides and cancel. The
reference is the start, the same model with its adapter switched off.

Covered: pairs of several turns, environment turns masked. Not covered: IPO, KTO and other losses, a separate reference.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import InputError
from schemas.rl import DpoPhase
from stages.trainers import common
from stages.trainers.common import Progress, silent
from stages.trainers.conversation import Message, Tokenized, tokenize_conversation

MICRO_BATCH = 4  # pairs in one forward, two sequences each


@dataclass(frozen=True)
class Pair:
    """Two whole conversations about one task; `chosen` was rewarded higher. `id` names the pair in errors and edges.

    `cut`: the last rejected turn was cut at its token limit. It never ended, so its end token is no part of the loss: else
    the pair would teach not to stop.
    """

    id: str
    chosen: Sequence[Message]
    rejected: Sequence[Message]
    cut: bool = False


@dataclass(frozen=True)
class DpoResult:
    """curves: loss, grad_norm, learning_rate, margin, accuracy, chosen_reward, rejected_reward; one value a step.

    margin: mean of beta * (log-ratio of chosen - log-ratio of rejected). used: pair id and optimizer step, in order.
    """

    curves: dict[str, list[float | None]]
    used: list[tuple[str, int]]
    steps: int
    merge_gap: float


def tokenize_pair(tokenizer: Any, pair: Pair) -> tuple[Tokenized, Tokenized]:
    """Both sides with the loss mask emptied over their common beginning. Raises InputError when they do not differ."""
    sides = [
        tokenize_conversation(tokenizer, messages, name=f"pair {pair.id}, {side}")
        for side, messages in (("chosen", pair.chosen), ("rejected", pair.rejected))
    ]
    chosen, rejected = sides
    if pair.cut:
        rejected = Tokenized(rejected.ids[:-1], rejected.mask[:-1])
    if chosen.ids == rejected.ids:
        raise InputError(f"pair {pair.id}: chosen and rejected are the same {len(chosen.ids)} tokens; drop the pair")
    shared = 0
    for left, right in zip(chosen.ids, rejected.ids, strict=False):
        if left != right:
            break
        shared += 1
    return _masked_until(chosen, shared), _masked_until(rejected, shared)


def _masked_until(side: Tokenized, shared: int) -> Tokenized:
    return Tokenized(side.ids, [0] * shared + side.mask[shared:])


def train_dpo(
    start: Path,
    out: Path,
    out_adapter: Path,
    pairs: Sequence[Pair],
    phase: DpoPhase,
    seed: int,
    progress: Progress = silent,
    use_cpu: bool = True,
) -> DpoResult:
    """Train from the checkpoint folder `start`; write the merged checkpoint to `out`, the adapter to `out_adapter`.

    Deterministic as the other trainers. Raises InputError for no pairs or a pair without a difference, IntegrityError
    as `common.finish` does.
    """
    if not pairs:
        raise InputError("dpo: 0 pairs; the training rollouts had no task with two different rewards")
    common.quiet()
    from datasets import Dataset
    from transformers import set_seed
    from trl import DPOConfig

    set_seed(seed)
    model, tokenizer = common.load(start)
    sides = [tokenize_pair(tokenizer, pair) for pair in pairs]
    micro = common.micro_batch(phase.batch_size, MICRO_BATCH)
    lengths = [max(len(chosen.ids), len(rejected.ids)) for chosen, rejected in sides]
    order = common.row_order(len(pairs), phase.steps, phase.batch_size, micro, lengths, seed)
    dataset = Dataset.from_list([_columns(*sides[index]) for index in order])
    with tempfile.TemporaryDirectory() as folder:
        args = common.arguments(
            DPOConfig,
            folder,
            seed,
            use_cpu,
            max_steps=phase.steps,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=phase.batch_size // micro,
            learning_rate=phase.learning_rate,
            max_grad_norm=phase.max_grad_norm,
            beta=phase.beta,
            max_length=None,
            disable_dropout=True,
            train_sampling_strategy="sequential",
        )
        recorder = common.recorder(progress, phase.name, phase.steps)
        trainer = _trainer_class(phase)(
            model=model,
            args=args,
            train_dataset=dataset,
            data_collator=_collator(int(tokenizer.pad_token_id)),
            processing_class=tokenizer,
            peft_config=common.lora(phase.lora),
            callbacks=[recorder],
        )
        common.run(trainer)
    gap = common.finish(trainer.model, start, out, out_adapter, [chosen.ids for chosen, _ in sides[:3]])
    names = {
        "loss": "loss",
        "grad_norm": "grad_norm",
        "learning_rate": "learning_rate",
        "margin": "rewards/margins",
        "accuracy": "rewards/accuracies",
        "chosen_reward": "rewards/chosen",
        "rejected_reward": "rewards/rejected",
    }
    return DpoResult(
        curves={name: [step.get(key) for step in recorder.steps] for name, key in names.items()},
        used=[(pairs[index].id, place // phase.batch_size) for place, index in enumerate(order)],
        steps=len(recorder.steps),
        merge_gap=gap,
    )


def _columns(chosen: Tokenized, rejected: Tokenized) -> dict[str, list[int]]:
    return {
        "chosen_ids": chosen.ids,
        "chosen_mask": chosen.mask,
        "rejected_ids": rejected.ids,
        "rejected_mask": rejected.mask,
    }


def _collator(pad_token: int) -> Any:
    """(2 * pairs, longest) tensors, all chosen before all rejected, padded on the right."""
    import torch

    def collate(examples: list[dict[str, list[int]]]) -> dict[str, Any]:
        rows = [
            (example[f"{side}_ids"], example[f"{side}_mask"]) for side in ("chosen", "rejected") for example in examples
        ]
        width = max(len(ids) for ids, _ in rows)
        return {
            "input_ids": torch.tensor([ids + [pad_token] * (width - len(ids)) for ids, _ in rows]),
            "attention_mask": torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows]),
            "completion_mask": torch.tensor([mask + [0] * (width - len(mask)) for _, mask in rows]),
        }

    return collate


def _trainer_class(phase: DpoPhase) -> Any:
    from trl import DPOTrainer

    class TokenizedDpo(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset  # already ids and masks

    return common.with_schedule(TokenizedDpo, "constant", phase.warmup_steps)

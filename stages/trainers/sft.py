"""Supervised fine-tuning through TRL's SFTTrainer: LoRA on all linear layers, loss on the assistant's tokens only.

Covered: conversations of several turns, with environment turns between; whole epochs in seeded order; a checkpoint that
is merged, read back and compared. Not covered: packing, continued pre-training on raw text, full fine-tuning.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import InputError
from schemas.sft import SftPhase
from stages.trainers import common
from stages.trainers.common import Progress, silent
from stages.trainers.conversation import Message, Tokenized, tokenize_conversation

MICRO_BATCH = 4  # rows in one forward: short rows are not padded to the longest of the whole step


@dataclass(frozen=True)
class SftResult:
    """`loss` and `grad_norm` have one value a step; `merge_gap` is the largest logit difference, merged to unmerged."""

    loss: list[float]
    grad_norm: list[float]
    rows: int
    trained_tokens: int
    merge_gap: float


def tokenize_rows(tokenizer: object, rows: Sequence[Sequence[Message]], max_length: int) -> list[Tokenized]:
    """Every row as ids and mask. Raises InputError naming the first row above `max_length` tokens: rows are not cut."""
    tokenized = []
    for index, messages in enumerate(rows):
        row = tokenize_conversation(tokenizer, messages, name=f"row {index}")
        if len(row.ids) > max_length:
            raise InputError(
                f"row {index}: {len(row.ids)} tokens, max_length is {max_length}; raise max_length or drop the row"
            )
        tokenized.append(row)
    return tokenized


def train_sft(
    base: Path,
    out: Path,
    out_adapter: Path,
    rows: Sequence[Sequence[Message]],
    phase: SftPhase,
    seed: int,
    progress: Progress = silent,
    use_cpu: bool = True,
) -> SftResult:
    """Train from the checkpoint folder `base` and write the merged checkpoint to `out`, the adapter to `out_adapter`.

    rows: conversations, each a list of {"role", "content"}; every assistant turn is trained on.
    The same arguments on the same machine give the same bytes. Raises InputError for no rows, a row that is too long,
    or a template that does not append; IntegrityError when the merged checkpoint does not behave as the trained model.
    """
    if not rows:
        raise InputError("sft: 0 demonstrations; the data stage must make some before this phase can run")
    common.quiet()
    from datasets import Dataset
    from transformers import set_seed
    from trl import SFTConfig, SFTTrainer

    set_seed(seed)
    model, tokenizer = common.load(base)
    steps = phase.steps_for(len(rows))
    tokenized = tokenize_rows(tokenizer, rows, phase.max_length)
    micro = common.micro_batch(phase.batch_size, MICRO_BATCH)
    lengths = [len(row.ids) for row in tokenized]
    order = common.row_order(len(rows), steps, phase.batch_size, micro, lengths, seed)
    dataset = Dataset.from_list([{"input_ids": tokenized[i].ids, "labels": tokenized[i].labels()} for i in order])
    with tempfile.TemporaryDirectory() as folder:
        args = common.arguments(
            SFTConfig,
            folder,
            seed,
            use_cpu,
            max_steps=steps,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=phase.batch_size // micro,
            learning_rate=phase.learning_rate,
            max_grad_norm=phase.max_grad_norm,
            max_length=None,
            train_sampling_strategy="sequential",  # the dataset already holds the steps in order
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        recorder = common.recorder(progress, phase.name, steps)
        trainer = common.with_schedule(SFTTrainer, phase.schedule, phase.warmup_steps)(
            model=model,
            args=args,
            train_dataset=dataset,
            processing_class=tokenizer,
            peft_config=common.lora(phase.lora),
            callbacks=[recorder],
        )
        common.run(trainer)
    gap = common.finish(trainer.model, base, out, out_adapter, [row.ids for row in tokenized[:3]])
    return SftResult(
        loss=[float(step["loss"] or 0.0) for step in recorder.steps],
        grad_norm=[float(step.get("grad_norm") or 0.0) for step in recorder.steps],
        rows=len(rows),
        trained_tokens=sum(sum(tokenized[i].mask) for i in order),
        merge_gap=gap,
    )

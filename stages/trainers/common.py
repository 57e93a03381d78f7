"""What every trainer shares: quiet offline libraries, loading, LoRA, the order of rows, merging, and the merge check.

A checkpoint is the base's folder with other weights: every file that is not weights is copied byte for byte (tokenizer,
chat template, configuration), so nothing that a training library sets on the way can leak into it. Weights are merged
and stored in float32; the stored folder is loaded again and compared with the unmerged model before it counts.

Covered: one process, CPU or one CUDA device. Not covered: sharded training, quantised bases.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.errors import InputError, IntegrityError
from schemas.model import LoraSpec
from stages.models import PIN_FILE

MERGE_TOLERANCE = 1e-3  # largest logit difference between merged and unmerged, float32
WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".gguf")


Progress = Callable[[str, int, int], None]  # what, steps done, steps in all


def silent(what: str, done: int, total: int) -> None:
    """A progress that shows nothing."""


def quiet() -> None:
    """Offline, silent, without telemetry. Call before the first import of torch or TRL in a process."""
    for name, value in (
        ("HF_HUB_OFFLINE", "1"),
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("DO_NOT_TRACK", "1"),
        ("TRL_EXPERIMENTAL_SILENCE", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("OMP_WAIT_POLICY", "PASSIVE"),
    ):
        os.environ.setdefault(name, value)
    import datasets
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for library in ("trl", "accelerate", "peft", "datasets"):
        logging.getLogger(library).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(trl|transformers|peft|accelerate|torch)(\.|$)")


def load(folder: Path) -> tuple[Any, Any]:
    """Model in float32 and tokenizer of a checkpoint folder. Raises InputError when there is no chat template."""
    quiet()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not tokenizer.chat_template:
        raise InputError(f"{folder}: no chat template, and training needs one; add chat_template.jinja")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model, tokenizer


def lora(spec: LoraSpec) -> Any:
    """LoRA on every linear layer but the output head."""
    from peft import LoraConfig

    return LoraConfig(
        r=spec.r, lora_alpha=spec.alpha, lora_dropout=spec.dropout, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def arguments(config: Callable[..., Any], folder: str, seed: int, use_cpu: bool, **settings: Any) -> Any:
    """A TRL config in float32 that saves, reports and downloads nothing, with one log entry a step."""
    return config(
        output_dir=folder,
        seed=seed,
        data_seed=seed,
        use_cpu=use_cpu,
        bf16=False,  # TRL's default is True; CPUs without bfloat16 units crawl
        gradient_checkpointing=False,  # TRL's default is True: a second forward
        report_to="none",
        save_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        optim="adamw_torch",
        weight_decay=0.0,
        **settings,
    )


def row_order(rows: int, steps: int, batch: int, micro: int, lengths: Sequence[int], seed: int) -> list[int]:
    """Indices of the rows of all steps, `batch` a step: seeded epochs without replacement, sorted by length in a step.

    Sorting puts rows of equal length into the same micro-batch of `micro` rows. It never moves a row to another step,
    so that what a step averages does not depend on lengths.
    """
    rng = random.Random(seed)  # noqa: S311 - the order of training rows, not a secret
    order: list[int] = []
    while len(order) < steps * batch:
        epoch = list(range(rows))
        rng.shuffle(epoch)
        order += epoch
    placed: list[int] = []
    for start in range(0, steps * batch, batch):
        step = sorted(order[start : start + batch], key=lambda row: (lengths[row], row))
        blocks = [step[at : at + micro] for at in range(0, batch, micro)]
        placed += [row for block in blocks for row in block]
    return placed


def micro_batch(batch: int, at_most: int) -> int:
    """The largest divisor of `batch` that is at most `at_most`."""
    return max(size for size in range(1, min(batch, at_most) + 1) if batch % size == 0)


def recorder(progress: Progress, what: str, total: int) -> Any:
    """A callback whose `.steps` holds one dict of logged numbers per optimizer step."""
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.steps: list[dict[str, float | None]] = []

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            if logs and "loss" in logs:
                self.steps.append({k: float(v) for k, v in logs.items() if isinstance(v, int | float)})
                progress(what, int(state.global_step), total)

    return Recorder()


def with_schedule(trainer: Any, schedule: str, warmup_steps: int) -> Any:
    """The trainer class with a rate above zero from the first step on (see rate_factor).

    The library's warm-up starts at zero, so its first step computes a gradient and throws it away: one of six.
    """
    from torch.optim.lr_scheduler import LambdaLR

    class Scheduled(trainer):  # type: ignore[misc]
        lr_scheduler: Any

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            def factor(step: int) -> float:
                return rate_factor(schedule, step, warmup_steps, num_training_steps)

            if self.lr_scheduler is None:
                self.lr_scheduler = LambdaLR(self.optimizer if optimizer is None else optimizer, factor)
            return self.lr_scheduler

    return Scheduled


def rate_factor(schedule: str, step: int, warmup_steps: int, steps: int) -> float:
    """Share of the full rate at `step` (from 0): (step + 1) / (warmup + 1), then by schedule; never 0."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    return {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}[schedule]


def run(trainer: Any) -> None:
    """Train, silently."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    with scored_positions_only():
        trainer.train()


@contextmanager
def scored_positions_only() -> Iterator[None]:
    """Let TRL's fused head project only the positions that are in the loss, on a CPU too.

    TRL does so on devices with Triton and scores every position elsewhere, which costs a quarter of a step here. The
    switch is a private name of the pinned TRL; were it to vanish, training would be slower and otherwise the same.
    """
    from trl.trainer import utils

    original = getattr(utils, "_use_triton", None)
    utils._use_triton = lambda device: True
    try:
        yield
    finally:
        utils._use_triton = original


@contextmanager
def merged_in_place(model: Any) -> Iterator[Any]:
    """The base model with the adapter folded in, for fast sampling; afterwards every base weight is the same tensor.

    Subtracting the adapter again would leave rounding errors that grow with each step, so the original tensors are
    kept aside and put back.
    """
    layers = [module for module in model.modules() if hasattr(module, "lora_A") and hasattr(module, "merge")]
    originals = [layer.get_base_layer().weight.data for layer in layers]
    try:
        for layer in layers:
            layer.merge(safe_merge=True)  # into a copy
        yield model.get_base_model()
    finally:
        for layer, weight in zip(layers, originals, strict=True):
            layer.get_base_layer().weight.data = weight
            layer.merged_adapters.clear()


def save_adapter(model: Any, folder: Path) -> Path:
    """adapter_model.safetensors and adapter_config.json, free of paths and of set order. Returns the weights' file."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in get_peft_model_state_dict(model).items()}
    save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {key: _plain(value) for key, value in model.peft_config["default"].to_dict().items()}
    config |= {"base_model_name_or_path": None, "inference_mode": True}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return folder / "adapter_model.safetensors"


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value.value if hasattr(value, "value") else value


def save_merged(model: Any, base: Path, out: Path) -> None:
    """Write `model` (merged, float32) as a checkpoint that differs from the folder `base` in its weights alone."""
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    for path in sorted(base.rglob("*")):
        if path.is_file() and path.name != PIN_FILE and not path.name.endswith(WEIGHTS):
            target = out / path.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    config = json.loads((out / "config.json").read_text())
    if config.get("dtype", config.get("torch_dtype")) != "float32":
        config.pop("torch_dtype", None)
        config["dtype"] = "float32"
        (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def finish(model: Any, base: Path, out: Path, out_adapter: Path, probes: Sequence[Sequence[int]]) -> float:
    """Save adapter and merged checkpoint; return the largest logit difference between the two on `probes`.

    The merged side is read back from disk, so the check covers the saved bytes. Raises IntegrityError above
    MERGE_TOLERANCE and for weights that are not finite; the folder must then not be used.
    """
    import torch

    model.eval()
    broken = [name for name, value in model.named_parameters() if not bool(torch.isfinite(value).all())]
    if broken:
        raise IntegrityError(f"{out}: {broken[0]} is not finite after training; lower the learning rate")
    save_adapter(model, out_adapter)
    rows = [torch.tensor([list(row)], device=model.device) for row in probes]
    with torch.no_grad():
        before = [model(input_ids=row).logits.cpu() for row in rows]
        with merged_in_place(model) as merged:
            plain = {name.replace(".base_layer.", "."): value for name, value in merged.state_dict().items()}
            plain = {name: value.detach().cpu().clone() for name, value in plain.items() if ".lora_" not in name}
    fresh, _ = load(base)
    fresh.load_state_dict(plain)
    save_merged(fresh, base, out)
    again, _ = load(out)
    again.eval()
    with torch.no_grad():
        gaps = [
            float((again(input_ids=row.cpu()).logits - logits).abs().max())
            for row, logits in zip(rows, before, strict=True)
        ]
    gap = max(gaps, default=0.0)
    if any(not value <= MERGE_TOLERANCE for value in gaps):
        raise IntegrityError(
            f"{out}: merged and unmerged logits differ by {gap:.3g}, allowed {MERGE_TOLERANCE:g}; train again"
        )
    return gap

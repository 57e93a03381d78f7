"""TRL's GRPOTrainer with groups as micro-batches, the prefix tree, and a record of what each step saw.

Overridden are: how a step's batch is cut, how log-probabilities are computed, and what is noted beside the loss.
Advantages, ratio, clipping and loss stay TRL's.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from stages.trainers import tree
from stages.trainers.groups import Step

KL_ROWS = 4  # completions a step, one a group, on which the KL to the start is estimated: one forward without gradient


class GroupedGrpo(GRPOTrainer):  # type: ignore[misc]
    steps: list[Step]  # set before training
    _wanted: Any = None  # mask of the tokens that the loss needs, while a loss is computed
    _scored: Any = None  # (log p, entropy) of the last forward

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        every = self.args.steps_per_generation
        if self._step % every == 0:
            batch = self._generate_and_score_completions(generation_batch)
            # On fresh rollouts TRL takes the ratio as 1; against the sampler it also corrects what the sampler did.
            batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
            self.steps[-1].advantages = batch["advantages"].tolist()
            self._buffered_inputs = split_tensor_dict(batch, every)
        return self._buffered_inputs[self._step % every]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **settings: Any
    ) -> Any:
        causal_lm = self.accelerator.unwrap_model(model).get_base_model()
        if not tree.supports(causal_lm) or self.accelerator.num_processes > 1 or self.aux_loss_enabled:
            self._scored = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **settings
            )
            return self._scored
        wanted = attention_mask[:, -logits_to_keep:] if self._wanted is None else self._wanted
        size = settings.get("batch_size") or len(input_ids)
        parts = [
            _tree_scores(causal_lm, input_ids[at], attention_mask[at], wanted[at], self.temperature)
            for at in (slice(start, start + size) for start in range(0, len(input_ids), size))
        ]
        self._scored = (torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]), None)
        return self._scored

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self._wanted = inputs["completion_mask"] * inputs["tool_mask"]
        try:
            if not bool(self._wanted.any()):  # only fillers: their gradient is zero, so there is nothing to compute
                return 0.0 * next(p for p in model.parameters() if p.requires_grad).sum()
            loss = super()._compute_loss(model, inputs)
            self._observe(inputs)
            return loss
        finally:
            self._wanted = None

    def _observe(self, inputs: Any) -> None:
        step, chosen = self.steps[-1], self._wanted.bool()
        logps, entropies = self._scored[0].detach(), self._scored[1].detach()
        gaps = (logps - inputs["sampling_per_token_logps"])[chosen].tolist()
        weights = inputs["advantages"].unsqueeze(1).expand_as(logps)[chosen].tolist()
        step.ratios += list(zip(gaps, weights, strict=True))
        step.entropies += entropies[chosen].tolist()
        row = int(chosen.any(dim=1).nonzero()[0])
        if len(step.kl_rows) < KL_ROWS:
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)[row]
            real = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)[row].bool()
            width = int(inputs["prompt_mask"][row].sum())
            places = [width + at for at in chosen[row].nonzero().flatten().tolist()]
            step.kl_rows.append((ids[real].tolist(), places, logps[row][chosen[row]]))

    def kl_to_start(self) -> float | None:
        """Mean of the k3 estimate, exp(r) - r - 1 with r = log p start - log p now: nats a scored token."""
        rows = self.steps[-1].kl_rows
        model = self.accelerator.unwrap_model(self.model)
        if not rows or not tree.supports(model.get_base_model()):
            return None
        with torch.no_grad(), model.disable_adapter():
            started, _ = tree.score(
                model.get_base_model(), [row[0] for row in rows], [row[1] for row in rows], self.temperature
            )
        r = torch.cat(started) - torch.cat([row[2] for row in rows])
        return float((r.exp() - r - 1).mean())


def _tree_scores(causal_lm: Any, input_ids: Any, attention_mask: Any, wanted: Any, temperature: float) -> Any:
    """(log p, entropy), each (rows, completion columns), zero where not wanted."""
    width = wanted.shape[1]
    offset = input_ids.shape[1] - width
    rows = [ids[real.bool()].tolist() for ids, real in zip(input_ids, attention_mask, strict=True)]
    columns = [bits.bool().nonzero().flatten() for bits in wanted]
    left = [int(real[:offset].sum()) for real in attention_mask]
    scored = [[start + at for at in column.tolist()] for start, column in zip(left, columns, strict=True)]
    logps, entropies = tree.score(causal_lm, rows, scored, temperature)
    empty = torch.zeros(width, device=input_ids.device)
    return (
        torch.stack([empty.scatter(0, at, value) for at, value in zip(columns, logps, strict=True)]),
        torch.stack([empty.scatter(0, at, value) for at, value in zip(columns, entropies, strict=True)]),
    )


class BeforeUpdate(TrainerCallback):  # type: ignore[misc]
    """Measures the KL while the step's policy still stands, and withholds an update that has nothing to learn from."""

    trainer: Any = None  # set before training

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.steps[-1].kl = self.trainer.kl_to_start()
        if not any(self.trainer.steps[-1].advantages) and self.trainer.beta == 0.0:
            for parameter in kwargs["model"].parameters():
                parameter.grad = None  # else Adam's momentum would move the weights without evidence

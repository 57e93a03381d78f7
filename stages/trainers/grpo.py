"""Group-relative policy optimisation through TRL's GRPOTrainer, with the stage's own rollouts.

The stage samples, verifies and prices; this module turns its groups into what `rollout_func` must return, lets TRL
compute advantages (reward minus the group's mean, no division by a standard deviation: Dr. GRPO, arXiv:2503.20783) and
the loss, and records the curves. One optimizer step uses one batch of fresh groups once.

Three departures from TRL's defaults, each for speed and none for the result: micro-batches are whole groups in order
(TRL shuffles; the gradient of a step is a sum either way); a group's log-probabilities come from its prefix tree
(tree.py); slots that the stage could not fill are two tokens long and masked. The ratio is taken against the sampler's
own log-probabilities, so that clip share and sampler gap are measured instead of being zero by construction.

A member whose reward is None is out of its group's mean and has advantage 0. A group without spread has no gradient; a
step without any usable group leaves the weights alone.

Covered: several turns (what the environment wrote is masked), a KL penalty to the start, one process whose own weights
sample. Not covered: replay of old groups, sampling by a server.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.base import Digest
from schemas.errors import InputError
from schemas.rl import GrpoPhase
from schemas.trajectory import Sampling
from stages.models import checkpoint_of
from stages.samplers import Sampler
from stages.trainers import common
from stages.trainers.common import Progress, silent
from stages.trainers.groups import Group, Member, Step, lay_out
from stages.trainers.steps import policy_of

# (sampler over the live policy, optimizer step from 0) -> at most `groups` groups of `group_size` members, and the
# numbers of that sampling (zero_spread, invalid_calls, ...), which become curves. The sampler is valid during the call.
GroupsOf = Callable[[Sampler, int], tuple[list[Group], dict[str, float]]]


@dataclass(frozen=True)
class Used:
    """A group member that entered an optimizer step: what a use edge needs. `step` counts from 0."""

    trajectory: str
    advantage: float
    step: int


@dataclass(frozen=True)
class GrpoResult:
    """curves: name -> one value a step, None where nothing was measured.

    sampler_gap: mean, p50, p99, max of |log p sampler - log p trainer| (nats) and outside_clip, the share of tokens
    whose ratio is outside 1 ± epsilon; all before the first update.
    """

    curves: dict[str, list[float | None]]
    sampler_gap: dict[str, float]
    uses: list[Used]
    groups_used: int
    steps: int
    merge_gap: float


def train_grpo(
    start: Path,
    out: Path,
    out_adapter: Path,
    phase: GrpoPhase,
    sampling: Sampling,
    seed: int,
    groups_of: GroupsOf,
    progress: Progress = silent,
    use_cpu: bool = True,
) -> GrpoResult:
    """Train from the checkpoint folder `start`; write the merged checkpoint to `out`, the adapter to `out_adapter`.

    sampling.max_tokens is also the constant that Dr. GRPO divides a sequence's loss by. The adapter that sampled step
    N > 0 is kept as `out_adapter/steps/000N`; the sampler's policy digest covers start weights and adapter, and is the
    start's own in step 0. The same arguments and rollouts on the same machine give the same bytes.
    Raises InputError for greedy sampling, another engine than transformers or a group of the wrong size, IntegrityError
    as `common.finish` does; what `groups_of` raises passes through.
    """
    if sampling.temperature <= 0:
        raise InputError(f"grpo: temperature {sampling.temperature:g}; a greedy group has no spread: set it above 0")
    if sampling.engine != "transformers":
        raise InputError(f"grpo: engine {sampling.engine}; only transformers samples from the live weights: use it")
    common.quiet()
    from transformers import set_seed
    from trl import GRPOConfig

    from stages.trainers.grouped import BeforeUpdate, GroupedGrpo

    set_seed(seed)
    model, tokenizer = common.load(start)
    steps: list[Step] = []
    feed = _Feed(phase, groups_of, steps, start, out_adapter, int(tokenizer.eos_token_id))
    recorder = common.recorder(progress, phase.name, phase.steps)
    with tempfile.TemporaryDirectory() as folder:
        args = common.arguments(
            GRPOConfig,
            folder,
            seed,
            use_cpu,
            max_steps=phase.steps,
            per_device_train_batch_size=phase.group_size,
            gradient_accumulation_steps=phase.groups,
            steps_per_generation=phase.groups,
            num_generations=phase.group_size,
            num_iterations=1,
            max_completion_length=sampling.max_tokens,
            temperature=sampling.temperature,
            loss_type="dr_grpo",
            scale_rewards="none",
            beta=phase.beta,
            epsilon=phase.epsilon,
            learning_rate=phase.learning_rate,
            max_grad_norm=phase.max_grad_norm,
            adam_beta1=0.9,
            adam_beta2=0.99,
            disable_dropout=True,
            shuffle_dataset=False,
        )
        trainer = common.with_schedule(GroupedGrpo, "constant", phase.warmup_steps)(
            model=model,
            args=args,
            reward_funcs=_given_reward,
            train_dataset=_slots(phase.groups),
            processing_class=tokenizer,
            peft_config=common.lora(phase.lora),
            rollout_func=feed,
            callbacks=[recorder, before_update := BeforeUpdate()],
        )
        trainer.steps = steps
        before_update.trainer = trainer
        common.run(trainer)
    probes = [row.prompt + row.completion for row in steps[-1].rows if row.member is not None][:3]
    gap = common.finish(trainer.model, start, out, out_adapter, probes or [tokenizer.encode("probe")])
    return _result(steps, recorder.steps, phase, gap)


def _given_reward(completions: list[str], given_reward: list[float | None], **_: Any) -> list[float | None]:
    """The reward function that TRL asks for: the stage has priced the trajectories already."""
    return given_reward


def _slots(groups: int) -> Any:
    """TRL walks a dataset of prompts; ours says only how many groups a step has."""
    from datasets import Dataset

    return Dataset.from_list([{"prompt": f"slot {index}"} for index in range(groups)])


class _Feed:
    """The `rollout_func`: asks the stage for groups on the live policy and lays them out for TRL."""

    def __init__(
        self, phase: GrpoPhase, groups_of: GroupsOf, steps: list[Step], start: Path, out_adapter: Path, filler: int
    ) -> None:
        self.phase, self.groups_of, self.steps = phase, groups_of, steps
        self.start, self.out_adapter, self.filler = start, out_adapter, filler
        self.origin = checkpoint_of(start).weights
        self.sampler: Any = None

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        import torch

        model, step = trainer.accelerator.unwrap_model(trainer.model), int(trainer.state.global_step)
        policy = self._keep(model, step)
        model.eval()
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad(), common.merged_in_place(model) as merged:
                self._point_sampler(merged, policy, step)
                groups, measured = self.groups_of(self.sampler, step)
                self.sampler.update(policy, step)  # the caches of this policy are of no more use
        finally:
            model.train()
        rows = lay_out(groups, self.phase.groups, self.phase.group_size, self.filler)
        self.steps.append(Step(rows, groups, measured=measured))
        return {
            "prompt_ids": [row.prompt for row in rows],
            "completion_ids": [row.completion for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            "given_reward": [row.reward for row in rows],
        }

    def _keep(self, model: Any, step: int) -> Digest:
        """Digest of the policy; its adapter is stored, unless it is the empty one that training begins with."""
        if step == 0:
            return self.origin
        folder = self.out_adapter / "steps" / f"{step:04d}"
        common.save_adapter(model, folder)
        return policy_of(self.origin, folder)

    def _point_sampler(self, merged: Any, policy: Digest, step: int) -> None:
        from stages.samplers.transformers_sampler import TransformersSampler

        if self.sampler is None:
            self.sampler = TransformersSampler(self.start, model=merged, policy=policy, version=step)
        self.sampler.update(policy, step)


def _result(steps: list[Step], logs: list[dict[str, float | None]], phase: GrpoPhase, merge_gap: float) -> GrpoResult:
    rows = [_numbers(step, log, phase) for step, log in zip(steps, logs, strict=True)]
    names = sorted({name for row in rows for name in row})
    return GrpoResult(
        curves={name: [row.get(name) for row in rows] for name in names},
        sampler_gap=gap_summary([gap for gap, _ in steps[0].ratios], phase.epsilon),
        uses=[use for index, step in enumerate(steps) for use in _uses(step, index)],
        groups_used=sum(len(step.groups) for step in steps),
        steps=len(steps),
        merge_gap=merge_gap,
    )


def _uses(step: Step, index: int) -> list[Used]:
    return [
        Used(row.member.trajectory.id, advantage, index)
        for row, advantage in zip(step.rows, step.advantages, strict=True)
        if row.member is not None and row.reward is not None
    ]


def _numbers(step: Step, log: dict[str, float | None], phase: GrpoPhase) -> dict[str, float | None]:
    """The step's values of all curves: the trainer's own, and what the stage measured while sampling."""
    scored = [row for row in step.rows if row.reward is not None]
    rewards = [row.reward for row in scored if row.reward is not None]
    advantages = [value for row, value in zip(step.rows, step.advantages, strict=True) if row.reward is not None]
    clipped = [_clipped(gap, advantage, phase.epsilon) for gap, advantage in step.ratios]
    return {
        "used_groups": float(len(step.groups)),
        "used_reward": mean(rewards),
        "advantage_spread": deviation(advantages),
        "trajectory_tokens": mean([float(sum(row.mask)) for row in scored]),
        "entropy": mean(step.entropies),
        "kl": step.kl,
        "clip_share": mean(clipped),
        "sampler_gap": mean([abs(gap) for gap, _ in step.ratios]),
        "loss": log.get("loss"),
        "grad_norm": log.get("grad_norm"),
        "learning_rate": log.get("learning_rate"),
        **step.measured,
    }


def _clipped(gap: float, advantage: float, epsilon: float) -> float:
    """1 when the clip stops this token: its ratio left the range on the side that the advantage pushes to."""
    ratio = math.exp(min(gap, 50.0))
    return float((ratio < 1 - epsilon and advantage < 0) or (ratio > 1 + epsilon and advantage > 0))


def gap_summary(gaps: Sequence[float], epsilon: float) -> dict[str, float]:
    """Of signed gaps (trainer minus sampler, nats): see GrpoResult. Empty when there are none."""
    if not gaps:
        return {}
    sizes = sorted(abs(gap) for gap in gaps)
    outside = sum(not 1 - epsilon <= math.exp(min(gap, 50.0)) <= 1 + epsilon for gap in gaps)
    return {
        "mean": math.fsum(sizes) / len(sizes),
        "p50": sizes[math.ceil(0.50 * len(sizes)) - 1],
        "p99": sizes[math.ceil(0.99 * len(sizes)) - 1],
        "max": sizes[-1],
        "outside_clip": outside / len(gaps),
    }


def mean(values: Sequence[float]) -> float | None:
    """None for no values: an average of nothing is not zero."""
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """Population standard deviation; None for no values."""
    centre = mean(values)
    return None if centre is None else math.sqrt(math.fsum((value - centre) ** 2 for value in values) / len(values))


__all__ = ["Group", "GroupsOf", "GrpoResult", "Member", "Used", "gap_summary", "train_grpo"]

"""Group-relative policy optimisation through TRL's GRPOTrainer, with the stage's own rollouts.

The stage samples, verifies and prices; this module turns its groups into what `rollout_func` must return, lets TRL
compute advantages (reward minus the group's mean, no division by a standard deviation: Dr. GRPO, arXiv:2503.20783) and
the loss, and records the curves. One optimizer step uses one batch of fresh groups once.

Three departures from TRL's defaults, each for speed and none for the result: micro-batches are whole groups in order
(TRL shuffles; the gradient of a step is a sum either way); a group's log-probabilities come from its prefix tree
(tree.py); slots that the stage could not fill are two tokens long and masked. The ratio is taken against the sampler's
own log-probabilities, so the clip share and the sampler gap are measured and not 1 and 0 by construction.

A member whose reward is None is out of its group's mean and has advantage 0. A group without spread has no gradient; a
step without any usable group leaves the weights alone.

Covered: several turns (what the environment wrote is masked), a KL penalty to the start, one process. Not covered:
replay of old groups, sampling on other machines than the weights (hand the policy's adapter over in `on_policy`).
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.errors import InputError
from schemas.metrics import Alarm
from schemas.rl import GrpoPhase, Monitors
from schemas.trajectory import Trajectory
from stages.trainers import common
from stages.trainers.common import Progress, silent
from stages.trainers.monitors import alarms, deviation, gap_summary, mean, repetition

KL_ROWS = 8  # completions a step, one a group, on which the KL to the start is estimated: one forward without gradient


@dataclass(frozen=True)
class Member:
    """One attempt of a group. reward None: an error or unscored, kept out of the baseline."""

    trajectory: Trajectory
    reward: float | None


Group = list[Member]
# (model, tokenizer, optimizer step from 0, groups wanted) -> at most that many groups of `group_size` members. The model
# is a plain causal LM in evaluation mode with the adapter folded in; it must not be kept or changed.
RolloutGroups = Callable[[Any, Any, int, int], list[Group]]
# (optimizer step, SHA-256 of the adapter's weights, folder of the adapter), before the rollouts of that step
OnPolicy = Callable[[int, str, Path], None]


@dataclass(frozen=True)
class Used:
    """A group member that entered an optimizer step: what a use edge needs."""

    trajectory: str
    group: str
    advantage: float
    step: int


@dataclass(frozen=True)
class GrpoResult:
    """curves: name -> one value a step, None where nothing was measured."""

    curves: dict[str, list[float | None]]
    alarms: list[Alarm]
    sampler_gap: dict[str, float]
    used: list[Used]
    groups_used: int
    steps: int
    merge_gap: float


@dataclass
class _Row:
    """A slot of the step: ids, and for each completion token its mask and behaviour log-probability."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]
    logprobs: list[float]
    member: Member | None

    @property
    def reward(self) -> float | None:
        return self.member.reward if self.member is not None else None


@dataclass
class _Step:
    """What one optimizer step saw, filled as it happens. Tokens are scored tokens only."""

    rows: list[_Row]
    groups: list[Group]
    advantages: list[float] = field(default_factory=list)
    ratios: list[tuple[float, float]] = field(default_factory=list)  # (log p trainer - log p sampler, advantage)
    entropies: list[float] = field(default_factory=list)
    kl_rows: list[tuple[list[int], list[int], Any]] = field(default_factory=list)  # ids, scored places, log p now
    kl: float | None = None
    given: dict[str, float] = field(default_factory=dict)

    def trainable(self) -> bool:
        return any(row.reward is not None for row in self.rows)


def train_grpo(
    start: Path,
    out: Path,
    out_adapter: Path,
    phase: GrpoPhase,
    monitors: Monitors,
    seed: int,
    rollout_groups: RolloutGroups,
    *,
    temperature: float = 1.0,
    completion_tokens: int = 96,
    given: dict[str, float] | None = None,
    on_policy: OnPolicy | None = None,
    progress: Progress = silent,
    use_cpu: bool = True,
) -> GrpoResult:
    """Train from the checkpoint folder `start`; write the merged checkpoint to `out`, the adapter to `out_adapter`.

    temperature: of the rollouts, above 0. completion_tokens: the constant that Dr. GRPO divides a sequence's loss by,
    normally the token limit of a trajectory. given: numbers about the step's sampling that the stage fills during
    `rollout_groups` (for example zero_spread, over all groups that it sampled) and that become curves. With `on_policy`
    the adapter of every step is kept under `out_adapter/steps/`.
    The same arguments and rollouts on the same machine give the same bytes. Raises InputError for a group of the wrong
    size, IntegrityError as `common.finish` does; what `rollout_groups` raises passes through.
    """
    if temperature <= 0:
        raise InputError(f"grpo: temperature {temperature:g}; groups of greedy samples are all equal: set it above 0")
    common.quiet()
    from transformers import set_seed
    from trl import GRPOConfig

    set_seed(seed)
    model, tokenizer = common.load(start)
    steps: list[_Step] = []
    feed = _Feed(phase, rollout_groups, tokenizer, steps, given if given is not None else {}, on_policy, out_adapter)
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
            max_completion_length=completion_tokens,
            temperature=temperature,
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
        trainer = _trainer_class(phase)(
            model=model,
            args=args,
            reward_funcs=_given_reward,
            train_dataset=_slots(phase.groups),
            processing_class=tokenizer,
            peft_config=common.lora(phase.lora),
            rollout_func=feed,
            callbacks=[recorder, before_update := _before_update(steps)],
        )
        trainer.steps = steps
        before_update.trainer = trainer
        common.run(trainer)
    probes = [row.prompt + row.completion for row in steps[-1].rows if row.member is not None][:3]
    gap = common.finish(trainer.model, start, out, out_adapter, probes or [tokenizer.encode("probe")])
    return _result(steps, recorder.steps, phase, monitors, gap)


def _given_reward(completions: list[str], given_reward: list[float | None], **_: Any) -> list[float | None]:
    """The reward function that TRL asks for: the stage has priced the trajectories already."""
    return given_reward


def _slots(groups: int) -> Any:
    """TRL walks a dataset of prompts; ours says only how many groups a step has."""
    from datasets import Dataset

    return Dataset.from_list([{"prompt": f"slot {index}"} for index in range(groups)])


class _Feed:
    """The `rollout_func`: asks the stage for groups and lays them out for TRL."""

    def __init__(
        self,
        phase: GrpoPhase,
        rollout_groups: RolloutGroups,
        tokenizer: Any,
        steps: list[_Step],
        given: dict[str, float],
        on_policy: OnPolicy | None,
        out_adapter: Path,
    ) -> None:
        self.phase, self.rollout_groups, self.tokenizer, self.steps = phase, rollout_groups, tokenizer, steps
        self.given, self.on_policy, self.out_adapter = given, on_policy, out_adapter

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        import torch

        model = trainer.accelerator.unwrap_model(trainer.model)
        step = int(trainer.state.global_step)
        if self.on_policy is not None:
            folder = self.out_adapter / "steps" / f"{step:04d}"
            weights = common.save_adapter(model, folder)
            self.on_policy(step, hashlib.sha256(weights.read_bytes()).hexdigest(), folder)
        self.given.clear()
        model.eval()
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad(), common.merged_in_place(model) as policy:
                groups = self.rollout_groups(policy, self.tokenizer, step, self.phase.groups)
        finally:
            model.train()
        rows = lay_out(groups, self.phase.groups, self.phase.group_size, int(self.tokenizer.eos_token_id))
        self.steps.append(_Step(rows, groups, given=dict(self.given)))
        return {
            "prompt_ids": [row.prompt for row in rows],
            "completion_ids": [row.completion for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            "given_reward": [row.reward for row in rows],
        }


def lay_out(groups: Sequence[Group], slots: int, size: int, filler: int) -> list[_Row]:
    """`slots * size` rows, group after group. A missing group, and a member that wrote nothing, is a masked filler row.

    Raises InputError for more groups than slots or a group that has not `size` members.
    """
    if len(groups) > slots:
        raise InputError(f"grpo: {len(groups)} groups for a step of {slots}; return at most {slots}")
    rows = []
    for group in groups:
        if len(group) != size:
            raise InputError(f"grpo: a group of {len(group)} members, group_size is {size}; mark failed members None")
        rows += [_row(member, filler) for member in group]
    return rows + [_filler(filler, None) for _ in range(slots * size - len(rows))]


def _filler(token: int, member: Member | None) -> _Row:
    return _Row([token], [token], [0], [0.0], member)


def _row(member: Member, filler: int) -> _Row:
    """The first turn's prompt, then all that followed: the model's tokens (mask 1) and the environment's (mask 0)."""
    turns = member.trajectory.turns
    if member.reward is None or member.trajectory.status == "error" or not any(turn.completion_ids for turn in turns):
        return _filler(filler, Member(member.trajectory, None))
    row = _Row(list(turns[0].prompt_ids), [], [], [], member)
    for index, turn in enumerate(turns):
        context = turn.prompt_ids if index else []
        row.completion += [*context, *turn.completion_ids]
        row.mask += [0] * len(context) + [1] * len(turn.completion_ids)
        row.logprobs += [0.0] * len(context) + list(turn.logprobs)
    return row


def _trainer_class(phase: GrpoPhase) -> Any:
    from trl import GRPOTrainer

    return common.with_schedule(_grouped(GRPOTrainer), "constant", phase.warmup_steps)


def _grouped(trainer: Any) -> Any:
    """GRPOTrainer with groups as micro-batches, the prefix tree, and a record of what each step saw."""
    import torch
    from trl.trainer.utils import split_tensor_dict

    from stages.trainers import tree

    class GroupedGrpo(trainer):  # type: ignore[misc]
        steps: list[_Step]
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
                _tree_scores(causal_lm, *(t[at : at + size] for t in (input_ids, attention_mask, wanted)), self.temperature)
                for at in range(0, len(input_ids), size)
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
            """Mean over scored tokens of the k3 estimate, exp(r) - r - 1 with r = log p start - log p now: nats a token."""
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

    return GroupedGrpo


def _before_update(steps: list[_Step]) -> Any:
    """Measures the KL while the step's policy still stands, and withholds an update that has nothing to learn from."""
    from transformers import TrainerCallback

    class BeforeUpdate(TrainerCallback):  # type: ignore[misc]
        trainer: Any = None

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            steps[-1].kl = self.trainer.kl_to_start()
            if not any(steps[-1].advantages):
                for parameter in kwargs["model"].parameters():
                    parameter.grad = None  # else Adam's momentum would move the weights without evidence

    return BeforeUpdate()


def _result(
    steps: list[_Step], logs: list[dict[str, float | None]], phase: GrpoPhase, monitors: Monitors, merge_gap: float
) -> GrpoResult:
    rows = [_numbers(step, log, phase) for step, log in zip(steps, logs, strict=True)]
    names = sorted({name for row in rows for name in row})
    curves = {name: [row.get(name) for row in rows] for name in names}
    return GrpoResult(
        curves=curves,
        alarms=alarms(curves, monitors),
        sampler_gap=gap_summary([gap for gap, _ in steps[0].ratios], phase.epsilon) if steps else {},
        used=[used for index, step in enumerate(steps) for used in _used(step, index)],
        groups_used=sum(len(step.groups) for step in steps),
        steps=len(steps),
        merge_gap=merge_gap,
    )


def _used(step: _Step, index: int) -> list[Used]:
    return [
        Used(row.member.trajectory.id, row.member.trajectory.group or "", advantage, index)
        for row, advantage in zip(step.rows, step.advantages, strict=True)
        if row.member is not None and row.reward is not None
    ]


def _numbers(step: _Step, log: dict[str, float | None], phase: GrpoPhase) -> dict[str, float | None]:
    """The step's values of all curves."""
    scored = [row for row in step.rows if row.reward is not None]
    rewards = [row.reward for row in scored if row.reward is not None]
    advantages = [value for row, value in zip(step.rows, step.advantages, strict=True) if row.reward is not None]
    turns = [turn for row in scored if row.member is not None for turn in row.member.trajectory.turns]
    members = [member for group in step.groups for member in group]
    flat = [len({m.reward for m in group if m.reward is not None}) < 2 for group in step.groups]
    clipped = [_clipped(gap, advantage, phase.epsilon) for gap, advantage in step.ratios]
    calls = [row.member.trajectory.conduct for row in scored if row.member is not None]
    return {
        "reward": mean(rewards),
        "reward_std": deviation(rewards),
        "advantage_spread": deviation(advantages),
        "entropy": mean(step.entropies),
        "kl": step.kl,
        "clip_share": mean(clipped),
        "length": mean([float(len(turn.completion_ids)) for turn in turns]),
        "trajectory_tokens": mean([float(sum(row.mask)) for row in scored]),
        "repetition": mean([repetition(turn.completion_ids) for turn in turns]),
        "invalid_calls": sum(c.invalid_calls for c in calls) / len(turns) if turns else None,
        "zero_spread": mean([float(value) for value in flat]),
        "errors": float(sum(member.reward is None for member in members)),
        "groups": float(len(step.groups)),
        "sampler_gap": mean([abs(gap) for gap, _ in step.ratios]),
        "loss": log.get("loss"),
        "grad_norm": log.get("grad_norm"),
        "learning_rate": log.get("learning_rate"),
        **step.given,
    }


def _clipped(gap: float, advantage: float, epsilon: float) -> float:
    """1 when the clip stops this token: its ratio left the range on the side that the advantage pushes to."""
    ratio = math.exp(min(gap, 50.0))
    return float((ratio < 1 - epsilon and advantage < 0) or (ratio > 1 + epsilon and advantage > 0))

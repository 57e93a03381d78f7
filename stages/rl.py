"""RL behind its gate: GRPO on verified rollouts, or DPO on pairs from them; skipped, with its reason, where it cannot learn.

The trainers know no task: this stage hands them groups of rollouts made on the live policy by the one rollout loop, with
zero-spread groups resampled and infrastructure errors left without a reward.
Not covered: asynchronous rollouts, a value model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evals.gates import headroom_gate, may_train
from evals.metrics import contested, unaudited
from evals.monitors import alarms
from schemas.artifact import ArtifactRef
from schemas.base import Digest, Json, digest_of
from schemas.errors import InputError
from schemas.goal import GoalRecord
from schemas.metrics import Decision
from schemas.rl import DpoPhase, GrpoPhase, RlRecord
from schemas.sft import SftRecord
from schemas.task import Split, Task
from schemas.trajectory import Attempt, Purpose, UseEdge
from stages.artifacts import scratch, store
from stages.attempts import read_attempts, write_attempts, write_edges
from stages.checkpoints import trained_folder
from stages.context import Context
from stages.demonstrations import edge_of, require_mixable
from stages.equipment import Equipment, equip, errors_in, noise_section
from stages.models import checkpoint_of
from stages.pairs import load_pairs
from stages.pins import attempt_pins
from stages.samplers import Sampler, use_threads
from stages.sft import choosing, mover, rollout_sections
from stages.tasks import bench_pins, load_tasks

Inputs = tuple[dict[str, Json], dict[str, Digest]]
FLOOR = 0.25  # of a task that gave no gradient in the last round, beside one that did


def inputs(ctx: Context) -> Inputs:
    goal: GoalRecord = ctx.record("goal")
    sft: SftRecord = ctx.record("sft")
    sections = rollout_sections(goal)
    sections["rl"] = goal.spec.rl.model_dump(mode="json")
    sections |= noise_section(goal.spec, [goal.spec.rl.noise])
    sections["weights"] = {family: goal.weights[family] for family in sorted(goal.weights)}
    sections["sft_gate"] = [gate.decision.value for gate in sft.gates]
    data = ctx.record("data")
    pins = {
        **bench_pins(goal),
        "start": sft.checkpoint.weights if sft.checkpoint else goal.base.weights,
        "tasks": data.artifacts["tasks"].digest,
    }
    if "pairs" in data.artifacts and _trains_pairs(goal):
        pins["pairs"] = data.artifacts["pairs"].digest
    last = _last_rollouts(ctx, goal)
    if last is not None:
        pins["past_rl"] = last.digest
    return sections, pins


def _trains_pairs(goal: GoalRecord) -> bool:
    return any(isinstance(phase, DpoPhase) for phase in goal.spec.rl.phases)


def _last_rollouts(ctx: Context, goal: GoalRecord) -> ArtifactRef | None:
    """The attempts of the last round's RL, where the curriculum asks for them: when backflow gave a family more weight."""
    records = [record for record in ctx.earlier("rl") if "attempts" in record.artifacts] if goal.weights else []
    return records[-1].artifacts["attempts"] if records else None


@dataclass
class _Run:
    """What the phases of one RL stage leave."""

    attempts: list[Attempt] = field(default_factory=list)
    edges: list[UseEdge] = field(default_factory=list)
    curves: dict[str, list[float | None]] = field(default_factory=dict)
    sampled: int = 0
    used: int = 0
    gap: dict[str, float] = field(default_factory=dict)
    steps: int = 0

    def extend(self, curves: dict[str, list[float | None]]) -> None:
        for name in sorted(curves):
            self.curves.setdefault(name, []).extend(curves[name])


def run(ctx: Context, key: Digest, pins: dict[str, Digest]) -> RlRecord:
    goal: GoalRecord = ctx.record("goal")
    sft: SftRecord = ctx.record("sft")
    refusal = _refusal(sft)
    if refusal is not None:
        return RlRecord(key=key, inputs=pins, skipped=refusal)
    start = trained_folder(ctx, sft)
    if not _trains_pairs(goal):
        ctx.telemetry.put("pairs_not_trained_on", sum(ctx.record("data").pairs.values()))
    use_threads(goal.spec.sampling.threads)  # whatever samples, training computes with them, also in a resumed process
    with equip(ctx, goal) as bench:
        headroom = _headroom(ctx, goal, bench, start)
        gate = headroom_gate(headroom, goal.spec.rl.headroom)
        probe = store(
            ctx.workspace, "rl", "headroom", lambda folder: write_attempts(folder / "attempts.parquet", headroom)
        )
        if not may_train(gate):
            owner = f"; {gate.owner} should act" if gate.owner else ""
            return RlRecord(
                key=key,
                inputs=pins,
                artifacts={"headroom": probe},
                gates=[gate],
                skipped=f"headroom {gate.decision.value}: {gate.because}{owner}",
                infrastructure_errors=errors_in(headroom),
            )
        done = _Run()
        # rollouts included: they are made between the steps
        with scratch(ctx.workspace) as work, ctx.telemetry.timing("training_s"):
            folder, adapter = start, work
            for number, phase in enumerate(goal.spec.rl.phases):
                out, adapter = work / f"{number}-merged", work / f"{number}-adapter"
                if isinstance(phase, GrpoPhase):
                    _grpo(ctx, goal, bench, folder, out, adapter, phase, done)
                elif not _dpo(ctx, goal, bench, folder, out, adapter, phase, done):
                    table = store(ctx.workspace, "rl", "attempts", lambda target: _write(target, done))
                    return RlRecord(
                        key=key,
                        inputs=pins,
                        artifacts={"headroom": probe, "attempts": table},
                        gates=[gate],
                        skipped=f"{phase.name}: no pair in {done.sampled} groups, their rewards are all equal; data should act",
                        infrastructure_errors=errors_in([*headroom, *done.attempts]),
                        groups_sampled=done.sampled,
                    )
                folder = out
            checkpoint = store(ctx.workspace, "rl", "checkpoint", mover(folder))
            kept = store(ctx.workspace, "rl", "adapter", mover(adapter))
    attempts = store(ctx.workspace, "rl", "attempts", lambda target: _write(target, done))
    return RlRecord(
        key=key,
        inputs=pins,
        artifacts={"headroom": probe, "checkpoint": checkpoint, "adapter": kept, "attempts": attempts},
        gates=[gate],
        alarms=alarms(done.curves, done.gap, goal.spec.rl.monitors),
        infrastructure_errors=errors_in([*headroom, *done.attempts]),
        checkpoint=checkpoint_of(ctx.workspace.open_artifact(checkpoint), parent=pins["start"]),
        steps=done.steps,
        curves=done.curves,
        groups_sampled=done.sampled,
        groups_used=done.used,
        sampler_gap=done.gap,
    )


def _write(folder: Path, done: _Run) -> None:
    write_attempts(folder / "attempts.parquet", done.attempts)
    write_edges(folder / "edges.parquet", done.edges)


def _refusal(sft: SftRecord) -> str | None:
    """Why RL must not even be tried: nothing was trained, or the protocol is not spoken. The gate names who should act."""
    if sft.skipped:
        return f"sft was skipped: {sft.skipped}"
    refused = [gate for gate in sft.gates if gate.decision is Decision.NO_GO]
    return f"{refused[0].name} gate: {refused[0].because}; {refused[0].owner} should act" if refused else None


def _headroom(ctx: Context, goal: GoalRecord, bench: Equipment, start: Path) -> list[Attempt]:
    spec = goal.spec.rl.headroom
    sampler = bench.sampler(start)
    tasks = choosing(ctx, goal.spec.rl.skills, spec.tasks)
    asked = bench.requests(tasks, spec.samples, Purpose.HEADROOM, sampler.policy, goal.spec.rl.noise)
    return bench.attempt(sampler, asked)


# --- groups


@dataclass
class TaskStream:
    """An endless, seeded order of training tasks: families weighted by backflow, no task twice before it must be.

    `factors`: task id -> weight within its family, 1 where it has none; see `curriculum`.
    """

    tasks: Sequence[Task]
    weights: dict[str, float]
    seed: int
    factors: Mapping[str, float] = field(default_factory=dict)
    drawn: int = 0
    _queue: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InputError(
                "rl: no proven training task of rl.skills is left; name another skill or add tasks to its source"
            )

    def take(self, count: int) -> list[Task]:
        while len(self._queue) < count:
            self._queue += self._pass()
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken

    def _pass(self) -> list[Task]:
        """One weighted order of all tasks (exponential keys, Efraimidis and Spirakis 2006)."""
        stream = np.random.Generator(np.random.Philox(key=[self.seed, self.drawn]))
        self.drawn += 1
        weights = np.array([self.weights.get(t.family, 1.0) * self.factors.get(t.id, 1.0) for t in self.tasks])
        keys = stream.exponential(size=len(self.tasks)) / weights
        return [self.tasks[i] for i in np.argsort(keys, kind="stable")]


def curriculum(attempts: Sequence[Attempt], tasks: Sequence[Task], families: Collection[str]) -> dict[str, float]:
    """Task id -> its weight within its family, from the groups of the last round's RL: the share that were mixed.

    A task whose groups were all right or all wrong has FLOOR, since they may be mixed under another policy; one without a
    group counts as mixed. Within each family the mean is 1, so that its own weight stays what backflow gave it. Only
    `families` have one: those that backflow weighted, so that others stay what treated ones are compared with.
    """
    groups: dict[str, dict[str, list[Attempt]]] = defaultdict(lambda: defaultdict(list))
    for attempt in attempts:
        turns = attempt.trajectory.turns
        if attempt.trajectory.purpose is Purpose.RL and turns and attempt.reward.value is not None:
            groups[attempt.trajectory.task_id][f"{turns[0].policy} {turns[0].policy_version}"].append(attempt)
    found: dict[str, float] = {}
    for family in sorted(families):
        own = [task for task in tasks if task.family == family]
        shares = {t.id: float(np.mean([mixed(group) for group in groups[t.id].values()] or [True])) for t in own}
        raised = {name: max(FLOOR, share) for name, share in shares.items()}
        mean = float(np.mean(list(raised.values()))) if raised else 1.0
        found |= {name: value / mean for name, value in raised.items()}
    return found


def _stream(ctx: Context, goal: GoalRecord) -> TaskStream:
    tasks, last = training_tasks(ctx, goal), _last_rollouts(ctx, goal)
    attempts = [] if last is None else read_attempts(ctx.workspace.open_artifact(last) / "attempts.parquet")
    return TaskStream(tasks, goal.weights, goal.spec.seed, curriculum(attempts, tasks, goal.weights))


def training_tasks(ctx: Context, goal: GoalRecord) -> list[Task]:
    skills = goal.spec.rl.skills
    return [task for task in load_tasks(ctx) if task.split is Split.TRAIN and (not skills or task.skill in skills)]


def sample_groups(
    bench: Equipment, sampler: Sampler, tasks: Sequence[Task], size: int, salt: Json
) -> list[list[Attempt]]:
    """One group of `size` attempts a task, on one policy. `salt` separates the seeds of one step from another's."""
    noise = bench.goal.spec.rl.noise
    requests = bench.requests(tasks, size, Purpose.RL, digest_of([sampler.policy, salt]), noise)
    attempts = bench.attempt(sampler, requests, audit="passes")
    groups = [attempts[start : start + size] for start in range(0, len(attempts), size)]
    for group in groups:
        require_one_group(bench.context, group)
    return groups


def require_one_group(ctx: Context, group: Sequence[Attempt]) -> None:
    """Rewards are compared within a group, so nothing but the seed may differ. Raises PinMismatch, naming the group.

    One that infrastructure broke before its first turn names no policy.
    """
    made = [attempt_pins(attempt) for attempt in group]
    shared = {name: pin for pins in reversed(made) for name, pin in pins.items()}  # of the first that has it
    for pins in made[1:]:
        ctx.require_pins(shared, {**shared, **pins}, "group", f"{group[0].trajectory.task_id}:")


def mixed(group: Sequence[Attempt]) -> bool:
    """Rewards differ: only such a group has a gradient. Members that infrastructure broke do not count."""
    return len({attempt.reward.value for attempt in group if attempt.reward.value is not None}) > 1


# --- GRPO


def _grpo(
    ctx: Context,
    goal: GoalRecord,
    bench: Equipment,
    start: Path,
    out: Path,
    adapter: Path,
    phase: GrpoPhase,
    done: _Run,
) -> None:
    from stages.trainers.grpo import Member, train_grpo

    stream = _stream(ctx, goal)
    by_id: dict[str, Attempt] = {}

    def groups_of(sampler: Sampler, step: int) -> tuple[list[list[Member]], dict[str, float]]:
        """Groups with spread for one step on the live policy, at most `oversample` times as many sampled."""
        limit, sampled = round(phase.groups * phase.oversample), 0
        spread: list[list[Attempt]] = []
        flat: list[list[Attempt]] = []
        while len(spread) < phase.groups and sampled < limit:
            tasks = stream.take(min(phase.groups, limit - sampled))
            for group in sample_groups(bench, sampler, tasks, phase.group_size, [phase.name, step, sampled]):
                (spread if mixed(group) else flat).append(group)
            sampled += len(tasks)
        chosen, everything = spread[: phase.groups], [a for group in (*spread, *flat) for a in group]
        done.attempts += everything
        by_id.update({attempt.trajectory.id: attempt for group in chosen for attempt in group})
        done.sampled, done.used = done.sampled + sampled, done.used + len(chosen)
        members = [[Member(trajectory=a.trajectory, reward=a.reward.value) for a in group] for group in chosen]
        return members, {**_measure(everything), "zero_spread": len(flat) / sampled}

    result = train_grpo(start, out, adapter, phase, goal.spec.sampling, goal.spec.seed, groups_of, ctx.progress)
    done.extend(result.curves)
    done.gap = done.gap or result.sampler_gap
    for use in result.uses:
        attempt = by_id[use.trajectory]
        row = f"{phase.name}/{use.step}/{attempt.trajectory.group}"
        done.edges.append(edge_of("group_member", row, attempt, use.advantage, done.steps + use.step))
    done.steps += result.steps


def _measure(attempts: Sequence[Attempt]) -> dict[str, float]:
    """What all rollouts of one step say about the policy, used or not; what has no data is left out, it is not zero."""
    trajectories = [a.trajectory for a in attempts if a.trajectory.status == "done"]
    rewards = [a.reward.value for a in attempts if a.reward.value is not None]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    measured: dict[str, float] = {"errors": float(errors_in(attempts))}
    if rewards:
        measured |= {"reward": float(np.mean(rewards)), "reward_std": float(np.std(rewards))}
        measured["solved"] = float(np.mean([bool(a.verdict.passed) for a in attempts if a.reward.value is not None]))
    if any(a.audit is not None for a in attempts):
        known = [contested(a) for a in attempts if a.reward.value is not None and not unaudited(a)]
        measured |= {"contested": float(np.mean(known))} if known else {}
    if turns:
        measured["length"] = float(np.mean([len(turn.completion_ids) for turn in turns]))
        measured["invalid_calls"] = float(np.mean([turn.parse_error is not None for turn in turns]))
    return measured


# --- DPO


def _dpo(
    ctx: Context, goal: GoalRecord, bench: Equipment, start: Path, out: Path, adapter: Path, phase: DpoPhase, done: _Run
) -> bool:
    """False when no group gave a pair and the data stage left none: there is nothing to prefer, and nothing was trained."""
    from stages.trainers.dpo import Pair, train_dpo

    stream = _stream(ctx, goal)
    sampler = bench.sampler(start)
    pairs: list[Pair] = []
    for done_groups in range(0, phase.groups, 8):
        tasks = stream.take(min(8, phase.groups - done_groups))
        ctx.progress("sampling pairs", done_groups, phase.groups)
        for group in sample_groups(bench, sampler, tasks, phase.group_size, [phase.name, done_groups]):
            done.attempts.extend(group)
            done.sampled += 1
            require_mixable(ctx, goal, tasks, group)
            for better, worse in preferences(group):
                done.used += 1
                name = f"{phase.name}/{len(pairs)}"
                told, other = better.trajectory.conversation(), worse.trajectory.conversation()
                pairs.append(Pair(name, told, other, cut=worse.trajectory.turns[-1].stop == "length"))
                done.edges += [
                    edge_of("preference_pair", f"{name}/{side}", a)
                    for side, a in (("chosen", better), ("rejected", worse))
                ]
    rows, edges = load_pairs(ctx)
    pairs += [
        Pair(
            f"{phase.name}/{row['id']}", row["prompt"] + row["chosen"], row["prompt"] + row["rejected"], cut=row["cut"]
        )
        for row in rows
    ]
    done.edges += [edge.model_copy(update={"row": f"{phase.name}/{edge.row}"}) for edge in edges]
    if not pairs:
        return False
    result = train_dpo(start, out, adapter, pairs, phase, goal.spec.seed, progress=ctx.progress)
    done.extend(result.curves)
    done.steps += result.steps
    return True


def preferences(group: Sequence[Attempt], at_most: int = 2) -> list[tuple[Attempt, Attempt]]:
    """Pairs of one task with different rewards: best with worst, then inwards; each attempt in one pair at most."""
    scored = sorted(
        (a for a in group if a.reward.value is not None), key=lambda a: (-(a.reward.value or 0.0), a.trajectory.id)
    )
    unique = list({attempt.trajectory.conversation()[-1]["content"]: attempt for attempt in reversed(scored)}.values())[
        ::-1
    ]
    ends = zip(unique, reversed(unique), strict=False)
    return [(a, b) for a, b in ends if (a.reward.value or 0.0) > (b.reward.value or 0.0)][:at_most]

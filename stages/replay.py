"""Run recorded attempts again, under the pins of their round, and name the first difference.

L0 scores the recorded outcome again with the recorded verifier bundles. L1 executes the recorded actions in the pinned
image, compares what the environment answered in each turn, the outcome and the way it ended, and scores again. Regenerate
samples again from the pinned checkpoint with the recorded seeds; a batch is made again as it was, since its composition
decides the last bits of the logits (He et al. 2025, Defeating Nondeterminism in LLM Inference).

Everything that decides comes from the round's records: bundles run from their stored trees, the image is compared with its
pin, tasks with their digests. What the spec calls volatile (`environment.volatile`) is made equal before two texts are
compared, and nothing else is.
Not covered: attempts that infrastructure broke, which have no outcome; sampling again in a phase of RL behind another one,
from a server that composes its batches by itself, or from a teacher, whose weights nobody here has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from schemas.base import canonical
from schemas.errors import InputError, PinMismatch
from schemas.goal import GoalRecord, RuntimeSpec, Volatile
from schemas.pins import Operation, PinsSpec
from schemas.record import StageName
from schemas.replay import Difference, Level, Replay
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.task import Task
from schemas.trajectory import ENDPOINT, Purpose, Trajectory
from schemas.verdict import Status, Verdict
from stages.attempts import read_attempts
from stages.checkpoints import fetch_base, folder_of, start_checkpoint, trained_folder
from stages.context import Context, FanOut, Progress, chunks, in_order, silent
from stages.equipment import Equipment, equip
from stages.keys import libraries_digest
from stages.pins import attempt_pins, comparable, declared
from stages.recorded import Recorded
from stages.rollout import RolloutRequest, Setting, rollout
from stages.samplers import Sampler, open_sampler, use_threads
from stages.samplers.recorded_sampler import RecordedSampler
from stages.tasks import load_tasks
from stages.trainers.steps import find_step, step_sampler
from stages.workspace import Workspace

PART = 256  # attempts between two words about progress
VOLATILE: dict[Volatile, re.Pattern[str]] = {
    "times": re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?|\b\d+(?:\.\d+)? ?(?:s|ms|secs?|seconds)\b"),
    "addresses": re.compile(r"\b0x[0-9a-fA-F]{6,16}\b"),
    "temporary_names": re.compile(r"/tmp/[\w./-]+|\btmp[a-z0-9_]{8}\b"),  # noqa: S108 - a pattern, no file
}
_TURN = ("call", "parse_error", "tool_error", "forbidden", "visible", "observation", "observation_truncated", "tree")
_VERDICT = ("status", "passed", "score", "limit_hit", "trust")
_SHOWN = 160


def replay(
    space: Workspace,
    cache: Path,
    chosen: Sequence[Recorded],
    level: Level,
    *,
    runtime: RuntimeSpec | None = None,
    pins: PinsSpec | None = None,
    fan_out: FanOut = in_order,
    progress: Progress = silent,
) -> Iterator[Replay]:
    """One answer for each, round by round. Raises PinMismatch when a pin of the operation is another one now.

    `pins`: which may differ; an answer names those that did.
    """
    done = 0
    for number in sorted({one.round for one in chosen}):
        mine = [one for one in chosen if one.round == number]
        where = {"runtime": runtime or RuntimeSpec(), "pins": pins or PinsSpec()}
        operation: Operation = "regenerate" if level == "regenerate" else "replay"
        stages = list(dict.fromkeys(one.stage for one in mine))
        with open_bench(space, cache, number, operation, where, fan_out, stages=stages) as bench:
            for part in _parts(mine, level):
                for answer in _again(bench, part, level):
                    yield answer.model_copy(update={"exceptions": list(bench.context.exceptions)})
                done += len(part)
                progress(f"replay {level}", done, len(chosen))


@dataclass
class Bench:
    """The bench of one round, and what attempts need beside it."""

    equipment: Equipment
    tasks: Mapping[str, Task]  # by digest
    pins: Mapping[str, str]  # what the round's records say
    samplers: dict[str, Sampler] = field(default_factory=dict)  # the last one only: models are large

    @property
    def context(self) -> Context:
        return self.equipment.context


@contextmanager
def open_bench(
    space: Workspace,
    cache: Path,
    number: int,
    operation: Operation,
    where: Mapping[str, Any],
    fan_out: FanOut = in_order,
    *,
    stages: Sequence[StageName] = (),
    instead: Mapping[str, Path] | None = None,
) -> Iterator[Bench]:
    """The round's bench, once every pin of the operation's row was compared: what the stages that made the attempts wrote
    down as their inputs with what the round's records say, and these with the content as it is now.

    `where`: the sections of the spec that are of today (runtime, pins). `instead` as in `equip`.
    """
    goal = space.read(number, "goal")
    if not isinstance(goal, GoalRecord) or goal.skipped:
        raise InputError(f"round {number}: no goal record, so no pins to {operation} under; restore its rounds/ folder")
    spec = goal.spec.model_copy(update=dict(where))
    ctx = Context(space, number, spec, cache, fan_out, operation=operation)
    pins = declared(goal, space.stored(number, "goal"), space.read(number, "data"))  # type: ignore[arg-type]
    for stage in stages:
        record = space.read(number, stage)
        ctx.require_pins(comparable(record.inputs, pins) if record else {}, pins)
    if "libraries" in goal.inputs:
        ctx.require_pins({"libraries": goal.inputs["libraries"]}, {"libraries": libraries_digest("goal")})
    tasks = {task.digest(): task for task in load_tasks(ctx)} if space.has(number, "data") else {}
    with equip(ctx, goal, instead) as equipment:
        yield Bench(equipment, tasks, pins)


def _parts(mine: Sequence[Recorded], level: Level) -> list[Sequence[Recorded]]:
    """Attempts of one table belong together where whole batches are made again."""
    if level != "regenerate":
        return chunks(mine, PART)
    return [[one for one in mine if one.table == table] for table in dict.fromkeys(one.table for one in mine)]


def _again(bench: Bench, part: Sequence[Recorded], level: Level) -> list[Replay]:
    """Answers in the order of `part`."""
    found: dict[str, Replay] = {}
    able: list[Recorded] = []
    for one in part:
        reason = _unable(bench, one)
        if reason is None:
            able.append(one)
        else:
            found[one.attempt.trajectory.id] = one.found(level, same=None, reason=reason)
    run: dict[Level, Callable[[Bench, Sequence[Recorded]], list[Replay]]] = {
        "L0": _score, "L1": _execute, "regenerate": _regenerate,
    }  # fmt: skip
    found |= {answer.trajectory: answer for answer in (run[level](bench, able) if able else [])}
    return [found[one.attempt.trajectory.id] for one in part]


def _unable(bench: Bench, one: Recorded) -> str | None:
    trajectory, verdict = one.attempt.trajectory, one.attempt.verdict
    if trajectory.status == "error" or verdict.status is Status.ERROR:
        return f"infrastructure broke it then: {trajectory.reason or verdict.reason}"
    if trajectory.task not in bench.tasks:
        return f"task {trajectory.task_id} {trajectory.task[:12]} is not among those of round {one.round}"
    task, own = bench.tasks[trajectory.task], attempt_pins(one.attempt)
    harness, _ = bench.equipment.goal.bundles.judging(task.kind)
    round_s = {**bench.pins, "harness": harness, "rewards": bench.pins["spec.rewards"]}
    try:  # another verifier shows in the verdicts
        said = {name: own[name] for name in ("environment", "limits", "harness", "rewards")}
        bench.context.require_pins(said, round_s, subject="of the attempt")
    except PinMismatch as error:
        return f"made under other pins than its round ({error})"
    return None


# --- L0 and L1


def _score(bench: Bench, part: Sequence[Recorded]) -> list[Replay]:
    trajectories = [one.attempt.trajectory for one in part]
    return [
        _judged(bench, one, "L0", verdict, audit)
        for one, (verdict, audit) in zip(part, _verdicts(bench, part, trajectories), strict=True)
    ]


def _execute(bench: Bench, part: Sequence[Recorded]) -> list[Replay]:
    asked = [forced(bench.tasks, one.attempt.trajectory) for one in part]
    spec, equipment = bench.equipment.goal.spec, bench.equipment
    setting = Setting(sampling=spec.sampling, budgets=spec.budgets, safety=spec.safety, batch=PART)
    again, _ = rollout(
        RecordedSampler(), equipment.harness, equipment.runner, asked, setting, bench.context.fan_out,
        harness_of=equipment.harness_of,
    )  # fmt: skip
    compared = [
        course(one.attempt.trajectory, now, spec.environment.volatile) for one, now in zip(part, again, strict=True)
    ]
    verdicts = iter(_verdicts(bench, *_where(part, again, lambda i: compared[i] is None and again[i].status == "done")))
    answers = []
    for one, now, first in zip(part, again, compared, strict=True):
        if now.status == "error":
            answers.append(
                one.found("L1", same=None, reason=f"infrastructure broke it now: {now.reason}", infrastructure=True)
            )
        elif first is not None:
            answers.append(one.found("L1", same=False, first=first))
        else:
            answers.append(_judged(bench, one, "L1", *next(verdicts)))
    return answers


def _where(
    part: Sequence[Recorded], again: Sequence[Trajectory], holds: Callable[[int], bool]
) -> tuple[list[Recorded], list[Trajectory]]:
    kept = [i for i in range(len(part)) if holds(i)]
    return [part[i] for i in kept], [again[i] for i in kept]


def forced(tasks: Mapping[str, Task], trajectory: Trajectory) -> RolloutRequest:
    """The whole record is the prefix: every action is taken from it. `tasks`: by digest."""
    return RolloutRequest(
        task=tasks[trajectory.task], seed=trajectory.seed, purpose=trajectory.purpose, group=trajectory.group,
        parent=trajectory, prefix_turn=len(trajectory.turns), hint=trajectory.hint, noise=trajectory.noise,
    )  # fmt: skip


def course(before: Trajectory, now: Trajectory, volatile: Sequence[Volatile]) -> Difference | None:
    """The first turn in which the environment said or did something else, else how it ended or what it left."""
    if now.status == "error":
        return None
    for index, turn in enumerate(before.turns):
        if index >= len(now.turns):
            return Difference(where=f"turn {index + 1}", recorded="the attempt goes on", now=f"it ended: {now.stop}")
        for name in _TURN:
            first = _differs(
                f"turn {index + 1}: {name}", getattr(turn, name), getattr(now.turns[index], name), volatile
            )
            if first is not None:
                return first
    # The record of a full context ends before a turn; without tokens the context is never full.
    ends = before.stop == "token_limit" or (len(before.turns) == len(now.turns) and before.stop == now.stop)
    if not ends:
        goes_on = f"{now.stop} after turn {len(now.turns)}"
        return Difference(where="end", recorded=f"{before.stop} after turn {len(before.turns)}", now=goes_on)
    return _differs("outcome", before.outcome, now.outcome, ())


def _verdicts(
    bench: Bench, part: Sequence[Recorded], trajectories: Sequence[Trajectory]
) -> list[tuple[Verdict, Verdict | None]]:
    """Training and, where one was recorded, audit verdicts of these outcomes, made now."""
    items = [(bench.tasks[t.task], t.outcome) for t in trajectories]
    equipment, fan_out = bench.equipment, bench.context.fan_out
    training = equipment.verifier.judge_many(items, fan_out)
    looked_at = [i for i, one in enumerate(part) if one.attempt.audit is not None and equipment.audit is not None]
    audits = equipment.audit.judge_many([items[i] for i in looked_at], fan_out) if equipment.audit and looked_at else []
    audit_of = dict(zip(looked_at, audits, strict=True))
    return [(verdict, audit_of.get(i)) for i, verdict in enumerate(training)]


def _judged(bench: Bench, one: Recorded, level: Level, verdict: Verdict, audit: Verdict | None) -> Replay:
    volatile = bench.equipment.goal.spec.environment.volatile
    allowed = [exception.pin for exception in bench.context.exceptions]
    for name, before, now in (("verdict", one.attempt.verdict, verdict), ("audit", one.attempt.audit, audit)):
        if now is None or before is None or before.status is Status.ERROR:
            continue
        if now.status is Status.ERROR:
            return one.found(level, same=None, reason=f"infrastructure broke it now: {now.reason}", infrastructure=True)
        first = verdict_difference(name, before, now, volatile, allowed)
        if first is not None:
            return one.found(level, same=False, first=first)
    return one.found(level, same=True)


_KEYED = {"outcome": "", "task": "tasks", "image": "environment", "limits": "limits", "verifier": "verifier"}


def verdict_difference(
    name: str, before: Verdict, now: Verdict, volatile: Sequence[Volatile], allowed: Collection[str] = ()
) -> Difference | None:
    """The first field that differs: names and results exactly, details up to what is volatile.

    `allowed`: pins that the spec lets differ, so that a verdict's own name for them may.
    """
    for part, pin in _KEYED.items():
        was, present = getattr(before, part), getattr(now, part)
        if was != present and pin not in allowed:
            return Difference(where=f"{name}.{part}", recorded=was[:12], now=present[:12])
    for part in _VERDICT:
        first = _differs(f"{name}.{part}", getattr(before, part), getattr(now, part), ())
        if first is not None:
            return first
    for part in ("checks", "violations"):
        was, present = ([item.model_dump(mode="json") for item in getattr(v, part)] for v in (before, now))
        for index in range(max(len(was), len(present))):
            left, right = (rows[index] if index < len(rows) else None for rows in (was, present))
            first = _differs(f"{name}.{part}[{index}]", left, right, volatile)
            if first is not None:
                return first
    return _differs(f"{name}.reason", before.reason, now.reason, volatile)


def _differs(where: str, before: Any, now: Any, volatile: Sequence[Volatile]) -> Difference | None:
    was, present = (steady(_text(value), volatile) for value in (before, now))
    if was == present:
        return None
    start = next(
        (i for i, pair in enumerate(zip(was, present, strict=False)) if pair[0] != pair[1]), min(len(was), len(present))
    )
    start = max(0, start - _SHOWN // 4)
    return Difference(where=where, recorded=was[start : start + _SHOWN], now=present[start : start + _SHOWN])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value).decode()


def steady(text: str, volatile: Sequence[Volatile]) -> str:
    """The text with everything of the declared kinds replaced by the kind's name."""
    for kind in volatile:
        text = VOLATILE[kind].sub(f"<{kind}>", text)
    return text


# --- sampling again


def _regenerate(bench: Bench, part: Sequence[Recorded]) -> list[Replay]:
    """`part` is of one table: a table holds whole batches, in the order in which they were decoded."""
    wanted = {one.attempt.trajectory.id: one for one in part}
    written = [attempt.trajectory for attempt in read_attempts(part[0].table)]
    rows = [row for row in written if row.sampling.engine != ENDPOINT]
    taught = [one for one in part if one.attempt.trajectory.sampling.engine == ENDPOINT]
    refusal = "a teacher behind an endpoint wrote it, which cannot be sampled again; replay without --regenerate"
    answers = [one.found("regenerate", same=None, reason=refusal) for one in taught]
    for batch in _batches(rows):
        mine = [wanted[row.id] for row in batch if row.id in wanted]
        if not mine:
            continue
        reason = _not_again(bench, batch)
        if reason is not None:
            answers += [one.found("regenerate", same=None, reason=reason) for one in mine]
            continue
        now = {trajectory.id: trajectory for trajectory in _sample(bench, batch)}
        answers += [_compared(one, now) for one in mine]
    return answers


def _batches(rows: Sequence[Trajectory]) -> list[Sequence[Trajectory]]:
    """Rows that were decoded together, each in its place. A scripted policy records no place, and its batches do not matter:
    one of each policy's rows, those that go on with another attempt apart."""
    scripted: dict[tuple[str | None, bool], list[Trajectory]] = {}
    found: list[dict[int, Trajectory]] = []
    last: dict[tuple[str, ...], dict[int, Trajectory]] = {}  # the same prompts may have been asked before
    for row in rows:
        first = row.turns[0] if row.turns else None
        if first is None or first.place is None:
            scripted.setdefault((first.policy if first else None, row.parent is None), []).append(row)
            continue
        key = (row.purpose, first.policy, str(first.policy_version), first.place.batch)
        if key not in last or first.place.row in last[key]:
            last[key] = {}
            found.append(last[key])
        last[key][first.place.row] = row
    parts = [part for own in scripted.values() for part in chunks(own, own[0].sampling.batch)]
    return [*parts, *([batch[row] for row in sorted(batch)] for batch in found)]


def _not_again(bench: Bench, batch: Sequence[Trajectory]) -> str | None:
    first = batch[0]
    if first.sampling.engine == "vllm":
        return "a server composed its batches by itself, so tokens may differ; replay without --regenerate"
    if any(row.parent is not None or row.status == "error" for row in batch):
        return "its batch holds a continued attempt, or one that infrastructure broke; the batch cannot be made again"
    if any(row.task not in bench.tasks for row in batch):
        return "its batch holds an attempt at a task that its round no longer has; the batch cannot be made again"
    policies = {turn.policy for row in batch for turn in row.turns}
    if len(policies) != 1 or len({canonical(row.sampling.model_dump(mode="json")) for row in batch}) != 1:
        return "its batch is of several policies: attempts of a training step, or a selection; not sampled again"
    places = [turn.place for row in batch for turn in row.turns[:1] if turn.place is not None]
    if any(place.rows != len(batch) for place in places):
        return f"its batch had {places[0].rows} rows, the table keeps {len(batch)} of them; it cannot be made again"
    policy = min(policies)
    if (
        first.sampling.engine == "transformers"
        and policy_folder(bench.context, policy) is None
        and _step(bench, policy) is None
    ):
        return f"policy {policy[:12]} is neither a checkpoint nor a kept step of its round: a phase behind another one"
    return None


def policy_folder(ctx: Context, policy: str) -> Path | None:
    """The folder of the round's checkpoint with these weights."""
    goal, sft, rl = (ctx.workspace.read(ctx.round, stage) for stage in ("goal", "sft", "rl"))
    assert isinstance(goal, GoalRecord)
    if goal.base.weights == policy:
        return fetch_base(ctx, goal)
    start, weights = start_checkpoint(ctx)
    if weights == policy:  # the champion that the round began with
        return folder_of(ctx, start, weights)
    for record in (sft, rl):
        if isinstance(record, SftRecord | RlRecord) and record.checkpoint and record.checkpoint.weights == policy:
            return trained_folder(ctx, record)
    return None


def _step(bench: Bench, policy: str) -> tuple[Path, Path] | None:
    """Start and adapter of the optimizer step whose policy this was."""
    ctx = bench.context
    rl = ctx.workspace.read(ctx.round, "rl")
    if not isinstance(rl, RlRecord) or rl.checkpoint is None or rl.checkpoint.parent is None:
        return None
    start = policy_folder(ctx, rl.checkpoint.parent)
    adapter = find_step(ctx.workspace.open_artifact(rl.artifacts["adapter"]), rl.checkpoint.parent, policy)
    return (start, adapter) if start and adapter else None


def _sampler(bench: Bench, first: Trajectory) -> Sampler:
    """Over the weights of this batch's policy, laid in memory as they were."""
    ctx, sampling, policy = bench.context, first.sampling, _policy(first)
    folder = policy_folder(ctx, policy)
    if _in_training(bench, first):
        start, adapter = (folder, None) if folder is not None else _step(bench, policy) or (None, None)
        assert start is not None, "_not_again has looked"
        use_threads(sampling.threads)
        return step_sampler(start, adapter, policy)
    tasks = {task.id: task for task in bench.tasks.values()}
    return open_sampler(sampling, folder or fetch_base(ctx, bench.equipment.goal), ctx.runtime, tasks)


def _in_training(bench: Bench, first: Trajectory) -> bool:
    """Sampled by GRPO on the policy in training; DPO's pairs are sampled on a checkpoint as it was loaded."""
    phases = bench.equipment.goal.spec.rl.phases
    grpo = bool(phases) and phases[0].method == "grpo"
    return grpo and first.purpose is Purpose.RL and first.sampling.engine == "transformers"


def _policy(trajectory: Trajectory) -> str:
    return next((turn.policy for turn in trajectory.turns), "")


def _sample(bench: Bench, batch: Sequence[Trajectory]) -> list[Trajectory]:
    ctx, sampling = bench.context, batch[0].sampling
    first = next((row for row in batch if row.turns), batch[0])
    known = f"{_policy(first)} {sampling.engine} {_in_training(bench, first)}"
    if known not in bench.samplers:
        bench.samplers.clear()
        bench.samplers[known] = _sampler(bench, first)
    setting = replace(bench.equipment.setting(), sampling=sampling, batch=sampling.batch)
    asked = [replace(forced(bench.tasks, row), parent=None, prefix_turn=0) for row in batch]
    made, _ = rollout(
        bench.samplers[known], bench.equipment.harness, bench.equipment.runner, asked, setting, ctx.fan_out,
        harness_of=bench.equipment.harness_of,
    )  # fmt: skip
    return made


def _compared(one: Recorded, now: Mapping[str, Trajectory]) -> Replay:
    """The id is the digest of all that determines an attempt: without an equal one, something else was run."""
    before = one.attempt.trajectory
    again = now.get(before.id)
    if again is None:
        made = next(iter(now), "none")
        return one.found("regenerate", same=False, first=Difference(where="id", recorded=before.id, now=made))
    if again.status == "error":
        return one.found(
            "regenerate", same=None, reason=f"infrastructure broke it now: {again.reason}", infrastructure=True
        )
    first = token_difference(before, again)
    return one.found("regenerate", same=first is None, first=first)


def token_difference(before: Trajectory, now: Trajectory) -> Difference | None:
    """The first token or log-probability that differs, else the first difference of the prompts."""
    for index, turn in enumerate(before.turns):
        if index >= len(now.turns):
            return Difference(where=f"turn {index + 1}", recorded="the attempt goes on", now=f"it ended: {now.stop}")
        other = now.turns[index]
        for what, was, present in (
            ("prompt token", turn.prompt_ids, other.prompt_ids),
            ("token", turn.completion_ids, other.completion_ids),
            ("logprob", turn.logprobs, other.logprobs),
        ):
            if was != present:
                place = next(
                    (i for i, pair in enumerate(zip(was, present, strict=False)) if pair[0] != pair[1]),
                    min(len(was), len(present)),
                )
                said = [str(ids[place]) if place < len(ids) else "end" for ids in (was, present)]
                return Difference(where=f"turn {index + 1}: {what} {place}", recorded=said[0], now=said[1])
    if len(before.turns) != len(now.turns):
        return Difference(where=f"turn {len(before.turns) + 1}", recorded=f"it ended: {before.stop}", now="it goes on")
    return None

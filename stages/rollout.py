"""THE rollout loop: every trajectory of the program is made here, whatever its purpose and whichever sampler answers.

A batch of trajectories advances turn by turn: all that are live are rendered, sampled in one call, acted on by the
harness, and their executions fanned out. The context of a turn is the ids of the last one, its completion, and the
encoding of exactly the text that was added since: nothing is tokenised twice, so what the policy saw is what is stored.

What breaks is told apart. A sandbox or harness failure ends one trajectory as `error`; a sampler failure is retried
once and then ends those that are live as `error`; what the model writes never raises.

Not covered: judging the outcome (the verifier) and pricing it (the reward rules).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from environments.bundles import Bundle
from environments.noise import broken, drawn
from environments.runner import Runner
from schemas.base import Digest, digest_of
from schemas.errors import InfrastructureError, InputError, PostloopError, SamplerError
from schemas.execution import Execution, ExecutionResult
from schemas.goal import Budgets, Safety
from schemas.task import Kind, Task
from schemas.trajectory import Hit, Noise, Purpose, Sampling, Trajectory, Turn
from schemas.verdict import Conduct
from stages.context import FanOut, Progress, chunks, in_order, silent
from stages.samplers import Completion, Message, Sampler, SampleRequest

SAMPLER_TRIES = 2
MAX_EXECUTIONS = 16  # of one turn: a harness that asks for ever is broken
_SENTINEL = "@@assistant turn@@"


@dataclass(frozen=True)
class RolloutRequest:
    """One attempt at a task. `parent` with `prefix_turn` n: the first n actions are those of the parent, then the
    policy goes on by itself. `hint` is shown to the model by the harness. `noise` breaks results of its tools."""

    task: Task
    seed: int
    purpose: Purpose
    group: str | None = None
    parent: Trajectory | None = None
    prefix_turn: int = 0
    hint: str | None = None
    noise: Noise | None = None


@dataclass(frozen=True)
class Setting:
    """What holds for all attempts of a call. `batch`: trajectories decoded together."""

    sampling: Sampling
    budgets: Budgets = field(default_factory=Budgets)
    safety: Safety = field(default_factory=Safety)
    batch: int = 64


@dataclass
class _Row:
    """One trajectory under way."""

    id: str
    request: RolloutRequest
    harness: Bundle
    messages: list[Message] = field(default_factory=list)  # of the whole conversation, content made plain
    told: list[Message] = field(default_factory=list)  # what the environment said since the last completion
    fresh: list[Message] = field(default_factory=list)  # those that were not rendered yet
    context: list[int] = field(default_factory=list)
    seen: int = 0  # leading ids of `context` that stood in the last turn's context or completion
    rendered: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)  # fields of Turn, the last one still open
    files: dict[str, str] = field(default_factory=dict)  # changed files as the harness last told
    pending: Execution | None = None
    executions: int = 0
    stop: str | None = None
    reason: str | None = None

    @property
    def live(self) -> bool:
        return self.stop is None

    def fail(self, reason: str) -> None:
        self.stop, self.reason, self.pending = "error", reason, None


def rollout(
    sampler: Sampler,
    harness: Bundle,
    runner: Runner,
    requests: Sequence[RolloutRequest],
    setting: Setting,
    fan_out: FanOut = in_order,
    progress: Progress = silent,
    harness_of: Mapping[Kind, Bundle] | None = None,
) -> tuple[list[Trajectory], dict[str, float]]:
    """Trajectories in the order of the requests, and telemetry (seconds, tokens, counts). Ids repeat on a rerun.

    `harness_of`: kinds of task that have a harness of their own.
    Raises InputError when two requests are the same attempt, or the chat template cannot be rendered turn by turn.
    """
    loop = _Loop(sampler, runner, setting, fan_out)
    chosen = [(harness_of or {}).get(request.task.kind, harness) for request in requests]
    ids = [
        trajectory_id(request, sampler, own.digest, runner, setting)
        for request, own in zip(requests, chosen, strict=True)
    ]
    if len(set(ids)) != len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise InputError(f"rollout: two requests are the same attempt, {twice}; give them different seeds")
    rows = [_Row(id, request, own) for id, request, own in zip(ids, requests, chosen, strict=True)]
    done: list[Trajectory] = []
    for batch in chunks(rows, setting.batch):
        done += loop.run(batch)
        progress("rollouts", len(done), len(rows))
    return done, loop.telemetry


def trajectory_id(request: RolloutRequest, sampler: Sampler, harness: Digest, runner: Runner, setting: Setting) -> str:
    """From all that determines the attempt: task, policy, seed, sampling, budgets, boundary, harness, hint, noise,
    prefix, image and limits. Paths and device are not among it."""
    determined = {
        "purpose": request.purpose.value,
        "task": request.task.digest(),
        "policy": [sampler.policy, sampler.version],
        "seed": request.seed,
        "sampling": setting.sampling.model_dump(mode="json"),
        "budgets": setting.budgets.model_dump(mode="json"),
        "safety": setting.safety.model_dump(mode="json"),
        "harness": harness,
        "hint": request.hint,
        "parent": [request.parent.id, request.prefix_turn] if request.parent else None,
        "place": [runner.image, runner.limits_digest],
        **({"noise": request.noise.model_dump(mode="json")} if request.noise else {}),
    }
    return f"{request.purpose.value}-{digest_of(determined)[:16]}"


class _Loop:
    def __init__(self, sampler: Sampler, runner: Runner, setting: Setting, fan_out: FanOut) -> None:
        self.sampler, self.runner, self.setting, self.fan_out = sampler, runner, setting, fan_out
        self.telemetry: dict[str, float] = dict.fromkeys(
            (
                "trajectories",
                "errors",
                "turns",
                "prompt_tokens",
                "generated_tokens",
                "sample_s",
                "execute_s",
                "sampler_retries",
                "sampler_failures",
            ),
            0,
        )

    def run(self, rows: Sequence[_Row]) -> list[Trajectory]:
        """One batch from start to end."""
        try:
            for row in rows:
                self._ask(
                    row, {"op": "start", "id": row.id, "task": row.request.task.public(), "options": self._options(row)}
                )
            self._settle(rows)
            while ready := self._ready(rows):
                completions = self._sample(ready)
                for row, completion in zip(ready, completions, strict=True):
                    if completion is not None:
                        self._act(row, completion)
                self._settle(rows)
        finally:
            self.sampler.release([row.id for row in rows])
            self._end(rows)
        return [self._finish(row) for row in rows]

    def _options(self, row: _Row) -> dict[str, Any]:
        budgets = self.setting.budgets
        turns = budgets.turns_for(row.request.task.skill)
        return {"max_turns": turns, "max_tool_calls": budgets.max_tool_calls, "hint": row.request.hint}

    def _ask(self, row: _Row, request: dict[str, Any]) -> None:
        """One question to the harness; each on its own, so that one that cannot be answered costs one trajectory."""
        try:
            reply = row.harness.ask(request)
            self._take(row, reply)
        except InfrastructureError as error:
            row.fail(str(error))
        except (ValidationError, TypeError, AttributeError, KeyError, ValueError) as error:
            row.fail(f"harness {row.harness.name}: bad answer to {request['op']}: {str(error).splitlines()[0][:200]}")

    def _take(self, row: _Row, reply: dict[str, Any]) -> None:
        """A reply goes on with messages, asks for an execution, or is done; its event completes the open turn."""
        event = reply.get("event") or {}
        if row.turns:
            turn = row.turns[-1]
            for name in ("call", "parse_error", "tool_error", "forbidden", "visible", "result"):
                if event.get(name) is not None:
                    turn[name] = event[name]
            turn["observation_truncated"] = bool(event.get("observation_truncated", False))
        if isinstance(event.get("files"), dict):
            row.files = event["files"]
        row.pending = None
        if reply.get("done"):
            row.files, row.stop = dict(reply["files"]), str(reply["stop"])
        elif "execute" in reply:
            row.pending = Execution.model_validate(reply["execute"])
        else:
            new = [{"role": str(message["role"]), "content": str(message["content"])} for message in reply["messages"]]
            if row.turns:
                turn = row.turns[-1]
                turn["observation"] = "\n".join(message["content"] for message in new)
                if turn.get("result") == turn["observation"]:
                    turn["result"] = None  # nothing was cut or changed on the way
            row.fresh = [{**message, "content": self.sampler.plain(message["content"])} for message in new]

    def _settle(self, rows: Sequence[_Row]) -> None:
        """Run what the harness asked for until every live row waits for the model."""
        while waiting := [row for row in rows if row.live and row.pending is not None]:
            began = time.perf_counter()
            results = self.fan_out(_runs(self.runner), [row.pending for row in waiting])
            self.telemetry["execute_s"] += time.perf_counter() - began
            for row, result in zip(waiting, results, strict=True):
                row.executions += 1
                if isinstance(result, PostloopError):
                    row.fail(str(result))
                elif row.executions > MAX_EXECUTIONS:
                    row.fail(f"harness {row.harness.name}: asked for more than {MAX_EXECUTIONS} executions in one turn")
                else:
                    seen = _noisy(row, result).model_dump(mode="json")
                    self._ask(row, {"op": "observe", "id": row.id, "result": seen})

    def _ready(self, rows: Sequence[_Row]) -> list[_Row]:
        """Live rows with their next context rendered; those without room for another completion stop here."""
        ready = []
        for row in rows:
            if not row.live:
                continue
            self._render(row)
            if len(row.context) + self.setting.sampling.max_tokens > self.setting.budgets.max_context_tokens:
                row.stop = "token_limit"
            else:
                ready.append(row)
        return ready

    def _render(self, row: _Row) -> None:
        """The text that the template adds now, and its ids. Earlier ids are kept as they are."""
        if not row.turns:
            row.messages = row.fresh
            row.rendered = self.sampler.render(row.messages)
        else:
            last = row.turns[-1]
            row.rendered = self._after(row.messages, row.fresh)
            if last["stop"] == "eos":
                row.rendered = row.rendered.removeprefix(self.sampler.end)
            said: Message = {"role": "assistant", "content": self.sampler.plain(last["text"])}
            row.messages = [*row.messages, said, *row.fresh]
        row.told, row.fresh, row.executions = row.fresh, [], 0
        row.seen = len(row.context)
        row.prompt_ids = self.sampler.encode(row.rendered)
        row.context = [*row.context, *row.prompt_ids]

    def _after(self, before: Sequence[Message], new: Sequence[Message]) -> str:
        """What the template writes after the assistant's text. A stand-in takes its place, so that a template that
        trims or escapes content cannot move the cut."""
        opening = self.sampler.render(before) + _SENTINEL
        whole = self.sampler.render([*before, {"role": "assistant", "content": _SENTINEL}, *new])
        if not whole.startswith(opening):
            raise InputError(
                "chat template: a later message changes how earlier ones are rendered; use an append-only template"
            )
        return whole[len(opening) :]

    def _sample(self, ready: list[_Row]) -> list[Completion | None]:
        """Completions in the order of `ready`; None for rows that failed. Prefix turns are taken from the parent."""
        forced = {row.id: _forced(row) for row in ready}
        open_rows = [row for row in ready if forced[row.id] is None]
        requests = [
            SampleRequest(
                key=row.id, turn=len(row.turns), context_ids=row.context, new_from=row.seen, seed=row.request.seed,
                task_id=row.request.task.id, text=row.rendered, messages=row.messages,
            )
            for row in open_rows
        ]  # fmt: skip
        began = time.perf_counter()
        drawn, reason = self._draw(requests)
        self.telemetry["sample_s"] += time.perf_counter() - began
        sampled = dict(zip((row.id for row in open_rows), drawn, strict=True)) if drawn is not None else {}
        for row in open_rows:
            if row.id not in sampled:
                row.fail(reason)
        return [forced[row.id] or sampled.get(row.id) for row in ready]

    def _draw(self, requests: list[SampleRequest]) -> tuple[list[Completion] | None, str]:
        reason = ""
        for attempt in range(SAMPLER_TRIES if requests else 0):
            try:
                return self.sampler.sample(requests, self.setting.sampling), ""
            except SamplerError as error:
                reason = str(error)
                self.telemetry["sampler_retries"] += attempt + 1 < SAMPLER_TRIES
        self.telemetry["sampler_failures"] += bool(requests)
        return ([] if not requests else None), reason

    def _act(self, row: _Row, completion: Completion) -> None:
        of_parent = _forced_turn(row, len(row.turns))
        row.turns.append(
            {
                "index": len(row.turns),
                "policy": of_parent.policy if of_parent else completion.policy or self.sampler.policy,
                "policy_version": of_parent.policy_version if of_parent else self.sampler.version,
                "messages": [dict(message) for message in row.told],
                "rendered": row.rendered,
                "prompt_ids": row.prompt_ids,
                "completion_ids": completion.ids,
                "logprobs": completion.logprobs,
                "place": completion.place,
                "text": completion.text,
                "stop": completion.stop,
            }
        )
        row.context = [*row.context, *completion.ids]
        self._ask(row, {"op": "act", "id": row.id, "text": completion.text, "stop": completion.stop})
        # The tree after an execution is the tree before it: executions run on copies.
        row.turns[-1]["tree"] = digest_of({**row.request.task.files, **row.files})
        self._check_boundary(row)

    def _check_boundary(self, row: _Row) -> None:
        turn, allowed = row.turns[-1], self.setting.safety.tools
        name = (turn.get("call") or {}).get("name")
        if name is not None and allowed and name not in allowed and not turn.get("forbidden"):
            turn["forbidden"] = f"{name}: not among the allowed tools"

    def _end(self, rows: Sequence[_Row]) -> None:
        for row in rows:
            try:
                row.harness.ask({"op": "end", "id": row.id})
            except InfrastructureError:
                continue  # the session is gone either way; what happened to the trajectory is already in it

    def _finish(self, row: _Row) -> Trajectory:
        request, task = row.request, row.request.task
        failed = row.stop == "error"
        outcome = (
            {} if failed else {path: text for path, text in sorted(row.files.items()) if task.files.get(path) != text}
        )
        turns = [Turn.model_validate(turn) for turn in row.turns]
        self.telemetry["trajectories"] += 1
        self.telemetry["errors"] += failed
        self.telemetry["turns"] += len(turns)
        self.telemetry["prompt_tokens"] += sum(len(turn.prompt_ids) for turn in turns)
        self.telemetry["generated_tokens"] += sum(len(turn.completion_ids) for turn in turns)
        return Trajectory(
            id=row.id,
            purpose=request.purpose,
            task_id=task.id,
            task=task.digest(),
            split=task.split,
            family=task.family,
            origin=task.origin,
            group=request.group,
            parent=request.parent.id if request.parent else None,
            prefix_turn=request.prefix_turn if request.parent else None,
            harness=row.harness.digest,
            hint=request.hint,
            seed=request.seed,
            noise=request.noise,
            sampling=self.setting.sampling,
            status="error" if failed else "done",
            reason=row.reason,
            turns=turns,
            stop=str(row.stop),
            outcome=outcome,
            outcome_digest=digest_of(outcome),
            conduct=conduct_of(turns, str(row.stop), outcome, _boundary(self.setting.safety, task)),
        )


def _boundary(safety: Safety, task: Task) -> Safety:
    """A repository declares its own editable files: a list in the spec cannot know them."""
    if task.kind != "repository" or not safety.paths:
        return safety
    return safety.model_copy(update={"paths": [*safety.paths, *task.editable]})


def conduct_of(turns: Sequence[Turn], stop: str, outcome: dict[str, str], safety: Safety) -> Conduct:
    """What the attempt did, counted. Forbidden: actions that a turn names, and changed paths outside the boundary."""
    outside = [f"path {path[:120]}" for path in sorted(outcome) if safety.paths and path not in safety.paths]
    return Conduct(
        turns=len(turns),
        tool_calls=sum(turn.call is not None for turn in turns),
        invalid_calls=sum(turn.parse_error is not None for turn in turns),
        forbidden=[turn.forbidden for turn in turns if turn.forbidden is not None] + outside,
        truncated_turns=sum(turn.stop == "length" for turn in turns),
        generated_tokens=sum(len(turn.completion_ids) for turn in turns),
        submitted=stop == "submitted",
        unchanged=not outcome,
    )


def as_rollout(trajectory: Trajectory) -> dict[str, list[int] | list[float]]:
    """The token view that trainers take: `prompt_ids` of the first turn, then `completion_ids` with what the
    environment wrote in between, `logprobs` (0.0 there) and `env_mask` (1 the model wrote it, 0 the environment did).

    Raises InputError for a trajectory without a turn: it has nothing to train on.
    """
    if not trajectory.turns:
        raise InputError(
            f"trajectory {trajectory.id}: it has no turn (stop {trajectory.stop}); leave it out of the batch"
        )
    ids: list[int] = []
    logprobs: list[float] = []
    mask: list[int] = []
    for turn in trajectory.turns:
        between = turn.prompt_ids if turn.index else []
        ids += [*between, *turn.completion_ids]
        logprobs += [*(0.0 for _ in between), *turn.logprobs]
        mask += [0] * len(between) + [1] * len(turn.completion_ids)
    return {
        "prompt_ids": list(trajectory.turns[0].prompt_ids),
        "completion_ids": ids,
        "logprobs": logprobs,
        "env_mask": mask,
    }


def _forced_turn(row: _Row, index: int) -> Turn | None:
    parent = row.request.parent
    return (
        parent.turns[index] if parent is not None and index < min(row.request.prefix_turn, len(parent.turns)) else None
    )


def _forced(row: _Row) -> Completion | None:
    turn = _forced_turn(row, len(row.turns))
    return Completion(turn.completion_ids, turn.logprobs, turn.text, turn.stop, turn.place) if turn else None


def _noisy(row: _Row, result: ExecutionResult) -> ExecutionResult:
    """The result as the model gets it. What runs before the first turn belongs to the statement: no tool gives it."""
    hit = _hit(row) if row.turns else None
    if hit is None:
        return result
    row.turns[-1].setdefault("noise", []).append(hit)
    return broken(result, hit)


def _hit(row: _Row) -> Hit | None:
    """Of the open turn's latest execution: as recorded where the turn is taken from a record; None without a profile."""
    request, index, call = row.request, len(row.turns) - 1, row.executions - 1
    if (of_parent := _forced_turn(row, index)) is not None:
        return of_parent.noise[call] if call < len(of_parent.noise) else None
    return drawn(request.noise, request.seed, request.task.id, index, call) if request.noise else None


def _runs(runner: Runner) -> Callable[[Execution | None], ExecutionResult | PostloopError]:
    """A failed sandbox comes back as a value: one must not end the others of its fan-out."""

    def run(execution: Execution | None) -> ExecutionResult | PostloopError:
        assert execution is not None
        try:
            return runner.run(execution)
        except (InfrastructureError, InputError) as error:
            return error  # InputError: content that no engine takes, e.g. a tree that is too large

    return run

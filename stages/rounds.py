"""A round as a sequence of stages: what is open, what would run, and the running of one stage to its record.

Same key, nothing to do: a stage whose inputs did not change repeats the record of the round that has it; so does one whose
verifier or reward rules alone changed, where a rescore found that they make no difference. Knows no orchestrator; flows
call `run_stage`.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, field, fields
from typing import Any

from schemas.base import Digest, digest_of
from schemas.errors import InputError, PinMismatch
from schemas.record import ABANDONED, STAGES, Record, StageName
from stages import resume
from stages.context import Context
from stages.goal import foresee
from stages.keys import key_inputs, stage_key
from stages.recall import Recall
from stages.workspace import RECORDS, Workspace


def open_round(workspace: Workspace) -> int | None:
    """The last round, when it lacks a record; None when every round is complete."""
    rounds = workspace.rounds()
    return rounds[-1] if rounds and missing(workspace, rounds[-1]) else None


def complete_rounds(workspace: Workspace) -> int:
    return sum(not missing(workspace, number) for number in workspace.rounds())


def missing(workspace: Workspace, number: int) -> list[StageName]:
    return [stage for stage in STAGES if not workspace.has(number, stage)]


@dataclass(frozen=True)
class Step:
    """What would happen to one stage of a round."""

    stage: StageName
    action: str  # done | reuse | run | unknown
    why: str
    key: Digest | None = None


@dataclass
class _Foreseeing(Context):
    """A context in which what would be reused is there already, so that the stages after it have their keys."""

    foreseen: dict[StageName, Record] = field(default_factory=dict)

    def record(self, stage: StageName, round: int | None = None) -> Any:
        if round in (None, self.round) and stage in self.foreseen:
            return self.foreseen[stage]
        return super().record(stage, round)


def plan(ctx: Context) -> list[Step]:
    """For each stage of the round: done, reused, to be run, or not known yet because a stage before it has to run first."""
    steps: list[Step] = []
    ctx = _Foreseeing(**{item.name: getattr(ctx, item.name) for item in fields(Context)})
    blocked = False
    for stage in STAGES:
        if ctx.workspace.has(ctx.round, stage):
            steps.append(Step(stage, "done", "its record is written"))
            continue
        if blocked:
            steps.append(Step(stage, "unknown", "depends on a stage that has to run first"))
            continue
        key, pins = key_of(ctx, stage)
        found, why = standing(ctx, stage, key, pins)
        if found is not None:
            steps.append(Step(stage, "reuse", why, key))
            ctx.foreseen[stage] = found
            continue
        steps.append(Step(stage, "run", why or changed(ctx, stage, pins), key))
        goal = foresee(ctx, key, pins) if stage == "goal" else None
        if goal is not None:
            ctx.foreseen["goal"] = goal
        blocked = goal is None
    return steps


def standing(ctx: Context, stage: StageName, key: Digest, pins: dict[str, Digest]) -> tuple[Record | None, str]:
    """The record of an earlier round that this stage may repeat, and why; None, and what is stale, when it has to run.

    Of equal key; or of one that differs in verifiers and reward rules alone, where a rescore under the new ones found
    nothing different. Not one that lost attempts to infrastructure, nor one decided by rewards that a rescore flipped.
    """
    recall, stale = Recall(ctx.workspace), ""
    spec = ctx.spec if stage == "goal" else ctx.record("goal").spec
    for number in reversed([known for known in ctx.workspace.rounds() if known < ctx.round]):
        record = ctx.workspace.read(number, stage)
        if record is None or record.infrastructure_errors or record.skipped == ABANDONED:
            continue
        made_in = record.reused_from or number
        # The goal names what judges: it is never repeated under another one.
        by = None if record.key == key or stage == "goal" else recall.judged_alike(record, made_in, pins)
        if record.key != key and by is None:
            continue
        flipped = recall.flipped_in(record) if spec.stale == "refuse" else 0
        if flipped:
            stale = stale or f"stale: {flipped} of the rewards that decided round {number}'s were flipped by a rescore"
            continue
        same = "same key as" if by is None else f"judged alike by rescore {by}:"
        kept = {"key": key, "inputs": pins, "reused_from": made_in, "rescored_by": by or record.rescored_by}
        return record.model_copy(update=kept), f"{same} round {made_in}"
    return None, stale


def changed(ctx: Context, stage: StageName, pins: dict[str, Digest]) -> str:
    """Which inputs differ from the last round's, by name."""
    earlier = ctx.earlier(stage)
    if not earlier:
        return "never run"
    before: dict[str, Digest] = earlier[-1].inputs
    names = sorted(name for name in {*pins, *before} if pins.get(name) != before.get(name))
    lost = f"the last one lost {earlier[-1].infrastructure_errors} attempts to infrastructure"
    return f"changed: {', '.join(names)}" if names else lost


def key_of(ctx: Context, stage: StageName) -> tuple[Digest, dict[str, Digest]]:
    """The key, and every pin in it by name: what the stage reads, its sections, its code and its libraries."""
    sections, pins = _module(stage).inputs(ctx)
    return stage_key(stage, sections, pins), key_inputs(stage, sections, pins)


def run_stage(ctx: Context, stage: StageName) -> Record:
    """Bring one stage of the round to its record. The record is the commit point: before it nothing happened."""
    found: Record | None = ctx.workspace.read(ctx.round, stage)
    if found is not None:
        return found
    for before in STAGES[: STAGES.index(stage)]:
        if not ctx.workspace.has(ctx.round, before):
            raise InputError(f"round {ctx.round}: {stage} needs {before} first; run `postloop run --until {stage}`")
    began = time.monotonic()
    key, pins = key_of(ctx, stage)
    resume.require(ctx, stage, pins)
    record, _ = standing(ctx, stage, key, pins)
    if record is None:
        record = _run(ctx, stage, key, pins)
    elif stage == "goal":
        _module(stage).watch(ctx)
    ctx.telemetry.put("seconds", round(time.monotonic() - began, 2))
    if ctx.exceptions:
        record = record.model_copy(update={"exceptions": ctx.exceptions})
    ctx.workspace.commit(ctx.round, record, ctx.telemetry.values)
    resume.end(ctx, stage)
    return record


def _run(ctx: Context, stage: StageName, key: Digest, pins: dict[str, Digest]) -> Record:
    resume.begin(ctx, stage, pins)
    try:
        made: Record = _module(stage).run(ctx, key, pins)
    except PinMismatch:
        raise
    except InputError:  # a person will change what was wrong: there is nothing to go on with
        resume.end(ctx, stage)
        raise
    return made


def abandon(workspace: Workspace) -> int | None:
    """End the open round as it is: what is missing is recorded as skipped, so that the next round begins under goal.yaml.

    For a round whose spec turned out wrong after its goal was recorded. Nothing is removed; later rounds look past it.
    Returns its number, or None when no round is open. The caller holds the lock.
    """
    number = open_round(workspace)
    if number is None:
        return None
    for stage in missing(workspace, number):
        kind = RECORDS[stage]
        workspace.commit(number, kind(stage=stage, key=digest_of([ABANDONED, number, stage]), skipped=ABANDONED), {})
    return number


def _module(stage: StageName) -> Any:
    return importlib.import_module(f"stages.{stage}")

"""The row `resume` of the pin table: a stage of an open round goes on only under what the round began under.

Compared are what enters the stage's key: with what the stage itself began under, when it was interrupted; with the inputs
that the records of the stages before it wrote down; and the content that it will read with what those records name. What
the spec widens by name goes into `Context.exceptions`, and with it into the record.

The note of an interrupted stage lies under .postloop/, since it says nothing once the record is there. Whoever deletes that
folder loses this one comparison.
Not covered: the goal stage, before which there is no round; a goal.yaml edited meanwhile, which waits for the next one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from schemas.base import Digest
from schemas.goal import GoalRecord
from schemas.record import STAGES, Record, StageName
from stages.artifacts import make_folder, pretty, write_durably
from stages.checkpoints import fetch_base, final_checkpoint, folder_of, previous_champion, trained_folder
from stages.context import Context
from stages.equipment import pinned_bundles, pinned_image
from stages.keys import code_digest, libraries_digest
from stages.pins import comparable, declared

# An input of an earlier record -> names under which it enters a later key.
_ENTERS = {"spec.routes": "rules", "spec.start": "start"}
_READS: Mapping[StageName, tuple[tuple[StageName, str], ...]] = {
    "sft": (("data", "tasks"), ("data", "demonstrations")),
    "rl": (("data", "tasks"), ("sft", "checkpoint")),
    "evaluation": (("data", "tasks"), ("sft", "checkpoint"), ("rl", "checkpoint")),
    "backflow": (("data", "tasks"),),  # and the final checkpoint
}


def require(ctx: Context, stage: StageName, pins: Mapping[str, Digest]) -> None:
    """`pins`: all that enters the stage's key now. Raises PinMismatch, IntegrityError; nothing has been run then."""
    if stage == "goal":
        return
    ctx.require_pins(began_under(ctx, stage), pins)
    goal: GoalRecord = ctx.record("goal")
    data = ctx.record("data") if stage != "data" else None
    said = declared(goal, ctx.workspace.stored(ctx.round, "goal"), data)
    for before in STAGES[: STAGES.index(stage)]:
        record: Record = ctx.record(before)
        present = {**said, "code": code_digest(before), "libraries": libraries_digest(before)}
        ctx.require_pins(_entering(comparable(record.inputs, present), pins), present)
    pinned_image(ctx, goal)
    pinned_bundles(ctx, goal)
    fetch_base(ctx, goal)
    _require_content(ctx, stage)


def _entering(recorded: Mapping[str, Digest], pins: Mapping[str, Digest]) -> dict[str, Digest]:
    return {name: was for name, was in recorded.items() if _ENTERS.get(name, name) in pins}


def _require_content(ctx: Context, stage: StageName) -> None:
    """Before hours of training, not after them."""
    if stage == "evaluation" and (champion := previous_champion(ctx)) is not None:
        folder_of(ctx, *champion)
    if stage == "backflow":
        folder_of(ctx, *final_checkpoint(ctx)[:2])
    for before, name in _READS.get(stage, ()):
        record = ctx.record(before)
        if name == "checkpoint" and name in record.artifacts:
            trained_folder(ctx, record)
        elif name in record.artifacts:
            ctx.workspace.open_artifact(record.artifacts[name])


# --- what an interrupted stage began under


def begin(ctx: Context, stage: StageName, pins: Mapping[str, Digest]) -> None:
    """Note it, unless an interrupted attempt has: what that one was allowed to differ in is then told again."""
    note = _note(ctx, stage)
    if stage != "goal" and not note.is_file():
        make_folder(note.parent)
        write_durably(note, pretty(dict(pins)))


def began_under(ctx: Context, stage: StageName) -> dict[str, Digest]:
    """Empty when the stage was not interrupted, or what it noted cannot be read."""
    try:
        found = json.loads(_note(ctx, stage).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def end(ctx: Context, stage: StageName) -> None:
    _note(ctx, stage).unlink(missing_ok=True)


def _note(ctx: Context, stage: StageName) -> Path:
    return ctx.workspace.scratch / "began" / f"{ctx.round:04d}-{stage}.json"

"""Which weights are which: the base, where training starts, what a round trained last, and the champion.

Every folder that leaves here holds the weights that the goal or a record pins; a base that changed on disk is refused.
"""

from __future__ import annotations

from pathlib import Path

from schemas.artifact import ArtifactRef
from schemas.base import Digest
from schemas.evaluation import EvaluationRecord
from schemas.goal import GoalRecord
from schemas.model import ModelSource, PathModel
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from stages.context import Context
from stages.models import checkpoint_of, fetch
from stages.recall import Recall

Place = Path | ArtifactRef


def fetch_base(ctx: Context, goal: GoalRecord) -> Path:
    """The folder of the base model as the goal pinned it. Raises PinMismatch when its content is another one now."""
    folder = model_folder(ctx, goal.spec.model)
    ctx.require_pins(goal.base.pins(), checkpoint_of(folder).pins())
    return folder


def model_folder(ctx: Context, source: ModelSource) -> Path:
    """The base model's folder, whatever is in it now. A path is meant from the workspace."""
    if isinstance(source, PathModel):
        source = source.model_copy(update={"path": str(ctx.workspace.root / source.path)})
    return fetch(source, ctx.cache)


def folder_of(ctx: Context, place: Place, weights: Digest) -> Path:
    """The folder, which holds the weights that the record beside it names. A base was compared when it was fetched."""
    if not isinstance(place, ArtifactRef):
        return place
    folder = ctx.workspace.open_artifact(place)
    ctx.require_pins({"policy": weights}, checkpoint_of(folder).pins("policy"))
    return folder


def trained_folder(ctx: Context, record: SftRecord | RlRecord) -> Path:
    """The folder of what the record trained, part for part as it says."""
    assert record.checkpoint is not None
    folder = ctx.workspace.open_artifact(record.artifacts["checkpoint"])
    ctx.require_pins(record.checkpoint.pins("policy"), checkpoint_of(folder).pins("policy"))
    return folder


def start_checkpoint(ctx: Context) -> tuple[Place, Digest]:
    """Where training starts: the base model, or the champion of the rounds before when the spec says so."""
    goal: GoalRecord = ctx.record("goal")
    champion = previous_champion(ctx) if goal.spec.start == "champion" else None
    return champion or (fetch_base(ctx, goal), goal.base.weights)


def previous_champion(ctx: Context) -> tuple[ArtifactRef, Digest] | None:
    """The last one promoted; not one that was trained on a reward which a rescore flipped, unless the spec says so."""
    found: list[EvaluationRecord] = [
        record for record in ctx.earlier("evaluation") if "champion" in record.artifacts and record.champion
    ]
    stale = Recall(ctx.workspace).weights() if found and ctx.spec.stale == "refuse" else frozenset()
    for record in reversed(found):
        if record.champion and record.champion not in stale:
            return record.artifacts["champion"], record.champion
    return None


def final_checkpoint(ctx: Context) -> tuple[Place, Digest, str]:
    """Where it lies, its weights and its policy's name: what the round trained last, or its start where it trained nothing."""
    rl: RlRecord = ctx.record("rl")
    if rl.checkpoint is not None:
        return rl.artifacts["checkpoint"], rl.checkpoint.weights, "rl"
    sft: SftRecord = ctx.record("sft")
    if sft.checkpoint is not None:
        return sft.artifacts["checkpoint"], sft.checkpoint.weights, "sft"
    place, weights = start_checkpoint(ctx)
    return place, weights, "champion" if isinstance(place, ArtifactRef) else "base"

"""Goal: what the model must be able to do, pinned. Merges the approved backflow, as people want it, into a new version.

Resolves every name of the spec to content: bundles are stored as artifacts, the image is built, the base checkpoint is
fetched and digested; then the canary shows that the environment still judges as it should.
Not covered: wording of goals beyond capabilities and numeric criteria.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from environments.bundles import Bundle
from environments.image import write_layer
from environments.lock import digest
from evals.material import Used
from evals.material import material as material_of
from schemas.artifact import ArtifactRef
from schemas.backflow import BackflowRecord
from schemas.base import Digest, Json
from schemas.bucket import Bucket, Material
from schemas.decision import TriageDecision
from schemas.goal import Bundles, GoalRecord, GoalSpec, RuntimeSpec
from schemas.model import PathModel
from schemas.pins import PinsSpec
from schemas.record import ABANDONED
from schemas.task import Kind, Split
from stages.artifacts import store
from stages.canary import bundle_folder, check, refuse
from stages.checkpoints import model_folder, previous_champion
from stages.context import Context
from stages.decisions import decisions, obeyed
from stages.equipment import image_of
from stages.models import checkpoint_of
from stages.pins import UNPINNED
from stages.tasks import load_tasks, seed_kinds

Inputs = tuple[dict[str, Json], dict[str, Digest]]


def deciding(spec: GoalSpec) -> GoalSpec:
    """The spec without what only says where and how fast, or what may differ."""
    return spec.model_copy(update={"runtime": RuntimeSpec(), "pins": PinsSpec()})


def inputs(ctx: Context) -> Inputs:
    spec = deciding(ctx.spec)
    material, weights, known = merged(ctx)
    sections: dict[str, Json] = {
        **spec.model_dump(mode="json", exclude=set(UNPINNED)),
        "material": [item.model_dump(mode="json") for item in material],
        "weights": {family: weights[family] for family in sorted(weights)},
        **({"decisions": list(known)} if known else {}),
    }
    pins = {name: Bundle(folder).digest for name, folder in bundles_of(ctx).items()}
    if isinstance(spec.model, PathModel):  # a package and a tiny model are what they are; a folder may have changed
        pins |= checkpoint_of(model_folder(ctx, ctx.spec.model)).pins()
    pins["limits"] = spec.environment.limits.digest()  # as every stage after it names them
    if spec.environment.lock is not None:
        pins["lock"] = digest(ctx.workspace.root / spec.environment.lock)
    champion = _champion(ctx)
    return sections, {**pins, **({"champion": champion} if champion else {})}


def bundles_of(ctx: Context) -> dict[str, Path]:
    spec = ctx.spec
    named = {"harness": spec.harness, "verifier": spec.verifier, "audit_verifier": spec.audit_verifier}
    kinds = seed_kinds(ctx, spec.data)
    named |= {f"harness_{kind}": ref for kind, ref in spec.harness_of.items() if kind in kinds}
    named |= {f"verifier_{kind}": ref for kind, ref in spec.verifier_of.items() if kind in kinds}
    return {name: bundle_folder(ctx, ref) for name, ref in named.items() if ref is not None}


def _pinned(pins: dict[str, Digest]) -> Bundles:
    return Bundles(
        harness=pins["harness"],
        verifier=pins["verifier"],
        audit_verifier=pins.get("audit_verifier"),
        harness_of={kind: pins[f"harness_{kind}"] for kind in get_args(Kind) if f"harness_{kind}" in pins},
        verifier_of={kind: pins[f"verifier_{kind}"] for kind in get_args(Kind) if f"verifier_{kind}" in pins},
    )


def _champion(ctx: Context) -> Digest | None:
    """Only a loop that starts from its champion depends on which one it is."""
    champion = previous_champion(ctx) if ctx.spec.start == "champion" else None
    return champion[1] if champion else None


class Merged(NamedTuple):
    """`decisions`: ids of people's decisions that bear on the material, whether they changed it or not."""

    material: list[Material]
    weights: dict[str, float]
    decisions: list[str]


def merged(ctx: Context) -> Merged:
    """Material of all rounds so far, as people want it; what one bucket got twice added up; sampling weights of the last
    round only."""
    material: dict[tuple[str, str], Material] = {}
    weights: dict[str, float] = {}
    decisions: set[str] = set()
    for number in _handing(ctx):
        weights = {}
        handed, bears = handed_by(ctx, number)
        decisions |= bears
        for item in handed:
            if not item.approved:
                continue
            if item.kind == "weights":
                weights[item.family] = max(weights.get(item.family, 1.0), item.weight)
                continue
            before = material.get((item.kind, item.bucket))
            amount = item.amount + (before.amount if before else 0)
            material[(item.kind, item.bucket)] = item.model_copy(update={"amount": amount})
    return Merged([material[key] for key in sorted(material)], weights, sorted(decisions))


def _handing(ctx: Context) -> list[int]:
    """Earlier rounds whose backflow came to a record, oldest first."""
    read = ((n, ctx.workspace.read(n, "backflow")) for n in ctx.workspace.rounds() if n < ctx.round)
    return [number for number, record in read if record is not None and record.skipped != ABANDONED]


def handed_by(ctx: Context, number: int) -> tuple[list[Material], set[str]]:
    """Material of an earlier round under the decisions that this one knows, and their ids. Its record stays as it is."""
    record: BackflowRecord = ctx.record("backflow", number)

    def remake(bucket: Bucket) -> list[Material]:
        """A person asked for it: it takes no place of the largest ones."""
        goal: GoalRecord = ctx.record("goal", number)
        spec = goal.spec.backflow.model_copy(update={"max_buckets": 1})
        training = [task for task in load_tasks(ctx, number) if task.split is Split.TRAIN]
        used: Used = {(bucket.id, item.kind): item.trajectories for item in record.material if item.bucket == bucket.id}
        return material_of([bucket], spec, training, used)

    return obeyed(record, number, decided(ctx), remake)


def decided(ctx: Context) -> Sequence[TriageDecision]:
    """People's decisions, oldest first. Of a round whose goal is recorded: those that it began under, and no later ones."""
    if ctx.decided is None:
        found = decisions(ctx.workspace)
        goal = ctx.workspace.read(ctx.round, "goal")
        ctx.decided = found if goal is None else [one for one in found if one.id in getattr(goal, "decisions", ())]
    return ctx.decided


def run(ctx: Context, key: Digest, pins: dict[str, Digest]) -> GoalRecord:
    spec = deciding(ctx.spec)
    ctx.progress("base model", 0, 3)
    base = model_folder(ctx, ctx.spec.model)
    ctx.progress("image", 1, 3)
    environment, root = image_of(spec, ctx.cache, ctx.workspace.root)
    ctx.progress("canary", 2, 3)
    reports = check(ctx, environment, root)
    refuse(reports)
    ctx.progress("canary", 3, 3)
    artifacts = {name: store(ctx.workspace, "goal", name, copier(folder)) for name, folder in bundles_of(ctx).items()}
    artifacts["image"] = _keep_image(ctx, environment.layer, root)
    material, weights, known = merged(ctx)
    evaluations = ctx.earlier("evaluation")
    return GoalRecord(
        key=key,
        inputs=pins,
        artifacts=artifacts,
        goal_version=_version(ctx, spec, material, weights),
        spec=spec,
        environment=environment,
        bundles=_pinned(pins),
        base=checkpoint_of(base),
        material=material,
        weights=weights,
        decisions=known,
        goal_met=evaluations[-1].goal_met if evaluations else None,
        canary={report.environment: report.quarantined != "environment" for report in reports},
        drifts=[drift for report in reports for drift in report.drifts],
    )


def foresee(ctx: Context, key: Digest, pins: dict[str, Digest]) -> GoalRecord | None:
    """The record that `run` would leave, as far as later stages' keys need it, without running anything.

    None where the model or the environment is another one than in the last round: only running resolves those.
    """
    before: list[GoalRecord] = ctx.earlier("goal")
    spec = deciding(ctx.spec)
    if not before or (before[-1].spec.environment, before[-1].spec.model) != (spec.environment, spec.model):
        return None
    material, weights, known = merged(ctx)
    return GoalRecord(
        key=key, inputs=pins, artifacts=before[-1].artifacts, goal_version=_version(ctx, spec, material, weights),
        spec=spec, environment=before[-1].environment, bundles=_pinned(pins), base=before[-1].base, material=material,
        weights=weights, decisions=known, drifts=before[-1].drifts,
    )  # fmt: skip


def _keep_image(ctx: Context, layer: Digest, root: Path) -> ArtifactRef:
    """Its layer tar: in a month this machine may have another Python, and a replay needs the image of then."""
    name = f"image-{layer[:12]}"
    goals: list[GoalRecord] = ctx.earlier("goal")
    before = [goal.artifacts["image"] for goal in goals if "image" in goal.artifacts]
    same = [ref for ref in before if ref.name == name]
    if same:
        return same[-1]

    def write(folder: Path) -> None:
        with (folder / "layer.tar").open("wb") as file:
            write_layer(root, file)

    return store(ctx.workspace, "goal", name, write)


def watch(ctx: Context) -> None:
    """The canary of a round whose goal is reused: nothing was decided anew, but the environment may have changed."""
    refuse(check(ctx, *image_of(deciding(ctx.spec), ctx.cache, ctx.workspace.root)))


def _version(ctx: Context, spec: GoalSpec, material: list[Material], weights: dict[str, float]) -> int:
    goals = ctx.earlier("goal")
    if not goals:
        return 1
    last: GoalRecord = goals[-1]
    same = (last.spec, last.material, last.weights) == (spec, material, weights)
    return last.goal_version if same else last.goal_version + 1


def copier(folder: Path) -> Any:
    def copy(target: Path) -> None:
        shutil.copytree(folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))

    return copy

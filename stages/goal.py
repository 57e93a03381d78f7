"""Goal: what the model must be able to do, pinned. Merges the approved backflow of the last round into a new version.

Resolves every name of the spec to content: bundles are stored as artifacts, the image is built, the base checkpoint is
fetched and digested; then the canary shows that the environment still judges as it should.
Not covered: wording of goals beyond capabilities and numeric criteria.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from environments.bundles import Bundle, find
from environments.engines import open_engine
from environments.image import layer_digest
from environments.sources.library import functions
from environments.sources.repair import repair_tasks
from environments.sources.splits import order
from evals.verify import Verifier
from schemas.base import Digest, Json
from schemas.bucket import Material
from schemas.errors import InfrastructureError
from schemas.execution import Environment
from schemas.goal import Bundles, GoalRecord, GoalSpec, RuntimeSpec
from schemas.model import PathModel
from schemas.task import Split, Task
from schemas.verdict import Status
from stages.artifacts import store
from stages.checkpoints import model_folder, previous_champion
from stages.context import Context
from stages.equipment import image_of
from stages.models import checkpoint_of

Inputs = tuple[dict[str, Json], dict[str, Digest]]


def deciding(spec: GoalSpec) -> GoalSpec:
    """The spec without what only says where and how fast."""
    return spec.model_copy(update={"runtime": RuntimeSpec()})


def inputs(ctx: Context) -> Inputs:
    spec = deciding(ctx.spec)
    material, weights = merged(ctx)
    sections: dict[str, Json] = {
        "spec": spec.model_dump(mode="json"),
        "material": [item.model_dump(mode="json") for item in material],
        "weights": {family: weights[family] for family in sorted(weights)},
    }
    pins = {name: Bundle(folder).digest for name, folder in _bundles(ctx).items()}
    if isinstance(spec.model, PathModel):  # a package and a tiny model are what they are; a folder may have changed
        pins["base"] = checkpoint_of(model_folder(ctx, ctx.spec.model)).weights
    champion = _champion(ctx)
    return sections, {**pins, **({"champion": champion} if champion else {})}


def _bundles(ctx: Context) -> dict[str, Path]:
    spec = ctx.spec
    named = {"harness": spec.harness, "verifier": spec.verifier, "audit_verifier": spec.audit_verifier}
    stored = [ctx.workspace.root / ref.path for ref in ctx.workspace.refs() if ref.path.startswith("artifacts/goal/")]
    return {name: _found(ctx, ref, stored) for name, ref in named.items() if ref is not None}


def _found(ctx: Context, ref: str, stored: list[Path]) -> Path:
    """A path is meant from the workspace; names and digests also find the bundles that earlier rounds stored."""
    here = ctx.workspace.root / ref
    return here if (here / "bundle.json").is_file() else find(ref, [folder for folder in stored if folder.is_dir()])


def _champion(ctx: Context) -> Digest | None:
    """Only a loop that starts from its champion depends on which one it is."""
    champion = previous_champion(ctx) if ctx.spec.start == "champion" else None
    return champion[1] if champion else None


def merged(ctx: Context) -> tuple[list[Material], dict[str, float]]:
    """Material of all rounds so far, what one bucket got twice added up; sampling weights of the last round only."""
    material: dict[tuple[str, str], Material] = {}
    weights: dict[str, float] = {}
    for record in ctx.earlier("backflow"):
        weights = {}
        for item in record.material:
            if not item.approved:
                continue
            if item.kind == "weights":
                weights[item.family] = max(weights.get(item.family, 1.0), item.weight)
                continue
            before = material.get((item.kind, item.bucket))
            amount = item.amount + (before.amount if before else 0)
            material[(item.kind, item.bucket)] = item.model_copy(update={"amount": amount})
    return [material[key] for key in sorted(material)], weights


def run(ctx: Context, key: Digest, pins: dict[str, Digest]) -> GoalRecord:
    spec = deciding(ctx.spec)
    ctx.progress("base model", 0, 3)
    base = model_folder(ctx, ctx.spec.model)
    ctx.progress("image", 1, 3)
    environment, root = image_of(spec, ctx.cache)
    ctx.progress("canary", 2, 3)
    canary = _canary(ctx, environment, root)
    ctx.progress("canary", 3, 3)
    artifacts = {name: store(ctx.workspace, "goal", name, _copier(folder)) for name, folder in _bundles(ctx).items()}
    material, weights = merged(ctx)
    evaluations = ctx.earlier("evaluation")
    return GoalRecord(
        key=key,
        inputs=pins,
        artifacts=artifacts,
        goal_version=_version(ctx, spec, material, weights),
        spec=spec,
        environment=environment,
        bundles=Bundles(harness=pins["harness"], verifier=pins["verifier"], audit_verifier=pins.get("audit_verifier")),
        base=checkpoint_of(base),
        material=material,
        weights=weights,
        goal_met=evaluations[-1].goal_met if evaluations else None,
        canary=canary,
    )


def _version(ctx: Context, spec: GoalSpec, material: list[Material], weights: dict[str, float]) -> int:
    goals = ctx.earlier("goal")
    if not goals:
        return 1
    last: GoalRecord = goals[-1]
    same = (last.spec, last.material, last.weights) == (spec, material, weights)
    return last.goal_version if same else last.goal_version + 1


def _copier(folder: Path) -> Any:
    def copy(target: Path) -> None:
        shutil.copytree(folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))

    return copy


def _canary(ctx: Context, environment: Environment, root: Path) -> dict[str, bool]:
    """Gold passes, the start tree fails, a repeat agrees, and the image is still what its pin says; else the round stops."""
    if layer_digest(root) != environment.layer:
        raise InfrastructureError(
            f"environment {environment.name}: the image drifted from its pin {environment.layer[:12]}; "
            "delete the images folder of the cache, it is rebuilt"
        )
    engine, limits = open_engine(ctx.spec.environment.engine), ctx.spec.environment.limits
    with Bundle(_bundles(ctx)["verifier"]) as bundle:
        verifier = Verifier(bundle, environment, root, engine, limits, "training", ctx.runtime.sandbox_retries)
        for task in _canaries(ctx.spec.seed):
            gold = verifier.judge_many([(task, task.gold)], ctx.fan_out)[0]
            noop = verifier.judge_many([(task, {})], ctx.fan_out)[0]
            again = verifier.judge_many([(task, task.gold)], ctx.fan_out, repeat=1)[0]
            broken = [v.reason for v in (gold, noop, again) if v.status is Status.ERROR]
            if broken:
                raise InfrastructureError(f"canary {task.id}: the sandbox failed: {broken[0]}")
            if not gold.passed or noop.passed or gold.checks != again.checks:
                raise InfrastructureError(
                    f"canary {task.id}: gold passed {gold.passed}, no-op passed {noop.passed}, repeat equal "
                    f"{gold.checks == again.checks}; expected True, False, True: the environment does not judge as proven"
                )
    return {environment.name: True}


def _canaries(seed: int, count: int = 3) -> list[Task]:
    names = sorted(functions(), key=lambda name: order(seed, name))[:count]
    return repair_tasks(seed, lambda origin: Split.TRAIN, per_function=1, intact=False, names=names)

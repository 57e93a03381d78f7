"""Tasks: chosen from the seed data, made for buckets, proven on the real engine, and quarantined when a proof fails."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from environments.bundles import tree_digest
from environments.image import one_at_a_time
from environments.sources import default
from environments.sources.difficulty import difficulty
from environments.sources.library import every_function
from environments.sources.repair import fresh_repair_tasks
from environments.sources.splits import order
from evals.contamination import near_copies
from evals.material import EASIER
from evals.panel import Judge
from schemas.base import Digest, Frozen, digest_of
from schemas.bucket import Material
from schemas.data import DataRecord, DataSpec, SourceSpec
from schemas.errors import InfrastructureError, InputError, IntegrityError
from schemas.goal import GoalRecord
from schemas.migrations import Form, brought_up
from schemas.task import Kind, Split, Task, TaskProof
from schemas.verdict import Status
from stages.artifacts import flush_tree
from stages.context import Context, chunks

Row = TypeVar("Row", bound=Frozen)


def seed_folder(ctx: Context, spec: DataSpec) -> Path:
    """The embedded families are generated into the cache; a folder of one's own is read where it is."""
    if spec.seed_data != "default":
        folder = ctx.workspace.root / spec.seed_data
        if not folder.is_dir():
            raise InputError(
                f"data.seed_data: {spec.seed_data} is no folder of the workspace; name one with *.jsonl tasks"
            )
        return folder
    folder = ctx.cache / f"seed_data-{tree_digest(Path(default.__file__).parent)[:12]}"
    if not folder.is_dir():
        ctx.cache.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(ctx.cache / f".{folder.name}.lock"):  # of two runs that share the cache one makes it
            if not folder.is_dir():
                _generate(folder)
    return folder


def _generate(folder: Path) -> None:
    part = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(part, ignore_errors=True)  # of a run that was killed
    default.build(part)
    flush_tree(part)
    part.rename(folder)


def seed_digest(folder: Path) -> Digest:
    return digest_of(
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.jsonl"))}
    )


def seed_kinds(ctx: Context, spec: DataSpec) -> set[Kind]:
    """The kinds of task that the seed data holds: each may have a harness and a verifier of its own."""
    if spec.seed_data == "default":
        return {"function", "answer"}
    return {task.kind for task in default.load(seed_folder(ctx, spec))}


def bench_pins(goal: GoalRecord) -> dict[str, Digest]:
    """What every attempt of the round depends on, whatever the stage."""
    return {
        "environment": goal.environment.layer,
        "variables": goal.environment.model_copy(update={"layer": "0" * 64}).digest(),
        "limits": goal.spec.environment.limits.digest(),
        **goal.base.pins(),
        **{name: digest for name, digest in goal.bundles.named().items() if name != "audit_verifier"},
    }


def select(pool: Sequence[Task], sources: Iterable[SourceSpec], seed: int) -> list[Task]:
    """The counts of the spec, taken origin by origin in turn, so that no function or question dominates a split.

    Raises InputError where the seed data has fewer: a smaller set than was asked for would be another experiment.
    """
    picked: list[Task] = []
    for source in sources:
        for split in Split:
            wanted = int(getattr(source, split.value))
            candidates = [task for task in pool if task.skill == source.skill and task.split is split]
            if len(candidates) < wanted:
                raise InputError(
                    f"data.sources: {source.skill}: {split.value} asks for {wanted} tasks, the seed data has "
                    f"{len(candidates)}; lower it, or add tasks"
                )
            picked += round_robin(candidates, wanted, seed)
    return picked


def round_robin(
    tasks: Sequence[Task], wanted: int, seed: int, rank: Callable[[Task], tuple[int, ...]] = lambda _: ()
) -> list[Task]:
    """`wanted` tasks, one of each origin before a second of any. Origins, and tasks within one, come by `rank`, lowest first;
    equals in a seeded order."""
    by_origin: dict[str, list[Task]] = defaultdict(list)
    for task in sorted(tasks, key=lambda task: (rank(task), order(seed, task.id))):
        by_origin[task.origin].append(task)
    ordered = sorted(by_origin, key=lambda origin: (rank(by_origin[origin][0]), order(seed, origin)))
    queues = [by_origin[origin] for origin in ordered]
    ranked = [(position, index, task) for index, queue in enumerate(queues) for position, task in enumerate(queue)]
    return [task for _, _, task in sorted(ranked, key=lambda item: item[:2])[:wanted]]


def route_tasks(material: Sequence[Material], pool: Sequence[Task], chosen: Sequence[Task], seed: int) -> list[Task]:
    """New training tasks for buckets: fresh mutants of training functions, or unused training tasks of the family; where the
    ability is missing, those with less to get right first.

    Only functions of our library can be mutated, and only those whose tasks all train; seed data of one's own may name others.
    """
    used = {task.id for task in chosen}
    measured = {task.origin for task in pool if task.split is not Split.TRAIN}
    trained = {task.origin for task in pool if task.skill == "repair" and task.split is Split.TRAIN}
    origins = sorted((trained - measured) & every_function().keys())
    made: list[Task] = []
    for item in material:
        if item.kind != "tasks" or not item.amount:
            continue
        by, easy = f"backflow:{item.bucket}", item.cause in EASIER
        if item.operators and origins:
            fresh = fresh_repair_tasks(seed, origins, item.operators, used, item.amount, by, easy_first=easy)
        else:
            left = [t for t in pool if t.family == item.family and t.split is Split.TRAIN and t.id not in used]
            picked = round_robin(left, item.amount, seed, difficulty) if easy else round_robin(left, item.amount, seed)
            fresh = [t.model_copy(update={"made_by": by}) for t in picked]
        used |= {task.id for task in fresh}
        made += fresh
    return made


def prove(ctx: Context, verifier: Judge, tasks: Sequence[Task], runs: int) -> list[TaskProof]:
    """Gold, start and wrong outcome through the real engine. Proofs of an equal task under equal pins are taken over."""
    known = known_proofs(ctx, runs)
    fresh = [task for task in tasks if task.digest() not in known]
    for done, part in enumerate(chunks(fresh, 64)):
        ctx.progress("proving tasks", done * 64, len(fresh))
        for proof in prove_part(ctx, verifier, part, runs):
            known[proof.task_digest] = proof
    ctx.progress("proving tasks", len(fresh), len(fresh))
    return [known[task.digest()] for task in tasks]


def prove_part(ctx: Context, verifier: Judge, tasks: Sequence[Task], runs: int) -> list[TaskProof]:
    golds = [verifier.judge_many([(t, t.gold) for t in tasks], ctx.fan_out, repeat=n) for n in range(runs)]
    noops = verifier.judge_many([(t, {}) for t in tasks], ctx.fan_out)
    wrongs = verifier.judge_many([(t, t.wrong) for t in tasks], ctx.fan_out)
    broken = [v.reason for row in (*golds, noops, wrongs) for v in row if v.status is Status.ERROR]
    if broken:
        raise InfrastructureError(f"proof of tasks: {len(broken)} runs lost to infrastructure, first: {broken[0]}")
    proofs = []
    for index, task in enumerate(tasks):
        passes = sum(bool(row[index].passed) for row in golds)
        agree = len({row[index].model_copy(update={"repeat": 0}).digest() for row in golds}) == 1
        intact = task.made_by == "intact"
        facts = {
            f"no verifier judges it: {golds[0][index].reason}": golds[0][index].status is not Status.UNSCORED,
            "gold does not pass": passes == runs,
            "repeats disagree": agree,
            "start tree passes": intact or not noops[index].passed,
            "wrong outcome passes": not wrongs[index].passed,
        }
        proofs.append(
            TaskProof(
                task_id=task.id,
                task_digest=task.digest(),
                gold_passes=passes,
                runs=runs,
                noop_fails=not noops[index].passed,
                wrong_fails=not wrongs[index].passed,
                agree=agree,
                reason=next((reason for reason, holds in facts.items() if not holds), None),
            )
        )
    return proofs


def known_proofs(ctx: Context, runs: int) -> dict[str, TaskProof]:
    """From earlier rounds of equal image, limits and verifier: a task is proven once."""
    goal: GoalRecord = ctx.record("goal")
    found: dict[str, TaskProof] = {}
    for record in ctx.earlier("data"):
        same = all(
            record.inputs.get(pin) == digest
            for pin, digest in bench_pins(goal).items()
            if pin in ("environment", "variables", "limits") or pin.startswith("verifier")
        )
        if same and "proofs" in record.artifacts:
            proofs = read_proofs(ctx.workspace.open_artifact(record.artifacts["proofs"]))
            found.update({proof.task_digest: proof for proof in proofs if proof.runs == runs})
    return found


def sort_out(
    tasks: Sequence[Task], proofs: Sequence[TaskProof], spec: DataSpec, barred: Mapping[str, str]
) -> tuple[list[Task], dict[str, str]]:
    """Proven tasks, and id -> reason of the quarantined. A training task close to an evaluation task goes too.

    `barred`: digest or id of a task that a longer proof or the canary refused -> reason.
    """
    reasons = {p.task_id: p.reason or barred.get(p.task_digest) or barred.get(p.task_id) for p in proofs}
    quarantined = {task: reason for task, reason in reasons.items() if reason}
    training = [task for task in tasks if task.split is Split.TRAIN]
    measuring = [task for task in tasks if task.split is not Split.TRAIN]
    copies = near_copies(training, measuring, spec.contamination_ngram, spec.contamination_share)
    quarantined |= dict.fromkeys(copies, "near copy of an evaluation task")
    return [task for task in tasks if task.id not in quarantined], quarantined


def bucket_of(task: Task) -> str | None:
    """The bucket of the last rounds that a task was made for; None for one of the seed data."""
    return task.made_by.removeprefix("backflow:") if task.made_by.startswith("backflow:") else None


def trained_origins(tasks: Iterable[Task]) -> dict[str, int]:
    """Family -> distinct origins among the training tasks: what coverage means."""
    found: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        if task.split is Split.TRAIN:
            found[task.family].add(task.origin)
    return {family: len(origins) for family, origins in sorted(found.items())}


def load_tasks(ctx: Context, round: int | None = None) -> list[Task]:
    record: DataRecord = ctx.record("data", round)
    return read_tasks(ctx.workspace.open_artifact(record.artifacts["tasks"]))


def read_proofs(folder: Path) -> list[TaskProof]:
    """The proofs of a `proofs` artifact. Raises as `_rows` does."""
    return _rows(folder / "proofs.jsonl", "proofs", TaskProof)


def read_tasks(folder: Path) -> list[Task]:
    """The tasks of a `tasks` artifact. Raises as `_rows` does."""
    return _rows(folder / "tasks.jsonl", "tasks", Task)


def _rows(path: Path, form: Form, kind: type[Row]) -> list[Row]:
    """Raises InputError for rows of a schema that we do not read, IntegrityError for what are none."""
    name = f"{path.parent.name}/{path.name}"
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            found.append(kind.model_validate_json(json.dumps(brought_up(form, name, json.loads(line)))))
        except (ValueError, TypeError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise IntegrityError(f"{name}:{number}: not one of {form} ({first}); restore the artifact") from error
    return found

"""Data: proven tasks, split by origin, and demonstrations; Great Expectations gate the tables.

A task is used only after its proof: gold passes every run, the start tree and a wrong outcome fail, repeats agree. What
fails is quarantined with its reason. Routed material of the last round becomes new training tasks and demonstrations.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from environments.bundles import tree_digest
from environments.sources import default
from environments.sources.repair import fresh_repair_tasks
from environments.sources.splits import order
from evals.contamination import near_copies
from evals.expectations import attempts_frame, check_table, demonstrations_frame, tasks_frame
from evals.gates import condition, gate
from evals.verify import Verifier
from schemas.base import Digest, Json, canonical, digest_of
from schemas.bucket import Material
from schemas.data import DataRecord, DataSpec, SourceSpec
from schemas.errors import InfrastructureError, InputError
from schemas.goal import GoalRecord
from schemas.metrics import Condition, Estimate
from schemas.task import Split, Task, TaskProof
from schemas.trajectory import Attempt, Purpose, UseEdge
from schemas.verdict import Status
from stages.artifacts import store
from stages.attempts import read_attempts, write_attempts, write_edges
from stages.context import Context, chunks
from stages.equipment import Equipment, equip, errors_in
from stages.models import fetch
from stages.rollout import Setting
from stages.samplers.scripted_sampler import ScriptedSampler

Inputs = tuple[dict[str, Json], dict[str, Digest]]


def inputs(ctx: Context) -> Inputs:
    goal: GoalRecord = ctx.record("goal")
    spec = goal.spec
    sections: dict[str, Json] = {
        "data": spec.data.model_dump(mode="json"),
        "seed": spec.seed,
        "material": [item.model_dump(mode="json") for item in goal.material],
        "budgets": spec.budgets.model_dump(mode="json"),
        "sampling": spec.sampling.model_dump(mode="json"),
        "rewards": spec.rewards.model_dump(mode="json"),
        "safety": spec.safety.model_dump(mode="json"),
    }
    pins = {**bench_pins(goal), "seed_data": _seed_digest(_seed_folder(ctx, spec.data))}
    if spec.data.demonstrations.from_past_rounds:
        for record in ctx.earlier("rl"):
            if "attempts" in record.artifacts:
                pins[f"past_{len(pins)}"] = record.artifacts["attempts"].digest
    return sections, pins


def bench_pins(goal: GoalRecord) -> dict[str, Digest]:
    """What every attempt of the round depends on, whatever the stage."""
    return {
        "environment": goal.environment.layer,
        "variables": goal.environment.model_copy(update={"layer": "0" * 64}).digest(),
        "limits": goal.spec.environment.limits.digest(),
        "base": goal.base.weights,
        "tokenizer": goal.base.tokenizer,
        "template": goal.base.template,
        "harness": goal.bundles.harness,
        "verifier": goal.bundles.verifier,
    }


def _seed_folder(ctx: Context, spec: DataSpec) -> Path:
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
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        default.build(part)
        os.replace(part, folder)
    return folder


def _seed_digest(folder: Path) -> Digest:
    return digest_of(
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.jsonl"))}
    )


def run(ctx: Context, key: Digest, pins: dict[str, Digest]) -> DataRecord:
    goal: GoalRecord = ctx.record("goal")
    spec = goal.spec.data
    pool = default.load(_seed_folder(ctx, spec))
    chosen = select(pool, spec.sources, goal.spec.seed)
    routed = route_tasks(goal.material, pool, chosen, goal.spec.seed)
    with equip(ctx, goal) as bench:
        proofs = prove(ctx, bench.verifier, [*chosen, *routed], spec.proof_runs)
        proven, quarantined = _sort_out([*chosen, *routed], proofs, spec)
        demonstrations = _demonstrate(ctx, bench, goal, proven)
    return _leave(ctx, key, pins, goal, proven, proofs, quarantined, demonstrations)


# --- tasks


def select(pool: Sequence[Task], sources: Iterable[SourceSpec], seed: int) -> list[Task]:
    """The counts of the spec, taken origin by origin in turn, so that no function or question dominates a split."""
    picked: list[Task] = []
    for source in sources:
        for split in Split:
            wanted = int(getattr(source, split.value))
            candidates = [task for task in pool if task.skill == source.skill and task.split is split]
            picked += round_robin(candidates, wanted, seed)
    return picked


def round_robin(tasks: Sequence[Task], wanted: int, seed: int) -> list[Task]:
    """`wanted` tasks, one of each origin before a second of any; within an origin one family before a second of it."""
    by_origin: dict[str, list[Task]] = defaultdict(list)
    for task in sorted(tasks, key=lambda task: order(seed, task.id)):
        by_origin[task.origin].append(task)
    queues = [by_origin[origin] for origin in sorted(by_origin, key=lambda origin: order(seed, origin))]
    ranked = [(position, index, task) for index, queue in enumerate(queues) for position, task in enumerate(queue)]
    return [task for _, _, task in sorted(ranked, key=lambda item: item[:2])[:wanted]]


def route_tasks(material: Sequence[Material], pool: Sequence[Task], chosen: Sequence[Task], seed: int) -> list[Task]:
    """New training tasks for buckets: fresh mutants of training functions, or unused training tasks of the family."""
    used = {task.id for task in chosen}
    made: list[Task] = []
    for item in material:
        if item.kind != "tasks" or not item.amount:
            continue
        by = f"backflow:{item.bucket}"
        if item.operators:
            origins = sorted({t.origin for t in pool if t.skill == "repair" and t.split is Split.TRAIN})
            fresh = fresh_repair_tasks(seed, origins, item.operators, used, item.amount, made_by=by)
        else:
            left = [t for t in pool if t.family == item.family and t.split is Split.TRAIN and t.id not in used]
            fresh = [t.model_copy(update={"made_by": by}) for t in round_robin(left, item.amount, seed)]
        used |= {task.id for task in fresh}
        made += fresh
    return made


def prove(ctx: Context, verifier: Verifier, tasks: Sequence[Task], runs: int) -> list[TaskProof]:
    """Gold, start and wrong outcome through the real engine. Proofs of an equal task under equal pins are taken over."""
    known = _known_proofs(ctx, runs)
    fresh = [task for task in tasks if task.digest() not in known]
    for done, part in enumerate(chunks(fresh, 64)):
        ctx.progress("proving tasks", done * 64, len(fresh))
        for proof in _prove_part(ctx, verifier, part, runs):
            known[proof.task_digest] = proof
    ctx.progress("proving tasks", len(fresh), len(fresh))
    return [known[task.digest()] for task in tasks]


def _prove_part(ctx: Context, verifier: Verifier, tasks: Sequence[Task], runs: int) -> list[TaskProof]:
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


def _known_proofs(ctx: Context, runs: int) -> dict[str, TaskProof]:
    """From earlier rounds of equal image, limits and verifier: a task is proven once."""
    goal: GoalRecord = ctx.record("goal")
    found: dict[str, TaskProof] = {}
    for record in ctx.earlier("data"):
        same = all(record.inputs.get(pin) == bench_pins(goal)[pin] for pin in ("environment", "limits", "verifier"))
        if same and "proofs" in record.artifacts:
            lines = (ctx.workspace.open_artifact(record.artifacts["proofs"]) / "proofs.jsonl").read_text("utf-8")
            proofs = [TaskProof.model_validate_json(line) for line in lines.splitlines()]
            found.update({proof.task_digest: proof for proof in proofs if proof.runs == runs})
    return found


def _sort_out(tasks: Sequence[Task], proofs: Sequence[TaskProof], spec: DataSpec) -> tuple[list[Task], dict[str, str]]:
    """Proven tasks, and id -> reason of the quarantined. A training task close to an evaluation task goes too."""
    quarantined = {proof.task_id: proof.reason for proof in proofs if proof.reason}
    training = [task for task in tasks if task.split is Split.TRAIN]
    measuring = [task for task in tasks if task.split is not Split.TRAIN]
    copies = near_copies(training, measuring, spec.contamination_ngram, spec.contamination_share)
    quarantined |= dict.fromkeys(copies, "near copy of an evaluation task")
    return [task for task in tasks if task.id not in quarantined], quarantined


# --- demonstrations


def _demonstrate(ctx: Context, bench: Equipment, goal: GoalRecord, tasks: Sequence[Task]) -> dict[str, list[Attempt]]:
    """Source -> verified attempts. All of them are rollouts through the harness, judged like any other."""
    spec = goal.spec.data.demonstrations
    training = [task for task in tasks if task.split is Split.TRAIN]
    wanted: list[Task] = []
    for skill, count in sorted(spec.gold.items()):
        wanted += round_robin([t for t in training if t.skill == skill and _fresh(t) is None], count, goal.spec.seed)
    routed = _routed_demonstrations(goal, training, {task.id for task in wanted})
    tasks_shown = {task.id: task for task in (*wanted, *routed)}
    gold = ScriptedSampler(fetch(goal.spec.model, ctx.cache), tasks_shown, "gold")
    asked = bench.requests(list(tasks_shown.values()), 1, Purpose.DEMONSTRATION, gold.policy)
    attempts = bench.attempt(gold, asked, setting=_written(goal))
    kept: dict[str, list[Attempt]] = {"gold": [], "backflow": [], "rejection": [], "past": []}
    chosen = {task.id for task in wanted}
    for attempt in attempts:
        if attempt.verdict.status is Status.ERROR:
            continue
        if not attempt.verdict.passed:
            raise InfrastructureError(
                f"demonstration {attempt.trajectory.task_id}: gold does not pass through harness {goal.spec.harness}; "
                "the harness and the verifier disagree about this task"
            )
        kept["gold" if attempt.trajectory.task_id in chosen else "backflow"].append(attempt)
    ctx.telemetry.put("demonstration_errors", errors_in(attempts))
    kept["past"] = _past(ctx, spec.from_past_rounds, {task.id: task for task in training}, chosen, goal.spec.seed)
    return kept


def _written(goal: GoalRecord) -> Setting:
    """Demonstrations are written, not sampled: a turn may take up to half the context, whatever a policy may."""
    spec = goal.spec
    limit = spec.budgets.max_context_tokens // 2
    written = spec.sampling.model_copy(update={"engine": "scripted:gold", "max_tokens": limit})
    return Setting(sampling=written, budgets=spec.budgets, safety=spec.safety, batch=spec.sampling.batch)


def _fresh(task: Task) -> str | None:
    return task.made_by.removeprefix("backflow:") if task.made_by.startswith("backflow:") else None


def _routed_demonstrations(goal: GoalRecord, training: Sequence[Task], used: set[str]) -> list[Task]:
    """Tasks demonstrated for buckets: those of a bucket owned by SFT, and half of the new tasks of one owned by data."""
    picked: list[Task] = []
    for item in goal.material:
        taken = used | {task.id for task in picked}
        if item.kind == "demonstrations":
            pool = [t for t in training if t.family == item.family and t.id not in taken]
            picked += round_robin(pool, item.amount, goal.spec.seed)
        elif item.kind == "tasks":
            pool = [t for t in training if _fresh(t) == item.bucket and t.id not in taken]
            picked += round_robin(pool, max(1, item.amount // 2), goal.spec.seed)
    return picked


def _past(ctx: Context, at_most: int, training: dict[str, Task], taken: set[str], seed: int) -> list[Attempt]:
    """Rejection sampling for free: training-pool rollouts of earlier rounds that were verified, newest first, one a task."""
    found: dict[str, Attempt] = {}
    for record in reversed(ctx.earlier("rl")):
        if not at_most or "attempts" not in record.artifacts:
            continue
        for attempt in read_attempts(ctx.workspace.open_artifact(record.artifacts["attempts"]) / "attempts.parquet"):
            trajectory = attempt.trajectory
            task = training.get(trajectory.task_id)
            clean = attempt.verdict.passed and not trajectory.conduct.invalid_calls and trajectory.purpose is Purpose.RL
            if clean and task is not None and task.digest() == trajectory.task and task.id not in taken:
                found.setdefault(task.id, attempt)
    return [found[task] for task in sorted(found, key=lambda task: order(seed, task))[:at_most]]


def row_of(source: str, attempt: Attempt) -> dict[str, Any]:
    """A demonstration in TRL's conversational format, with what it came from."""
    trajectory = attempt.trajectory
    return {
        "id": trajectory.id,
        "source": source,
        "task_id": trajectory.task_id,
        "family": trajectory.family,
        "messages": trajectory.conversation(),
    }


# --- what it leaves


def _leave(
    ctx: Context,
    key: Digest,
    pins: dict[str, Digest],
    goal: GoalRecord,
    tasks: list[Task],
    proofs: list[TaskProof],
    quarantined: dict[str, str],
    demonstrations: dict[str, list[Attempt]],
) -> DataRecord:
    attempts = [attempt for source in sorted(demonstrations) for attempt in demonstrations[source]]
    rows = [row_of(source, attempt) for source in sorted(demonstrations) for attempt in demonstrations[source]]
    edges = [edge_of("sft_row", attempt.trajectory.id, attempt) for attempt in attempts]
    training = [task for task in tasks if task.split is Split.TRAIN]
    checks = {
        "tasks": check_table("tasks", tasks_frame(tasks)),
        "demonstrations": check_table("demonstrations", demonstrations_frame(rows)),
        "attempts": check_table("attempts", attempts_frame(attempts)),
    }
    conditions = [_exact(f"expectations_{name}", float(bool(check["success"])), 1.0) for name, check in checks.items()]
    conditions.append(_exact("training_tasks", float(len(training)), float(goal.spec.data.min_tasks)))
    counts = Counter(task.split.value for task in tasks)
    made = {source: len(found) for source, found in sorted(demonstrations.items())}
    card = _card(goal, tasks, quarantined, made)
    artifacts = {
        "tasks": store(ctx.workspace, "data", "tasks", _writer({"tasks.jsonl": _lines(tasks), "CARD.md": card})),
        "proofs": store(ctx.workspace, "data", "proofs", _writer({"proofs.jsonl": _lines(proofs)})),
        "demonstrations": store(
            ctx.workspace,
            "data",
            "demonstrations",
            lambda folder: _write_demonstrations(folder, rows, attempts, edges),
        ),
        "expectations": store(
            ctx.workspace, "data", "expectations", _writer({f"{n}.json": _pretty(c) for n, c in checks.items()})
        ),
    }
    return DataRecord(
        key=key,
        inputs=pins,
        artifacts=artifacts,
        gates=[gate("data", conditions, "data")],
        infrastructure_errors=int(ctx.telemetry.values.get("demonstration_errors", 0)),
        tasks=dict(sorted(counts.items())),
        families=dict(sorted(Counter(task.family for task in training).items())),
        quarantined=dict(sorted(Counter(quarantined.values()).items())),
        demonstrations=made,
        routed_tasks=sum(_fresh(task) is not None for task in training),
    )


def _exact(name: str, value: float, at_least: float) -> Condition:
    """A condition on a count or a fact: there is nothing to estimate, so the interval is the value."""
    return condition(
        name, Estimate(value=value, low=value, high=value, n=1, clusters=1, method="exact"), ">=", at_least
    )


def edge_of(use: Any, row: str, attempt: Attempt, advantage: float | None = None, step: int | None = None) -> UseEdge:
    """From a used row to the trajectory, verdict and reward behind it."""
    return UseEdge(
        use=use,
        row=row,
        trajectory=attempt.trajectory.id,
        task=attempt.trajectory.task,
        verdict=attempt.verdict.digest(),
        reward=attempt.reward.digest(),
        rules=attempt.reward.rules,
        advantage=advantage,
        step=step,
    )


def _write_demonstrations(
    folder: Path, rows: list[dict[str, Any]], attempts: list[Attempt], edges: list[UseEdge]
) -> None:
    (folder / "demonstrations.jsonl").write_bytes(b"".join(canonical(row) + b"\n" for row in rows))
    write_attempts(folder / "attempts.parquet", attempts)
    write_edges(folder / "edges.parquet", edges)


def _lines(items: Iterable[Any]) -> bytes:
    return b"".join(canonical(item.model_dump(mode="json")) + b"\n" for item in items)


def _pretty(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _writer(files: dict[str, bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name, content in files.items():
            (folder / name).write_bytes(content)

    return write


def _card(goal: GoalRecord, tasks: Sequence[Task], quarantined: dict[str, str], made: dict[str, int]) -> bytes:
    """The dataset card: what is in it, where it came from, what it must not be used for."""
    lines = [
        f"# Tasks of {goal.spec.name}, goal version {goal.goal_version}",
        "",
        "| skill | split | tasks | origins |",
        "|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Task]] = defaultdict(list)
    for task in tasks:
        groups[(task.skill, task.split.value)].append(task)
    lines += [f"| {s} | {p} | {len(g)} | {len({t.origin for t in g})} |" for (s, p), g in sorted(groups.items())]
    lines += ["", f"Quarantined: {len(quarantined)}.", f"Demonstrations by source: {made}.", ""]
    lines += ["Splits are by origin: no function or question template of one split occurs in another.", ""]
    lines += ["Everything here was generated by this project; no task of a public benchmark is in it."]
    return "\n".join(lines).encode() + b"\n"


def load_tasks(ctx: Context, round: int | None = None) -> list[Task]:
    record: DataRecord = ctx.record("data", round)
    folder = ctx.workspace.open_artifact(record.artifacts["tasks"])
    return [Task.model_validate_json(line) for line in (folder / "tasks.jsonl").read_text("utf-8").splitlines()]


def load_demonstrations(ctx: Context) -> list[dict[str, Any]]:
    record: DataRecord = ctx.record("data")
    folder = ctx.workspace.open_artifact(record.artifacts["demonstrations"])
    return [json.loads(line) for line in (folder / "demonstrations.jsonl").read_text("utf-8").splitlines()]

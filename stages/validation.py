"""The proof of tasks on demand: more runs than a round makes, and the budget too.

A task is proven when its gold outcome passes every run, also with half of the CPU-seconds; when its start and its wrong
outcome fail; and when the runs agree. Proofs are kept in the cache by the digests of task, image, variables, limits and
verifier, so that a task is proven once. What fails goes to the quarantine with its reason (quarantine.py).

Not covered: budgets that need a model (tokens, turns); foreign tasks, whose own script decides (foreign.py runs
them): they stay quarantined.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from environments.bundles import Bundle
from environments.engines import Engine, open_engine
from evals.verify import Verifier
from schemas.base import Digest, digest_of
from schemas.errors import InfrastructureError, InputError
from schemas.execution import Environment
from schemas.task import Task, TaskProof
from schemas.verdict import Status
from stages.artifacts import make_folder
from stages.canary import bundle_folder
from stages.context import Context, chunks, in_order
from stages.equipment import image_of
from stages.tasks import prove_part

RULES = 1  # grows when what counts as a proof changes, so that an old cache is not taken for a new one
HALF = 0.5  # share of limits.cpu_s that gold must be able to do with
FOREIGN = (
    "foreign: its own script writes its reward, so our verifier has nothing to judge; `postloop tasks run` runs it"
)


@dataclass
class Validation:
    """`proofs` in the order of the tasks, without those in `lost`: task id -> what the machine failed at."""

    proofs: list[TaskProof] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    cached: int = 0
    verifiers: dict[str, str] = field(default_factory=dict)

    @property
    def quarantined(self) -> list[TaskProof]:
        return [proof for proof in self.proofs if proof.reason is not None]


@dataclass(frozen=True)
class _Bench:
    """One verifier with the declared limits and with half of the CPU-seconds, and where its proofs are kept."""

    full: Verifier
    half: Verifier
    store: Path


def validate(ctx: Context, tasks: Sequence[Task], runs: int = 5) -> Validation:
    """Prove what no cache knows, `ctx.fan_out` over tasks. A task that the machine failed at is lost, not quarantined.

    Raises InputError (no such engine or bundle), SandboxError (the engine does not work here at all).
    """
    done = Validation()
    found: dict[str, TaskProof] = {}
    engine = open_engine(ctx.spec.environment.engine, ctx.spec.environment.runtime)
    with ExitStack() as stack:
        for kind in sorted({task.kind for task in tasks}):
            own = [task for task in tasks if task.kind == kind]
            judge = bundle_folder(ctx, ctx.spec.verifier_of.get(kind, ctx.spec.verifier))
            bench = _bench(ctx, engine, stack.enter_context(Bundle(judge)), runs)
            done.verifiers[kind] = f"{bench.full.bundle.name}@{bench.full.bundle.version}"
            known = _load(bench.store)
            done.cached += sum(task.digest() in known for task in own)
            fresh = [task for task in own if task.digest() not in known]
            for part in _prove(ctx, bench, fresh, runs, done.lost):
                _append(bench.store, part)
                known |= {proof.task_digest: proof for proof in part}
            found |= {task.id: known[task.digest()] for task in own if task.digest() in known}
    done.proofs = [found[task.id] for task in tasks if task.id in found]
    return done


def _bench(ctx: Context, engine: Engine, bundle: Bundle, runs: int) -> _Bench:
    environment, root = image_of(ctx.spec, ctx.cache, ctx.workspace.root)
    limits, retries = ctx.spec.environment.limits, ctx.runtime.sandbox_retries
    tight = limits.model_copy(update={"cpu_s": limits.cpu_s * HALF})
    full, half = (Verifier(bundle, environment, root, engine, given, "training", retries) for given in (limits, tight))
    key = _key(environment, full, runs)
    return _Bench(full, half, ctx.cache / "proofs" / f"{key}.jsonl")


def _key(environment: Environment, verifier: Verifier, runs: int) -> Digest:
    image = [environment.layer, environment.variables]
    return digest_of([RULES, HALF, runs, *image, verifier.limits.digest(), verifier.bundle.digest])


def _prove(
    ctx: Context, bench: _Bench, tasks: Sequence[Task], runs: int, lost: dict[str, str]
) -> Iterable[list[TaskProof]]:
    """Part by part, so that what is proven is kept when the run is killed."""
    alone = replace(ctx, fan_out=in_order)

    def one(task: Task) -> TaskProof | str:
        try:
            return prove_task(alone, bench.full, bench.half, task, runs)
        except InfrastructureError as error:
            return str(error)

    for number, part in enumerate(chunks(tasks, 32)):
        ctx.progress("proving tasks", number * 32, len(tasks))
        results = list(zip(part, ctx.fan_out(one, part), strict=True))
        lost |= {task.id: result for task, result in results if isinstance(result, str)}
        yield [result for _, result in results if isinstance(result, TaskProof)]


def prove_task(ctx: Context, full: Verifier, half: Verifier, task: Task, runs: int) -> TaskProof:
    """One task's proof. Raises InfrastructureError when the machine failed; that says nothing about the task."""
    problem = _unprovable(task)
    if problem:
        return _unproven(task, runs, problem)
    try:
        first = full.judge_many([(task, task.gold)])[0]
        if first.status is Status.UNSCORED:
            return _unproven(task, runs, f"no verifier judges it: {first.reason}")
        proof = prove_part(ctx, full, [task], runs)[0]
        if proof.reason is not None:
            return proof
        quick = half.judge_many([(task, task.gold)])[0]
    except InputError as error:
        return _unproven(task, runs, f"does not fit the sandbox: {error}")
    if quick.status is Status.ERROR:
        raise InfrastructureError(f"proof of tasks: {quick.reason}")
    if quick.passed:
        return proof
    return proof.model_copy(
        update={"reason": f"over budget: gold needs more than half of limits.cpu_s ({full.limits.cpu_s:g} s)"}
    )


def _unprovable(task: Task) -> str | None:
    if task.made_by.startswith("foreign:"):
        return FOREIGN
    for field_ in ("gold", "wrong"):
        if not getattr(task, field_):
            return f"no {field_} outcome: nothing shows that its tests can {'pass' if field_ == 'gold' else 'fail'}"
    return None


def _unproven(task: Task, runs: int, reason: str) -> TaskProof:
    return TaskProof(
        task_id=task.id,
        task_digest=task.digest(),
        gold_passes=0,
        runs=runs,
        noop_fails=False,
        wrong_fails=False,
        agree=False,
        reason=reason,
    )


# ---- what is kept


def _load(store: Path) -> dict[Digest, TaskProof]:
    """Proofs of one key. A line that a killed run left torn is left out."""
    found: dict[Digest, TaskProof] = {}
    for line in store.read_bytes().split(b"\n") if store.is_file() else []:
        try:
            proof = TaskProof.model_validate_json(line)
        except ValidationError:
            continue
        found[proof.task_digest] = proof
    return found


def _append(store: Path, proofs: Sequence[TaskProof]) -> None:
    if not proofs:
        return
    make_folder(store.parent)
    with store.open("ab") as file:
        file.write(b"".join(b"\n" + proof.model_dump_json().encode() for proof in proofs) + b"\n")
        file.flush()
        os.fsync(file.fileno())

"""One round as a plain script: the same trainers, rollouts, verdicts and numbers, in one process, and nothing else.

    python -m bench.plain --spec goal.yaml --folder SCRATCH --out FILE.json

What a round has and this has not: records, artifacts and their digests, DVC, git, Prefect, MLflow, Great Expectations,
pins, telemetry, the canary, resuming. The computation is the same one, and that is checked: bench/overhead.py compares
the digests of both checkpoints with those of the round. First rounds only (nothing is fed back into them).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from bench.common import cache_folder, say, write_json
from environments.bundles import Bundle, find
from environments.engines import open_engine
from environments.runner import Runner
from environments.sources import default
from evals.buckets import Half, build
from evals.contamination import near_copies
from evals.gates import headroom_gate, may_train
from evals.metrics import attempt_metrics, by_family, paired, pass_shares
from evals.panel import Panel
from evals.rules import load_rules
from evals.suites import halves
from evals.suites import select as suite_tasks
from evals.verify import Verifier
from schemas.errors import InputError, PostloopError
from schemas.execution import Environment
from schemas.goal import Bundles, GoalRecord, GoalSpec
from schemas.rl import GrpoPhase
from schemas.task import Split, Task
from schemas.trajectory import Attempt, Purpose
from stages.backflow import sampled
from stages.context import Context
from stages.demonstrations import first_clean_passes
from stages.equipment import Equipment, image_of
from stages.models import checkpoint_of, fetch
from stages.rl import TaskStream, mixed, sample_groups
from stages.rollout import Setting
from stages.samplers import Sampler, open_sampler, use_threads
from stages.samplers.scripted_sampler import ScriptedSampler
from stages.spec import load_spec
from stages.tasks import round_robin, select, trained_origins

A = TypeVar("A")
B = TypeVar("B")


class Threads:
    """A fan-out without an orchestrator: as many threads as the round has workers."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers)

    def __call__(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        return list(self._pool.map(fn, items))


@contextmanager
def bench_of(spec: GoalSpec, cache: Path, base: Path) -> Iterator[Equipment]:
    """The same bench as a round's, over bundles from where they ship; the context holds no workspace."""
    environment, root = image_of(spec, cache, cache)
    engine = open_engine(spec.environment.engine)
    limits, retries = spec.environment.limits, spec.runtime.sandbox_retries
    names = {"harness": spec.harness, "verifier": spec.verifier, "audit": spec.audit_verifier}
    bundles = {name: Bundle(find(ref)) for name, ref in names.items() if ref is not None}
    audit = bundles.get("audit")
    context = Context(cast(Any, None), 1, spec, cache, fan_out=Threads(spec.runtime.workers))
    try:
        yield Equipment(
            goal=_goal(spec, environment, base, bundles),
            runner=Runner(engine, environment, root, limits, retries),
            harness=bundles["harness"],
            verifier=Panel(Verifier(bundles["verifier"], environment, root, engine, limits, "training", retries)),
            audit=Verifier(audit, environment, root, engine, limits, "audit", retries) if audit else None,
            context=context,
        )
    finally:
        for bundle in bundles.values():
            bundle.close()


def _goal(spec: GoalSpec, environment: Environment, base: Path, bundles: dict[str, Bundle]) -> GoalRecord:
    """What attempts read of a goal, in memory; its key names nothing."""
    audit = bundles["audit"].digest if "audit" in bundles else None
    named = Bundles(harness=bundles["harness"].digest, verifier=bundles["verifier"].digest, audit_verifier=audit)
    return GoalRecord(
        key="0" * 64, goal_version=1, spec=spec, environment=environment, bundles=named, base=checkpoint_of(base)
    )


def make_tasks(bench: Equipment, spec: GoalSpec, folder: Path) -> list[Task]:
    """Generated, proven, and without near copies of evaluation tasks."""
    if spec.data.seed_data != "default":
        raise InputError(f"plain script: seed_data {spec.data.seed_data}; it knows the default one only")
    default.build(folder / "seed_data")
    chosen = select(default.load(folder / "seed_data"), spec.data.sources, spec.seed)
    proven: list[Task] = []
    for start in range(0, len(chosen), 64):
        part = chosen[start : start + 64]
        judge, fan_out = bench.verifier.judge_many, bench.context.fan_out
        golds = [judge([(t, t.gold) for t in part], fan_out, repeat=n) for n in range(spec.data.proof_runs)]
        noops = judge([(t, {}) for t in part], fan_out)
        wrongs = judge([(t, t.wrong) for t in part], fan_out)
        for i, task in enumerate(part):
            fails = not wrongs[i].passed and (task.made_by == "intact" or not noops[i].passed)
            if all(row[i].passed for row in golds) and fails:
                proven.append(task)
    training = [t for t in proven if t.split is Split.TRAIN]
    others = [t for t in proven if t.split is not Split.TRAIN]
    copies = near_copies(training, others, spec.data.contamination_ngram, spec.data.contamination_share)
    return [task for task in proven if task.id not in copies]


def demonstrate(bench: Equipment, spec: GoalSpec, base: Path, tasks: Sequence[Task]) -> list[list[dict[str, str]]]:
    """Conversations from the gold outcomes, through the harness."""
    training = [task for task in tasks if task.split is Split.TRAIN]
    shown: list[Task] = []
    for skill, count in sorted((spec.data.demonstrations.gold or {}).items()):
        shown += round_robin([t for t in training if t.skill == skill], count, spec.seed)
    gold = ScriptedSampler(base, {task.id: task for task in shown}, "gold")
    written = spec.sampling.model_copy(
        update={"engine": "scripted:gold", "max_tokens": spec.budgets.max_context_tokens // 2}
    )
    setting = Setting(sampling=written, budgets=spec.budgets, safety=spec.safety, batch=spec.sampling.batch)
    attempts = bench.attempt(gold, bench.requests(shown, 1, Purpose.DEMONSTRATION, gold.policy), setting=setting)
    names = {task.id for task in shown}
    attempts += sample_demonstrations(bench, spec, base, [task for task in training if task.id not in names])
    return [attempt.trajectory.conversation() for attempt in attempts]


def sample_demonstrations(bench: Equipment, spec: GoalSpec, base: Path, tasks: Sequence[Task]) -> list[Attempt]:
    """The base's own verified attempts."""
    asked = spec.data.demonstrations
    pool = [task for task in tasks if not asked.rejection_skills or task.skill in asked.rejection_skills]
    chosen = round_robin(pool, asked.rejection_tasks, spec.seed) if asked.rejection_samples else []
    if not chosen:
        return []
    sampler = open_sampler(spec.sampling, base, spec.runtime)
    requests = bench.requests(chosen, asked.rejection_samples, Purpose.DEMONSTRATION, sampler.policy)
    return first_clean_passes(bench.attempt(sampler, requests))


def train(
    bench: Equipment, spec: GoalSpec, base: Path, tasks: Sequence[Task], folder: Path
) -> tuple[Path, Path | None, dict[str, Any]]:
    """Folders of the SFT and, unless headroom says no, of the RL checkpoint; and counts."""
    from stages.trainers.sft import train_sft

    rows = demonstrate(bench, spec, base, tasks)
    use_threads(spec.sampling.threads)
    start = base
    for number, phase in enumerate(spec.sft.phases):
        out = folder / f"sft-{number}"
        train_sft(start, out, folder / f"sft-{number}-adapter", rows, phase, spec.seed)
        start = out
    choosing = halves([task for task in tasks if task.split is Split.DEV])[0]
    sampler = open_sampler(spec.sampling, start, spec.runtime)
    parsed = round_robin(choosing, spec.sft.gate_tasks, spec.seed)
    bench.attempt(sampler, bench.requests(parsed, 2, Purpose.HEADROOM, sampler.policy))
    wanted = [task for task in choosing if not spec.rl.skills or task.skill in spec.rl.skills]
    probed = round_robin(wanted, spec.rl.headroom.tasks, spec.seed)
    sampler = open_sampler(spec.sampling, start, spec.runtime)
    requests = bench.requests(probed, spec.rl.headroom.samples, Purpose.HEADROOM, sampler.policy)
    headroom = bench.attempt(sampler, requests)
    counts: dict[str, Any] = {"demonstrations": len(rows), "headroom_attempts": len(headroom), "rl_attempts": 0}
    if not may_train(headroom_gate(headroom, spec.rl.headroom)):
        return start, None, counts
    policy = start
    for number, rl_phase in enumerate(spec.rl.phases):
        if not isinstance(rl_phase, GrpoPhase):
            raise InputError(f"plain script: rl phase {rl_phase.name}: method {rl_phase.method}; it knows grpo only")
        out = folder / f"rl-{number}"
        counts["rl_attempts"] += _grpo(bench, spec, policy, out, tasks, rl_phase)
        policy = out
    return start, policy, counts


def _grpo(bench: Equipment, spec: GoalSpec, start: Path, out: Path, tasks: Sequence[Task], phase: GrpoPhase) -> int:
    from stages.trainers.grpo import Member, train_grpo

    pool = [t for t in tasks if t.split is Split.TRAIN and (not spec.rl.skills or t.skill in spec.rl.skills)]
    stream = TaskStream(pool, {}, spec.seed)
    attempts = 0

    def groups_of(sampler: Sampler, step: int) -> tuple[list[list[Member]], dict[str, float]]:
        nonlocal attempts
        limit, sampled = round(phase.groups * phase.oversample), 0
        spread: list[list[Attempt]] = []
        while len(spread) < phase.groups and sampled < limit:
            taken = stream.take(min(phase.groups, limit - sampled))
            groups = sample_groups(bench, sampler, taken, phase.group_size, [phase.name, step, sampled])
            spread += [group for group in groups if mixed(group)]
            sampled += len(taken)
        attempts += sampled * phase.group_size
        chosen = spread[: phase.groups]
        return [[Member(trajectory=a.trajectory, reward=a.reward.value) for a in group] for group in chosen], {}

    train_grpo(start, out, out.with_name(f"{out.name}-adapter"), phase, spec.sampling, spec.seed, groups_of)
    return attempts


def evaluate(bench: Equipment, spec: GoalSpec, policies: dict[str, Path], tasks: Sequence[Task]) -> dict[str, Any]:
    """Every policy on every suite, with its intervals and the paired differences."""
    found: dict[str, dict[str, list[Attempt]]] = {}
    for name, folder in policies.items():
        sampler, found[name] = open_sampler(spec.sampling, folder, spec.runtime), {}
        for suite in spec.evaluation.suites:
            chosen = suite_tasks(tasks, suite, spec.seed)
            requests = bench.requests(chosen, suite.samples, Purpose.EVALUATION, sampler.policy)
            found[name][suite.name] = bench.attempt(sampler, requests, setting=bench.deployed(), audit="passes")
    how: dict[str, Any] = {"resamples": spec.evaluation.resamples, "confidence": spec.evaluation.confidence}
    scores: dict[str, Any] = {}
    for name, suites in found.items():
        for suite in spec.evaluation.suites:
            metrics = attempt_metrics(suites[suite.name], min(spec.evaluation.k, suite.samples), **how)
            by_family(suites[suite.name], **how)
            scores.setdefault(name, {})[suite.name] = metrics["pass@1"].value
    last = list(found)[-1]
    for candidate, reference in (("sft", "base"), ("rl", "sft"), (last, "base")):
        for suite in spec.evaluation.suites if {candidate, reference} <= found.keys() else ():
            paired(pass_shares(found[candidate][suite.name]), pass_shares(found[reference][suite.name]), **how)
    return scores


def look_at_failures(bench: Equipment, spec: GoalSpec, policy: Path, tasks: Sequence[Task]) -> int:
    """Dev attempts of the final policy, sorted into buckets; how many there are."""
    choosing, measuring = halves([task for task in tasks if task.split is Split.DEV])
    chosen = sampled((choosing, measuring), spec.backflow.tasks // 2, spec.seed)
    sampler = open_sampler(spec.sampling, policy, spec.runtime)
    requests = bench.requests(chosen, spec.backflow.samples, Purpose.ATTRIBUTION, sampler.policy)
    attempts = bench.attempt(sampler, requests, setting=bench.deployed(), audit="all")
    known, origins = {task.id: task for task in tasks}, trained_origins(list(tasks))

    def of(part: Sequence[Task]) -> Half:
        names = {task.id for task in part}
        return Half.of([a for a in attempts if a.trajectory.task_id in names], known, origins)

    return len(build(of(choosing), of(measuring), spec.routes or load_rules(None), seed=spec.seed))


def plain_round(spec: GoalSpec, folder: Path) -> dict[str, Any]:
    """Everything that round 1 computes. `seconds`: by part, within this process."""
    cache, seconds, began = cache_folder(), {}, time.perf_counter()

    def lap(name: str) -> None:
        nonlocal began
        now = time.perf_counter()
        seconds[name], began = round(now - began, 2), now

    base = fetch(spec.model, cache)
    with bench_of(spec, cache, base) as bench:
        tasks = make_tasks(bench, spec, folder)
        lap("data")
        sft, rl, counts = train(bench, spec, base, tasks, folder)
        lap("training")
        policies = {"base": base, "sft": sft, **({"rl": rl} if rl else {})}
        scores = evaluate(bench, spec, policies, tasks)
        lap("evaluation")
        buckets = look_at_failures(bench, spec, rl or sft, tasks)
        lap("backflow")
    return {
        "weights": {name: checkpoint_of(path).weights for name, path in policies.items()},
        "pass@1": scores,
        "buckets": buckets,
        "tasks": len(tasks),
        "seconds": seconds,
        **counts,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder; checkpoints are left in it")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        result = plain_round(load_spec(options.spec), options.folder)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

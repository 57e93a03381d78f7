"""The bench that every attempt of a round is made on: sampler, harness, sandbox, verifiers and reward rules, as pinned.

`attempt` is the one way from tasks to scored, priced attempts; demonstrations, headroom, RL, evaluation and backflow all
go through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from environments.bundles import Bundle
from environments.engines import missing, open_engine
from environments.image import build_image, layer_digest
from environments.lock import digest
from environments.restored import restore_image
from environments.runner import Runner
from evals.panel import Panel
from evals.rewards import price
from evals.verify import Verifier
from schemas.base import Json, digest_of
from schemas.errors import PostloopError, SamplerError
from schemas.execution import Environment
from schemas.goal import GoalRecord, GoalSpec
from schemas.task import Kind, Task
from schemas.trajectory import Attempt, Purpose, Trajectory
from schemas.verdict import Status, Verdict
from stages.context import Context
from stages.rollout import RolloutRequest, Setting, rollout
from stages.samplers import Sampler, open_sampler
from stages.tasks import load_tasks

Texts = tuple[tuple[str, str], ...]


def image_of(spec: GoalSpec, cache: Path, workspace: Path) -> tuple[Environment, Path]:
    """The round's image, built or taken from the cache, and the folder of its root file system."""
    declared = spec.environment
    lock = None if declared.lock is None else workspace / declared.lock
    variables, files = (tuple(sorted(texts.items())) for texts in (declared.variables, declared.files))
    locked = None if lock is None else (lock, digest(lock))
    return _image(cache / "images", declared.name, tuple(declared.packages), variables, declared.python, locked, files)


@lru_cache(maxsize=8)
def _image(
    cache: Path,
    name: str,
    packages: tuple[str, ...],
    variables: Texts,
    python: str | None,
    locked: tuple[Path, str] | None,
    files: Texts,
) -> tuple[Environment, Path]:
    """Once a process, since hashing the layer takes half a second; each round's canary looks at it afresh."""
    lock = locked[0] if locked else None
    image = build_image(cache, name, packages, dict(variables), python=python, lock=lock, files=dict(files))
    return image.environment, image.root


def pinned_image(ctx: Context, goal: GoalRecord) -> tuple[Environment, Path]:
    """The image of the round's record, byte for byte. Raises PinMismatch when it is another one now.

    A replay takes the kept layer where this machine would build another one, or has a damaged one.
    """
    find = _kept if ctx.operation != "resume" and "image" in goal.artifacts else _built
    environment, root = find(ctx, goal)
    if environment.layer == goal.environment.layer:  # else it is said to be another one already
        environment = environment.model_copy(update={"layer": layer_digest(root)})
    ctx.require_pins(environment_pins(goal.environment), environment_pins(environment))
    return environment, root


def _built(ctx: Context, goal: GoalRecord) -> tuple[Environment, Path]:
    return image_of(goal.spec, ctx.cache, ctx.workspace.root)


def _kept(ctx: Context, goal: GoalRecord) -> tuple[Environment, Path]:
    """A tree of the recorded layer, described as the record has it."""
    try:
        environment, root = _built(ctx, goal)
        if environment.layer == goal.environment.layer == layer_digest(root):
            return goal.environment, root
    except PostloopError:  # e.g. the declared Python is gone: the layer says what it was
        pass
    layer = ctx.workspace.open_artifact(goal.artifacts["image"]) / "layer.tar"
    return restore_image(ctx.cache / "images", goal.environment, layer)


def environment_pins(environment: Environment) -> dict[str, str]:
    """The layer; and the description without it, which holds variables and locale."""
    return {
        "environment": environment.layer,
        "variables": environment.model_copy(update={"layer": "0" * 64}).digest(),
    }


def noise_section(spec: GoalSpec, names: Iterable[str | None]) -> dict[str, Json]:
    """The profiles, as a section of the spec that a stage obeys; none where it names no profile."""
    return {"noise": spec.model_dump(mode="json", include={"noise"})["noise"]} if any(names) else {}


def seed_for(seed: int, purpose: Purpose, policy: str, task: Task, index: int) -> int:
    """32 bits for one attempt. Another policy draws other numbers, so a bucket is never measured on the seeds it was chosen on."""
    return int(digest_of([seed, purpose.value, policy, task.digest(), index])[:8], 16)


@dataclass
class Equipment:
    goal: GoalRecord
    runner: Runner
    harness: Bundle
    verifier: Panel
    audit: Verifier | None
    context: Context
    harness_of: Mapping[Kind, Bundle] = field(default_factory=dict)

    def requests(
        self, tasks: Sequence[Task], samples: int, purpose: Purpose, policy: str, noise: str | None = None
    ) -> list[RolloutRequest]:
        """`samples` attempts of each task, those of one task next to each other: they share their prompt's prefill.

        `noise`: a profile of the spec. Seeds do not know it, so clean and noisy attempts differ by nothing else.
        """
        seed, profile = self.goal.spec.seed, self.goal.spec.noise[noise] if noise else None
        return [
            RolloutRequest(
                task=task, seed=seed_for(seed, purpose, policy, task, i), group=task.id, purpose=purpose, noise=profile
            )
            for task in tasks
            for i in range(samples)
        ]

    def sampler(self, checkpoint: Path, tasks: Mapping[str, Task] | None = None) -> Sampler:
        """The spec's sampler over a model folder; a scripted one is told the tasks, the round's where none are given."""
        sampling = self.goal.spec.sampling
        if tasks is None and sampling.engine.startswith("scripted"):
            tasks = {task.id: task for task in load_tasks(self.context)}
        return open_sampler(sampling, checkpoint, self.context.runtime, tasks)

    def setting(self) -> Setting:
        spec = self.goal.spec
        return Setting(sampling=spec.sampling, budgets=spec.budgets, safety=spec.safety, batch=spec.sampling.batch)

    def deployed(self) -> Setting:
        """As the model would be used: evaluation and backflow look at it so, training does not."""
        setting = self.setting()
        temperature = self.goal.spec.evaluation.temperature
        return replace(setting, sampling=setting.sampling.model_copy(update={"temperature": temperature}))

    def attempt(
        self,
        sampler: Sampler,
        requests: Sequence[RolloutRequest],
        *,
        setting: Setting | None = None,
        audit: Literal["none", "passes", "all"] = "none",
    ) -> list[Attempt]:
        """Roll out, judge and price. What infrastructure broke comes back as an error verdict without a reward.

        `audit`: which outcomes the audit verifier judges too; a reward without the goal shows among the passes alone.
        """
        ctx = self.context
        trajectories, measured = rollout(
            sampler, self.harness, self.runner, list(requests), setting or self.setting(), ctx.fan_out, ctx.progress,
            self.harness_of,
        )  # fmt: skip
        for name, amount in measured.items():
            ctx.telemetry.add(name, amount)
        ctx.telemetry.add("tool_calls", sum(trajectory.conduct.tool_calls for trajectory in trajectories))
        if measured["sampler_failures"] and trajectories[-1].status == "error":
            raise SamplerError(str(trajectories[-1].reason))  # the server is gone: what follows would all be lost
        tasks = [request.task for request in requests]
        verdicts = self._judge(self.verifier, tasks, trajectories)
        if any(verdict.status is Status.ERROR for verdict in verdicts):
            self.runner.prove()
        audits: list[Verdict | None] = [None] * len(tasks)
        if self.audit and audit != "none":
            looked_at = [i for i, verdict in enumerate(verdicts) if audit == "all" or verdict.passed]
            again = self._judge(Panel(self.audit), [tasks[i] for i in looked_at], [trajectories[i] for i in looked_at])
            for i, verdict in zip(looked_at, again, strict=True):
                audits[i] = verdict
        return [
            Attempt(
                trajectory=trajectory,
                verdict=verdict,
                audit=second,
                reward=price(trajectory.id, verdict, trajectory.conduct, self.goal.spec.rewards),
            )
            for trajectory, verdict, second in zip(trajectories, verdicts, audits, strict=True)
        ]

    def _judge(self, panel: Panel, tasks: list[Task], trajectories: list[Trajectory]) -> list[Verdict]:
        """A trajectory that infrastructure broke has no outcome to judge: its verdict is the error itself."""
        whole = [(task, t.outcome) for task, t in zip(tasks, trajectories, strict=True) if t.status == "done"]
        judged = iter(panel.judge_many(whole, self.context.fan_out))
        return [
            next(judged) if t.status == "done" else self._broken(panel.of(task.kind), task, t)
            for task, t in zip(tasks, trajectories, strict=True)
        ]

    def _broken(self, verifier: Verifier, task: Task, trajectory: Trajectory) -> Verdict:
        return Verdict(
            outcome=trajectory.outcome_digest,
            task=task.digest(),
            image=self.goal.environment.layer,
            limits=self.goal.spec.environment.limits.digest(),
            verifier=verifier.bundle.digest,
            role=verifier.role,
            status=Status.ERROR,
            reason=trajectory.reason,
        )


def pinned_bundles(ctx: Context, goal: GoalRecord) -> dict[str, Bundle]:
    """The stored trees, none of them started. Raises IntegrityError, PinMismatch."""
    named = goal.bundles.named()
    bundles = {name: Bundle(ctx.workspace.open_artifact(goal.artifacts[name])) for name in named}
    ctx.require_pins(named, {name: bundle.digest for name, bundle in bundles.items()})
    return bundles


@contextmanager
def equip(ctx: Context, goal: GoalRecord, instead: Mapping[str, Path] | None = None) -> Iterator[Equipment]:
    """Open the pinned bench: bundles run from their stored trees; what drifted is refused before anything is run.

    `instead`: pin -> folder of the bundle that judges in place of the round's own, for rescoring.
    """
    environment, root = pinned_image(ctx, goal)
    bundles = pinned_bundles(ctx, goal)
    engine = open_engine(goal.spec.environment.engine, goal.spec.environment.runtime)
    ctx.telemetry.put("sandbox_not_in_force", missing(engine))
    limits, retries = goal.spec.environment.limits, ctx.runtime.sandbox_retries
    bundles |= {name: Bundle(tree) for name, tree in (instead or {}).items() if name in bundles}

    def judge(name: str, role: Literal["training", "audit"] = "training") -> Verifier:
        return Verifier(bundles[name], environment, root, engine, limits, role, retries)

    runner = Runner(engine, environment, root, limits, retries)
    verifier, own = judge("verifier"), {kind: judge(f"verifier_{kind}") for kind in goal.bundles.verifier_of}
    audit = judge("audit_verifier", "audit") if "audit_verifier" in bundles else None
    try:
        yield Equipment(
            goal=goal,
            runner=runner,
            harness=bundles["harness"],
            verifier=Panel(verifier, own),
            audit=audit,
            context=ctx,
            harness_of={kind: bundles[f"harness_{kind}"] for kind in goal.bundles.harness_of},
        )
    finally:
        for bundle in bundles.values():
            bundle.close()
        for name, value in runner.telemetry.items():
            ctx.telemetry.add(f"sandbox_{name}", value)
        for judging in (verifier, *own.values(), *([audit] if audit else [])):
            for name, value in judging.telemetry.items():
                ctx.telemetry.add(f"verifier_{name}", value)


def errors_in(attempts: Sequence[Attempt]) -> int:
    return sum(attempt.verdict.status is Status.ERROR for attempt in attempts)

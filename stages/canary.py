"""The canary: before a round, does each environment still judge as it was proven to, and if not, what changed.

Four looks, cheap while all is well: the image against its pin, the description against the one of the last round, the
sandbox from the inside, and the verdicts: gold passes, the start tree fails, a repeat agrees, and gold passes on another
date, in another order and with other random numbers. When one of them differs, the cause is sought: in the inventory of
the image, or by judging again with one thing changed at a time.

A drifted environment is quarantined: nothing is trained or measured on it until a person has looked. Single tasks that
drifted are left out: from the second round on those are tasks of the workspace, other ones in each round.
Not covered: drift that shows in no canary task and in none of the looks, such as a slower machine within the limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from environments.bundles import Bundle, find
from environments.conditions import DAY, NOTHING, Change, Changed
from environments.engines import Engine, open_engine
from environments.image import layer_digest
from environments.inventory import explain, keep, load
from environments.sources.library import functions
from environments.sources.repair import repair_tasks
from environments.sources.splits import order
from evals.panel import Panel
from evals.verify import FanOut, Verifier, in_turn
from schemas.base import Digest
from schemas.canary import CanaryReport, Drift, DriftKind
from schemas.errors import InfrastructureError, InputError, IntegrityError
from schemas.execution import Environment, Execution, Limits, Stop
from schemas.goal import GoalRecord
from schemas.task import Kind, Split, Task, TaskProof
from schemas.verdict import Status, Verdict
from stages.context import Context
from stages.quarantine import note
from stages.tasks import load_tasks

REPEATS = 6  # of an experiment on a verdict that comes and goes
EACH = 3  # tasks of a kind that are run before a round
_SHAKEN = (
    Change(clock_s=400.55 * DAY, backwards=True, randomness=1, hash_seed=1),
    Change(clock_s=-777.3 * DAY, randomness=2, hash_seed=2),
)
_DATES = (-1, -30, -200, -400.3, -1000, -2000, -4000, -8000, 30, 400)  # days
_MORE = 4  # times a limit, to see whether it is what was too low
_EXTRA = {"PWD", "HOSTNAME", "LC_CTYPE", "SHLVL", "_"}  # variables that engines and interpreters set themselves


@dataclass(frozen=True)
class Subject:
    """One environment and the tasks that stand for it. `pinned`: as the last round had it; None in the first."""

    environment: Environment
    root: Path
    limits: Limits
    tasks: Sequence[Task]
    pinned: Environment | None = None


def default_tasks(seed: int, count: int = EACH) -> list[Task]:
    """For the environment of the embedded families: repairs of a few library functions."""
    names = sorted(functions(), key=lambda name: order(seed, name))[:count]
    return repair_tasks(seed, lambda origin: Split.TRAIN, per_function=1, intact=False, names=names)


def examine(
    subject: Subject, engine: Engine, verifiers: Mapping[Kind, Path], fan_out: FanOut = in_turn, retries: int = 2
) -> CanaryReport:
    """Everything that is to be known about one environment before a round. Raises InfrastructureError only when the
    sandbox itself is broken: that says nothing about the environment. `verifiers`: the bundle of each kind of task."""
    present, drifts = tree_drifts(subject)
    drifts += description_drifts(subject)
    if not drifts:
        drifts = inside_drifts(subject, engine)
    if not drifts:
        with ExitStack() as stack:
            bundles = {kind: stack.enter_context(Bundle(folder)) for kind, folder in verifiers.items()}
            drifts = list(_Judging(subject, engine, bundles, fan_out, retries).drifts())
    return CanaryReport(
        environment=subject.environment.name,
        pinned=(subject.pinned or subject.environment).layer,
        present=present,
        tasks=[task.id for task in subject.tasks],
        drifts=drifts,
    )


def check(ctx: Context, environment: Environment, root: Path) -> list[CanaryReport]:
    """The reports of every environment of the round's spec: one, the image that its tasks run in."""
    spec = ctx.spec
    engine = open_engine(spec.environment.engine, spec.environment.runtime)
    tasks = known_tasks(ctx) or default_tasks(spec.seed)
    subject = Subject(environment, root, spec.environment.limits, tasks, pinned(ctx))
    kinds = {task.kind for task in tasks}
    verifiers = {kind: bundle_folder(ctx, spec.verifier_of.get(kind, spec.verifier)) for kind in sorted(kinds)}
    report = examine(subject, engine, verifiers, ctx.fan_out, ctx.runtime.sandbox_retries)
    if report.quarantined == "tasks":  # kept, so that a later round that looks at others leaves them out too
        named = {drift.task: drift for drift in report.drifts}
        note(ctx.workspace.root, [_refused(task, named[task.id]) for task in tasks if task.id in named], whole=False)
    return [report]


def _refused(task: Task, drift: Drift) -> TaskProof:
    reason, steady = f"canary: {drift.kind}: {drift.detail}", drift.kind in ("task", "limit")
    return TaskProof(
        task_id=task.id, task_digest=task.digest(), gold_passes=0, runs=1, noop_fails=drift.kind != "task",
        wrong_fails=True, agree=steady, reason=reason,
    )  # fmt: skip


def _last(ctx: Context) -> int | None:
    """The latest round of an equal `environment` section: whoever changes the section means to change it."""
    for number in reversed([number for number in ctx.workspace.rounds() if number < ctx.round]):
        goal = ctx.workspace.read(number, "goal")
        if isinstance(goal, GoalRecord) and goal.skipped is None and goal.spec.environment == ctx.spec.environment:
            return number
    return None


def pinned(ctx: Context) -> Environment | None:
    """As that round recorded it."""
    number = _last(ctx)
    return None if number is None else Environment.model_validate(ctx.record("goal", number).environment)


def known_tasks(ctx: Context) -> list[Task]:
    """Some of those that it proved, of each kind that runs anything, others in each round."""
    number = _last(ctx)
    data = None if number is None else ctx.workspace.read(number, "data")
    if data is None or "tasks" not in data.artifacts:
        return []
    chosen: list[Task] = []
    tasks = sorted(load_tasks(ctx, number), key=lambda task: order(ctx.spec.seed + ctx.round, task.id))
    for kind in ("function", "repository"):
        chosen += [task for task in tasks if task.kind == kind and task.made_by != "intact"][:EACH]
    return chosen


def bundle_folder(ctx: Context, ref: str) -> Path:
    """A path is meant from the workspace; names and digests also find the bundles that earlier rounds and rescores stored."""
    here = ctx.workspace.root / ref
    stored = ("artifacts/goal/", "artifacts/rescore/")
    refs = (ctx.workspace.root / item.path for item in ctx.workspace.refs() if item.path.startswith(stored))
    return (
        here
        if (here / "bundle.json").is_file()
        else find(ref, [folder for folder in refs if (folder / "bundle.json").is_file()])
    )


def refuse(reports: Iterable[CanaryReport]) -> None:
    """Raises InfrastructureError that names the first environment that drifted, and its causes."""
    for report in reports:
        if report.quarantined == "environment":
            causes = "; ".join(f"{d.kind} {d.subject}: {d.detail}" for d in report.drifts[:3])
            more = f" and {len(report.drifts) - 3} more" if len(report.drifts) > 3 else ""
            raise InfrastructureError(
                f"environment {report.environment}: quarantined, it drifted: {causes}{more}; `postloop canary` shows all; "
                "restore it (delete the images folder of the cache), or accept it under another environment.name in goal.yaml"
            )


# --- the image, and what it is said to be --------------------------------------------------------------------------


def tree_drifts(subject: Subject) -> tuple[Digest, list[Drift]]:
    """The layer as it is now, and how it differs from the one that it is said to be, by the inventory.

    Where the layer is as it should be and no inventory was kept, one is written: the next drift can then be named.
    """
    environment, root = subject.environment, subject.root
    try:
        present = layer_digest(root)
    except IntegrityError:
        strange = next(
            (path for path in root.rglob("*") if not (path.is_symlink() or path.is_dir() or path.is_file())), None
        )
        if strange is None:
            raise
        name, detail = strange.relative_to(root).as_posix(), "added: neither file, folder nor link"
        return "0" * 64, [Drift(kind="file", subject=name, detail=detail)]
    if present == environment.layer:
        keep(root, environment.layer)
        return present, []
    inventory = load(root, environment.layer)
    seen = "the inventory shows no difference" if inventory else "no inventory was kept, so no file can be named"
    detail = f"layer was {environment.layer[:12]}, now {present[:12]}; {seen}; rebuild it"
    return present, (explain(inventory, root) if inventory else []) or [_image(detail)]


def _image(detail: str) -> Drift:
    return Drift(kind="undetermined", subject="the image", detail=detail)


def description_drifts(subject: Subject) -> list[Drift]:
    """The environment as it is described now against the pin of the last round: a rebuilt image is another one."""
    was, now = subject.pinned, subject.environment
    if was is None or was == now:
        return []
    drifts = [*_pair("interpreter", {"python": was.python}, {"python": now.python})]
    drifts += _pair("package", was.packages, now.packages)
    drifts += _pair("variable", was.variables, now.variables)
    if not drifts:
        drifts = [
            _image(f"layer was {was.layer[:12]}, now {now.layer[:12]}, of the same packages: built by another host")
        ]
    return drifts


def _pair(kind: DriftKind, was: dict[str, str], now: dict[str, str]) -> Iterator[Drift]:
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            detail = f"was {was.get(name, 'not set')}, now {now.get(name, 'not set')}"
            yield Drift(kind=kind, subject=name, detail=detail[:300])


# --- from the inside -----------------------------------------------------------------------------------------------

_LOOK = """
import importlib.metadata, json, os, sys
size = os.statvfs("/work")
print(json.dumps({
    "python": ".".join(map(str, sys.version_info[:3])), "variables": dict(os.environ),
    "disk_mb": size.f_blocks * size.f_frsize >> 20,
    "packages": {item.metadata["Name"]: item.version for item in importlib.metadata.distributions() if item.metadata["Name"]},
    "left": [os.path.join(top, name) for top in ("/work", "/tmp", "/dev/shm") for name in sorted(os.listdir(top))],
}))
"""


def inside_drifts(subject: Subject, engine: Engine) -> list[Drift]:
    """How the sandbox looks from the inside, against what its description and limits promise."""
    environment, limits = subject.environment, subject.limits
    look = Execution(argv=["python", "-s", "-P", "-c", _LOOK], files={})
    try:
        result = engine.run(subject.root, environment, look, limits).result
    except InputError as error:  # the engine itself refuses: the image lacks what every execution needs
        return [Drift(kind="sandbox", subject="python", detail=str(error)[:300])]
    if result.stop is not Stop.EXIT or result.exit_code != 0:
        if result.stop is not Stop.EXIT:
            return [_of_limit(result.stop.value, limits, "an interpreter that does nothing")]
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        return [Drift(kind="sandbox", subject="python", detail=f"exit {result.exit_code}: {last}"[:300])]
    seen = json.loads(result.stdout)
    variables = {name: value for name, value in seen["variables"].items() if name not in _EXTRA}
    wanted = {name: value for name, value in environment.variables.items() if name not in _EXTRA}
    drifts = [*_pair("interpreter", {"python": environment.python}, {"python": seen["python"]})]
    drifts += _pair("variable", wanted, variables)
    drifts += _pair("package", _canonical(environment.packages), _canonical(seen["packages"]))
    drifts += [Drift(kind="left over", subject=path, detail="was there before anything ran") for path in seen["left"]]
    if seen["disk_mb"] < limits.disk_mb:
        detail = f"declared {limits.disk_mb} MiB, the sandbox has {seen['disk_mb']}"
        drifts.append(Drift(kind="limit", subject="disk_mb", detail=detail))
    return drifts


def _canonical(packages: dict[str, str]) -> dict[str, str]:
    return {name.lower().replace("_", "-").replace(".", "-"): version for name, version in packages.items()}


# --- the verdicts --------------------------------------------------------------------------------------------------


class _Judging:
    """Verdicts of the canary tasks under changing conditions."""

    def __init__(
        self, subject: Subject, engine: Engine, bundles: Mapping[Kind, Bundle], fan_out: FanOut, retries: int
    ) -> None:
        self.subject, self.engine, self.bundles, self.fan_out, self.retries = subject, engine, bundles, fan_out, retries

    def judge(
        self, items: list[tuple[Task, dict[str, str]]], change: Change = NOTHING, repeat: int = 0
    ) -> list[Verdict]:
        s = self.subject
        tasks = [(_backwards(task), outcome) if change.backwards else (task, outcome) for task, outcome in items]
        engine: Engine = Changed(self.engine, change) if change != NOTHING else self.engine
        own = {
            kind: Verifier(bundle, s.environment, s.root, engine, s.limits, "training", self.retries)
            for kind, bundle in self.bundles.items()
        }
        verdicts = Panel(next(iter(own.values())), own).judge_many(tasks, self.fan_out, repeat)
        broken = next((verdict.reason for verdict in verdicts if verdict.status is Status.ERROR), None)
        if broken is not None:
            raise InfrastructureError(f"canary of {s.environment.name}: the sandbox failed: {broken}")
        return verdicts

    def drifts(self) -> Iterator[Drift]:
        """All tasks side by side; experiments only for those whose verdicts are not as they should be."""
        golds = [(task, task.gold) for task in self.subject.tasks]
        first, again = self.judge(golds), self.judge(golds, repeat=1)
        noop = self.judge([(task, {}) for task in self.subject.tasks])
        shaken = [self.judge(golds, change) for change in _SHAKEN]
        for index, task in enumerate(self.subject.tasks):
            if first[index].status is Status.UNSCORED:
                continue  # a verifier of the spec's that judges no such task: nothing is known, nothing has drifted
            if noop[index].passed:
                yield _drift(task, "task", "the start tree passes: its tests no longer tell right from wrong")
            elif all(row[index].passed for row in (first, again, *shaken)) and _seen(first[index]) == _seen(
                again[index]
            ):
                continue
            elif not self.steady(task, NOTHING, first[index], again[index]):
                yield self.why_unsteady(task)
            elif not first[index].passed:
                yield self.why_failing(task, first[index])
            else:
                yield self.why_fragile(task)

    def passes(self, task: Task, change: Change) -> bool:
        return bool(self.judge([(task, task.gold)], change)[0].passed)

    def steady(self, task: Task, change: Change, *known: Verdict) -> bool:
        """REPEATS verdicts of gold are the same, and the same as those that are known."""
        fresh = [self.judge([(task, task.gold)], change, repeat)[0] for repeat in range(2, 2 + REPEATS)]
        return len({_seen(verdict) for verdict in (*known, *fresh)}) == 1

    def why_unsteady(self, task: Task) -> Drift:
        """What makes the repeats agree when it is held still."""
        stills: list[tuple[DriftKind, Change, str]] = [
            ("randomness", Change(randomness=1), "repeats differ, and agree with seeded random numbers"),
            ("hash seed", Change(hash_seed=0), "repeats differ, and agree with one hash seed"),
            ("clock", Change(freeze=1_700_000_000.0), "repeats differ, and agree with a clock that stands"),
        ]
        for kind, change, detail in stills:
            if self.steady(task, change):
                return _drift(task, kind, detail)
        return _drift(task, "undetermined", "repeats differ, and neither clock nor random numbers nor hash seed is why")

    def why_failing(self, task: Task, verdict: Verdict) -> Drift:
        """The one change under which gold passes again."""
        for name in _limits_to_try(verdict):
            set_to = getattr(self.subject.limits, name)
            if self.passes(task, Change(limits={name: set_to * _MORE})):
                return _drift(task, "limit", f"gold fails with {name} {set_to:g}, passes with {set_to * _MORE:g}", name)
        if verdict.limit_hit in ("cpu", "wall"):  # each further try would take as long
            return _drift(
                task, "undetermined", f"gold hits the {verdict.limit_hit} limit, with {_MORE} times as much too"
            )
        for days in _DATES:
            if self.passes(task, Change(clock_s=days * DAY)):
                return _drift(
                    task, "clock", f"gold fails today and passes {abs(days):g} days {'ago' if days < 0 else 'ahead'}"
                )
        if self.passes(task, Change(backwards=True)):
            return _drift(task, "order", "gold fails, and passes with the tests in the opposite order")
        for seed in range(REPEATS):
            if self.passes(task, Change(hash_seed=seed)):
                return _drift(task, "hash seed", f"gold fails, and passes with hash seed {seed}")
        detail = next(
            (f"{check.name}: {check.detail}" for check in verdict.checks if not check.passed), "no check failed"
        )
        told = "; ".join([*(violation.kind for violation in verdict.violations), detail])
        return _drift(task, "undetermined", f"gold fails under every condition that was tried; {told}")

    def why_fragile(self, task: Task) -> Drift:
        """The one change that makes gold fail."""
        for change in _SHAKEN:
            singles: list[tuple[DriftKind, Change, str]] = [
                (
                    "clock",
                    Change(clock_s=change.clock_s),
                    f"gold passes today and fails {change.clock_s / DAY:+.0f} days from it",
                ),
                ("order", Change(backwards=True), "gold passes, and fails with the tests in the opposite order"),
                (
                    "randomness",
                    Change(randomness=change.randomness),
                    "gold passes, and fails with other random numbers",
                ),
                (
                    "hash seed",
                    Change(hash_seed=change.hash_seed),
                    f"gold passes, and fails with hash seed {change.hash_seed}",
                ),
            ]
            for kind, single, detail in singles:
                if not self.passes(task, single):
                    return _drift(task, kind, detail)
        return _drift(
            task, "undetermined", "gold fails on another date, in another order and with other random numbers together"
        )


def _seen(verdict: Verdict) -> str:
    return verdict.model_copy(update={"repeat": 0}).digest()


def _backwards(task: Task) -> Task:
    """The same tests the other way round; test files are turned by the change itself."""
    return task.model_copy(update={"hidden": task.hidden[::-1], "f2p": task.f2p[::-1], "p2p": task.p2p[::-1]})


_LIMITS = {"cpu": "cpu_s", "wall": "wall_s", "memory": "memory_mb", "output": "output_kb", "signal": "memory_mb"}


def _limits_to_try(verdict: Verdict) -> list[str]:
    """The limit that the verdict names, else each: a refused process or a full disk looks like a failed test."""
    hit = _LIMITS.get(verdict.limit_hit or "")
    return [hit] if hit else ["pids", "disk_mb", "memory_mb", "cpu_s", "wall_s", "output_kb"]


def _of_limit(stop: str, limits: Limits, what: str) -> Drift:
    name = _LIMITS.get(stop, "memory_mb")
    return Drift(
        kind="limit", subject=name, detail=f"{getattr(limits, name):g} is too little for {what} (ended by {stop})"
    )


def _drift(task: Task, kind: DriftKind, detail: str, subject: str | None = None) -> Drift:
    return Drift(kind=kind, subject=subject or task.id, detail=detail[:300], task=task.id)

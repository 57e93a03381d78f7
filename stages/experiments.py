"""The experiments of the ladder: each runs something again and adds what it found to the evidence of a failure.

L0 scores the outcome again and the task's known solution beside it; L1 executes the recorded actions, and the known
solution, through the harness; L2 lets the policy go on; L3 swaps one pin: the noise, the setting, the checkpoint, the
image. Each is one function over the failures that ask for it, so that sandboxes and batches are filled. A policy is
asked under the noise of the failures, but where noise is what is swapped; the known solution under none. What cannot be
run says why, and its fields stay empty.

Not covered: swapping a teacher or a judge model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from environments.bundles import Bundle
from environments.image import layer_digest
from environments.restored import restore_image
from evals.chain import broken_link, round_trips
from evals.evidence import tally
from evals.panel import Judge
from evals.rewards import price
from evals.shown import answer_agrees, shown_parts, shown_task
from evals.verify import Verifier
from schemas.attribution import FILLS, RUNGS, AttributionSpec, Experiment, ExperimentName
from schemas.base import Digest
from schemas.bucket import Evidence
from schemas.errors import InputError, PostloopError
from schemas.goal import GoalRecord
from schemas.task import Task
from schemas.trajectory import Attempt, Noise, Purpose, Trajectory
from schemas.verdict import Status, Verdict
from stages.equipment import Equipment
from stages.models import template_of
from stages.replay import course, forced
from stages.rollout import RolloutRequest, Setting, rollout
from stages.samplers import Sampler
from stages.samplers.recorded_sampler import RecordedSampler
from stages.samplers.scripted_sampler import ScriptedSampler
from stages.samplers.tokenization import Tokenization

CLEAR = 0.1  # one-sided p of Fisher's exact test at which one checkpoint is said to do what another does not
SPEAKS = ("fenced", "tools")  # harnesses whose protocol the known solution can be written in
MOVED = 1e-7  # relative change of the weights below which nothing was learned


@dataclass(frozen=True)
class Policy:
    """A checkpoint that can be asked again. `stage`: which one made it."""

    stage: str  # base | sft | rl
    weights: Digest
    folder: Callable[[], Path]


@dataclass
class Lab:
    """What experiments are made with. `tasks` by digest; `before`: the policies that this one came from, oldest first."""

    bench: Equipment
    tasks: Mapping[str, Task]
    setting: Setting
    training: Setting
    spec: AttributionSpec
    policy: Policy | None = None
    before: Sequence[Policy] = ()
    passes: Mapping[str, Sequence[Attempt]] = field(default_factory=dict)  # task id -> its recorded passes
    others: Sequence[Bundle] = ()
    today: Judge | None = None  # the verifier of today where it is another than the recorded one
    noise: Noise | None = None  # that the failures were made under
    _tokens: dict[str, Tokenization] = field(default_factory=dict)

    @property
    def goal(self) -> GoalRecord:
        return self.bench.goal

    def tokens(self, folder: Path) -> Tokenization:
        return self._tokens.setdefault(str(folder), Tokenization(folder))

    def folder(self) -> Path:
        """Of the policy that made the failures; its tokenizer is all that most experiments need."""
        if self.policy is None:
            raise InputError("the policy of this attempt is not among the checkpoints of its round")
        return self.policy.folder()


@dataclass
class Case:
    """One failure on the ladder."""

    attempt: Attempt
    evidence: Evidence
    experiments: list[Experiment] = field(default_factory=list)

    @property
    def trajectory(self) -> Trajectory:
        return self.attempt.trajectory

    def learn(self, name: ExperimentName, said: str, found: Mapping[str, Any] | None = None, **cost: Any) -> None:
        """Fields of this experiment only; those that it did not find are None, which matches nothing."""
        fields = {key: (found or {}).get(key, getattr(self.evidence, key)) for key in FILLS[name]}
        measured = sorted({*self.evidence.measured, name})
        self.evidence = self.evidence.model_copy(update={**fields, "measured": measured})
        self.experiments.append(Experiment(name=name, rung=RUNGS[name], said=said, **cost))

    def count(self, tried: Tried) -> None:
        """More attempts of the same policy under the same conditions count with those of the log."""
        n, c = self.evidence.task_attempts + tried.of, self.evidence.task_passes + tried.passes
        self.evidence = self.evidence.model_copy(update=tally(n, c))

    def skip(self, name: ExperimentName, why: str) -> None:
        """It can never be made here: its question is closed."""
        self.learn(name, "not run", impossible=why)

    def broken(self, name: ExperimentName, why: str, **cost: Any) -> None:
        """The machine's failure: nothing is known, and the question stays open."""
        self.experiments.append(Experiment(name=name, rung=RUNGS[name], said="broken", impossible=why, **cost))


Run = Callable[[Lab, Sequence[Case]], None]


def task_of(lab: Lab, case: Case) -> Task:
    return lab.tasks[case.trajectory.task]


def by_task(cases: Iterable[Case]) -> dict[Digest, list[Case]]:
    """Failures of one task share what is found out about the task; the first one bears the cost."""
    found: dict[Digest, list[Case]] = {}
    for case in cases:
        found.setdefault(case.trajectory.task, []).append(case)
    return found


# --- L0: score again


def rescore(lab: Lab, cases: Sequence[Case]) -> None:
    items = [(task_of(lab, case), dict(case.trajectory.outcome)) for case in cases]
    rounds = [
        lab.bench.verifier.judge_many(items, lab.bench.context.fan_out, repeat=n + 1) for n in range(lab.spec.repeats)
    ]
    for index, case in enumerate(cases):
        again = [row[index] for row in rounds]
        if why := next((why for verdict in again if (why := unsure(verdict, case.attempt.verdict))), None):
            case.broken("rescore", why, executions=len(again))
            continue
        differing = [verdict for verdict in again if not alike(case.attempt.verdict, verdict)]
        said = "the same verdict" if not differing else f"{word(case.attempt.verdict)}, now {word(differing[0])}"
        case.learn("rescore", said, {"rescored": "flips" if differing else "same"}, executions=len(again))


def unsure(now: Verdict, recorded: Verdict | None = None) -> str | None:
    """Why a verdict of now says nothing: infrastructure broke it, or it ended at the wall limit, which the machine decides.

    One that ended there when it was recorded too is no other verdict.
    """
    if now.status is Status.ERROR:
        return f"infrastructure broke it: {now.reason}"
    if now.limit_hit == "wall" and (recorded is None or recorded.limit_hit != "wall"):
        return "judged now it ended at the wall limit: the machine is slow"
    return None


def alike(one: Verdict, other: Verdict) -> bool:
    """Equal in what they say of the outcome; the words of a detail may differ."""
    return _says(one) == _says(other)


def _says(verdict: Verdict) -> tuple[Any, ...]:
    checks = [(check.name, check.passed) for check in verdict.checks]
    return verdict.status, verdict.passed, checks, sorted({violation.kind for violation in verdict.violations})


def word(verdict: Verdict) -> str:
    if verdict.status is not Status.SCORED:
        return verdict.status.value
    failed = [check.name for check in verdict.checks if not check.passed]
    return "passed" if verdict.passed else f"failed {', '.join(failed[:3]) or 'by a violation'}"


def audit(lab: Lab, cases: Sequence[Case]) -> None:
    """Where none was recorded."""
    if lab.bench.audit is None:
        for case in cases:
            case.skip("audit", "no audit verifier is declared")
        return
    items = [(task_of(lab, case), dict(case.trajectory.outcome)) for case in cases]
    for case, second in zip(cases, lab.bench.audit.judge_many(items, lab.bench.context.fan_out), strict=True):
        if why := unsure(second):
            case.broken("audit", why, executions=1)
        elif second.status is not Status.SCORED:
            case.skip("audit", f"the audit gave no score: {second.reason}")
        else:
            differs = second.passed != case.attempt.verdict.passed
            case.learn("audit", f"the audit says {word(second)}", {"audit_differs": differs}, executions=1)


def current(lab: Lab, cases: Sequence[Case]) -> None:
    if lab.today is None:
        for case in cases:
            case.learn("current", "today's verifier is the recorded one", {"current_differs": False})
        return
    items = [(task_of(lab, case), dict(case.trajectory.outcome)) for case in cases]
    for case, now in zip(cases, lab.today.judge_many(items, lab.bench.context.fan_out), strict=True):
        if why := unsure(now, case.attempt.verdict):
            case.broken("current", why, executions=1)
        else:
            found = {"current_differs": _decides(case.attempt.verdict) != _decides(now)}
            case.learn("current", f"today's verifier says {word(now)}", found, executions=1)


def _decides(verdict: Verdict) -> tuple[Any, ...]:
    """What another verifier may not change: it may well have more checks, or other names for them."""
    return verdict.status, verdict.passed, sorted({violation.kind for violation in verdict.violations})


def gold(lab: Lab, cases: Sequence[Case]) -> None:
    """The task's known solution and its start tree, judged now; the solution by the audit verifier too."""
    groups = by_task(cases)
    known = {digest: group for digest, group in groups.items() if lab.tasks[digest].gold}
    tasks = [lab.tasks[digest] for digest in known]
    fan_out = lab.bench.context.fan_out
    # Judged anew: a verdict of before would say what the environment was then.
    solved = lab.bench.verifier.judge_many([(task, task.gold) for task in tasks], fan_out, repeat=1)
    started = lab.bench.verifier.judge_many([(task, {}) for task in tasks], fan_out, repeat=1)
    audits: list[Verdict | None] = [None] * len(tasks)
    if lab.bench.audit is not None:
        audits = list(lab.bench.audit.judge_many([(task, task.gold) for task in tasks], fan_out, repeat=1))
    for digest, group in groups.items():
        if digest not in known:
            _all(group, lambda case: case.skip("gold", "the task names no known solution"))
    for task, group, one, start, second in zip(tasks, known.values(), solved, started, audits, strict=True):
        if why := next((unsure(v) for v in (one, start) if v.status is Status.ERROR), None):
            _all(group, lambda case, why=why: case.broken("gold", why))  # type: ignore[misc]
            continue
        found = {
            "gold_passes": None if one.limit_hit == "wall" else one.passed,
            "gold_waits": one.limit_hit == "wall",
            "gold_audited": second.passed if second is not None else None,
            "start_fails": None if task.made_by == "intact" or start.passed is None else not start.passed,
        }
        said = f"known solution: {word(one)}" + (f", audit {word(second)}" if second else "")
        _share(group, "gold", f"{said}; start tree: {word(start)}", found, executions=2 + (second is not None))


def shown(lab: Lab, cases: Sequence[Case]) -> None:
    groups = by_task(cases)
    judged = {digest: shown_task(lab.tasks[digest]) for digest in groups}
    items = [(task, task.gold) for task in judged.values() if task is not None and task.gold]
    verdicts = iter(lab.bench.verifier.judge_many(items, lab.bench.context.fan_out))
    for digest, group in groups.items():
        task = judged[digest]
        if task is not None and task.gold:
            verdict = next(verdicts)
            if why := unsure(verdict):
                _all(group, lambda case, why=why: case.broken("shown", why))  # type: ignore[misc]
                continue
            holds = verdict.passed or not _contradicted(lab, lab.tasks[digest])
            said = f"the known solution on what is shown: {word(verdict)}"
            said += (
                "" if holds == verdict.passed else ", by examples that the start tree satisfies: a report of the fault"
            )
            _share(group, "shown", said, {"shown_holds": holds}, executions=1)
            continue
        agrees = answer_agrees(lab.tasks[digest])
        if agrees is None:
            _all(group, lambda case: case.skip("shown", "nothing that the task shows can be reckoned out"))
        else:
            said = f"the question reckoned out {'gives' if agrees else 'does not give'} the answer"
            _share(group, "shown", said, {"shown_holds": agrees})


def _contradicted(lab: Lab, task: Task) -> bool:
    """Whether a visible case contradicts the known solution, or an example that the start tree does not satisfy either."""
    visible, alone = shown_parts(task)
    asked = [(part, task.gold) for part in ([visible] if visible else [])]
    asked += [(part, outcome) for part in alone for outcome in (task.gold, {})]
    verdicts = lab.bench.verifier.judge_many(asked, lab.bench.context.fan_out)
    rest = verdicts[len(asked) - 2 * len(alone) :]
    shown = verdicts[: len(asked) - len(rest)]
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return any(v.passed is False for v in shown) or any(
        gold.passed is False and start.passed is False for gold, start in pairs
    )


def pricing(lab: Lab, cases: Sequence[Case]) -> None:
    """Every pass of the task, and this very course with a pass at its end, must be worth more than the failure."""
    rules = lab.goal.spec.rewards
    for case in cases:
        attempt, conduct = case.attempt, case.trajectory.conduct
        if attempt.verdict.passed or attempt.reward.value is None:
            case.skip("pricing", "it has no reward of a failure")
            continue
        value = price(case.trajectory.id, attempt.verdict, conduct, rules).value
        passed = attempt.verdict.model_copy(
            update={"passed": True, "score": 1.0, "violations": [], "checks": [
                check.model_copy(update={"passed": True}) for check in attempt.verdict.checks
            ]}
        )  # fmt: skip
        worth = {case.trajectory.id: price("", passed, conduct, rules).value}
        for other in lab.passes.get(case.trajectory.task_id, ()):
            worth[other.trajectory.id] = price("", other.verdict, other.trajectory.conduct, rules).value
        least = min(worth, key=lambda name: worth[name] or 0.0)
        found = {"rules_agree": (worth[least] or 0.0) > (value or 0.0)}
        case.learn("pricing", f"it is worth {value:g}, the cheapest pass {worth[least]:g} ({least})", found)


def tokenizer(lab: Lab, cases: Sequence[Case]) -> None:
    """Whether tokens give back their text, whether the template is the base's, and the edit chain."""
    try:
        folder = lab.folder()
        tokens, same = lab.tokens(folder), _same_template(lab, folder)
    except PostloopError as error:
        for case in cases:
            chain = broken_link(case.trajectory, task_of(lab, case).files, None)
            case.learn("tokenizer", f"first link: {chain or 'none'}", {"chain": chain}, impossible=str(error))
        return
    for case in cases:
        chain = broken_link(case.trajectory, task_of(lab, case).files, tokens)
        found = {"round_trip": round_trips(case.trajectory, tokens), "template_same": same, "chain": chain}
        said = f"text comes back: {found['round_trip']}; template of the base: {same}; first link: {chain or 'none'}"
        case.learn("tokenizer", said, found)


def _same_template(lab: Lab, folder: Path) -> bool | None:
    base = next((policy for policy in lab.before if policy.stage == "base"), None)
    return template_of(folder) == template_of(base.folder()) if base is not None else None


# --- L1: execute again


def image(lab: Lab, cases: Sequence[Case]) -> None:
    """The tree that attempts ran in against its pin; where it is another, the outcome is judged in both."""
    pinned, root = lab.goal.environment, lab.bench.runner.root
    now = layer_digest(root)
    if now == pinned.layer:
        for case in cases:
            case.learn("image", f"layer {now[:12]}, as pinned", {"image_drifted": False})
        return
    try:
        kept = _kept_judge(lab)
    except PostloopError as error:
        for case in cases:
            case.learn(
                "image", f"layer {now[:12]}, pinned {pinned.layer[:12]}", {"image_drifted": True}, impossible=str(error)
            )
        return
    items = [(task_of(lab, case), dict(case.trajectory.outcome)) for case in cases]
    golds = [(task, task.gold or outcome) for task, outcome in items]
    fan_out = lab.bench.context.fan_out
    here = lab.bench.verifier.judge_many([*items, *golds], fan_out, repeat=9)
    there = kept.judge_many([*items, *golds], fan_out, repeat=9)
    for index, case in enumerate(cases):
        pairs = [(here[i], there[i]) for i in (index, index + len(cases))]
        if why := next((why for pair in pairs for v in pair if (why := unsure(v, case.attempt.verdict))), None):
            case.broken("image", why, executions=4)
            continue
        differs = [pair for pair in pairs if not alike(*pair)]
        said = f"layer {now[:12]}, pinned {pinned.layer[:12]}: " + (
            f"{word(differs[0][0])} here, {word(differs[0][1])} in the pinned one"
            if differs
            else "the same verdicts in both"
        )
        case.learn("image", said, {"image_drifted": bool(differs)}, executions=4)


def _kept_judge(lab: Lab) -> Judge:
    """The training verifier in the kept image. Raises what restoring raises."""
    ctx, goal, panel = lab.bench.context, lab.goal, lab.bench.verifier
    if "image" not in goal.artifacts:
        raise InputError("the round kept no image to compare with")
    layer = ctx.workspace.open_artifact(goal.artifacts["image"]) / "layer.tar"
    environment, root = restore_image(ctx.cache / "images", goal.environment, layer)
    return replace(
        panel,
        verifier=_elsewhere(lab, panel.verifier, environment, root),
        own={kind: _elsewhere(lab, own, environment, root) for kind, own in panel.own.items()},
    )


def _elsewhere(lab: Lab, verifier: Verifier, environment: Any, root: Path) -> Verifier:
    engine = lab.bench.runner.engine
    return Verifier(verifier.bundle, environment, root, engine, verifier.limits, verifier.role)


def replay(lab: Lab, cases: Sequence[Case]) -> None:
    """The recorded actions, `repeats` times."""
    spec, bench = lab.goal.spec, lab.bench
    setting = Setting(sampling=spec.sampling, budgets=spec.budgets, safety=spec.safety, batch=256)
    able = [case for case in cases if case.trajectory.turns]
    _all([case for case in cases if not case.trajectory.turns], lambda case: case.skip("replay", "it has no turn"))
    runs = [
        rollout(
            RecordedSampler(), bench.harness, bench.runner, [forced(lab.tasks, case.trajectory) for case in able],
            setting, bench.context.fan_out, harness_of=bench.harness_of,
        )[0]
        for _ in range(lab.spec.repeats)
    ]  # fmt: skip
    for index, case in enumerate(able):
        again = [run[index] for run in runs]
        if broken := next((one for one in again if one.status == "error"), None):
            case.broken("replay", f"infrastructure broke it: {broken.reason}")
            continue
        firsts = [course(case.trajectory, one, spec.environment.volatile) for one in again]
        now = {(first.where, first.now) for first in firsts if first is not None}
        found = "same" if not now else "drifted" if len(now) == 1 and None not in firsts else "unstable"
        said = "each answer as recorded" if not now else f"{found}: {next(f for f in firsts if f).where}"
        case.learn("replay", said, {"replayed": found}, executions=sum(len(one.turns) for one in again))


def gold_path(lab: Lab, cases: Sequence[Case]) -> None:
    """The known solution, written through the harness under the limits of the failures."""
    groups, able = by_task(cases), list[Task]()
    for digest, group in groups.items():
        task = lab.tasks[digest]
        bundle = lab.bench.harness_of.get(task.kind, lab.bench.harness)
        if not task.gold or bundle.name not in SPEAKS:
            why = (
                f"harness {bundle.name} has a protocol of its own" if task.gold else "the task names no known solution"
            )
            _all(group, lambda case, why=why: case.skip("gold_path", why))  # type: ignore[misc]
        else:
            able.append(task)
    if not able:
        return
    sampler = ScriptedSampler(_any_folder(lab), {task.id: task for task in able}, "gold")
    sampling = lab.setting.sampling.model_copy(update={"engine": "scripted:gold"})
    setting = replace(lab.setting, sampling=sampling)
    asked = lab.bench.requests(able, 1, Purpose.ATTRIBUTION, sampler.policy)
    for task, attempt in zip(able, lab.bench.attempt(sampler, asked, setting=setting), strict=True):
        found = reached(attempt)
        said = f"the known solution ends: {attempt.trajectory.stop}, {word(attempt.verdict)}"
        group = groups[task.digest()]
        if found is None:
            why = unsure(attempt.verdict) or f"infrastructure broke it: {attempt.verdict.reason}"
            _all(group, lambda case, why=why: case.broken("gold_path", why))  # type: ignore[misc]
        else:
            _share(group, "gold_path", said, {"gold_reaches": found}, executions=len(attempt.trajectory.turns))


def reached(attempt: Attempt) -> str | None:
    """How far a known solution got; None when the machine broke it or was too slow for it."""
    trajectory, conduct = attempt.trajectory, attempt.trajectory.conduct
    if attempt.verdict.status is not Status.SCORED or unsure(attempt.verdict):
        return None
    if attempt.verdict.passed:
        return "passes"
    if conduct.truncated_turns or trajectory.stop in ("token_limit", "turn_limit", "call_limit"):
        return "limit"
    if conduct.invalid_calls:
        return "parse"
    return "tool" if any(turn.tool_error for turn in trajectory.turns) else "fails"


def _any_folder(lab: Lab) -> Path:
    """A tokenizer to write with: the policy's, else the base's."""
    policy = lab.policy or next(iter(lab.before), None)
    if policy is None:
        raise InputError("no checkpoint of the round is at hand")
    return policy.folder()


def _share(group: Sequence[Case], name: ExperimentName, said: str, found: Mapping[str, Any], **cost: Any) -> None:
    for place, case in enumerate(group):
        case.learn(name, said, found, **({} if place else cost))


def _share_passes(
    group: Sequence[Case], name: ExperimentName, said: str, field: str, now: Tried, tries: int = 1
) -> None:
    """What k attempts under one other condition came to, and whether that is clearly more than the policy's own share.

    `tries`: conditions of which this is the best, so that the best of many is not called clear by chance (Bonferroni).
    """
    if not now.of:
        return _all(group, lambda case: case.broken(name, "infrastructure: every attempt was lost", **now.cost()))
    for place, case in enumerate(group):
        own = Tried(case.evidence.task_passes, 0, case.evidence.task_attempts, ())
        found = {f"{field}_passes": now.passes, f"{field}_helps": _clearly_fewer(now, own, "passes", CLEAR / tries)}
        case.learn(name, said, found, **({} if place else now.cost()))
    return None


def _all(cases: Iterable[Case], do: Callable[[Case], None]) -> None:
    for case in cases:
        do(case)


# --- L2 and L3: a policy samples


def _attempts(
    lab: Lab, policy: Policy, asked: Sequence[RolloutRequest], setting: Setting, bench: Equipment | None = None
) -> list[Attempt]:
    bench = bench or lab.bench
    sampler = _sampler(lab, policy)
    return bench.attempt(sampler, asked, setting=setting)


def _sampler(lab: Lab, policy: Policy) -> Sampler:
    tasks = {task.id: task for task in lab.tasks.values()}
    return lab.bench.sampler(policy.folder(), tasks)


def _requests(lab: Lab, tasks: Sequence[Task], policy: Policy, salt: str, k: int, **more: Any) -> list[RolloutRequest]:
    """`k` attempts of each task on seeds of their own: an experiment never repeats what it explains. `more`: of the
    request, which is under the noise of the failures unless it says otherwise."""
    from stages.equipment import seed_for

    seed, more = lab.goal.spec.seed, {"noise": lab.noise, **more}
    return [
        RolloutRequest(
            task=task, seed=seed_for(seed, Purpose.ATTRIBUTION, f"{policy.weights} {salt}", task, i), group=task.id,
            purpose=Purpose.ATTRIBUTION, **more,
        )
        for task in tasks
        for i in range(k)
    ]  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """What k attempts of one task came to. `parsed`: without a turn that did not parse."""

    passes: int
    parsed: int
    of: int
    attempts: Sequence[Attempt]

    @classmethod
    def of_attempts(cls, attempts: Sequence[Attempt]) -> Tried:
        scored = [a for a in attempts if a.verdict.status is Status.SCORED]
        passes = sum(bool(a.verdict.passed) for a in scored)
        parsed = sum(not a.trajectory.conduct.invalid_calls for a in scored)
        return cls(passes, parsed, len(scored), attempts)

    def cost(self) -> dict[str, Any]:
        turns = [turn for a in self.attempts for turn in a.trajectory.turns]
        return {
            "attempts": len(self.attempts),
            "executions": len(self.attempts),
            "tokens": sum(len(turn.prompt_ids) + len(turn.completion_ids) for turn in turns),
            "trajectories": [a.trajectory.id for a in self.attempts],
        }


def _tried(asked: Sequence[RolloutRequest], attempts: Sequence[Attempt]) -> dict[Digest, Tried]:
    found: dict[Digest, list[Attempt]] = {}
    for request, attempt in zip(asked, attempts, strict=True):
        found.setdefault(request.task.digest(), []).append(attempt)
    return {digest: Tried.of_attempts(own) for digest, own in found.items()}


def _tasks(lab: Lab, cases: Sequence[Case]) -> list[Task]:
    return [lab.tasks[digest] for digest in by_task(cases)]


def again(lab: Lab, cases: Sequence[Case]) -> None:
    """As many more attempts of the same policy as `k` lacks."""
    if lab.policy is None:
        return _all(cases, lambda case: case.skip("again", "its policy is not at hand"))
    groups = by_task(cases)
    asked = [
        request
        for digest, group in groups.items()
        for request in _requests(
            lab, [lab.tasks[digest]], lab.policy, "again", max(1, lab.spec.k - group[0].evidence.task_attempts)
        )
    ]
    tried = _tried(asked, _attempts(lab, lab.policy, asked, lab.setting))
    for digest, group in groups.items():
        before, now = group[0].evidence, tried[digest]
        n, c = before.task_attempts + now.of, before.task_passes + now.passes
        _share(group, "again", f"{now.passes} of {now.of} more attempts pass", tally(n, c), **now.cost())
    return None


def hint(lab: Lab, cases: Sequence[Case]) -> None:
    """With the place named, never the content."""
    groups = by_task(cases)
    hints = {digest: hint_of(lab.tasks[digest]) for digest in groups}
    for digest, group in groups.items():
        if hints[digest] is None or lab.policy is None:
            _all(group, lambda case: case.skip("hint", "the task has no place to name, or its policy is not at hand"))
    if lab.policy is None:
        return
    asked = [
        request
        for digest, text in hints.items()
        if text is not None
        for request in _requests(lab, [lab.tasks[digest]], lab.policy, "hint", lab.spec.k, hint=text)
    ]
    tried = _tried(asked, _attempts(lab, lab.policy, asked, lab.setting)) if asked else {}
    for digest, now in tried.items():
        said = f"{now.passes} of {now.of} pass when told: {hints[digest]}"
        _share_passes(groups[digest], "hint", said, "hinted", now)


def hint_of(task: Task) -> str | None:
    """Lines of the start tree that the known solution changes, by number; None where that says nothing."""
    import difflib

    for path, text in sorted(task.gold.items()):
        before = task.files.get(path)
        if before is None or before == text:
            continue
        blocks = difflib.SequenceMatcher(None, before.splitlines(), text.splitlines(), autojunk=False).get_opcodes()
        lines = [start + 1 for tag, start, *_ in blocks if tag != "equal"]
        return f"look at line {', '.join(map(str, lines[:4]))} of {path}"
    return None


def prefix(lab: Lab, cases: Sequence[Case]) -> None:
    """From before the first bad turn, on the recorded actions up to it."""
    able = [case for case in cases if lab.policy is not None and (case.evidence.first_bad_turn or 0) >= 1]
    _all([c for c in cases if c not in able], lambda case: case.skip("prefix", "its first turn is the bad one"))
    if lab.policy is None or not able:
        return
    asked = [
        request
        for case in able
        for request in _requests(
            lab, [task_of(lab, case)], lab.policy, f"prefix {case.trajectory.id}", lab.spec.k,
            parent=case.trajectory, prefix_turn=case.evidence.first_bad_turn,
        )
    ]  # fmt: skip
    attempts = _attempts(lab, lab.policy, asked, lab.setting)
    for index, case in enumerate(able):
        now = Tried.of_attempts(attempts[index * lab.spec.k : (index + 1) * lab.spec.k])
        said = f"{now.passes} of {now.of} pass from turn {(case.evidence.first_bad_turn or 0) + 1} on"
        _share_passes([case], "prefix", said, "prefix", now)


def harness(lab: Lab, cases: Sequence[Case]) -> None:
    """The same policy and task, under each of the other harnesses; the best of them counts."""
    if not lab.others or lab.policy is None:
        return _all(cases, lambda case: case.skip("harness", "backflow.attribution.harnesses names no other one"))
    best: dict[Digest, tuple[Tried, str]] = {}
    for bundle in lab.others:
        bench = replace(lab.bench, harness=bundle, harness_of={})
        asked = _requests(lab, _tasks(lab, cases), lab.policy, f"harness {bundle.digest}", lab.spec.k)
        for digest, now in _tried(asked, _attempts(lab, lab.policy, asked, lab.setting, bench)).items():
            if digest not in best or now.passes > best[digest][0].passes:
                best[digest] = now, bundle.name
    for digest, group in by_task(cases).items():
        now, name = best[digest]
        _share_passes(group, "harness", f"{now.passes} of {now.of} pass under {name}", "harness", now, len(lab.others))
    return None


def quiet(lab: Lab, cases: Sequence[Case]) -> None:
    """Without the noise that they were made under, all else alike."""
    if lab.policy is None or lab.noise is None:
        return _all(
            cases, lambda case: case.skip("quiet", "they were made without noise, or their policy is not at hand")
        )
    asked = _requests(lab, _tasks(lab, cases), lab.policy, "quiet", lab.spec.k, noise=None)
    tried = _tried(asked, _attempts(lab, lab.policy, asked, lab.setting))
    for digest, group in by_task(cases).items():
        now = tried[digest]
        _share_passes(group, "quiet", f"{now.passes} of {now.of} pass without noise", "quiet", now)
    return None


def setting(lab: Lab, cases: Sequence[Case]) -> None:
    """Sampled as in training, where that is another setting than that of the failures."""
    if lab.policy is None or lab.setting == lab.training:
        return _all(cases, lambda case: case.skip("setting", "they were sampled as in training"))
    asked = _requests(lab, _tasks(lab, cases), lab.policy, "setting", lab.spec.k)
    tried = _tried(asked, _attempts(lab, lab.policy, asked, lab.training))
    for digest, group in by_task(cases).items():
        now = tried[digest]
        _share_passes(group, "setting", f"{now.passes} of {now.of} pass sampled as in training", "setting", now)
    return None


def checkpoint(lab: Lab, cases: Sequence[Case]) -> None:
    """The policies that this one came from, on the same tasks in the same setting: which stage lost what they can do."""
    if lab.policy is None or not lab.before:
        return _all(cases, lambda case: case.skip("checkpoint", "no earlier checkpoint is at hand"))
    idle = _untrained(lab)
    results: dict[str, dict[Digest, Tried]] = {}
    for policy in (*lab.before, lab.policy):
        asked = _requests(lab, _tasks(lab, cases), policy, "checkpoint", lab.spec.k)
        results[policy.stage] = _tried(asked, _attempts(lab, policy, asked, lab.setting))
    for digest, group in by_task(cases).items():
        own = {stage: tried[digest] for stage, tried in results.items()}
        cost = Tried.of_attempts([a for now in own.values() for a in now.attempts]).cost()
        if not all(now.of for now in own.values()):
            why = "infrastructure: every attempt of a checkpoint was lost"
            _all(group, lambda case, cost=cost, why=why: case.broken("checkpoint", why, **cost))  # type: ignore[misc]
            continue
        found = {
            "base_passes": own["base"].passes if "base" in own and lab.policy.stage != "base" else None,
            "sft_passes": own["sft"].passes if "sft" in own and lab.policy.stage != "sft" else None,
            "lost_at": lost_at(own),
            "untrained": idle,
        }
        said = ", ".join(f"{stage} {now.passes}/{now.of} pass, {now.parsed} parse" for stage, now in own.items())
        _share(group, "checkpoint", said, found, **cost)
        for case in group:
            case.count(own[lab.policy.stage])
    return None


def lost_at(tried: Mapping[str, Tried]) -> str:
    """The first stage after which passes, or else turns that parse, are clearly fewer; `never` when none is.

    Fisher's exact test, one-sided, at CLEAR: with four attempts each, three passes against none is clear.
    """
    stages = list(tried)
    for measure in ("passes", "parsed"):
        for before, after in pairwise(stages):
            if _clearly_fewer(tried[before], tried[after], measure) and _clearly_fewer(
                tried[before], tried[stages[-1]], measure
            ):
                return after
    return "never"


def _clearly_fewer(before: Tried, after: Tried, measure: str, p: float = CLEAR) -> bool:
    from scipy.stats import fisher_exact

    a, b = getattr(before, measure), getattr(after, measure)
    if not before.of or not after.of or a / before.of <= b / after.of:
        return False
    table = [[a, before.of - a], [b, after.of - b]]
    return float(fisher_exact(table, alternative="greater").pvalue) <= p


def _untrained(lab: Lab) -> bool | None:
    """Whether SFT's weights are those that it began with, up to rounding; None without SFT. RL that moved nothing is no fault
    of the demonstrations."""
    assert lab.policy is not None
    for parent, trained in pairwise([*lab.before, lab.policy]):
        if trained.stage != "sft":
            continue
        if trained.weights == parent.weights:
            return True
        moved = weights_moved(parent.folder(), trained.folder())
        return None if moved is None else moved < MOVED
    return None


def weights_moved(before: Path, after: Path) -> float | None:
    """Norm of the change over the norm of the weights, over tensors of the same name; None when they cannot be compared.

    Not covered: bfloat16 files, which NumPy does not read.
    """
    import numpy as np
    from safetensors import SafetensorError, safe_open

    change = size = 0.0
    try:
        for path in sorted(before.glob("*.safetensors")):
            with safe_open(path, framework="numpy") as old, safe_open(after / path.name, framework="numpy") as new:
                for name in old.keys():  # noqa: SIM118 - not a mapping
                    left, right = (np.asarray(file.get_tensor(name), dtype=np.float64) for file in (old, new))
                    change += float(np.square(left - right).sum())
                    size += float(np.square(left).sum())
    except (OSError, TypeError, ValueError, SafetensorError):
        return None
    return float(np.sqrt(change / size)) if size else None


EXPERIMENTS: Mapping[ExperimentName, Run] = {
    "rescore": rescore, "audit": audit, "current": current, "gold": gold, "shown": shown, "pricing": pricing,
    "tokenizer": tokenizer, "image": image, "replay": replay, "gold_path": gold_path, "again": again, "hint": hint,
    "prefix": prefix, "harness": harness, "quiet": quiet, "setting": setting, "checkpoint": checkpoint,
}  # fmt: skip


def attempts_needed(lab: Lab, name: ExperimentName, cases: Sequence[Case]) -> int:
    """Attempts of a policy that an experiment would take; 0 for those that ask none."""
    if lab.policy is None:
        return 0
    tasks, k = len(by_task(cases)), lab.spec.k
    per_task = {
        "harness": k * len(lab.others), "quiet": k if lab.noise else 0, "setting": k if lab.setting != lab.training else 0,
    }  # fmt: skip
    if name == "hint":
        return k * sum(hint_of(lab.tasks[digest]) is not None for digest in by_task(cases))
    if name == "again":
        return sum(max(1, k - group[0].evidence.task_attempts) for group in by_task(cases).values())
    if name == "prefix":
        return k * sum((case.evidence.first_bad_turn or 0) >= 1 for case in cases)
    if name == "checkpoint":
        return tasks * k * (len(lab.before) + 1 if lab.before else 0)
    return tasks * per_task.get(name, 0)

"""The ladder: for each failure the cheapest experiment that could still change its owner, until none could or the budget ends.

What is run follows from the rules: a rule whose known conditions hold and that asks for a field nobody has measured is an
open question (`evals.rules.open_questions`), and the experiments are taken in the order of their cost. So a failure that
the log and a second scoring decide costs no attempt of a policy. Of those that need one as many tasks as the budget can bring
to the end are taken, in turn from each kind of failure (`stages.experiments.budget`); what was left open is named in the answer.

Not covered: an experiment that a rule does not ask for is not run, however interesting.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from environments.bundles import Bundle
from evals.contamination import all_copied, closest
from evals.evidence import audited, collect
from evals.panel import Panel
from evals.rules import complete, decide, holding, still_open
from evals.verify import Verifier
from schemas.attribution import Attribution, Cost, Experiment, ExperimentName, Rung
from schemas.bucket import Evidence, Rule
from schemas.errors import InfrastructureError, InputError
from schemas.goal import GoalRecord, RuntimeSpec
from schemas.pins import PinsSpec
from schemas.record import StageName
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.task import Split, Task
from schemas.trajectory import Attempt
from stages.attempts import read_attempts
from stages.canary import bundle_folder
from stages.checkpoints import fetch_base, folder_of, previous_champion, trained_folder
from stages.context import Context, FanOut, Progress, in_order, silent
from stages.equipment import Equipment
from stages.experiments import EXPERIMENTS, SAMPLES, Case, Lab, Policy, attempts_needed, wave
from stages.recorded import Recorded
from stages.replay import Bench, open_bench
from stages.rollout import Setting
from stages.tasks import load_tasks, trained_origins
from stages.workspace import Workspace

GRAM, NEAR = 8, 0.6  # how near a copy is called contamination, whatever the spec lets into training


def climb(lab: Lab, attempts: Sequence[Attempt], found: Sequence[Evidence], rules: Sequence[Rule]) -> list[Attribution]:
    """One answer for each evidence, in its order. `attempts`: those that the evidence is of, and others of their tasks."""
    by_id = {attempt.trajectory.id: attempt for attempt in attempts}
    cases = [Case(by_id[evidence.trajectory], _begun(lab, by_id[evidence.trajectory], evidence)) for evidence in found]
    ladder = _Ladder(lab, rules, lab.spec.attempts)
    for name in EXPERIMENTS:
        if name not in SAMPLES:
            ladder.step(name, cases)
    while wave := ladder.wave(cases):
        for name in SAMPLES:
            ladder.step(name, wave)
    for name in SAMPLES:  # what can't be made at all costs nothing to say
        ladder.step(name, [case for case in cases if not attempts_needed(lab, name, [case])])
    lab.bench.context.progress("attribution", len(EXPERIMENTS), len(EXPERIMENTS))
    return [_answer(case, rules) for case in cases]


@dataclass
class _Ladder:
    """What is left of the budget while it is climbed."""

    lab: Lab
    rules: Sequence[Rule]
    left: int
    taken: set[str] = field(default_factory=set)  # ids of tasks
    began_s: float = field(default_factory=lambda: _cpu_s())

    def step(self, name: ExperimentName, cases: Sequence[Case]) -> None:
        """One experiment, for those of the failures that ask for it and as many of them as the budget holds."""
        asking = [case for case in cases if name in still_open(case.evidence, self.rules)]
        while asking and attempts_needed(self.lab, name, asking) > self.left:
            asking = asking[:-1]
        if not asking or self._spent_cpu():
            return
        self.lab.bench.context.progress(f"attribution: {name}", list(EXPERIMENTS).index(name), len(EXPERIMENTS))
        _run(self.lab, name, asking)
        self.left -= sum(case.experiments[-1].attempts for case in asking if case.experiments[-1].name == name)

    def wave(self, cases: Sequence[Case]) -> list[Case]:
        if self._spent_cpu():
            return []
        found = wave(self.lab, cases, self.rules, self.taken, self.left)
        self.taken |= {case.evidence.task_id for case in found}
        return found

    def _spent_cpu(self) -> bool:
        return self.lab.spec.cpu_s is not None and _cpu_s() - self.began_s > self.lab.spec.cpu_s


def _run(lab: Lab, name: ExperimentName, cases: Sequence[Case]) -> None:
    """What breaks an experiment costs its answer and no other."""
    try:
        EXPERIMENTS[name](lab, cases)
    except InfrastructureError as error:
        for case in cases:
            if name not in case.evidence.measured:
                case.broken(name, f"infrastructure broke it: {error}")


def _begun(lab: Lab, attempt: Attempt, evidence: Evidence) -> Evidence:
    """What the record already answers."""
    known = {"audit"} if audited(attempt) or lab.bench.audit is None else set()
    known |= {"again"} if evidence.task_attempts >= lab.spec.k else set()
    return evidence.model_copy(update={"measured": sorted(known)})


def _cpu_s() -> float:
    """Of this process and its children, sandboxes included once they have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _answer(case: Case, rules: Sequence[Rule]) -> Attribution:
    rule = decide(case.evidence, rules)
    open_ = still_open(case.evidence, rules)
    return Attribution(
        evidence=case.evidence,
        rule=rule.id,
        cause=rule.cause,
        route=rule.route,
        because=rule.because,
        also=list(dict.fromkeys(r.cause for r in holding(case.evidence, rules) if r.cause != rule.cause)),
        undecided=[name for name in EXPERIMENTS if name in open_],
        experiments=case.experiments,
        first_bad_turn=case.evidence.first_bad_turn,
    )


def costs(attributions: Sequence[Attribution]) -> dict[str, Cost]:
    """Rung -> what its experiments took; every rung is there."""
    found = {rung.value: Cost() for rung in Rung}
    for attribution in attributions:
        for experiment in attribution.experiments:
            found[experiment.rung.value] += cost_of(experiment)
    return found


def cost_of(experiment: Experiment) -> Cost:
    return Cost(experiments=1, attempts=experiment.attempts, executions=experiment.executions, tokens=experiment.tokens)


# --- the lab of a round


@contextmanager
def open_lab(
    ctx: Context,
    bench: Equipment,
    tasks: Sequence[Task],
    attempts: Sequence[Attempt],
    *,
    setting: Setting,
    policy: str | None = None,
) -> Iterator[Lab]:
    """Over the checkpoints that the round's records name. `policy`: weights that made the failures, the last ones if None.

    `tasks`: of the round; `attempts`: those around the failures, for what else their tasks came to, and the noise that
    they were all made under.
    """
    goal = bench.goal
    line = lineage(ctx, goal)
    names = [one.weights for one in line]
    at = names.index(policy) if policy in names else len(line) - 1 if policy is None else -1
    passes: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.verdict.passed and attempt.reward.value is not None:
            passes[attempt.trajectory.task_id].append(attempt)
    with ExitStack() as stack:
        others = [Bundle(bundle_folder(ctx, ref)) for ref in goal.spec.backflow.attribution.harnesses]
        for bundle in others:
            stack.callback(bundle.close)
        yield Lab(
            bench=bench, tasks={task.digest(): task for task in tasks}, setting=setting,
            training=bench.setting(), spec=goal.spec.backflow.attribution,
            policy=line[at] if at >= 0 else None, before=line[:at] if at >= 0 else line, passes=passes,
            others=[b for b in others if b.digest != bench.harness.digest], today=_today(ctx, bench, stack),
            noise=next((attempt.trajectory.noise for attempt in attempts), None),
        )  # fmt: skip


def _today(ctx: Context, bench: Equipment, stack: ExitStack) -> Panel | None:
    """What the names of the spec mean now: the verifiers of today where one is another than the recorded one."""
    spec, panel = bench.goal.spec, bench.verifier

    def now(recorded: Verifier, ref: str) -> Verifier:
        bundle = Bundle(bundle_folder(ctx, ref))
        if bundle.digest == recorded.bundle.digest:
            return recorded
        stack.callback(bundle.close)
        root, engine = bench.runner.root, bench.runner.engine
        return Verifier(bundle, recorded.environment, root, engine, recorded.limits, recorded.role)

    try:
        own = {kind: now(panel.own[kind], spec.verifier_of[kind]) for kind in panel.own}
        today = Panel(now(panel.verifier, spec.verifier), own)
    except InputError:  # a folder of the workspace that is gone: nothing of today to compare with
        return None
    return None if today == panel else today


def lineage(ctx: Context, goal: GoalRecord) -> list[Policy]:
    """What the round began with, `base` or a champion, and its SFT and RL checkpoints, as far as it trained them."""
    champion = previous_champion(ctx) if goal.spec.start == "champion" else None
    if champion is None:
        found = [Policy("base", goal.base.weights, lambda: fetch_base(ctx, goal))]
    else:
        found = [Policy("base", champion[1], lambda: folder_of(ctx, *champion))]
    trained: tuple[StageName, ...] = ("sft", "rl")
    for stage in trained:
        record = ctx.workspace.read(ctx.round, stage)
        if isinstance(record, SftRecord | RlRecord) and record.checkpoint is not None:
            found.append(Policy(stage, record.checkpoint.weights, _opener(ctx, record)))
    return found


def _opener(ctx: Context, record: SftRecord | RlRecord) -> Callable[[], Path]:
    return lambda: trained_folder(ctx, record)


def contaminated(tasks: Sequence[Task]) -> set[str]:
    """Ids of tasks that measure and of which a training task is a near copy, however the spec was set."""
    training = [task for task in tasks if task.split is Split.TRAIN]
    measuring = [task for task in tasks if task.split is not Split.TRAIN]
    return all_copied(training, measuring, GRAM, NEAR)


def evidence_of(goal: GoalRecord, tasks: Sequence[Task], attempts: Sequence[Attempt]) -> list[Evidence]:
    """Of every failure among these attempts of one policy, before any experiment; `tasks`: of the round."""
    found = collect(
        attempts, {task.id: task for task in tasks}, trained_origins(tasks), contaminated=contaminated(tasks),
        skills=skills_of(goal, tasks),
    )  # fmt: skip
    return likened(found, tasks)


def likened(found: Sequence[Evidence], tasks: Sequence[Task]) -> list[Evidence]:
    """Each with the training task that its task is most like; one of a training task stays as it is."""
    training = [task for task in tasks if task.split is Split.TRAIN]
    measuring = [task for task in tasks if task.split is not Split.TRAIN]
    likeness = closest(training, measuring, {one.task_id for one in found}, GRAM)
    said = {name: {"similarity": overlap, "nearest_task": task} for name, (overlap, task) in likeness.items()}
    return [one.model_copy(update=said.get(one.task_id)) for one in found]


def skills_of(goal: GoalRecord, tasks: Sequence[Task]) -> set[str]:
    """What the goal's capabilities name or the round trains: anything else that a suite measures, it measures by mistake."""
    trained = {task.skill for task in tasks if task.split is Split.TRAIN}
    return trained | {capability.skill for capability in goal.spec.capabilities}


# --- failures of a recorded round


def attribute(
    space: Workspace,
    cache: Path,
    chosen: Sequence[Recorded],
    *,
    runtime: RuntimeSpec | None = None,
    pins: PinsSpec | None = None,
    fan_out: FanOut = in_order,
    progress: Progress = silent,
) -> list[Attribution]:
    """The whole ladder for recorded failures, round by round, under their pins. Those of others and passes are refused.

    Attempts of the same task by the same policy in the same table are counted with them, as the log has them. Raises
    PinMismatch when a pin of a replay is another one now, InputError for what is no failure.
    """
    found: list[Attribution] = []
    for number in sorted({one.round for one in chosen}):
        mine = [one for one in chosen if one.round == number]
        where = {"runtime": runtime or RuntimeSpec(), "pins": pins or PinsSpec()}
        stages = list(dict.fromkeys(one.stage for one in mine))
        with open_bench(space, cache, number, "replay", where, fan_out, stages=stages) as opened:
            opened.context.progress = progress
            for (table, policy), own in _together(mine).items():
                answers = _attributed(opened, table, policy, own)
                found += [answer.model_copy(update={"round": number}) for answer in answers]
    return found


def _together(chosen: Sequence[Recorded]) -> dict[tuple[Path, str], list[Recorded]]:
    """By table and policy: evidence counts what one policy did."""
    groups: dict[tuple[Path, str], list[Recorded]] = defaultdict(list)
    for one in chosen:
        groups[one.table, policy_of(one.attempt)].append(one)
    return groups


def policy_of(attempt: Attempt) -> str:
    """Weights that wrote it; "" for one that infrastructure broke before its first turn."""
    return next((turn.policy for turn in attempt.trajectory.turns), "")


def _attributed(opened: Bench, table: Path, policy: str, own: Sequence[Recorded]) -> list[Attribution]:
    ctx, goal = opened.context, opened.equipment.goal
    tasks = load_tasks(ctx)
    rules = complete(goal.spec.routes)
    around = [a for a in read_attempts(table) if policy_of(a) == policy and a.trajectory.task in opened.tasks]
    evidence = evidence_of(goal, tasks, around)
    wanted = {one.attempt.trajectory.id for one in own}
    failures = [one for one in evidence if one.trajectory in wanted]
    passes = sorted(wanted - {one.trajectory for one in failures})
    if passes:
        raise InputError(f"{passes[0]}: no failure: it passed, and nothing contests it; name a failed attempt")
    sampling = own[0].attempt.trajectory.sampling
    setting = replace(opened.equipment.setting(), sampling=sampling, batch=sampling.batch)
    with open_lab(ctx, opened.equipment, tasks, around, setting=setting, policy=policy) as lab:
        return climb(lab, around, failures, rules)

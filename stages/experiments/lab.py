"""What experiments are made with: the policies, the bench, a failure and what was learned of it; and when one result differs from
another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments.bundles import Bundle
from evals.evidence import tally
from evals.panel import Judge
from schemas.attribution import FILLS, RUNGS, AttributionSpec, Experiment, ExperimentName
from schemas.base import Digest
from schemas.bucket import Evidence
from schemas.errors import InputError
from schemas.goal import GoalRecord
from schemas.task import Task
from schemas.trajectory import Attempt, Noise, Trajectory
from schemas.verdict import Status, Verdict
from stages.equipment import Equipment
from stages.rollout import Setting
from stages.samplers.tokenization import Tokenization

CLEAR = 0.1  # one-sided p of Fisher's exact test at which one checkpoint is said to do what another does not


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


def share(group: Sequence[Case], name: ExperimentName, said: str, found: Mapping[str, Any], **cost: Any) -> None:
    for place, case in enumerate(group):
        case.learn(name, said, found, **({} if place else cost))


def share_passes(
    group: Sequence[Case], name: ExperimentName, said: str, field: str, now: Tried, tries: int = 1
) -> None:
    """What k attempts under one other condition came to, and whether that is clearly more than the policy's own share.

    `tries`: conditions of which this is the best, so that the best of many is not called clear by chance (Bonferroni).
    """
    if not now.of:
        return each(group, lambda case: case.broken(name, "infrastructure: every attempt was lost", **now.cost()))
    for place, case in enumerate(group):
        own = Tried(case.evidence.task_passes, 0, case.evidence.task_attempts, ())
        found = {f"{field}_passes": now.passes, f"{field}_helps": clearly_fewer(now, own, "passes", CLEAR / tries)}
        case.learn(name, said, found, **({} if place else now.cost()))
    return None


def each(cases: Iterable[Case], do: Callable[[Case], None]) -> None:
    for case in cases:
        do(case)


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


def clearly_fewer(before: Tried, after: Tried, measure: str, p: float = CLEAR) -> bool:
    from scipy.stats import fisher_exact

    a, b = getattr(before, measure), getattr(after, measure)
    if not before.of or not after.of or a / before.of <= b / after.of:
        return False
    table = [[a, before.of - a], [b, after.of - b]]
    return float(fisher_exact(table, alternative="greater").pvalue) <= p

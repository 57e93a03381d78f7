"""What every report is made from: one round's records, telemetry, pins and a few attempts, and the round before.

A view holds only what it is given; a stage that has not run is absent and every accessor answers None or empty.
Nothing is read from disk. Decisions come from the records, except the reading of a goal criterion against its
interval, which the goal's own rule fixes (the bound of the interval decides).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from reports.text import decide
from schemas.attribution import Attribution, Cost, Rung
from schemas.backflow import BackflowRecord
from schemas.bucket import Bucket, BucketChange, Material, bucket_id
from schemas.compare import Comparison
from schemas.data import DataRecord
from schemas.decision import TriageDecision
from schemas.evaluation import EvaluationRecord
from schemas.goal import Criterion, GoalRecord
from schemas.metrics import Alarm, Decision, Estimate, Gate, Paired, SuiteResult
from schemas.pins import RunPin
from schemas.record import STAGES, Record, StageName
from schemas.rescore import StaleUse
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.trajectory import Attempt

R = TypeVar("R", bound=Record)
_FINAL = ("rl", "sft", "base")
POLICIES = ("base", "champion", "sft", "rl")
METRICS = ("parse_rate", "invalid_calls", "tool_calls", "turns", "tokens")

# Telemetry keys that the cost table totals, and the other spellings it accepts for them.
COSTS: dict[str, tuple[str, ...]] = {
    "seconds": ("seconds", "stage_s", "elapsed_s"),
    "prompt tokens": ("prompt_tokens", "prefill_tokens"),
    "generated tokens": ("generated_tokens", "completion_tokens"),
    "turns": ("turns",),
    "tool calls": ("tool_calls",),
    "executions": ("executions", "sandbox_executions"),
    "sandbox CPU-s": ("cpu_s", "sandbox_cpu_s"),
}


@dataclass(frozen=True)
class CriterionRow:
    """One success criterion, measured. `decision` None: no data."""

    criterion: Criterion
    estimate: Estimate | None
    decision: Decision | None


@dataclass(frozen=True)
class PinChange:
    """One pin of this round beside the round before; None where it is absent."""

    name: str
    before: str | None
    now: str | None

    @property
    def changed(self) -> bool:
        return self.before != self.now


@dataclass(frozen=True)
class Settled:
    """Failures decided by the log, L0 and L1 alone; with attempts of a policy (L2, L3); and open, as an experiment that was
    not made could give them to another owner."""

    alone: int
    sampled: int
    open: int

    def __str__(self) -> str:
        total = self.alone + self.sampled + self.open
        return (
            f"{self.alone} of {total} decided by the log, L0 and L1 alone, {self.sampled} with L2 or L3; "
            f"{self.open} still open"
        )


@dataclass(frozen=True)
class RoundView:
    """`attempts`: the examples to show, mostly failures; `previous`: the round before, for differences and history;
    `comparison`: with that round; `stale`: what in this one used a reward that a rescore flipped; `attributions`: by
    trajectory; `decisions`: people's about this round, oldest first; `handed`: its material as people want it, None where
    nobody asked."""

    round: int
    records: Mapping[StageName, Record]
    telemetry: Mapping[StageName, Mapping[str, Any]] = field(default_factory=dict)
    pins: RunPin | None = None
    previous: RoundView | None = None
    attempts: Sequence[Attempt] = ()
    comparison: Comparison | None = None
    stale: Sequence[StaleUse] = ()
    attributions: Mapping[str, Attribution] = field(default_factory=dict)
    decisions: Sequence[TriageDecision] = ()
    handed: Sequence[Material] | None = None

    def _record(self, stage: StageName, kind: type[R]) -> R | None:
        record = self.records.get(stage)
        return record if isinstance(record, kind) else None

    @property
    def goal(self) -> GoalRecord | None:
        return self._record("goal", GoalRecord)

    @property
    def data(self) -> DataRecord | None:
        return self._record("data", DataRecord)

    @property
    def sft(self) -> SftRecord | None:
        return self._record("sft", SftRecord)

    @property
    def rl(self) -> RlRecord | None:
        return self._record("rl", RlRecord)

    @property
    def evaluation(self) -> EvaluationRecord | None:
        return self._record("evaluation", EvaluationRecord)

    @property
    def backflow(self) -> BackflowRecord | None:
        return self._record("backflow", BackflowRecord)

    def ordered(self) -> list[tuple[StageName, Record]]:
        """The records that exist, in the order of the stages."""
        return [(stage, self.records[stage]) for stage in STAGES if stage in self.records]

    @property
    def complete(self) -> bool:
        return all(stage in self.records for stage in STAGES)

    @property
    def main_suite(self) -> str:
        """The suite that promotion looks at; the first measured one when that is absent."""
        wanted = self.goal.spec.evaluation.promotion_suite if self.goal else "held_out"
        suites = self.suites()
        return wanted if wanted in suites or not suites else suites[0]

    def suites(self) -> list[str]:
        """Suites in the order of the spec, then others as they were measured."""
        named = [suite.name for suite in self.goal.spec.evaluation.suites] if self.goal else []
        measured = [result.suite for result in self.evaluation.results] if self.evaluation else []
        return [name for name in dict.fromkeys([*named, *measured]) if name in measured]

    def result(self, suite: str, policy: str) -> SuiteResult | None:
        found = (
            [r for r in self.evaluation.results if (r.suite, r.policy) == (suite, policy)] if self.evaluation else []
        )
        return found[0] if found else None

    def estimate(self, suite: str, policy: str, metric: str) -> Estimate | None:
        result = self.result(suite, policy)
        return result.metrics.get(metric) if result else None

    @property
    def final_policy(self) -> str | None:
        """The last policy that this round trained and measured; base when it trained none."""
        present = {result.policy for result in self.evaluation.results} if self.evaluation else set()
        return next((policy for policy in _FINAL if policy in present), None)

    def final(self, metric: str = "pass@1") -> Estimate | None:
        return self.estimate(self.main_suite, self.final_policy or "", metric)

    def against(self, reference: str, metric: str = "pass@1") -> Paired | None:
        """Final policy minus `reference` on the promotion suite, paired, if it was measured."""
        pairs = self.evaluation.paired if self.evaluation else []
        wanted = (self.main_suite, metric, self.final_policy, reference)
        return next((p for p in pairs if (p.suite, p.metric, p.candidate, p.reference) == wanted), None)

    def criteria(self) -> list[CriterionRow]:
        rows = []
        for criterion in self.goal.spec.criteria if self.goal else []:
            found = self.estimate(criterion.suite, self.final_policy or "", criterion.metric)
            rows.append(CriterionRow(criterion, found, decide(found, criterion.at_least, criterion.at_most)))
        return rows

    def gates(self) -> list[tuple[StageName, Gate]]:
        return [(stage, gate) for stage, record in self.ordered() for gate in record.gates]

    def alarms(self) -> list[tuple[StageName, Alarm]]:
        return [(stage, alarm) for stage, record in self.ordered() for alarm in record.alarms]

    def metric_names(self) -> list[str]:
        """Metrics of any suite: pass@k by k, then the usual ones, then the others by name."""
        names = {name for result in (self.evaluation.results if self.evaluation else []) for name in result.metrics}
        first = sorted((name for name in names if name.startswith("pass@")), key=_pass_order)
        return [*first, *(name for name in METRICS if name in names), *sorted(names - {*first, *METRICS})]

    def costs(self) -> list[str]:
        """The entries of COSTS that any stage reported."""
        return [what for what in COSTS if self.total_cost(what) is not None]

    def example(self, bucket: Bucket) -> Attempt | None:
        """The bucket's example, else any of its members that the view holds."""
        held = {attempt.trajectory.id: attempt for attempt in self.attempts}
        return next((held[name] for name in (bucket.example, *bucket.members) if name in held), None)

    def bucket_of(self, attempt: Attempt) -> Bucket | None:
        """The bucket that counts the attempt; else that of the cause and family that it was attributed to."""
        name = attempt.trajectory.id
        found, said = self._bucket_by_member.get(name), self.attributions.get(name)
        if found is not None or said is None:
            return found
        return self._bucket_by_id.get(bucket_id(said.cause, said.evidence.family))

    @cached_property
    def _bucket_by_member(self) -> Mapping[str, Bucket]:
        buckets = self.backflow.buckets if self.backflow else []
        return {name: bucket for bucket in reversed(buckets) for name in (bucket.example, *bucket.members)}

    @cached_property
    def _bucket_by_id(self) -> Mapping[str, Bucket]:
        return {bucket.id: bucket for bucket in (self.backflow.buckets if self.backflow else [])}

    def failed_attempts(self) -> list[Attempt]:
        """Those held that failed, could not be judged or are contested: turn by turn one of each bucket, so that whoever
        takes the first few can speak of every bucket; those of none last."""
        failed = [a for a in self.attempts if not a.verdict.passed or self.bucket_of(a) is not None]
        turns: Counter[str] = Counter()
        ranked = []
        examples = {bucket.example for bucket in (self.backflow.buckets if self.backflow else [])}
        for attempt in sorted(failed, key=lambda a: (a.trajectory.id not in examples, a.trajectory.id)):
            bucket = self.bucket_of(attempt)
            turns[bucket.id if bucket else ""] += 1
            ranked.append((bucket is None, turns[bucket.id] if bucket else 0, attempt.trajectory.id, attempt))
        return [row[-1] for row in sorted(ranked, key=lambda row: row[:3])]

    def decided(self, bucket: str) -> list[TriageDecision]:
        """What people decided about a bucket of this round, or one failure of it, oldest first."""
        return [one for one in self.decisions if one.bucket == bucket]

    def trend(self, bucket: str) -> list[tuple[int, Bucket | None]]:
        """Round -> the bucket there, None where it was none, for this round and those before it that had a backflow."""
        rounds = [view for view in self.history() if view.backflow is not None and view.backflow.skipped is None]
        by_round = {view.round: {b.id: b for b in view.backflow.buckets} for view in rounds if view.backflow}
        return [(number, buckets.get(bucket)) for number, buckets in by_round.items()]

    def all_buckets(self) -> list[Bucket]:
        """Every bucket of this round and those before it, as it last was; the largest of this round first."""
        last: dict[str, Bucket] = {}
        for view in self.history():
            last |= {bucket.id: bucket for bucket in (view.backflow.buckets if view.backflow else ())}
        now = {bucket.id: bucket.size for bucket in (self.backflow.buckets if self.backflow else ())}
        return sorted(last.values(), key=lambda b: (-now.get(b.id, 0), -b.size, b.id))

    def change_of(self, bucket: str, round: int) -> BucketChange | None:
        """How a bucket of that round had changed one round later; None where that was not measured."""
        later = [view for view in self.history() if view.round > round and view.backflow is not None]
        found = later[0].backflow.changes if later and later[0].backflow else ()
        return next((change for change in found if change.bucket == bucket), None)

    def said_of(self, bucket: Bucket) -> Attribution | None:
        """Why its example failed, where experiments say so."""
        return self.attributions.get(bucket.example)

    def ladder(self) -> list[tuple[Rung, Cost]]:
        """What each rung's experiments took; nothing where none were made."""
        spent = self.backflow.ladder if self.backflow else {}
        return [(rung, spent[rung.value]) for rung in Rung if rung.value in spent]

    def settled(self) -> Settled | None:
        """By what the attributed failures were decided; None where none were."""
        said = self.attributions.values()
        if not said:
            return None
        open_ = sum(bool(one.undecided) for one in said)
        sampled = sum(_asked_a_policy(one) and not one.undecided for one in said)
        return Settled(alone=len(said) - open_ - sampled, sampled=sampled, open=open_)

    def owner(self, bucket: Bucket) -> tuple[str, TriageDecision | None]:
        """Its route as people want it by now, and the decision behind it."""
        routed = [one for one in self.decided(bucket.id) if one.route is not None and one.trajectory is None]
        if routed:
            return routed[-1].route.value if routed[-1].route else bucket.route.value, routed[-1]
        return bucket.route.value, None

    def approval(self, bucket: str) -> TriageDecision | None:
        """A person's word on the bucket's material of this round."""
        said = [one for one in self.decided(bucket) if one.approve is not None and one.trajectory is None]
        return next((one for one in reversed(said) if one.round == self.round), None)

    def escalated(self) -> list[Bucket]:
        """Buckets treated twice without effect about which no person has said anything in this round."""
        said = {one.bucket for one in self.decisions if one.round == self.round and one.trajectory is None}
        return [one for one in (self.backflow.buckets if self.backflow else ()) if one.escalated and one.id not in said]

    def material(self) -> Sequence[Material]:
        """As people want it where that is known, else as it was proposed."""
        return self.handed if self.handed is not None else self.backflow.material if self.backflow else ()

    def history(self, limit: int = 12) -> list[RoundView]:
        """This round and the ones before it that the view knows, oldest first."""
        views: list[RoundView] = []
        view: RoundView | None = self
        while view is not None and len(views) < limit:
            views.append(view)
            view = view.previous
        return views[::-1]

    def pin_changes(self) -> list[PinChange]:
        """Every pin of this round and the last one, changed ones first."""
        now = self.pins.pins if self.pins else {}
        before = self.previous.pins.pins if self.previous and self.previous.pins else {}
        rows = [PinChange(name, before.get(name), now.get(name)) for name in sorted({*now, *before})]
        return sorted(rows, key=lambda row: (not (before and row.changed), row.name))

    def cost(self, stage: StageName, what: str) -> float | None:
        """One entry of COSTS for a stage; None when its telemetry does not have it."""
        values = self.telemetry.get(stage, {})
        return next((float(values[key]) for key in COSTS[what] if _is_number(values.get(key))), None)

    def total_cost(self, what: str) -> float | None:
        known = [cost for stage in STAGES if (cost := self.cost(stage, what)) is not None]
        return sum(known) if known else None

    def other_telemetry(self) -> list[tuple[StageName, str, float]]:
        """Numbers of the sidecars that no column of the cost table shows."""
        shown = {key for keys in COSTS.values() for key in keys}
        return [
            (stage, key, float(value))
            for stage in STAGES
            for key, value in sorted(self.telemetry.get(stage, {}).items())
            if key not in shown and _is_number(value)
        ]

    def infrastructure_errors(self) -> int:
        return sum(record.infrastructure_errors for record in self.records.values())


def _asked_a_policy(said: Attribution) -> bool:
    """Also where an experiment for another failure of the same task bore the cost."""
    return any(one.rung in (Rung.L2, Rung.L3) and one.impossible is None for one in said.experiments)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _pass_order(name: str) -> tuple[int, str]:
    k = name.removeprefix("pass@")
    return (int(k), "") if k.isdecimal() else (10**6, k)

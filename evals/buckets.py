"""Failures with one cause in one family: how many, which example, and whether they shrank.

One half of dev chooses the buckets, the other measures them: a bucket picked because it is large is large partly by
chance, so its size on the half that picked it says nothing about a change. Compare a change with those of untreated
buckets. Rules of both rounds must be the same for a change to mean anything: make `indicators` anew with one rule file.

A change must not come from how much was looked at. Where only a sample of a kind of failure was attributed to the end, the
sample stands for the kind; what nobody looked at, and what infrastructure lost, may lie in any bucket of its family, and a
verdict holds if it holds wherever they lie. With few experiments none could. So there is a second way to "shrank" or "grew":
what was found says so, and so does, wherever the lost lie, what every failure of both rounds went through (the log, L0 and L1).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from evals.evidence import collect
from evals.metrics import CONFIDENCE, RESAMPLES, estimate, paired, ratio
from evals.rules import asks_for, decide, route_of, rules_digest, still_open
from schemas.attribution import FILLS, RUNGS, Attribution, Rung
from schemas.bucket import Bucket, BucketChange, Evidence, Material, Route, Rule, bucket_id
from schemas.metrics import Estimate
from schemas.task import Task
from schemas.trajectory import Attempt
from schemas.verdict import Status

# What each failure goes through: the log has what more attempts at a task would tell, where there are enough of them.
EVERY = frozenset({"again", *(name for name, rung in RUNGS.items() if rung in (Rung.L0, Rung.L1))})
Verdict = Literal["shrank", "unchanged", "grew", "not enough evidence"]
NOT_ENOUGH: Verdict = "not enough evidence"
BAND = 0.05  # an interval of the change within plus and minus this is "unchanged"
Row = tuple[
    str, float, float, float
]  # origin, share of the task's scored attempts, and the least and most that it may be
Indicators = dict[str, dict[str, Row]]  # bucket id -> task id -> row


@dataclass(frozen=True)
class Attempted:
    """Scored attempts of one task, the denominator, and those that infrastructure lost."""

    family: str
    origin: str
    scored: int
    lost: int = 0


@dataclass(frozen=True)
class Half:
    """One half of dev as one policy did it: the evidence of its failures, and what was attempted.

    `by_log`: no experiment was made, and all are decided by the log, as in both halves of a comparison without attributions.
    Else a failure is open while the rules ask for an experiment that could give it to another bucket and was not made.
    """

    evidence: list[Evidence]
    attempted: dict[str, Attempted]
    by_log: bool = False

    @classmethod
    def of(
        cls,
        attempts: Sequence[Attempt],
        tasks: Mapping[str, Task],
        trained_origins: Mapping[str, int],
        flipped: Collection[str] = (),
    ) -> Half:
        """See evals.evidence.collect for the arguments."""
        return cls(collect(attempts, tasks, trained_origins, flipped), attempted(attempts), by_log=True)

    def scored(self, family: str) -> int:
        return sum(task.scored for task in self.attempted.values() if task.family == family)


def attempted(attempts: Iterable[Attempt]) -> dict[str, Attempted]:
    """Task id -> its scored attempts; a task whose attempts were all lost to infrastructure has 0."""
    found: dict[str, Attempted] = {}
    for attempt in attempts:
        trajectory = attempt.trajectory
        scored = trajectory.status == "done" and attempt.verdict.status is Status.SCORED
        lost = trajectory.status == "error" or attempt.verdict.status is Status.ERROR
        before = found.get(trajectory.task_id, Attempted(trajectory.family, trajectory.origin, 0))
        found[trajectory.task_id] = replace(before, scored=before.scored + scored, lost=before.lost + lost)
    return dict(sorted(found.items()))


def build(
    choosing: Half,
    measuring: Half,
    rules: Sequence[Rule],
    *,
    overrides: Mapping[str, tuple[Route, str]] | None = None,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> list[Bucket]:
    """Buckets of the choosing half, largest first, ties by id.

    Shares are of the family's scored attempts; a bucket of attempts without a score has none (value None, `errors`).
    `overrides`: bucket id -> (route, decision id of the person who changed it).
    """
    how: dict[str, Any] = {"resamples": resamples, "confidence": confidence, "seed": seed}
    grouped = _grouped(choosing.evidence, rules)
    # As decided so far, like the sizes: only a comparison of rounds has to mind what is still open.
    chosen, seen = (_as_decided(half, rules) for half in (choosing, measuring))
    measured = _by_bucket(measuring.evidence, rules)
    buckets = []
    for identity, members in grouped.items():
        (cause, family), evidence = identity, [e for e, _ in members]
        bucket = bucket_id(cause, family)
        route, person = (overrides or {}).get(bucket, (route_of(rules, cause), None))
        lost = all(e.status != "scored" for e in evidence)
        buckets.append(
            Bucket(
                id=bucket,
                cause=cause,
                family=family,
                route=route,
                rule=_usual([rule for _, rule in members], rules),
                rules=rules_digest(rules),
                overridden_by=person,
                size=len(evidence),
                denominator=choosing.scored(family),
                share=_lost(len(evidence)) if lost else _share(choosing, family, chosen[bucket], how),
                measured=_lost(len(measured.get(bucket, ())))
                if lost
                else _share(measuring, family, seen.get(bucket) or _nowhere(measuring, family), how),
                members=[e.trajectory for e in evidence],
                example=central(evidence),
            )
        )
    return sorted(buckets, key=lambda b: (-b.size, b.id))


def account(buckets: Iterable[Bucket], found: Sequence[Attribution], rules: Sequence[Rule]) -> list[Bucket]:
    """The buckets with what was spent on them, what is still open, and between which sizes they are when only a sample was
    attributed to the end. `found`: attributions of the choosing half.

    Per kind of failure (rule by the log and cheap rungs, family) the share of the sampled that came to a bucket stands for
    those that were not looked at, with Wilson bounds over their tasks; bounds of several kinds are added up, which is wider than
    needed. One that was looked at and not to its end may be in any bucket: that an answer closed others is no chance.
    """
    by_bucket: dict[str, list[Attribution]] = defaultdict(list)
    kinds: dict[tuple[str, str], list[Attribution]] = defaultdict(list)
    for one in found:
        by_bucket[bucket_id(one.cause, one.evidence.family)].append(one)
        kinds[_kind(one.evidence, rules).id, one.evidence.family].append(one)
    return [_accounted(bucket, by_bucket[bucket.id], kinds, rules) for bucket in buckets]


def _kind(evidence: Evidence, rules: Sequence[Rule]) -> Rule:
    """The rule that would own it if no policy had been asked."""
    return decide(_plain(evidence), rules)


def _plain(evidence: Evidence) -> Evidence:
    """As it was before a policy was asked."""
    return evidence.model_copy(update={"measured": [name for name in evidence.measured if name in EVERY]})


def _accounted(
    bucket: Bucket,
    members: Sequence[Attribution],
    kinds: Mapping[tuple[str, str], Sequence[Attribution]],
    rules: Sequence[Rule],
) -> Bucket:
    low = high = 0.0
    for (_, family), own in kinds.items():
        if family != bucket.family:
            continue
        mine = {one.trajectory for one in own if bucket_id(one.cause, family) == bucket.id and not one.undecided}
        left = sum(bool(one.undecided) for one in own)
        sample = [one for one in own if _sampled(one.evidence, rules, bool(one.undecided))]
        unknown = sum(bool(one.undecided) for one in sample)
        hits = sum(one.trajectory in mine for one in sample)
        below, above = _of_kind(hits, hits + unknown, sample) if left else (0.0, 0.0)
        low, high = low + len(mine) + left * below, high + len(mine) + left * above
    spent = Counter[str]()
    for experiment in (e for one in members for e in one.experiments):
        spent.update(
            {"attempts": experiment.attempts, "executions": experiment.executions, "tokens": experiment.tokens}
        )
    return bucket.model_copy(
        update={
            "attributed": sum(bool(one.experiments) for one in members),
            "size_low": math.floor(low),
            "size_high": math.ceil(high),
            "cost": {name: spent[name] for name in ("attempts", "executions", "tokens")},
            "undecided": sorted({name for one in members for name in one.undecided}),
        }
    )


def _sampled(evidence: Evidence, rules: Sequence[Rule], is_open: bool) -> bool:
    """Whether it was looked at with experiments that only a sample gets, and not closed before by what all go through."""
    return _looked_at(evidence) if is_open else bool(still_open(_plain(evidence), rules))


def _looked_at(evidence: Evidence) -> bool:
    """What can't be made is measured too and fills no field."""
    deep = [name for name in evidence.measured if name not in EVERY]
    return any(getattr(evidence, field) is not None for name in deep for field in FILLS[name])  # type: ignore[index]


def _of_kind(least: int, most: int, sample: Sequence[Attribution]) -> tuple[float, float]:
    """Bounds of a share, of which between `least` and `most` of a sample are; without one it may be anything. Failures of one
    task share their experiments, so there are as many observations as tasks; a share between two counts of them takes the wider
    bound."""
    tasks = len({one.evidence.task_id for one in sample})
    if not tasks:
        return 0.0, 1.0
    return _wilson(least * tasks // len(sample), tasks)[0], _wilson(-(-most * tasks // len(sample)), tasks)[1]


def _wilson(hits: int, n: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    interval = binomtest(hits, n).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def indicators(half: Half, rules: Sequence[Rule], buckets: Iterable[Bucket] = ()) -> Indicators:
    """For each bucket every scored task of its family, with the share of its scored attempts in the bucket, 0 included.

    Buckets seen in this half and those in `buckets`: give all, since one that this half never saw is a 0, not a gap.
    Plain JSON data, to be kept for the next round's `changes`. Of attempts that were all lost a task says nothing.
    """
    return _rows(half, *_weights(half, rules, _open(half, rules)), buckets)


def plain_indicators(half: Half, rules: Sequence[Rule], buckets: Iterable[Bucket]) -> Indicators:
    """The same by what every failure went through, of the buckets whose cause some rule decides by that."""
    own = [bucket for bucket in buckets if bucket.cause not in sampled_causes(rules)]
    found = _rows(half, *_without_a_policy(half, rules), own)
    return {bucket.id: found[bucket.id] for bucket in own}


def sampled_causes(rules: Sequence[Rule]) -> set[str]:
    """Causes that no rule decides without an experiment which only a sample of the failures gets."""
    return {rule.cause for rule in rules} - {rule.cause for rule in rules if asks_for(rule) <= EVERY}


def _as_decided(half: Half, rules: Sequence[Rule]) -> Indicators:
    return _rows(half, *_weights(half, rules, frozenset()))


def _open(half: Half, rules: Sequence[Rule]) -> frozenset[str]:
    return frozenset() if half.by_log else frozenset(e.trajectory for e in half.evidence if still_open(e, rules))


def _rows(
    half: Half, weights: Mapping[tuple[str, str], Mapping[str, float]], unseen: Unseen, more: Iterable[Bucket] = ()
) -> Indicators:
    identities = {*weights, *((bucket.cause, bucket.family) for bucket in more)}
    return {
        bucket_id(*one): _indicator(half, one[1], bucket_id(*one), weights.get(one, {}), unseen)
        for one in sorted(identities)
    }


Unseen = Mapping[
    str, Sequence[str]
]  # task id -> for each failure that nobody looked at the bucket that it lies in for now


def _weights(
    half: Half, rules: Sequence[Rule], open_: Collection[str]
) -> tuple[dict[tuple[str, str], Counter[str]], Unseen]:
    """(cause, family) -> task -> failures, and what nobody looked at. An open failure is spread over the causes that the sampled
    ones of its kind (rule by log and cheap rungs, family) came to, if each of these was looked at to its end."""
    causes = {e.trajectory: decide(e, rules).cause for e in half.evidence}
    kinds = {e.trajectory: (_kind(e, rules).id, e.family) for e in half.evidence} if open_ else {}
    closed: Mapping[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for e in half.evidence if open_ else ():
        if e.trajectory not in open_ and _sampled(e, rules, False):
            closed[kinds[e.trajectory]][causes[e.trajectory]] += 1
    begun = {kinds[e.trajectory] for e in half.evidence if e.trajectory in open_ and _looked_at(e)}
    closed = {kind: causes_ for kind, causes_ in closed.items() if kind not in begun}
    weights: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    unseen: dict[str, list[str]] = defaultdict(list)
    for e in half.evidence:
        like = closed.get(kinds[e.trajectory]) if e.trajectory in open_ else None
        if e.trajectory in open_ and like is None:
            unseen[e.task_id].append(bucket_id(causes[e.trajectory], e.family))
        for cause, n in (like or Counter({causes[e.trajectory]: 1})).items():
            weights[cause, e.family][e.task_id] += n / (like or Counter(one=1)).total()  # type: ignore[assignment]
    return weights, unseen


def _without_a_policy(half: Half, rules: Sequence[Rule]) -> tuple[dict[tuple[str, str], Counter[str]], Unseen]:
    """The same by what every failure went through; of one that did not, nobody knows. What the rules of now ask for counts,
    not what was asked for when it was attributed."""
    weights: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    unseen: dict[str, list[str]] = defaultdict(list)
    for e in map(_plain, half.evidence):
        cause = decide(e, rules).cause
        weights[cause, e.family][e.task_id] += 1
        if not half.by_log and EVERY & still_open(e, rules):
            unseen[e.task_id].append(bucket_id(cause, e.family))
    return weights, unseen


def compare(
    previous: Sequence[Bucket], then: Half, now: Half, rules: Sequence[Rule], **options: Any
) -> list[BucketChange]:
    """`changes` of the measuring half, then and now, by the rules of now. `options` as there."""
    found = (indicators(half, rules, previous) for half in (then, now))
    plain = plain_indicators(then, rules, previous), plain_indicators(now, rules, previous)
    return changes(previous, *found, plain=plain, **options)


def changes(
    previous: Sequence[Bucket],
    before: Indicators,
    after: Indicators,
    treated: Collection[str] = (),
    *,
    plain: tuple[Indicators, Indicators] = ({}, {}),
    blind: Collection[str] = (),
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> list[BucketChange]:
    """Each bucket of the last round, measured again on the measuring half, on the tasks that both rounds attempted.

    `before`, `after`: `indicators` of the measuring half then and now, both with `buckets=previous`. `treated`: ids
    that got material, beside those whose bucket says so. Shrank: the interval of after - before lies below 0, also with
    the most that after and the least that before may be; grew: above, the other way round; unchanged: within plus and
    minus 0.05; else not enough evidence. `plain`: the same two by `plain_indicators`; where the worst case leaves it open, what
    was found and these have to agree. Buckets without a share are left out. `blind`: causes that this round could not have
    seen at all, such as a verifier's hole without an audit.
    """
    how: dict[str, Any] = {"resamples": resamples, "confidence": confidence, "seed": seed}
    found = []
    for bucket in previous:
        if bucket.share.value is None:
            continue
        then, now = (_column(half.get(bucket.id, {}), 1) for half in (before, after))
        shared = sorted(then.keys() & now.keys())
        difference = paired(now, then, **how)
        verdict = _verdict(difference, *_bounds(bucket.id, before, after, how))
        if verdict == NOT_ENOUGH:
            verdict = _agreed(difference, _plain_verdict(bucket.id, plain, how))
        found.append(
            BucketChange(
                bucket=bucket.id,
                cause=bucket.cause,
                family=bucket.family,
                treated=bucket.treated or bucket.id in treated,
                before=estimate([then[task] for task in shared], **how),
                after=estimate([now[task] for task in shared], **how),
                difference=difference,
                verdict=NOT_ENOUGH if bucket.cause in blind else verdict,
            )
        )
    return found


def _column(rows: Mapping[str, Row], place: int) -> dict[str, tuple[str, float]]:
    return {task: (row[0], row[place]) for task, row in rows.items()}  # type: ignore[misc]


def treat(
    buckets: Iterable[Bucket], materials: Iterable[Material], applied: Callable[[Material], bool] = lambda _: False
) -> list[Bucket]:
    """The buckets, those with approved material marked as treated. A proposal treats nothing until somebody has carried it
    out; `applied` says so."""
    given = {m.bucket for m in materials if m.approved and (m.kind != "proposal" or applied(m))}
    return [b.model_copy(update={"treated": b.id in given}) for b in buckets]


def central(evidence: Sequence[Evidence]) -> str:
    """Trajectory id of the most ordinary failure: nearest to the mean of the facts, each scaled by its spread; ties by
    id. ValueError on no evidence."""
    if not evidence:
        raise ValueError("no evidence: an empty bucket has no example")
    columns = list(zip(*(_features(e) for e in evidence), strict=True))
    means = [sum(column) / len(column) for column in columns]
    spreads = [sum((x - mean) ** 2 for x in column) / len(column) for column, mean in zip(columns, means, strict=True)]

    def distance(e: Evidence) -> float:
        rows = zip(_features(e), means, spreads, strict=True)
        return round(math.fsum((x - mean) ** 2 / spread for x, mean, spread in rows if spread > 1e-12), 9)

    return min(evidence, key=lambda e: (distance(e), e.trajectory)).trajectory


def _features(e: Evidence) -> list[float]:
    visible = 0.5 if e.visible_passed is None else float(e.visible_passed)
    numbers = (e.parse_errors, e.turns, e.tool_errors, e.forbidden, len(e.violations), e.failed_checks, e.passed_checks)
    flags = (e.truncated, e.submitted, e.unchanged, e.limit_hit is not None)
    return [*map(float, numbers), *map(float, flags), visible, float(len(e.touched)), float(e.task_passes)]


Decided = list[tuple[Evidence, Rule]]


def _grouped(evidence: Iterable[Evidence], rules: Sequence[Rule]) -> dict[tuple[str, str], Decided]:
    groups: dict[tuple[str, str], Decided] = defaultdict(list)
    for item in sorted(evidence, key=lambda e: e.trajectory):
        rule = decide(item, rules)
        groups[rule.cause, item.family].append((item, rule))
    return dict(sorted(groups.items()))


def _by_bucket(evidence: Iterable[Evidence], rules: Sequence[Rule]) -> dict[str, list[Evidence]]:
    return {bucket_id(*identity): [e for e, _ in rows] for identity, rows in _grouped(evidence, rules).items()}


def _indicator(half: Half, family: str, bucket: str, weights: Mapping[str, float], unseen: Unseen) -> dict[str, Row]:
    rows = {}
    for task, a in half.attempted.items():
        if a.family != family or not a.scored:
            continue
        held, open_ = weights.get(task, 0.0), unseen.get(task, ())
        here, all_ = open_.count(bucket), a.scored + a.lost
        most = (held - here + len(open_) + a.lost) / all_
        rows[task] = a.origin, min(1.0, held / a.scored), max(0.0, held - here) / all_, min(1.0, most)
    return rows


def _nowhere(half: Half, family: str) -> dict[str, Row]:
    return _indicator(half, family, "", {}, {})


def _share(half: Half, family: str, indicator: Mapping[str, Row], how: dict[str, Any]) -> Estimate:
    """Failures over scored attempts: tasks with more scored attempts weigh more, as in size / denominator."""
    rows = [
        (origin, share * half.attempted[task].scored, float(half.attempted[task].scored))
        for task, (origin, share, *_) in indicator.items()
    ]
    return ratio(rows, **how)


def _lost(count: int) -> Estimate:
    return Estimate(value=None, errors=count, method="attempts without a score are in no share")


def _usual(matched: Sequence[Rule], rules: Sequence[Rule]) -> str:
    """The rule that matched most members; the earlier one on ties."""
    counts = Counter(rule.id for rule in matched)
    order = [rule.id for rule in rules]
    return min(counts, key=lambda name: (-counts[name], order.index(name)))


def _bounds(bucket: str, before: Indicators, after: Indicators, how: dict[str, Any]) -> tuple[Estimate, Estimate]:
    """The difference at the most and at the least that what is not known could add to it."""
    (fewest_then, most_then), (fewest, most) = (
        [_column(half.get(bucket, {}), place) for place in (2, 3)] for half in (before, after)
    )
    return paired(most, fewest_then, **how), paired(fewest, most_then, **how)


def _plain_verdict(bucket: str, plain: tuple[Indicators, Indicators], how: dict[str, Any]) -> Verdict:
    before, after = plain
    then, now = (_column(half.get(bucket, {}), 1) for half in (before, after))
    return _verdict(paired(now, then, **how), *_bounds(bucket, before, after, how))


def _agreed(difference: Estimate, plain: Verdict) -> Verdict:
    """What was found (its interval) and the depth of all failures say the same."""
    low, high = difference.low, difference.high
    if low is None or high is None:
        return NOT_ENOUGH
    return plain if (plain == "shrank" and high < 0) or (plain == "grew" and low > 0) else NOT_ENOUGH


def _verdict(difference: Estimate, worst: Estimate, best: Estimate) -> Verdict:
    """`worst`, `best`: the difference at the most and the least that what is not known could add to it."""
    bounds = (difference.low, difference.high, worst.low, worst.high, best.low, best.high)
    if any(bound is None for bound in bounds):
        return NOT_ENOUGH
    low, high, _, worst_high, best_low, _ = (bound or 0.0 for bound in bounds)
    if high < 0 and worst_high < 0:
        return "shrank"
    if low > 0 and best_low > 0:
        return "grew"
    if best_low >= -BAND and worst_high <= BAND and low >= -BAND and high <= BAND:
        return "unchanged"
    return NOT_ENOUGH

"""Numbers with their intervals: pass@k, pass^k, conduct, paired differences. Origins are resampled, not attempts.

Tasks made from one origin succeed and fail together, so an interval over attempts or tasks would be too narrow: every
interval here is a bootstrap over origins. Attempts lost to infrastructure, or left unscored, are in no mean; they are
counted beside it. A metric without data is None, never 0. Values are rounded to 9 decimals, below any that matters, so
that the last bits of a sum do not enter a digest.

Not covered: seconds a task and costs (telemetry, in no digest), several training seeds at once, judges.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from schemas.errors import InputError
from schemas.metrics import Estimate
from schemas.trajectory import Attempt
from schemas.verdict import Status

RESAMPLES = 2000
CONFIDENCE = 0.95
DECIMALS = 9
SHARE, DIFFERENCE = (0.0, 1.0), (-1.0, 1.0)
PerTask = Mapping[str, tuple[str, float]]  # task id -> (origin, value)


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Chance that at least one of k attempts passes, unbiased from c passes in n: 1 - C(n-c, k) / C(n, k), in [0, 1].

    Chen et al. 2021 (arXiv:2107.03374), in exact integers. None when n < k: fewer attempts cannot say.
    ValueError unless 0 <= c <= n and k >= 1.
    """
    _check_counts(n, c, k)
    return None if n < k else 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_at_k_interval(n: int, c: int, k: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Of one task, that one of `k` attempts passes, from `c` passes of `n`: exact binomial bounds of the share, as 1 - (1 - p)^k.

    None without an attempt. With 0 of 4 the upper bound at k = 4 is 0.97: four failures say little.
    """
    _check_counts(n, c, k)
    if not n:
        return None
    low, high = _clopper_pearson(c / n, n, confidence)
    return _round(1.0 - (1.0 - low) ** k), _round(1.0 - (1.0 - high) ** k)


def pass_hat_k(n: int, c: int, k: int) -> float | None:
    """Chance that all of k attempts pass (consistency), unbiased from c of n: C(c, k) / C(n, k). None when n < k."""
    _check_counts(n, c, k)
    return None if n < k else math.comb(c, k) / math.comb(n, k)


def estimate(
    values: Iterable[tuple[str, float]],
    errors: int = 0,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Estimate:
    """Mean of (origin, share in [0, 1]), bootstrap interval over origins. `errors`: observations lost, only counted."""
    rows = [(origin, value, 1.0) for origin, value in values]
    return ratio(rows, errors, resamples=resamples, confidence=confidence, seed=seed)


def ratio(
    rows: Iterable[tuple[str, float, float]],
    errors: int = 0,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    span: tuple[float, float] | None = SHARE,
) -> Estimate:
    """Sum of numerators over sum of denominators of (origin, numerator, denominator), resampling origins.

    BCa bootstrap (Efron 1987; scipy.stats.bootstrap) of the ratio of the origins' sums, percentile where its
    acceleration is undefined. Degenerate data say so in `method`:
    - no row, or denominators that sum to 0: value None;
    - every origin has the same mean (so also: one origin): resampling would claim certainty. With a `span`, the range
      of the values, the place in it gets Clopper-Pearson with one trial an origin; without (counts, rewards), one
      origin gets no interval and several get a point.
    ValueError on a negative denominator or an infinite numerator.
    """
    sums, counts, n = _by_origin(rows)
    clusters = len(sums)
    total = math.fsum(counts)
    if total == 0:
        return Estimate(value=None, errors=errors, method="no data")
    value = math.fsum(sums) / total
    common = {"n": n, "clusters": clusters, "errors": errors}
    means = [s / c for s, c in zip(sums, counts, strict=True)]
    if max(means) - min(means) < 10**-DECIMALS:
        return _degenerate(value, len(means), confidence, span, common)
    low, high, kind = _bootstrap(sums, counts, resamples, confidence, seed)
    method = f"{kind} bootstrap over {clusters} origins, {resamples} resamples, seed {seed}"
    return _interval(value, low, high, method, common)


def paired(
    candidate: PerTask,
    reference: PerTask,
    *,
    errors: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Estimate:
    """Mean of candidate minus reference over the tasks that both have; values are shares in [0, 1].

    Where no origin differs by anything, 0 of n origins changed: the interval is plus and minus the Clopper-Pearson
    bound of that share, about 3.7 / n, since few origins without a loss do not prove that there is none.
    InputError when the two name different origins for a task: they are not the same tasks.
    """
    shared = sorted(candidate.keys() & reference.keys())
    for task in shared:
        if candidate[task][0] != reference[task][0]:
            raise InputError(
                f"paired: {task} has origin {candidate[task][0]!r} and {reference[task][0]!r}; compare one task set"
            )
    rows = [(candidate[task][0], candidate[task][1] - reference[task][1], 1.0) for task in shared]
    return ratio(rows, errors, resamples=resamples, confidence=confidence, seed=seed, span=DIFFERENCE)


def pass_shares(attempts: Iterable[Attempt]) -> dict[str, tuple[str, float]]:
    """Task -> (origin, share of its scored attempts that passed): what `paired` compares, and pass@1 of each task."""
    return {task: (origin, c / n) for task, (origin, n, c) in _counts(attempts).items() if n}


def attempt_metrics(
    attempts: Sequence[Attempt],
    k: int,
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> dict[str, Estimate]:
    """All metrics of one policy on one set of attempts; a criterion names them by these keys.

    | key | mean over | of |
    |---|---|---|
    | pass@1, pass@k, pass^k | tasks with at least k scored attempts | the unbiased estimate of the task |
    | score, reward | scored attempts | share of checks passed; what the reward rules made of it |
    | scored | attempts | 1 when scored, else 0: what the other means leave out |
    | violations | scored attempts | 1 when the verifier saw any |
    | audit_gap | scored attempts, without passes that have no audit | 1 when it passed and the audit verifier says it did not |
    | parse_rate, invalid_calls | turns | parsed as an action, did not |
    | submitted, unchanged, truncated, forbidden | finished trajectories | 1 when it was so |
    | tool_calls, turns, tokens | finished trajectories | count an attempt; generated tokens |
    `k` itself is in the key: pass@4. `errors` counts the attempts that a mean leaves out. Without an audit verifier there
    is no audit_gap.
    """
    how: dict[str, Any] = {"resamples": resamples, "confidence": confidence, "seed": seed}
    scored = [a for a in attempts if _scored(a)]
    done = [a for a in attempts if a.trajectory.status == "done"]
    lost, unfinished = len(attempts) - len(scored), len(attempts) - len(done)
    result = _pass_metrics(scored, k, lost, how)
    for name, rows in _score_rows(scored).items():
        result[name] = ratio(rows, lost, span=None if name in UNBOUNDED else SHARE, **how)
    if any(a.audit is not None for a in scored):
        gaps = [(a.trajectory.origin, float(contested(a)), 1.0) for a in scored if not unaudited(a)]
        result["audit_gap"] = ratio(gaps, lost + len(scored) - len(gaps), span=SHARE, **how)
    result["scored"] = estimate([(a.trajectory.origin, float(_scored(a))) for a in attempts], **how)
    for name, rows in _conduct_rows(done).items():
        result[name] = ratio(rows, unfinished, span=None if name in UNBOUNDED else SHARE, **how)
    return result


def by_family(
    attempts: Sequence[Attempt], *, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> dict[str, Estimate]:
    """pass@1 of each family, sorted by name."""
    families: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        families[attempt.trajectory.family].append(attempt)
    how: dict[str, Any] = {"resamples": resamples, "confidence": confidence, "seed": seed}
    return {
        family: estimate(pass_shares(rows).values(), sum(not _scored(a) for a in rows), **how)
        for family, rows in sorted(families.items())
    }


def contested(attempt: Attempt) -> bool:
    """The training verifier passes it and the audit verifier does not."""
    return bool(attempt.verdict.passed and attempt.audit and attempt.audit.passed is False)


def unaudited(attempt: Attempt) -> bool:
    """A pass without the audit verifier's word for or against it. What does not pass needs none."""
    return bool(attempt.verdict.passed and (attempt.audit is None or attempt.audit.status is not Status.SCORED))


def audit_gap(attempts: Iterable[Attempt]) -> float | None:
    """Pass share of the training verifier minus that of the audit verifier, in [-1, 1], where both gave a score.

    None when no attempt has both. Above 0: the training verifier lets pass what the audit does not.
    """
    both = [(a.verdict, a.audit) for a in attempts if _scored(a) and a.audit and a.audit.status is Status.SCORED]
    if not both:
        return None
    return _round(sum(bool(training.passed) - bool(audit.passed) for training, audit in both) / len(both))


def mixed_share(
    groups: Iterable[tuple[str, Sequence[float | None]]],
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Estimate:
    """Share of groups, given as (origin, rewards), whose rewards are not all equal: only those give a gradient.

    None rewards (errors, unscored) are ignored; a group with fewer than 2 others is undefined, and counted in `errors`.
    """
    values, undefined = [], 0
    for origin, rewards in groups:
        known = [reward for reward in rewards if reward is not None]
        if len(known) < 2:
            undefined += 1
        else:
            values.append((origin, float(max(known) - min(known) > 10**-DECIMALS)))
    return estimate(values, undefined, resamples=resamples, confidence=confidence, seed=seed)


def reward_groups(attempts: Iterable[Attempt]) -> list[tuple[str, list[float | None]]]:
    """(origin, rewards) of each group: the trajectory's group where it has one, else its task. Sorted by group."""
    groups: dict[str, tuple[str, list[float | None]]] = {}
    for attempt in attempts:
        trajectory = attempt.trajectory
        group = groups.setdefault(trajectory.group or trajectory.task_id, (trajectory.origin, []))
        group[1].append(attempt.reward.value)
    return [groups[name] for name in sorted(groups)]


def _check_counts(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n or k < 1:
        raise ValueError(f"{c} passes of {n} attempts with k = {k}: needs 0 <= passes <= attempts and k >= 1")


def _scored(attempt: Attempt) -> bool:
    return attempt.trajectory.status == "done" and attempt.verdict.status is Status.SCORED


def _counts(attempts: Iterable[Attempt]) -> dict[str, tuple[str, int, int]]:
    """task -> (origin, scored attempts, passes)."""
    counts: dict[str, tuple[str, int, int]] = {}
    for attempt in attempts:
        if _scored(attempt):
            task = attempt.trajectory.task_id
            origin, n, c = counts.get(task, (attempt.trajectory.origin, 0, 0))
            counts[task] = (origin, n + 1, c + bool(attempt.verdict.passed))
    return counts


def _pass_metrics(scored: Sequence[Attempt], k: int, lost: int, how: dict[str, Any]) -> dict[str, Estimate]:
    counts = _counts(scored).values()
    result = {}
    for width in sorted({1, k}):
        rows = [(origin, pass_at_k(n, c, width)) for origin, n, c in counts]
        result[f"pass@{width}"] = estimate([(o, v) for o, v in rows if v is not None], lost, **how)
    if k > 1:
        rows = [(origin, pass_hat_k(n, c, k)) for origin, n, c in counts]
        result[f"pass^{k}"] = estimate([(o, v) for o, v in rows if v is not None], lost, **how)
    return result


Rows = list[tuple[str, float, float]]
CONDUCT = (
    "parse_rate",
    "invalid_calls",
    "tool_calls",
    "turns",
    "tokens",
    "submitted",
    "unchanged",
    "truncated",
    "forbidden",
)
UNBOUNDED = frozenset({"reward", "tool_calls", "turns", "tokens"})


def _score_rows(scored: Sequence[Attempt]) -> dict[str, Rows]:
    rows: dict[str, Rows] = {"score": [], "reward": [], "violations": []}
    for attempt in scored:
        origin, verdict = attempt.trajectory.origin, attempt.verdict
        rows["score"].append((origin, verdict.score or 0.0, 1.0))
        rows["violations"].append((origin, float(bool(verdict.violations)), 1.0))
        if attempt.reward.value is not None:
            rows["reward"].append((origin, attempt.reward.value, 1.0))
    return rows


def _conduct_rows(done: Sequence[Attempt]) -> dict[str, Rows]:
    rows: dict[str, Rows] = defaultdict(list)
    for attempt in done:
        origin, conduct, turns = attempt.trajectory.origin, attempt.trajectory.conduct, attempt.trajectory.turns
        rows["parse_rate"].append((origin, float(sum(t.parse_error is None for t in turns)), float(len(turns))))
        rows["invalid_calls"].append((origin, float(conduct.invalid_calls), float(conduct.turns)))
        for name in ("tool_calls", "turns", "submitted", "unchanged"):
            rows[name].append((origin, float(getattr(conduct, name)), 1.0))
        rows["tokens"].append((origin, float(conduct.generated_tokens), 1.0))
        rows["truncated"].append((origin, float(conduct.truncated_turns > 0), 1.0))
        rows["forbidden"].append((origin, float(bool(conduct.forbidden)), 1.0))
    return {name: rows[name] for name in CONDUCT}


def _by_origin(rows: Iterable[tuple[str, float, float]]) -> tuple[list[float], list[float], int]:
    """Sums and counts of each origin, sorted by origin and added exactly, so that the order of rows does not matter."""
    parts: dict[str, list[tuple[float, float]]] = defaultdict(list)
    n = 0
    for origin, numerator, denominator in rows:
        if denominator < 0 or not math.isfinite(numerator):
            raise ValueError(f"origin {origin}: {numerator} / {denominator} is not a finite share of something")
        parts[origin].append((numerator, denominator))
        n += round(denominator)
    names = [origin for origin in sorted(parts) if any(den > 0 for _, den in parts[origin])]
    sums = [math.fsum(num for num, _ in parts[origin]) for origin in names]
    counts = [math.fsum(den for _, den in parts[origin]) for origin in names]
    return sums, counts, n


def _bootstrap(
    sums: list[float], counts: list[float], resamples: int, confidence: float, seed: int
) -> tuple[float, float, str]:
    import warnings

    from scipy import stats

    def share(s: Any, c: Any, axis: int = -1) -> Any:
        return s.sum(axis=axis) / c.sum(axis=axis)

    data = (np.asarray(sums), np.asarray(counts))
    for kind in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=stats.DegenerateDataWarning)
            interval = stats.bootstrap(
                data,
                share,
                paired=True,
                vectorized=True,
                n_resamples=resamples,
                confidence_level=confidence,
                method=kind,
                rng=np.random.default_rng(seed),
            ).confidence_interval
        low, high = float(interval.low), float(interval.high)
        if math.isfinite(low) and math.isfinite(high):
            break
    return low, high, kind


def _degenerate(
    value: float, clusters: int, confidence: float, span: tuple[float, float] | None, common: dict[str, int]
) -> Estimate:
    if span == DIFFERENCE and abs(value) < 10**-DECIMALS:
        _, bound = _clopper_pearson(0.0, clusters, confidence)
        return _interval(0.0, -bound, bound, f"Clopper-Pearson, 0 of {clusters} origins differ", common)
    if span is not None:
        width = span[1] - span[0]
        low, high = _clopper_pearson((value - span[0]) / width, clusters, confidence)
        method = f"Clopper-Pearson over {clusters} origins that are all equal"
        return _interval(value, span[0] + width * low, span[0] + width * high, method, common)
    if clusters == 1:
        return Estimate(value=_round(value), method="one origin: no interval", **common)
    return _interval(value, value, value, f"{clusters} origins that are all equal", common)


def _interval(value: float, low: float, high: float, method: str, common: dict[str, int]) -> Estimate:
    low, high = _round(min(low, value)), _round(max(high, value))
    return Estimate(value=_round(value), low=low, high=high, method=method, **common)


def _clopper_pearson(share: float, n: int, confidence: float) -> tuple[float, float]:
    """Exact binomial interval of `share * n` successes in n; the beta form also takes fractions (then conservative)."""
    from scipy.stats import beta

    alpha, successes = 1.0 - confidence, share * n
    low = 0.0 if successes <= 0 else float(beta.ppf(alpha / 2, successes, n - successes + 1))
    high = 1.0 if successes >= n else float(beta.ppf(1 - alpha / 2, successes + 1, n - successes))
    return low, high


def _round(value: float) -> float:
    return round(value, DECIMALS) + 0.0  # no minus zero

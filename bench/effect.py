"""The effect of the loop: base, SFT and RL of every round over several seeds, with intervals; and what the buckets did.

    python -m bench.effect --seeds 0 1 2 --rounds 2 --folder DIR --out FILE.json [--template default|tiny]

Each seed is a workspace DIR/seed-N, brought to its rounds by `postloop run`; a complete one is only read, so a killed
benchmark goes on. Every number is computed from records and attempts. Intervals: 95%, evals/metrics.py.

Pooled over seeds, a difference is paired by (seed, task) and its bootstrap resamples origins: the same function in
several seeds is one cluster, so more seeds do not pretend to be more functions. Seeds themselves are few and are not
resampled: such an interval speaks of other functions and of these seeds' trainings. `between_seeds` is the other half:
the mean of the seeds' values with a t interval, which speaks of other trainings on these functions.
Not covered: both at once, and settings, which are chosen on dev, never here.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import cache_folder, load, machine, make_workspace, run_rounds, say, share, table, write_json
from evals.metrics import PerTask, estimate, paired, pass_at_k, pass_shares, ratio
from schemas.backflow import BackflowRecord
from schemas.errors import PostloopError
from schemas.evaluation import EvaluationRecord
from schemas.goal import GoalRecord
from schemas.metrics import Estimate
from schemas.record import STAGES
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.trajectory import Attempt
from schemas.verdict import Status
from stages.attempts import read_attempts
from stages.backflow import measured_again
from stages.context import Context
from stages.rounds import key_of
from stages.spec import load_spec
from stages.workspace import Workspace

DIFFERENCES = (("final", "base"), ("sft", "base"), ("rl", "sft"))
VERDICTS = ("shrank", "unchanged", "grew", "not enough evidence")
SHOWN = ("parse_rate", "unchanged", "turns", "tool_calls", "tokens")
Attempts = dict[str, dict[str, list[Attempt]]]  # policy -> suite -> attempts


@dataclass(frozen=True)
class Round:
    """One round of one seed, read."""

    seed: int
    number: int
    record: EvaluationRecord
    attempts: Attempts
    k: int
    resamples: int
    confidence: float

    @property
    def how(self) -> dict[str, Any]:
        return {"resamples": self.resamples, "confidence": self.confidence}

    @property
    def final(self) -> str:
        """What the round trained last."""
        return next(name for name in ("rl", "sft", "base") if name in self.attempts)

    def named(self, policy: str) -> str | None:
        """`final` as what it is here; None when the round has no such policy."""
        policy = self.final if policy == "final" else policy
        return policy if policy in self.attempts else None

    def suites(self) -> list[str]:
        return sorted(self.attempts["base"])

    def shares(self, policy: str, suite: str, metric: str) -> dict[str, tuple[str, float]]:
        """Task -> (origin, value): pass@1 or, where it can be known, pass@k."""
        name = self.named(policy)
        if name is None:
            return {}
        rows = self.attempts[name][suite]
        return pass_shares(rows) if metric == "pass@1" else at_k(rows, self.k)


def at_k(attempts: Iterable[Attempt], k: int) -> dict[str, tuple[str, float]]:
    """Task -> (origin, unbiased pass@k); tasks with fewer than k scored attempts are left out."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    origins: dict[str, str] = {}
    for attempt in attempts:
        if attempt.trajectory.status == "done" and attempt.verdict.status is Status.SCORED:
            counts[attempt.trajectory.task_id][0] += 1
            counts[attempt.trajectory.task_id][1] += bool(attempt.verdict.passed)
            origins[attempt.trajectory.task_id] = attempt.trajectory.origin
    values = {task: pass_at_k(n, c, k) for task, (n, c) in counts.items()}
    return {task: (origins[task], value) for task, value in sorted(values.items()) if value is not None}


# --- reading


def read_round(space: Workspace, seed: int, number: int) -> Round:
    """Records and attempts of one round. An attempts artifact is its policies' whose weights wrote its turns.

    Two policies may have the same weights: a training that found no gradient leaves them alone.
    """
    record = space.read(number, "evaluation")
    goal: Any = space.read(number, "goal")
    assert isinstance(record, EvaluationRecord)
    spec = goal.spec.evaluation
    names: dict[str, set[str]] = defaultdict(set)
    for result in record.results:
        names[result.checkpoint].add(result.policy)
    found: Attempts = {}
    for label, ref in sorted(record.artifacts.items()):
        if label.startswith("attempts-"):
            folder = space.open_artifact(ref)
            rows = {suite.name: read_attempts(folder / f"{suite.name}.parquet") for suite in spec.suites}
            found |= dict.fromkeys(names[_weights(rows, names, label)], rows)
    missing = sorted({str(result.policy) for result in record.results} - found.keys())
    if missing:
        raise ValueError(f"round {number}: no attempts of {', '.join(missing)}")
    return Round(seed, number, record, found, spec.k, spec.resamples, spec.confidence)


def _weights(suites: dict[str, list[Attempt]], names: dict[str, set[str]], label: str) -> str:
    found = {turn.policy for rows in suites.values() for attempt in rows for turn in attempt.trajectory.turns}
    if len(found) != 1 or not found <= names.keys():
        known = sorted(digest[:12] for digest in names)
        raise ValueError(f"{label}: written by {sorted(digest[:12] for digest in found)}, the record knows {known}")
    return found.pop()


def made_by_this_code(space: Workspace, numbers: Iterable[int]) -> bool:
    """Whether every record's key is the one that specs, inputs, code and libraries of now would give."""
    spec = load_spec(space.spec_path)
    contexts = [Context(space, number, spec, cache_folder()) for number in numbers]
    return all(key_of(ctx, stage)[0] == ctx.record(stage).key for ctx in contexts for stage in STAGES)


# --- one seed


def of_round(space: Workspace, this: Round) -> dict[str, Any]:
    """Everything that is shown of one round of one seed."""
    sft, rl = space.read(this.number, "sft"), space.read(this.number, "rl")
    assert isinstance(sft, SftRecord)
    assert isinstance(rl, RlRecord)
    records = list(space.records(this.number).values())
    return {
        "final": this.final,
        "results": {
            suite: {r.policy: _shown(r.metrics) for r in this.record.results if r.suite == suite}
            for suite in this.suites()
        },
        "differences": {
            suite: {
                f"{a}-{b}": _dump(paired(this.shares(a, suite, "pass@1"), this.shares(b, suite, "pass@1"), **this.how))
                for a, b in DIFFERENCES
                if this.named(a) and this.named(b) and this.named(a) != this.named(b)
            }
            for suite in this.suites()
        },
        "gates": {f"{r.stage}.{gate.name}": gate.because for r in records for gate in r.gates},
        "alarms": sorted({alarm.name for r in records for alarm in r.alarms}),
        "promoted": this.record.promoted,
        "goal_met": this.record.goal_met,
        "infrastructure_errors": sum(r.infrastructure_errors for r in records),
        "reused": {r.stage: r.reused_from for r in records if r.reused_from is not None},
        "sft": {"rows": sft.rows, "loss": sft.loss, "skipped": sft.skipped},
        "rl": {
            "skipped": rl.skipped,
            "steps": rl.steps,
            "groups_sampled": rl.groups_sampled,
            "groups_used": rl.groups_used,
            "curves": rl.curves,
        },
        "stage_seconds": {stage: space.telemetry(this.number, stage).get("seconds") for stage in STAGES},
    }


def _shown(metrics: dict[str, Estimate]) -> dict[str, Any]:
    return {name: _dump(metrics[name]) for name in sorted(metrics) if name in SHOWN or name.startswith("pass@")}


def _dump(value: Estimate) -> dict[str, Any]:
    return value.model_dump(mode="json")


def buckets_of(space: Workspace, number: int) -> list[dict[str, Any]]:
    """The buckets of a round, each with what the next round measured of it (None where it has no change), by the comparison
    of this code on what both rounds kept."""
    record, goal = space.read(number, "backflow"), space.read(number + 1, "goal")
    assert isinstance(record, BackflowRecord)
    changes = {}
    if isinstance(goal, GoalRecord) and space.has(number + 1, "backflow"):
        changes = {c.bucket: c for c in measured_again(Context(space, number + 1, goal.spec, cache_folder()))}
    rows = []
    for bucket in record.buckets:
        change = changes.get(bucket.id)
        rows.append(
            {
                "id": bucket.id,
                "cause": bucket.cause,
                "family": bucket.family,
                "route": bucket.route.value,
                "rule": bucket.rule,
                "size": bucket.size,
                "denominator": bucket.denominator,
                "treated": change.treated if change else bucket.treated,
                "material": sorted({m.kind for m in record.material if m.bucket == bucket.id and m.approved}),
                "before": _dump(change.before) if change else None,
                "after": _dump(change.after) if change else None,
                "difference": _dump(change.difference) if change else None,
                "verdict": change.verdict if change else None,
            }
        )
    return rows


# --- pooled


def pooled(pairs: Sequence[tuple[int, PerTask, PerTask]], **how: Any) -> dict[str, Any]:
    """(seed, candidate, reference) of each seed as one paired difference by (seed, task), clusters are origins."""
    candidate = {f"{seed}/{task}": value for seed, one, _ in pairs for task, value in one.items()}
    reference = {f"{seed}/{task}": value for seed, _, other in pairs for task, value in other.items()}
    by_seed = {str(seed): _dump(paired(one, other, **how)) for seed, one, other in pairs}
    points = [row["value"] for row in by_seed.values() if row["value"] is not None]
    return {
        "difference": _dump(paired(candidate, reference, **how)),
        "seeds": [seed for seed, _, _ in pairs],
        "by_seed": by_seed,
        "between_seeds": between(points, how.get("confidence", 0.95)),
    }


def between(points: Sequence[float], confidence: float) -> dict[str, Any]:
    """Mean of the seeds' values and its t interval; none with fewer than two seeds, or where all are equal."""
    from scipy.stats import t

    if len(points) < 2:
        return {"mean": points[0] if points else None, "sd": None, "low": None, "high": None, "n": len(points)}
    mean, sd = statistics.fmean(points), statistics.stdev(points)
    if sd == 0.0:
        return {"mean": round(mean, 6), "sd": 0.0, "low": None, "high": None, "n": len(points)}
    reach = float(t.ppf((1 + confidence) / 2, len(points) - 1)) * sd / math.sqrt(len(points))
    return {
        "mean": round(mean, 6), "sd": round(sd, 6), "low": round(mean - reach, 6), "high": round(mean + reach, 6),
        "n": len(points),
    }  # fmt: skip


def pool_rounds(rounds: Sequence[Round]) -> dict[str, Any]:
    """Each round's differences and levels, and what a round added to the one before, over all seeds."""
    numbers, how = sorted({r.number for r in rounds}), rounds[0].how
    answer: dict[str, Any] = {}
    for number in numbers:
        here = [r for r in rounds if r.number == number]
        before = {r.seed: r for r in rounds if r.number == number - 1}
        for suite in here[0].suites():
            for metric in ("pass@1", f"pass@{here[0].k}") if here[0].k > 1 else ("pass@1",):
                place = answer.setdefault(f"round {number}", {}).setdefault(suite, {}).setdefault(metric, {})
                for policy in ("base", "sft", "rl", "final"):
                    rows = [v for r in here for v in r.shares(policy, suite, metric).values()]
                    if rows:
                        place[policy] = _dump(estimate(rows, **how))
                for a, b in DIFFERENCES:
                    # A round without RL has no rl-sft; it still has a final-base.
                    both = [r for r in here if r.named(a) and r.named(b) and r.named(a) != r.named(b)]
                    pairs = [(r.seed, r.shares(a, suite, metric), r.shares(b, suite, metric)) for r in both]
                    if any(one and other for _, one, other in pairs):
                        place[f"{a}-{b}"] = pooled(pairs, **how)
                pairs = [
                    (r.seed, r.shares("final", suite, metric), before[r.seed].shares("final", suite, metric))
                    for r in here
                    if r.seed in before
                ]
                if any(one and other for _, one, other in pairs):
                    place[f"final-round {number - 1} final"] = pooled(pairs, **how)
    return answer


def pool_buckets(seeds: dict[str, Any], **how: Any) -> dict[str, Any]:
    """Treated beside untreated buckets: chance alone shrinks what was chosen because it was large."""
    rows = [bucket for seed in seeds.values() for bucket in seed["buckets"] if bucket["verdict"] is not None]
    answer: dict[str, Any] = {}
    for name, treated in (("treated", True), ("untreated", False)):
        own = [row for row in rows if row["treated"] is treated]
        known = [(row["id"], row["difference"]["value"], 1.0) for row in own if row["difference"]["value"] is not None]
        counts = Counter(row["verdict"] for row in own)
        answer[name] = {
            "buckets": len(own),
            **{verdict: counts[verdict] for verdict in VERDICTS},
            # The same cause and family in several seeds is one cluster.
            "mean_difference": _dump(ratio(known, span=(-1.0, 1.0), **how)),
        }
    return answer


def better(last: dict[str, Any]) -> bool | None:
    """The last round's final model on the held-out set: the whole paired interval above 0. None without an interval."""
    pair = last.get("held_out", {}).get("pass@1", {}).get("final-base")
    low = pair["difference"]["low"] if pair else None
    return None if low is None else bool(low > 0)


def stage_seconds(seeds: dict[str, Any], numbers: Iterable[int]) -> dict[str, Any]:
    """Mean over seeds; a stage that was reused takes none worth speaking of and is left in."""
    answer = {}
    for number in numbers:
        per = [seed["rounds"][str(number)]["stage_seconds"] for seed in seeds.values()]
        means = {s: [row[s] for row in per if row[s] is not None] for s in STAGES}
        answer[f"round {number}"] = {s: round(statistics.fmean(v), 1) for s, v in means.items() if v}
    return answer


# --- shown


def markdown(result: dict[str, Any]) -> str:
    parts = (_levels, _differences, _buckets, _treatment, _seconds)
    return "\n\n".join(part(result) for part in parts) + "\n"


def _levels(result: dict[str, Any]) -> str:
    rows = [
        [name, suite, metric, *(share(place.get(policy)) for policy in ("base", "sft", "rl", "final"))]
        for name, suites in result["pooled"].items()
        for suite, metrics in suites.items()
        for metric, place in metrics.items()
        if place
    ]
    return table(["round", "suite", "metric", "base", "SFT", "RL", "final"], rows)


def _differences(result: dict[str, Any]) -> str:
    rows = []
    for name, suites in result["pooled"].items():
        for suite, metrics in suites.items():
            for metric, place in metrics.items():
                for pair, value in place.items():
                    if "difference" in value:
                        d, t = value["difference"], value["between_seeds"]
                        apart = "-"
                        if t["low"] is not None:
                            apart = f"{t['mean']:+.3f} [{t['low']:+.3f}, {t['high']:+.3f}]"
                        rows.append([name, suite, metric, pair, share(d, True), d["n"], d["clusters"], t["n"], apart])
    head = ["round", "suite", "metric", "difference", "paired [95%]", "pairs", "origins", "seeds", "between seeds [t]"]
    return table(head, rows)


def _buckets(result: dict[str, Any]) -> str:
    rows = [
        [
            seed, b["cause"], b["family"], b["route"], f"{b['size']}/{b['denominator']}", _yes(b["treated"]),
            share(b["before"]), share(b["after"]), share(b["difference"], True), b["verdict"] or "-",
        ]
        for seed, one in result["seeds"].items()
        for b in one["buckets"]
    ]  # fmt: skip
    head = ["seed", "cause", "family", "route", "size", "treated", "round 1", "round 2", "change", "verdict"]
    return table(head, rows)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _treatment(result: dict[str, Any]) -> str:
    rows = [
        [name, row["buckets"], *(row[verdict] for verdict in VERDICTS), share(row["mean_difference"], True)]
        for name, row in result["treatment"].items()
    ]
    return table(["buckets", "n", *VERDICTS, "mean change"], rows)


def _seconds(result: dict[str, Any]) -> str:
    rows = [
        [name, *(row.get(stage, "-") for stage in STAGES), round(sum(row.values()), 1)]
        for name, row in result["stage_seconds"].items()
    ]
    return table(["seconds, mean over seeds", *STAGES, "sum"], rows)


def measure(seeds: Sequence[int], rounds: int, folder: Path, template: str) -> dict[str, Any]:
    """Run what is missing, read everything, compute. Raises PostloopError."""
    found: list[Round] = []
    by_seed: dict[str, Any] = {}
    for seed in seeds:
        space = make_workspace(folder / f"seed-{seed}", template, seed)
        seconds = run_rounds(space, rounds, folder / f"seed-{seed}.log")
        own = [read_round(space, seed, number) for number in range(1, rounds + 1)]
        found += own
        current = made_by_this_code(space, range(1, rounds + 1))
        if not current:
            say(f"{space.root}: other code made it; name another folder to measure the code of now")
        by_seed[str(seed)] = {
            "rounds": {str(this.number): of_round(space, this) for this in own},
            "buckets": buckets_of(space, 1),
            "seconds_of_this_run": round(seconds, 1),
            "made_by_this_code": current,
        }
    pooled_rounds = pool_rounds(found)
    return {
        "template": template,
        "machine": machine(),
        "load": load(),
        "seeds": by_seed,
        "pooled": pooled_rounds,
        "better_than_base": better(pooled_rounds[f"round {rounds}"]),
        "treatment": pool_buckets(by_seed, **found[0].how),
        "stage_seconds": stage_seconds(by_seed, range(1, rounds + 1)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, required=True, help="workspaces seed-N are made or continued here")
    parser.add_argument("--template", choices=("default", "tiny"), default="default")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if len(set(options.seeds)) != len(options.seeds):
        parser.error("--seeds: one is given twice")
    try:
        result = measure(options.seeds, options.rounds, options.folder.resolve(), options.template)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    print(markdown(result))
    # Exit 1, the answer is no. The tiny model can do nothing, so of it nothing is claimed.
    return 0 if result["better_than_base"] or options.template == "tiny" else 1


if __name__ == "__main__":
    sys.exit(main())

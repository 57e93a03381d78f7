"""Compare two rounds of a workspace. No pin has to be equal: the comparison shows which are not.

The final policies are paired task by task, as promotion pairs them, with intervals that resample origins; a pair of rounds
whose suites share no task has no difference. Not covered: rounds of two workspaces.
"""

from __future__ import annotations

from typing import Any

from evals.metrics import paired, pass_shares
from schemas.backflow import BackflowRecord
from schemas.compare import BucketState, Comparison, Moved, PinChange
from schemas.errors import InputError
from schemas.evaluation import EvaluationRecord
from schemas.goal import GoalRecord
from schemas.metrics import SuiteResult
from schemas.trajectory import Attempt
from stages.attempts import read_attempts
from stages.workspace import Workspace

FINAL = ("rl", "sft", "champion", "base")  # the first of these that a round evaluated is what it made


def compare(space: Workspace, before: int, after: int) -> Comparison:
    """Raises InputError for a round that does not exist or has not begun."""
    for number in (before, after):
        if number not in space.rounds():
            raise InputError(f"round {number}: there is none; rounds: {', '.join(map(str, space.rounds())) or 'none'}")
    return Comparison(
        before=before, after=after, pins=_pins(space, before, after), metrics=_metrics(space, before, after),
        buckets=_buckets(space, before, after),
    )  # fmt: skip


def _pins(space: Workspace, before: int, after: int) -> list[PinChange]:
    found = [space.pins(number) for number in (before, after)]
    old, new = (pin.pins if pin else {} for pin in found)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [PinChange(pin=name, before=old.get(name), after=new.get(name)) for name in names]


def _metrics(space: Workspace, before: int, after: int) -> list[Moved]:
    old, new = (_final(space, number) for number in (before, after))
    goal = space.read(after, "goal")
    assert isinstance(goal, GoalRecord)
    spec = goal.spec.evaluation
    how: dict[str, Any] = {"resamples": spec.resamples, "confidence": spec.confidence}
    found = []
    for suite in sorted(old.keys() & new.keys()):
        results = old[suite][0].metrics, new[suite][0].metrics
        shares = [pass_shares(attempts) for _, attempts in (old[suite], new[suite])]
        for metric in sorted(results[0].keys() & results[1].keys()):
            same = metric == "pass@1" and shares[0].keys() & shares[1].keys()
            difference = paired(shares[1], shares[0], **how) if same else None
            moved = Moved(
                suite=suite, metric=metric, before=results[0][metric], after=results[1][metric], difference=difference
            )
            found.append(moved)
    return found


def _final(space: Workspace, number: int) -> dict[str, tuple[SuiteResult, list[Attempt]]]:
    """Suite -> result and attempts of the policy that the round made."""
    record = space.read(number, "evaluation")
    if not isinstance(record, EvaluationRecord) or record.skipped:
        return {}
    policies = [result.policy for result in record.results]
    final = next((name for name in FINAL if name in policies), None)
    results = {result.suite: result for result in record.results if result.policy == final}
    found: dict[str, tuple[SuiteResult, list[Attempt]]] = {}
    for ref in record.artifacts.values():
        if not ref.name.startswith("attempts-"):
            continue
        folder = space.open_artifact(ref)
        for suite, result in results.items():
            rows = read_attempts(folder / f"{suite}.parquet") if (folder / f"{suite}.parquet").is_file() else []
            if any(turn.policy == result.checkpoint for row in rows for turn in row.trajectory.turns):
                found[suite] = result, rows
    return found


def _buckets(space: Workspace, before: int, after: int) -> list[BucketState]:
    old, new = ({bucket.id: bucket for bucket in _backflow(space, number)} for number in (before, after))
    found = []
    for name in sorted(old.keys() | new.keys()):
        either = new.get(name) or old[name]
        sizes = [buckets[name].size if name in buckets else None for buckets in (old, new)]
        state = BucketState(
            id=name, cause=either.cause, family=either.family, route=either.route, before=sizes[0], after=sizes[1]
        )
        found.append(state)
    return found


def _backflow(space: Workspace, number: int) -> list[Any]:
    record = space.read(number, "backflow")
    return list(record.buckets) if isinstance(record, BackflowRecord) else []

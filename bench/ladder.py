"""How far the ladder gets with the failures of a recorded round, by its budget of attempts.

    python -m bench.ladder --workspace W --out FILE.json [--round N] [--attempts 128 160 640]

The failures of dev that the round's backflow recorded, attributed anew by the code of now under the rules of the round's spec and
each budget in turn: how many the log, L0 and L1 alone decided, how many an experiment with a policy, how many stay open, and what
each rung took. Beside it the same of the round's own record. Nothing is written to the workspace.
Not covered: whether the owners are right, which nobody knows of real failures (bench/planted.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import cache_folder, load, machine, say, table, write_json
from evals.rules import complete
from schemas.attribution import RUNGS, Attribution, Rung
from schemas.backflow import BackflowRecord
from schemas.errors import EXIT_DONE, InputError, PostloopError
from schemas.goal import GoalRecord
from stages.attempts import read_attempts
from stages.attribute import costs
from stages.backflow import attributed, read_attributions
from stages.context import Context
from stages.tasks import load_tasks
from stages.workspace import Workspace

DEEP = frozenset(name for name, rung in RUNGS.items() if rung in (Rung.L2, Rung.L3) and name != "again")


def summary(found: Sequence[Attribution]) -> dict[str, Any]:
    closed = [one for one in found if not one.undecided]
    deep = [one for one in closed if any(e.name in DEEP and e.impossible is None for e in one.experiments)]
    return {
        "failures": len(found),
        "tasks": len({one.evidence.task_id for one in found}),
        "decided_by_log_l0_l1": len(closed) - len(deep),
        "decided_with_a_policy": len(deep),
        "tasks_to_the_end": len({one.evidence.task_id for one in deep}),
        "open": len(found) - len(closed),
        "rungs": {rung: cost.model_dump() for rung, cost in costs(found).items()},
        "causes": dict(Counter(one.cause for one in found).most_common()),
        "causes_with_a_policy": dict(Counter(one.cause for one in deep).most_common()),
    }


def climbed(ctx: Context, attempts: int) -> list[Attribution]:
    """The round's failures under another budget."""
    goal, record = ctx.record("goal"), ctx.record("backflow")
    assert isinstance(goal, GoalRecord)
    assert isinstance(record, BackflowRecord)
    spent = goal.spec.backflow.attribution.model_copy(update={"attempts": attempts})
    backflow = goal.spec.backflow.model_copy(update={"attribution": spent})
    asked = goal.model_copy(update={"spec": goal.spec.model_copy(update={"backflow": backflow})})
    rows = read_attempts(ctx.workspace.open_artifact(record.artifacts["attempts"]) / "attempts.parquet")
    return attributed(ctx, asked, load_tasks(ctx), rows, complete(goal.spec.routes))


def measure(space: Workspace, number: int, budgets: Sequence[int]) -> dict[str, Any]:
    goal, record = space.read(number, "goal"), space.read(number, "backflow")
    if not isinstance(goal, GoalRecord) or not isinstance(record, BackflowRecord) or record.skipped is not None:
        raise InputError(f"{space.root}: round {number} has no backflow; name another --round")
    ctx = Context(space, number, goal.spec, cache_folder())
    kept = read_attributions(space.open_artifact(record.artifacts["attributions"]))
    result: dict[str, Any] = {"recorded": summary(kept)}
    for budget in budgets:
        say(f"ladder: round {number} with {budget} attempts")
        began_s = time.monotonic()
        result[str(budget)] = {**summary(climbed(ctx, budget)), "seconds": round(time.monotonic() - began_s, 1)}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--round", type=int, default=1)
    parser.add_argument("--attempts", type=int, nargs="+", default=[160])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        found = measure(Workspace.open(options.workspace), options.round, options.attempts)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, {"round": options.round, "budgets": found, "machine": machine(), "load": load()})
    shown = ("failures", "decided_by_log_l0_l1", "decided_with_a_policy", "tasks_to_the_end", "open")
    print(table(["attempts", *shown], [[name, *(one[key] for key in shown)] for name, one in found.items()]))
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())

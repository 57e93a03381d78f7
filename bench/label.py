"""A label that a person gives a trace on a real MLflow server: what it changes in a real next round.

    python -m bench.label --folder DIR --out FILE.json [--workspace DIR]

On a copy of a workspace with at least one round (--workspace), or on a tiny one that is made in --folder. Two copies: in one, an
`mlflow server` is started over the loop's own store and MLflow's client labels the trace of one failure of the largest bucket
that got material with another route; the other is left alone. In both the next round then runs up to its data stage.

Holds when, by the records alone, the labelled copy has a decision with who, when and why that came from MLflow, its next goal
handed over another kind of material for that bucket, and its data stage made other rows of it, and the copy left alone none of
these. Not covered: what such a label is worth; bench/ablation.py and the next round's comparison say that.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from bench.common import load, machine, make_workspace, postloop, run_rounds, say, table, timed, write_json
from flows.schedule import mlflow_server
from reports.tracking import client_of
from schemas.backflow import BackflowRecord
from schemas.bucket import Bucket, Route
from schemas.data import DataRecord
from schemas.errors import EXIT_DONE, EXIT_NO, InputError, PostloopError
from schemas.goal import GoalRecord
from stages.decisions import decisions
from stages.workspace import Workspace

OTHER = {Route.DATA: Route.SFT, Route.SFT: Route.DATA, Route.RL: Route.DATA}
WHO, WHY = "reviewer", "I read the trace"


def first(folder: Path, workspace: Path | None) -> Workspace:
    if workspace is not None:
        return Workspace.open(workspace)
    space = make_workspace(folder / "workspace", "tiny", seed=0)
    run_rounds(space, 1, folder / "workspace.log")
    return space


def copied(space: Workspace, root: Path) -> Workspace:
    if not root.is_dir():
        part = root.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(space.root, part, symlinks=True)
        part.replace(root)
    return Workspace.open(root)


def treated(space: Workspace, number: int) -> Bucket:
    """The largest bucket that got material and that another stage could own."""
    record = space.read(number, "backflow")
    assert isinstance(record, BackflowRecord)
    handed = {item.bucket for item in record.material if item.approved}
    found = [bucket for bucket in record.buckets if bucket.id in handed and bucket.route in OTHER]
    if not found:
        raise InputError(
            f"{space.root}: round {number} handed nothing over that a label could move; take another workspace"
        )
    return max(found, key=lambda bucket: bucket.size)


def label(space: Workspace, bucket: Bucket) -> None:
    """What the reviewer does in the page of the server, by MLflow's own client."""
    import mlflow
    from mlflow.entities import AssessmentSource

    with mlflow_server(space.root, None) as uri, client_of(uri) as client:
        places = [experiment.experiment_id for experiment in client.search_experiments()]
        wanted = f"tags.`postloop.trajectory` = '{bucket.example}'"
        (trace,) = client.search_traces(locations=places, filter_string=wanted, max_results=1)
        source = AssessmentSource(source_type="HUMAN", source_id=WHO)
        value = OTHER[bucket.route].value
        mlflow.log_feedback(trace_id=trace.info.trace_id, name="route", value=value, source=source, rationale=WHY)


def told(space: Workspace, number: int, bucket: Bucket) -> dict[str, Any]:
    """By the records of the next round: what it was given for the bucket and what it made of it."""
    goal, data = space.read(number, "goal"), space.read(number, "data")
    assert isinstance(goal, GoalRecord)
    assert isinstance(data, DataRecord)
    return {
        "material": [{"kind": item.kind, "route": item.route, "amount": item.amount}
                     for item in goal.material if item.bucket == bucket.id],
        "routed_tasks": data.routed_tasks,
        "demonstrations": dict(data.demonstrations),
        "decisions": [one.model_dump(mode="json") for one in decisions(space)],
    }  # fmt: skip


def measure(folder: Path, workspace: Path | None) -> dict[str, Any]:
    origin = first(folder, workspace)
    number = origin.rounds()[-1]
    bucket = treated(origin, number)
    to = OTHER[bucket.route].value
    found: dict[str, Any] = {"label": {"trajectory": bucket.example, "from": bucket.route.value, "to": to}}
    for name in ("left", "labelled"):
        space = copied(origin, folder / name)
        if not space.has(number + 1, "goal"):
            if name == "labelled":
                label(space, bucket)
                say(f"labelled {bucket.example}: {bucket.route.value} -> {to}")
            began = time.perf_counter()
            timed(postloop("run", "--next", "--until", "data", "-w", str(space.root)), folder / f"{name}.log")
            say(f"{name}: data of round {number + 1}, {time.perf_counter() - began:.0f} s")
        found[name] = told(space, number + 1, bucket)
    about = {
        "id": bucket.id,
        "cause": bucket.cause,
        "family": bucket.family,
        "route": bucket.route.value,
        "size": bucket.size,
    }
    return {"machine": machine(), "load": load(), "round": number, "bucket": about, **found}


def holds(result: dict[str, Any]) -> bool:
    left, labelled = result["left"], result["labelled"]
    said = [
        one for one in labelled["decisions"] if one["bucket"] == result["bucket"]["id"] and one["source"] == "mlflow"
    ]
    made = [(side["routed_tasks"], side["demonstrations"]) for side in (left, labelled)]
    return bool(
        [one for one in said if one["who"] == WHO and WHY in one["because"] and one["when"]]
        and not [one for one in left["decisions"] if one["source"] == "mlflow"]
        and {item["route"] for item in left["material"]} == {result["bucket"]["route"]}
        and {item["route"] for item in labelled["material"]} == {OTHER[Route(result["bucket"]["route"])].value}
        and made[0] != made[1]
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("proofs/work/label"))
    parser.add_argument("--workspace", type=Path, help="a workspace with a complete round; it is copied, not changed")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        result = measure(options.folder.resolve(), options.workspace)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    result["holds"] = holds(result)
    write_json(options.out, result)
    rows = [
        [name, ", ".join(f"{item['amount']} {item['kind']} ({item['route']})" for item in result[name]["material"]),
         result[name]["routed_tasks"], result[name]["demonstrations"]]
        for name in ("left", "labelled")
    ]  # fmt: skip
    print(table(["copy", "material of the bucket", "routed tasks", "demonstrations"], rows))
    return EXIT_DONE if result["holds"] else EXIT_NO


if __name__ == "__main__":
    sys.exit(main())

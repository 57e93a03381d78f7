"""`postloop decide`: what a person decides about a bucket, kept with who, when and why; and labels given in MLflow.

A decision is in force from the next goal stage on. While a round runs it is kept at once, and the round commits it.
Exit 0 when it is kept, 2 when it says nothing or speaks of nothing.
"""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.options import HERE, AsJson, Debug, Folder, print_json
from flows.settings import prepare
from reports.text import one_line
from schemas.bucket import Bucket, Route
from schemas.decision import TriageDecision
from schemas.errors import EXIT_DONE, InfrastructureError, InputError, WorkspaceBusy
from stages.decisions import append, backflows, bucket_named, decisions, identified, in_force, now, stamp
from stages.workspace import Workspace

ROUTES = ", ".join(route.value for route in Route)


def decide(
    bucket: Annotated[str | None, typer.Argument(metavar="[BUCKET]", help="its id, or the start of it")] = None,
    route: Annotated[str | None, typer.Option(metavar="ROUTE", help=f"the owner: {ROUTES}")] = None,
    approve: Annotated[
        bool | None, typer.Option("--approve/--reject", help="the bucket's material of that round")
    ] = None,
    because: Annotated[str, typer.Option(metavar="TEXT", help="why; kept with the decision")] = "",
    trajectory: Annotated[
        str | None, typer.Option(metavar="ID", help="one failure of the bucket alone: take it out of the material")
    ] = None,
    number: Annotated[
        int | None, typer.Option("--round", metavar="N", help="the last round with that bucket when left out")
    ] = None,
    who: Annotated[str | None, typer.Option(metavar="NAME", help="git's user.name when left out")] = None,
    from_mlflow: Annotated[
        bool, typer.Option("--from-mlflow", help="take in what people said on traces, and decide nothing else")
    ] = False,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Give a bucket another owner, or approve or reject its material. It takes effect in the next goal stage."""
    space = Workspace.open(workspace)
    prepare(space.root)
    if from_mlflow:
        if bucket is not None or route is not None or approve is not None:
            raise InputError("--from-mlflow takes no bucket and no decision: it reads those given in MLflow")
        kept = pull_assessments(space)
    else:
        decision = _decision(space, bucket, route, approve, because, trajectory, number, who)
        kept = [decision] if append(space, decision) else []
        if not kept and not as_json:
            print(f"decision {decision.id} says the same and is in force; nothing was added")
    commit(space)
    if as_json:
        print_json([one.model_dump(mode="json") for one in kept])
        return EXIT_DONE
    for one in kept:
        print(f"decision {one.id}: {plain(one)}; in force from the goal stage of round {next_goal(space)} on")
    if from_mlflow and not kept:
        print("no new label in MLflow")
    return EXIT_DONE


def _decision(
    space: Workspace,
    bucket: str | None,
    route: str | None,
    approve: bool | None,
    because: str,
    trajectory: str | None,
    number: int | None,
    who: str | None,
) -> TriageDecision:
    """Raises InputError for whatever says nothing or speaks of nothing; nothing is written then."""
    if bucket is None:
        raise InputError("decide: name a bucket, as `postloop failures` lists them, or give --from-mlflow")
    if route is not None and route not in {one.value for one in Route}:
        raise InputError(f"--route {route}: no such route; one of {ROUTES}")
    if route is None and approve is None:
        raise InputError(f"bucket {bucket}: nothing is decided; give --route ROUTE, --approve or --reject")
    if not because.strip():
        raise InputError(f"bucket {bucket}: --because is empty; say why, the next person reads it")
    known = backflows(space)
    if number is not None and number not in known:
        raise InputError(f"--round {number}: has no buckets; rounds that do: {', '.join(map(str, known)) or 'none'}")
    about, found = bucket_named(known if number is None else {number: known[number]}, bucket)
    if approve is not None and route is None and trajectory is None:
        _require_material(space, about, found.id)
    return identified(
        bucket=found.id,
        trajectory=None if trajectory is None else _member(found, trajectory),
        round=about,
        route=route,
        approve=approve,
        who=(who or "").strip() or me(space.root),
        when=now(),
        because=because.strip(),
    )


def _require_material(space: Workspace, number: int, bucket: str) -> None:
    """What another owner gets is made when the decision takes effect, so a bucket may have material that no record holds."""
    from flows.review import handed

    if any(item.bucket == bucket for item in handed(space, number)):
        return
    ruling = in_force(decisions(space), number).get(bucket)
    word = ruling.route if ruling else None
    owner = f", and {word.route.value}, to whom decision {word.id} gave it, gets none" if word and word.route else ""
    raise InputError(
        f"bucket {bucket}: round {number} made no material for it{owner}, so there is none to approve; give it a --route"
    )


def _member(bucket: Bucket, start: str) -> str:
    hits = sorted({name for name in (*bucket.members, bucket.example) if start and name.startswith(start)})
    if len(hits) != 1:
        what = f"names {len(hits)} failures" if hits else "no failure"
        raise InputError(
            f"--trajectory {start}: {what} of bucket {bucket.id}, e.g. {bucket.example}; give one of its ids"
        )
    return hits[0]


def me(root: Path) -> str:
    """The person's own name: what git calls them here, else the login."""
    done = subprocess.run(
        ["git", "config", "user.name"], cwd=root, capture_output=True, text=True, errors="replace", check=False
    )
    name = done.stdout.strip() if done.returncode == 0 else ""
    return name or os.environ.get("USER", "").strip() or getpass.getuser()


def plain(decision: TriageDecision) -> str:
    """One line for people, whatever was written as the name and the reason."""
    words = [f"goes to {decision.route.value}"] if decision.route else []
    words += [] if decision.approve is None else ["is approved" if decision.approve else "is rejected"]
    about = f"failure {decision.trajectory} of bucket" if decision.trajectory else "bucket"
    said = f"{about} {decision.bucket} of round {decision.round} {' and '.join(words)}"
    return f"{said}, by {one_line(decision.who, 40)}: {one_line(decision.because, 200)}"


def next_goal(space: Workspace) -> int:
    """The first round whose goal is not recorded yet: a round that began before a decision does not know it."""
    from stages.rounds import open_round

    last = (space.rounds() or [0])[-1]
    return last if open_round(space) == last and not space.has(last, "goal") else last + 1


def commit(space: Workspace, what: str = "decision") -> None:
    """What was appended, by whoever writes the workspace: us, or the round that runs and does so before it goes on."""
    if space.locked:
        space.settle_appended()
        return
    try:
        with space.lock():  # taking it commits what was appended
            pass
    except WorkspaceBusy:
        print(f"postloop: a round runs in this workspace; it commits the {what} when it goes on", file=sys.stderr)


# --- labels given in MLflow


def pull_assessments(space: Workspace) -> list[TriageDecision]:
    """Turn what people said on traces into decisions; those that are new. Labels that mean nothing here are told and left.

    The newest label about a bucket's round is its decision, at the time when it was given: a decision of the command
    line that is newer stays in force. Raises InfrastructureError when MLflow cannot be read.
    """
    from flows.review import default_uri
    from reports.triage import read_assessments
    from stages.spec import load_spec

    spec = load_spec(space.root / "goal.yaml")
    labels = read_assessments(spec.runtime.tracking_uri or default_uri(space.root), spec.name)
    records = {str(number): record for number, record in backflows(space).items()} if labels else {}
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for label in labels:
        try:
            meant = _meant(space, label, records)
        except InputError as error:
            _ignored(label, str(error))
        else:
            groups.setdefault((meant.bucket, meant.round, meant.name), []).append(meant)
    known = {one.id for one in decisions(space)}
    kept = []
    for group in groups.values():
        try:
            if (one := _from_labels(group)).id not in known and append(space, one):
                kept.append(one)
        except InputError as error:
            _ignored(group[-1], str(error))
    _tell_disagreement(groups.values(), kept)
    return kept


def _ignored(label: Any, problem: str) -> None:
    print(f"postloop: MLflow label {label.said()}: {one_line(problem, 1000)}; ignored", file=sys.stderr)


def _meant(space: Workspace, label: Any, records: Mapping[str, Any]) -> Any:
    """The label as a word on the route or the material: a corrected cause is one for the route that the round's rules give
    it. Raises InputError where it means nothing here."""
    from evals.rules import complete, joined, route_of

    problem = _problem(label, records)
    if problem:
        raise InputError(problem)
    if label.name != "bucket":
        return label
    goal: Any = space.read(int(label.round), "goal")
    route = route_of(complete(None) if goal.spec.routes is None else joined(goal.spec.routes), label.value)
    return replace(label, name="route", value=route.value, cause=label.value)


def _problem(label: Any, records: Mapping[str, Any]) -> str | None:
    """A value may be anything that is JSON: a list or a mapping is in no set of names."""
    if label.name == "route" and label.value not in [one.value for one in Route]:
        return f"no such route; one of {ROUTES}"
    if label.name == "approve" and not isinstance(label.value, bool):
        return "neither true nor false"
    if label.name == "bucket" and not isinstance(label.value, str):
        return "no cause, which is a word"
    record = records.get(label.round)
    if record is None or label.record != record.content_digest():
        return f"its trace is of no round of this workspace (round {one_line(label.round, 20) or 'unknown'})"
    if label.bucket not in {bucket.id for bucket in record.buckets}:
        return f"its failure is in no bucket of round {label.round}"
    return None


def _from_labels(group: Sequence[Any]) -> TriageDecision:
    """A label that is changed and changed back is a third decision: its time stands in the reason."""
    label = group[-1]
    when = stamp(label.when)
    corrected = f"the cause is {label.cause}: " if label.cause else ""
    return identified(
        bucket=label.bucket,
        round=int(label.round),
        route=label.value if label.name == "route" else None,
        approve=label.value if label.name == "approve" else None,
        who=label.who or "unknown",
        when=when,
        because=f"{corrected}{label.rationale or 'no reason given'} (label of {when} on {label.trajectory})",
        source="mlflow",
    )


def _tell_disagreement(groups: Iterable[Sequence[Any]], kept: Sequence[TriageDecision]) -> None:
    """Once, when the newest comes in: a label speaks for all failures of its bucket."""
    new = {(one.bucket, str(one.round)) for one in kept}
    for group in groups:
        last = group[-1]
        others = [one for one in group if one.value != last.value]
        if others and (last.bucket, last.round) in new:
            print(
                f"postloop: labels of bucket {last.bucket} disagree: {others[-1].said()}, and {last.said()}; "
                "the newest is in force",
                file=sys.stderr,
            )


def take_in_labels(space: Workspace) -> None:
    """Before a round's goal: labels become decisions, which the round commits as it takes the lock. Trouble with MLflow is
    one line and never loses the round."""
    try:
        pull_assessments(space)
    except InfrastructureError as error:
        print(f"postloop: {error}; labels given there are not known to this round", file=sys.stderr)

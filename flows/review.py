"""What people look at: views made from a workspace, handed to reports, and MLflow told after each stage."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.settings import cache_folder
from reports.text import one_line
from reports.view import RoundView
from schemas.attribution import Attribution
from schemas.bucket import Material
from schemas.errors import InputError, IntegrityError
from schemas.goal import GoalRecord
from schemas.record import STAGES, Record, StageName
from schemas.trajectory import Attempt
from stages.attempts import find_attempts, read_attempts
from stages.compare import compare
from stages.context import Context
from stages.decisions import decisions
from stages.goal import handed_by
from stages.recall import Recall
from stages.spec import load_spec
from stages.workspace import Workspace

EXAMPLES = 40  # what pages and tables show is among the first of these; MLflow gets all that failed


def view_of(
    space: Workspace, number: int, with_attempts: bool = False, depth: int = 12, most: int | None = EXAMPLES
) -> RoundView:
    """The view of one round, with up to `depth` rounds before it. Attempts are read only where they are shown, at most `most`
    of them; None: every failure that was attributed."""
    records: dict[StageName, Record] = {s: r for s in STAGES if (r := space.read(number, s)) is not None}
    earlier = [n for n in space.rounds() if n < number]
    said = attributions(space, records) if with_attempts else {}
    both = with_attempts and earlier and "evaluation" in records and space.has(earlier[-1], "evaluation")
    return RoundView(
        round=number,
        records=records,
        telemetry={stage: space.telemetry(number, stage) for stage in records},
        pins=space.pins(number),
        previous=view_of(space, earlier[-1], depth=depth - 1) if earlier and depth > 0 else None,
        attempts=examples(space, records, list(said), most) if with_attempts else (),
        comparison=compare(space, earlier[-1], number) if both else None,
        stale=[use for use in Recall(space).uses() if use.round == number] if with_attempts else (),
        attributions=said,
        decisions=[one for one in decisions(space) if one.round <= number],
        handed=handed(space, number) if with_attempts and "backflow" in records else None,
    )


def after_the_last(space: Workspace) -> Context:
    """Of the round that takes in all that is decided now. A goal.yaml that is being edited does not matter to it."""
    last = (space.rounds() or [0])[-1]
    goal = space.read(last, "goal") if last else None
    spec = goal.spec if isinstance(goal, GoalRecord) else load_spec(space.root / "goal.yaml")
    return Context(space, last + 1, spec, cache_folder(space.root))


def handed(space: Workspace, number: int) -> Sequence[Material]:
    """Material of a round as people want it by now."""
    return handed_by(after_the_last(space), number)[0]


def attributions(space: Workspace, records: dict[StageName, Record]) -> dict[str, Attribution]:
    """Trajectory -> why it failed, of a round whose backflow ran experiments."""
    record = records.get("backflow")
    if record is None or "attributions" not in record.artifacts:
        return {}
    path = space.open_artifact(record.artifacts["attributions"]) / "attributions.jsonl"
    try:
        rows = [Attribution.model_validate_json(line) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise IntegrityError(f"{path}: not attributions: {first}; restore the artifact") from error
    return {row.trajectory: row for row in rows}


def examples(
    space: Workspace, records: dict[StageName, Record], also: Sequence[str] = (), most: int | None = EXAMPLES
) -> Sequence[Attempt]:
    """Failed attempts worth reading: the buckets' examples first, then their other members, then `also`."""
    backflow: Any = records.get("backflow")
    if backflow is None or "attempts" not in backflow.artifacts:
        return ()
    wanted = [bucket.example for bucket in backflow.buckets]
    wanted += [member for bucket in backflow.buckets for member in bucket.members[:3]]
    names = list(dict.fromkeys([*wanted, *also]))[:most]
    rows = read_attempts(space.open_artifact(backflow.artifacts["attempts"]) / "attempts.parquet")
    by_id = {attempt.trajectory.id: attempt for attempt in rows}
    return [by_id[name] for name in names if name in by_id]


def track(space: Workspace, number: int, stage: StageName) -> None:
    """Tell MLflow about one finished stage. Raises InfrastructureError; the record stands whatever happens here."""
    from reports.tracking import log_stage

    spec = load_spec(space.root / "goal.yaml")
    uri = spec.runtime.tracking_uri or default_uri(space.root)
    most, view = spec.runtime.max_traces, view_of(space, number, with_attempts=stage == "backflow", most=None)
    log_stage(uri, spec.name, view, stage, most)
    failed = len(view.failed_attempts())
    if failed > most:
        print(
            f"postloop: round {number}: MLflow has traces of {most} of {failed} failures, no more than runtime.max_traces",
            file=sys.stderr,
        )


def escalation(space: Workspace, number: int) -> str | None:
    """One line on what waits for a person after a round, since treating it went nowhere; None where nothing does."""
    waiting = view_of(space, number, depth=0).escalated()
    if not waiting:
        return None
    named = [f"{one.id} ({one_line(one.cause, 40)} in {one_line(one.family, 40)})" for one in waiting[:3]]
    more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
    return (
        f"round {number}: treated twice without effect, and nothing more goes on for it unattended: {', '.join(named)}{more}; "
        "look at `postloop failures`, then `postloop decide BUCKET --route ROUTE --because TEXT` (or --approve)"
    )


def default_uri(root: Path) -> str:
    from reports.tracking import default_uri as uri

    return uri(root)


def number_of(space: Workspace, wanted: int | None) -> int:
    """The round asked for, or the last one. Raises InputError naming those that exist."""
    rounds = space.rounds()
    if not rounds:
        raise InputError(f"{space.root.name}: no round yet; run `postloop run`")
    if wanted is None:
        return rounds[-1]
    if wanted not in rounds:
        raise InputError(f"round {wanted}: there is none; rounds: {', '.join(map(str, rounds))}")
    return wanted


def attempt_named(space: Workspace, name: str) -> tuple[int, StageName, Attempt]:
    """A trajectory by its id or the start of it, newest round first. Raises InputError for none or several."""
    found: dict[str, tuple[int, StageName, Attempt]] = {}
    for number in reversed(space.rounds()):
        for stage in STAGES:
            record = space.read(number, stage)
            for ref in record.artifacts.values() if record else ():
                for table in sorted((space.root / ref.path).glob("*.parquet")):
                    for hit in find_attempts(table, name) if table.name != "edges.parquet" else ():
                        found.setdefault(hit.trajectory.id, (number, stage, hit))
        if found:
            break
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise InputError(
            f"{name}: names {len(found)} trajectories, e.g. {', '.join(sorted(found)[:3])}; give more digits"
        )
    raise InputError(f"{name}: no trajectory of this workspace; `postloop failures` lists examples")


__all__ = ["attempt_named", "cache_folder", "default_uri", "examples", "number_of", "track", "view_of"]

"""`postloop attribute ID`: the whole ladder for recorded failures. What was run, what it found, and who owns the failure.

The answers are kept beside the records; `postloop show ID` prints them again. Exit 0 when every failure has an owner, 1
when one stays undetermined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from flows.decide import commit
from flows.options import HERE, AsJson, Debug, Folder, print_json, show_table
from flows.progress import reporter
from flows.replay import chosen_by
from flows.settings import cache_folder, prepare
from schemas.errors import EXIT_DONE, EXIT_NO, InputError


def attribute(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="trajectory ids, or starts of them")
    ] = None,
    bucket: Annotated[str | None, typer.Option(help="the members of a bucket, by id or the start of one")] = None,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Find the cause of failures by experiment: score again, execute again, let the policy go on, swap one pin."""
    from stages.attribute import attribute as climb
    from stages.attributed import folder_of, keep
    from stages.context import threads
    from stages.decisions import now
    from stages.spec import load_spec
    from stages.trajectories import refuse_to_replay
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    if bool(names) == (bucket is not None):
        raise InputError("attribute: give ids or --bucket ID, one of them; `postloop failures` lists examples")
    refuse_to_replay(space, names or [])
    folder_of(space)  # before the ladder is climbed, not after it
    spec = load_spec(space.root / "goal.yaml")
    with reporter("attribute", as_json) as progress:
        found = climb(
            space, cache_folder(space.root), chosen_by(space, names or [], bucket), runtime=spec.runtime,
            pins=spec.pins, fan_out=threads(spec.runtime.workers), progress=progress,
        )  # fmt: skip
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
    else:
        show_answers(found)
    if keep(space, found, now()):
        commit(space, "attribution")
    return EXIT_NO if any(one.route == "undetermined" for one in found) else EXIT_DONE


def show_answers(found: Sequence[Any]) -> None:
    for one in found:
        rows = [
            (e.rung.value, e.name, e.impossible or e.said, e.attempts or "", e.executions or "")
            for e in one.experiments
        ]
        title = f"{one.trajectory}, round {one.round}: {one.evidence.task_id}"
        if rows:
            show_table(title, ("rung", "experiment", "found", "attempts", "executions"), rows)
        else:
            print(title)
        for line in _facts(one.evidence):
            print(f"  {line}")
        print(f"owner: {one.route.value} ({one.cause}, rule {one.rule}): {one.because}")
        if one.also:
            print(f"  also holds: {', '.join(one.also)}")
        if one.undecided:
            print(
                f"  could still change it, not run: {', '.join(one.undecided)}; see backflow.attribution in goal.yaml"
            )


def _facts(evidence: Any) -> Iterator[str]:
    """What the log says that a person looks for first: which tests failed, and what training had of the task."""
    from reports.text import number, one_line

    if evidence.failed_tests:
        names, all_ = evidence.failed_tests, evidence.failed_checks
        some = f" (the first {len(names)} of {all_})" if all_ > len(names) else ""
        yield f"failed tests{some}: {', '.join(one_line(name) for name in names)}"
    if evidence.similarity is not None:
        nearest = f", {one_line(evidence.nearest_task)}" if evidence.nearest_task else ""
        yield f"most similar training task: {number(evidence.similarity, 2)} of 1{nearest}"

"""`postloop apply BUCKET`: write what an approved proposal changes in goal.yaml, and re-score the old samples under it.

Only where a person approved it and the change can be computed: a number of the reward rules, another verifier, a setting of
the evaluation, another name for an environment that is to be locked anew. Exit 0 when goal.yaml says so now, also when it did
before; then the re-scoring, which a kill may have cut off, is made up for, or its answer found again. Exit 3 where
infrastructure kept samples from their verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flows.options import HERE, AsJson, Debug, Folder, print_json
from flows.rescore import Outcome, asked, judged_again, show
from flows.settings import prepare
from schemas.errors import EXIT_DONE, InputError, IntegrityError

if TYPE_CHECKING:
    from schemas.bucket import Material
    from schemas.goal import GoalSpec
    from stages.workspace import Workspace

JUDGING = ("verifier", "rewards")  # what a re-scoring is about


def apply(
    bucket: Annotated[str, typer.Argument(metavar="BUCKET", help="its id, or the start of it")],
    number: Annotated[
        int | None, typer.Option("--round", metavar="N", help="the last round with that bucket when left out")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the difference and change nothing")] = False,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Write the change that a person approved into goal.yaml, then judge or price old trajectories anew under it."""
    from stages.apply import difference, planned
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    item, seen = _approved(space, bucket, number)
    if dry_run:
        change, outcome = difference(*planned(space.spec_path, item.edits, seen)), None
        if not as_json:
            _tell(item, change)
    else:
        change, outcome = _applied(space, item, seen, as_json)
    if as_json:
        print_json(
            {"bucket": item.bucket, "edits": item.edits, "difference": change, "written": bool(change) and not dry_run,
             "rescore": outcome.plain() if outcome else None}
        )  # fmt: skip
    return outcome.exit_code if outcome else EXIT_DONE


def _applied(space: Workspace, item: Material, seen: GoalSpec, as_json: bool) -> tuple[str, Outcome | None]:
    """The difference, empty when goal.yaml had it already, and what the re-scoring found. The lock comes first: else a round
    that runs would let the change be written, and keep the samples from being judged under it."""
    from stages.apply import difference, planned, write

    with space.lock():
        before, after = planned(space.spec_path, item.edits, seen)
        change = difference(before, after)
        if change:
            write(space.spec_path, after)
        if not as_json:
            _tell(item, change)
        judging = any(name.partition(".")[0].startswith(JUDGING) for name in item.edits)
        if not judging or not space.rounds():
            return change, None
        outcome = judged_again(asked(space), False, as_json)
    if not as_json:
        show(outcome, False)
    return change, outcome


def _tell(item: Material, change: str) -> None:
    print(change or f"goal.yaml has it already: {', '.join(item.edits)}")


def _approved(space: Workspace, start: str, number: int | None) -> tuple[Material, GoalSpec]:
    """The proposal of the bucket, as people want it by now, and the spec that it was made from. Raises InputError where
    nobody approved it or it has no edits."""
    from flows.review import handed
    from stages.decisions import backflows, bucket_named

    known = backflows(space)
    if number is not None and number not in known:
        raise InputError(f"--round {number}: has no buckets; rounds that do: {', '.join(map(str, known)) or 'none'}")
    about, found = bucket_named(known if number is None else {number: known[number]}, start)
    material = [one for one in handed(space, about) if one.bucket == found.id]
    items = [one for one in material if one.kind == "proposal"]
    if not items:
        there = ", ".join(f"{one.amount} {one.kind}" if one.amount else one.kind for one in material)
        taken = f" but {there}, which the next round takes by itself once approved" if material else ""
        raise InputError(
            f"bucket {found.id}: round {about} has no proposal for it{taken}; `postloop failures {about}` lists them"
        )
    (item,) = items
    if not item.approved:
        raise InputError(
            f"bucket {found.id}: nobody approved its proposal ({item.subject}); "
            f"`postloop decide {found.id[:4]} --round {about} --approve --because TEXT`, then apply"
        )
    if not item.edits:
        raise InputError(f"bucket {found.id}: its change is a person's to write ({item.subject}): {item.note}")
    return item, _spec_of(space, known[about].reused_from or about)


def _spec_of(space: Workspace, number: int) -> GoalSpec:
    """What the proposals of a round were made from: its record says which values it saw."""
    from schemas.goal import GoalRecord

    goal = space.read(number, "goal")
    if not isinstance(goal, GoalRecord):
        name = f"rounds/{number:04d}/goal.json"
        raise IntegrityError(f"{name}: is gone, so what the proposal saw is unknown; `git checkout HEAD -- {name}`")
    return goal.spec

"""`postloop apply BUCKET`: write what an approved proposal changes in goal.yaml, and re-score the old samples under it.

Only where a person approved it and the change can be computed: a number of the reward rules, another verifier, a setting of
the evaluation. Exit 0 when goal.yaml says so now, also when it did before.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.options import HERE, AsJson, Debug, Folder, print_json
from flows.rescore import rescore
from flows.settings import prepare
from schemas.errors import EXIT_DONE, InputError, SpecError

if TYPE_CHECKING:
    from schemas.bucket import Material
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
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    item = _approved(space, bucket, number)
    difference = _written(space, item, dry_run)
    if as_json:
        print_json({"bucket": item.bucket, "edits": item.edits, "difference": difference, "written": not dry_run})
    else:
        print(difference or f"goal.yaml has it already: {', '.join(item.edits)}")
    judging = any(name.partition(".")[0].startswith(JUDGING) for name in item.edits)
    if judging and difference and not dry_run and space.rounds() and not as_json:
        return rescore(None, None, None, False, workspace, False, debug)
    return EXIT_DONE


def _approved(space: Workspace, start: str, number: int | None) -> Material:
    """The proposal of the bucket, as people want it by now. Raises InputError where nobody approved it or it has no edits."""
    from flows.review import handed
    from stages.decisions import backflows, bucket_named

    known = backflows(space)
    if number is not None and number not in known:
        raise InputError(f"--round {number}: has no buckets; rounds that do: {', '.join(map(str, known)) or 'none'}")
    about, found = bucket_named(known if number is None else {number: known[number]}, start)
    items = [one for one in handed(space, about) if one.bucket == found.id and one.kind == "proposal"]
    if not items:
        raise InputError(
            f"bucket {found.id}: round {about} has no proposal for it; `postloop failures {about}` lists them"
        )
    (item,) = items
    if not item.approved:
        raise InputError(
            f"bucket {found.id}: nobody approved its proposal ({item.subject}); "
            f"`postloop decide {found.id[:4]} --round {about} --approve --because TEXT`, then apply"
        )
    if not item.edits:
        raise InputError(f"bucket {found.id}: its change is a person's to write ({item.subject}): {item.note}")
    return item


def _written(space: Workspace, item: Material, dry_run: bool) -> str:
    """The difference of goal.yaml, which is replaced when the new text is a valid spec; empty when it says so already."""
    import difflib

    from stages.apply import edited
    from stages.artifacts import disk_errors, write_durably
    from stages.spec import load_spec

    spec = load_spec(space.spec_path).model_dump(mode="json")
    missing = {name: value for name, value in item.edits.items() if _at(spec, name) != value}
    before = space.spec_path.read_bytes().decode("utf-8")
    after = edited(before, missing)
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    difference = "".join(difflib.unified_diff(old, new, "goal.yaml", "goal.yaml"))
    if not missing or dry_run:
        return difference
    draft = space.root / f".goal-{os.getpid()}.yaml"
    with disk_errors("goal.yaml"):
        try:
            write_durably(draft, after.encode())
            load_spec(draft)
        except SpecError as error:
            raise InputError(f"goal.yaml: with the change it is no valid spec: {error}; make it by hand") from error
        else:
            write_durably(space.spec_path, after.encode())
        finally:
            draft.unlink(missing_ok=True)
    return difference


def _at(spec: Any, name: str) -> Any:
    for part in name.split("."):
        spec = spec.get(part) if isinstance(spec, dict) else None
    return spec

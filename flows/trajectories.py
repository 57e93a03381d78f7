"""`postloop show ID` and `postloop trajectories import`: attempts of this workspace, and those that came from elsewhere.

Own ones are printed as a transcript or as ATIF, the format in which they go elsewhere. Foreign ones come in as ATIF and
are printed as they were read; nothing runs, trains or measures on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.options import HERE, AsJson, Debug, Folder, display, print_json, show_table
from flows.settings import prepare
from schemas.errors import EXIT_DONE

if TYPE_CHECKING:
    from stages.workspace import Workspace

LISTED = 20  # documents that are named one by one


def show(
    name: Annotated[str, typer.Argument(metavar="ID", help="a trajectory id, or the start of one")],
    atif: Annotated[bool, typer.Option("--atif", help="print it as ATIF (v1.8), one line of JSON")] = False,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """One attempt: its turns, calls, observations, verdict and reward, and why it failed where `postloop attribute` was
    asked. A foreign one is printed as it was read."""
    from flows.attribute import show_answers
    from flows.review import attempt_named
    from reports.tables import attempt as transcript
    from stages.atif import FOREIGN, document_of, text_of
    from stages.attributed import kept

    space = _open(workspace)
    if name.startswith(FOREIGN):
        return _show_foreign(space, name, atif, as_json)
    number, stage, found = attempt_named(space, name)
    if atif:
        print(text_of(document_of(found)))
    elif as_json:
        said = [one.model_dump(mode="json") for one in kept(space, found.trajectory.id)]
        print_json({"round": number, "stage": stage, **found.model_dump(mode="json"), "attributed": said})
    else:
        display(transcript(found))
        show_answers([one.attribution for one in kept(space, found.trajectory.id)])
    return EXIT_DONE


def _show_foreign(space: Workspace, name: str, atif: bool, as_json: bool) -> int:
    from reports.tables import foreign as transcript
    from schemas.atif import Trajectory
    from stages.atif import text_of
    from stages.trajectories import document_of, named

    record, entry = named(space, name)
    document = document_of(space, record, entry)
    if atif:
        print(text_of(document))
    elif as_json:
        print_json({"foreign": True, **entry.model_dump(mode="json"), "document": document})
    else:
        display(transcript(entry, Trajectory.model_validate(document)))
    return EXIT_DONE


def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="ATIF files, or folders of *.json")],
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Take trajectories of others in, as foreign ones: all of these files, or none when one is refused."""
    from stages.atif import read_all
    from stages.trajectories import keep

    space = _open(workspace)
    found = read_all(paths)
    with space.lock():
        new = {entry.id for entry in keep(space, found)}
    entries = sorted((one.entry for one in found), key=lambda entry: entry.id)
    if as_json:
        print_json([{**entry.model_dump(mode="json"), "new": entry.id in new} for entry in entries])
        return EXIT_DONE
    rows = [(e.id, "new" if e.id in new else "known", e.version, e.agent, e.steps, e.source) for e in entries[:LISTED]]
    show_table("foreign trajectories", ("id", "", "version", "agent", "steps", "file"), rows, whole=("id",))
    print(f"{len(entries)} trajectories, {len(new)} new; `postloop show ID --atif` prints one")
    return EXIT_DONE


def _open(workspace: Path) -> Workspace:
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    return space

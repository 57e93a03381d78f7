"""`postloop push` and `pull`: artifacts to and from a DVC remote, each checked by our digests on the way."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.options import HERE, AsJson, Debug, Folder, print_json
from flows.settings import prepare
from schemas.errors import EXIT_DONE

Remote = Annotated[str | None, typer.Option(help="name of a DVC remote; the default one when left out")]


def push(remote: Remote = None, workspace: Folder = HERE, as_json: AsJson = False, debug: Debug = False) -> int:
    """Send every artifact to a DVC remote; damaged ones are refused. Records and pointers go with `git push`."""
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    with space.lock():
        sent = space.push(remote)
    if as_json:
        print_json({"artifacts": len(space.refs()), "sent": sent})
    else:
        print(f"{len(space.refs())} artifacts: {sent} files sent, the others were there")
    return EXIT_DONE


def pull(remote: Remote = None, workspace: Folder = HERE, as_json: AsJson = False, debug: Debug = False) -> int:
    """Fetch every artifact that is missing or damaged, and check it."""
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    with space.lock():
        restored = space.pull(remote)
    if as_json:
        print_json({"restored": restored})
    else:
        print("\n".join(restored) if restored else "every artifact is here and matches its digest")
    return EXIT_DONE

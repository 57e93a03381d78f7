"""`postloop gc`: what no record needs any more. Shown first; removed with --yes."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from flows.options import HERE, AsJson, Debug, Folder, print_json, show_table
from flows.settings import prepare
from schemas.errors import EXIT_DONE

LISTED = 40  # rows; the rest is counted


def gc(
    yes: Annotated[bool, typer.Option("--yes", help="remove it; without this it is only shown")] = False,
    caches: Annotated[
        bool, typer.Option("--caches", help="models, images and seed data of .postloop/cache too; made again when used")
    ] = False,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Remove what no record needs any more: leftovers, artifacts without a record, cached copies without a pointer."""
    from stages.gc import collect, survey
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    found = collect(space, caches) if yes else survey(space, caches)
    if as_json:
        print_json({"removed": yes, "bytes": found.bytes, **found.model_dump(mode="json")})
        return EXIT_DONE
    for line in found.kept:
        print(f"kept: {line}", file=sys.stderr)
    if not found.waste:
        print("nothing to collect: records, pins, decisions or specs need all of it")
        return EXIT_DONE
    show_table("removed" if yes else "would be removed", ("kind", "path", "bytes", "why"), _rows(found.waste))
    print(f"{found.bytes:,} bytes" + (" given back" if yes else "; remove it with: postloop gc --yes"))
    return EXIT_DONE


def _rows(waste: Any) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [(one.kind, one.path, f"{one.bytes:,}", one.why) for one in waste[:LISTED]]
    rest = waste[LISTED:]
    if rest:
        rows.append(("", f"and {len(rest)} more, see --json", f"{sum(one.bytes for one in rest):,}", ""))
    return rows

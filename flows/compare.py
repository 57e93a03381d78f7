"""`postloop compare A B`: which pins differ, which metrics moved, which buckets opened and closed."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.options import HERE, AsJson, Debug, Folder, print_json, show_table
from schemas.errors import EXIT_DONE


def compare(
    before: Annotated[int, typer.Argument(metavar="ROUND")],
    after: Annotated[int, typer.Argument(metavar="ROUND")],
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Two rounds side by side. Differences are paired by task; * marks those whose interval leaves out zero."""
    from reports.text import estimate
    from stages.compare import compare as side_by_side
    from stages.workspace import Workspace

    found = side_by_side(Workspace.open(workspace), before, after)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return EXIT_DONE
    rounds = (f"round {before}", f"round {after}")
    pins = [(one.pin, *((value or "–")[:12] for value in (one.before, one.after))) for one in found.pins]
    show_table(f"{len(pins)} pins differ", ("pin", *rounds), pins)
    moved = [
        (one.suite, one.metric, estimate(one.before), estimate(one.after),
         estimate(one.difference, sign=True) + (" *" if one.significant else ""))
        for one in found.metrics if one.difference is not None
    ]  # fmt: skip
    show_table("final policies", ("suite", "metric", *rounds, "paired difference"), moved)
    buckets = [
        (
            one.change,
            one.id,
            one.cause,
            one.family,
            one.route.value,
            *("–" if n is None else n for n in (one.before, one.after)),
        )
        for one in sorted(found.buckets, key=lambda one: (one.change, one.family))
    ]
    show_table("buckets", ("", "id", "cause", "family", "route", *rounds), buckets, whole=("id",))
    return EXIT_DONE

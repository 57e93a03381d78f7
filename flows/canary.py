"""`postloop canary`: does every environment still judge as it was proven to? A table, exit 1 when one drifted.

The same look is taken before each round; this command takes it at any time, changes no record and runs no stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from flows.options import HERE, AsJson, Debug, Folder, display, print_json
from flows.settings import cache_folder, prepare
from reports.columns import Columns
from schemas.errors import EXIT_DONE, EXIT_NO


def canary(workspace: Folder = HERE, as_json: AsJson = False, debug: Debug = False) -> int:
    """Gold, no-op, repeats and the image of every environment; what drifted, and why. Exit 1 when one did."""
    from stages.canary import check
    from stages.context import Context
    from stages.equipment import image_of
    from stages.spec import load_spec
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    spec = load_spec(space.root / "goal.yaml")
    rounds = space.rounds()
    ctx = Context(space, (rounds[-1] if rounds else 0) + 1, spec, cache_folder(space.root))  # after all that was pinned
    environment, root = image_of(spec, ctx.cache, ctx.workspace.root)
    reports = check(ctx, environment, root)
    if as_json:
        plain = [
            {**report.model_dump(mode="json"), "ok": report.ok, "quarantined": report.quarantined} for report in reports
        ]
        print_json(plain)
    else:
        display(table(reports))
    return EXIT_DONE if all(report.ok for report in reports) else EXIT_NO


def table(reports: Sequence[Any]) -> Columns:
    """A row for each environment that is well, and for each drift of one that is not."""
    from reports.text import one_line

    shown = Columns("environment", "image", "state", "what", "cause")
    for report in reports:
        state = Text("as proven", "green") if report.ok else Text(f"drifted: {report.quarantined} quarantined", "red")
        image = (
            report.present[:12] if report.present == report.pinned else f"{report.pinned[:12]} -> {report.present[:12]}"
        )
        rows = [(f"{drift.kind} {drift.subject}", drift.detail) for drift in report.drifts]
        for what, cause in rows or [(f"{len(report.tasks)} tasks: gold, no-op, repeat, other conditions", "")]:
            cells = (one_line(report.environment), image, state, one_line(what, 160), one_line(cause, 300))
            shown.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return shown

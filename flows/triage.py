"""`postloop triage`: all recorded failures in the buckets of other rules, or of the rules of now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.options import HERE, AsJson, Debug, Folder, print_json, show_table
from schemas.errors import EXIT_DONE

Rules = Annotated[
    Path | None, typer.Option("--routes", help="a YAML file of rules; else the `routes` of goal.yaml, or the default")
]
Rounds = Annotated[list[int] | None, typer.Option("--round", help="these rounds alone; may be given several times")]


def triage(
    workspace: Folder = HERE, routes: Rules = None, rounds: Rounds = None, as_json: AsJson = False, debug: Debug = False
) -> int:
    """What other attribution rules would say of every failure that was recorded; runs nothing and changes nothing."""
    from evals.rules import complete, load_rules
    from stages.spec import load_spec
    from stages.triage import triaged
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    rules = complete(load_rules(routes) if routes else load_spec(space.root / "goal.yaml").routes)
    found = triaged(space, rules, rounds or ())
    if as_json:
        print_json(found.model_dump(mode="json"))
        return EXIT_DONE
    owner = {rule.cause: rule.route.value for rule in rules}
    rows = [
        (one.cause, one.family, owner.get(one.cause, "–"), one.recorded, one.now, f"{one.now - one.recorded:+d}")
        for one in sorted(found.buckets, key=lambda one: (-one.now, one.cause, one.family))
    ]
    named = ", ".join(map(str, found.rounds))
    show_table(
        f"{found.failures} failures of round {named} by {len(rules)} rules",
        ("cause", "family", "route", "recorded", "now", "change"),
        rows,
    )
    return EXIT_DONE

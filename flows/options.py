"""What every command shares: its options, and the two ways to print a result."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Folder = Annotated[Path, typer.Option("--workspace", "-w", help="the workspace folder")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]
HERE = Path()


def print_json(value: Any) -> None:
    """Texts of models and tasks are in there too: what could move a terminal's cursor is escaped, the value the same."""
    from reports.text import printable_json

    print(printable_json(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)))


def display(renderable: Any) -> None:
    from rich.console import Console

    Console().print(renderable)


def show_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], whole: Collection[str] = ()
) -> None:
    """Cells are text, never markup: names and reasons come out of sandboxes. `whole`: columns whose words are folded last,
    as ids are copied."""
    from rich.text import Text

    from reports.columns import Columns
    from reports.text import visible

    table = Columns(*columns, title=Text(visible(title), "bold"), whole=whole)
    for row in rows:
        table.add_row(*(Text(visible(str(value))) for value in row))
    display(table)

"""What every command shares: its options, and the two ways to print a result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
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


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Cells are text, never markup: names and reasons come out of sandboxes."""
    from rich.text import Text

    from reports.columns import Columns

    table = Columns(*columns, title=Text(title, "bold"))
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row))
    display(table)

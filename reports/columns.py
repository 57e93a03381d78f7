"""The one table of the terminal: no lines between cells, and words stay whole where the terminal has the room.

Rich narrows columns in proportion and then folds in the middle of a word, so that an id or a name can't be copied.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

NARROW = 4  # in terminal cells, of a column beside one that is to stay whole
GAP = 2  # of a column to the next; rich leaves as much behind the last


class Columns(Table):
    """Cells are `Text`, never markup. A column given as (name, "right") is right-aligned.

    Where the longest words of all columns do not fit beside each other, the longest of them are folded first, those of
    columns named in `whole` last. Nothing is cut off where a column has room for three letters, or for two wide ones.
    """

    def __init__(self, *columns: str | tuple[str, str], title: Text | None = None, whole: Collection[str] = ()) -> None:
        self.whole = whole
        super().__init__(box=None, header_style="dim", title=title, title_justify="left", pad_edge=False)
        for column in columns:
            name, justify = column if isinstance(column, tuple) else (column, "left")
            self.add_column(Text(name), justify=justify, overflow="fold")  # type: ignore[arg-type]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [[_checked(cell) for cell in (column.header, *column.cells)] for column in self.columns]
        last = [str(column.header) in self.whole for column in self.columns]
        for column, width in zip(self.columns, _widths(cells, options.max_width, last), strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)


def _widths(columns: Sequence[Sequence[Text]], room: int, last: Sequence[bool]) -> list[int]:
    """In terminal cells, without the gaps: as wide as the text, or narrowed where most can be taken and no word breaks."""
    widths = [min(room, max(_longest(cell.plain.split("\n")) for cell in column)) for column in columns]
    needs = [min(room, max(_longest(cell.plain.split()) for cell in column)) for column in columns]
    while sum(widths) + GAP * len(widths) > room and max(widths) > 1:
        spare = [width - need for width, need in zip(widths, needs, strict=True)]
        # A column of ids gives way only when the others have no room to give.
        givable = [0 if keep else width - NARROW for width, keep in zip(widths, last, strict=True)]
        most = next(row for row in (spare, givable, widths) if max(row) > 0)
        widths[most.index(max(most))] -= 1
    return widths


def _longest(parts: Sequence[str]) -> int:
    return max((cell_len(part) for part in parts), default=1) or 1


def _checked(cell: object) -> Text:
    if not isinstance(cell, Text):
        raise TypeError(f"a cell is {type(cell).__name__}, expected Text: a str would be read as markup")
    return cell

"""Progress of long work: a live bar on a terminal, a line a minute elsewhere. Always on stderr, so stdout stays clean."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from stages.context import Progress as Report
from stages.context import silent


class Lines:
    """For logs and pipes: says what is going on when it changes its name, and then once a minute."""

    def __init__(self, stage: str, every_s: float = 60.0) -> None:
        self.stage, self.every_s = stage, every_s
        self._last, self._what = -every_s, ""

    def __call__(self, what: str, done: int, total: int | None = None) -> None:
        now = time.monotonic()
        if now - self._last >= self.every_s or (what != self._what and now - self._last >= 5):
            self._last, self._what = now, what
            count = f" {done}/{total}" if total else ""
            print(f"{time.strftime('%H:%M:%S')} {self.stage}: {what}{count}", file=sys.stderr, flush=True)


@contextmanager
def reporter(stage: str, quiet: bool = False) -> Iterator[Report]:
    if quiet:
        yield silent
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(stage)
        return
    what = TextColumn(f"[bold]{stage:>10}[/] {{task.description}}")
    columns = (SpinnerColumn(), what, BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(what: str, done: int, total: int | None = None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield report

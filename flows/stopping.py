"""Being asked to stop, by Ctrl-C or SIGTERM: at once where Python lets us, else at the next step of the work.

A KeyboardInterrupt that lands inside a library may be swallowed there (an import that tries alternatives, a finaliser),
so the wish is remembered as well, and looked at between stages and whenever progress is told.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

_ASKED: list[int] = []  # numbers of the signals, in order


def install() -> None:
    """For the main thread of a run. A SIGINT that this process was told to ignore stays ignored."""
    signal.signal(signal.SIGTERM, _ask)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _ask)
    sys.unraisablehook = _unraisable


def check() -> None:
    """Raises KeyboardInterrupt when somebody asked to stop."""
    if _ASKED:
        raise KeyboardInterrupt


def _unraisable(told: Any) -> None:
    """Python prints what a finaliser or a weak reference's callback raises; a stop that lands there is remembered anyway."""
    if not issubclass(told.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(told)


def _ask(number: int, frame: Any) -> None:
    _ASKED.append(number)
    raise KeyboardInterrupt

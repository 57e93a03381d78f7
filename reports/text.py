"""Safe and uniform text: hostile strings made visible, numbers and estimates in one form everywhere.

Not covered: HTML escaping (the page's template engine) and terminal markup (tables use `rich.text.Text`).
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping

from schemas.metrics import Decision, Estimate

NONE = "–"
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """Control, format, surrogate and unassigned characters as escapes (`\\x1b`); newline and tab stay.

    What is left can neither move a terminal's cursor, nor reorder what is read, nor fail to encode as UTF-8.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible_char(char) for char in text)


def _visible_char(char: str) -> str:
    if char in "\n\t" or unicodedata.category(char) not in _UNSAFE:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable_json(text: str) -> str:
    """JSON text with the characters that `visible` escapes inside its strings as JSON escapes: the same value."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(_json_char(char) for char in text)


def _json_char(char: str) -> str:
    return char if char == "\n" or unicodedata.category(char) not in _UNSAFE else json.dumps(char)[1:-1]


def one_line(text: str, width: int = 120) -> str:
    """`visible` on one line, at most `width` characters; a cut is marked by an ellipsis."""
    flat = visible(text[: 4 * width]).replace("\n", "⏎").replace("\t", " ")
    return flat if len(flat) <= width and len(text) <= 4 * width else flat[: max(width - 1, 0)] + "…"


def clip(text: str, limit: int) -> str:
    """At most `limit` characters; what was left out is said."""
    return text if len(text) <= limit else f"{text[:limit]}\n… {len(text) - limit} more characters"


def number(value: float | None, digits: int = 3) -> str:
    """A dash for None and what is not finite, never 0. From 10 on one decimal; tiny ones as 2.1e-05 if digits > 2."""
    if value is None or not math.isfinite(value):
        return NONE
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1000):
        return f"{int(value):,}"
    if value and digits > 2 and abs(value) < 0.5 * 10**-digits:
        return f"{value:.1e}"
    shown = f"{value:,.{digits if abs(value) < 10 else min(digits, 1)}f}"
    return shown.lstrip("-") if float(shown.replace(",", "")) == 0 else shown


def signed(value: float | None, digits: int = 3) -> str:
    """Like `number`, with the sign that a difference needs."""
    text = number(value, digits)
    return f"+{text}" if value is not None and value > 0 and text != NONE else text


def interval(estimate: Estimate, digits: int = 3, sign: bool = False) -> str:
    """`[low, high]`, or nothing when the estimate has no interval."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return ""
    form = signed if sign else number
    return f"[{form(estimate.low, digits)}, {form(estimate.high, digits)}]"


def estimate(of: Estimate | None, digits: int = 3, sign: bool = False) -> str:
    """`0.427 [0.350, 0.510] n=150`; a dash without data; attempts lost to infrastructure are said apart."""
    if of is None:
        return NONE
    lost = f"{of.errors} errors" if of.errors > 1 else "1 error" if of.errors else ""
    if of.value is None:
        return f"{NONE} ({lost})" if lost else NONE
    form = signed if sign else number
    parts = [form(of.value, digits), interval(of, digits, sign), f"n={of.n}", f"({lost})" if lost else ""]
    return " ".join(part for part in parts if part)


def seconds(value: float | None) -> str:
    """`850 ms`, `42.1 s`, `12 min 05 s`, `3 h 20 min`."""
    if value is None or not math.isfinite(value):
        return NONE
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 90:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 5400:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def decide(of: Estimate | None, at_least: float | None, at_most: float | None) -> Decision | None:
    """What the bounds of the interval say about a criterion; None when there is no data."""
    if of is None or of.value is None:
        return None
    low = of.value if of.low is None else of.low
    high = of.value if of.high is None else of.high
    if at_least is not None:
        return Decision.GO if low >= at_least else Decision.NO_GO if high < at_least else Decision.INCONCLUSIVE
    if at_most is not None:
        return Decision.GO if high <= at_most else Decision.NO_GO if low > at_most else Decision.INCONCLUSIVE
    return None


def amounts(found: Mapping[str, float]) -> list[str]:
    """What something took, e.g. ["120 trained tokens", "0.4 allocated training s"]: seconds, and what is no whole, to a tenth."""
    return [
        f"{number(amount, 1 if unit.endswith('_s') or amount % 1 else 0)} {visible(unit.replace('_', ' '))}"
        for unit, amount in found.items()
        if amount
    ]

"""Reading what the case runner printed: tagged values as claims, compared by type and value. One file, two copies.

A claim may be any JSON at all: hostile code can write to the same channel. Nothing here raises for its shape.
"""

import json

MAX_SHOWN = 80


def same(wanted, got):
    """Equal in type and value; floats within 1e-9 relative. `wanted` comes from `tagged`, `got` is a claim."""
    if type(got) is not list or not got or got[0] != wanted[0] or len(got) != len(wanted):
        return False
    tag = wanted[0]
    if tag == "n":
        return True
    if tag in ("b", "i", "s"):
        return type(got[1]) is type(wanted[1]) and got[1] == wanted[1]
    if tag == "f":
        return same_float(float(wanted[1]), got[1])
    if type(got[1]) is not list or len(got[1]) != len(wanted[1]):
        return False
    if tag == "d":
        return same_pairs(wanted[1], got[1])
    return all(same(left, right) for left, right in zip(wanted[1], got[1], strict=True))


def same_float(wanted, text):
    try:
        got = float(text) if type(text) is str else None
    except ValueError:
        return False
    return got is not None and (got == wanted or abs(got - wanted) <= 1e-9 * max(abs(got), abs(wanted)) < float("inf"))


def same_pairs(wanted, got):
    """Dicts as pairs, in any order; keys are compared exactly."""
    if not all(type(pair) is list and len(pair) == 2 for pair in got):
        return False
    try:
        by_key = {json.dumps(key): value for key, value in got}
    except RecursionError:  # a claim may be nested as deep as it could be read
        return False
    return all(json.dumps(key) in by_key and same(value, by_key[json.dumps(key)]) for key, value in wanted)


def shown(claim):
    """A tagged value as Python would write it, at most MAX_SHOWN characters."""
    try:
        text = plain(claim)
    except (TypeError, ValueError, KeyError, IndexError, RecursionError):
        text = "no value"
    return clip(text)


def plain(value):
    tag = value[0]
    if tag == "n":
        return "None"
    if tag == "i":
        return str(int(value[1], 16))
    if tag == "f":
        return str(value[1])
    if tag in ("b", "s"):
        return repr(value[1])
    if tag == "d":
        return "{" + ", ".join(f"{plain(key)}: {plain(item)}" for key, item in value[1]) + "}"
    inner = ", ".join(plain(item) for item in value[1])
    if tag == "t":
        return f"({inner},)" if len(value[1]) == 1 else f"({inner})"
    return f"[{inner}]"


def clip(text):
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."

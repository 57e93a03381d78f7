"""Runs inside the sandbox as `python -s -P -S /tests/run.py`: calls a function on cases, reports values, never verdicts.

stdin: {"nonce", "path", "entry", "cases": [[argument, ...], ...]}. Result lines: nonce, space, JSON: {"i", "value"} |
{"i", "raised"} | {"i", "refused", "own"} | {"broken"} and, last, {"end": count}. A value is tagged by its exact type
(see `tagged`), so that True is not 1 and a subclass of str is not a str. Expected values never come here. The called
code shares this process: whoever reads the lines treats them as claims.
"""

import builtins
import importlib.util
import json
import os
import sys

MAX_DEPTH = 40
MAX_CHARS = 4000
MAX_BITS = 10_000  # of an int: below Python's own limit for decimal text


class Refused(Exception):
    """A value that has no tagged form. `own`: its class was made by the called code, not by Python."""

    def __init__(self, what, own=False):
        super().__init__(what)
        self.what = what
        self.own = own


def tagged(value, depth=0, _type=type, _str=str, _repr=repr, _len=len):
    """[tag, content]: n None, b bool, i int (hex), f float (repr), s str, l list, t tuple, d dict as pairs."""
    if depth > MAX_DEPTH:
        raise Refused("nested too deep")
    kind = _type(value)
    if value is None:
        return ["n"]
    if kind is bool:
        return ["b", value]
    if kind is int:
        if value.bit_length() > MAX_BITS:
            raise Refused("an int that is too large")
        return ["i", hex(value)]
    if kind is float:
        return ["f", _repr(value)]
    if kind is str:
        if _len(value) > MAX_CHARS:
            raise Refused("a str that is too long")
        return ["s", value]
    if kind is list or kind is tuple:
        if _len(value) > MAX_CHARS:
            raise Refused("a sequence that is too long")
        return ["l" if kind is list else "t", [tagged(item, depth + 1) for item in value]]
    if kind is dict:
        if _len(value) > MAX_CHARS:
            raise Refused("a dict that is too long")
        return ["d", [[tagged(key, depth + 1), tagged(item, depth + 1)] for key, item in value.items()]]
    home = _type.__getattribute__(kind, "__module__") if _type(kind) is _type else "?"
    top = home.split(".")[0] if _type(home) is _str else "?"
    raise Refused(f"a {_type.__getattribute__(kind, '__name__')[:40]}", own=top not in STANDARD)


STANDARD = frozenset(sys.stdlib_module_names) - {"__main__"}
CLASSES = [item for item in vars(builtins).values() if isinstance(item, type)]
EXCEPTIONS = {item: item.__name__ for item in CLASSES if issubclass(item, BaseException)}


def main():
    job = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    os.dup2(2, 1)  # what the attempt prints goes to stderr, never between the result lines
    nonce, write, dumps, exit_now = job["nonce"], os.write, json.dumps, os._exit

    def send(message):
        data = f"\n{nonce} {dumps(message)}\n".encode()
        while data:
            data = data[write(channel, data) :]

    try:
        entry = load(job["path"], job["entry"])
    except BaseException as error:  # noqa: BLE001  whatever the attempt raises is its result
        send({"broken": class_name(error)})
        exit_now(0)
    for index, args in enumerate(job["cases"]):
        send({"i": index, **outcome(entry, args)})
    send({"end": len(job["cases"])})
    exit_now(0)


def load(path, name):
    """The function `name` of a source file, by path: nothing beside that file can be imported in its place."""
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location("attempt", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["attempt"] = module
    sys.path.append(os.path.dirname(path))  # last, so that no file of the tree hides a standard module
    spec.loader.exec_module(module)
    return getattr(module, name)


def outcome(entry, args):
    try:
        value = tagged(entry(*args))
        if len(json.dumps(value)) > MAX_CHARS:
            raise Refused("a value that is too large")
    except Refused as error:
        return {"refused": error.what, "own": error.own}
    except BaseException as error:  # noqa: BLE001  whatever the attempt raises is its result
        return {"raised": class_name(error)}
    return {"value": value}


def class_name(error):
    """The name of a builtin exception; a class made by the attempt is never taken for one of the same name."""
    kind = type(error)
    return EXCEPTIONS.get(kind) or "attempt." + str(type.__getattribute__(kind, "__name__"))[:40]


if __name__ == "__main__":
    main()

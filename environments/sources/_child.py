"""The child process that runs mutants on cases: one JSON job a line in, one line of verdicts out.

Run with `python -I`; it imports the standard library alone. Lines, not seconds, end an endless loop, so the result is
the same on a slow machine; the limits on CPU and memory are for loops inside a built-in.
"""

import json
import resource
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

LINES = 20_000
CPU_S = 40
MEMORY = 1 << 30


class OutOfLines(BaseException):
    pass


def verdict(function: Callable[..., object], case: dict[str, Any]) -> str:
    """ "" if the case passes, "value" if another value came back, else the name of the exception or "hung"."""
    budget = [LINES]

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        budget[0] -= 1
        if budget[0] < 0:
            raise OutOfLines
        return trace

    sys.settrace(trace)
    try:
        value = function(*json.loads(json.dumps(case["args"])))
    except (OutOfLines, MemoryError):
        return "hung"
    except Exception as error:  # noqa: BLE001 - a mutant may raise anything: the name is the result
        sys.settrace(None)
        name = type(error).__name__
        return "" if name == case["raises"] else name
    finally:
        sys.settrace(None)
    return "" if case["raises"] is None and same(value, case["expected"]) else "value"


def same(left: object, right: object) -> bool:
    """Equal in type and value, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(type(k) is str and same(left[k], right[k]) for k in left)
    return left == right


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        names: dict[str, Any] = {}
        exec(job["source"], names)  # noqa: S102 - our own function with one fault
        print(json.dumps([verdict(names[job["entry"]], case) for case in job["cases"]]), flush=True)


if __name__ == "__main__":
    main()

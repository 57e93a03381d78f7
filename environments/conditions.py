"""Other conditions for the same execution: another date, another order, other random numbers, other limits or variables.

`Changed` is an engine that runs everything under one change, so that a verifier can judge under it and know nothing of
it: what a verdict depends on is then found by changing one thing at a time. Clock, order and randomness are changed
inside the interpreter, before the verifier's script: they hold for that process and those it forks.
Not covered: interpreters that the script starts anew, programs other than Python, and clocks that measure durations.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from environments.engines import Engine, Outcome
from schemas.execution import Environment, Execution, Limits

DAY = 86_400
_WITH_VALUE = ("-X", "-W")
_ISOLATED = "-I"


@dataclass(frozen=True)
class Change:
    """Each part that is None, empty or False stays as it is. `clock_s`: seconds to add; `freeze`: a clock that stands."""

    clock_s: float = 0.0
    freeze: float | None = None
    backwards: bool = False
    randomness: int | None = None
    hash_seed: int | None = None
    variables: dict[str, str] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)


NOTHING = Change()


class Changed:
    """The engine under a change."""

    def __init__(self, engine: Engine, change: Change) -> None:
        self.engine, self.change, self.name = engine, change, engine.name

    def enforced(self) -> list[str]:
        return self.engine.enforced()

    def run(self, environment_root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        change = self.change
        variables = {**environment.variables, **change.variables}
        if change.hash_seed is not None:
            variables["PYTHONHASHSEED"] = str(change.hash_seed)
        environment = environment.model_copy(update={"variables": variables})
        execution = execution.model_copy(update={"argv": argv_under(execution.argv, change)})
        limits = Limits.model_validate({**limits.model_dump(), **change.limits})
        return self.engine.run(environment_root, environment, execution, limits)


def argv_under(argv: list[str], change: Change) -> list[str]:
    """`python [flags] script|-m module|-c code ...`, with the change made first. Any other command stays as it is."""
    wanted = replace(change, variables={}, limits={})
    if wanted == NOTHING or not argv[0].rsplit("/", 1)[-1].startswith("python"):
        return argv
    flags, rest = _split(argv[1:])
    if change.hash_seed is not None:  # isolated mode ignores PYTHONHASHSEED; -s -P is the rest of what it does
        flags = [word for flag in flags for word in (("-s", "-P") if flag == _ISOLATED else (flag,)) if word != "-E"]
    if not rest or rest[0] == "-" or wanted == Change(hash_seed=change.hash_seed):
        return [argv[0], *flags, *rest]
    settings = (change.clock_s, change.freeze, change.backwards, change.randomness)
    return [argv[0], *flags, "-c", f"SETTINGS = {settings!r}\n{_BEFORE}", *rest]


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """(the interpreter's flags, what it is to run and its arguments)."""
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] not in ("-c", "-m", "-"):
        place += 2 if words[place] in _WITH_VALUE else 1
    return words[:place], words[place:]


_BEFORE = '''
import sys

clock_s, freeze, backwards, randomness = SETTINGS

if clock_s or freeze is not None:
    import datetime, time

    real_time, real = time.time, {name: getattr(time, name) for name in ("localtime", "gmtime", "ctime", "strftime", "asctime")}

    def now():
        return freeze if freeze is not None else real_time() + clock_s

    def at(name):
        return lambda seconds=None: real[name](now() if seconds is None else seconds)

    time.time, time.time_ns = now, lambda: int(now() * 1_000_000_000)
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, at(name))
    time.strftime = lambda form, moment=None: real["strftime"](form, time.localtime() if moment is None else moment)
    time.asctime = lambda moment=None: real["asctime"](time.localtime() if moment is None else moment)

    def like(real):
        """What the real class made counts as an instance of its stand-in."""
        return type("like", (type,), {"__instancecheck__": lambda cls, item: isinstance(item, real)})

    class date(datetime.date, metaclass=like(datetime.date)):
        @classmethod
        def today(cls):
            return cls.fromtimestamp(now())

    class moment(datetime.datetime, metaclass=like(datetime.datetime)):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(now(), tz)

        @classmethod
        def today(cls):
            return cls.fromtimestamp(now())

        @classmethod
        def utcnow(cls):
            return cls.fromtimestamp(now(), datetime.timezone.utc).replace(tzinfo=None)

    moment.__name__ = moment.__qualname__ = "datetime"
    date.__module__ = moment.__module__ = "datetime"
    datetime.date, datetime.datetime = date, moment

if randomness is not None:
    import os, random

    bytes_of = random.Random(randomness).randbytes
    os.urandom = random._urandom = lambda size: bytes_of(size)
    random.seed(randomness)

if backwards:
    try:
        import _pytest.main
    except ImportError:
        pass
    else:
        collect = _pytest.main.Session.perform_collect

        def reversed_collect(self, *args, **kwargs):
            found = collect(self, *args, **kwargs)
            self.items.reverse()
            return found

        _pytest.main.Session.perform_collect = reversed_collect

import runpy

if sys.argv[1] == "-c":
    code = sys.argv[2]
    sys.argv[:] = ["-c", *sys.argv[3:]]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
elif sys.argv[1] == "-m":
    module = sys.argv[2]
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
else:
    sys.argv[:] = sys.argv[1:]
    if not sys.flags.safe_path:
        sys.path[0] = sys.argv[0].rpartition("/")[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
'''

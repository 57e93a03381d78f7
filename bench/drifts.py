"""Planted drifts: each changes one thing of an environment, and the canary must find it and name it. Exit 1 if it does not.

    python -m bench.drifts --out FILE.json [--plants NAME ...]

The image is copied by hard links for each plant and what is changed is written anew, so that the original stays whole; an
unchanged copy is examined too, and must show nothing. Not covered: two drifts at once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from bench.common import cache_folder, machine, say, table, write_json
from environments.bundles import builtin
from environments.conditions import Change, Changed
from environments.engines import Engine, Outcome, open_engine
from environments.image import Image, build_image
from environments.inventory import NAME, keep
from schemas.canary import CanaryReport, DriftKind
from schemas.errors import PostloopError
from schemas.execution import Environment, Execution, Limits
from schemas.task import Case, Split, Task
from stages.canary import Subject, default_tasks, examine


@dataclass
class Stage:
    """An environment that a plant may change in any part."""

    root: Path
    environment: Environment
    engine: Engine
    tasks: list[Task]
    limits: Limits = field(default_factory=Limits)
    pinned: Environment | None = None
    verifier: str = "cases"

    @property
    def library(self) -> Path:
        return next((self.root / "usr/lib").glob("python3.*"))

    @property
    def site(self) -> Path:
        return next(self.library.glob("*-packages"))


@dataclass(frozen=True)
class Plant:
    """`kind` and `subject` (a pattern) are what the canary must say first."""

    name: str
    what: str
    kind: DriftKind
    subject: str
    plant: Callable[[Stage], None]


# --- in the image --------------------------------------------------------------------------------------------------


def write(path: Path, data: bytes | str) -> None:
    """A new file in place of the old one, which other copies of the image share."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    path.unlink(missing_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    path.chmod(mode)


def other_version(stage: Stage) -> None:
    folder = next(stage.site.glob("pluggy-*.dist-info"))
    text = (folder / "METADATA").read_text()
    version = re.search(r"(?m)^Version: (.*)$", text)
    assert version is not None
    write(folder / "METADATA", text.replace(version[0], "Version: 0.0.1", 1))
    folder.rename(folder.with_name("pluggy-0.0.1.dist-info"))
    write(stage.site / "pluggy" / "_version.py", "version = '0.0.1'\n")


def edited_package(stage: Stage) -> None:
    path = stage.site / "iniconfig" / "__init__.py"
    write(path, path.read_bytes() + b"\nlater = True\n")


def patched_interpreter(stage: Stage, change: Callable[[bytes], bytes]) -> None:
    version = stage.environment.python.encode()
    for path in [*stage.root.glob("usr/lib/**/libpython3*.so*"), *stage.root.glob("usr/bin/python3.*")]:
        data = path.read_bytes()
        if version + b"\0" in data:
            write(path, change(data))
            return
    raise PostloopError(f"plant: no file of the image has the version {version.decode()}; is it a CPython?")


def another_python(stage: Stage) -> None:
    version = stage.environment.python.encode()
    other = version[:-1] + (b"1" if version[-1:] != b"1" else b"2")
    patched_interpreter(stage, lambda data: data.replace(version + b"\0", other + b"\0"))


def rebuilt_interpreter(stage: Stage) -> None:
    patched_interpreter(stage, lambda data: data + b"\0rebuilt")


def bytecode(stage: Stage) -> None:
    path = next((stage.library / "json" / "__pycache__").glob("decoder.*.pyc"))
    write(path, path.read_bytes().replace(b"Expecting value", b"Expecting VALUE"))


def stale_bytecode(stage: Stage) -> None:
    path = stage.library / "textwrap.py"
    write(path, path.read_text() + "\nchanged = True\n")


def missing_module(stage: Stage) -> None:
    (stage.library / "csv.py").unlink()
    for path in (stage.library / "__pycache__").glob("csv.*"):
        path.unlink()


def moved(stage: Stage) -> None:
    (stage.library / "colorsys.py").rename(stage.library / "colors.py")


def link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def mode_bit(stage: Stage) -> None:
    path = stage.library / "this.py"
    data = path.read_bytes()
    write(path, data)
    path.chmod(0o755)


# --- around it -----------------------------------------------------------------------------------------------------


def pinned(stage: Stage, **changes: Any) -> None:
    """The last round pinned another description than the one of now."""
    stage.pinned = stage.environment.model_copy(update=changes)


def variable(stage: Stage, name: str, value: str) -> None:
    stage.pinned = stage.environment
    stage.environment = stage.environment.model_copy(update={"variables": {**stage.environment.variables, name: value}})


class Littered:
    """A warm sandbox that was not emptied."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name = engine, engine.name

    def enforced(self) -> list[str]:
        return self.engine.enforced()

    def run(self, root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        files = {"old-result.json": "{}", **execution.files}
        return self.engine.run(root, environment, execution.model_copy(update={"files": files}), limits)


def littered(stage: Stage) -> None:
    stage.engine = Littered(stage.engine)


def told_otherwise(stage: Stage) -> None:
    stage.engine = Changed(stage.engine, Change(variables={"PYTHONOPTIMIZE": "1"}))


def less_disk(stage: Stage) -> None:
    stage.engine = Changed(stage.engine, Change(limits={"disk_mb": 2}))


# --- in the tests --------------------------------------------------------------------------------------------------


def task(
    name: str, gold: str, cases: Sequence[tuple[list[Any], Any]], start: str = "def f(x):\n    return None\n"
) -> Task:
    return Task(
        id=f"canary/{name}/0", kind="function", family="canary", skill="repair", origin=name, split=Split.TRAIN,
        statement="Repair f.", files={"solution.py": start}, editable=["solution.py"], entry="f", made_by="planted",
        hidden=[Case(args=args, expected=expected) for args, expected in cases],
        gold={"solution.py": gold}, wrong={"solution.py": "def f(x):\n    return 0\n"},
    )  # fmt: skip


def needs(name: str, gold: str, limits: Limits) -> Callable[[Stage], None]:
    """A task whose gold needs more than these limits, beside two that need nothing."""

    def plant(stage: Stage) -> None:
        stage.tasks = [*stage.tasks[:2], task(name, gold, [([1], 1)])]
        stage.limits = limits

    return plant


def judged(name: str, gold: str, cases: Sequence[tuple[list[Any], Any]], **more: Any) -> Callable[[Stage], None]:
    def plant(stage: Stage) -> None:
        stage.tasks = [*stage.tasks[:2], task(name, gold, cases, **more)]

    return plant


def repository(name: str, test: str, gold: str = "def f(x):\n    return x + 1\n") -> Callable[[Stage], None]:
    """The same through real pytest on a repository."""

    def plant(stage: Stage) -> None:
        nodes = [f"tests/test_f.py::{found}" for found in re.findall(r"def (test_\w+)", test)]
        stage.verifier = "repository"
        stage.tasks = [
            Task(
                id=f"canary/{name}/0", kind="repository", family="canary", skill="repair", origin=name, split=Split.TRAIN,
                statement="Repair f.", files={"f.py": "def f(x):\n    return None\n", "tests/test_f.py": ""},
                editable=["f.py"], tests={"tests/test_f.py": test}, f2p=nodes, p2p=[], gold={"f.py": gold},
                wrong={"f.py": "def f(x):\n    return x\n"}, made_by="planted",
            )
        ]  # fmt: skip

    return plant


CLOCK_PAST = "import datetime\ndef f(x):\n    return x if datetime.date.today().year < 2024 else -x\n"
CLOCK_FUTURE = "import time\nLATER = {later}\ndef f(x):\n    return x if time.time() < LATER else -x\n"
ORDER = "calls = []\ndef f(x):\n    calls.append(x)\n    return x if len(calls) == x else -x\n"
RANDOM = "import random\ndef f(x):\n    return random.randrange(10**6)\n"
HASHES = "def f(x):\n    return list({'north', 'east', 'south', 'west', 'up', 'down'})[0]\n"
MEMORY = "def f(x):\n    return len(bytearray(b'x' * (30 << 20))) // (30 << 20)\n"
BUSY = "import time\ndef f(x):\n    end = time.process_time() + 0.6\n    while time.process_time() < end: pass\n    return x\n"
ASLEEP = "import time\ndef f(x):\n    time.sleep(0.8)\n    return x\n"
THREADS = """import threading
def f(x):
    hold = threading.Event()
    threads = [threading.Thread(target=hold.wait) for _ in range(8)]
    for thread in threads: thread.start()
    hold.set()
    for thread in threads: thread.join()
    return x
"""
DISK = "def f(x):\n    with open('/tmp/big', 'wb') as file: file.write(bytes(6 << 20))\n    return x\n"
PYTEST_ORDER = """from f import f
SEEN = []
def test_one():
    SEEN.append(f(0))
    assert SEEN == [1]
def test_two():
    assert SEEN == [1] and f(1) == 2
"""
PYTEST_CLOCK = """import datetime
from f import f
def test_one():
    assert f(1) == 2 and datetime.datetime.now().year <= {year}
"""
DEFAULTS = Limits()


def limits(**changes: Any) -> Limits:
    return DEFAULTS.model_copy(update=changes)


PLANTS: tuple[Plant, ...] = (
    Plant("dependency", "another version of a dependency", "package", "pluggy", other_version),
    Plant("dependency_code", "a dependency's code, its version unchanged", "package", "iniconfig/__init__.py", edited_package),
    Plant("metadata", "the metadata of a package removed", "metadata", "pytest",
          lambda s: shutil.rmtree(next(s.site.glob("pytest-*.dist-info")))),
    Plant("moved", "a module moved", "standard library", "colorsys.py", moved),
    Plant("other_python", "another Python", "interpreter", "python", another_python),
    Plant("rebuilt_python", "the same Python, built again", "interpreter", "python", rebuilt_interpreter),
    Plant("binary", "the interpreter's name missing", "interpreter", "usr/bin/python$",
          lambda s: (s.root / "usr/bin/python").unlink()),
    Plant("library", "a shared library missing", "library", "libz.so",
          lambda s: next(s.root.glob("usr/lib/**/libz.so*")).unlink()),
    Plant("bytecode", "bytecode that is not its source's", "bytecode", "decoder.*pyc", bytecode),
    Plant("source", "a source that its bytecode does not follow", "standard library", "textwrap.py", stale_bytecode),
    Plant("module", "a module of the standard library missing", "standard library", "csv.py", missing_module),
    Plant("sitecustomize", "sitecustomize added", "start-up hook", "sitecustomize.py",
          lambda s: write(s.library / "sitecustomize.py", "import sys\n")),
    Plant("pth", "a path file added", "start-up hook", "extra.pth", lambda s: write(s.site / "extra.pth", "/tmp\n")),
    Plant("shadow", "a module that hides a package", "standard library", "pytest.py",
          lambda s: write(s.library / "pytest.py", "")),
    Plant("mode", "a mode bit", "standard library", "this.py", mode_bit),
    Plant("link", "a link that leads elsewhere", "interpreter", "usr/bin/python3",
          lambda s: link(s.root / "usr/bin/python3", "/tmp/py")),
    Plant("file_to_link", "a file that became a link", "standard library", "abc.py",
          lambda s: link(s.library / "abc.py", "/tmp/abc.py")),
    Plant("left_in_image", "a file left in the image", "file", "work/old.txt", lambda s: write(s.root / "work/old.txt", "x")),
    Plant("users", "the user table", "file", "etc/passwd", lambda s: write(s.root / "etc/passwd", "root:x:0:0::/:/\n")),
    Plant("time_zone", "time zone data added", "time zone", "etc/localtime",
          lambda s: write(s.root / "etc/localtime", b"TZif2")),
    Plant("variable", "an environment variable", "variable", "TZ", lambda s: variable(s, "TZ", "Asia/Tokyo")),
    Plant("locale", "the locale", "variable", "LC_ALL", lambda s: variable(s, "LC_ALL", "tr_TR.UTF-8")),
    Plant("new_variable", "a variable that only the sandbox has", "variable", "PYTHONOPTIMIZE", told_otherwise),
    Plant("declared_package", "the image was rebuilt with another version", "package", "pluggy",
          lambda s: pinned(s, packages={**s.environment.packages, "pluggy": "0.0.1"}, layer="0" * 64)),
    Plant("declared_python", "the image was rebuilt from another Python", "interpreter", "python",
          lambda s: pinned(s, python="3.10.1", layer="0" * 64)),
    Plant("pipe", "a pipe in the image", "file", "work/pipe", lambda s: os.mkfifo(s.root / "work/pipe")),
    Plant("left_over", "a file left by an earlier run", "left over", "/work/old-result.json", littered),
    Plant("disk", "a smaller disk than declared", "limit", "disk_mb", less_disk),
    Plant("memory", "a lower memory limit", "limit", "memory_mb", needs("memory", MEMORY, limits(memory_mb=40))),
    Plant("cpu", "a lower limit of CPU-seconds", "limit", "cpu_s", needs("cpu", BUSY, limits(cpu_s=0.35))),
    Plant("wall", "a lower limit of wall seconds", "limit", "wall_s", needs("wall", ASLEEP, limits(wall_s=0.6))),
    Plant("pids", "a lower limit of processes", "limit", "pids", needs("pids", THREADS, limits(pids=3))),
    Plant("disk_needed", "a lower limit of disk", "limit", "disk_mb", needs("disk", DISK, limits(disk_mb=3))),
    Plant("clock_past", "a test that passed until a date", "clock", "canary/clock_past",
          judged("clock_past", CLOCK_PAST, [([3], 3)])),
    Plant("clock_future", "a test that will fail after a date", "clock", "canary/clock_future",
          judged("clock_future", CLOCK_FUTURE.format(later=int(time.time()) + 100 * 86400), [([3], 3)])),
    Plant("order", "tests that depend on their order", "order", "canary/order", judged("order", ORDER, [([1], 1), ([2], 2)])),
    Plant("random", "a test that depends on random numbers", "randomness", "canary/random",
          judged("random", RANDOM, [([1], 5)])),
    Plant("hash_seed", "a test that depends on the order of a set", "hash seed", "canary/hash_seed",
          judged("hash_seed", HASHES, [([1], "north")])),
    Plant("weak", "tests that the start tree passes", "task", "canary/weak",
          judged("weak", "def f(x):\n    return x\n", [([1], 1)], start="def f(x):\n    return x + 0\n")),
    Plant("pytest_order", "pytest tests that depend on their order", "order", "canary/pytest_order",
          repository("pytest_order", PYTEST_ORDER)),
    Plant("pytest_clock", "a pytest test with a date in it", "clock", "canary/pytest_clock",
          repository("pytest_clock", PYTEST_CLOCK.format(year=time.gmtime().tm_year))),
)  # fmt: skip


def staged(image: Image, folder: Path, engine: Engine) -> Stage:
    """A copy of the image in `folder`, of hard links, with its inventory, and tasks that are as they should be."""
    keep(image.root, image.environment.layer)
    root = folder / "root"
    shutil.copytree(image.root, root, symlinks=True, copy_function=os.link)
    shutil.copyfile(image.root.parent / NAME, folder / NAME)
    for path in (folder, root):
        path.chmod(0o755)
    return Stage(root, image.environment, engine, list(_tasks()))


@cache
def _tasks() -> tuple[Task, ...]:
    return tuple(default_tasks(0))


def look(stage: Stage) -> CanaryReport:
    subject = Subject(stage.environment, stage.root, stage.limits, stage.tasks, stage.pinned)
    return examine(subject, stage.engine, {stage.tasks[0].kind: builtin(stage.verifier)})


def named(report: CanaryReport, plant: Plant) -> bool:
    """Found, and the first drift that is named is the one that was planted."""
    if not report.drifts:
        return False
    first = report.drifts[0]
    return first.kind == plant.kind and re.search(plant.subject, first.subject) is not None


def measure(plants: Sequence[Plant]) -> dict[str, Any]:
    image = build_image(cache_folder() / "images")
    engine = open_engine("bubblewrap")
    rows = []
    for plant in (None, *plants):
        with tempfile.TemporaryDirectory(prefix="postloop-drift-") as place:
            Path(place).chmod(0o755)
            stage = staged(image, Path(place), engine)
            if plant is not None:
                plant.plant(stage)
            began = time.perf_counter()
            report = look(stage)
            seconds = round(time.perf_counter() - began, 2)
        good = report.ok if plant is None else named(report, plant)
        rows.append(
            {
                "plant": plant.name if plant else "none", "what": plant.what if plant else "nothing is changed",
                "found": bool(report.drifts), "named": good, "seconds": seconds,
                "drifts": [drift.model_dump(mode="json") for drift in report.drifts],
            }
        )  # fmt: skip
        say(f"{rows[-1]['plant']}: {'as it should be' if good else 'NOT NAMED'} ({seconds} s)")
    planted = rows[1:]
    return {
        "machine": machine(), "rows": rows, "planted": len(planted), "found": sum(row["found"] for row in planted),
        "named": sum(row["named"] for row in planted), "clean_is_clean": rows[0]["named"],
        "holds": all(row["named"] for row in rows),
    }  # fmt: skip


def cause(row: dict[str, Any]) -> str:
    return "; ".join(f"{drift['kind']} {drift['subject']}: {drift['detail']}" for drift in row["drifts"][:1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plants", nargs="+", choices=[plant.name for plant in PLANTS])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    chosen = [plant for plant in PLANTS if not options.plants or plant.name in options.plants]
    try:
        result = measure(chosen)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    shown = [[row["plant"], row["what"], "yes" if row["named"] else "NO", cause(row)] for row in result["rows"]]
    print(table(["planted", "what", "named", "the canary says"], shown))
    print(f"{result['found']} of {result['planted']} found, {result['named']} named")
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())

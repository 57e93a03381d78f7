"""Verified attempts a second, against what a user would have done: `python -m pytest` on the same tests in a subprocess.

    python -m bench.verify --out FILE.json [--engines bubblewrap docker] [--styles cases repository "long tests"]
                           [--pairs N] [--sizes ...] [--docker-sizes ...]

Honest attempts only, since the baseline has no sandbox: right functions of the project's own library and plain mutants of
them, eight attempts a task. Three styles: case tables, the same as a repository with a test file, and that with a test that
computes for a while (two runs of it cost what they cost). Both sides get as many workers and take turns, a chunk each; the
ratio is one pair's, the figure their median; CPU-seconds of both, children and sandboxes included, stand beside it, since a
busy machine hardly changes them. The baseline is the quick one: no plugin but pytest's own, no cache, its
byte code compiled. Ours pays for a fresh verifier process and for judging each start tree.
Growth: seconds an attempt, by the number of attempts judged at once.

Holds when bubblewrap reaches the aims, both sides agree on every attempt, and an attempt among many costs no more than one
among few. Docker is the daemon of DOCKER_HOST, else one that is started and stopped here (as root).
Not covered: tasks of other sources; the time to build an image.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bench.common import cache_folder, load, machine, say, spread, table, write_json
from bench.engines import Counting
from bench.probes import real_dockerd
from environments.bundles import Bundle, builtin
from environments.engines import Outcome, open_engine
from environments.image import Image, build_image
from environments.sources.library import functions
from environments.sources.repair import repair_tasks
from evals.hacks.plain import tests_of
from evals.verify import Verifier
from schemas.errors import EXIT_DONE, EXIT_NO, PostloopError
from schemas.execution import Environment, Execution, Limits
from schemas.task import Split, Task
from schemas.verdict import Status

GROUP = 8  # attempts a task, as in an RL group
FUNCTIONS, MUTANTS = 60, 4
AIMS = {"cases": 40.0, "repository": 1.5}
MOST_OF_STYLE = {"cases": 10_000, "repository": 1000}  # attempts at once
GROWS = 1.2  # times the cost of an attempt among few: what noise may do
BUNDLES = {"cases": "cases", "repository": "repository", "long tests": "repository"}
LIMITS = {
    "cases": Limits(cpu_s=5),
    "repository": Limits(cpu_s=30, wall_s=90),
    "long tests": Limits(cpu_s=30, wall_s=90),
}
OURS = {"cases": 256, "repository": 64, "long tests": 16}  # attempts in a chunk
PLAIN = {"cases": 16, "repository": 16, "long tests": 8}
LONG = "\n\ndef test_long():\n    assert sum(n * n for n in range(5_000_000)) == 41666654166667500000\n"
A = TypeVar("A")
B = TypeVar("B")


class Attempt(NamedTuple):
    task: Task
    outcome: dict[str, str]


class Metered(Counting):
    """Also the CPU-seconds inside the sandboxes, which the kernel does not add to ours."""

    cpu_s = 0.0

    def run(self, environment_root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        outcome = super().run(environment_root, environment, execution, limits)
        with self._lock:
            self.cpu_s += outcome.telemetry.get("cpu_s", 0.0)
        return outcome


class Bench(NamedTuple):
    engine: Metered
    image: Image
    workers: int


class Spent(NamedTuple):
    wall_s: float
    cpu_s: float


@contextmanager
def spending() -> Iterator[list[Spent]]:
    """Yields a list that holds what was spent when the block has ended, ended child processes included."""
    spent: list[Spent] = []
    began, before = time.perf_counter(), _cpu_s()
    yield spent
    spent.append(Spent(time.perf_counter() - began, _cpu_s() - before))


def _cpu_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def threads(workers: int) -> Callable[[Callable[[A], B], Iterable[A]], list[B]]:
    def fan_out(fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(fn, items))

    return fan_out


def library_tasks(seed: int) -> list[Task]:
    """Without visible cases: both sides run the hidden ones alone."""
    names = sorted(functions())[:FUNCTIONS]
    found = repair_tasks(seed, lambda _: Split.TRAIN, MUTANTS, intact=False, names=names)
    return [task.model_copy(update={"visible": []}) for task in found]


def as_repository(task: Task, more: str = "") -> Task:
    """The same function in a package, the same cases as a test file."""
    test, core = "tests/test_core.py", "lib/core.py"
    source = tests_of(task)["test_solution.py"].replace("from solution import", "from lib.core import") + more
    names = [line[4:].partition("(")[0] for line in source.splitlines() if line.startswith("def test_")]
    nodes = [f"{test}::{name}" for name in names]
    trees = {"files": task.files, "gold": task.gold, "wrong": task.wrong}
    moved = {name: {core: next(iter(tree.values()))} for name, tree in trees.items()}
    moved["files"] |= {"lib/__init__.py": "", "README.md": f"{task.entry}\n"}
    fields = {
        "id": f"repository/{task.id}", "kind": "repository", "entry": None, "visible": [], "hidden": [],
        "editable": [core], "tests": {test: source}, "f2p": nodes[:1], "p2p": nodes[1:], **moved,
    }  # fmt: skip
    return Task.model_validate({**task.model_dump(), **fields})


def styles(seed: int) -> dict[str, list[Task]]:
    tasks = library_tasks(seed)
    return {
        "cases": tasks,
        "repository": [as_repository(task) for task in tasks],
        "long tests": [as_repository(task, LONG) for task in tasks],
    }


def attempts(tasks: Sequence[Task], count: int, first: int = 0) -> list[Attempt]:
    """`count` attempts from number `first` on: right and wrong in turn, each with a comment of its own, GROUP a task."""
    made = []
    for number in range(first, first + count):
        task = tasks[number // GROUP % len(tasks)]
        outcome = (task.gold, task.wrong)[number % 2]
        made.append(Attempt(task, {path: f"{text}\n# {number}\n" for path, text in outcome.items()}))
    return made


def judged(bench: Bench, style: str, chunk: Sequence[Attempt]) -> tuple[Spent, list[bool]]:
    """What it took, and who passed. PostloopError when one of them got no score."""
    bundle, image, inside = BUNDLES[style], bench.image, bench.engine.cpu_s
    with spending() as spent, Bundle(builtin(bundle)) as process:
        verifier = Verifier(process, image.environment, image.root, bench.engine, LIMITS[style])
        verdicts = verifier.judge_many([(task, outcome) for task, outcome in chunk], threads(bench.workers))
    lost = next((verdict for verdict in verdicts if verdict.status is not Status.SCORED), None)
    if lost is not None:
        raise PostloopError(f"{bench.engine.name}: an attempt has no score: {lost.reason}; the machine must be quieter")
    outside = spent[0]
    everything = Spent(outside.wall_s, outside.cpu_s + bench.engine.cpu_s - inside)
    return everything, [bool(verdict.passed) for verdict in verdicts]


def plain(chunk: Sequence[Attempt], workers: int) -> tuple[Spent, list[bool]]:
    with spending() as spent:
        passed = threads(workers)(pytest_passes, chunk)
    return spent[0], passed


def pytest_passes(attempt: Attempt) -> bool:
    """What a user would do: a folder, the files, the tests, a subprocess, its exit code."""
    folder = Path(tempfile.mkdtemp(prefix="bench-verify-"))
    try:
        for name, text in {**attempt.task.files, **attempt.outcome, **tests_of(attempt.task)}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", str(folder)]
        env = {"PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(folder)}
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, timeout=120, check=False)
        return done.returncode == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compare(bench: Bench, style: str, tasks: Sequence[Task], pairs: int) -> dict[str, Any]:
    """Both sides in turn, who begins alternates."""
    ours: list[Spent] = []  # an attempt's share, by pair
    theirs: list[Spent] = []
    differ, before = [], bench.engine.executions
    for pair in range(pairs):
        chunk = attempts(tasks, OURS[style], pair * OURS[style])
        step = OURS[style] // PLAIN[style] | 1  # odd, so that right and wrong ones alternate here too
        some = [number * step % len(chunk) for number in range(PLAIN[style])]
        for turn in (0, 1):
            if (turn + pair) % 2 == 0:
                spent, mine = judged(bench, style, chunk)
                ours.append(Spent(*(part / len(chunk) for part in spent)))
            else:
                spent, said = plain([chunk[index] for index in some], bench.workers)
                theirs.append(Spent(*(part / len(some) for part in spent)))
        differ += [chunk[index].task.id for index, passed in zip(some, said, strict=True) if mine[index] != passed]
        say(f"{bench.engine.name}, {style}: {1000 * ours[-1].wall_s:.1f} ms, plain {1000 * theirs[-1].wall_s:.0f} ms")
    executions = (bench.engine.executions - before) / (pairs * OURS[style])
    both = list(zip(ours, theirs, strict=True))
    return {
        "ours_per_second": spread([1 / mine.wall_s for mine in ours]),
        "plain_per_second": spread([1 / other.wall_s for other in theirs]),
        "ratio": spread([other.wall_s / mine.wall_s for mine, other in both]),
        "cpu_ratio": spread([other.cpu_s / mine.cpu_s for mine, other in both]),
        "ours_cpu_ms": spread([1000 * mine.cpu_s for mine in ours]),
        "plain_cpu_ms": spread([1000 * other.cpu_s for other in theirs]),
        "differ": differ,
        "compared": pairs * PLAIN[style],
        "sandboxes_an_attempt": round(executions, 3),
    }


def growth(bench: Bench, style: str, tasks: Sequence[Task], sizes: Sequence[int]) -> dict[str, float]:
    """Milliseconds an attempt, by the number of attempts; the smallest size three times, since it is the measure."""
    found: dict[str, float] = {}
    for size in sizes:
        times = [judged(bench, style, attempts(tasks, size, 7 * size))[0] for _ in range(3 if size == sizes[0] else 1)]
        found[str(size)] = round(1000 * sorted(spent.wall_s for spent in times)[len(times) // 2] / size, 3)
        say(f"{bench.engine.name}, {style}: {size} attempts, {found[str(size)]} ms each")
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    image, tasks = build_image(cache_folder() / "images"), styles(options.seed)
    result: dict[str, Any] = {"machine": machine(), "load": load(), "workers": options.workers, "engines": {}}
    for name in options.engines:
        with ExitStack() as stack:
            if name == "docker":
                stack.enter_context(real_dockerd())
            engine = open_engine(name)
            if hasattr(engine, "close"):
                stack.callback(engine.close)
            bench = Bench(Metered(engine), image, options.workers)
            judged(bench, "cases", attempts(tasks["cases"], GROUP))  # admits the image: once a process
            sizes = options.sizes if name == "bubblewrap" else options.docker_sizes
            result["engines"][name] = {
                "styles": {style: compare(bench, style, tasks[style], options.pairs) for style in options.styles},
                "growth": {
                    style: growth(bench, style, tasks[style], [n for n in sizes if n <= MOST_OF_STYLE[style]])
                    for style in options.styles
                    if style in AIMS
                },
            }
    result["holds"] = all(holds(name, found) for name, found in result["engines"].items())
    return result


def holds(name: str, found: dict[str, Any]) -> bool:
    ratios = {style: row["ratio"]["median"] for style, row in found["styles"].items()}
    reached = name != "bubblewrap" or all(ratios[style] >= aim for style, aim in AIMS.items() if style in ratios)
    level = all(max(row.values()) <= GROWS * next(iter(row.values())) for row in found["growth"].values())
    return reached and level and not any(row["differ"] for row in found["styles"].values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", default=["bubblewrap"])
    parser.add_argument("--styles", nargs="+", default=list(BUNDLES), choices=list(BUNDLES))
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--docker-sizes", type=int, nargs="+", default=[30, 100, 300])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        result = measure(options)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    rows = [
        [
            name,
            style,
            row["ours_per_second"]["median"],
            row["plain_per_second"]["median"],
            row["ratio"]["median"],
            row["cpu_ratio"]["median"],
        ]
        for name, found in result["engines"].items()
        for style, row in found["styles"].items()
    ]
    print(table(["engine", "style", "a second", "plain pytest", "times", "by CPU time"], rows))
    rows = [
        [name, style, size, cost]
        for name, found in result["engines"].items()
        for style, row in found["growth"].items()
        for size, cost in row.items()
    ]
    print(table(["engine", "style", "attempts", "ms each"], rows))
    return EXIT_DONE if result["holds"] else EXIT_NO


if __name__ == "__main__":
    sys.exit(main())

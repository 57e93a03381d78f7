"""The same task gives the same verdict on bubblewrap and on Docker: gold, no-op and wrong of every task, and the price.

    python -m bench.engines --out FILE.json [--verifiers cases pytest_files] [--tasks N] [--seed S] [--workers 2] [--steps 60]

The engines take turns, some tasks each, so that a busy minute slows both. Verdicts are compared whole: score, checks with
their details, violations, limit, reason. Answers are compared with a text and need no sandbox; they are counted apart.
Holds when no verdict differs, none is an error, every gold passes, and every no-op and wrong edit fails.
Docker is the daemon of DOCKER_HOST, else one that is started and stopped here (as root).
Not covered: other images than the default one; tasks of other sources than the default ones.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.common import cache_folder, load, machine, say, spread, table, write_json
from bench.probes import real_dockerd
from environments.bundles import Bundle, builtin
from environments.engines import ENGINES, Outcome, SandboxEngine, open_engine
from environments.image import Image, build_image
from environments.sources.default import tasks_of
from evals.verify import Verifier
from schemas.errors import EXIT_DONE, EXIT_NO, PostloopError
from schemas.execution import Environment, Execution, Limits
from schemas.task import Task
from schemas.verdict import Verdict

KINDS = ("gold", "noop", "wrong")
TOGETHER = 32  # tasks that one engine judges before the other does
LOOK = Execution(argv=["/usr/bin/python3", "-I", "-S", "-c", "print(open('a.txt').read())"], files={"a.txt": "a"})
PART = 10  # executions in one sandbox that is kept, as an attempt with ten steps has them


class Counting:
    """The engine, and how many executions it ran."""

    def __init__(self, engine: SandboxEngine) -> None:
        self.engine, self.name, self.executions = engine, engine.name, 0
        self._lock = threading.Lock()

    def enforced(self) -> list[str]:
        return self.engine.enforced()

    def run(self, environment_root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        with self._lock:
            self.executions += 1
        return self.engine.run(environment_root, environment, execution, limits)


def sample(count: int | None, seed: int) -> list[Task]:
    """Tasks of the default suite: all, or so many of each skill."""
    rng = random.Random(seed)
    suites = tasks_of().values()
    return [
        task for suite in suites for task in (suite if count is None else rng.sample(suite, min(count, len(suite))))
    ]


def items(tasks: Sequence[Task]) -> list[tuple[str, Task, dict[str, str]]]:
    """(kind, task, outcome) of the three outcomes whose verdict is known."""
    return [
        row for task in tasks for row in (("gold", task, task.gold), ("noop", task, {}), ("wrong", task, task.wrong))
    ]


@contextmanager
def engines(image: Image, names: Sequence[str] = ENGINES) -> Iterator[list[Counting]]:
    """Both, ready: what is done once a process is not measured."""
    with ExitStack() as stack:
        found = []
        for name in names:
            if name == "docker":
                stack.enter_context(real_dockerd())
            engine = stack.enter_context(closing(open_engine(name)))
            engine.prepare(image.root, image.environment)
            found.append(Counting(engine))
        yield found


def compare(
    verifiers: dict[str, Verifier],
    tasks: Sequence[Task],
    workers: int,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """The verdicts of two or more verifiers that differ in their engine, and the seconds of each."""
    seconds = dict.fromkeys(verifiers, 0.0)
    differences, surprises, count = [], [], 0
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(tasks), TOGETHER):
            rows = items(tasks[start : start + TOGETHER])
            found: dict[str, list[Verdict]] = {}
            for name, verifier in verifiers.items():
                began = time.perf_counter()
                found[name] = verifier.judge_many([(task, outcome) for _, task, outcome in rows], pool.map)
                seconds[name] += time.perf_counter() - began
            for (kind, task, _), *verdicts in zip(rows, *found.values(), strict=True):
                count += 1
                passes = kind == "gold" or (kind == "noop" and task.made_by == "intact")  # nothing is broken there
                if any(verdict != verdicts[0] for verdict in verdicts):
                    differences.append({"task": task.id, "outcome": kind, "verdicts": _dumped(found, verdicts)})
                if any(verdict.passed is not passes for verdict in verdicts):
                    surprises.append({"task": task.id, "outcome": kind, "verdicts": _dumped(found, verdicts)})
            progress(min(start + TOGETHER, len(tasks)))
    return {"verdicts": count, "differences": differences, "surprises": surprises, "seconds": seconds}


def _dumped(names: dict[str, Any], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {name: verdict.model_dump(mode="json") for name, verdict in zip(names, verdicts, strict=True)}


def steps(engine: SandboxEngine, image: Image, count: int) -> dict[str, Any]:
    """Seconds of one execution: in a fresh sandbox each, and in one that is kept for PART of them."""

    def timed(run: Callable[[Execution], Outcome]) -> float:
        began = time.perf_counter()
        if run(LOOK).result.stdout != "a\n":
            raise AssertionError("the execution did not answer")
        return time.perf_counter() - began

    fresh = partial(engine.run, image.root, image.environment)
    alone = [timed(lambda execution: fresh(execution, Limits())) for _ in range(count)]
    kept: list[float] = []
    while len(kept) < count:
        with closing(engine.start(image.root, image.environment, Limits())) as sandbox:
            timed(sandbox.run)  # takes the container
            kept += [timed(sandbox.run) for _ in range(PART - 1)]
    return {"fresh_s": spread(alone), "kept_s": spread(kept[:count])}


def measure(names: Sequence[str], tasks: Sequence[Task], workers: int, count: int) -> dict[str, Any]:
    image = build_image(cache_folder() / "images")
    result: dict[str, Any] = {"machine": machine(), "load": load(), "tasks": len(tasks), "verifiers": {}}
    result["answers"] = sum(task.kind == "answer" for task in tasks)
    with engines(image) as pair:
        for name in names:
            for engine in pair:
                engine.executions = 0
            with ExitStack() as stack:
                verifiers = {
                    engine.name: Verifier(
                        stack.enter_context(Bundle(builtin(name))), image.environment, image.root, engine, Limits()
                    )
                    for engine in pair
                }
                told = partial(_told, name, len(tasks))
                found = compare(verifiers, tasks, workers, told)
            found["executions"] = {engine.name: engine.executions for engine in pair}
            result["verifiers"][name] = found
        result["steps"] = {engine.name: steps(engine.engine, image, count) for engine in pair}
        result["enforced"] = {engine.name: engine.enforced() for engine in pair}
    result["holds"] = not any(found["differences"] or found["surprises"] for found in result["verifiers"].values())
    return result


def _told(name: str, of: int, done: int) -> None:
    say(f"{name}: {done} of {of} tasks")


def rows_of(result: dict[str, Any]) -> list[list[Any]]:
    return [
        [name, engine, found["verdicts"], len(found["differences"]), len(found["surprises"]),
         found["executions"][engine], round(seconds, 1), round(found["executions"][engine] / seconds, 1) if seconds else "-"]
        for name, found in result["verifiers"].items()
        for engine, seconds in found["seconds"].items()
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verifiers", nargs="+", choices=("cases", "pytest_files"), default=["cases"])
    parser.add_argument("--tasks", type=int, metavar="N", help="of each skill; all when left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60, help="executions of each kind that are timed alone")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        tasks = sample(options.tasks, options.seed)
        result = measure(options.verifiers, tasks, options.workers, options.steps)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    head = ["verifier", "engine", "verdicts", "differences", "surprises", "executions", "seconds", "executions/s"]
    print(table(head, rows_of(result)))
    for engine, times in result["steps"].items():
        fresh, kept = times["fresh_s"]["median"], times["kept_s"]["median"]
        print(f"{engine}: {fresh * 1000:.0f} ms in a fresh sandbox, {kept * 1000:.0f} ms in a kept one")
    return EXIT_DONE if result["holds"] else EXIT_NO


if __name__ == "__main__":
    sys.exit(main())

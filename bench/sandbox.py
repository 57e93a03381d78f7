"""Executions a second in the real sandbox: a bare Python, and pytest on one file, with one worker and with several.

    python -m bench.sandbox --out FILE.json [--executions N] [--workers 1 2 4]

Each execution is a fresh sandbox with the default limits; nothing is answered from a memo.
Not covered: other engines, and trees of many files.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.common import cache_folder, load, machine, say, spread, table, write_json
from environments.engines import open_engine
from environments.image import Image, build_image
from schemas.errors import PostloopError, SandboxError
from schemas.execution import Execution, ExecutionResult, Limits, Stop

TEST = "def test_one():\n    assert sum([1, 2]) == 3\n"
KINDS = {
    "python": Execution(argv=["/usr/bin/python3", "-I", "-S", "-c", "print(42)"], files={}),
    "pytest": Execution(
        argv=["/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_one.py"],
        files={"test_one.py": TEST},
    ),
}


def rate(engine: Any, image: Image, execution: Execution, count: int, workers: int) -> dict[str, Any]:
    """Executions a wall second, and the seconds of one, over `count` runs. SandboxError unless all exit with 0."""

    def run(index: int) -> tuple[ExecutionResult, float]:
        began = time.perf_counter()
        result = engine.run(image.root, image.environment, execution, Limits()).result
        return result, time.perf_counter() - began

    run(0)  # admits the image: once a process
    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        done = list(pool.map(run, range(count)))
    wall = time.perf_counter() - began
    bad = next((r for r, _ in done if (r.stop, r.exit_code) != (Stop.EXIT, 0)), None)
    if bad is not None:
        what = f"{' '.join(execution.argv)}: {bad.stop}, exit {bad.exit_code}"
        raise SandboxError(f"sandbox: {what}: {bad.stderr[-200:]}; it should exit with 0")
    times = spread([seconds for _, seconds in done])
    return {"per_second": round(count / wall, 2), "seconds": {k: v for k, v in times.items() if k != "all"}}


def measure(count: int, workers: list[int]) -> dict[str, Any]:
    engine, image = open_engine("bubblewrap"), build_image(cache_folder() / "images")
    return {
        "machine": machine(),
        "load": load(),
        "engine": engine.name,
        "enforced": engine.enforced(),
        "rates": {
            kind: {str(number): rate(engine, image, execution, count, number) for number in workers}
            for kind, execution in KINDS.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--executions", type=int, default=60)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        result = measure(options.executions, options.workers)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    rows = [
        [kind, number, row["per_second"], row["seconds"]["median"]]
        for kind, rates in result["rates"].items()
        for number, row in rates.items()
    ]
    print(table(["execution", "workers", "a second", "median s"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""kill -9 at random moments of a tiny round, then a restart: are the records those of an undisturbed round?

    python -m bench.kill --times 20 --out FILE.json [--seed N] [--spec goal.yaml] [--like WORKSPACE] [--folder DIR]

Each trial is a fresh workspace. The whole process group of `postloop run` is killed at a seeded share of the time that
an undisturbed round takes (every second trial kills the restarted run once more), then `postloop run` is called until it
has nothing left to do. Equal means: the content digest of each of the six records. `--like` names a workspace whose round
1, of the same spec, is the undisturbed one. Finished trials are kept in FILE.json: the same call goes on.
Not covered: power loss, for which the store's own tests and its flushes stand.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import ROOT, environment, machine, postloop, say, table, write_json
from schemas.errors import EXIT_DONE, EXIT_NO, InfrastructureError, PostloopError
from schemas.record import STAGES, StageName
from stages.rounds import complete_rounds
from stages.workspace import Workspace

EARLIEST, LATEST = 0.02, 0.98  # shares of an undisturbed run
PATIENCE_S = 600.0
RESTARTS = 3


def digests_of(space: Workspace, number: int = 1) -> dict[str, str]:
    """Stage -> content digest of its record."""
    return {stage: record.content_digest() for stage, record in space.records(number).items()}


@dataclass
class Course:
    """What every trial runs, and how long that takes undisturbed."""

    spec: str
    seconds: float
    folder: Path

    def workspace(self, name: str) -> Workspace:
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        return Workspace.create(place, self.spec)


def run(space: Workspace, kill_after_s: float | None = None) -> int | None:
    """`postloop run` in a process group of its own. None: it was killed; else its exit code."""
    with (space.root.parent / f"{space.root.name}.log").open("ab") as log:
        process = subprocess.Popen(
            postloop("run", "-w", str(space.root)),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=environment(), start_new_session=True,
        )  # fmt: skip
    try:
        return process.wait(PATIENCE_S if kill_after_s is None else kill_after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if kill_after_s is None:
            raise InfrastructureError(f"{space.root}: no end within {PATIENCE_S:.0f} s; see its log") from None
        return None


def undisturbed(course: Course) -> tuple[dict[str, str], float]:
    """Digests and wall seconds of a round that nobody kills. The first fills the cache; the second is timed."""
    run(course.workspace("warm"))
    space = course.workspace("undisturbed")
    began = time.monotonic()
    code = run(space)
    if code != EXIT_DONE:
        raise InfrastructureError(f"{space.root}: an undisturbed round ends with {code}; see its log")
    return digests_of(space), time.monotonic() - began


def trial(course: Course, number: int, seed: int) -> dict[str, Any]:
    """Kill, restart, compare. A trial whose kills all came after the last record is repeated with earlier ones."""
    draw = random.Random(f"{seed}:{number}")
    moments: list[float] = []
    stood: list[list[StageName]] = []
    span = course.seconds
    while not any(len(stages) < len(STAGES) for stages in stood):
        moments, stood = [], []
        space = course.workspace(f"trial-{number}")
        for _ in range(2 - number % 2):
            moment = round(span * draw.uniform(EARLIEST, LATEST), 3)
            if run(space, moment) is None:
                moments.append(moment)
                stood.append([stage for stage in STAGES if space.has(1, stage)])
        span *= 0.7
    codes = [run(space)]
    while codes[-1] != EXIT_DONE and len(codes) < RESTARTS:
        codes.append(run(space))
    problems = space.verify() if complete_rounds(space) else ["the round is not complete"]
    return {
        "trial": number,
        "moments_s": moments,
        "records_at_kill": stood,
        "exit_codes": codes,
        "problems": problems,
        "digests": digests_of(space),
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    done: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8")) if options.out.is_file() else {}
    spec = _spec(options)
    course = Course(spec, options.seconds or 0.0, folder)
    if options.like:
        expected = digests_of(Workspace.open(options.like))
        if not course.seconds:
            raise InfrastructureError("--like needs --seconds: how long such a round takes here")
    elif done.get("spec") == spec:
        expected, course.seconds = done["expected"], done["undisturbed_s"]
    else:
        say("an undisturbed round")
        expected, course.seconds = undisturbed(course)
    kept = done.get("trials", []) if (done.get("expected"), done.get("seed")) == (expected, options.seed) else []
    result: dict[str, Any] = {"spec": spec, "expected": expected, "undisturbed_s": course.seconds, "seed": options.seed}
    for number in range(len(kept), options.times):
        kept.append(trial(course, number, options.seed))
        say(f"trial {number + 1} of {options.times}: {_shown(kept[-1], expected)}")
        write_json(options.out, _summary(result, kept, options.times))
        if not _equal(kept[-1], expected):
            say(f"left for a look: {course.folder / f'trial-{number}'}")
        else:
            shutil.rmtree(course.folder / f"trial-{number}", ignore_errors=True)
    return _summary(result, kept[: options.times], options.times)


def _spec(options: argparse.Namespace) -> str:
    from stages.spec import dump_default

    return str(options.spec.read_text(encoding="utf-8")) if options.spec else dump_default("tiny")


def _equal(found: dict[str, Any], expected: dict[str, str]) -> bool:
    return bool(found["digests"] == expected and not found["problems"] and found["exit_codes"] == [EXIT_DONE])


def _shown(found: dict[str, Any], expected: dict[str, str]) -> str:
    moments = ", ".join(
        f"{moment:.1f} s ({len(at)} records)"
        for moment, at in zip(found["moments_s"], found["records_at_kill"], strict=True)
    )
    if _equal(found, expected):
        return f"killed at {moments}: equal"
    differing = [stage for stage in STAGES if found["digests"].get(stage) != expected.get(stage)]
    return f"killed at {moments}: DIFFERS in {differing or found['problems'] or found['exit_codes']}"


def _summary(result: dict[str, Any], trials: list[dict[str, Any]], times: int) -> dict[str, Any]:
    equal = sum(_equal(one, result["expected"]) for one in trials)
    return {
        **result,
        "times": len(trials),
        "wanted": times,
        "kills": sum(len(one["moments_s"]) for one in trials),
        "equal": equal,
        "ok": equal == len(trials) == times,
        "moments": [one["moments_s"] for one in trials],
        "digests": [one["digests"] for one in trials],
        "trials": trials,
        "machine": machine(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="trials")
    parser.add_argument("--seed", type=int, default=0, help="draws the moments")
    parser.add_argument("--spec", type=Path, help="goal.yaml of the round; default: the tiny template")
    parser.add_argument("--like", type=Path, help="workspace with an undisturbed round 1 of that spec")
    parser.add_argument("--seconds", type=float, help="with --like: wall seconds of such a round")
    parser.add_argument("--folder", type=Path, help="where the workspaces go; default: a temporary folder")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            result = measure(options, options.folder or Path(temporary))
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    print(table(["trials", "kills", "equal"], [[result["times"], result["kills"], result["equal"]]]))
    return EXIT_DONE if result["ok"] else EXIT_NO


if __name__ == "__main__":
    sys.exit(main())

"""Replay of a real round: identical or not, what it costs, and what a fresh run of the same task costs.

    python -m bench.replay --out FILE.json (--workspace DIR | --folder DIR) [--each N] [--pairs N] [--sizes N ...] [--quick]

On a complete workspace (--workspace), else on the default's first round, which is made in --folder. `--each` failures and
as many successes, drawn with a seed from all attempts that were scored, are scored (L0) and executed (L1) again, twice, each
time by processes of their own; then sampled again, batch by batch (--quick: of fewer stages). `--pairs`: how long one
failure takes from its id to a verdict with `postloop replay`, against what one would do without: attempt that task anew
with the same policy, settings and number of samples, in a process that does nothing else; in turns. `--sizes`: scoring so
many recorded outcomes again, each of them made distinct by a comment, so that no verdict is known.
Not covered: other machines and other processors.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import common
from bench.common import cache_folder, make_workspace, postloop, say, spread, table, write_json
from schemas.errors import EXIT_DONE, EXIT_NO, IntegrityError, PostloopError
from schemas.goal import GoalRecord
from schemas.record import STAGES
from schemas.trajectory import Purpose
from schemas.verdict import Status
from stages.checkpoints import final_checkpoint, folder_of
from stages.context import Context, threads
from stages.equipment import equip
from stages.recorded import Recorded, recorded
from stages.tasks import load_tasks
from stages.workspace import Workspace

SEED = 0
QUICK = ("sft", "backflow")
AT_ONCE = 40  # ids on one command line


def chosen(rows: Sequence[Recorded], each: int) -> list[Recorded]:
    """`each` failures and as many successes, fewer where there are fewer."""
    stream = random.Random(SEED)
    scored = [row for row in rows if row.attempt.verdict.status is Status.SCORED]
    parts = [[row for row in scored if row.attempt.verdict.passed is passed] for passed in (False, True)]
    return [row for part in parts for row in stream.sample(part, min(each, len(part)))]


def replayed(space: Workspace, ids: Sequence[str], *options: str) -> tuple[list[dict[str, Any]], float]:
    """Answers of the command and its wall seconds, start of the process included."""
    began = time.perf_counter()
    done = subprocess.run(
        postloop("replay", *ids, *options, "--json", "-w", str(space.root)),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        cwd=common.ROOT, env=common.environment(),
    )  # fmt: skip
    seconds = time.perf_counter() - began
    if done.returncode not in (EXIT_DONE, EXIT_NO):
        raise IntegrityError(f"postloop replay: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers, seconds


def of(asked: set[tuple[str, int]], answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers on these attempts, (trajectory, round), each once."""
    found = {(one["trajectory"], one["round"], one["level"]): one for one in answers}
    return [one for (name, number, _), one in found.items() if (name, number) in asked]


def counts(answers: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Level -> how many were identical, different or not compared."""
    word = {True: "identical", False: "different", None: "not_compared"}
    levels = dict.fromkeys(answer["level"] for answer in answers)
    return {
        level: dict(Counter(word[answer["same"]] for answer in answers if answer["level"] == level)) for level in levels
    }


def fresh(space: Workspace, number: int, task_id: str) -> None:
    """Attempt a task anew: the round's final policy, deployment settings, as many samples as backflow takes."""
    goal = space.read(number, "goal")
    assert isinstance(goal, GoalRecord)
    ctx = Context(space, number, goal.spec, cache_folder(), operation="regenerate")
    tasks = [task for task in load_tasks(ctx) if task.id == task_id]
    place, weights, _ = final_checkpoint(ctx)
    with equip(ctx, goal) as bench:
        sampler = bench.sampler(folder_of(ctx, place, weights))
        asked = bench.requests(tasks, goal.spec.backflow.samples, Purpose.ATTRIBUTION, f"fresh {weights}")
        attempts = bench.attempt(sampler, asked, setting=bench.deployed(), audit="all")
    print(json.dumps({"attempts": len(attempts), "passed": sum(bool(a.verdict.passed) for a in attempts)}))


def one_failure(space: Workspace, rows: Sequence[Recorded], pairs: int) -> dict[str, Any]:
    """Wall seconds from an id to a verdict, by replay and by a fresh run, in turns."""
    failures = [row for row in rows if row.stage == "backflow" and row.attempt.verdict.passed is False]
    taken = random.Random(SEED).sample(failures, min(pairs, len(failures)))
    ours: list[float] = []
    theirs: list[float] = []
    for row in taken:
        ours.append(replayed(space, [row.attempt.trajectory.id])[1])
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "bench.replay", "--fresh", row.attempt.trajectory.task_id, "--round", str(row.round),
             "--workspace", str(space.root)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, cwd=common.ROOT, env=common.environment(),
        )  # fmt: skip
        theirs.append(time.perf_counter() - began)
    ratios = [fresh_s / replay_s for fresh_s, replay_s in zip(theirs, ours, strict=True)]
    return {"replay_s": spread(ours), "fresh_s": spread(theirs), "ratio": spread(ratios)} if taken else {}


def rescoring(space: Workspace, rows: Sequence[Recorded], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Seconds to score N outcomes at once, all of them distinct."""
    found = []
    number = max(row.round for row in rows)
    goal = space.read(number, "goal")
    assert isinstance(goal, GoalRecord)
    ctx = Context(space, number, goal.spec, cache_folder(), operation="replay")
    tasks = {task.digest(): task for task in load_tasks(ctx)}
    able = [row.attempt.trajectory for row in rows if row.attempt.trajectory.task in tasks]
    able = [trajectory for trajectory in able if any(path.endswith(".py") for path in trajectory.outcome)]
    for size in sizes:
        items = []
        for index in range(size):
            trajectory = able[index % len(able)]
            noted = {path: f"{text}\n# {size} {index}\n" for path, text in trajectory.outcome.items()}
            items.append((tasks[trajectory.task], noted))
        with equip(ctx, goal) as bench:
            began = time.perf_counter()
            verdicts = bench.verifier.judge_many(items, threads(len(os.sched_getaffinity(0))))
            seconds = time.perf_counter() - began
        errors = sum(verdict.status is Status.ERROR for verdict in verdicts)
        found.append(
            {"trajectories": size, "seconds": round(seconds, 2), "a_second": round(size / seconds, 1), "errors": errors}
        )
        say(f"rescoring {size}: {seconds:.1f} s")
    return found


def stage_seconds(space: Workspace, number: int) -> float:
    return round(float(sum(space.telemetry(number, stage).get("seconds", 0.0) for stage in STAGES)), 1)


def measure(space: Workspace, each: int, pairs: int, sizes: Sequence[int], quick: bool) -> dict[str, Any]:
    rows = recorded(space)
    sample = chosen(rows, each)
    ids = [row.attempt.trajectory.id for row in sample]
    asked = {
        (row.attempt.trajectory.id, row.round) for row in sample
    }  # a later round may have judged the same one anew
    runs, walls = [], []
    for _ in range(2):
        answers: list[dict[str, Any]] = []
        began = time.perf_counter()
        for start in range(0, len(ids), AT_ONCE):
            answers += replayed(space, ids[start : start + AT_ONCE])[0]
        walls.append(round(time.perf_counter() - began, 1))
        answers = of(asked, answers)
        runs.append(answers)
        say(f"replay: {counts(answers)}, {walls[-1]} s")
    drawn = [row.attempt.trajectory.id for row in sample if not quick or row.stage in QUICK]
    again, seconds = replayed(space, drawn, "--regenerate")
    again = of(asked, again)
    say(f"regenerate: {counts(again)}, {seconds:.1f} s")
    reasons = Counter(answer["reason"].split(";")[0][:60] for answer in again if answer["same"] is None)
    return {
        "machine": common.machine(),
        "load": common.load(),
        "rounds": space.rounds(),
        "attempts_recorded": len(rows),
        "failures": sum(row.attempt.verdict.passed is False for row in sample),
        "successes": sum(row.attempt.verdict.passed is True for row in sample),
        "replays": [counts(answers) for answers in runs],
        "answers_equal": runs[0] == runs[1],
        "replay_s": walls,
        "regenerate": counts(again)["regenerate"],
        "regenerated_stages": sorted({answer["stage"] for answer in again}),
        "regenerate_reasons": dict(reasons),
        "regenerate_s": round(seconds, 1),
        "round_s": {str(number): stage_seconds(space, number) for number in space.rounds()},
        "one_failure": one_failure(space, rows, pairs),
        "rescoring": rescoring(space, rows, sizes),
    }


def holds(result: dict[str, Any], each: int) -> bool:
    wanted = {"identical": result["failures"] + result["successes"]}
    whole = result["failures"] == result["successes"] == each
    return bool(
        whole
        and result["answers_equal"]
        and all(levels == {"L0": wanted, "L1": wanted} for levels in result["replays"])
        and not result["regenerate"].get("different")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", type=Path, help="a complete workspace; nothing but its caches is changed")
    parser.add_argument("--folder", type=Path, default=Path("proofs/work/replay"))
    parser.add_argument("--each", type=int, default=100, help="failures, and as many successes")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--quick", action="store_true", help=f"sample again only what {' and '.join(QUICK)} sampled")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fresh", metavar="TASK", help=argparse.SUPPRESS)
    parser.add_argument("--round", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if options.fresh is not None:
            fresh(Workspace.open(options.workspace), options.round, options.fresh)
            return EXIT_DONE
        if options.out is None:
            parser.error("--out FILE.json is missing")
        space = Workspace.open(options.workspace) if options.workspace is not None else _made(options.folder.resolve())
        result = measure(space, options.each, options.pairs, options.sizes, options.quick)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    rows = [[level, *(run[level].get("identical", 0) for run in result["replays"])] for level in ("L0", "L1")]
    print(table(["identical of " + str(result["failures"] + result["successes"]), "first", "second"], rows))
    return EXIT_DONE if holds(result, options.each) else EXIT_NO


def _made(folder: Path) -> Workspace:
    space = make_workspace(folder / "workspace", "default", seed=SEED)
    common.run_rounds(space, 1, folder / "workspace.log")
    return space


if __name__ == "__main__":
    sys.exit(main())

"""What the loop costs: wall time of a round beside a plain script that calls the same trainers (bench/plain.py).

    python -m bench.overhead --folder DIR --out FILE.json [--template tiny|default] [--repeats N]

Both run as fresh processes on a warm cache (model, image), in turn, the first of a pair alternating, so that a machine
that gets slower does not favour one. Both must end with the same weights and the same pass@1, else the ratio compares
two computations and the benchmark fails. Ratio and difference are of each pair, then the median.
The tiny template shows the fixed cost in seconds (its training takes next to nothing); the default one the ratio that
matters. Not covered: a first run's set-up, and the second round.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from bench.common import load, machine, make_workspace, postloop, say, spread, table, timed, write_json
from schemas.errors import IntegrityError, PostloopError
from schemas.record import STAGES
from stages.workspace import Workspace

LOOP, PLAIN = "loop", "plain"


def measured(folder: Path, template: str, index: int, which: str) -> dict[str, Any]:
    """One run of one of the two, from its file when it was made before. Seconds, load and what came out."""
    path = folder / f"{template}-{index}-{which}.json"
    if path.is_file():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    say(f"{template}, run {index}: {which}")
    place = folder / f"{template}-{index}-{which}"
    shutil.rmtree(place, ignore_errors=True)  # a killed run's rest would be continued, and the time would be a part
    before = load()
    run = _loop(place, template) if which == LOOP else _plain(place, template)
    run |= {"load_before": before, "load_after": load()}
    write_json(path, run)
    shutil.rmtree(place, ignore_errors=True)
    return run


def _loop(place: Path, template: str) -> dict[str, Any]:
    space = make_workspace(place, template, seed=0)
    seconds = timed(postloop("run", "--rounds", "1", "-w", str(place)), place.with_suffix(".log"))
    return {"seconds": round(seconds, 3), "stages": _stages(space), **_came_out(space)}


def _stages(space: Workspace) -> dict[str, Any]:
    return {stage: space.telemetry(1, stage).get("seconds") for stage in STAGES}


def _came_out(space: Workspace) -> dict[str, Any]:
    record: Any = space.read(1, "evaluation")
    scores: dict[str, dict[str, Any]] = {}
    for result in record.results:
        scores.setdefault(result.policy, {})[result.suite] = result.metrics["pass@1"].value
    return {"weights": {result.policy: result.checkpoint for result in record.results}, "pass@1": scores}


def _plain(place: Path, template: str) -> dict[str, Any]:
    space = make_workspace(place / "spec", template, seed=0)
    out = place / "result.json"
    argv = ["--spec", str(space.spec_path), "--folder", str(place / "work"), "--out", str(out)]
    seconds = timed([sys.executable, "-m", "bench.plain", *argv], place.with_suffix(".log"))
    result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return {"seconds": round(seconds, 3), "stages": result.pop("seconds"), **result}


def check_same(loop: dict[str, Any], plain: dict[str, Any]) -> None:
    """Raises IntegrityError naming the first thing that came out differently."""
    for what in ("weights", "pass@1"):
        if loop[what] != plain[what]:
            name = next(key for key in {**loop[what], **plain[what]} if loop[what].get(key) != plain[what].get(key))
            one, other = loop[what].get(name), plain[what].get(name)
            raise IntegrityError(f"overhead: {what} of {name}: loop {one}, plain {other}; both must compute the same")


def measure(folder: Path, template: str, repeats: int) -> dict[str, Any]:
    # Fills the caches, which a plain script needs as much as a round: neither is charged for them.
    warm(folder, template)
    pairs = []
    for index in range(repeats):
        order = (LOOP, PLAIN) if index % 2 == 0 else (PLAIN, LOOP)
        runs = {which: measured(folder, template, index, which) for which in order}
        check_same(runs[LOOP], runs[PLAIN])
        pairs.append((runs[LOOP], runs[PLAIN]))
    return {
        "template": template,
        "machine": machine(),
        "loop_s": spread([loop["seconds"] for loop, _ in pairs]),
        "plain_s": spread([plain["seconds"] for _, plain in pairs]),
        "ratio": spread([loop["seconds"] / plain["seconds"] for loop, plain in pairs]),
        "difference_s": spread([loop["seconds"] - plain["seconds"] for loop, plain in pairs]),
        "same_weights_and_scores": True,
        "load": spread([run[when] for pair in pairs for run in pair for when in ("load_before", "load_after")]),
        "pairs": [{LOOP: loop, PLAIN: plain} for loop, plain in pairs],
    }


def warm(folder: Path, template: str) -> None:
    """The goal stage alone: model, image, verifier."""
    place = folder / f"{template}-warm"
    shutil.rmtree(place, ignore_errors=True)
    make_workspace(place, template, seed=0)
    timed(postloop("run", "--until", "goal", "-w", str(place)), place.with_suffix(".log"))
    shutil.rmtree(place, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="finished runs are kept here and not repeated")
    parser.add_argument("--template", choices=("default", "tiny"), default="tiny")
    parser.add_argument("--repeats", type=int, default=None, help="pairs; 5 of tiny, 1 of default")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    repeats = options.repeats or (5 if options.template == "tiny" else 1)
    try:
        result = measure(options.folder.resolve(), options.template, repeats)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    parts = ("median", "min", "max", "n")
    rows = [[name, *(result[name][part] for part in parts)] for name in ("loop_s", "plain_s", "ratio", "difference_s")]
    print(table([f"{result['template']} template", "median", "min", "max", "pairs"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

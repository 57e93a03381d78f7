"""What backflow adds: a second round fed by the first one's failures, against one with as much of everything and none of it routed.

    python -m bench.ablation --seeds 0 1 2 --folder DIR --out FILE.json [--template default|tiny]

Both arms of a seed share round 1. `with`: round 2 as it is. `without`: a copy of the workspace in which a person rejected all
material of round 1, and whose goal.yaml asks for as many more training tasks and gold demonstrations as the other arm got
routed, of any family, over the skills as before; rollouts and steps are the same by the spec. Paired by (seed, task) on every
suite, clusters are origins.
Also: of the buckets of round 1 that got material, how many are smaller in round 2, in either arm.

Workspaces are kept, DIR/seed-N with and DIR/without-N: a killed benchmark goes on, and `bench.effect --folder DIR` reads the
first ones without running them again. Nothing here is claimed: it reports what comes out.
Not covered: more than one round of backflow; equal numbers of tokens.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import load, machine, make_workspace, run_rounds, say, share, table, write_json
from bench.effect import Round, buckets_of, pooled, read_round
from schemas.backflow import BackflowRecord
from schemas.data import DataRecord
from schemas.errors import EXIT_DONE, InputError, PostloopError
from stages.decisions import append, identified, now
from stages.workspace import Workspace

TASKS = (r"(\{skill: repair, train: )(\d+)", r"(\{skill: lookup, train: )(\d+)")
GOLD = (r"(gold: \{repair: )(\d+)", r"(gold: \{repair: \d+, lookup: )(\d+)")
ROUTED = ("backflow", "prefix")  # sources of demonstrations that material made


def arms(folder: Path, seed: int, template: str) -> tuple[Workspace, Workspace]:
    """Both workspaces of a seed, brought to two rounds."""
    fed, log = make_workspace(folder / f"seed-{seed}", template, seed), folder / f"seed-{seed}.log"
    run_rounds(fed, 1, log)
    plain = folder / f"without-{seed}"
    if not (plain / "goal.yaml").is_file():
        say(f"{plain}: a copy of round 1")
        shutil.rmtree(plain, ignore_errors=True)
        part = plain.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(fed.root, part, symlinks=True, ignore=shutil.ignore_patterns(".postloop"))
        back_to_round_1(part)
        part.replace(plain)
    run_rounds(fed, 2, log)
    bare = Workspace.open(plain)
    if not bare.has(2, "goal"):
        unfeed(bare, fed)
    run_rounds(bare, 2, folder / f"without-{seed}.log")
    return fed, bare


def back_to_round_1(root: Path) -> None:
    """A workspace that has a second round already, as when the effect was measured before: a commit is made for each stage."""
    log = subprocess.run(
        ["git", "log", "--format=%H %s"], cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    (at,) = [line.split()[0] for line in log if line.endswith(" round 1: backflow")]
    subprocess.run(["git", "reset", "--quiet", "--hard", at], cwd=root, stdin=subprocess.DEVNULL, check=True)
    if Workspace.open(root).rounds() != [1]:
        raise InputError(f"{root}: its history does not lead back to round 1 alone; name another folder")


def unfeed(bare: Workspace, fed: Workspace) -> None:
    """Reject what round 1 made, and ask for as much of any family."""
    record, data = bare.read(1, "backflow"), fed.read(2, "data")
    assert isinstance(record, BackflowRecord)
    assert isinstance(data, DataRecord)
    for bucket in sorted({item.bucket for item in record.material}):
        said = {
            "bucket": bucket,
            "round": 1,
            "approve": False,
            "who": "bench",
            "because": "ablation: nothing is routed",
        }
        append(bare, identified(**said, when=now()))
    shown = sum(data.demonstrations.get(source, 0) for source in ROUTED)
    text = bare.spec_path.read_text()
    text = _more(text, TASKS, data.routed_tasks)
    bare.spec_path.write_text(_more(text, GOLD, shown))


def _more(text: str, patterns: Sequence[str], count: int) -> str:
    """`count` more, over the skills as the template has them."""
    found = [re.findall(pattern, text) for pattern in patterns]
    if any(len(places) != 1 for places in found):
        raise InputError(f"goal.yaml: {found} look like {', '.join(patterns)}, expected one each; correct the template")
    there = [int(places[0][1]) for places in found]
    later = [round(count * number / sum(there)) for number in there[1:]]
    for pattern, number, more in zip(patterns, there, [count - sum(later), *later], strict=True):
        text = re.sub(pattern, rf"\g<1>{number + more}", text)
    return text


def compared(pairs: Sequence[tuple[Round, Round]]) -> dict[str, Any]:
    """Suite -> final policies of round 2, with minus without, pooled over the seeds."""
    how = pairs[0][0].how
    return {
        suite: pooled(
            [(a.seed, a.shares("final", suite, "pass@1"), b.shares("final", suite, "pass@1")) for a, b in pairs], **how
        )
        for suite in pairs[0][0].suites()
    }


def shrunk(space: Workspace) -> dict[str, Any]:
    """Buckets of round 1 that got material, measured again in round 2 on the half that did not choose them."""
    rows = [row for row in buckets_of(space, 1) if row["material"] and row["verdict"] is not None]
    smaller = [row for row in rows if row["difference"] and (row["difference"]["value"] or 0.0) < 0]
    return {
        "buckets": len(rows), "smaller": len(smaller), "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "rows": rows,
    }  # fmt: skip


def measure(seeds: Sequence[int], folder: Path, template: str) -> dict[str, Any]:
    pairs, by_seed = [], {}
    for seed in seeds:
        fed, bare = arms(folder, seed, template)
        pairs.append((read_round(fed, seed, 2), read_round(bare, seed, 2)))
        by_seed[str(seed)] = {"with": shrunk(fed), "without": shrunk(bare)}
    routed = [one["with"] for one in by_seed.values()]
    smaller, all_ = sum(one["smaller"] for one in routed), sum(one["buckets"] for one in routed)
    return {
        "template": template, "machine": machine(), "load": load(), "seeds": by_seed,
        "with_minus_without": compared(pairs),
        "routed_buckets_smaller": {"smaller": smaller, "of": all_, "share": round(smaller / all_, 3) if all_ else None},
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--template", choices=("default", "tiny"), default="default")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        result = measure(options.seeds, options.folder.resolve(), options.template)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    rows = [[suite, share(found["difference"], signed=True)] for suite, found in result["with_minus_without"].items()]
    print(table(["suite", "pass@1, with minus without backflow"], rows))
    print(f"routed buckets smaller in round 2: {result['routed_buckets_smaller']}")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())

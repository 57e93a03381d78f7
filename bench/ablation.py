"""What backflow adds: a second round fed by the first one's failures, against one with as much of everything and none of it routed.

    python -m bench.ablation --seeds 0 1 2 --folder DIR --out FILE.json [--template default|tiny]
    python -m bench.ablation --read SEED.json ... --out FILE.json

Both arms of a seed share round 1. `with`: round 2 as it is. `without`: a copy of the workspace in which a person rejected all
material of round 1, and whose goal.yaml asks for as many more training tasks and gold demonstrations as the other arm got
routed, of any family, over the skills as before; steps and the groups that they use are the same by the spec. What the arms took
stands beside the result (`sizes`): verified rollouts of round 1 are picked among what nothing else shows, so the rows differ by a
few, and groups without spread are sampled again. Paired by (seed, task) on every suite, clusters are origins.
Also: the same at the SFT checkpoint, which tells material from what RL makes of it; dev by family, with the families that got
material apart from the others, since that is where backflow should show; and of the buckets of round 1 that got material, how
many are smaller in round 2, in either arm, and how much smaller than in the other.

Workspaces are kept, DIR/seed-N with and DIR/without-N: a killed benchmark goes on, and `bench.effect --folder DIR` reads the
first ones without running them again. What a seed came to stands in DIR/ablation-N.json; with --read such files of several
machines are pooled. Nothing here is claimed: it reports what comes out.
Not covered: more than one round of backflow; equal numbers of tokens.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import load, machine, make_workspace, run_rounds, say, share, table, write_json
from bench.effect import Round, between, buckets_of, pooled, read_round
from evals.metrics import PerTask, estimate, pass_shares
from schemas.backflow import BackflowRecord
from schemas.data import DataRecord
from schemas.errors import EXIT_DONE, InputError, PostloopError
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.trajectory import Attempt
from stages.attempts import read_attempts
from stages.decisions import append, identified, now
from stages.workspace import Workspace

TASKS = (r"(\{skill: repair, train: )(\d+)", r"(\{skill: lookup, train: )(\d+)")
GOLD = (r"(gold: \{repair: )(\d+)", r"(gold: \{repair: \d+, lookup: )(\d+)")
KEPT = ("machine", "load", "with", "without", "beside", "sizes")  # of a seed's file, beside the pooled figures
ROUTED = ("backflow", "own", "hinted", "prefix")  # sources of demonstrations that material made


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


Outcomes = dict[str, list[Any]]  # task -> [origin, pass@1 with backflow, pass@1 without]


def outcomes(fed: Round, bare: Round, policy: str) -> dict[str, Outcomes]:
    """Suite -> how a policy of round 2 did at each task."""
    return {
        suite: _side_by_side(*(one.shares(policy, suite, "pass@1") for one in (fed, bare))) for suite in fed.suites()
    }


def dev_outcomes(fed: Workspace, bare: Workspace) -> dict[str, dict[str, Any]]:
    """Family -> its material, and how the final policy of round 2 did at each of its dev tasks."""
    record = fed.read(1, "backflow")
    assert isinstance(record, BackflowRecord)
    buckets = {bucket.id: bucket.family for bucket in record.buckets}
    material: dict[str, set[str]] = defaultdict(set)
    for item in record.material:
        if item.approved:
            material[buckets[item.bucket]].add(item.kind)
    ours, theirs = dev_attempts(fed, 2), dev_attempts(bare, 2)
    return {
        family: {
            "material": sorted(material[family]),
            "outcomes": _side_by_side(pass_shares(ours[family]), pass_shares(theirs[family])),
        }
        for family in sorted(ours.keys() & theirs.keys())
    }


def dev_attempts(space: Workspace, number: int) -> dict[str, list[Attempt]]:
    """Family -> attempts at dev of the round's final policy."""
    record, found = space.read(number, "backflow"), defaultdict(list)
    assert isinstance(record, BackflowRecord)
    for attempt in read_attempts(space.open_artifact(record.artifacts["attempts"]) / "attempts.parquet"):
        found[attempt.trajectory.family].append(attempt)
    return found


def _side_by_side(ours: PerTask, theirs: PerTask) -> Outcomes:
    return {task: [*ours[task], theirs[task][1]] for task in sorted(ours.keys() & theirs.keys())}


def compared(seeds: Sequence[dict[str, Any]], policy: str) -> dict[str, Any]:
    """Suite -> policies of round 2, with minus without, pooled over the seeds."""
    rows = {
        suite: [(one["seed"], one["outcomes"][policy][suite]) for one in seeds]
        for suite in seeds[0]["outcomes"][policy]
    }
    # A round may have skipped its training: then there is no such policy to compare.
    return {suite: _difference(own, seeds[0]["how"]) for suite, own in rows.items() if any(tasks for _, tasks in own)}


def compared_on_dev(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Families that got material, the others, and each family of either kind: with minus without on dev."""
    found: dict[str, list[tuple[int, Outcomes]]] = {"treated": [], "untreated": []}
    for one in seeds:
        sides: dict[str, Outcomes] = {"treated": {}, "untreated": {}}
        for family, row in one["dev"].items():
            side = "treated" if row["material"] else "untreated"
            sides[side] |= row["outcomes"]
            found.setdefault(f"{side}: {family}", []).append((one["seed"], row["outcomes"]))
        for side, tasks in sides.items():
            found[side].append((one["seed"], tasks))
    return {name: _difference(rows, seeds[0]["how"]) for name, rows in sorted(found.items()) if any(t for _, t in rows)}


def _difference(rows: Sequence[tuple[int, Outcomes]], how: dict[str, Any]) -> dict[str, Any]:
    """Also the level of either arm: a difference of a family that nobody solves says nothing."""
    pairs = [
        (seed, {task: (origin, ours) for task, (origin, ours, _) in tasks.items()},
         {task: (origin, theirs) for task, (origin, _, theirs) in tasks.items()})
        for seed, tasks in rows
    ]  # fmt: skip
    levels = {
        name: estimate([value for _, *arms in pairs for value in arms[arm].values()], **how).value
        for arm, name in enumerate(("with", "without"))
    }
    return {**levels, **pooled(pairs, **how)}


def shrunk(space: Workspace) -> dict[str, Any]:
    """Buckets of round 1 that got material, measured again in round 2 on the half that did not choose them."""
    rows = [row for row in buckets_of(space, 1) if row["material"] and row["verdict"] is not None]
    smaller = [row for row in rows if row["difference"] and (row["difference"]["value"] or 0.0) < 0]
    return {
        "buckets": len(rows), "smaller": len(smaller), "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "rows": rows,
    }  # fmt: skip


def beside(fed: Workspace, bare: Workspace) -> list[dict[str, Any]]:
    """Each routed bucket after round 2 in either arm: its share of the attempts on the half that did not choose it."""
    theirs = {row["id"]: row for row in buckets_of(bare, 1)}
    rows = []
    for row in shrunk(fed)["rows"]:
        other = theirs[row["id"]]
        with_, without = (one["after"] and one["after"]["value"] for one in (row, other))
        if with_ is not None and without is not None:
            named = {name: row[name] for name in ("cause", "family", "route", "material")}
            rows.append({**named, "with": with_, "without": without, "difference": round(with_ - without, 6)})
    return rows


def sizes(space: Workspace) -> dict[str, int]:
    """What round 2 trained on."""
    sft, rl = space.read(2, "sft"), space.read(2, "rl")
    assert isinstance(sft, SftRecord)
    assert isinstance(rl, RlRecord)
    return {
        "rows": sft.rows, "rl_steps": rl.steps, "groups_used": rl.groups_used, "groups_sampled": rl.groups_sampled,
    }  # fmt: skip


def measure_seed(seed: int, folder: Path, template: str) -> dict[str, Any]:
    fed, bare = arms(folder, seed, template)
    ours, theirs = read_round(fed, seed, 2), read_round(bare, seed, 2)
    return {
        "seed": seed, "template": template, "machine": machine(), "load": load(), "how": ours.how,
        "code": fed.read(2, "backflow").inputs["code"],  # type: ignore[union-attr]
        "outcomes": {policy: outcomes(ours, theirs, policy) for policy in ("final", "sft")}, "dev": dev_outcomes(fed, bare),
        "with": shrunk(fed), "without": shrunk(bare), "beside": beside(fed, bare),
        "sizes": {"with": sizes(fed), "without": sizes(bare)},
    }  # fmt: skip


def read_seed(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}; name a seed's file, DIR/ablation-N.json") from error
    if not isinstance(found, dict) or not {"seed", "outcomes", "dev", "beside", "sizes"} <= found.keys():
        raise InputError(f"{path}: is no seed of this benchmark; name DIR/ablation-N.json")
    return found


def together(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len({(one["template"], json.dumps(one["how"])) for one in seeds}) != 1:
        raise InputError("the seeds are of several templates or intervals; read files of one")
    if (
        len({json.dumps({policy: sorted(own) for policy, own in sorted(one["outcomes"].items())}) for one in seeds})
        != 1
    ):
        raise InputError("the seeds were measured on different suites; read files of one spec")
    if len({one["seed"] for one in seeds}) != len(seeds):
        raise InputError("a seed is given twice; read each once")
    smaller, all_ = (sum(one["with"][name] for one in seeds) for name in ("smaller", "buckets"))
    apart = [row["difference"] for one in seeds for row in one["beside"]]
    return {
        "template": seeds[0]["template"],
        "code": sorted({one["code"] for one in seeds}),
        "seeds": {str(one["seed"]): {name: one[name] for name in KEPT} for one in seeds},
        "with_minus_without": compared(seeds, "final"),
        "with_minus_without_after_sft": compared(seeds, "sft"),
        "with_minus_without_on_dev": compared_on_dev(seeds),
        "routed_buckets_smaller": {"smaller": smaller, "of": all_, "share": round(smaller / all_, 3) if all_ else None},
        # The interval takes each bucket as one of its kind: other buckets, not other trainings.
        "routed_buckets_with_minus_without": between(apart, seeds[0]["how"]["confidence"]),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--folder", type=Path)
    where.add_argument("--read", type=Path, nargs="+", metavar="SEED.json", help="pool seeds that were measured before")
    parser.add_argument("--template", choices=("default", "tiny"), default="default")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        seeds = [read_seed(path) for path in options.read or ()]
        for seed in () if options.read else options.seeds:
            seeds.append(measure_seed(seed, options.folder.resolve(), options.template))
            write_json(options.folder / f"ablation-{seed}.json", seeds[-1])
        result = together(seeds)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    for name in ("with_minus_without", "with_minus_without_after_sft", "with_minus_without_on_dev"):
        rows = [
            [
                where,
                f"{one['with']:.3f}",
                f"{one['without']:.3f}",
                share(one["difference"], signed=True),
                one["difference"]["n"],
            ]
            for where, one in result[name].items()
        ]
        print(table([name.replace("_", " "), "with", "without", "pass@1, with minus without", "tasks"], rows))
    arms_of = [(seed, arm, own) for seed, one in result["seeds"].items() for arm, own in one["sizes"].items()]
    print(table(["seed", "arm", *arms_of[0][2]], [[seed, arm, *own.values()] for seed, arm, own in arms_of]))
    print(f"routed buckets smaller in round 2: {result['routed_buckets_smaller']}")
    print(f"their share in round 2, with minus without: {result['routed_buckets_with_minus_without']}")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())

"""Planted faults: does the ladder give each one to the stage that owns it?

    python -m bench.planted --out FILE.json [--folder DIR] [--read DIR] [--side reserved|sealed|rules] [--kinds KIND...] [--seed N]

At least 20 faults for each route but `undetermined`, made by real changes (bench/planted_faults.py, planted_models.py) on the
base functions, questions and seeds of one of three sides: `rules` were used to write rules and experiments, `sealed` judged
earlier rules, and `reserved`, which are in no data set, were never drawn before the run that the documents quote. Each is a
failure of a task of its own; the ladder decides it, and so do the same rules over the log alone, without an experiment. Kinds
are kept as they are finished, DIR/SIDE-SEED/KIND.json: a second call goes on, and --read takes those files from another
machine. Each fault carries the digest of the code that judged it, and the figure lists them.

Holds when at least 120 faults showed, 20 of each route, at least 98% are given to their owner, and no fault of the
infrastructure to the model (sft, rl). `undetermined` counts as wrong.
Not covered: two faults at once; a full disk of the workspace, which stops the stage and leaves no attempt to blame on anybody
(bench/faults.py): `full_disk` is that of a harness which keeps its trees on one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import planted_faults as faults
from bench import planted_models as models
from bench.common import cache_folder, say, table, write_json
from bench.planted_faults import Decided, Site, World, decided
from schemas.bucket import Route
from schemas.errors import EXIT_DONE, EXIT_NO
from stages.attribute import costs
from stages.keys import code_digest

Kind = Callable[[Site], Iterator[World]]
KINDS: Mapping[str, tuple[Route, int, Kind]] = {
    "verifier_too_lax": (Route.GOAL, 7, faults.hole),
    "verifier_too_strict": (Route.GOAL, 7, faults.too_strict),
    "reward_conflict": (Route.GOAL, 6, faults.reward_conflict),
    "wrong_statement": (Route.DATA, 5, faults.wrong_statement),
    "missing_family": (Route.DATA, 3, faults.missing_family),
    "near_duplicate": (Route.DATA, 3, faults.near_duplicate),
    "drifted_image": (Route.DATA, 3, faults.drifted_image),
    "flaky_test": (Route.DATA, 3, faults.flaky_test),
    "noisy_tool": (Route.DATA, 3, faults.noisy_tool),
    "truncated_context": (Route.DATA, 3, faults.truncated_context),
    "protocol_never_shown": (Route.SFT, 4, models.protocol_never_shown),
    "wrong_rate": (Route.SFT, 3, models.wrong_rate),
    "untrained": (Route.SFT, 3, models.untrained),
    "broken_template": (Route.SFT, 3, models.broken_template),
    "forgotten_skill": (Route.SFT, 4, models.forgotten_skill),
    "harness_mismatch": (Route.SFT, 3, models.harness_mismatch),
    "needs_hint": (Route.SFT, 3, faults.needs_hint),
    "harness_overfit": (Route.SFT, 3, faults.harness_overfit),
    "rare_success": (Route.RL, 8, faults.rare_success),
    "knows_the_visible": (Route.RL, 6, faults.knows_the_visible),
    "good_prefix": (Route.RL, 3, faults.good_prefix),
    "diverged_rl": (Route.RL, 6, models.diverged_rl),
    "wrong_suite": (Route.EVALUATION, 6, faults.wrong_suite),
    "no_room": (Route.EVALUATION, 9, faults.no_room),
    "wrong_setting": (Route.EVALUATION, 5, models.wrong_setting),
    "killed_sandbox": (Route.INFRASTRUCTURE, 6, faults.killed_sandbox),
    "dead_server": (Route.INFRASTRUCTURE, 6, faults.dead_server),
    "killed_harness": (Route.INFRASTRUCTURE, 5, faults.killed_harness),
    "full_disk": (Route.INFRASTRUCTURE, 4, faults.full_disk),
    "slow_machine": (Route.INFRASTRUCTURE, 5, faults.slow_machine),
}
_SPEAKS_NOT = "protocol never_stops tool_misuse tool_choice argument_fidelity"
# What the fault is called; a stage may be named for another reason than what was planted.
CAUSES: Mapping[str, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        "verifier_too_lax": "verifier_hole", "verifier_too_strict": "verifier_too_strict",
        "reward_conflict": "reward_conflict", "wrong_statement": "wrong_statement", "missing_family": "coverage",
        "near_duplicate": "contamination", "drifted_image": "drift", "flaky_test": "unstable", "noisy_tool": "unstable",
        "truncated_context": "observation_cut", "needs_hint": "needs_hint", "harness_overfit": "harness_overfit",
        "good_prefix": "rare_success", "full_disk": "infrastructure",
        "protocol_never_shown": _SPEAKS_NOT, "wrong_rate": "protocol never_stops forgetting",
        "untrained": "untrained", "broken_template": "template", "forgotten_skill": "forgetting",
        "harness_mismatch": f"{_SPEAKS_NOT} harness_overfit", "rare_success": "rare_success",
        "knows_the_visible": "overfit_visible", "diverged_rl": "lost_in_rl", "wrong_suite": "wrong_suite",
        "no_room": "no_room", "wrong_setting": "wrong_setting", "killed_sandbox": "infrastructure",
        "dead_server": "infrastructure", "killed_harness": "infrastructure", "slow_machine": "machine_load",
    }.items()
}  # fmt: skip
ROUTES = [route for route in Route if route is not Route.UNDETERMINED]
SEEDS = {"rules": 100, "sealed": 7000, "reserved": 90000}


def run_kind(site: Site, kind: str) -> list[dict[str, Any]]:
    """One kind's faults, spread over its worlds; fewer than wanted when it did not show in more."""
    owner, wanted, worlds = KINDS[kind]
    share = 3 if kind in ("no_room", "wrong_statement") else wanted
    found: list[Decided] = []
    began = time.perf_counter()
    for world in worlds(site):
        found += decided(world, kind, owner, min(share, wanted - len(found)))
    spent_s = time.perf_counter() - began
    code = code_digest("backflow")[:12]
    about = {"seconds": round(spent_s / max(1, len(found)), 2), "code": code, "side": site.side, "seed": site.seed}
    return [{**row(one), **about} for one in found]


def row(one: Decided) -> dict[str, Any]:
    attribution = one.attribution
    return {
        "kind": one.kind, "owner": one.owner.value, "task": attribution.evidence.task_id,
        "route": attribution.route.value, "cause": attribution.cause, "rule": attribution.rule,
        "log_route": one.by_log[1].value, "log_cause": one.by_log[0],
        "also": attribution.also, "undecided": list(attribution.undecided),
        "cost": {rung: cost.model_dump() for rung, cost in costs([attribution]).items()},
        "said": [f"{e.name}: {e.impossible or e.said}" for e in attribution.experiments],
    }  # fmt: skip


def matrix(rows: list[dict[str, Any]], by: str) -> dict[str, dict[str, int]]:
    """Owner -> route that was said -> faults."""
    return {owner.value: dict(Counter(row[by] for row in rows if row["owner"] == owner.value)) for owner in ROUTES}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    shown = Counter(row["owner"] for row in rows)
    right = sum(row["route"] == row["owner"] for row in rows)
    by_log = sum(row["log_route"] == row["owner"] for row in rows)
    blamed = sum(row["owner"] == "infrastructure" and row["route"] in ("sft", "rl") for row in rows)
    rungs: dict[str, Counter[str]] = {}
    for one in rows:
        for rung, cost in one["cost"].items():
            rungs.setdefault(rung, Counter()).update(cost)
    named = {by: sum(row[by] in CAUSES[row["kind"]] for row in rows) for by in ("cause", "log_cause")}
    enough = len(rows) >= 120 and all(shown[route.value] >= 20 for route in ROUTES)
    return {
        "named": named["cause"], "named_by_log": named["log_cause"],
        "faults": len(rows), "right": right, "right_by_log": by_log, "share": round(right / max(1, len(rows)), 4),
        "share_by_log": round(by_log / max(1, len(rows)), 4), "infrastructure_blamed_on_model": blamed,
        "infrastructure_blamed_by_log": sum(
            row["owner"] == "infrastructure" and row["log_route"] in ("sft", "rl") for row in rows
        ),
        "shown": dict(shown), "matrix": matrix(rows, "route"), "matrix_by_log": matrix(rows, "log_route"),
        "code": dict(Counter(row["code"] for row in rows)),
        "rungs": {rung: dict(cost) for rung, cost in sorted(rungs.items())},
        "kinds": {
            kind: {
                "faults": sum(row["kind"] == kind for row in rows),
                "right": sum(row["kind"] == kind and row["route"] == row["owner"] for row in rows),
                "right_by_log": sum(row["kind"] == kind and row["log_route"] == row["owner"] for row in rows),
                "named": sum(row["kind"] == kind and row["cause"] in CAUSES[kind] for row in rows),
                "named_by_log": sum(row["kind"] == kind and row["log_cause"] in CAUSES[kind] for row in rows),
                "seconds_each": next((row["seconds"] for row in rows if row["kind"] == kind), None),
            }
            for kind in KINDS
            if any(row["kind"] == kind for row in rows)
        },
        "holds": enough and right >= 0.98 * len(rows) and blamed == 0,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("proofs/work/planted"))
    parser.add_argument("--read", type=Path, metavar="DIR", help="kinds that another machine finished: DIR/KIND.json")
    parser.add_argument("--side", choices=sorted(SEEDS), default="reserved")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.read and not any((options.read / f"{kind}.json").is_file() for kind in options.kinds):
        parser.error(f"--read {options.read}: holds no KIND.json of {', '.join(options.kinds)}")
    for kind in options.kinds:
        folder = (options.folder / f"{options.side}-{options.seed}").resolve()
        kept = folder / f"{kind}.json"
        if options.read and (options.read / kept.name).is_file():
            kept = options.read / kept.name
        if not kept.is_file():
            say(f"planted: {kind}")
            site = Site(folder / kind, cache_folder(), options.side, SEEDS[options.side] + options.seed, KINDS[kind][1])
            site.folder.mkdir(parents=True, exist_ok=True)
            write_json(kept, run_kind(site, kind))
        own = json.loads(kept.read_text())
        asked = (options.side, SEEDS[options.side] + options.seed)
        if made := {(one["side"], one["seed"]) for one in own} - {asked}:
            parser.error(f"{kept}: made with side and seed {sorted(made)}, asked are {asked}; name another folder")
        right = sum(one["route"] == one["owner"] for one in own)
        say(f"planted: {kind}: {right} of {len(own)} right, {len(own)} of {KINDS[kind][1]} showed")
        rows += own
    result = {"side": options.side, "seed": options.seed, **summary(rows), "trials": rows}
    print(table(["owner", *(route.value for route in Route)], _lines(result["matrix"])))
    print("\nby the log alone\n")
    print(table(["owner", *(route.value for route in Route)], _lines(result["matrix_by_log"])))
    if options.out:
        write_json(options.out, result)
    return EXIT_DONE if result["holds"] else EXIT_NO


def _lines(found: Mapping[str, Mapping[str, int]]) -> list[list[object]]:
    return [[owner, *(row.get(route.value, 0) for route in Route)] for owner, row in found.items()]


if __name__ == "__main__":
    sys.exit(main())

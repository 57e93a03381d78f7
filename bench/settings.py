"""Settings of the embedded default, compared on dev: what may be looked at when one is chosen.

    python -m bench.settings --folder DIR --out FILE.json [VARIANT...]

Every variant is the default template with some fields changed, run as a round of one workspace by `postloop run`; suites
are dev and the plain questions of dev, held-out splits are empty, and nothing flows from one variant to the next. A
variant that has its round is only read, so a killed benchmark goes on. The choice itself is written into the template
by a person; what measures it is bench/effect.py, on functions that no variant here has seen.

Not covered: several seeds (a difference of a few points here is noise: look at the intervals), and interactions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from bench.common import cache_folder, load, machine, make_workspace, postloop, say, share, table, timed, write_json
from schemas.errors import PostloopError
from schemas.evaluation import EvaluationRecord
from schemas.metrics import Estimate
from schemas.record import STAGES
from stages.rounds import complete_rounds
from stages.workspace import Workspace

Changes = dict[str, Any]

# What holds for all: measure on dev, hand nothing on.
COMMON: Changes = {
    "data.sources.0.held_out": 0,
    "data.sources.0.boundary": 0,
    "data.sources.1.held_out": 0,
    "data.sources.1.boundary": 0,
    "data.sources.2.retention": 0,
    "data.demonstrations.from_past_rounds": 0,
    "criteria": [{"name": "repairs", "suite": "dev", "metric": "pass@1", "at_least": 0.5}],
    "evaluation.suites": [
        {"name": "dev", "split": "dev", "skills": ["repair", "lookup"], "tasks": 72, "samples": 2},
        {"name": "dev_plain", "split": "dev", "skills": ["instruction"], "samples": 2},
    ],
    "evaluation.k": 2,
    "evaluation.retention_suite": "dev_plain",
    "evaluation.promotion_suite": "dev",
    "backflow.tasks": 2,
    "backflow.samples": 1,
    "backflow.max_buckets": 0,
}
GRPO = "rl.phases.0"
VARIANTS: dict[str, Changes] = {
    "outcome": {},
    "priced": {"rewards": {"unchanged": -0.2}},
    "fewer": {"data.demonstrations.gold": {"repair": 32, "lookup": 12}},
    "longer": {f"{GRPO}.steps": 12},
}


def changed(spec: Any, changes: Mapping[str, Any]) -> Any:
    """The spec with the values at dotted paths replaced; a number is an index. KeyError or IndexError off the path."""
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = spec
        for name in parents:
            place = place[int(name)] if name.isdigit() else place[name]
        place[int(last) if last.isdigit() else last] = value
    return spec


def write_spec(space: Workspace, changes: Mapping[str, Any]) -> None:
    from stages.spec import dump_default

    yaml = YAML()
    spec = changed(yaml.load(dump_default("default")), {**COMMON, **changes})
    with space.spec_path.open("w", encoding="utf-8") as file:
        yaml.dump(spec, file)


def run_variant(space: Workspace, name: str, plan: dict[str, int]) -> int:
    """The round of a variant, run if it has none or an open one."""
    if name not in plan:
        plan[name] = complete_rounds(space) + 1
        write_json(space.root / "variants.json", plan)
    number = plan[name]
    if complete_rounds(space) < number:
        write_spec(space, VARIANTS[name])
        say(f"{name}: round {number} of {space.root}")
        timed(postloop("run", "--rounds", str(number), "-w", str(space.root)), space.root.parent / f"{name}.log")
    return number


def of_variant(space: Workspace, name: str, number: int) -> dict[str, Any]:
    record, rl = space.read(number, "evaluation"), space.read(number, "rl")
    assert isinstance(record, EvaluationRecord)
    results = {
        suite: {
            r.policy: {m: r.metrics[m].model_dump(mode="json") for m in ("pass@1", "pass@2", "unchanged", "parse_rate")}
            for r in record.results
            if r.suite == suite
        }
        for suite in sorted({r.suite for r in record.results})
    }
    return {
        "changes": VARIANTS[name],
        "results": results,
        "paired": [
            {"suite": p.suite, "pair": f"{p.candidate}-{p.reference}", "difference": p.difference.model_dump(mode="json")}
            for p in record.paired
        ],
        "rl": {"skipped": getattr(rl, "skipped", None), "curves": getattr(rl, "curves", {})},
        "stage_seconds": {stage: space.telemetry(number, stage).get("seconds") for stage in STAGES},
    }  # fmt: skip


def report(found: Mapping[str, dict[str, Any]]) -> str:
    rows = []
    for name, row in found.items():
        for policy, metrics in row["results"]["dev"].items():
            plain = row["results"]["dev_plain"][policy]["pass@1"]
            cells = [Estimate.model_validate(metrics[m]) for m in ("pass@1", "pass@2", "unchanged")]
            seconds = row["stage_seconds"].get(policy)
            rows.append(
                [name, policy, *map(share, cells), share(Estimate.model_validate(plain)), f"{seconds or 0:.0f}"]
            )
    head = ["variant", "policy", "dev pass@1", "pass@2", "unchanged", "plain questions", "seconds of training stage"]
    return table(head, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"all when left out: {', '.join(VARIANTS)}")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    names = options.variants or list(VARIANTS)
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such variant; one of {', '.join(VARIANTS)}")
    cache_folder().mkdir(parents=True, exist_ok=True)
    root = options.folder.resolve() / "workspace"
    space = Workspace.open(root) if (root / "goal.yaml").is_file() else make_workspace(root, "default", 0)
    kept = root / "variants.json"
    plan: dict[str, int] = json.loads(kept.read_text("utf-8")) if kept.is_file() else {}
    try:
        found = {name: of_variant(space, name, run_variant(space, name, plan)) for name in names}
    except PostloopError as error:
        print(f"bench.settings: {error}", file=sys.stderr)
        return error.exit_code
    write_json(options.out, {"variants": found, "common": COMMON, "machine": machine(), "load": load()})
    print(report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

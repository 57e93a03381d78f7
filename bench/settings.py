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
import tempfile
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from bench.common import cache_folder, load, machine, make_workspace, postloop, say, share, table, timed, write_json
from schemas.errors import InputError, PostloopError
from schemas.evaluation import EvaluationRecord
from schemas.goal import GoalRecord
from schemas.metrics import Estimate
from schemas.record import STAGES
from schemas.rl import RlRecord
from stages.rounds import complete_rounds
from stages.spec import load_spec
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
    "evaluation.retention_margin": 0.001,  # promotes none: a champion would be measured again by every later variant
    "backflow.tasks": 2,
    "backflow.samples": 1,
    "backflow.max_buckets": 0,
}


def variant(
    gold: tuple[int, int],
    train: tuple[int, int] = (200, 100),
    unchanged: float = -0.2,
    steps: int = 6,
    groups: int = 8,
    rate: float = 5e-4,
) -> Changes:
    """All that was compared, named in full, so that a variant stays what it is when the template moves on.

    gold, train: demonstrations and training tasks of repair and lookup. unchanged: price of handing in the start tree.
    """
    return {
        "data.demonstrations.gold": {"repair": gold[0], "lookup": gold[1]},
        "data.sources.0.train": train[0],
        "data.sources.1.train": train[1],
        "rewards": {"unchanged": unchanged},
        "rl.phases.0.steps": steps,
        "rl.phases.0.groups": groups,
        "rl.phases.0.learning_rate": rate,
    }


VARIANTS: dict[str, Changes] = {
    "outcome": variant((64, 24), unchanged=0.0),
    "priced": variant((64, 24)),
    "more": variant((144, 24)),
    "balanced": variant((144, 24), train=(160, 160), steps=8, rate=1e-3),
    "steady": variant((144, 24), train=(160, 160), groups=12, rate=4e-4),
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


def spec_text(name: str) -> str:
    from stages.spec import dump_default

    yaml, text = YAML(), StringIO()  # of ruamel: keeps comments, makes no objects; the text is our own template
    yaml.dump(changed(yaml.load(dump_default("default")), {**COMMON, **VARIANTS[name]}), text)
    return text.getvalue()


def run_variant(space: Workspace, name: str, plan: dict[str, int]) -> int:
    """The round of a variant, run if it has none or an open one."""
    if name not in plan:
        plan[name] = complete_rounds(space) + 1
        write_json(space.root / "variants.json", plan)
    number = plan[name]
    if complete_rounds(space) < number:
        space.spec_path.write_text(spec_text(name), encoding="utf-8")
        say(f"{name}: round {number} of {space.root}")
        timed(postloop("run", "--rounds", str(number), "-w", str(space.root)), space.root.parent / f"{name}.log")
    return number


def of_variant(space: Workspace, name: str, number: int) -> dict[str, Any]:
    record, rl, goal = space.read(number, "evaluation"), space.read(number, "rl"), space.read(number, "goal")
    assert isinstance(record, EvaluationRecord)
    assert isinstance(rl, RlRecord)
    assert isinstance(goal, GoalRecord)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "goal.yaml"
        path.write_text(spec_text(name), encoding="utf-8")
        margin: Any = {"evaluation": {"retention_margin"}}  # it promotes, and changes no number that is shown
        if load_spec(path).model_dump(exclude=margin) != goal.spec.model_dump(exclude=margin):
            raise InputError(f"{space.root}: round {number} is not {name} as it is now; name another --folder")
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
        "families": {
            r.policy: {name: estimate.value for name, estimate in r.by_family.items()}
            for r in record.results
            if r.suite == "dev"
        },
        "rl": {"skipped": rl.skipped, "solved": rl.curves.get("solved"), "kl": rl.curves.get("kl")},
        "stage_seconds": {stage: space.telemetry(number, stage).get("seconds") for stage in STAGES},
    }  # fmt: skip


def report(found: Mapping[str, dict[str, Any]]) -> str:
    head = ["variant", "policy", "dev pass@1", "pass@2", "unchanged", "plain questions", "seconds of training stage"]
    rows = [
        [name, policy, *_cells(row, policy)]
        for name, row in found.items()
        for policy in ("base", "sft", "rl")
        if policy in row["results"]["dev"]
    ]
    return table(head, rows)


def _cells(row: Mapping[str, Any], policy: str) -> list[str]:
    dev, plain = row["results"]["dev"][policy], row["results"]["dev_plain"][policy]
    shares = [dev["pass@1"], dev["pass@2"], dev["unchanged"], plain["pass@1"]]
    return [
        *(share(Estimate.model_validate(value)) for value in shares),
        f"{row['stage_seconds'].get(policy) or 0:.0f}",
    ]


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

"""The run pin of a round, derived from its records alone: it can be made again and never disagrees with them."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from evals.rules import complete, rules_digest
from schemas.backflow import BackflowRecord
from schemas.base import Digest, digest_of
from schemas.goal import GoalRecord
from schemas.model import Checkpoint
from schemas.pins import RunPin
from schemas.record import Record, StageName
from schemas.rl import RlRecord
from schemas.sft import SftRecord

_CARRIED = ("tasks", "demonstrations", "pairs")


def derive(records: Mapping[StageName, Record], commit: str | None = None) -> RunPin:
    """Pins of the stages that are done. `commit`: the workspace's git commit, provenance like the machine.

    `policy`, `tokenizer` and `template` are those of the latest checkpoint of the round; `base`, `sft` and `rl` name
    each one's weights. `libraries` is the lock that the goal stage recorded; `libraries.<stage>` what each one used.
    """
    pins: dict[str, Digest] = {}
    goal = records.get("goal")
    if isinstance(goal, GoalRecord):
        pins |= _goal_pins(goal)
    pins |= _checkpoint_pins(records)
    for stage, record in records.items():
        pins |= {f"{part}.{stage}": record.inputs[part] for part in ("code", "libraries") if part in record.inputs}
        pins |= {name: record.artifacts[name].digest for name in _CARRIED if name in record.artifacts}
    if goal is not None and "libraries" in goal.inputs:
        pins["libraries"] = goal.inputs["libraries"]
    backflow = records.get("backflow")
    if isinstance(backflow, BackflowRecord) and backflow.rules is not None:
        pins["routes"] = backflow.rules
    return RunPin(pins=dict(sorted(pins.items())), provenance=provenance(commit))


def _goal_pins(record: GoalRecord) -> dict[str, Digest]:
    spec = record.spec
    plain = spec.model_dump(mode="json", exclude={"runtime"})
    gates = {
        "parse_rate": spec.sft.min_parse_rate,
        "headroom": plain["rl"]["headroom"],
        "tasks": spec.data.min_tasks,
        "retention_margin": spec.evaluation.retention_margin,
        "criteria": plain["criteria"],
    }
    pins = {
        "goal": digest_of(plain),
        "material": digest_of([item.model_dump(mode="json") for item in record.material]),
        "weights": digest_of(record.weights),
        "environment": record.environment.layer,
        "limits": digest_of(plain["environment"]["limits"]),
        "variables": digest_of(record.environment.variables),
        **record.bundles.named(),
        "suites": digest_of(plain["evaluation"]),
        "gates": digest_of(gates),
        "settings.data": digest_of(plain["data"]),
        "settings.sft": digest_of(plain["sft"]),
        "settings.rl": digest_of(plain["rl"]),
        "settings.backflow": digest_of(plain["backflow"]),
        **{name: digest_of(plain[name]) for name in ("rewards", "sampling", "budgets", "safety", "seed", "start")},
    }
    if spec.routes is not None:
        pins["routes"] = rules_digest(complete(spec.routes))
    return pins


def _checkpoint_pins(records: Mapping[StageName, Record]) -> dict[str, Digest]:
    goal, sft, rl = records.get("goal"), records.get("sft"), records.get("rl")
    found: dict[str, Checkpoint | None] = {
        "base": goal.base if isinstance(goal, GoalRecord) else None,
        "sft": sft.checkpoint if isinstance(sft, SftRecord) else None,
        "rl": rl.checkpoint if isinstance(rl, RlRecord) else None,
    }
    made = {name: checkpoint for name, checkpoint in found.items() if checkpoint is not None}
    pins = {name: checkpoint.weights for name, checkpoint in made.items()}
    if made:
        last = list(made.values())[-1]
        pins |= {"policy": last.weights, "tokenizer": last.tokenizer, "template": last.template, "config": last.config}
    return pins


def provenance(commit: str | None) -> dict[str, str]:
    """Shown, never compared: the machine and the commit."""
    shown = {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu(),
    }
    return shown | ({"commit": commit} if commit else {})


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

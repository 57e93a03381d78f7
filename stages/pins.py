"""The pins of a round and of an attempt, derived from records alone: they can be made again and never disagree with them.

`derive` makes the file that people diff; `declared` what a round's records say now, under the names that its stages wrote
down as their inputs; `attempt_pins` what one attempt was made under.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals.rules import joined, rules_digest
from schemas.backflow import BackflowRecord
from schemas.base import Digest, Json, digest_of
from schemas.data import DataRecord
from schemas.goal import GoalRecord
from schemas.model import Checkpoint
from schemas.pins import RunPin, pin_of
from schemas.record import Record, StageName
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.trajectory import Attempt

_CARRIED = ("tasks", "demonstrations", "pairs")
UNPINNED = ("runtime", "pins")  # sections of the spec that decide no result


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
    data, backflow = records.get("data"), records.get("backflow")
    if isinstance(data, DataRecord) and data.voices:
        pins["teacher"] = digest_of(sorted(data.voices))
    if isinstance(backflow, BackflowRecord) and backflow.rules is not None:
        pins["routes"] = backflow.rules
    return RunPin(pins=dict(sorted(pins.items())), provenance=provenance(commit))


def _goal_pins(record: GoalRecord) -> dict[str, Digest]:
    spec = record.spec
    plain = spec.model_dump(mode="json", exclude=set(UNPINNED))
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
    if spec.noise:
        pins["noise"] = digest_of(plain["noise"])
    if spec.routes is not None:
        pins["routes"] = rules_digest(joined(spec.routes))
    return pins


def declared(goal: GoalRecord, stored: Mapping[str, Any], data: DataRecord | None) -> dict[str, Digest]:
    """What the round's goal and data records say, under the names of `Record.inputs`.

    `stored`: the goal record as it lies on disk. Sections are digested as they were written: a schema that has since got
    a field with a default changes no digest.
    """
    spec: Mapping[str, Json] = stored["spec"]
    sections = {name: spec[name] for name in spec if name not in UNPINNED}
    sections |= {"temperature": stored["spec"]["evaluation"].get("temperature")}
    sections |= {name: stored[name] for name in ("material", "weights") if name in stored}
    pins = {f"spec.{name}": digest_of(value) for name, value in sections.items()}
    pins |= {
        "environment": goal.environment.layer,
        "variables": digest_of({**stored["environment"], "layer": "0" * 64}),
        "limits": digest_of(stored["spec"]["environment"]["limits"]),
        **goal.base.pins(),
        **goal.bundles.named(),
    }
    made = data.artifacts if data is not None else {}
    return pins | {name: made[name].digest for name in _CARRIED if name in made}


def comparable(inputs: Mapping[str, Digest], present: Mapping[str, Digest]) -> dict[str, Digest]:
    """Those of a record's inputs that `present` can answer; a bundle that is gone is kept, as it is absent now."""
    return {name: was for name, was in inputs.items() if name in present or pin_of(name) in ("verifier", "harness")}


def attempt_pins(attempt: Attempt) -> dict[str, Digest]:
    """What it was made, judged and priced under, as it says itself; its seed is none of it. No policy where no turn was."""
    trajectory, verdict = attempt.trajectory, attempt.verdict
    policies = sorted({(turn.policy, turn.policy_version) for turn in trajectory.turns})
    shown = [trajectory.hint, trajectory.parent, trajectory.prefix_turn]
    audit = {"audit_verifier": attempt.audit.verifier} if attempt.audit is not None else {}
    return {
        "tasks": trajectory.task,
        "environment": verdict.image,
        "limits": verdict.limits,
        "verifier": verdict.verifier,
        **audit,
        "harness": trajectory.harness,
        "rewards": attempt.reward.rules,
        **({"policy": digest_of(policies)} if policies else {}),
        "sampling": trajectory.sampling.digest(),
        "noise": digest_of(trajectory.noise and trajectory.noise.model_dump(mode="json")),
        "hint": digest_of(shown),
    }


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
        pins |= last.pins("policy")
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

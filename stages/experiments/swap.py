"""L3: one pin is another: the noise, the setting, the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from schemas.base import Digest
from stages.experiments.lab import Case, Lab, Tried, by_task, clearly_fewer, each, share, share_passes
from stages.experiments.sample import requests, results, tasks_of

MOVED = 1e-7  # relative change of the weights below which nothing was learned


def quiet(lab: Lab, cases: Sequence[Case]) -> None:
    """Without the noise that they were made under, all else alike."""
    if lab.policy is None or lab.noise is None:
        return each(
            cases, lambda case: case.skip("quiet", "they were made without noise, or their policy is not at hand")
        )
    asked = requests(lab, tasks_of(lab, cases), lab.policy, "quiet", lab.spec.k, noise=None)
    tried = results(lab, lab.policy, asked, lab.setting)
    for digest, group in by_task(cases).items():
        now = tried[digest]
        share_passes(group, "quiet", f"{now.passes} of {now.of} pass without noise", "quiet", now)
    return None


def setting(lab: Lab, cases: Sequence[Case]) -> None:
    """Sampled as in training, where that is another setting than that of the failures."""
    if lab.policy is None or lab.setting == lab.training:
        return each(cases, lambda case: case.skip("setting", "they were sampled as in training"))
    asked = requests(lab, tasks_of(lab, cases), lab.policy, "setting", lab.spec.k)
    tried = results(lab, lab.policy, asked, lab.training)
    for digest, group in by_task(cases).items():
        now = tried[digest]
        share_passes(group, "setting", f"{now.passes} of {now.of} pass sampled as in training", "setting", now)
    return None


def checkpoint(lab: Lab, cases: Sequence[Case]) -> None:
    """The policies that this one came from, on the same tasks in the same setting: which stage lost what they can do."""
    if lab.policy is None or not lab.before:
        return each(cases, lambda case: case.skip("checkpoint", "no earlier checkpoint is at hand"))
    idle = untrained(lab)
    tried: dict[str, dict[Digest, Tried]] = {}
    for policy in (*lab.before, lab.policy):
        asked = requests(lab, tasks_of(lab, cases), policy, "checkpoint", lab.spec.k)
        tried[policy.stage] = results(lab, policy, asked, lab.setting)
    for digest, group in by_task(cases).items():
        own = {stage: found[digest] for stage, found in tried.items()}
        cost = Tried.of_attempts([a for now in own.values() for a in now.attempts]).cost()
        if not all(now.of for now in own.values()):
            why = "infrastructure: every attempt of a checkpoint was lost"
            each(group, lambda case, cost=cost, why=why: case.broken("checkpoint", why, **cost))  # type: ignore[misc]
            continue
        found = {
            "base_passes": own["base"].passes if "base" in own and lab.policy.stage != "base" else None,
            "sft_passes": own["sft"].passes if "sft" in own and lab.policy.stage != "sft" else None,
            "lost_at": lost_at(own),
            "untrained": idle,
        }
        said = ", ".join(f"{stage} {now.passes}/{now.of} pass, {now.parsed} parse" for stage, now in own.items())
        share(group, "checkpoint", said, found, **cost)
        for case in group:
            case.count(own[lab.policy.stage])
    return None


def lost_at(tried: Mapping[str, Tried]) -> str:
    """The first stage after which passes, or else turns that parse, are clearly fewer; `never` when none is.

    Fisher's exact test, one-sided, at CLEAR: with four attempts each, three passes against none is clear.
    """
    stages = list(tried)
    for measure in ("passes", "parsed"):
        for before, after in pairwise(stages):
            if clearly_fewer(tried[before], tried[after], measure) and clearly_fewer(
                tried[before], tried[stages[-1]], measure
            ):
                return after
    return "never"


def untrained(lab: Lab) -> bool | None:
    """Whether SFT's weights are those that it began with, up to rounding; None without SFT. RL that moved nothing is no fault
    of the demonstrations."""
    assert lab.policy is not None
    for parent, trained in pairwise([*lab.before, lab.policy]):
        if trained.stage != "sft":
            continue
        if trained.weights == parent.weights:
            return True
        moved = weights_moved(parent.folder(), trained.folder())
        return None if moved is None else moved < MOVED
    return None


def weights_moved(before: Path, after: Path) -> float | None:
    """Norm of the change over the norm of the weights, over tensors of the same name; None when they cannot be compared.

    Not covered: bfloat16 files, which NumPy does not read.
    """
    import numpy as np
    from safetensors import SafetensorError, safe_open

    change = size = 0.0
    try:
        for path in sorted(before.glob("*.safetensors")):
            with safe_open(path, framework="numpy") as old, safe_open(after / path.name, framework="numpy") as new:
                for name in old.keys():  # noqa: SIM118 - not a mapping
                    left, right = (np.asarray(file.get_tensor(name), dtype=np.float64) for file in (old, new))
                    change += float(np.square(left - right).sum())
                    size += float(np.square(left).sum())
    except (OSError, TypeError, ValueError, SafetensorError):
        return None
    return float(np.sqrt(change / size)) if size else None

"""Faults of checkpoints for bench/planted.py: the real model, trained by the stages themselves with the fault in the spec.

A checkpoint is trained once and kept in its workspace; a second call goes on from there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.planted_faults import MODEL, Site, World, made, repairs, run_to
from environments.bundles import Bundle, builtin
from schemas.task import Split, Task
from schemas.trajectory import Attempt, Purpose
from stages.context import Context
from stages.equipment import Equipment, equip
from stages.rollout import Setting
from stages.workspace import Workspace

PHASE = {"name": "cold_start", "steps": 20, "batch_size": 8, "learning_rate": 0.001, "max_length": 1024}
SAMPLING = {"engine": "transformers", "temperature": 0.6, "max_tokens": 96, "batch": 64}
BUDGETS = {"max_turns": 2, "max_tool_calls": 4, "max_context_tokens": 1024}


def trained(site: Site, name: str, tasks: Sequence[Task], until: str = "sft", **changes: Any) -> Context:
    """A workspace of the real model, trained on gold; the one that is there when it has got that far."""
    root = site.folder / name
    if (root / "rounds/0001" / f"{until}.json").is_file():
        return run_to(Workspace.open(root), site.cache, until)
    spec: dict[str, Any] = {
        "model": MODEL, "sampling": SAMPLING, "budgets": BUDGETS, "evaluation": {"temperature": 0.6},
        "sft": {"phases": [PHASE], "gate_tasks": 2, "min_parse_rate": 0.0}, **changes,
    }  # fmt: skip
    demonstrations = {"gold": {"repair": 64}}
    spec["data"] = {"demonstrations": demonstrations, **changes.get("data", {})}
    return made(site, name, tasks, until=until, **spec)


def of_repair(site: Site, dev: int = 16) -> list[Task]:
    return repairs(site, 12, dev)


def solved(attempts: Sequence[Attempt], at_least: int) -> set[str]:
    """Tasks with so many passes."""
    passes = [a.trajectory.task_id for a in attempts if a.verdict.passed]
    return {task for task in passes if passes.count(task) >= at_least}


def can(
    ctx: Context,
    tasks: Sequence[Task],
    folder: Path,
    bench: Equipment,
    setting: Setting,
    at_least: int = 3,
    of: int = 4,
) -> set[str]:
    """Tasks that a checkpoint passes so many times: where a failure is the fault's and not its own."""
    sampler = bench.sampler(folder)
    asked = bench.requests(tasks, of, Purpose.ATTRIBUTION, sampler.policy)
    return solved(bench.attempt(sampler, asked, setting=setting), at_least)


# --- sft


def protocol_never_shown(site: Site) -> Iterator[World]:
    """The base model is asked in a protocol that nobody ever showed it."""
    tasks = repairs(site, 4, 12)
    ctx = made(
        site, "protocol_never_shown", tasks, harness="tools", model=MODEL, sampling=SAMPLING,
        budgets={**BUDGETS, "max_turns": 3}, evaluation={"temperature": 0.6},
    )  # fmt: skip
    yield World(ctx, tasks, samples=2)


def wrong_rate(site: Site) -> Iterator[World]:
    """A learning rate a thousand times too high."""
    tasks = of_repair(site)
    ctx = trained(site, "wrong_rate", tasks, sft=_sft(learning_rate=0.5, steps=6))
    yield World(ctx, tasks, samples=2)


def untrained(site: Site) -> Iterator[World]:
    """A learning rate at which nothing moves."""
    tasks = of_repair(site)
    ctx = trained(site, "untrained", tasks, sft=_sft(learning_rate=1e-12, steps=4))
    yield World(ctx, tasks, samples=2, only=lambda found: {a.trajectory.task_id for a in found} - solved(found, 1))


def broken_template(site: Site) -> Iterator[World]:
    """What trains leaves another chat template beside the weights than the one it trained with."""
    from stages.trainers import sft

    real: Callable[..., Any] = sft.train_sft

    def breaking(start: Path, out: Path, *rest: Any, **more: Any) -> Any:
        result = real(start, out, *rest, **more)
        path = out / "chat_template.jinja"
        path.write_text(path.read_text().replace("assistant", "bot").replace("<|im_start|>", "<|im_end|>", 1))
        return result

    tasks = of_repair(site)
    with patch.object(sft, "train_sft", breaking):
        # One turn: a template that changes earlier turns is refused by the rollout itself.
        ctx = trained(site, "broken_template", tasks, budgets={**BUDGETS, "max_turns": 1})
    yield World(ctx, tasks, samples=2)


def forgotten_skill(site: Site) -> Iterator[World]:
    """Trained on repairs alone, too long and too fast: what the base answered it answers no more."""
    kept = site.plain()
    tasks = [*repairs(site, 12, 4), *kept]
    ctx = trained(site, "forgotten_skill", tasks, sft=_sft(learning_rate=0.006, steps=24))
    goal = ctx.record("goal")
    from stages.checkpoints import fetch_base

    with equip(ctx, goal) as bench:
        able = can(ctx, kept, fetch_base(ctx, goal), bench, bench.deployed())
    yield World(ctx, tasks, split=Split.RETENTION, only=lambda found: able - solved(found, 1))


def normal(site: Site) -> tuple[Context, list[Task]]:
    """The checkpoint that nothing is wrong with, one for all kinds that need it. What its RL would do is in its spec."""
    shared = replace(site, folder=site.folder.parent)
    tasks = of_repair(site, dev=40)
    headroom = {
        "tasks": 2,
        "samples": 2,
        "min_parse_rate": 0.0,
        "min_pass_at_k": 0.0,
        "max_pass_at_1": 1.0,
        "min_mixed": 0.0,
    }
    phase = {"method": "dpo", "name": "prefer", "steps": 4, "groups": 16, "group_size": 4, "learning_rate": 0.2}
    rl = {"skills": ["repair"], "headroom": headroom, "phases": [phase]}
    return trained(shared, "normal", tasks, rl=rl), tasks


def harness_mismatch(site: Site) -> Iterator[World]:
    """Trained in one protocol, measured in another."""
    ctx, tasks = normal(site)
    other = Bundle(builtin("tools"))
    try:
        yield World(
            ctx, tasks, samples=2, bench=lambda bench: replace(bench, harness=other, harness_of={}),
            only=lambda found: {a.trajectory.task_id for a in found} - solved(found, 1), most=8,
        )  # fmt: skip
    finally:
        other.close()


def _sft(**changes: Any) -> dict[str, Any]:
    return {"phases": [{**PHASE, **changes}], "gate_tasks": 2, "min_parse_rate": 0.0}


# --- rl and evaluation


def diverged_rl(site: Site) -> Iterator[World]:
    """RL at a rate that wrecks a checkpoint which solved some of the tasks."""
    before, tasks = normal(site)
    root = site.folder / "diverged_rl"
    if not root.is_dir():
        shutil.copytree(before.workspace.root, root, symlinks=True, ignore=shutil.ignore_patterns(".postloop"))
    ctx = run_to(Workspace.open(root), site.cache, "rl")
    yield World(ctx, tasks, only=lambda found: {a.trajectory.task_id for a in found} - solved(found, 1), most=10)


def wrong_setting(site: Site) -> Iterator[World]:
    """Measured at a temperature at which nothing of the policy is left, where training samples at a lower one.

    On plain questions, which the model answers time after time at the lower one: of repairs on functions that it was not
    trained on it is sure of few, and what it fails by itself half of the time shows no fault of the setting.
    """
    from stages.attribute import lineage

    kept = site.plain()
    tasks = [*repairs(site, 12, 4), *kept]
    ctx = trained(site, "wrong_setting", tasks, sft=_sft(learning_rate=0.0002, steps=6))
    goal = ctx.record("goal")

    def hot(bench: Equipment) -> Setting:
        setting = bench.setting()
        return replace(setting, sampling=setting.sampling.model_copy(update={"temperature": 8.0}))

    with equip(ctx, goal) as bench:
        able = can(ctx, kept, lineage(ctx, goal)[-1].folder(), bench, bench.setting(), at_least=8, of=8)
    yield World(
        ctx, tasks, split=Split.RETENTION, setting=hot,
        only=lambda found: able & {a.trajectory.task_id for a in found} - solved(found, 1),
    )  # fmt: skip

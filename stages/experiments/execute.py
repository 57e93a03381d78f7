"""L1: the recorded actions, and the known solution, go through the harness again; the image is held against its pin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from environments.image import layer_digest
from environments.restored import restore_image
from evals.panel import Judge
from evals.verify import Verifier
from schemas.errors import InputError, PostloopError
from schemas.task import Task
from schemas.trajectory import Attempt, Purpose
from schemas.verdict import Status
from stages.experiments.lab import Case, Lab, alike, by_task, each, share, task_of, unsure, word
from stages.replay import course, forced
from stages.rollout import Setting, rollout
from stages.samplers.recorded_sampler import RecordedSampler
from stages.samplers.scripted_sampler import ScriptedSampler

SPEAKS = ("fenced", "tools")  # harnesses whose protocol the known solution can be written in


def image(lab: Lab, cases: Sequence[Case]) -> None:
    """The tree that attempts ran in against its pin; where it is another, the outcome is judged in both."""
    pinned, root = lab.goal.environment, lab.bench.runner.root
    now = layer_digest(root)
    if now == pinned.layer:
        for case in cases:
            case.learn("image", f"layer {now[:12]}, as pinned", {"image_drifted": False})
        return
    try:
        kept = _kept_judge(lab)
    except PostloopError as error:
        for case in cases:
            case.learn(
                "image", f"layer {now[:12]}, pinned {pinned.layer[:12]}", {"image_drifted": True}, impossible=str(error)
            )
        return
    items = [(task_of(lab, case), dict(case.trajectory.outcome)) for case in cases]
    golds = [(task, task.gold or outcome) for task, outcome in items]
    fan_out = lab.bench.context.fan_out
    here = lab.bench.verifier.judge_many([*items, *golds], fan_out, repeat=9)
    there = kept.judge_many([*items, *golds], fan_out, repeat=9)
    for index, case in enumerate(cases):
        pairs = [(here[i], there[i]) for i in (index, index + len(cases))]
        if why := next((why for pair in pairs for v in pair if (why := unsure(v, case.attempt.verdict))), None):
            case.broken("image", why, executions=4)
            continue
        differs = [pair for pair in pairs if not alike(*pair)]
        said = f"layer {now[:12]}, pinned {pinned.layer[:12]}: " + (
            f"{word(differs[0][0])} here, {word(differs[0][1])} in the pinned one"
            if differs
            else "the same verdicts in both"
        )
        case.learn("image", said, {"image_drifted": bool(differs)}, executions=4)


def _kept_judge(lab: Lab) -> Judge:
    """The training verifier in the kept image. Raises what restoring raises."""
    ctx, goal, panel = lab.bench.context, lab.goal, lab.bench.verifier
    if "image" not in goal.artifacts:
        raise InputError("the round kept no image to compare with")
    layer = ctx.workspace.open_artifact(goal.artifacts["image"]) / "layer.tar"
    environment, root = restore_image(ctx.cache / "images", goal.environment, layer)
    return replace(
        panel,
        verifier=_elsewhere(lab, panel.verifier, environment, root),
        own={kind: _elsewhere(lab, own, environment, root) for kind, own in panel.own.items()},
    )


def _elsewhere(lab: Lab, verifier: Verifier, environment: Any, root: Path) -> Verifier:
    engine = lab.bench.runner.engine
    return Verifier(verifier.bundle, environment, root, engine, verifier.limits, verifier.role)


def replay(lab: Lab, cases: Sequence[Case]) -> None:
    """The recorded actions, `repeats` times."""
    spec, bench = lab.goal.spec, lab.bench
    setting = Setting(sampling=spec.sampling, budgets=spec.budgets, safety=spec.safety, batch=256)
    able = [case for case in cases if case.trajectory.turns]
    each([case for case in cases if not case.trajectory.turns], lambda case: case.skip("replay", "it has no turn"))
    runs = [
        rollout(
            RecordedSampler(), bench.harness, bench.runner, [forced(lab.tasks, case.trajectory) for case in able],
            setting, bench.context.fan_out, harness_of=bench.harness_of,
        )[0]
        for _ in range(lab.spec.repeats)
    ]  # fmt: skip
    for index, case in enumerate(able):
        again = [run[index] for run in runs]
        if broken := next((one for one in again if one.status == "error"), None):
            case.broken("replay", f"infrastructure broke it: {broken.reason}")
            continue
        firsts = [course(case.trajectory, one, spec.environment.volatile) for one in again]
        now = {(first.where, first.now) for first in firsts if first is not None}
        found = "same" if not now else "drifted" if len(now) == 1 and None not in firsts else "unstable"
        said = "each answer as recorded" if not now else f"{found}: {next(f for f in firsts if f).where}"
        case.learn("replay", said, {"replayed": found}, executions=sum(len(one.turns) for one in again))


def gold_path(lab: Lab, cases: Sequence[Case]) -> None:
    """The known solution, written through the harness under the limits of the failures."""
    groups, able = by_task(cases), list[Task]()
    for digest, group in groups.items():
        task = lab.tasks[digest]
        bundle = lab.bench.harness_of.get(task.kind, lab.bench.harness)
        if not task.gold or bundle.name not in SPEAKS:
            why = (
                f"harness {bundle.name} has a protocol of its own" if task.gold else "the task names no known solution"
            )
            each(group, lambda case, why=why: case.skip("gold_path", why))  # type: ignore[misc]
        else:
            able.append(task)
    if not able:
        return
    sampler = ScriptedSampler(_any_folder(lab), {task.id: task for task in able}, "gold")
    sampling = lab.setting.sampling.model_copy(update={"engine": "scripted:gold"})
    setting = replace(lab.setting, sampling=sampling)
    asked = lab.bench.requests(able, 1, Purpose.ATTRIBUTION, sampler.policy)
    for task, attempt in zip(able, lab.bench.attempt(sampler, asked, setting=setting), strict=True):
        found = reached(attempt)
        said = f"the known solution ends: {attempt.trajectory.stop}, {word(attempt.verdict)}"
        group = groups[task.digest()]
        if found is None:
            why = unsure(attempt.verdict) or f"infrastructure broke it: {attempt.verdict.reason}"
            each(group, lambda case, why=why: case.broken("gold_path", why))  # type: ignore[misc]
        else:
            share(group, "gold_path", said, {"gold_reaches": found}, executions=len(attempt.trajectory.turns))


def reached(attempt: Attempt) -> str | None:
    """How far a known solution got; None when the machine broke it or was too slow for it."""
    trajectory, conduct = attempt.trajectory, attempt.trajectory.conduct
    if attempt.verdict.status is not Status.SCORED or unsure(attempt.verdict):
        return None
    if attempt.verdict.passed:
        return "passes"
    if conduct.truncated_turns or trajectory.stop in ("token_limit", "turn_limit", "call_limit"):
        return "limit"
    if conduct.invalid_calls:
        return "parse"
    return "tool" if any(turn.tool_error for turn in trajectory.turns) else "fails"


def _any_folder(lab: Lab) -> Path:
    """A tokenizer to write with: the policy's, else the base's."""
    policy = lab.policy or next(iter(lab.before), None)
    if policy is None:
        raise InputError("no checkpoint of the round is at hand")
    return policy.folder()

"""L2: the policy tries again: as before, told the place, from before its first bad turn, under another harness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evals.evidence import tally
from schemas.base import Digest
from schemas.task import Task
from schemas.trajectory import Attempt, Purpose
from stages.equipment import Equipment, seed_for
from stages.experiments.lab import Case, Lab, Policy, Tried, by_task, each, share, share_passes, task_of
from stages.hints import hint_of
from stages.rollout import RolloutRequest, Setting


def attempted(
    lab: Lab, policy: Policy, asked: Sequence[RolloutRequest], setting: Setting, bench: Equipment | None = None
) -> list[Attempt]:
    tasks = {task.id: task for task in lab.tasks.values()}
    return (bench or lab.bench).attempt(lab.bench.sampler(policy.folder(), tasks), asked, setting=setting)


def requests(lab: Lab, tasks: Sequence[Task], policy: Policy, salt: str, k: int, **more: Any) -> list[RolloutRequest]:
    """`k` attempts of each task on seeds of their own: an experiment never repeats what it explains. `more`: of the
    request, which is under the noise of the failures unless it says otherwise."""
    seed, more = lab.goal.spec.seed, {"noise": lab.noise, **more}
    return [
        RolloutRequest(
            task=task, seed=seed_for(seed, Purpose.ATTRIBUTION, f"{policy.weights} {salt}", task, i), group=task.id,
            purpose=Purpose.ATTRIBUTION, **more,
        )
        for task in tasks
        for i in range(k)
    ]  # fmt: skip


def results(
    lab: Lab, policy: Policy, asked: Sequence[RolloutRequest], setting: Setting, bench: Equipment | None = None
) -> dict[Digest, Tried]:
    """What the attempts at each task came to."""
    found: dict[Digest, list[Attempt]] = {}
    for request, attempt in zip(asked, attempted(lab, policy, asked, setting, bench), strict=True):
        found.setdefault(request.task.digest(), []).append(attempt)
    return {digest: Tried.of_attempts(own) for digest, own in found.items()}


def tasks_of(lab: Lab, cases: Sequence[Case]) -> list[Task]:
    return [lab.tasks[digest] for digest in by_task(cases)]


def again(lab: Lab, cases: Sequence[Case]) -> None:
    """As many more attempts of the same policy as `k` lacks."""
    if lab.policy is None:
        return each(cases, lambda case: case.skip("again", "its policy is not at hand"))
    groups = by_task(cases)
    asked = [
        request
        for digest, group in groups.items()
        for request in requests(
            lab, [lab.tasks[digest]], lab.policy, "again", max(1, lab.spec.k - group[0].evidence.task_attempts)
        )
    ]
    tried = results(lab, lab.policy, asked, lab.setting)
    for digest, group in groups.items():
        before, now = group[0].evidence, tried[digest]
        n, c = before.task_attempts + now.of, before.task_passes + now.passes
        share(group, "again", f"{now.passes} of {now.of} more attempts pass", tally(n, c), **now.cost())
    return None


def hint(lab: Lab, cases: Sequence[Case]) -> None:
    """With the place named, never the content."""
    groups = by_task(cases)
    hints = {digest: hint_of(lab.tasks[digest]) for digest in groups}
    for digest, group in groups.items():
        if hints[digest] is None or lab.policy is None:
            each(group, lambda case: case.skip("hint", "the task has no place to name, or its policy is not at hand"))
    if lab.policy is None:
        return
    asked = [
        request
        for digest, text in hints.items()
        if text is not None
        for request in requests(lab, [lab.tasks[digest]], lab.policy, "hint", lab.spec.k, hint=text)
    ]
    tried = results(lab, lab.policy, asked, lab.setting) if asked else {}
    for digest, now in tried.items():
        said = f"{now.passes} of {now.of} pass when told: {hints[digest]}"
        share_passes(groups[digest], "hint", said, "hinted", now)


def prefix(lab: Lab, cases: Sequence[Case]) -> None:
    """From before the first bad turn, on the recorded actions up to it."""
    able = [case for case in cases if lab.policy is not None and (case.evidence.first_bad_turn or 0) >= 1]
    each([c for c in cases if c not in able], lambda case: case.skip("prefix", "its first turn is the bad one"))
    if lab.policy is None or not able:
        return
    asked = [
        request
        for case in able
        for request in requests(
            lab, [task_of(lab, case)], lab.policy, f"prefix {case.trajectory.id}", lab.spec.k,
            parent=case.trajectory, prefix_turn=case.evidence.first_bad_turn,
        )
    ]  # fmt: skip
    attempts = attempted(lab, lab.policy, asked, lab.setting)
    for index, case in enumerate(able):
        now = Tried.of_attempts(attempts[index * lab.spec.k : (index + 1) * lab.spec.k])
        said = f"{now.passes} of {now.of} pass from turn {(case.evidence.first_bad_turn or 0) + 1} on"
        share_passes([case], "prefix", said, "prefix", now)


def harness(lab: Lab, cases: Sequence[Case]) -> None:
    """The same policy and task, under each of the other harnesses; the best of them counts."""
    if not lab.others or lab.policy is None:
        return each(cases, lambda case: case.skip("harness", "backflow.attribution.harnesses names no other one"))
    best: dict[Digest, tuple[Tried, str]] = {}
    for bundle in lab.others:
        bench = replace(lab.bench, harness=bundle, harness_of={})
        asked = requests(lab, tasks_of(lab, cases), lab.policy, f"harness {bundle.digest}", lab.spec.k)
        for digest, now in results(lab, lab.policy, asked, lab.setting, bench).items():
            if digest not in best or now.passes > best[digest][0].passes:
                best[digest] = now, bundle.name
    for digest, group in by_task(cases).items():
        now, name = best[digest]
        share_passes(group, "harness", f"{now.passes} of {now.of} pass under {name}", "harness", now, len(lab.others))
    return None

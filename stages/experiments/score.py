"""L0: the outcome is scored again, and what the task shows and knows beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals.chain import broken_link, round_trips
from evals.rewards import price
from evals.shown import answer_agrees, shown_parts, shown_task
from schemas.errors import PostloopError
from schemas.task import Task
from schemas.verdict import Status, Verdict
from stages.experiments.lab import Case, Lab, alike, by_task, each, share, task_of, unsure, word
from stages.models import template_of


def rescore(lab: Lab, cases: Sequence[Case]) -> None:
    items = [(task_of(lab, case), dict(case.trajectory.outcome)) for case in cases]
    rounds = [
        lab.bench.verifier.judge_many(items, lab.bench.context.fan_out, repeat=n + 1) for n in range(lab.spec.repeats)
    ]
    for index, case in enumerate(cases):
        again = [row[index] for row in rounds]
        if why := next((why for verdict in again if (why := unsure(verdict, case.attempt.verdict))), None):
            case.broken("rescore", why, executions=len(again))
            continue
        differing = [verdict for verdict in again if not alike(case.attempt.verdict, verdict)]
        said = "the same verdict" if not differing else f"{word(case.attempt.verdict)}, now {word(differing[0])}"
        case.learn("rescore", said, {"rescored": "flips" if differing else "same"}, executions=len(again))


def audit(lab: Lab, cases: Sequence[Case]) -> None:
    """Where none was recorded."""
    if lab.bench.audit is None:
        for case in cases:
            case.skip("audit", "no audit verifier is declared")
        return
    items = [(task_of(lab, case), dict(case.trajectory.outcome)) for case in cases]
    for case, second in zip(cases, lab.bench.audit.judge_many(items, lab.bench.context.fan_out), strict=True):
        if why := unsure(second):
            case.broken("audit", why, executions=1)
        elif second.status is not Status.SCORED:
            case.skip("audit", f"the audit gave no score: {second.reason}")
        else:
            differs = second.passed != case.attempt.verdict.passed
            case.learn("audit", f"the audit says {word(second)}", {"audit_differs": differs}, executions=1)


def current(lab: Lab, cases: Sequence[Case]) -> None:
    if lab.today is None:
        for case in cases:
            case.learn("current", "today's verifier is the recorded one", {"current_differs": False})
        return
    items = [(task_of(lab, case), dict(case.trajectory.outcome)) for case in cases]
    for case, now in zip(cases, lab.today.judge_many(items, lab.bench.context.fan_out), strict=True):
        if why := unsure(now, case.attempt.verdict):
            case.broken("current", why, executions=1)
        else:
            found = {"current_differs": _decides(case.attempt.verdict) != _decides(now)}
            case.learn("current", f"today's verifier says {word(now)}", found, executions=1)


def _decides(verdict: Verdict) -> tuple[Any, ...]:
    """What another verifier may not change: it may well have more checks, or other names for them."""
    return verdict.status, verdict.passed, sorted({violation.kind for violation in verdict.violations})


def gold(lab: Lab, cases: Sequence[Case]) -> None:
    """The task's known solution and its start tree, judged now; the solution by the audit verifier too."""
    groups = by_task(cases)
    known = {digest: group for digest, group in groups.items() if lab.tasks[digest].gold}
    tasks = [lab.tasks[digest] for digest in known]
    fan_out = lab.bench.context.fan_out
    # Judged anew: a verdict of before would say what the environment was then.
    solved = lab.bench.verifier.judge_many([(task, task.gold) for task in tasks], fan_out, repeat=1)
    started = lab.bench.verifier.judge_many([(task, {}) for task in tasks], fan_out, repeat=1)
    audits: list[Verdict | None] = [None] * len(tasks)
    if lab.bench.audit is not None:
        audits = list(lab.bench.audit.judge_many([(task, task.gold) for task in tasks], fan_out, repeat=1))
    for digest, group in groups.items():
        if digest not in known:
            each(group, lambda case: case.skip("gold", "the task names no known solution"))
    for task, group, one, start, second in zip(tasks, known.values(), solved, started, audits, strict=True):
        if why := next((unsure(v) for v in (one, start) if v.status is Status.ERROR), None):
            each(group, lambda case, why=why: case.broken("gold", why))  # type: ignore[misc]
            continue
        found = {
            "gold_passes": None if one.limit_hit == "wall" else one.passed,
            "gold_waits": one.limit_hit == "wall",
            "gold_audited": second.passed if second is not None else None,
            "start_fails": None if task.made_by == "intact" or start.passed is None else not start.passed,
        }
        said = f"known solution: {word(one)}" + (f", audit {word(second)}" if second else "")
        share(group, "gold", f"{said}; start tree: {word(start)}", found, executions=2 + (second is not None))


def shown(lab: Lab, cases: Sequence[Case]) -> None:
    groups = by_task(cases)
    judged = {digest: shown_task(lab.tasks[digest]) for digest in groups}
    items = [(task, task.gold) for task in judged.values() if task is not None and task.gold]
    verdicts = iter(lab.bench.verifier.judge_many(items, lab.bench.context.fan_out))
    for digest, group in groups.items():
        task = judged[digest]
        if task is not None and task.gold:
            verdict = next(verdicts)
            if why := unsure(verdict):
                each(group, lambda case, why=why: case.broken("shown", why))  # type: ignore[misc]
                continue
            holds = verdict.passed or not _contradicted(lab, lab.tasks[digest])
            said = f"the known solution on what is shown: {word(verdict)}"
            said += (
                "" if holds == verdict.passed else ", by examples that the start tree satisfies: a report of the fault"
            )
            share(group, "shown", said, {"shown_holds": holds}, executions=1)
            continue
        agrees = answer_agrees(lab.tasks[digest])
        if agrees is None:
            each(group, lambda case: case.skip("shown", "nothing that the task shows can be reckoned out"))
        else:
            said = f"the question reckoned out {'gives' if agrees else 'does not give'} the answer"
            share(group, "shown", said, {"shown_holds": agrees})


def _contradicted(lab: Lab, task: Task) -> bool:
    """Whether a visible case contradicts the known solution, or an example that the start tree does not satisfy either."""
    visible, alone = shown_parts(task)
    asked = [(part, task.gold) for part in ([visible] if visible else [])]
    asked += [(part, outcome) for part in alone for outcome in (task.gold, {})]
    verdicts = lab.bench.verifier.judge_many(asked, lab.bench.context.fan_out)
    rest = verdicts[len(asked) - 2 * len(alone) :]
    shown = verdicts[: len(asked) - len(rest)]
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return any(v.passed is False for v in shown) or any(
        gold.passed is False and start.passed is False for gold, start in pairs
    )


def pricing(lab: Lab, cases: Sequence[Case]) -> None:
    """Every pass of the task, and this very course with a pass at its end, must be worth more than the failure."""
    rules = lab.goal.spec.rewards
    for case in cases:
        attempt, conduct = case.attempt, case.trajectory.conduct
        if attempt.verdict.passed or attempt.reward.value is None:
            case.skip("pricing", "it has no reward of a failure")
            continue
        value = price(case.trajectory.id, attempt.verdict, conduct, rules).value
        passed = attempt.verdict.model_copy(
            update={"passed": True, "score": 1.0, "violations": [], "checks": [
                check.model_copy(update={"passed": True}) for check in attempt.verdict.checks
            ]}
        )  # fmt: skip
        worth = {case.trajectory.id: price("", passed, conduct, rules).value}
        for other in lab.passes.get(case.trajectory.task_id, ()):
            worth[other.trajectory.id] = price("", other.verdict, other.trajectory.conduct, rules).value
        least = min(worth, key=lambda name: worth[name] or 0.0)
        found = {"rules_agree": (worth[least] or 0.0) > (value or 0.0)}
        case.learn("pricing", f"it is worth {value:g}, the cheapest pass {worth[least]:g} ({least})", found)


def tokenizer(lab: Lab, cases: Sequence[Case]) -> None:
    """Whether tokens give back their text, whether the template is the base's, and the edit chain."""
    try:
        folder = lab.folder()
        tokens, same = lab.tokens(folder), _same_template(lab, folder)
    except PostloopError as error:
        for case in cases:
            chain = broken_link(case.trajectory, task_of(lab, case).files, None)
            case.learn("tokenizer", f"first link: {chain or 'none'}", {"chain": chain}, impossible=str(error))
        return
    for case in cases:
        chain = broken_link(case.trajectory, task_of(lab, case).files, tokens)
        found = {"round_trip": round_trips(case.trajectory, tokens), "template_same": same, "chain": chain}
        said = f"text comes back: {found['round_trip']}; template of the base: {same}; first link: {chain or 'none'}"
        case.learn("tokenizer", said, found)


def _same_template(lab: Lab, folder: Path) -> bool | None:
    base = next((policy for policy in lab.before if policy.stage == "base"), None)
    return template_of(folder) == template_of(base.folder()) if base is not None else None

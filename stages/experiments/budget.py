"""Which failures may cost attempts of a policy: a few of each kind, and each of them to its end.

Experiments are made with tasks: what a hint, a setting or a checkpoint shows holds for every failure of the task, and the
first one bears the cost. So what is taken is a task with all its failures, and only if every experiment that they still ask
for fits into what is left of the budget: half an answer costs as much as it is worth nothing. What one answer spares is
spent on the next tasks, in another wave.

Not covered: an experiment whose answer opens a question that was closed before; the budget is looked at before each one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from evals.rules import decide, still_open
from schemas.attribution import RUNGS, ExperimentName, Rung
from schemas.bucket import Rule
from stages.experiments.lab import Case, Lab, by_task
from stages.hints import hint_of

SAMPLES: tuple[ExperimentName, ...] = tuple(name for name, rung in RUNGS.items() if rung in (Rung.L2, Rung.L3))


def attempts_needed(lab: Lab, name: ExperimentName, cases: Sequence[Case]) -> int:
    """Attempts of a policy that an experiment would take; 0 for those that ask none."""
    if lab.policy is None:
        return 0
    tasks, k = len(by_task(cases)), lab.spec.k
    per_task = {
        "harness": k * len(lab.others), "quiet": k if lab.noise else 0, "setting": k if lab.setting != lab.training else 0,
    }  # fmt: skip
    if name == "hint":
        return k * sum(hint_of(lab.tasks[digest]) is not None for digest in by_task(cases))
    if name == "again":
        return sum(max(1, k - group[0].evidence.task_attempts) for group in by_task(cases).values())
    if name == "prefix":
        return k * sum((case.evidence.first_bad_turn or 0) >= 1 for case in cases)
    if name == "checkpoint":
        return tasks * k * (len(lab.before) + 1 if lab.before else 0)
    return tasks * per_task.get(name, 0)


def all_needed(lab: Lab, cases: Sequence[Case], rules: Sequence[Rule]) -> int:
    """Attempts that all experiments would take which the failures ask for, should no answer spare another."""
    asked: dict[ExperimentName, list[Case]] = defaultdict(list)
    for case in cases:
        for name in still_open(case.evidence, rules):
            asked[name].append(case)
    return sum(attempts_needed(lab, name, asked[name]) for name in SAMPLES)


def wave(lab: Lab, cases: Sequence[Case], rules: Sequence[Rule], taken: Collection[str], left: int) -> list[Case]:
    """The failures of the next tasks to be looked at to the end, in their order; none when nothing more fits.

    `taken`: ids of the tasks that had their turn; with them the wave has at most `sample` tasks. Where the budget is too small
    for even the first one, that one is looked at as far as it goes.
    """
    asking = [case for case in cases if case.evidence.task_id not in taken and all_needed(lab, [case], rules)]
    of_task: dict[str, list[Case]] = defaultdict(list)
    for case in asking:
        of_task[case.evidence.task_id].append(case)
    chosen: list[Case] = []
    tasks = list(dict.fromkeys(case.evidence.task_id for case in _in_turn(asking, rules)))
    for task in tasks[: max(0, lab.spec.sample - len(taken))]:
        first = not taken and not chosen
        if not first and all_needed(lab, [*chosen, *of_task[task]], rules) > left:
            break
        chosen += of_task[task]
    wanted = {case.evidence.task_id for case in chosen}
    return [case for case in asking if case.evidence.task_id in wanted]


def _in_turn(asking: Sequence[Case], rules: Sequence[Rule]) -> list[Case]:
    """Each kind of failure (rule of now, family) in its turn, tasks before repeats."""
    kinds: dict[tuple[str, str], list[Case]] = defaultdict(list)
    seen: Counter[str] = Counter()
    for case in asking:
        kinds[decide(case.evidence, rules).id, case.evidence.family].append(case)
    turns = []
    for kind, own in sorted(kinds.items()):
        ranked = []
        for case in own:
            seen[case.evidence.task_id] += 1
            ranked.append((seen[case.evidence.task_id], case.evidence.trajectory, case))
        turns += [(place, kind, case) for place, (*_, case) in enumerate(sorted(ranked, key=lambda row: row[:2]))]
    return [case for *_, case in sorted(turns, key=lambda row: row[:2])]

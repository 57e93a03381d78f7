"""The experiments of the ladder: each runs something again and adds what it found to the evidence of a failure.

L0 scores the outcome again and the task's known solution beside it (`score`); L1 executes the recorded actions, and the
known solution, through the harness (`execute`); L2 lets the policy go on (`sample`); L3 swaps one pin: the noise, the
setting, the checkpoint (`swap`), the image (`execute`). Each is one function over the failures that ask for it, so that
sandboxes and batches are filled. A policy is asked under the noise of the failures, but where noise is what is swapped;
the known solution under none. What cannot be run says why, and its fields stay empty.

Not covered: swapping a teacher or a judge model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schemas.attribution import ExperimentName
from stages.experiments.execute import gold_path, image, replay
from stages.experiments.lab import Case, Lab, Policy, Run, by_task
from stages.experiments.sample import again, harness, hint, hint_of, prefix
from stages.experiments.score import audit, current, gold, pricing, rescore, shown, tokenizer
from stages.experiments.swap import checkpoint, quiet, setting

__all__ = ["EXPERIMENTS", "Case", "Lab", "Policy", "attempts_needed"]

EXPERIMENTS: Mapping[ExperimentName, Run] = {
    "rescore": rescore, "audit": audit, "current": current, "gold": gold, "shown": shown, "pricing": pricing,
    "tokenizer": tokenizer, "image": image, "replay": replay, "gold_path": gold_path, "again": again, "hint": hint,
    "prefix": prefix, "harness": harness, "quiet": quiet, "setting": setting, "checkpoint": checkpoint,
}  # fmt: skip


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

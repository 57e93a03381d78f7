"""What a round should cost, in attempts, from the spec alone: an upper bound, before anything is run."""

from __future__ import annotations

from schemas.evaluation import SuiteSpec
from schemas.goal import GoalSpec
from schemas.record import StageName
from schemas.rl import GrpoPhase


def attempts_per_stage(spec: GoalSpec) -> dict[StageName, int]:
    """Stage -> attempts at most. Evaluation counts base, SFT and RL; a policy measured in an earlier round is free."""
    asked = spec.data.demonstrations
    demonstrations = sum(asked.gold.values()) if asked.gold is not None else 16 * len(spec.data.sources)
    demonstrations += asked.rejection_samples * asked.rejection_tasks
    demonstrations += asked.teacher.samples * asked.teacher.tasks if asked.teacher else 0
    headroom = spec.rl.headroom.tasks * spec.rl.headroom.samples
    rl = 0
    for phase in spec.rl.phases:
        if isinstance(phase, GrpoPhase):
            rl += round(phase.steps * phase.groups * phase.oversample) * phase.group_size
        else:
            rl += phase.groups * phase.group_size
    return {
        "goal": 0,
        "data": demonstrations,
        "sft": 2 * spec.sft.gate_tasks,
        "rl": headroom + rl,
        "evaluation": 3 * sum(_tasks(spec, suite) * suite.samples for suite in spec.evaluation.suites),
        "backflow": spec.backflow.tasks * spec.backflow.samples,
    }


def _tasks(spec: GoalSpec, suite: SuiteSpec) -> int:
    """Tasks of a suite at most: its own bound, or what the sources give its split."""
    sources = [source for source in spec.data.sources if not suite.skills or source.skill in suite.skills]
    available = sum(int(getattr(source, suite.split.value)) for source in sources)
    return min(suite.tasks, available) if suite.tasks else available

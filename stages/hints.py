"""Attempts that were told the place, and the same actions again without that: shown so, a policy learns to find it by itself.

What is stored is an attempt of its own, executed through the harness without the hint and judged again: its prompts are those
that the policy will meet. Its parent is the attempt that was told, which is kept beside it. An attempt that speaks of a hint is
not used. Log-probabilities are those that its parent's had under the hint.

Not covered: a hint that is repeated in other words.
"""

from __future__ import annotations

import difflib

from schemas.task import Task
from schemas.trajectory import Attempt
from stages.rollout import RolloutRequest


def hint_of(task: Task) -> str | None:
    """Lines of the start tree that the known solution changes, by number; None where that says nothing."""
    for path, text in sorted(task.gold.items()):
        before = task.files.get(path)
        if before is None or before == text:
            continue
        blocks = difflib.SequenceMatcher(None, before.splitlines(), text.splitlines(), autojunk=False).get_opcodes()
        lines = [start + 1 for tag, start, *_ in blocks if tag != "equal"]
        return f"look at line {', '.join(map(str, lines[:4]))} of {path}"
    return None


def untold(attempt: Attempt, task: Task) -> RolloutRequest:
    """Every action of the attempt once more, with no hint shown. Where the harness does not end it there, its policy goes on."""
    trajectory = attempt.trajectory
    return RolloutRequest(
        task,
        trajectory.seed,
        trajectory.purpose,
        trajectory.group,
        parent=trajectory,
        prefix_turn=len(trajectory.turns),
    )


def speaks_of(attempt: Attempt) -> bool:
    """The policy repeats the hint, or says that there was one."""
    words = ("hint", *([attempt.trajectory.hint.lower()] if attempt.trajectory.hint else []))
    return any(word in turn.text.lower() for turn in attempt.trajectory.turns for word in words)

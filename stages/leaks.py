"""No task, test or answer of an evaluation suite, and no near copy of one, in what a round trains on.

Everything that is not of the split train measures: dev, held_out, boundary, retention. Looked at are the training tasks
(id, content, origin, near copy), and every row of training data: whose task it is of, whose split its trajectory was of, and
its text. The data stage asks before it hands anything on; `leaks` asks again of what a round left, its RL rollouts included.

Not covered: what `evals/contamination.py` does not find (paraphrases, renamed variables), and what the base model has read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.contamination import copied_rows, near_copies
from schemas.data import DataSpec
from schemas.goal import GoalRecord
from schemas.task import Split, Task
from schemas.trajectory import Attempt
from stages.attempts import read_attempts
from stages.tasks import read_tasks
from stages.workspace import Workspace


@dataclass(frozen=True)
class Row:
    """One row of training data: where it is, the task it is of, its split where it says one, what it says."""

    name: str
    task_id: str
    split: str | None
    texts: list[str]


def of_messages(where: str, rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows of demonstrations or pairs, in TRL's formats."""
    found = []
    for row in rows:
        said = [message for part in ("messages", "prompt", "chosen", "rejected") for message in row.get(part, ())]
        texts = [str(message["content"]) for message in said]
        found.append(Row(f"{where} {row['id']}", str(row["task_id"]), row.get("split"), texts))
    return found


def of_attempts(where: str, attempts: Iterable[Attempt]) -> list[Row]:
    return [
        Row(f"{where} {t.id}", t.task_id, t.split.value, [message["content"] for message in t.conversation()])
        for t in (attempt.trajectory for attempt in attempts)
    ]


def find_leaks(tasks: Sequence[Task], rows: Sequence[Row], spec: DataSpec) -> list[str]:
    """One line for each training task or row that is, or copies, what measures: its name, what it copies. Empty: none."""
    training = [task for task in tasks if task.split is Split.TRAIN]
    measuring = [task for task in tasks if task.split is not Split.TRAIN]
    how = (measuring, spec.contamination_ngram, spec.contamination_share)
    known, trained = {task.id: task for task in measuring}, {task.id for task in training}
    copies = near_copies(training, *how)
    copied = copied_rows({row.name: row.texts for row in rows}, *how)
    origins = {task.origin: task for task in measuring}
    found = [line for task in training if (line := _task_leak(task, known, origins, copies))]
    return found + [line for row in rows if (line := _row_leak(row, known, trained, copied))]


def _task_leak(
    task: Task, measuring: Mapping[str, Task], origins: Mapping[str, Task], copies: Mapping[str, str]
) -> str | None:
    shared = origins.get(task.origin)
    if task.id in measuring:
        return f"tasks {task.id}: is of the split {measuring[task.id].split.value} as well"
    if shared is not None:
        return f"tasks {task.id}: its origin {task.origin} is that of {shared.id}, split {shared.split.value}"
    if task.id in copies:
        return f"tasks {task.id}: a near copy of {copies[task.id]}, split {measuring[copies[task.id]].split.value}"
    return None


def _row_leak(row: Row, measuring: Mapping[str, Task], trained: set[str], copied: Mapping[str, str]) -> str | None:
    if row.task_id in measuring:
        return f"{row.name}: its task {row.task_id} is of the split {measuring[row.task_id].split.value}"
    if row.split not in (None, Split.TRAIN.value):
        return f"{row.name}: it was made on the split {row.split}"
    if row.task_id not in trained:
        return f"{row.name}: its task {row.task_id} is no training task of this round"
    if row.name in copied:
        return f"{row.name}: its text copies {copied[row.name]}, split {measuring[copied[row.name]].split.value}"
    return None


def leaks(space: Workspace, round: int) -> list[str]:
    """What of a round's training artifacts leaks, one line each: tasks, demonstrations, pairs, RL rollouts. Its artifacts are
    checked by digest. Raises IntegrityError."""
    goal, data, rl = (space.read(round, stage) for stage in ("goal", "data", "rl"))
    if not isinstance(goal, GoalRecord) or data is None or "tasks" not in data.artifacts:
        return []
    rows: list[Row] = []
    for name in ("demonstrations", "pairs"):
        if name in data.artifacts:
            folder = space.open_artifact(data.artifacts[name])
            rows += of_messages(name, _lines(folder / f"{name}.jsonl"))
            rows += of_attempts(f"{name}, attempt", read_attempts(folder / "attempts.parquet"))
    if rl is not None and "attempts" in rl.artifacts:
        table = space.open_artifact(rl.artifacts["attempts"]) / "attempts.parquet"
        rows += of_attempts("rl, attempt", read_attempts(table))
    return find_leaks(read_tasks(space.open_artifact(data.artifacts["tasks"])), rows, goal.spec.data)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

"""How much there is to get right in a task, as a number that needs no policy: what "easier" means for new tasks.

Code is counted by the statements of the known solution, a question by the numbers that it gives, those of its tables included.
Among equals the shorter text is easier. Compare tasks of one family only.
Not covered: how hard a task is for a policy; that is measured, and these tasks are new.
"""

from __future__ import annotations

import ast
import re

from schemas.task import Task


def difficulty(task: Task) -> tuple[int, int]:
    """(statements of the known solution, or numbers given; characters that the model is shown)."""
    shown = "\n".join([task.statement, *(task.files[path] for path in sorted(task.files))])
    if task.kind == "answer":
        return len(re.findall(r"\d+", shown)), len(shown)
    return sum(statements(text) for path, text in task.gold.items() if path.endswith(".py")), len(shown)


def statements(code: str) -> int:
    """Statements at any depth; lines that are not empty where it is no Python."""
    try:
        return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return sum(bool(line.strip()) for line in code.splitlines())

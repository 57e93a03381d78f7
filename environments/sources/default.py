"""The seed data of the embedded default: one file of canonical JSON lines a skill, the same bytes at every build.

    python -m environments.sources.default DIR

Nothing is downloaded; everything is made from the sources in this folder and the seed.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from pydantic import ValidationError

from environments.sources import lookup
from environments.sources.instruction import instruction_tasks
from environments.sources.library import functions, sealed_functions
from environments.sources.lookup import lookup_tasks
from environments.sources.repair import repair_tasks
from environments.sources.splits import split_of
from schemas.base import canonical
from schemas.errors import InputError
from schemas.task import Task

PER_FUNCTION = 5
PER_ORIGIN = 4


def tasks_of(seed: int = 0) -> dict[str, list[Task]]:
    """The tasks of each skill, sorted by id."""
    return {
        "repair": repair_tasks(seed, split_of(seed, functions(), sealed_functions()), PER_FUNCTION),
        "lookup": lookup_tasks(seed, split_of(seed, lookup.origins(), lookup.sealed_origins()), PER_ORIGIN),
        "instruction": instruction_tasks(),
    }


def build(folder: Path, seed: int = 0) -> None:
    """Write `repair.jsonl`, `lookup.jsonl` and `instruction.jsonl` into `folder`, each replaced as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for skill, tasks in tasks_of(seed).items():
        data = b"".join(canonical(task.model_dump(mode="json")) + b"\n" for task in tasks)
        part = folder / f".{skill}.jsonl.part"
        part.write_bytes(data)
        os.replace(part, folder / f"{skill}.jsonl")


def load(folder: Path) -> list[Task]:
    """Every task of the `*.jsonl` files of `folder`, by id. InputError names file and line of a bad or double one."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise InputError(f"{folder}: no *.jsonl file with tasks; build it with python -m environments.sources.default")
    found: dict[str, Task] = {}
    for path in files:
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
            if line:
                task = _parsed(path, number, line)
                if task.id in found:
                    raise InputError(f"{path}:{number}: the id {task.id} occurs twice; ids are unique, rename one")
                found[task.id] = task
    return [found[task_id] for task_id in sorted(found)]


def _parsed(path: Path, number: int, line: bytes) -> Task:
    try:
        return Task.model_validate(json.loads(line))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "task"
        raise InputError(f"{path}:{number}: {where}: {first['msg']}; correct the line") from None
    except ValueError as error:
        raise InputError(f"{path}:{number}: not JSON: {error}; correct the line") from None


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the seed data of the embedded default.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    build(arguments.folder, arguments.seed)


if __name__ == "__main__":
    main()

"""The seed data of a workspace: the folder of tasks that people import or mine, one *.jsonl file a suite.

A file is replaced as a whole, so importing a suite again is the same as importing it once. Not covered: sharing the
folder with others; it is the person's to keep in git or DVC, and each round stores the tasks that it used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.base import canonical
from schemas.data import DataSpec
from schemas.errors import InputError
from schemas.task import Task
from stages.artifacts import disk_errors, make_folder, write_durably
from stages.workspace import Workspace

FOLDER = "tasks"


def seed_place(space: Workspace, spec: DataSpec, into: str | None = None) -> Path:
    """Where new tasks go: `into`, else the folder that the spec names, else `tasks`. Raises InputError outside the workspace."""
    name = into or (FOLDER if spec.seed_data == "default" else spec.seed_data)
    place = (space.root / name).resolve()
    if not place.is_relative_to(space.root.resolve()) or place == space.root.resolve():
        raise InputError(
            f"--into {name}: no folder inside the workspace {space.root}; give a relative name such as {FOLDER}"
        )
    return place


def suite_name(text: str) -> str:
    """A file name from what a person named: letters, digits and _."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    if not name:
        raise InputError(f"suite {text!r}: no letter or digit in its name; rename it")
    return name


def keep(place: Path, name: str, tasks: Sequence[Task], beside: Mapping[str, bytes]) -> Path:
    """Write `name`.jsonl, and `beside`: ending -> content. Raises InputError for an id that is twice or in another file."""
    ids = [task.id for task in tasks]
    taken = _others(place, name)
    for index, task_id in enumerate(ids):
        if task_id in ids[:index] or task_id in taken:
            where = taken.get(task_id, "this suite")
            raise InputError(
                f"task {task_id}: the id is in {where} already; ids are unique, rename one or import one suite"
            )
    lines = b"".join(
        canonical(task.model_dump(mode="json")) + b"\n" for task in sorted(tasks, key=lambda task: task.id)
    )
    with disk_errors(f"tasks {name}"):
        make_folder(place)
        for ending, content in beside.items():
            write_durably(place / f"{name}.{ending}", content)
        write_durably(place / f"{name}.jsonl", lines)
    return place / f"{name}.jsonl"


def _others(place: Path, name: str) -> dict[str, str]:
    """Id -> file of the tasks that lie there already, but for those of the suite that is replaced."""
    found: dict[str, str] = {}
    for path in sorted(place.glob("*.jsonl")):
        if path.name != f"{name}.jsonl":
            found |= dict.fromkeys(_ids(path), path.name)
    return found


def _ids(path: Path) -> list[str]:
    try:
        return [str(json.loads(line)["id"]) for line in path.read_bytes().split(b"\n") if line]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not JSON lines of tasks ({error}); repair or remove the file") from None

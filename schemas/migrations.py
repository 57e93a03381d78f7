"""Old schemas: which version a stored file has, and the steps that bring it to ours. All migrations are in this one place.

Records carry `schema_version`, run pins too, Parquet tables in their metadata; tables in JSON lines carry it in each row
from version 2 on. What carries none is of version 1. One number goes for all forms: it grows when any of them changes in a
way that a default cannot fill in. Files are never rewritten: a migration happens when they are read, so digests stay.

Not covered: manifests, whose form is part of every artifact's digest and never changes; specs that people write, which are
edited and not migrated; demonstrations in TRL's format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from schemas.base import SCHEMA_VERSION
from schemas.errors import InputError

Form = Literal[
    "goal", "data", "sft", "rl", "evaluation", "backflow", "rescore", "import",  # records
    "pins", "attempts", "edges", "rescored", "tasks", "proofs",
]  # fmt: skip
FIELD = "schema_version"


@dataclass(frozen=True)
class Migration:
    """One step of one form: from `version` to the next. `apply` gets and gives a record, or a row of a table."""

    form: Form
    version: int
    apply: Callable[[dict[str, Any]], dict[str, Any]]


MIGRATIONS: tuple[
    Migration, ...
] = ()  # none yet: version 1 is the first. A form that a version leaves alone has a step too


def steps(form: Form, file: str, version: object) -> list[Migration]:
    """What leads from `version` to ours. Raises InputError, one line: the file, both versions, the migration, what to do."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"{FIELD} {version!r} is none")
    if version > SCHEMA_VERSION:
        raise InputError(f"{file}: schema version {version}, known {SCHEMA_VERSION}; use a newer postloop")
    known = {(one.form, one.version): one for one in MIGRATIONS}
    path = [known.get((form, at)) for at in range(version, SCHEMA_VERSION)]
    for at, step in enumerate(path, version):
        if step is None:
            raise InputError(
                f"{file}: schema version {version}, ours {SCHEMA_VERSION}: no migration of {form} from {at} to {at + 1}; "
                "read it with the postloop that wrote it, or add the migration to schemas/migrations.py"
            )
    return [step for step in path if step is not None]


def brought_up(form: Form, file: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The content as our schema has it, under our version. Raises InputError, and ValueError when the version is none."""
    content = dict(raw)
    for step in steps(form, file, content.pop(FIELD, 1)):
        content = step.apply(content)
    return content


def stamped(content: Mapping[str, Any]) -> dict[str, Any]:
    return {FIELD: SCHEMA_VERSION, **content}


def stamped_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of JSON lines. Those of version 1 carry none: digests of seed data and stored tables are made of them."""
    return dict(row) if SCHEMA_VERSION == 1 else stamped(row)

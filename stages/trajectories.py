"""Foreign trajectories in a workspace: kept beside the rounds, found by their own ids, never among the own attempts.

An import is an artifact of one Parquet table (a row a document: id, digest, canonical JSON) and a record in
`trajectories/` that names it. No record of a round names such an artifact, so nothing that reads attempts (replay,
compare, buckets, training) comes upon one; verify, push and pull see it like every artifact.

Not covered: taking an import back. Remove its record from `trajectories/` and commit that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.atif import ForeignEntry, ForeignImport
from schemas.base import digest_of
from schemas.errors import InputError, IntegrityError
from stages.artifacts import store
from stages.atif import FOREIGN, Foreign
from stages.workspace import Workspace

TABLE = "trajectories.parquet"


def keep(space: Workspace, found: Sequence[Foreign]) -> list[ForeignEntry]:
    """Store those that the workspace does not have, as one import; returns them. Call it inside `with space.lock()`.

    Raises InputError, with nothing stored, when another document has the id of one of them.
    """
    known = {entry.id: entry for record in space.imports() for entry in record.trajectories}
    new = sorted((one for one in found if one.entry.id not in known), key=lambda one: one.entry.id)
    taken = {one.entry.id: one.entry for one in new} | known
    for one in found:
        other = taken[one.entry.id]
        if other.digest != one.entry.digest:
            raise InputError(
                f"{one.entry.source}: id: {one.entry.id} is the id of {other.source} too; leave one of them out"
            )
    if new:
        ref = store(space, "foreign", "trajectories", lambda folder: _write(folder / TABLE, new))
        space.commit_import(ForeignImport(artifact=ref, trajectories=[one.entry for one in new]))
    return [one.entry for one in new]


def named(space: Workspace, start: str) -> tuple[ForeignImport, ForeignEntry]:
    """The foreign trajectory with this id or the start of one. Raises InputError for none or several."""
    hits = [
        (record, entry) for record in space.imports() for entry in record.trajectories if entry.id.startswith(start)
    ]
    if not hits:
        raise InputError(
            f"{start}: no foreign trajectory of this workspace; `postloop trajectories import` takes them in"
        )
    if len(hits) > 1:
        some = ", ".join(entry.id for _, entry in hits[:3])
        raise InputError(f"{start}: names {len(hits)} foreign trajectories, e.g. {some}; give more digits")
    return hits[0]


def refuse_to_replay(space: Workspace, names: Sequence[str]) -> None:
    """Raises InputError for the first of these ids that is a foreign one."""
    for name in names:
        if name.startswith(FOREIGN):
            entry = named(space, name)[1]
            raise InputError(
                f"{entry.id}: foreign, imported from {entry.source}: made under no pins of this workspace, "
                f"so it is not replayed; `postloop show {entry.id}` prints it"
            )


def document_of(space: Workspace, record: ForeignImport, entry: ForeignEntry) -> dict[str, Any]:
    """The document as it was read. Raises IntegrityError when the table does not hold it."""
    import pyarrow.parquet as pq

    path = space.open_artifact(record.artifact) / TABLE
    rows = pq.read_table(path, filters=[("digest", "=", entry.digest)], partitioning=None).to_pylist()
    document: dict[str, Any] = json.loads(rows[0]["document"]) if rows else {}
    if digest_of(document) != entry.digest:
        raise IntegrityError(f"{path}: {entry.id}: digest {entry.digest[:12]} is not in it; restore `trajectories/`")
    return document


def _write(path: Path, rows: Sequence[Foreign]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "id": [one.entry.id for one in rows],
        "digest": [one.entry.digest for one in rows],
        "document": [one.content.decode() for one in rows],
    }
    table = pa.table(columns, schema=pa.schema(dict.fromkeys(columns, pa.string())))
    pq.write_table(table, path, compression="zstd", compression_level=3, version="2.6", row_group_size=64)

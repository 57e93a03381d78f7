"""Answers of `postloop attribute`: attributions/<id>.json, appended beside the records and never changed.

Like a decision, one is a file under a name made of its content, needs no lock, and is committed by the workspace's writer. The
same ladder with the same answer is one file. The name is the digest of the answer as it was written, so fields that our schema
gets later leave it. A round's own attributions are an artifact of its backflow, not these.

Not covered: no round reads them; what a person concludes from one is a decision (`postloop decide`). A `when` that was edited
before its file was committed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from schemas.attribution import Attribution, KeptAttribution
from schemas.base import digest_of
from schemas.errors import IntegrityError
from stages.artifacts import disk_errors, make_folder, pretty, write_durably
from stages.workspace import ATTRIBUTIONS, Workspace


def keep(space: Workspace, found: Sequence[Attribution], when: str) -> list[str]:
    """Write those that are new; their ids. `when`: ISO 8601, UTC. Raises InfrastructureError for a full disk, IntegrityError
    as `folder_of`."""
    written, folder = [], folder_of(space)
    for one in found:
        said = KeptAttribution(when=when, attribution=one).model_dump(mode="json")
        identity = digest_of(said["attribution"])[:12]
        path = folder / f"{identity}.json"
        if path.is_file():
            continue
        with disk_errors(f"attribution {identity}"):
            make_folder(folder)
            write_durably(path, pretty(said))
        written.append(identity)
    return written


def kept(space: Workspace, trajectory: str | None = None) -> list[KeptAttribution]:
    """All, or those of one trajectory; oldest first. Raises IntegrityError for a file that is none or was changed."""
    paths = [path for path in sorted(folder_of(space).glob("*.json")) if re.fullmatch(r"[0-9a-f]{12}", path.stem)]
    found = [_read(path) for path in paths]
    own = [one for one in found if trajectory in (None, one.attribution.trajectory)]
    return sorted(own, key=lambda one: one.when)


def folder_of(space: Workspace) -> Path:
    """It may not be there yet. Raises IntegrityError where something else has its name."""
    folder = space.root / ATTRIBUTIONS
    if folder.exists() and not folder.is_dir():
        raise IntegrityError(f"{ATTRIBUTIONS}: is a file, and kept answers need a folder of that name; move it away")
    return folder


def _read(path: Path) -> KeptAttribution:
    name = f"{ATTRIBUTIONS}/{path.name}"
    try:
        raw = json.loads(path.read_bytes())
        found = KeptAttribution.model_validate_json(json.dumps(raw))
        identity = digest_of(raw["attribution"])[:12]
    except ValueError as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise IntegrityError(
            f"{name}: not an attribution: {first}; restore it with `git checkout -- {name}`"
        ) from error
    if path.stem != identity:
        raise IntegrityError(f"{name}: its content is that of {identity}; restore it with `git checkout -- {name}`")
    return found

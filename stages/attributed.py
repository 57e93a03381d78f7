"""Answers of `postloop attribute`: attributions/<id>.json, appended beside the records and never changed.

Like a decision, one is a file under a name made of its content, needs no lock, and is committed by the workspace's writer. The
same ladder with the same answer is one file. A round's own attributions are an artifact of its backflow, not these.

Not covered: no round reads them. What a person concludes from one is a decision (`postloop decide`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from schemas.attribution import Attribution, KeptAttribution
from schemas.base import digest_of
from schemas.errors import IntegrityError
from stages.artifacts import disk_errors, make_folder, pretty, write_durably
from stages.workspace import ATTRIBUTIONS, Workspace


def keep(space: Workspace, found: Sequence[Attribution], when: str) -> list[str]:
    """Write those that are new; their ids. `when`: ISO 8601, UTC. Raises InfrastructureError for a full disk."""
    written = []
    for one in found:
        identity, path = _place(space, one)
        if path.is_file():
            continue
        with disk_errors(f"attribution {identity}"):
            make_folder(path.parent)
            said = KeptAttribution(when=when, attribution=one)
            write_durably(path, pretty(said.model_dump(mode="json")))
        written.append(identity)
    return written


def kept(space: Workspace, trajectory: str | None = None) -> list[KeptAttribution]:
    """All, or those of one trajectory; oldest first. Raises IntegrityError for a file that is none or was changed."""
    folder = space.root / ATTRIBUTIONS
    found = [_read(space, path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []
    own = [one for one in found if trajectory in (None, one.attribution.trajectory)]
    return sorted(own, key=lambda one: one.when)


def _place(space: Workspace, one: Attribution) -> tuple[str, Path]:
    identity = digest_of(one.model_dump(mode="json"))[:12]
    return identity, space.root / ATTRIBUTIONS / f"{identity}.json"


def _read(space: Workspace, path: Path) -> KeptAttribution:
    name = f"{ATTRIBUTIONS}/{path.name}"
    try:
        found = KeptAttribution.model_validate_json(path.read_bytes())
    except ValueError as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise IntegrityError(
            f"{name}: not an attribution: {first}; restore it with `git checkout -- {name}`"
        ) from error
    identity = _place(space, found.attribution)[0]
    if path.stem != identity:
        raise IntegrityError(f"{name}: its content is that of {identity}; restore it with `git checkout -- {name}`")
    return found

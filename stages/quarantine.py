"""Tasks that failed their proof: decisions/quarantine.json, by the digest of the task, so a changed task is another one.

`postloop tasks validate` writes it; whoever trains or measures leaves out what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.base import Digest
from schemas.errors import InputError
from schemas.task import TaskProof
from stages.artifacts import make_folder, pretty, write_durably

FILE = "decisions/quarantine.json"


def quarantined(root: Path) -> dict[Digest, str]:
    """Task digest -> reason. Raises InputError for a damaged file: what is unknown must not pass for proven."""
    return {digest: entry["reason"] for digest, entry in _entries(root).items()}


def note(root: Path, proofs: Sequence[TaskProof], whole: bool) -> None:
    """Enter what failed and strike out what was proven. `whole`: every task was looked at, so nothing else stays."""
    before = _entries(root)
    seen = {proof.task_digest for proof in proofs}
    after = {} if whole else {digest: entry for digest, entry in before.items() if digest not in seen}
    after |= {proof.task_digest: {"id": proof.task_id, "reason": proof.reason} for proof in proofs if proof.reason}
    if after != before:
        make_folder((root / FILE).parent)
        write_durably(root / FILE, pretty({"tasks": after}))


def _entries(root: Path) -> dict[Digest, dict[str, Any]]:
    try:
        tasks = json.loads((root / FILE).read_bytes())["tasks"]
        return {
            str(digest): {"id": str(entry["id"]), "reason": str(entry["reason"])} for digest, entry in tasks.items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{FILE}: cannot be read ({error}); restore it with git, or validate again") from None

"""All failures that a workspace has recorded, in the buckets of one set of rules: what a changed rule would have said of them.

Over the evidence that each round's backflow kept, all rounds at once, without an experiment. A field that an experiment of then
did not fill stays unknown. Not covered: failures of imported trajectories, and rounds whose backflow was skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from evals.triage import CAUSE, columns_of, evidence_fields, recorded, triage, write_attributed
from schemas.attribution import Moved, TriageResult
from schemas.backflow import BackflowRecord
from schemas.bucket import Rule
from schemas.errors import InputError
from stages.backflow import EVIDENCE, read_attributions
from stages.workspace import Workspace


def triaged(space: Workspace, rules: Sequence[Rule], rounds: Sequence[int] = ()) -> TriageResult:
    """By the rules, beside what the rounds' own records say. `rounds`: these alone. Raises InputError for one that has no
    attributions, or where none has."""
    there = {number: ref for number in space.rounds() if (ref := _attributions(space, number)) is not None}
    missing = sorted(set(rounds) - there.keys())
    if missing or not there:
        named = f"round {missing[0]}" if missing else str(space.root)
        raise InputError(f"{named}: no attributions; rounds that have them: {', '.join(map(str, there)) or 'none'}")
    chosen = {number: there[number] for number in sorted(there) if not rounds or number in rounds}
    with TemporaryDirectory() as made:
        tables = [_table(folder, rules, Path(made) / f"{number}.parquet") for number, folder in chosen.items()]
        found, then = triage(tables, rules), recorded(tables)
    moved = [
        Moved(cause=one[0], family=one[1], recorded=then.get(one, 0), now=found.counts.get(one, 0))
        for one in sorted({*found.counts, *then})
    ]
    return TriageResult(rounds=list(chosen), failures=found.rows, rules=found.rules, buckets=moved)


def _attributions(space: Workspace, number: int) -> Path | None:
    record = space.read(number, "backflow")
    if not isinstance(record, BackflowRecord) or "attributions" not in record.artifacts:
        return None
    return space.open_artifact(record.artifacts["attributions"])


def _table(folder: Path, rules: Sequence[Rule], made: Path) -> Path:
    """The kept table; made anew for a round from before there was one, or before a field that a rule asks for."""
    kept = folder / EVIDENCE
    if kept.is_file() and {*columns_of(rules), CAUSE} <= evidence_fields(kept):
        return kept
    write_attributed(made, read_attributions(folder))
    return made

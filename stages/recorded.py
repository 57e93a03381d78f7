"""The attempts that a workspace holds: which tables, whose pins, and the digests of their rewards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from schemas.artifact import ArtifactRef
from schemas.base import Digest
from schemas.record import STAGES, Record, StageName
from schemas.replay import Level, Replay
from schemas.trajectory import Attempt
from stages.artifacts import read_manifest
from stages.attempts import read_attempts, read_rewards
from stages.workspace import Workspace

EDGES = "edges.parquet"
Named = tuple[str, Digest]  # trajectory, digest of its reward


@dataclass(frozen=True)
class Recorded:
    """An attempt, where it lies, and the round whose pins it was made under: the first that holds it."""

    round: int
    stage: StageName
    table: Path
    attempt: Attempt

    def found(self, level: Level, **said: Any) -> Replay:
        name = self.attempt.trajectory.id
        return Replay(trajectory=name, round=self.round, stage=self.stage, level=level, **said)

    def named(self) -> Named:
        return self.attempt.trajectory.id, self.attempt.reward.digest()


def recorded(space: Workspace, rounds: Sequence[int] | None = None) -> list[Recorded]:
    """Every attempt of these rounds (all when left out), oldest first, each once. Its table is checked by digest.

    The same trajectory under another verifier or other rules is another attempt: a later round may sample it again.
    """
    found: dict[Named, Recorded] = {}
    for number in space.rounds() if rounds is None else rounds:
        for stage in STAGES:
            record = space.read(number, stage)
            for table in attempts_of(space, record) if record else ():
                for attempt in read_attempts(table):
                    one = Recorded(number, stage, table, attempt)
                    found.setdefault(one.named(), one)
    return list(found.values())


def attempts_of(space: Workspace, record: Record) -> Iterator[Path]:
    """The attempts tables of a record."""
    for ref in record.artifacts.values():
        yield from tables_of(space, ref)


def tables_of(space: Workspace, ref: ArtifactRef) -> list[Path]:
    """The attempts tables of an artifact, checked; fetched through DVC when its folder is missing."""
    return [path for path in _tables(space, ref) if path.name != EDGES]


def edges_of(space: Workspace, record: Record) -> list[Path]:
    """The tables of use edges of a record."""
    return [path for ref in record.artifacts.values() for path in _tables(space, ref) if path.name == EDGES]


def _tables(space: Workspace, ref: ArtifactRef) -> list[Path]:
    manifest = read_manifest(space, ref)
    if manifest is not None and not any(entry.path.endswith(".parquet") for entry in manifest.entries):
        return []
    return sorted(space.open_artifact(ref).glob("*.parquet"))


@lru_cache(maxsize=256)
def rewards_in(table: Path) -> tuple[Named, ...]:
    """Of every attempt of a table. Tables are written once, so this is read once a process."""
    return tuple((reward.trajectory, reward.digest()) for reward in read_rewards(table))

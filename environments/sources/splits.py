"""Splits by origin: what a task was made from decides its split, so nothing of one origin is in two splits.

Sealed origins measure (held_out, boundary) and the others teach or choose settings (train, dev): no seed moves one from one side
to the other, so no setting was ever chosen by looking at what will measure it.

The counts are exact, not by chance: origins are sorted by a hash of seed and name, and each goes to the split that is
furthest behind its share. An origin called `stratum:rest` is sorted by its stratum first, so each stratum is spread
over the splits too. Adding an origin moves others; within one pinned data set nothing moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping

from schemas.errors import InputError
from schemas.task import Split

FRACTIONS: Mapping[Split, float] = {Split.TRAIN: 0.7, Split.DEV: 0.3}
SEALED_FRACTIONS: Mapping[Split, float] = {Split.HELD_OUT: 0.8, Split.BOUNDARY: 0.2}


def order(seed: int, text: str) -> str:
    """A sort key that shuffles: the same for the same seed and text on every machine."""
    return hashlib.sha256(f"{seed}:{text}".encode()).hexdigest()


def split_of(seed: int, origins: Iterable[str], sealed: Collection[str] = ()) -> Callable[[str], Split]:
    """The split of each of `origins`, as a function that raises InputError on any other name.

    Those in `sealed` are shared out by SEALED_FRACTIONS, the rest by FRACTIONS, each to within one of its share.
    """
    names = set(origins)
    table = _shared_out(seed, names - set(sealed), FRACTIONS) | _shared_out(seed, names & set(sealed), SEALED_FRACTIONS)

    def of(origin: str) -> Split:
        if origin not in table:
            raise InputError(
                f"splits: {origin!r} is not one of the {len(table)} origins that were split; add it to them"
            )
        return table[origin]

    return of


def _shared_out(seed: int, origins: Collection[str], fractions: Mapping[Split, float]) -> dict[str, Split]:
    table: dict[str, Split] = {}
    counts = dict.fromkeys(fractions, 0)
    shuffled = sorted(origins, key=lambda origin: (_stratum(origin), order(seed, origin)))
    for position, origin in enumerate(shuffled, start=1):
        behind = max(fractions, key=lambda split: fractions[split] * position - counts[split])
        table[origin] = behind
        counts[behind] += 1
    return table


def _stratum(origin: str) -> str:
    return origin.partition(":")[0] if ":" in origin else ""

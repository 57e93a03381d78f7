"""Splits by origin: what a task was made from decides its split, so nothing of one origin is in two splits.

The counts are exact, not by chance: origins are sorted by a hash of seed and name, and each goes to the split that is
furthest behind its share. An origin called `stratum:rest` is sorted by its stratum first, so each stratum is spread
over the splits too. Adding an origin moves others; within one pinned data set nothing moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

from schemas.errors import InputError
from schemas.task import Split

FRACTIONS: Mapping[Split, float] = {Split.TRAIN: 0.5, Split.DEV: 0.2, Split.HELD_OUT: 0.2, Split.BOUNDARY: 0.1}


def order(seed: int, text: str) -> str:
    """A sort key that shuffles: the same for the same seed and text on every machine."""
    return hashlib.sha256(f"{seed}:{text}".encode()).hexdigest()


def split_of(seed: int, origins: Iterable[str], fractions: Mapping[Split, float] = FRACTIONS) -> Callable[[str], Split]:
    """The split of each of `origins`, as a function that raises InputError on any other name.

    `fractions` must sum to 1; each split gets its share of the origins to within one.
    """
    if abs(sum(fractions.values()) - 1) > 1e-9:
        raise InputError(f"splits: the fractions sum to {sum(fractions.values())}, not to 1; correct them")
    shuffled = sorted(set(origins), key=lambda origin: (_stratum(origin), order(seed, origin)))
    table: dict[str, Split] = {}
    counts = dict.fromkeys(fractions, 0)
    for position, origin in enumerate(shuffled, start=1):
        behind = max(fractions, key=lambda split: fractions[split] * position - counts[split])
        table[origin] = behind
        counts[behind] += 1

    def of(origin: str) -> Split:
        if origin not in table:
            raise InputError(
                f"splits: {origin!r} is not one of the {len(table)} origins that were split; add it to them"
            )
        return table[origin]

    return of


def _stratum(origin: str) -> str:
    return origin.partition(":")[0] if ":" in origin else ""

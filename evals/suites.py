"""Which tasks belong to a suite, and which half of dev chooses buckets. Nothing here looks at a result.

Choices are by hash of the seed and the names, so that one more task changes one place and not the whole set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from schemas.base import digest_of
from schemas.evaluation import SuiteSpec
from schemas.task import Split, Task


def select(tasks: Iterable[Task], suite: SuiteSpec, seed: int) -> list[Task]:
    """The tasks of a suite, sorted by id; all of its split and skills when `suite.tasks` is 0."""
    return choose(tasks, suite.split, suite.skills, suite.tasks, seed)


def choose(
    tasks: Iterable[Task], split: Split | None = None, skills: Collection[str] = (), count: int = 0, seed: int = 0
) -> list[Task]:
    """At most `count` tasks (0: all) of a split and of skills (empty: every), stratified over origins, sorted by id.

    Every origin gives one task before any gives a second: many origins narrow an interval, many tasks of one do not.
    """
    pool = [t for t in tasks if (split is None or t.split is split) and (not skills or t.skill in skills)]
    if count <= 0 or count >= len(pool):
        return sorted(pool, key=lambda t: t.id)
    by_origin: dict[str, list[Task]] = defaultdict(list)
    for task in sorted(pool, key=lambda t: _order(seed, t.id)):
        by_origin[task.origin].append(task)
    ranked = [(rank, _order(seed, origin), task) for origin, own in by_origin.items() for rank, task in enumerate(own)]
    ranked.sort(key=lambda row: row[:2])
    return sorted((task for _, _, task in ranked[:count]), key=lambda t: t.id)


def halves(tasks: Iterable[Task]) -> tuple[list[Task], list[Task]]:
    """(choosing, measuring) halves of dev, each sorted by id; all tasks of an origin are in one half.

    An origin's half depends on its name alone and never changes from round to round, at the price of halves that are
    only about equal. Each skill is halved by itself, so that a choice of skills changes no half; where one would leave a
    half empty, its origin of the highest hash moves over.
    """
    pool = sorted(tasks, key=lambda t: t.id)
    side: dict[tuple[str, str], int] = {}
    for skill in sorted({t.skill for t in pool}):
        own = {
            origin: int(_order("half", origin)[0], 16) % 2 for origin in {t.origin for t in pool if t.skill == skill}
        }
        if len(own) > 1 and len(set(own.values())) == 1:
            moved = max(own, key=lambda origin: _order("half", origin))
            own[moved] = 1 - own[moved]
        side |= {(skill, origin): half for origin, half in own.items()}
    return [t for t in pool if side[t.skill, t.origin] == 0], [t for t in pool if side[t.skill, t.origin] == 1]


def _order(seed: int | str, name: str) -> str:
    return digest_of([seed, name])

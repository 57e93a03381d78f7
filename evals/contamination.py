"""Training tasks that are near copies of evaluation tasks: n-gram overlap, and files that are the same.

Text of a task: statement, start files and gold. Splits by origin keep mutants of one function together; this finds what
that cannot know, such as one function under two names. Not covered: paraphrases, renamed variables, other languages.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence

from schemas.task import Task

TOKEN = re.compile(r"\w+|[^\w\s]")
COMMON_ORIGINS = 10  # text that so many evaluation origins share is the wording of a generator, not a leak


def near_copies(train: Sequence[Task], evaluation: Sequence[Task], n: int = 8, share: float = 0.6) -> dict[str, str]:
    """Training task id -> id of the evaluation task that it copies most; those at `share` or above, sorted by id.

    The overlap is the shared n-grams of `n` tokens over those of the smaller text, in [0, 1]; a file of >= n tokens
    that is the same (white space apart) counts as 1. N-grams and files common to COMMON_ORIGINS evaluation origins are
    left out. A text shorter than n tokens is one n-gram of its own length. ValueError unless n >= 1 and 0 < share <= 1.
    """
    if n < 1 or not 0 < share <= 1:
        raise ValueError(f"n-grams of {n} tokens with share {share}: needs n >= 1 and 0 < share <= 1")
    targets = sorted(evaluation, key=lambda task: task.id)
    origins = [task.origin for task in targets]
    marks = [_marks(task, n) for task in targets]
    common = _common(marks, origins)
    index: dict[Hashable, list[int]] = defaultdict(list)
    sizes = []
    for number, own in enumerate(marks):
        kept = own - common
        sizes.append(_grams(kept))
        for mark in kept:
            index[mark].append(number)
    found = {}
    for task in sorted(train, key=lambda task: task.id):
        best = _closest(_marks(task, n) - common, index, sizes)
        if best is not None and best[0] >= share:
            found[task.id] = targets[best[1]].id
    return found


def _closest(own: set[Hashable], index: dict[Hashable, list[int]], sizes: list[int]) -> tuple[float, int] | None:
    """(overlap, number) of the evaluation task with the largest overlap; the first by id on ties."""
    shared: Counter[int] = Counter()
    same_file: set[int] = set()
    for mark in own:
        for number in index.get(mark, ()):
            if isinstance(mark, str):
                same_file.add(number)
            else:
                shared[number] += 1
    size = _grams(own)
    overlaps = {number: count / max(1, min(size, sizes[number])) for number, count in shared.items()}
    overlaps |= dict.fromkeys(same_file, 1.0)
    if not overlaps:
        return None
    number = min(overlaps, key=lambda number: (-overlaps[number], number))
    return overlaps[number], number


def _marks(task: Task, n: int) -> set[Hashable]:
    """n-grams as tuples, whole files as strings."""
    files = {**{f"start {path}": text for path, text in task.files.items()}, **task.gold}
    marks: set[Hashable] = set()
    for text in (task.statement, *files.values()):
        tokens = TOKEN.findall(text)
        marks.update(_ngrams(tokens, n))
        if text is not task.statement and len(tokens) >= n:
            marks.add(" ".join(tokens))
    return marks


def _ngrams(tokens: list[str], n: int) -> Iterable[tuple[str, ...]]:
    if not tokens:
        return ()
    if len(tokens) < n:
        return (tuple(tokens),)
    return zip(*(tokens[start:] for start in range(n)), strict=False)


def _grams(marks: set[Hashable]) -> int:
    return sum(isinstance(mark, tuple) for mark in marks)


def _common(marks: list[set[Hashable]], origins: list[str]) -> set[Hashable]:
    seen: dict[Hashable, set[str]] = defaultdict(set)
    for own, origin in zip(marks, origins, strict=True):
        for mark in own:
            seen[mark].add(origin)
    return {mark for mark, where in seen.items() if len(where) >= COMMON_ORIGINS}

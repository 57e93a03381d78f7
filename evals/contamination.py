"""Training tasks, and rows of training data, that are near copies of evaluation tasks: n-gram overlap, equal files, equal cases.

Text of a task: statement, start files, gold, test files. Splits by origin keep mutants of one function together; this finds
what that cannot know, such as one function under two names. Not covered: paraphrases, renamed variables, other languages,
answers of a few words, which alone are no evidence of anything.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

from schemas.base import digest_of
from schemas.task import Task

TOKEN = re.compile(r"\w+|[^\w\s]")
FENCE = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
MIN_CASES = 4  # fewer that are equal are equal by chance
COMMON_ORIGINS = 10  # text that so many evaluation origins share is the wording of a generator, not a leak


def near_copies(train: Sequence[Task], evaluation: Sequence[Task], n: int = 8, share: float = 0.6) -> dict[str, str]:
    """Training task id -> id of the evaluation task that it copies most; those at `share` or above, sorted by id.

    The overlap is the shared n-grams of `n` tokens over those of the smaller text, in [0, 1]; a file of >= n tokens
    that is the same (white space apart) counts as 1, and so do the same MIN_CASES cases or more. N-grams, files and cases
    common to COMMON_ORIGINS evaluation origins are left out. A text shorter than n tokens is one n-gram of its own length.
    ValueError unless n >= 1 and 0 < share <= 1.
    """
    index = _Index(evaluation, n, share)
    return {task.id: name for task in sorted(train, key=lambda t: t.id) if (name := index.copied(_marks(task, n)))}


def copied_rows(
    rows: Mapping[str, Iterable[str]], evaluation: Sequence[Task], n: int = 8, share: float = 0.6
) -> dict[str, str]:
    """The same for rows of training data, name -> texts: their messages, and each fenced block in them as a file."""
    index = _Index(evaluation, n, share)
    return {name: found for name in sorted(rows) if (found := index.copied(_row_marks(rows[name], n)))}


class _Index:
    """Evaluation tasks by their marks. ValueError as `near_copies` has it."""

    def __init__(self, evaluation: Sequence[Task], n: int, share: float) -> None:
        if n < 1 or not 0 < share <= 1:
            raise ValueError(f"n-grams of {n} tokens with share {share}: needs n >= 1 and 0 < share <= 1")
        self.share, self.targets = share, sorted(evaluation, key=lambda task: task.id)
        marks = [_marks(task, n) for task in self.targets]
        self.common = _common(marks, [task.origin for task in self.targets])
        self.index: dict[Hashable, list[int]] = defaultdict(list)
        self.sizes = [_grams(own - self.common) for own in marks]
        for number, own in enumerate(marks):
            for mark in own - self.common:
                self.index[mark].append(number)

    def copied(self, own: set[Hashable]) -> str | None:
        """Id of the task that these marks copy."""
        best = _closest(own - self.common, self.index, self.sizes)
        return self.targets[best[1]].id if best is not None and best[0] >= self.share else None


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
    """n-grams as tuples, whole files and sets of cases as strings."""
    files = [*task.files.values(), *task.gold.values(), *task.tests.values()]
    cases = [case.model_dump(mode="json") for case in (*task.visible, *task.hidden)]
    marks = _text_marks([task.statement], files, n)
    if len(cases) >= MIN_CASES:
        marks.add(f"cases {digest_of(sorted(map(digest_of, cases)))}")
    return marks


def _row_marks(texts: Iterable[str], n: int) -> set[Hashable]:
    """A text shorter than n tokens says nothing here: the answer `yes` to one question copies no other."""
    told = list(texts)
    marks = _text_marks(told, [block for text in told for block in FENCE.findall(text)], n)
    return {mark for mark in marks if isinstance(mark, str) or len(mark) == n}  # type: ignore[arg-type]


def _text_marks(texts: Iterable[str], files: Iterable[str], n: int) -> set[Hashable]:
    marks: set[Hashable] = set()
    for text in texts:
        marks.update(_ngrams(TOKEN.findall(text), n))
    for text in files:
        tokens = TOKEN.findall(text)
        marks.update(_ngrams(tokens, n))
        if len(tokens) >= n:
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

"""Training tasks, and rows of training data, that are near copies of evaluation tasks: n-gram overlap, equal files, equal cases.

Splits by origin keep mutants of one function together; this finds what that cannot know: one function under two names, and a
gold or test file somewhere in a longer text. Texts are compared as `evals/plaintext.py` reads them. Not covered: paraphrases;
names or lines changed so often that less than the share of n-grams is left; amid other text a statement, a start file of code,
and a file scattered over more than SPREAD times its length; cases written as text; answers of a few words, which alone are
no evidence of anything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from evals.plaintext import TOKEN, blocks, plain
from schemas.base import digest_of
from schemas.task import Case, Task

MIN_CASES = 4  # fewer that are equal are equal by chance
MIN_GRAMS = 16  # of a file of fewer, most may stand in another function by chance: it counts where it stands whole
SPREAD = 4  # in how many times its own length a file is looked for: 60 functions together hold most lines of a 61st
COMMON_ORIGINS = 10  # text that so many evaluation origins share is the wording of a generator, not a leak

Kind = Literal["task", "text", "cases", "file"]
Gram = tuple[str, ...]


def near_copies(train: Sequence[Task], evaluation: Sequence[Task], n: int = 8, share: float = 0.6) -> dict[str, str]:
    """Training task id -> id of the evaluation task that it copies most; those at `share` or above, sorted by id.

    The overlap, in [0, 1], is the largest of: the shared n-grams of `n` tokens over those of the smaller of the two tasks; the
    part of a gold or test file of the evaluation task, or of a file that an answer is read from, that stands together
    in the training task, in n-grams; the part of its hidden cases that the other has, if MIN_CASES or more (of all its cases,
    if fewer are hidden); 1 for a file or fenced block of >= n tokens that is the same. What COMMON_ORIGINS evaluation origins
    share is left out. A text shorter than n tokens is one n-gram of its own length. ValueError unless n >= 1, 0 < share <= 1.
    """
    index = _Index(evaluation, n, share)
    copies = {task.id: index.copied(_of_task(task, n)) for task in sorted(train, key=lambda task: task.id)}
    return {name: found[0] for name, found in copies.items() if found}


def copied_rows(
    rows: Mapping[str, Iterable[str]], evaluation: Sequence[Task], n: int = 8, share: float = 0.6
) -> dict[str, str]:
    """The same for rows of training data, name -> texts: their messages, and each fenced block in them as a file.

    A text shorter than n tokens says nothing here: the answer `yes` to one question copies no other.
    """
    index = _Index(evaluation, n, share)
    copies = {name: index.copied(_of_texts(rows[name], (), n).of_length(n)) for name in sorted(rows)}
    return {name: found[0] for name, found in copies.items() if found}


def all_copied(train: Sequence[Task], evaluation: Sequence[Task], n: int = 8, share: float = 0.6) -> set[str]:
    """Ids of all evaluation tasks of which a training task is a near copy, not of the closest to each alone."""
    index = _Index(evaluation, n, share)
    return {found for task in train for found in index.copied(_of_task(task, n))}


def closest(
    train: Sequence[Task], evaluation: Sequence[Task], wanted: Collection[str], n: int = 8
) -> dict[str, tuple[float, str | None]]:
    """Of each wanted evaluation task the greatest overlap with a training task, as `near_copies` has it, and that task's id: the
    first by id of equal ones, None where nothing is shared. `evaluation`: all of them, since what many share is left out.

    A task is in `all_copied` exactly when its overlap here is at the share or above.
    """
    index = _Index(evaluation, n, wanted=wanted)
    floors = [0.0] * len(index.targets)
    nearest: dict[int, str] = {}
    for task in sorted(train, key=lambda task: task.id):
        for number, overlap in index.overlaps(_of_task(task, n), floors).items():
            if overlap > floors[number]:
                floors[number], nearest[number] = overlap, task.id
    there = ((number, task.id) for number, task in enumerate(index.targets) if task.id in wanted)
    return {name: (floors[number], nearest.get(number)) for number, name in there}


@dataclass(frozen=True)
class _Marks:
    """What two texts are compared by: their n-grams in order, and the names of whole files and cases."""

    grams: list[Gram]
    names: set[str]

    def of_length(self, n: int) -> _Marks:
        return _Marks([gram for gram in self.grams if len(gram) == n], self.names)


@dataclass(frozen=True)
class _Piece:
    """Something of an evaluation task that is looked for: whose it is, its marks, and of how many n-grams it is in all."""

    task: int
    kind: Kind
    marks: frozenset[Hashable]
    length: int = 0

    def overlap(self, shared: int, own: int) -> float:
        """`own`: distinct n-grams of the text that may copy it."""
        size = len(self.marks)
        if self.kind == "task":
            return shared / max(1, min(size, own))
        by_chance = shared < MIN_CASES if self.kind == "cases" else shared < size < MIN_GRAMS
        return 0.0 if by_chance else shared / size

    def together(self, grams: Sequence[Gram]) -> int:
        """Most of its n-grams that stand within SPREAD times its length."""
        hits = [(place, gram) for place, gram in enumerate(grams) if gram in self.marks]
        inside: Counter[Gram] = Counter()
        start = distinct = most = 0
        for place, gram in hits:
            distinct += inside[gram] == 0
            inside[gram] += 1
            while hits[start][0] <= place - SPREAD * self.length:
                inside[hits[start][1]] -= 1
                distinct -= inside[hits[start][1]] == 0
                start += 1
            most = max(most, distinct)
        return most


class _Index:
    """Evaluation tasks by their marks; only the wanted ones are found, if not all are. ValueError as `near_copies` has it."""

    def __init__(
        self, evaluation: Sequence[Task], n: int, share: float = 1.0, wanted: Collection[str] | None = None
    ) -> None:
        if n < 1 or not 0 < share <= 1:
            raise ValueError(f"n-grams of {n} tokens with share {share}: needs n >= 1 and 0 < share <= 1")
        self.share, self.targets = share, sorted(evaluation, key=lambda task: task.id)
        pieces = [piece for number, task in enumerate(self.targets) for piece in _pieces(number, task, n)]
        self.common = _common(pieces, self.targets)
        self.pieces = [replace(piece, marks=piece.marks - self.common) for piece in pieces]
        self.index: dict[Hashable, list[int]] = defaultdict(list)
        for number, piece in enumerate(self.pieces):
            if wanted is None or self.targets[piece.task].id in wanted:
                for mark in piece.marks:
                    self.index[mark].append(number)

    def copied(self, marks: _Marks) -> list[str]:
        """Ids of the tasks that these marks copy, the closest first, then by id."""
        overlaps = self.overlaps(marks, [self.share] * len(self.targets))
        return [self.targets[task].id for _, task in sorted((-overlap, task) for task, overlap in overlaps.items())]

    def overlaps(self, marks: _Marks, floors: Sequence[float]) -> dict[int, float]:
        """Number of a task -> overlap with it, where that is at the task's floor or above: whether n-grams stand together is
        looked for there alone."""
        grams, found = {*marks.grams} - self.common, dict[int, float]()
        own = grams | (marks.names - self.common)
        for number, shared in Counter(piece for mark in own for piece in self.index.get(mark, ())).items():
            piece = self.pieces[number]
            floor, overlap = floors[piece.task], piece.overlap(shared, len(grams))
            if overlap >= floor and piece.kind == "text":
                overlap = piece.overlap(piece.together(marks.grams), len(grams))
            if overlap >= floor:
                found[piece.task] = max(found.get(piece.task, 0.0), overlap)
        return found


def _pieces(number: int, task: Task, n: int) -> Iterator[_Piece]:
    marks = _of_task(task, n)
    yield _Piece(number, "task", frozenset(marks.grams))
    read = task.files if task.kind == "answer" else {}
    for text in {*task.gold.values(), *task.tests.values(), *read.values()}:
        grams = _of_texts([text], (), n).of_length(n).grams
        yield _Piece(number, "text", frozenset(grams), len(grams))
    yield from (_Piece(number, "file", frozenset([name])) for name in marks.names if name.startswith("file "))
    cases = task.hidden if len(task.hidden) >= MIN_CASES else [*task.visible, *task.hidden]
    yield _Piece(number, "cases", frozenset(_named(cases)))


def _of_task(task: Task, n: int) -> _Marks:
    marks = _of_texts([task.statement], [*task.files.values(), *task.gold.values(), *task.tests.values()], n)
    return _Marks(marks.grams, marks.names | _named([*task.visible, *task.hidden]))


def _of_texts(texts: Iterable[str], files: Iterable[str], n: int) -> _Marks:
    told, whole = [plain(text) for text in texts], [plain(text) for text in files]
    tokens = [TOKEN.findall(text) for text in (*told, *whole)]
    files_in = [*tokens[len(told) :], *(TOKEN.findall(block) for text in told for block in blocks(text))]
    grams = [gram for own in tokens for gram in _ngrams(own, n)]
    return _Marks(grams, {f"file {' '.join(own)}" for own in files_in if len(own) >= n})


def _named(cases: Iterable[Case]) -> set[str]:
    return {f"case {digest_of(case.model_dump(mode='json'))}" for case in cases}


def _ngrams(tokens: list[str], n: int) -> Iterable[Gram]:
    if not tokens:
        return ()
    if len(tokens) < n:
        return (tuple(tokens),)
    return zip(*(tokens[start:] for start in range(n)), strict=False)


def _common(pieces: Iterable[_Piece], targets: Sequence[Task]) -> set[Hashable]:
    """Marks of COMMON_ORIGINS origins or more."""
    seen: dict[Hashable, set[str]] = defaultdict(set)
    for piece in pieces:
        for mark in piece.marks:
            seen[mark].add(targets[piece.task].origin)
    return {mark for mark, where in seen.items() if len(where) >= COMMON_ORIGINS}

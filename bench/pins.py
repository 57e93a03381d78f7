"""Mutations of everything that a pin names, one at a time, on a copy of a finished workspace: is each refused by name?

    python -m bench.pins --out FILE.json [--workspace DIR] [--folder DIR] [--sample N]

On a copy of --workspace, else on a tiny loop that is made in --folder. Each mutation changes one thing (a byte, a file, a
setting, a version) and is undone; in between, every operation whose row of the table names the pin must refuse with that
pin's name and both values, and operations whose row does not name it must go on. Then what must not matter is changed, and
no key, pin or digest may be another one. `--sample`: so many mutations, drawn with a seed; all when left out.

`resume STAGE`: the stage was interrupted and goes on; `next STAGE`: it begins, after others of its round. Operations stop
before they run anything, since pins are compared before.
Not covered: compiled parts of libraries; another user's eyes on the files.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from bench import common
from bench.common import cache_folder, say, table, write_json
from environments.image import layer_digest
from schemas.artifact import ArtifactRef
from schemas.base import canonical, digest_of
from schemas.errors import EXIT_DONE, EXIT_NO, InputError, IntegrityError, PinMismatch, PostloopError
from schemas.goal import GoalRecord, GoalSpec
from schemas.pins import TABLE, Operation, pin_of
from schemas.record import STAGES, StageName
from schemas.trajectory import Attempt, Noise, Sampling
from stages import artifacts, equipment, keys, resume
from stages.artifacts import pretty, store
from stages.attempts import read_attempts
from stages.checkpoints import model_folder
from stages.context import Context
from stages.demonstrations import load_demonstrations, require_mixable
from stages.models import checkpoint_of
from stages.pins import attempt_pins, derive
from stages.replay import open_bench, policy_folder
from stages.rl import require_one_group
from stages.rounds import key_of
from stages.spec import load_spec
from stages.tasks import load_tasks, seed_folder
from stages.workspace import Workspace

SEED = 0
LATER: tuple[StageName, ...] = ("data", "sft", "rl", "evaluation", "backflow")
BOTH = re.compile(r"(recorded|was) \S+, (now|found|is) \S+")
Apply = Callable[..., AbstractContextManager[None]]  # of the World


@dataclass(frozen=True)
class Mutation:
    """`pins`: the pins of the table that it changes. `refuse`, `accept`: probes, `operation[ stage]`. `named`: words of
    which a refusal has one, where content was damaged and an artifact's own check comes first."""

    pins: tuple[str, ...]
    what: str
    apply: Apply
    refuse: tuple[str, ...]
    accept: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


@dataclass
class World:
    """A copy that may be damaged. `round`: the last complete one."""

    space: Workspace
    cache: Path
    code: Path
    libraries: Path
    round: int
    spec: GoalSpec
    goal: dict[str, Any] = field(default_factory=dict)  # the goal record as it is on disk
    names: dict[StageName, set[str]] = field(default_factory=dict)  # pins that enter each stage's key
    begun: dict[StageName, dict[str, str]] = field(default_factory=dict)
    group: list[Attempt] = field(default_factory=list)
    demonstrations: list[Attempt] = field(default_factory=list)

    def context(self) -> Context:
        return Context(self.space, self.round, self.spec, self.cache)

    def read(self, stage: StageName) -> Any:
        return self.space.read(self.round, stage)

    def artifact(self, stage: StageName, name: str) -> Path:
        return self.space.root / str(self.read(stage).artifacts[name].path)


def open_world(source: Workspace, cache: Path, folder: Path) -> World:
    """A copy of the last round's world: workspace, its models and image, our own declared files."""
    space = Workspace(folder / "workspace")
    shutil.copytree(source.root, space.root, symlinks=True, ignore=shutil.ignore_patterns(".postloop", "cache", ".git"))
    (space.root / ".git").mkdir()
    spec = load_spec(space.spec_path)
    world = World(space, folder / "cache", folder / "code", folder / "libraries", source.rounds()[-1], spec)
    goal = world.read("goal")
    world.cache.mkdir()
    for kept in (*cache.glob("*-*/postloop.json"), *cache.glob("seed_data-*/.")):
        shutil.copytree(
            kept.parent if kept.is_file() else kept, world.cache / (kept.parent if kept.is_file() else kept).name
        )
    for kept in cache.glob("images/*/environment.json"):
        if json.loads(kept.read_bytes())["layer"] == goal.environment.layer and not kept.parent.name.startswith(
            "layer-"
        ):
            shutil.copytree(kept.parent, world.cache / "images" / kept.parent.name, symlinks=True)
    for path in {path for patterns in keys.DECLARED.values() for path in keys.declared_files(patterns)}:
        target = world.code / path.relative_to(keys.ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    world.libraries.mkdir()
    _adopt(world)
    world.goal = space.stored(world.round, "goal")
    for stage in LATER:
        world.names[stage] = {pin_of(name) for name in world.read(stage).inputs} | {"libraries"}
    attempts = read_attempts(world.artifact("rl", "attempts") / "attempts.parquet")
    world.group = [a for a in attempts if a.trajectory.group == attempts[0].trajectory.group][:4]
    world.demonstrations = read_attempts(world.artifact("data", "demonstrations") / "attempts.parquet")
    with own_code(world):
        world.begun = {stage: key_of(world.context(), stage)[1] for stage in LATER}
    for stage in LATER:
        untouched = refusal(world, f"next {stage}")
        if untouched is not None:
            raise InputError(f"workspace {source.root}: not made by these files, so all would be refused: {untouched}")
    return world


def _adopt(world: World) -> None:
    """The copy's records say that these files and these libraries made them: a workspace need not be of today."""
    for stage in STAGES:
        record = world.space.stored(world.round, stage)
        own = {"code": keys.code_digest(stage, world.code), "libraries": keys.libraries_digest(stage)}
        path = world.space.folder(world.round) / f"{stage}.json"
        _put(path, pretty({**record, "inputs": {**record["inputs"], **own}}), 0o644)


# --- probes


def probe(world: World, name: str) -> None:
    """Do what the operation does before it runs anything. Raises what it refuses with."""
    operation, _, stage = name.partition(" ")
    if operation in ("resume", "next"):
        _resume(world, stage, interrupted=operation == "resume")
    elif operation in ("replay", "regenerate"):
        _replay(world, "regenerate" if operation == "regenerate" else "L0", stage)
    elif operation == "rescore":
        with open_bench(world.space, world.cache, world.round, "rescore", {}, stages=LATER):
            pass
    elif operation == "mix":
        load_demonstrations(world.context())
        require_mixable(world.context(), world.read("goal"), load_tasks(world.context()), world.demonstrations)
    elif operation == "group":
        require_one_group(world.context(), world.group)
    else:
        raise InputError(f"{name}: no such probe")


def _resume(world: World, stage: Any, interrupted: bool) -> None:
    ctx = world.context()
    if interrupted:
        resume.begin(ctx, stage, world.begun[stage])
    try:
        resume.require(ctx, stage, key_of(ctx, stage)[1])
    finally:
        resume.end(ctx, stage)


def _replay(world: World, level: Any, stage: Any) -> None:
    operation: Operation = "regenerate" if level == "regenerate" else "replay"
    with open_bench(world.space, world.cache, world.round, operation, {}, stages=[stage]) as bench:
        if level != "regenerate":
            return
        sft, rl = world.read("sft"), world.read("rl")
        last = (rl.checkpoint or sft.checkpoint).weights
        policies = {"sft": [sft.checkpoint.weights], "rl": [sft.checkpoint.weights], "backflow": [last]}
        every = [bench.equipment.goal.base.weights, sft.checkpoint.weights, last]
        for policy in policies.get(stage, every):
            policy_folder(bench.context, policy)


def of_operation(name: str) -> Operation:
    operation = name.partition(" ")[0]
    found: Operation = "resume" if operation == "next" else operation  # type: ignore[assignment]
    return found


def forget() -> None:
    """What this process has checked already."""
    artifacts._VERIFIED.clear()
    equipment._image.cache_clear()


def refusal(world: World, name: str) -> PostloopError | None:
    forget()
    with own_code(world):
        try:
            probe(world, name)
        except (PinMismatch, IntegrityError) as error:
            return error
    return None


@contextmanager
def own_code(world: World) -> Iterator[None]:
    """Keys are of the copy of our files."""
    before, keys.ROOT = keys.ROOT, world.code
    try:
        yield
    finally:
        keys.ROOT = before


def tried(world: World, mutation: Mutation) -> list[dict[str, Any]]:
    """One row for each probe. `right`: refused by name with both values, or went on, as the table says."""
    rows = []
    with mutation.apply(world):
        for name, wanted in (*((n, True) for n in mutation.refuse), *((n, False) for n in mutation.accept)):
            error = refusal(world, name)
            right = (error is not None) == wanted and (error is None or _says(mutation, error))
            row = {
                "pins": mutation.pins,
                "what": mutation.what,
                "probe": name,
                "refused": error is not None,
                "right": right,
            }
            rows.append(row | ({} if right else {"said": str(error)}))
    forget()
    return rows


def _says(mutation: Mutation, error: PostloopError) -> bool:
    if isinstance(error, PinMismatch):
        return pin_of(error.pin) in mutation.pins and bool(BOTH.search(str(error)))
    return any(word in str(error) for word in (*mutation.named, *mutation.pins)) and bool(BOTH.search(str(error)))


# --- mutations of files


@contextmanager
def replaced(path: Path, data: bytes | None) -> Iterator[None]:
    """Other bytes at `path`, by a new file, so that what is linked to the old one keeps it; None: no file."""
    before, mode = (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) if path.is_file() else (None, 0o644)
    made = next((parent for parent in reversed(path.parents) if not parent.exists()), None)
    _put(path, data, mode)
    try:
        yield
    finally:
        _put(path, before, mode)
        if made is not None:
            shutil.rmtree(made)


def _put(path: Path, data: bytes | None, mode: int) -> None:
    path.unlink(missing_ok=True)
    if data is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)


def flip(path: Path, where: float) -> AbstractContextManager[None]:
    """One bit of the byte at this share of the file."""
    data = bytearray(path.read_bytes())
    at = min(int(len(data) * where), len(data) - 1)
    data[at] ^= 1
    return replaced(path, bytes(data))


@contextmanager
def renamed(path: Path, target: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    try:
        yield
    finally:
        target.rename(path)
        if not any(target.parent.iterdir()):
            target.parent.rmdir()


def of_folder(
    name: str,
    folder: Callable[..., Path],
    world: World,
    pins: tuple[str, ...],
    refuse: tuple[str, ...],
    accept: tuple[str, ...],
    named: tuple[str, ...] = (),
) -> Iterator[Mutation]:
    """Each file's first, some inner and last byte; each gone, renamed and moved deeper; new files at the top and nested."""
    files = sorted(path.relative_to(folder(world)) for path in folder(world).rglob("*") if path.is_file())

    def mutation(what: str, apply: Apply) -> Mutation:
        return Mutation(pins, f"{name}: {what}", apply, refuse, accept, (name.split(" ")[0], *named))

    for file in (file for file in files if file.name != "postloop.json"):
        for where in (0.0, 0.618, 1.0):
            yield mutation(f"{file}: a bit at {where:g}", lambda w, f=file, x=where: flip(folder(w) / f, x))
        yield mutation(f"{file}: gone", lambda w, f=file: replaced(folder(w) / f, None))
        yield mutation(f"{file}: renamed", lambda w, f=file: renamed(folder(w) / f, folder(w) / f"{f}.old"))
        yield mutation(f"{file}: nested", lambda w, f=file: renamed(folder(w) / f, folder(w) / "deeper" / f.name))
    for added in ("added.json", "deeper/added.json"):
        yield mutation(f"{added}: new", lambda w, f=added: replaced(folder(w) / f, b"{}"))


def content(world: World) -> Iterator[Mutation]:
    parts = ("base", "config", "tokenizer", "template", "files")
    cached = ("cached model",)
    yield from of_folder(
        "base", _base, world, parts,
        ("resume data", "resume rl", "next backflow", "regenerate evaluation"), ("replay rl", "mix"), cached,
    )  # fmt: skip
    yield from of_folder(
        "checkpoint of sft", lambda w: w.artifact("sft", "checkpoint"), world, ("policy", "start", *parts[1:]),
        ("resume rl", "next evaluation", "regenerate sft"), ("resume sft", "replay sft", "mix"), ("sft/checkpoint",),
    )  # fmt: skip
    made = [world.read(stage).checkpoint for stage in ("sft", "rl")]
    if made[1] is not None:
        # Where RL found nothing to learn its weights are those of SFT, and either checkpoint answers for them.
        own = ("regenerate backflow",) if made[0].weights != made[1].weights else ()
        yield from of_folder(
            "checkpoint of rl", lambda w: w.artifact("rl", "checkpoint"), world, ("policy", *parts[1:]),
            ("resume evaluation", "next backflow", *own), ("resume rl", "replay backflow"), ("rl/checkpoint",),
        )  # fmt: skip
    for name in world.read("goal").bundles.named():
        yield from of_folder(
            name, lambda w, n=name: w.artifact("goal", n), world, (pin_of(name),),
            ("resume data", "next rl", "replay backflow", "regenerate sft"), ("mix",), (f"goal/{name}", f"bundle {name}"),
        )  # fmt: skip
    yield from of_folder(
        "tasks", lambda w: w.artifact("data", "tasks"), world, ("tasks",),
        ("resume sft", "next evaluation", "replay rl", "regenerate sft", "mix"), ("resume data",), ("data/tasks",),
    )  # fmt: skip
    yield from of_folder(
        "demonstrations", lambda w: w.artifact("data", "demonstrations"), world, ("demonstrations",),
        ("resume sft", "next sft", "mix"), ("resume rl", "replay sft", "regenerate sft"), ("data/demonstrations",),
    )  # fmt: skip
    for file in sorted(_seed(world).glob("*.jsonl")):
        for where in (0.0, 0.5, 1.0):
            yield Mutation(
                ("seed_data",), f"seed data: {file.name}: a bit at {where:g}", lambda w, f=file, x=where: flip(f, x),
                ("resume data",), ("resume sft", "replay data", "mix"),
            )  # fmt: skip


def _base(world: World) -> Path:
    """Without its own check."""
    weights = world.goal["base"]["weights"]
    for note in world.cache.glob("*/postloop.json"):
        if json.loads(note.read_bytes())["checkpoint"]["weights"] == weights:
            return note.parent
    raise InputError(f"cache {world.cache}: no model with the weights {weights[:12]}; run a round first")


def _seed(world: World) -> Path:
    return seed_folder(world.context(), world.read("goal").spec.data)


def trees(world: World) -> list[Path]:
    return [path.parent / "root" for path in (world.cache / "images").glob("*/environment.json")]


def image(world: World, count: int = 10) -> Iterator[Mutation]:
    """Members of the tree in the cache. A replay takes the kept layer then, so it must go on, with the recorded layer."""
    root = trees(world)[0]
    stream = random.Random(SEED)
    members = sorted(
        path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size
    )
    pins, refuse, accept = ("environment",), ("resume data", "next rl"), ("replay sft", "rescore", "mix")

    for path in stream.sample(members, count):
        what = f"image: {path.relative_to(root)}: a bit"
        yield Mutation(pins, what, lambda w, p=path, x=stream.random(): flip(p, x), refuse, accept)
    some = stream.choice(members)
    yield Mutation(pins, "image: a new file", lambda w: replaced(root / "etc/added", b""), refuse, accept)
    yield Mutation(pins, "image: gone", lambda w: replaced(some, None), refuse, accept)
    yield Mutation(pins, "image: renamed", lambda w: renamed(some, some.with_name("other")), refuse, accept)
    yield Mutation(pins, "image: executable", lambda w: _executable(some), refuse, accept)
    kept = world.artifact("goal", "image") / "layer.tar"
    for where in (0.1, 0.9):
        what = f"image: the kept layer and the tree: a bit at {where:g}"
        yield Mutation(
            pins, what, lambda w, x=where: _twice(flip(some, x), flip(kept, x), _without_restored(w)),
            ("resume sft", "replay rl", "regenerate sft", "rescore"), ("mix",), ("goal/image", "layer.tar"),
        )  # fmt: skip


@contextmanager
def _twice(*changes: AbstractContextManager[None]) -> Iterator[None]:
    with changes[0], changes[1], changes[2]:
        yield


@contextmanager
def _without_restored(world: World) -> Iterator[None]:
    for restored in (world.cache / "images").glob("layer-*"):
        shutil.rmtree(restored)
    yield


@contextmanager
def _executable(path: Path) -> Iterator[None]:
    mode = path.stat().st_mode
    path.chmod(stat.S_IMODE(mode) ^ 0o111 if not mode & 0o111 else stat.S_IMODE(mode) & ~0o111)
    try:
        yield
    finally:
        path.chmod(stat.S_IMODE(mode))


# --- mutations of settings and records


def leaves(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict) and value:
        for name in sorted(value):
            yield from leaves(value[name], (*at, name))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*at, index))
    else:
        yield at, value


def others(value: Any) -> list[Any]:
    """Values that may stand in its place."""
    if isinstance(value, bool) or value is None:
        return [not value, "x", 0.5, 1]
    if isinstance(value, int):
        return [value + 1, max(0, value - 1), 2 * value]
    if isinstance(value, float):
        return [value * 0.5, value + 0.25, value - 0.25, value * 0.9 + 0.05]
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        return [f"{int(value[0], 16) ^ 1:x}{value[1:]}"]
    if isinstance(value, str):
        words = (
            "bfloat16",
            "linear",
            "champion",
            "sft",
            "dev",
            "held_out",
            "docker",
            "score",
            "data",
            "coverage",
            "dpo",
        )
        return [*(word for word in words if word != value), f"{value}x"]
    return [[], {}, ["repair"], ["x"], {"repair": 1}, {"protected_file": -0.1}, {"x": "y"}]


def put(value: Any, at: Sequence[Any], new: Any) -> Any:
    found = copy.deepcopy(value)
    place = found
    for part in at[:-1]:
        place = place[part]
    place[at[-1]] = new
    return found


def changed_goals(goal: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Each leaf of the goal record that decides something, changed so that the record is still one."""
    parts = ("spec", "environment", "base", "bundles", "material", "weights")
    for at, value in ((at, value) for part in parts for at, value in leaves(goal[part], (part,))):
        for new in others(value):
            other = put(goal, at, new)
            try:
                valid = GoalRecord.model_validate(other).model_dump(mode="json") != goal
            except ValidationError:
                continue
            if valid and new != value:
                yield at, other
                break


def pins_at(at: tuple[Any, ...]) -> tuple[str, ...]:
    """The pins of the table that this place of the goal record is."""
    part, name = at[0], str(at[1]) if len(at) > 1 else ""
    if part == "spec" and name == "environment":
        return ("limits",) if at[2] == "limits" else ()
    if part == "spec":
        more = ("temperature",) if at[1:] == ("evaluation", "temperature") else ()
        return {"routes": ("routes", "rules"), "start": ("start",)}.get(name, (pin_of(name), *more))
    if part == "environment":
        return ("environment",) if name == "layer" else ("variables",)
    if part == "base":
        return (
            ("base",) if name == "weights" else (name,) if name in ("config", "tokenizer", "template", "files") else ()
        )
    return (pin_of(name),) if part == "bundles" else (part,)


_NAMES_ONLY = {
    "name",
    "capabilities",
    "harness",
    "harness_of",
    "verifier",
    "verifier_of",
    "audit_verifier",
    "model",
    "schema_version",
}
_REFERENCES = {("base", "parent"), ("spec", "data", "seed_data")}


def settings(world: World, stream: random.Random) -> Iterator[Mutation]:
    for at, other in changed_goals(world.goal):
        pins = pins_at(at)
        if not pins or (at[0] == "spec" and at[1] in _NAMES_ONLY) or at in _REFERENCES:
            continue  # names and references: what they lead to is pinned by its content
        if at[:2] == ("environment", "variables"):  # as a changed declaration would have it
            declared = {
                **other["spec"]["environment"]["variables"],
                str(at[2]): other["environment"]["variables"][at[2]],
            }
            other = put(other, ("spec", "environment", "variables"), declared)
        what = "goal record: " + ".".join(map(str, at))
        yield with_expectations(world, pins, what, lambda w, o=other: _goal(w, o), stream)


def with_expectations(
    world: World,
    pins: tuple[str, ...],
    what: str,
    apply: Apply,
    stream: random.Random,
) -> Mutation:
    """By the table alone: an operation refuses when its row, and what its stage depends on, hold one of the pins."""

    def refuses(operation: Operation, stage: StageName | None) -> bool:
        depends = world.names[stage] if stage else set(TABLE[operation])
        return bool(set(pins) & set(TABLE[operation]) & depends)

    stages = stream.sample(LATER, len(LATER))
    resumed = [(f"resume {stage}", refuses("resume", stage)) for stage in stages]
    begun = [(f"next {stage}", refuses("resume", stage)) for stage in stages if stage not in ("data",)]
    operations: tuple[Operation, ...] = ("replay", "regenerate")
    again = [[(f"{name} {stage}", refuses(name, stage)) for stage in stages] for name in operations]
    mixing = [] if "audit" in what else [("mix", refuses("mix", None))]
    chosen = [
        pair
        for row in (resumed, begun, *again)
        for pair in (next((p for p in row if p[1]), None), next((p for p in row if not p[1]), None))
        if pair is not None
    ]
    rescored = [("rescore", any(refuses("rescore", stage) for stage in LATER))]
    probes = [*chosen, *mixing, *rescored]
    return Mutation(
        pins,
        what,
        apply,
        tuple(n for n, refused in probes if refused),
        tuple(n for n, refused in probes if not refused),
    )


def _goal(world: World, other: dict[str, Any]) -> AbstractContextManager[None]:
    return replaced(world.space.folder(world.round) / "goal.json", pretty(other))


def retold(world: World) -> Iterator[Mutation]:
    """A task changed and stored anew: the artifact is sound, and another one. Each of a demonstrated task."""
    shown = {attempt.trajectory.task_id for attempt in world.demonstrations}
    tasks = load_tasks(world.context())
    places: dict[str, Callable[[dict[str, Any]], Any]] = {
        "statement": lambda t: t["statement"] + " ",
        "hidden": lambda t: [*t["hidden"], {"args": [1], "expected": 2, "raises": None}],
        "files": lambda t: {name: f"{text}\n" for name, text in t["files"].items()} or {"a.txt": ""},
        "files, one more": lambda t: {**t["files"], "protected.py": "x = 1\n"},
        "editable": lambda t: [*t["editable"], "other.py"],
        "tests": lambda t: {**t["tests"], "tests/test_x.py": "def test_x(): pass\n"},
        "gold": lambda t: {name: f"{text}\n" for name, text in t["gold"].items()},
        "wrong": lambda t: {name: f"{text}\n" for name, text in t["wrong"].items()},
        "visible": lambda t: [*t["visible"], {"args": [0], "expected": 0, "raises": None}],
        "f2p": lambda t: [*t["f2p"], "tests/test_x.py::test_x"],
        "p2p": lambda t: [*t["p2p"], "tests/test_x.py::test_y"],
        "match": lambda t: "contains" if t["match"] != "contains" else "exact",
        "origin": lambda t: f"{t['origin']}x",
    }
    for task in [task for task in tasks if task.id in shown][:3]:
        for place, change in places.items():
            plain = task.model_dump(mode="json")
            other = {**plain, place.split(",")[0]: change(plain)}
            lines = [other if one.id == task.id else one.model_dump(mode="json") for one in tasks]
            yield Mutation(
                ("tasks",), f"task {task.id}: {place}", lambda w, rows=lines: _restored(w, rows),
                ("resume sft", "next rl", "replay evaluation", "regenerate sft", "mix"), ("resume data",),
            )  # fmt: skip


@contextmanager
def _restored(world: World, rows: list[dict[str, Any]]) -> Iterator[None]:
    def write(folder: Path) -> None:
        (folder / "tasks.jsonl").write_bytes(b"".join(canonical(row) + b"\n" for row in rows))

    ref: ArtifactRef = store(world.space, "data", "tasks", write)
    record = world.space.stored(world.round, "data")
    other = put(record, ("artifacts", "tasks"), ref.model_dump(mode="json"))
    with replaced(world.space.folder(world.round) / "data.json", pretty(other)):
        yield
    shutil.rmtree(world.space.root / ref.path)


def trained(world: World) -> Iterator[Mutation]:
    """What sft.json says of its checkpoint."""
    record = world.space.stored(world.round, "sft")
    for part, pin in (("weights", "policy"), *((p, p) for p in ("config", "tokenizer", "template", "files"))):
        other = put(record, ("checkpoint", part), others(record["checkpoint"][part])[0])
        path = f"sft record: {part}"
        again = () if part == "weights" else ("regenerate sft",)  # other weights are no checkpoint of the round
        yield Mutation(
            (pin, "start"), path,
            lambda w, o=other: replaced(w.space.folder(w.round) / "sft.json", pretty(o)),
            ("resume rl", "next rl", *again), ("resume sft", "replay sft", "mix"),
        )  # fmt: skip


# --- mutations of code and libraries


def code(world: World, stream: random.Random, count: int = 60) -> Iterator[Mutation]:
    files = sorted(keys.declared_files(keys.DECLARED["backflow"], world.code))
    sets = {stage: keys.declared_files(keys.DECLARED[stage], world.code) for stage in STAGES}
    own = [path for path in files if path.parent.name == "stages" or path.suffix == ".yaml"]
    for path in sorted({*own, *stream.sample(files, min(count, len(files)))}):
        first = next(stage for stage in STAGES if path in sets[stage])
        at = STAGES.index(first)
        after = [stage for stage in LATER if STAGES.index(stage) > at]
        refuse = [f"resume {stage}" for stage in LATER if path in sets[stage]][-1:] + [
            f"next {stage}" for stage in after[:1]
        ]
        accept = [f"resume {stage}" for stage in LATER if STAGES.index(stage) < at][-1:]
        yield Mutation(
            ("code",), f"code: {path.relative_to(world.code)}", lambda w, p=path, x=stream.random(): flip(p, x),
            tuple(refuse), (*accept, "replay sft", "mix"),
        )  # fmt: skip


def libraries(world: World) -> Iterator[Mutation]:
    """Another version, by the metadata that comes first on the path."""
    for name in sorted(set(keys.LIBRARIES["goal"])):
        yield Mutation(
            ("libraries",), f"library {name}", lambda w, n=name: _installed(w, n),
            ("resume data", "next backflow", "regenerate evaluation"), ("replay evaluation", "mix"),
        )  # fmt: skip


@contextmanager
def _installed(world: World, name: str) -> Iterator[None]:
    info = world.libraries / f"{name.replace('-', '_')}-99.0.dist-info" / "METADATA"
    sys.path.insert(0, str(world.libraries))
    try:
        with replaced(info, f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n".encode()):
            importlib.invalidate_caches()
            yield
    finally:
        sys.path.remove(str(world.libraries))
        importlib.invalidate_caches()


# --- mutations of attempts


def members(world: World) -> Iterator[Mutation]:
    """One member of an RL group, one demonstration, made under something else."""
    other = "f" * 64
    trajectory: dict[str, tuple[str, Any]] = {
        "task": ("tasks", other), "harness": ("harness", other), "hint": ("hint", "line 3"),
        "noise": ("noise", Noise(timeout=0.5)),
        "parent": ("hint", "rl-0"), "prefix_turn": ("hint", 1),
    }  # fmt: skip
    for name, (pin, value) in trajectory.items():
        yield _member(pin, f"trajectory.{name}", lambda a, n=name, v=value: _with(a, "trajectory", **{n: v}))
    for name, value in {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "dtype": "bfloat16", "threads": 5, "batch": 3,
                        "engine": "vllm"}.items():  # fmt: skip
        yield _member(
            "sampling",
            f"sampling.{name}",
            lambda a, n=name, v=value: _with(a, "trajectory", sampling=_sampling(a, n, v)),
        )
    for name, pin in {"image": "environment", "limits": "limits", "verifier": "verifier"}.items():
        yield _member(pin, f"verdict.{name}", lambda a, n=name: _with(a, "verdict", **{n: other}))
    yield _member("rewards", "reward.rules", lambda a: _with(a, "reward", rules=other))
    for name, value in {"policy": other, "policy_version": 9}.items():
        yield _member(
            "policy", f"turn.{name}", lambda a, n=name, v=value: _with(a, "trajectory", turns=_turns(a, n, v))
        )
    kept = world.group[1]
    yield Mutation((), "group: another seed", lambda w: _group(w, 1, _with(kept, "trajectory", seed=1)), (), ("group",))
    for index in range(len(world.demonstrations)):
        for pin, part, name in (
            ("tasks", "trajectory", "task"),
            ("verifier", "verdict", "verifier"),
            ("rewards", "reward", "rules"),
        ):
            yield Mutation(
                (pin,), f"demonstration {index}: {part}.{name}",
                lambda w, i=index, p=part, n=name: _demonstration(w, i, _with(w.demonstrations[i], p, **{n: other})),
                ("mix",), ("group",),
            )  # fmt: skip


def _member(pin: str, what: str, change: Callable[..., Attempt]) -> Mutation:
    return Mutation((pin,), f"group: {what}", lambda w: _group(w, 1, change(w.group[1])), ("group",), ("mix",))


def _with(attempt: Attempt, part: str, **update: Any) -> Attempt:
    return attempt.model_copy(update={part: getattr(attempt, part).model_copy(update=update)})


def _sampling(attempt: Attempt, name: str, value: Any) -> Sampling:
    return attempt.trajectory.sampling.model_copy(update={name: value})


def _turns(attempt: Attempt, name: str, value: Any) -> list[Any]:
    first, *rest = attempt.trajectory.turns
    return [first.model_copy(update={name: value}), *rest]


@contextmanager
def _group(world: World, index: int, attempt: Attempt) -> Iterator[None]:
    before, world.group = world.group, [attempt if i == index else a for i, a in enumerate(world.group)]
    yield
    world.group = before


@contextmanager
def _demonstration(world: World, index: int, attempt: Attempt) -> Iterator[None]:
    before = world.demonstrations
    world.demonstrations = [attempt if i == index else a for i, a in enumerate(before)]
    yield
    world.demonstrations = before


def mutations(world: World) -> list[Mutation]:
    stream = random.Random(SEED)
    return [
        *members(world), *settings(world, stream), *trained(world), *libraries(world), *retold(world), *content(world),
        *code(world, stream), *image(world),
    ]  # fmt: skip


# --- what must not matter


def fingerprint(space: Workspace, cache: Path) -> dict[str, str]:
    """Every key, every pin and every digest that is made of this workspace, by name."""
    found: dict[str, Any] = {}
    for number in space.rounds():
        ctx = Context(space, number, load_spec(space.spec_path), cache)
        for stage in STAGES:
            key, pins = key_of(ctx, stage)
            found |= {f"{number} {stage} key": key, f"{number} {stage} inputs": digest_of(pins)}
        found[f"{number} pins"] = digest_of(derive(space.records(number)).pins)
    last: Any = ctx.record("goal")
    found["image"] = layer_digest(equipment.image_of(last.spec, cache, space.root)[1])
    found["base"] = checkpoint_of(model_folder(ctx, last.spec.model)).digest()
    found["artifacts"] = digest_of([artifacts.hash_tree(space.root / ref.path).digest() for ref in space.refs()])
    for ref in (ref for ref in space.refs() if ref.name == "attempts"):
        made = read_attempts(space.root / ref.path / "attempts.parquet")
        found[f"attempts {ref.path}"] = digest_of([attempt_pins(attempt) for attempt in made])
    return found


VARIANTS: dict[str, dict[str, str]] = {
    "time zone": {"TZ": "Pacific/Chatham"},
    "locale": {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"},
    "locale C": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"},
    "hash seed": {"PYTHONHASHSEED": "4711"},
    "threads and device": {"OMP_NUM_THREADS": "7", "CUDA_VISIBLE_DEVICES": ""},
    "home and user": {"HOME": "/nonexistent", "USER": "nobody"},
}


def indifferent(world: World, folder: Path, variants: Sequence[str] | None = None) -> dict[str, list[str]]:
    """What was varied -> names in which the fingerprint differs: none may."""
    wanted = fingerprint(world.space, world.cache)
    found: dict[str, list[str]] = {}

    def told(name: str, seen: dict[str, str]) -> None:
        found[name] = sorted(key for key in wanted.keys() | seen.keys() if wanted.get(key) != seen.get(key))

    for name in VARIANTS if variants is None else variants:
        told(name, _elsewhere(world.space.root, world.cache, VARIANTS[name], folder))
    moved, cache = folder / "another place" / "W", folder / "another place" / "cache"
    backwards(world.space.root, moved)
    backwards(world.cache, cache)
    told("path, order of files, times, umask", fingerprint(Workspace(moved), cache))
    text = re.sub(r"(?ms)^runtime:.*?(?=^\S|\Z)", "", world.space.spec_path.read_text(encoding="utf-8"))
    runtime = (
        "\nruntime: {workers: 7, sandbox_retries: 0, stage_retries: 4, device: cuda, vllm_url: 'http://127.0.0.1:1'}\n"
    )
    with replaced(moved / "goal.yaml", (text + runtime + "pins: {widen: {resume: [code]}}\n").encode()):
        told("workers, retries, device, widening", fingerprint(Workspace(moved), cache))
    shutil.rmtree(moved.parent)
    return found


def backwards(source: Path, target: Path) -> None:
    """A copy whose files are made in the opposite order, with other times and other modes than one would give them."""
    before = os.umask(0o077)
    try:
        for path in sorted(source.rglob("*"), reverse=True):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                place.symlink_to(os.readlink(path))
            elif path.is_dir():
                place.mkdir(exist_ok=True)
            else:
                place.write_bytes(path.read_bytes())
                place.chmod(0o700 if path.stat().st_mode & 0o100 else 0o600)
                os.utime(place, (1e9, 1e9))
    finally:
        os.umask(before)


def _elsewhere(root: Path, cache: Path, extra: dict[str, str], cwd: Path) -> dict[str, str]:
    argv = [sys.executable, "-W", "ignore", "-m", "bench.pins", "--fingerprint", str(root), "--cache", str(cache)]
    env = {**common.environment(), **extra}
    done = subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != EXIT_DONE:
        raise IntegrityError(f"fingerprint under {extra}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


# --- figure


def measure(world: World, folder: Path, sample: int | None) -> dict[str, Any]:
    every = mutations(world)
    chosen = every if sample is None else random.Random(SEED).sample(every, min(sample, len(every)))
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for done, mutation in enumerate(chosen):
        rows += tried(world, mutation)
        if done % 100 == 99:
            say(f"{done + 1} of {len(chosen)} mutations, {sum(not row['right'] for row in rows)} wrong answers")
    seconds = time.perf_counter() - began
    by_pin: dict[str, Counter[str]] = defaultdict(Counter)
    by_operation: dict[str, Counter[str]] = defaultdict(Counter)
    for mutation in chosen:
        by_pin[mutation.pins[0] if mutation.pins else "seed of an attempt"]["mutations"] += 1
    for row in rows:
        answer = ("refused" if row["refused"] else "went_on") if row["right"] else "wrong"
        by_pin[row["pins"][0] if row["pins"] else "seed of an attempt"][answer] += 1
        by_operation[of_operation(row["probe"])][answer] += 1
    return {
        "machine": common.machine(),
        "mutations": len(chosen),
        "answers": len(rows),
        "wrong": [row for row in rows if not row["right"]],
        "by_pin": {pin: dict(sorted(by_pin[pin].items())) for pin in sorted(by_pin)},
        "by_operation": {name: dict(sorted(by_operation[name].items())) for name in sorted(by_operation)},
        "seconds": round(seconds, 1),
        "indifferent": indifferent(world, folder),
    }


def holds(result: dict[str, Any]) -> bool:
    refused = {name for name, row in result["by_operation"].items() if row.get("refused")}
    return not result["wrong"] and not any(result["indifferent"].values()) and refused == set(get_args(Operation))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", type=Path, help="a complete one; only a copy of it is changed")
    parser.add_argument("--cache", type=Path, default=cache_folder())
    parser.add_argument("--folder", type=Path, default=Path("proofs/work/pins"))
    parser.add_argument("--sample", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fingerprint", type=Path, metavar="WORKSPACE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if options.fingerprint is not None:
            print(json.dumps(fingerprint(Workspace(options.fingerprint), options.cache)))
            return EXIT_DONE
        if options.out is None:
            parser.error("--out FILE.json is missing")
        folder = options.folder.resolve()
        space = Workspace.open(options.workspace) if options.workspace else _made(folder)
        shutil.rmtree(folder / "world", ignore_errors=True)
        (folder / "world").mkdir(parents=True)
        world = open_world(space, options.cache, folder / "world")
        result = measure(world, folder / "world", options.sample)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, {**result, "holds": holds(result)})
    rows = [[n, r.get("refused", 0), r.get("went_on", 0), r.get("wrong", 0)] for n, r in result["by_operation"].items()]
    print(table(["operation", "refused", "went on", "wrong"], rows))
    return EXIT_DONE if holds(result) else EXIT_NO


def _made(folder: Path) -> Workspace:
    space = common.make_workspace(folder / "workspace", "tiny", seed=SEED)
    common.run_rounds(space, 2, folder / "workspace.log")
    return space


if __name__ == "__main__":
    sys.exit(main())

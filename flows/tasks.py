"""`postloop tasks`: import suites, mine history, prove what is there, run foreign ones, write it as Harbor folders.

Each command returns its exit code. Tasks go to the seed data of the workspace; a round uses them once `data.seed_data`
names that folder.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.options import HERE, AsJson, Debug, Folder, print_json, show_table
from flows.settings import cache_folder, prepare
from schemas.errors import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_NO, InputError
from schemas.task import Split, Task

if TYPE_CHECKING:
    from schemas.harbor import HarborTask
    from schemas.mining import MiningSpec
    from stages.context import Context
    from stages.foreign import ForeignRun
    from stages.validation import Validation
    from stages.workspace import Workspace

Into = Annotated[str | None, typer.Option(help="folder of the workspace; default: data.seed_data, else tasks")]
Only = Annotated[str | None, typer.Option(help="only tasks whose id begins so")]
HUMANEVAL = "humaneval"
MAX_SPEC_BYTES = 1 << 20
MAX_SUITE_BYTES = 512 << 20


# ---- import


def import_(
    suite: Annotated[str, typer.Argument(metavar="DIR", help="a Harbor suite or task folder; or the word humaneval")],
    into: Into = None,
    split: Annotated[Split, typer.Option(help="of foreign tasks, which name none")] = Split.HELD_OUT,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Take a suite into the seed data of the workspace. Exit 1 when a folder was refused; the others are taken."""
    from stages.seeds import keep, seed_place, suite_name

    space, ctx = _open(workspace)
    place = seed_place(space, ctx.spec.data, into)
    refused: list[str] = []
    beside: dict[str, bytes] = {}
    if suite == HUMANEVAL:
        from environments.sources.humaneval import suite as humaneval

        name, tasks, trust = HUMANEVAL, humaneval(ctx.cache), dict[str, str]()
    else:
        from environments.formats import harbor

        path = Path(suite).absolute()
        name = suite_name(path.name)
        found = _read_all(path, split, refused)
        tasks, trust = [made.task for made in found], {made.task.id: made.trust.value for made in found}
        beside = {"harbor": harbor.pack(found)}
    if tasks:
        with space.lock():
            keep(place, name, tasks, beside)
    relative = place.relative_to(space.root.resolve()).as_posix()
    _report_import(space, ctx, tasks, trust, refused, f"{relative}/{name}.jsonl", as_json)
    return EXIT_NO if refused else EXIT_DONE


def _read_all(path: Path, split: Split, refused: list[str]) -> list[HarborTask]:
    """The tasks of a suite; a line in `refused` for each folder that is none, or whose id another one has."""
    from environments.formats import harbor

    found: dict[str, HarborTask] = {}
    size = 0
    for folder in harbor.find(path):
        try:
            made = harbor.read(folder, split)
        except InputError as error:
            refused.append(str(error))
            continue
        size += len(harbor.pack([made]))
        if size > MAX_SUITE_BYTES:
            refused.append(f"{path}: over {MAX_SUITE_BYTES >> 20} MiB from {folder.name} on; import it in parts")
            break
        if made.task.id in found:
            refused.append(f"{folder}: its id {made.task.id} is another folder's too; rename one")
        else:
            found[made.task.id] = made
    return list(found.values())


def _report_import(
    space: Workspace,
    ctx: Context,
    tasks: Sequence[Task],
    trust: dict[str, str],
    refused: Sequence[str],
    file: str,
    as_json: bool,
) -> None:
    hint = (
        None
        if ctx.spec.data.seed_data == file.rpartition("/")[0]
        else f"data: {{seed_data: {file.rpartition('/')[0]}, ...}}"
    )
    rows = [{"id": t.id, "kind": t.kind, "split": t.split.value, "trust": trust.get(t.id, "declared")} for t in tasks]
    if as_json:
        print_json({"file": file if tasks else None, "tasks": rows, "refused": list(refused), "set_in_goal_yaml": hint})
        return
    for line in refused:
        print(f"refused: {line}", file=sys.stderr)
    if not tasks:
        print("nothing was imported")
        return
    counts = Counter((row["kind"], row["split"], row["trust"]) for row in rows)
    lines = [(*key, n) for key, n in sorted(counts.items())]
    show_table(f"{file}: {len(tasks)} tasks", ("kind", "split", "trust", "tasks"), lines)
    if hint:
        print(f"a round uses them once goal.yaml says {hint}; the embedded families too after:")
        print(f"  python -m environments.sources.default {space.root / file.rpartition('/')[0]}")


# ---- mine


def mine(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="YAML: packages or repositories, and bounds")],
    into: Into = None,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Repair tasks from real history, each proven; what fell at which proof. Exit 1 when nothing came of it."""
    from environments.engines import open_engine
    from environments.sources.mining import mine as mine_all
    from flows.progress import reporter
    from stages.artifacts import pretty
    from stages.equipment import image_of
    from stages.seeds import keep, seed_place, suite_name

    space, ctx = _open(workspace)
    asked = _mining_spec(spec)
    place = seed_place(space, ctx.spec.data, into)
    name = suite_name(f"mined {spec.stem}")
    with reporter("mine", as_json) as report:
        found = mine_all(
            asked,
            ctx.cache,
            open_engine(ctx.spec.environment.engine, ctx.spec.environment.runtime),
            base=spec.resolve().parent,
            workers=ctx.runtime.workers,
            progress=lambda what: report(what, 0),
        )
    if found.tasks:
        with space.lock():
            keep(
                place,
                name,
                found.tasks,
                {"losses.json": pretty([loss.model_dump(mode="json") for loss in found.losses])},
            )
    file = f"{place.relative_to(space.root.resolve()).as_posix()}/{name}.jsonl"
    here = image_of(ctx.spec, ctx.cache, ctx.workspace.root)[0].layer
    hint = None if here == found.image else f"environment: {{packages: {json.dumps(asked.packages)}}}"
    if as_json:
        print_json(
            {
                "file": file if found.tasks else None,
                "image": found.image,
                "table": found.table(),
                "set_in_goal_yaml": hint,
            }
        )
    else:
        rows = found.table()
        columns = tuple(dict.fromkeys(key for row in rows for key in row))
        show_table(
            f"{file}: {len(found.tasks)} tasks", columns, [[row.get(column, "") for column in columns] for row in rows]
        )
        if hint:
            print(f"they are judged in the image that they were mined in: goal.yaml needs {hint}")
    return EXIT_DONE if found.tasks else EXIT_NO


def _mining_spec(path: Path) -> MiningSpec:
    """Plain YAML of bounded size against its schema. Raises InputError, one line with the first problem."""
    from pydantic import ValidationError
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from schemas.mining import MiningSpec

    try:
        data = path.read_bytes()[: MAX_SPEC_BYTES + 1]
        if len(data) > MAX_SPEC_BYTES:
            raise InputError(f"{path}: over {MAX_SPEC_BYTES >> 20} MiB; list fewer sources")
        plain = YAML(typ="safe").load(data.decode("utf-8"))
        return MiningSpec.model_validate_json(json.dumps(plain), strict=True)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; name a YAML file") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "spec"
        raise InputError(f"{path}: {where}: {first['msg']}; correct it") from None
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not plain YAML: {' '.join(str(error).split())[:200]}; correct it") from None


# ---- list


def list_(
    only: Only = None,
    split: Annotated[Split | None, typer.Option(help="only tasks of this split")] = None,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """The tasks of the seed data by id, which the other commands take; and which ones are quarantined."""
    from stages.quarantine import quarantined

    space, ctx = _open(workspace)
    bad = quarantined(space.root)
    rows = [
        {"id": task.id, "skill": task.skill, "kind": task.kind, "family": task.family, "split": task.split.value,
         "quarantined": bad.get(task.digest())}
        for task in sorted(_asked(ctx, only), key=lambda one: one.id) if split in (None, task.split)
    ]  # fmt: skip
    if as_json:
        print_json(rows)
        return EXIT_DONE
    columns = ("id", "family", "split", "quarantined")
    show_table(
        f"{len(rows)} tasks", columns, [[row[column] or "" for column in columns] for row in rows], whole=("id",)
    )
    return EXIT_DONE


def _asked(ctx: Context, only: str | None) -> list[Task]:
    """Tasks of the seed data whose id begins with `only`. Raises InputError where none does."""
    from environments.sources.default import load
    from stages.tasks import seed_folder

    pool = load(seed_folder(ctx, ctx.spec.data))
    tasks = [task for task in pool if task.id.startswith(only or "")]
    if not tasks:
        raise InputError(
            f"--only {only}: none of the {len(pool)} tasks has an id that begins so; name the start of one"
        )
    return tasks


# ---- validate


def validate(
    only: Only = None,
    runs: Annotated[int, typer.Option(min=2, help="runs of each gold outcome")] = 5,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Prove the tasks of the seed data: gold, start, wrong, repeats, budget. Exit 1 when one is quarantined."""
    from flows.progress import reporter
    from stages.context import threads
    from stages.quarantine import note
    from stages.validation import validate as prove

    space, ctx = _open(workspace)
    tasks = _asked(ctx, only)
    with reporter("validate", as_json) as report:
        ctx.progress = report
        ctx.fan_out = threads(ctx.runtime.workers)
        done = prove(ctx, tasks, runs)
    with space.lock():
        note(space.root, done.proofs, whole=only is None and not done.lost)
    _report_validation(ctx, tasks, done, runs, as_json)
    return EXIT_NO if done.quarantined else EXIT_INFRASTRUCTURE if done.lost else EXIT_DONE


def _report_validation(ctx: Context, tasks: Sequence[Task], done: Validation, runs: int, as_json: bool) -> None:
    by_id = {task.id: task for task in tasks}
    failed = {proof.task_id: proof.reason for proof in done.quarantined}
    if as_json:
        rows = [
            {"id": name, "kind": by_id[name].kind, "split": by_id[name].split.value, "reason": reason}
            for name, reason in failed.items()
        ]
        lost = [{"id": name, "reason": reason} for name, reason in sorted(done.lost.items())]
        print_json(
            {
                "engine": ctx.spec.environment.engine,
                "runs": runs,
                "verifiers": done.verifiers,
                "tasks": len(tasks),
                "proven": len(done.proofs) - len(failed),
                "from_cache": done.cached,
                "quarantined": rows,
                "lost": lost,
            }
        )
        return
    total, bad = Counter(map(_group, tasks)), Counter(_group(by_id[name]) for name in failed)
    gone = Counter(_group(by_id[name]) for name in done.lost)
    lines = [(*key, n, n - bad[key] - gone[key], bad[key], gone[key]) for key, n in sorted(total.items())]
    title = f"{len(tasks)} tasks, {runs} runs of gold, {done.cached} known from before"
    show_table(title, ("skill", "kind", "split", "tasks", "proven", "quarantined", "lost"), lines)
    if failed:
        show_table("quarantined: never trained or evaluated on", ("task", "reason"), sorted(failed.items()))
    if done.lost:
        show_table("lost to the machine, not quarantined; run again", ("task", "reason"), sorted(done.lost.items()))


def _group(task: Task) -> tuple[str, str, str]:
    return task.skill, task.kind, task.split.value


# ---- run


def run(
    task: Annotated[str, typer.Argument(metavar="ID", help="a foreign task of the seed data")],
    agent: Annotated[
        str, typer.Option(help="oracle (its own solution), nop, or a folder laid over its tree")
    ] = "oracle",
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Run a foreign task in Docker and grade it in a fresh container. Exit 0 when its own script gives it 1."""
    from schemas.verdict import Status

    _, ctx = _open(workspace)
    made = _imported(ctx, task)
    if find_spec("docker") is None:
        raise InputError("tasks run: the Python package docker is missing; pip install 'postloop[docker]'")
    from environments.formats.foreign_docker import ForeignDocker
    from stages.foreign import run as run_foreign

    with closing(ForeignDocker(ctx.spec.environment.runtime)) as docker:
        done = run_foreign(made, agent, docker)
    _report_run(task, agent, done, as_json)
    if done.verdict.status is Status.ERROR:
        return EXIT_INFRASTRUCTURE
    return EXIT_DONE if done.verdict.passed else EXIT_NO


def _imported(ctx: Context, task: str) -> HarborTask:
    """A task with the folder that it came from."""
    from environments.formats import harbor
    from stages.tasks import seed_folder

    place = seed_folder(ctx, ctx.spec.data)
    found = [made for path in sorted(place.glob("*.harbor")) for made in harbor.unpack(path.read_bytes())]
    for made in found:
        if made.task.id == task:
            return made
    known = ", ".join(made.task.id for made in found if made.trust.value == "foreign")[:200] or "none"
    raise InputError(f"task {task[:80]}: no imported folder has it; foreign ones in {place.name}: {known}")


def _report_run(task: str, agent: str, done: ForeignRun, as_json: bool) -> None:
    verdict = done.verdict
    if as_json:
        print_json(
            {
                "task": task,
                "agent": agent,
                "agent_ended": done.agent_ended,
                "tests_ended": done.tests_ended,
                "image": done.image,
                "network": "none",
                "paths": done.paths,
                "left_out": done.left_out,
                "verdict": verdict.model_dump(mode="json"),
            }
        )
        return
    score = "none" if verdict.score is None else f"{verdict.score:g}"
    columns = ("agent", "reward", "passed", "trust", "limit", "changed paths", "agent ended", "tests ended")
    row = (
        agent,
        score,
        verdict.passed,
        verdict.trust,
        verdict.limit_hit or "",
        done.paths,
        done.agent_ended,
        done.tests_ended,
    )
    show_table(f"{task}: {verdict.status.value}; its own script decides, beside the attempt", columns, [row])
    lines = [("violation", item.kind, item.detail) for item in verdict.violations]
    lines += [("left out", "", text) for text in done.left_out[:20]] + (
        [("error", "", verdict.reason)] if verdict.reason else []
    )
    if lines:
        show_table("why", ("what", "kind", "detail"), lines)


# ---- export


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a new or empty folder")],
    only: Only = None,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Write the tasks of the seed data as Harbor folders, which any Harbor runs. Foreign ones as they came."""
    from environments.formats import harbor
    from environments.sources.default import load
    from stages.equipment import image_of
    from stages.tasks import seed_folder

    _, ctx = _open(workspace)
    place = seed_folder(ctx, ctx.spec.data)
    tasks = [task for task in load(place) if task.id.startswith(only or "")]
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: there is something already; name a folder that is new or empty")
    came = [made for path in sorted(place.glob("*.harbor")) for made in harbor.unpack(path.read_bytes())]
    packed = {made.task.digest(): made for made in came}
    environment = image_of(ctx.spec, ctx.cache, ctx.workspace.root)[0]
    for task in tasks:
        made = packed.get(task.digest()) or harbor.folder_of(task, environment)
        harbor.write(made, folder / harbor.folder_name(task))
    if as_json:
        print_json({"folder": str(folder), "tasks": len(tasks)})
    else:
        print(f"{folder}: {len(tasks)} task folders")
    return EXIT_DONE


# ---- shared


def _open(workspace: Path) -> tuple[Workspace, Context]:
    """The workspace and a context for work outside a round."""
    from stages.context import Context
    from stages.spec import load_spec
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    return space, Context(space, 0, load_spec(space.root / "goal.yaml"), cache_folder(space.root))

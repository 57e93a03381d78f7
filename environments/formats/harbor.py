"""Harbor task folders: instruction.md, task.toml, environment/, tests/, solution/. Read and written exactly.

A folder is kept byte for byte beside the task that was read from it (`HarborTask.folder`), so what we have no field for
survives. One that says under [metadata.postloop] what may change and what must pass is a *declared* task: our verifier
grades it. Any other is *foreign*: its own script writes its reward, and our Task names it and pins its content, no more.

A task of ours is written as a folder that runs elsewhere: environment/ builds the tree, tests/test.sh grades it with our
verifier bundle, which travels along, and solution/solve.sh lays the gold files. Read again it gives the equal Task.

Text is UTF-8 and bytes are bytes: what a declared task shows, hides or judges is text, and a file of it that is not UTF-8
is refused; a foreign folder may hold anything, since only its own containers read it (foreign.py).

Not covered: tasks of several steps and Windows containers, which are refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomlkit
from pydantic import ValidationError

from environments.bundles import builtin
from environments.formats import folder as folders
from environments.formats.folder import check_path, check_tree, file_of, shown, subtree, text_of
from schemas.base import canonical
from schemas.errors import InputError, IntegrityError
from schemas.execution import Environment
from schemas.harbor import Config, Folder, FolderFile, HarborTask, Trust
from schemas.task import Split, Task

FORMAT = 1
MARK = "<!-- postloop: the task ends here; what follows says where it is -->"
TREE, GOLD, WRONG = "environment/tree", "solution/gold", "wrong"
VERIFIERS = {"function": "cases", "answer": "cases", "repository": "repository"}
GRADER = Path(__file__).with_name("grade.py")
MAX_TOML_BYTES = 1 << 20
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)  # Harbor shows no such first lines to an agent
TEST_SH = """\
#!/bin/bash
# Grades /work with the verifier that lies beside this script, and writes /logs/verifier/reward.txt.
exec python3 -I -S "$(dirname "$0")/grade.py"
"""
SOLVE_SH = """\
#!/bin/bash
set -e
cp -R "$(dirname "$0")/gold/." /work/
"""


# ---- reading


def find(path: Path) -> list[Path]:
    """The task folders of a suite, sorted: `path` itself, or every folder below it that has a task.toml.

    Links are not followed, and a task folder is not searched for others. InputError when there is none.
    """
    if path.is_symlink() or not path.is_dir():
        raise InputError(f"suite {shown(path)}: no folder, or a link to one; name the folder of a suite or of one task")
    found, waiting = [], [path]
    while waiting:
        place = waiting.pop()
        if (place / "task.toml").is_file():
            found.append(place)
        else:
            waiting += [entry for entry in place.iterdir() if entry.is_dir() and not entry.is_symlink()]
    if not found:
        raise InputError(f"suite {shown(path)}: no folder in it has a task.toml; name the folder of a Harbor suite")
    return sorted(found)


def read(path: Path, split: Split = Split.HELD_OUT) -> HarborTask:
    """The task of a folder. `split` is for a foreign one, which names none. Raises InputError, one line."""
    try:
        check_path(path.name, str(path.parent))
        return task_of(folders.read(path), path.name, split)
    except InputError as error:
        line = str(error)
        raise InputError(line if str(path) in line else f"{shown(path)}: {line}") from None


def task_of(folder: Folder, name: str, split: Split = Split.HELD_OUT) -> HarborTask:
    """The task of a folder's content. `name`: of the folder, for a foreign task that has none. Raises InputError."""
    config = config_of(folder)
    if config.steps:
        raise InputError(f"task.toml: {len(config.steps)} steps; tasks of one step are read, split it into several")
    if config.environment.os.lower() != "linux":
        raise InputError(f"task.toml: environment.os is {shown(config.environment.os)}, known is linux; leave it out")
    text_of(folder, "instruction.md")
    own = config.metadata.get("postloop")
    if own is None:
        return HarborTask(task=_foreign(folder, config, name, split), trust=Trust.FOREIGN, folder=folder)
    if not isinstance(own, dict) or own.get("format") != FORMAT:
        found = own.get("format") if isinstance(own, dict) else own
        raise InputError(
            f"task.toml: metadata.postloop.format is {str(found)[:40]!r}, known is {FORMAT}; write it again"
        )
    return HarborTask(task=_declared(folder, own), trust=Trust.DECLARED, folder=folder)


def toml_of(folder: Folder) -> dict[str, Any]:
    """task.toml as plain data, with every field that it has. Raises InputError."""
    text = text_of(folder, "task.toml")
    if len(text.encode()) > MAX_TOML_BYTES:
        raise InputError(f"task.toml: over {MAX_TOML_BYTES >> 20} MiB; keep data in files of their own")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"task.toml: not TOML: {str(error)[:200] or type(error).__name__}; correct it") from None


def config_of(folder: Folder) -> Config:
    """task.toml as Harbor reads it. Raises InputError for a known field of another type."""
    try:
        return Config.model_validate(toml_of(folder))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"task.toml: {shown(where)}: {first['msg']}; correct it") from None


def _foreign(folder: Folder, config: Config, name: str, split: Split) -> Task:
    if "tests/test.sh" not in folder.files and not (
        config.verifier.environment and config.verifier.environment.docker_image
    ):
        raise InputError(
            "tests/test.sh: missing, and no verifier.environment.docker_image; nothing would grade the task"
        )
    full = config.task.name if config.task else f"harbor/{name}"
    org, _, short = full.partition("/")
    return Task(
        id=f"harbor/{_plain(org)}/{_plain(short)}",
        kind="repository",
        family=f"harbor.{_plain(org)}"[:64],
        skill="harbor",
        origin=full,
        split=split,
        statement=_without_canary(text_of(folder, "instruction.md")),
        files={},
        editable=[],
        gold={},
        wrong={},
        made_by=f"foreign:{folder.digest()}",  # so the task's digest changes with any byte of the folder
    )


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "task"


def _without_canary(text: str) -> str:
    lines = text.split("\n")
    start = 0
    while start < len(lines) and _CANARY.fullmatch(lines[start].strip()):
        start += 1
    while start < len(lines) and not lines[start].strip():
        start += 1
    return "\n".join(lines[start:])


def _declared(folder: Folder, own: dict[str, Any]) -> Task:
    judged = _judged(folder)
    statement, mark, _ = text_of(folder, "instruction.md").rpartition(f"\n\n{MARK}\n")
    if not mark:
        raise InputError(f"instruction.md: the line {MARK} is missing; write the folder again")
    trees = {"gold": subtree(folder, GOLD), "wrong": subtree(folder, WRONG)}
    rest = {"statement": statement, "split": own.get("split"), "made_by": own.get("made_by")}
    try:
        task = Task.model_validate({**judged, **rest, **trees})
        task.digest()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"task.toml and tests/task.json: {shown(where)}: {first['msg']}; correct it") from None
    except ValueError as error:
        raise InputError(f"tests/task.json: a text or number without a UTF-8 form ({error}); correct it") from None
    if task.files != subtree(folder, TREE):
        raise InputError(
            f"{TREE}: differs from `files` of tests/task.json; what is graded must be what is shown, repair one"
        )
    for field, value in _metadata(task).items():
        if own.get(field) != value:
            found, wanted = str(own.get(field))[:60], str(value)[:60]
            raise InputError(
                f"task.toml: metadata.postloop.{field} is {found!r}, by tests/task.json {wanted!r}; repair one"
            )
    _check_names(task)
    return task


def _judged(folder: Folder) -> dict[str, Any]:
    try:
        judged = json.loads(text_of(folder, "tests/task.json"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"tests/task.json: not JSON: {str(error)[:120]}; correct it") from None
    if not isinstance(judged, dict):
        raise InputError("tests/task.json: not an object; write the folder again")
    return judged


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _check_names(task: Task) -> None:
    for field in ("files", "tests", "gold", "wrong"):
        check_tree(list(getattr(task, field)), f"task {task.id}, {field}")
    for path in task.editable:
        check_path(path, f"task {task.id}, editable")


# ---- writing


def folder_of(task: Task, environment: Environment, verifier: Path | None = None) -> HarborTask:
    """A task of ours as a folder that runs elsewhere; the same bytes each time.

    `environment`: Python and packages that its Dockerfile asks for. `verifier`: the bundle that grades; by kind if left
    out. Raises InputError for a task that has no such folder: a foreign one, or one with a hostile path.
    """
    if task.made_by.startswith("foreign:"):
        raise InputError(f"task {task.id}: foreign, so its own folder is its only form; write that")
    _check_names(task)
    texts = {
        "instruction.md": f"{task.statement}\n\n{MARK}\n\n{_guide(task)}",
        "task.toml": _toml(task),
        "environment/Dockerfile": _dockerfile(task, environment),
        "tests/task.json": json.dumps(task.judged(), indent=1, sort_keys=True, ensure_ascii=False) + "\n",
        "tests/grade.py": GRADER.read_text(encoding="utf-8"),
    }
    for top, tree in ((TREE, task.files), (GOLD, task.gold), (WRONG, task.wrong)):
        texts |= {f"{top}/{path}": text for path, text in tree.items()}
    texts |= _bundle(verifier or builtin(VERIFIERS[task.kind]))
    scripts = {"tests/test.sh": TEST_SH, "solution/solve.sh": SOLVE_SH}
    files = {path: _text_file(path, text, 0o644) for path, text in texts.items()}
    files |= {path: _text_file(path, text, 0o755) for path, text in scripts.items()}
    made = task_of(Folder(files=dict(sorted(files.items()))), task.id)
    if made.task != task:
        raise InputError(f"task {task.id}: its folder reads back as another task; report this task")
    return made


def write(made: HarborTask, path: Path) -> None:
    """The folder, byte for byte. Raises InputError when `path` is not new or empty."""
    folders.write(made.folder, path)


def folder_name(task: Task) -> str:
    return task.id.replace("/", ".")


def _text_file(path: str, text: str, mode: int) -> FolderFile:
    try:
        return file_of(text.encode(), mode)
    except UnicodeEncodeError:
        raise InputError(f"{shown(path)}: not valid Unicode; a task's text must be") from None


def _bundle(verifier: Path) -> dict[str, str]:
    """The files of a verifier bundle, as they lie in tests/verifier/."""
    paths = [path for path in sorted(verifier.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    return {
        f"tests/verifier/{path.relative_to(verifier).as_posix()}": path.read_text(encoding="utf-8") for path in paths
    }


def _metadata(task: Task) -> dict[str, Any]:
    """[metadata.postloop]: what Harbor has no field for. protected and split_key follow from the rest, for readers."""
    fields: dict[str, Any] = {
        "id": task.id,
        "kind": task.kind,
        "family": task.family,
        "skill": task.skill,
        "origin": task.origin,
        "split_key": task.origin,
        "split": task.split.value,
        "made_by": task.made_by,
        "editable": task.editable,
        "protected": sorted(set(task.files) - set(task.editable)),
        "match": task.match,
        "f2p": task.f2p,
        "p2p": task.p2p,
    }
    return fields if task.entry is None else {**fields, "entry": task.entry}


def _toml(task: Task) -> str:
    document = {
        "schema_version": "1.4",
        "task": {
            "name": f"postloop/{folder_name(task)}",
            "description": " ".join(task.statement.split())[:120],
            "keywords": list(dict.fromkeys([task.skill, task.family])),
        },
        "metadata": {"postloop": {"format": FORMAT, **_metadata(task)}},
        "verifier": {"timeout_sec": 900.0},
        "agent": {"timeout_sec": 900.0},
        "environment": {"network_mode": "no-network", "workdir": "/work", "cpus": 1, "memory_mb": 2048},
    }
    return tomlkit.dumps({name: _section(value) for name, value in document.items()})


def _section(value: Any) -> Any:
    """Tables as they are; a list of more than three, one a line."""
    if isinstance(value, dict):
        return {name: _section(item) for name, item in value.items()}
    if isinstance(value, list):
        array = tomlkit.array().multiline(len(value) > 3)
        array.extend(value)
        return array
    return value


def _dockerfile(task: Task, environment: Environment) -> str:
    packages = " ".join(f"'{name}=={version}'" for name, version in sorted(environment.packages.items()))
    lines = [f"FROM python:{environment.python}-slim"]
    if packages:
        lines.append(f"RUN python -m pip install --no-cache-dir --no-deps {packages}")
    kept = {name: value for name, value in sorted(environment.variables.items()) if name not in ("PATH", "HOME")}
    lines += [f"ENV {name}={_quoted(value)}" for name, value in kept.items()]
    lines += ["COPY tree/ /work/"] if task.files else []
    return "\n".join([*lines, "WORKDIR /work", ""])


def _quoted(value: str) -> str:
    if not value.isprintable():
        raise InputError(f"environment variable {shown(value)!r}: not printable; a Dockerfile cannot hold it")
    return '"' + re.sub(r'(["\\\\$])', r"\\\1", value) + '"'


def _guide(task: Task) -> str:
    if task.kind == "answer":
        lines = ["Write the answer, and nothing else, to /work/answer.txt."]
    else:
        lines = [f"The files are in /work. Change only: {', '.join(task.editable)}."]
    for case in task.visible:
        call = f"{task.entry}({', '.join(map(repr, case.args))})"
        lines.append(f"- `{call}` {f'raises {case.raises}' if case.raises else f'is `{case.expected!r}`'}")
    return "\n".join(lines) + "\n"


# ---- many in one file


def pack(tasks: Iterable[HarborTask]) -> bytes:
    """One canonical JSON line a task, sorted by id: a suite in one file beside its tasks instead of thousands."""
    made = sorted(tasks, key=lambda item: item.task.id)
    return b"".join(canonical(item.model_dump(mode="json")) + b"\n" for item in made)


def unpack(data: bytes) -> list[HarborTask]:
    """What `pack` made, each task read from its folder again. Raises IntegrityError for any other content."""
    found = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            stored = HarborTask.model_validate_json(line)
            check_tree([*stored.folder.files, *stored.folder.empty], "pack")
            same = task_of(stored.folder, stored.task.origin.removeprefix("harbor/"), stored.task.split) == stored
        except (ValueError, InputError) as error:
            raise IntegrityError(
                f"packed suite, line {number}: {str(error).splitlines()[0]}; import it again"
            ) from None
        if not same:
            raise IntegrityError(
                f"packed suite, line {number}: {stored.task.id} is not what its folder says; import it again"
            )
        found.append(stored)
    return found

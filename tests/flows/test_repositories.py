"""Several kinds of task up to their demonstrations: each has its own harness and its own verifier."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_loop import Cli, tiny_spec

from environments.bundles import builtin, tree_digest
from environments.sources import default
from schemas.data import DataRecord
from schemas.goal import GoalRecord
from schemas.record import Record
from schemas.task import Kind, Split, Task
from schemas.verdict import Status
from stages.attempts import read_attempts
from stages.quarantine import FILE
from stages.workspace import Workspace

OPERATORS = {"add": "+", "take": "-", "times": "*", "half": "//", "rest": "%", "both": "&", "either": "|"}
SPLITS = {
    "add": Split.TRAIN, "take": Split.TRAIN, "times": Split.TRAIN, "half": Split.TRAIN,
    "rest": Split.DEV, "both": Split.DEV, "either": Split.HELD_OUT,
}  # fmt: skip
BARRED, BROKEN = "times", "half"


def repository(name: str) -> Task:
    """A package whose one function has the wrong operator; the test file of the task is not in the agent's tree."""
    right = f"def {name}(left, right):\n    return left {OPERATORS[name]} right\n"
    start, wrong = (right.replace(OPERATORS[name], other) for other in ("^", "<<"))
    path, nodes = f"src/{name}s/core.py", f"tests/test_{name}.py"
    values = [(9, 4), (12, 5), (7, 7)]
    rows = ", ".join(f"({a}, {b}, {eval(f'{a} {OPERATORS[name]} {b}')})" for a, b in values)
    tests = (
        f"import pytest\n\nfrom {name}s.core import {name}\n\n\n@pytest.mark.parametrize('a, b, want', [{rows}])\n"
        f"def test_{name}(a, b, want):\n    assert {name}(a, b) == want\n\n\ndef test_takes_zero():\n    assert callable({name})\n"
    )
    cases = [f"{nodes}::test_{name}[{a}-{b}-{eval(f'{a} {OPERATORS[name]} {b}')}]" for a, b in values]
    return Task(
        id=f"package/{name}/operator",
        kind="repository",
        family="package.operator",
        skill="package",
        origin=name,
        split=SPLITS[name],
        statement=f"{name}(left, right) of {path} gives the wrong value. Correct it.",
        files={f"src/{name}s/__init__.py": "", path: start},
        editable=[path],
        tests={nodes: tests},
        f2p=cases,
        p2p=[f"{nodes}::test_takes_zero"],
        gold={path: start if name == BROKEN else right},
        wrong={path: wrong},
        made_by="test",
    )


@pytest.fixture(scope="module")
def space(cli: Cli, served: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Goal and data, on packages beside the embedded families. One task was barred by an earlier validation."""
    space = Workspace.create(tmp_path_factory.mktemp("repositories") / "loop", tiny_spec())
    folder = space.root / "tasks"
    default.build(folder)
    tasks = [repository(name) for name in OPERATORS]
    (folder / "packages.jsonl").write_text("".join(f"{task.model_dump_json()}\n" for task in tasks))
    barred = repository(BARRED).digest()
    (space.root / FILE).parent.mkdir(exist_ok=True)
    (space.root / FILE).write_text(json.dumps({"tasks": {barred: {"id": "x", "reason": "gold is slow"}}}))
    space.spec_path.write_text(spec())
    done = cli("run", "--until", "data", "-w", space.root, env=served)
    assert done.returncode == 0, done.stderr[-4000:]
    return space


def spec() -> str:
    text = tiny_spec().replace("data:\n", "data:\n  seed_data: tasks\n")
    text = text.replace("  sources:\n", "  sources:\n    - {skill: package, train: 4, dev: 2, held_out: 1}\n")
    text = text.replace("gold: {repair: 4, lookup: 2}", "gold: {package: 2, repair: 2, lookup: 2}")
    return text.replace("skills: [repair]", "skills: [package, repair]")


def test_pins_name_what_each_kind_is_done_and_judged_with(space: Workspace) -> None:
    goal = space.read(1, "goal")
    assert isinstance(goal, GoalRecord)
    tools, judge = (tree_digest(builtin(name)) for name in ("tools", "repository"))
    assert (goal.bundles.harness_of, goal.bundles.verifier_of) == ({"repository": tools}, {"repository": judge})
    pins = space.pins(1)
    assert pins is not None
    assert (pins.pins["harness_repository"], pins.pins["verifier_repository"]) == (tools, judge)


def test_attempts_of_both_kinds_are_scored_under_their_own_bundles(space: Workspace) -> None:
    goal = space.read(1, "goal")
    assert isinstance(goal, GoalRecord)
    seen = set()
    for stage, record in space.records(1).items():
        for path in _tables(space, record):
            for attempt in read_attempts(path):
                kind: Kind = "repository" if attempt.trajectory.task_id.startswith("package/") else "function"
                assert attempt.verdict.status is Status.SCORED, attempt.verdict.reason
                assert (attempt.trajectory.harness, attempt.verdict.verifier) == goal.bundles.judging(kind)
                seen.add((stage, kind))
    assert seen == {("data", "repository"), ("data", "function")}


def _tables(space: Workspace, record: Record) -> Iterator[Path]:
    for ref in record.artifacts.values():
        if ref.name.startswith(("attempts", "demonstrations")):
            yield from (path for path in sorted(space.open_artifact(ref).glob("*.parquet")) if path.stem != "edges")


def test_a_demonstration_goes_through_the_tools_and_is_inside_the_boundary(space: Workspace) -> None:
    data = space.read(1, "data")
    assert isinstance(data, DataRecord)
    folder = space.open_artifact(data.artifacts["demonstrations"])
    shown = [a for a in read_attempts(folder / "attempts.parquet") if a.trajectory.family == "package.operator"]
    assert len(shown) == 2
    for attempt in shown:
        assert attempt.verdict.passed
        assert not attempt.trajectory.conduct.forbidden
        assert [turn.call["name"] for turn in attempt.trajectory.turns if turn.call] == ["write_file", "submit"]


def test_what_a_proof_or_an_earlier_validation_refused_is_left_out_with_its_reason(space: Workspace) -> None:
    data = space.read(1, "data")
    assert isinstance(data, DataRecord)
    assert data.quarantined == {"gold is slow": 1, "gold does not pass": 1}
    lines = (Path(space.open_artifact(data.artifacts["tasks"])) / "tasks.jsonl").read_text().splitlines()
    kept = {json.loads(line)["id"] for line in lines}
    assert "package/add/operator" in kept
    assert not {f"package/{BARRED}/operator", f"package/{BROKEN}/operator"} & kept

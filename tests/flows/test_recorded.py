"""Workspaces that earlier versions recorded: all of it is read; what is of another version is brought up or refused by name."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from environments.bundles import Bundle
from environments.engines import open_engine
from evals.verify import Verifier
from schemas import migrations
from schemas.errors import InputError, IntegrityError, PinMismatch
from schemas.goal import GoalRecord
from schemas.migrations import Migration
from schemas.record import STAGES
from stages import artifacts
from stages.attempts import read_attempts, read_edges
from stages.context import Context
from stages.equipment import image_of
from stages.recorded import Recorded, recorded
from stages.replay import replay, verdict_difference
from stages.tasks import load_tasks
from stages.workspace import Workspace

ARCHIVES = sorted(Path(__file__).parents[1].glob("recorded/schema-*.tar.xz"))


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def past(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    root = tmp_path_factory.mktemp("recorded") / "loop"
    with tarfile.open(request.param) as tar:
        member = tar.extractfile("goal.yaml")
        assert member is not None
        space = Workspace.create(root, member.read().decode())
        tar.extractall(root, filter="data")
    with space.lock():
        assert [message.split(": ")[1] for message in space.settle()] == []
    return space


@pytest.fixture(scope="module")
def rows(past: Workspace) -> list[Recorded]:
    return recorded(past)


@pytest.fixture
def cache(environment: dict[str, str]) -> Path:
    return Path(environment["POSTLOOP_CACHE"])


def goal_of(space: Workspace) -> GoalRecord:
    goal = space.read(1, "goal")
    assert isinstance(goal, GoalRecord)
    return goal


def test_records_pins_and_tables_are_read(past: Workspace, rows: list[Recorded], cache: Path) -> None:
    assert list(past.records(1)) == list(STAGES)
    pins = past.pins(1)
    assert pins is not None
    assert pins.pins["environment"] == goal_of(past).environment.layer
    tasks = {task.digest() for task in load_tasks(Context(past, 1, goal_of(past).spec, cache))}
    assert {row.attempt.trajectory.task for row in rows} <= tasks
    assert {row.stage for row in rows} == {"data", "sft", "rl", "evaluation", "backflow"}
    edges = [edge for path in past.root.glob("artifacts/*/*/edges.parquet") for edge in read_edges(path)]
    assert {edge.trajectory for edge in edges} <= {row.attempt.trajectory.id for row in rows}
    assert edges


def test_everything_but_the_layer_of_the_image_is_there_and_matches(past: Workspace) -> None:
    problems = past.verify()
    image = goal_of(past).artifacts["image"]
    assert problems == artifacts.problems_of(past, image)
    assert len(problems) == 1
    assert "its folder is missing" in problems[0]


def test_a_replay_is_identical_where_the_image_is_the_same_and_refused_by_name_where_not(
    past: Workspace, rows: list[Recorded], cache: Path
) -> None:
    goal = goal_of(past)
    same = image_of(goal.spec, cache, past.root)[0].layer == goal.environment.layer
    chosen = [row for row in rows if row.stage == "backflow"]
    if same:
        assert {one.same for level in ("L0", "L1") for one in replay(past, cache, chosen, level)} == {True}  # type: ignore[arg-type]
    else:
        with pytest.raises((IntegrityError, PinMismatch), match=r"image|environment"):
            list(replay(past, cache, chosen, "L0"))


def test_verdicts_come_out_as_recorded_under_one_declared_exception(
    past: Workspace, rows: list[Recorded], cache: Path
) -> None:
    """The exception is the image: the one that this machine builds. Verifier, tasks and limits are those of the record."""
    goal = goal_of(past)
    environment, root = image_of(goal.spec, cache, past.root)
    tasks = {task.digest(): task for task in load_tasks(Context(past, 1, goal.spec, cache))}
    bundle = Bundle(past.open_artifact(goal.artifacts["verifier"]))
    engine, limits = open_engine(goal.spec.environment.engine), goal.spec.environment.limits
    verifier = Verifier(bundle, environment, root, engine, limits, "training", 1)
    done = [row.attempt for row in rows if row.attempt.trajectory.status == "done"]
    chosen = list({attempt.verdict.outcome: attempt for attempt in done}.values())
    try:
        again = verifier.judge_many([(tasks[one.trajectory.task], one.trajectory.outcome) for one in chosen])
    finally:
        bundle.close()
    for one, now in zip(chosen, again, strict=True):
        before = one.verdict.model_copy(update={"image": environment.layer})
        assert verdict_difference("verdict", before, now, goal.spec.environment.volatile) is None
    assert {one.verdict.passed for one in chosen} == {True, False}


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if our version were the second, which renamed a field of the goal record and one of attempts, and kept the rest."""
    forms = (
        "data",
        "sft",
        "rl",
        "evaluation",
        "backflow",
        "rescore",
        "import",
        "pins",
        "edges",
        "rescored",
        "tasks",
        "proofs",
    )
    kept = [Migration(form, 1, dict) for form in forms]
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(migrations, "MIGRATIONS", tuple(kept))


def test_an_older_version_is_refused_with_its_migration_or_brought_up_by_it(
    past: Workspace, rows: list[Recorded], second: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = r"^rounds/0001/goal\.json: schema version 1, ours 2: no migration of goal from 1 to 2; .*\n?$"
    with pytest.raises(InputError, match=said):
        past.read(1, "goal")
    table = next(past.root.glob("artifacts/backflow/*/attempts.parquet"))
    with pytest.raises(
        InputError, match=r"attempts\.parquet: schema version 1, ours 2: no migration of attempts from 1"
    ):
        read_attempts(table)

    def seeded(content: dict[str, Any]) -> dict[str, Any]:
        return {**content, "goal_version": content["goal_version"] + 41}

    def hinted(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "hint": "from version 1"}

    more = (Migration("goal", 1, seeded), Migration("attempts", 1, hinted))
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, *more))
    goal = goal_of(past)
    assert (goal.goal_version, goal.schema_version) == (42, 2)
    assert {attempt.trajectory.hint for attempt in read_attempts(table)} == {"from version 1"}
    assert past.pins(1) is not None
    assert list(past.records(1)) == list(STAGES)
    assert json.loads((past.root / "rounds/0001/goal.json").read_bytes())["schema_version"] == 1  # never rewritten


def test_a_newer_version_is_refused_in_records_pins_and_tables(past: Workspace, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pins = past.folder(1) / "pins.json"
    good = pins.read_bytes()
    pins.write_bytes(json.dumps({**json.loads(good), "schema_version": 9}).encode())
    with pytest.raises(InputError, match=r"^rounds/0001/pins\.json: schema version 9, known 1; use a newer postloop$"):
        past.pins(1)
    pins.write_bytes(b"[]")
    with pytest.raises(IntegrityError, match=r"^rounds/0001/pins\.json: no run pin: .*git checkout"):
        past.pins(1)
    pins.write_bytes(good)
    table = next(past.root.glob("artifacts/backflow/*/attempts.parquet"))
    newer = tmp_path / "attempts.parquet"
    pq.write_table(pq.read_table(table).replace_schema_metadata({"postloop.schema_version": "9"}), newer)
    with pytest.raises(InputError, match="schema version 9, known 1; use a newer postloop"):
        read_attempts(newer)

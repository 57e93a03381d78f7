"""Which tasks are chosen, what routed material becomes, and that no evaluation origin is ever trained on."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from environments.sources import default
from environments.sources.difficulty import difficulty, statements
from evals.material import EASIER
from schemas.bucket import Material, Route
from schemas.data import SourceSpec
from schemas.goal import GoalSpec
from schemas.task import Split, Task
from stages.context import Context
from stages.spec import dump_default
from stages.tasks import round_robin, route_tasks, seed_digest, seed_folder, select
from stages.workspace import Workspace
from tests import small


@pytest.fixture(scope="module")
def pool() -> list[Task]:
    return [task for tasks in default.tasks_of(0).values() for task in tasks]


def test_a_choice_takes_one_task_of_each_origin_before_a_second(pool: list[Task]) -> None:
    train = [t for t in pool if t.skill == "repair" and t.split is Split.TRAIN]
    origins = len({t.origin for t in train})
    taken = round_robin(train, origins + 5, seed=0)
    assert sorted(Counter(t.origin for t in taken).values())[-6:] == [1, 2, 2, 2, 2, 2]
    assert taken == round_robin(list(reversed(train)), origins + 5, seed=0)
    assert taken != round_robin(train, origins + 5, seed=1)


def test_no_origin_of_an_evaluation_split_is_trained_on(pool: list[Task]) -> None:
    chosen = select(pool, [SourceSpec(skill="repair", train=200, dev=64, held_out=68, boundary=24)], 0)
    trained = {t.origin for t in chosen if t.split is Split.TRAIN}
    assert trained
    assert not trained & {t.origin for t in chosen if t.split is not Split.TRAIN}


def test_routed_tasks_are_fresh_training_tasks_of_the_family(pool: list[Task]) -> None:
    chosen = select(pool, [SourceSpec(skill="repair", train=100), SourceSpec(skill="lookup", train=20)], 0)
    made = {
        family: route_tasks([_material(family, operators)], pool, chosen, 0)
        for family, operators in (("repair.condition", ["compare"]), ("lookup.table", []))
    }
    used = {t.id for t in chosen}
    kept = {t.origin for t in pool if t.split is not Split.TRAIN}
    for family, tasks in made.items():
        assert tasks, family
        assert {t.family for t in tasks} == {family}
        assert {t.made_by for t in tasks} == {"backflow:0123456789ab"}
        assert not used & {t.id for t in tasks}
        assert not kept & {t.origin for t in tasks}
        assert {t.split for t in tasks} == {Split.TRAIN}


@pytest.mark.parametrize(
    ("family", "operators"), [("repair.condition", ["compare"]), ("lookup.table", []), ("lookup.words", [])]
)
def test_where_the_ability_is_missing_the_new_tasks_are_easier(
    pool: list[Task], family: str, operators: list[str]
) -> None:
    """And not elsewhere. One of each origin comes before a second all the same."""
    chosen = select(pool, [SourceSpec(skill="repair", train=100), SourceSpec(skill="lookup", train=20)], 0)
    asked = _material(family, operators).model_copy(update={"amount": 8})
    easier = asked.model_copy(update={"cause": "knowledge_missing"})
    plain, easy = (route_tasks([one], list(pool), chosen, 0) for one in (asked, easier))
    assert easy == route_tasks([easier], pool[::-1], chosen, 0)
    assert len(plain) == len(easy) == len({task.origin for task in easy}) == 8
    assert sum(difficulty(task)[0] for task in easy) < sum(difficulty(task)[0] for task in plain)
    whole = route_tasks([easier.model_copy(update={"amount": 10_000})], pool, chosen, 0)
    least = {origin: min(difficulty(t)[0] for t in whole if t.origin == origin) for origin in {t.origin for t in whole}}
    assert sorted(difficulty(task)[0] for task in easy) == sorted(least.values())[:8]
    assert asked.cause not in EASIER


def test_less_to_get_right_is_fewer_statements_or_numbers() -> None:
    code = "def f(x):\n    if x:\n        return 1\n    return 2\n"
    assert (statements(code), statements("x = (\n"), statements("x = '\0'")) == (4, 1, 1)
    asked = small.task().model_copy(update={"gold": {"solution.py": code, "notes.txt": "a\nb\n"}})
    assert difficulty(asked)[0] == 4
    table = {"kind": "answer", "statement": "How many rows have b above 7?", "files": {"data.csv": "a,b\nx,1\ny,22\n"}}
    assert difficulty(asked.model_copy(update=table)) == (3, len("How many rows have b above 7?\na,b\nx,1\ny,22\n"))


def test_the_templates_name_sources_that_the_seed_data_can_fill(pool: list[Task]) -> None:
    from io import StringIO

    for kind in ("default", "tiny"):
        spec = YAML(typ="safe").load(StringIO(dump_default(kind)))  # type: ignore[arg-type]
        for source in (SourceSpec.model_validate(row) for row in spec["data"]["sources"]):
            chosen = Counter(task.split for task in select(pool, [source], 0))
            for split in Split:
                assert chosen[split] == getattr(source, split.value), (kind, source.skill, split)


def _material(family: str, operators: list[str]) -> Material:
    return Material(
        kind="tasks",
        bucket="0123456789ab",
        route=Route.DATA,
        family=family,
        amount=3,
        operators=operators,
        approved=True,
    )


def test_runs_that_share_a_cache_make_the_seed_data_once(tmp_path: Path) -> None:
    """The second used to find the place taken, and to end as infrastructure."""
    spec = GoalSpec.model_validate(YAML(typ="safe").load(dump_default("tiny")))
    space = Workspace.create(tmp_path / "loop", dump_default("tiny"))
    runs = [Context(space, 1, spec, tmp_path / "cache") for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        folders = list(pool.map(lambda ctx: seed_folder(ctx, spec.data), runs))
    assert len(set(folders)) == 1
    assert seed_digest(folders[0]) == seed_digest(seed_folder(runs[0], spec.data))
    assert sorted(path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")) == [
        folders[0].name
    ]

"""What is reserved for the planted faults: enough of it, as sound as the rest, and in no data set."""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher

import pytest

from environments.sources import default, lookup, repair
from environments.sources.instruction import instruction_tasks, reserved_questions
from environments.sources.library import Function, _by_name, every_function, functions, reserved_functions
from environments.sources.lookup import expression_of, lookup_tasks, origins, reserved_origins
from environments.sources.mutation import Mutant, outcomes
from environments.sources.repair import KINDS, fresh_repair_tasks, repair_tasks
from schemas.bucket import Material, Route
from schemas.task import Split, Task
from stages.keys import DECLARED, ROOT, declared_files
from stages.tasks import route_tasks


@pytest.fixture(scope="module")
def repairs() -> list[Task]:
    return repair_tasks(0, lambda name: Split.DEV, 4, intact=False, names=list(reserved_functions()))


def test_at_least_sixty_functions_are_reserved_and_none_is_in_the_data() -> None:
    assert len(reserved_functions()) >= 60
    assert len(functions()) == 238
    assert every_function() == {**functions(), **reserved_functions()}
    assert len(every_function()) == len(functions()) + len(reserved_functions())
    in_data = {task.origin for tasks in default.tasks_of().values() for task in tasks}
    reserved = {*reserved_functions(), *reserved_origins(), *(task.origin for task in reserved_questions())}
    assert not in_data & reserved


def test_a_name_that_both_parts_of_the_library_have_is_refused() -> None:
    one, other = functions()["clamp"], reserved_functions()["door_opens"]
    twin = Function("clamp", other.module, other.source, other.must, other.arguments, other.call)
    with pytest.raises(ValueError, match=r"clamp: defined in numbers and in reserved\.hotels"):
        _by_name([one, twin])


def test_what_is_reserved_enters_the_keys_of_the_stages_that_use_the_library() -> None:
    library = ROOT / "environments/sources/library"
    for stage, patterns in DECLARED.items():
        files = declared_files(patterns)
        assert (library / "votes.py" in files) == (library / "reserved/hotels.py" in files), stage
    assert library / "reserved/hotels.py" in declared_files(DECLARED["data"])


def test_every_reserved_function_has_mutants_enough_and_most_of_each_kind() -> None:
    pools = repair._usable(tuple(reserved_functions()))
    assert {name for name, pool in pools.items() if len(pool) < 4} == set()
    of = {
        kind: sum(any(m.operator in names for m, _ in pool) for pool in pools.values()) for kind, names in KINDS.items()
    }
    assert min(of.values()) >= 60, of


def test_a_reserved_repair_fails_as_it_is_and_its_gold_passes(repairs: list[Task]) -> None:
    assert Counter(task.origin for task in repairs) == dict.fromkeys(reserved_functions(), 4)
    trees = [(task, tree) for task in repairs for tree in (task.files, task.gold, task.wrong)]
    jobs = [(Mutant("any", 0, t.origin, tree[repair.FILE], 1), [*t.visible, *t.hidden]) for t, tree in trees]
    results = iter(outcomes(jobs))
    for task in repairs:
        start, gold, wrong = next(results), next(results), next(results)
        assert gold.failed == ()
        for broken in (start, wrong):
            assert any(i >= len(task.visible) for i in broken.failed), task.id


def test_the_backflow_finds_reserved_functions_where_seed_data_of_ones_own_has_them(repairs: list[Task]) -> None:
    names = ["door_opens", "wind_force"]
    pool = [task.model_copy(update={"split": Split.TRAIN}) for task in repairs if task.origin in names]
    item = Material(
        kind="tasks",
        bucket="b1",
        route=Route.DATA,
        family="repair.condition",
        operators=["compare", "boundary"],
        amount=4,
        approved=True,
    )
    made = route_tasks([item], pool, pool, 0)
    assert {task.origin for task in made} == set(names)
    assert not {task.id for task in made} & {task.id for task in pool}
    assert len(fresh_repair_tasks(0, names, ["compare"], [], 2)) == 2


def test_reserved_questions_have_their_answers_and_leave_the_others_as_they_are() -> None:
    names = reserved_origins()
    assert not set(names) & set(origins())
    assert Counter(name.partition(":")[0] for name in names) == {
        **dict.fromkeys(lookup.WORDS, len(lookup.RESERVED_THINGS)),
        **dict.fromkeys(lookup.QUESTIONS, len(lookup.RESERVED_TABLES)),
    }
    made = lookup_tasks(0, lambda origin: Split.DEV, 2, names)
    assert Counter(task.origin for task in made) == dict.fromkeys(names, 2)
    for task in made:
        value = eval(expression_of(task), {"__builtins__": {}, "max": max})
        assert str(int(value)) == task.answer == lookup.answer_of(task)
        assert task.wrong[lookup.FILE].strip() != task.answer
    assert {task.origin for task in lookup_tasks(0, lambda origin: Split.DEV, 1)} == set(origins())


def test_reserved_plain_questions_are_new() -> None:
    old, new = instruction_tasks(), reserved_questions()
    assert (len(old), len(new)) == (110, 40)
    assert not {task.id for task in old} & {task.id for task in new}
    assert {task.split for task in new} == {Split.RETENTION}
    asked = [task.statement for task in [*old, *new]]
    assert len(set(asked)) == len(asked)
    for task in new:
        assert task.answer is not None
        assert task.answer.lower() not in task.wrong["answer.txt"].lower()


def test_reserved_functions_are_no_copies_of_the_others() -> None:
    """Not in their code: names are kept, so a copy under another name is seen, one with all names changed is not."""
    bodies = {name: function.source.partition("\n")[2] for name, function in every_function().items()}
    for name in reserved_functions():
        match = SequenceMatcher(None, b=bodies[name], autojunk=False)
        for other in functions():
            match.set_seq1(bodies[other])
            if match.real_quick_ratio() > 0.8 and match.quick_ratio() > 0.8:
                assert match.ratio() < 0.8, (name, other)

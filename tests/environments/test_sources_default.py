"""The seed data of the embedded default: proven, split by origin, and the same bytes at each build."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from environments.sources import default, lookup
from environments.sources.library import every_function, functions, sealed_functions
from environments.sources.lookup import expression_of
from environments.sources.mutation import OPERATORS, Mutant, outcomes
from environments.sources.repair import KINDS, fresh_repair_tasks, operators_of, repair_tasks
from environments.sources.splits import FRACTIONS, SEALED_FRACTIONS, split_of
from schemas.base import canonical
from schemas.errors import InputError
from schemas.task import Split, Task

HUMAN_EVAL = set(
    re.findall(
        r"\w+",
        """
        has_close_elements separate_paren_groups truncate_number below_zero mean_absolute_deviation intersperse
        rolling_max parse_nested_parens filter_by_substring sum_product make_palindrome string_xor longest
        greatest_common_divisor sum_to_n all_prefixes string_sequence count_distinct_characters parse_music
        how_many_times sort_numbers find_closest_elements rescale_to_unit filter_integers strlen largest_divisor
        factorize remove_duplicates flip_case concatenate get_positive filter_by_prefix is_prime triangle_area
        sort_third unique fizz_buzz sort_even decode_cyclic prime_fib car_race_collision triples_sum_to_zero incr_list
        pairs_sum_to_zero change_base fib fib4 median is_palindrome modp remove_vowels below_threshold add same_chars
        correct_bracketing monotonic common largest_prime_factor derivative fibfib vowels_count circular_shift digitSum
        fruit_distribution pluck search strange_sort_list will_it_fly smallest_change total_match is_multiply_prime
        is_simple_power iscube is_cube hex_key decimal_to_binary is_happy numerical_letter_grade prime_length
        starts_one_ends solve anti_shuffle get_row sort_array encrypt next_smallest is_bored any_int encode skjkasdkd
        check_dict_case count_up_to multiply count_upper closest_integer make_a_pile words_string choose_num rounded_avg
        unique_digits by_length even_odd_palindrome count_nums move_one_ball exchange histogram reverse_delete odd_count
        max_fill select_words get_closest_vowel match_parens maximum add_elements get_odd_collatz valid_date split_words
        is_sorted intersection prod_signs tri digits is_nested sum_squares can_arrange compare_one special_factorial
        fix_spaces file_name_check words_in_sentence simplify bf order_by_points x_or_y double_the_difference compare
        cycpattern_check even_odd_count int_to_mini_roman find_max eat right_angle_triangle do_algebra string_to_md5
        generate_integers
        """,
    )
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("datasets")
    default.build(path)
    return path


@pytest.fixture(scope="module")
def tasks(folder: Path) -> list[Task]:
    return default.load(folder)


def test_two_builds_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """The second in a process of its own, with another hash seed."""
    argv = [sys.executable, "-m", "environments.sources.default", str(tmp_path)]
    subprocess.run(argv, check=True, cwd=Path(__file__).parents[2], env={"PYTHONHASHSEED": "7"})
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["instruction.jsonl", "lookup.jsonl", "repair.jsonl"]
    assert [(tmp_path / n).read_bytes() for n in names] == [(folder / n).read_bytes() for n in names]


def test_a_file_is_canonical_lines_sorted_by_id(folder: Path) -> None:
    tasks = [Task.model_validate_json(line) for line in (folder / "lookup.jsonl").read_bytes().splitlines()]
    assert tasks == sorted(tasks, key=lambda task: task.id)
    assert (folder / "lookup.jsonl").read_bytes() == b"".join(
        canonical(t.model_dump(mode="json")) + b"\n" for t in tasks
    )


def test_another_seed_gives_other_tasks() -> None:
    splits = split_of(1, functions())
    one = repair_tasks(1, splits, 2, names=["clamp", "chunk"])
    two = repair_tasks(2, splits, 2, names=["clamp", "chunk"])
    assert [t.digest() for t in one] != [t.digest() for t in two]


def test_the_pool_is_large_enough_and_ids_are_unique(tasks: list[Task]) -> None:
    sizes = Counter(task.skill for task in tasks)
    assert sizes["repair"] >= 700
    assert sizes["lookup"] >= 200
    assert sizes["instruction"] >= 60
    assert len({task.id for task in tasks}) == len(tasks)
    assert len({task.statement + str(task.files) for task in tasks}) == len(tasks)


def test_no_origin_is_in_two_splits(tasks: list[Task]) -> None:
    where: dict[tuple[str, str], set[Split]] = {}
    for task in tasks:
        where.setdefault((task.skill, task.origin), set()).add(task.split)
    assert {key: found for key, found in where.items() if len(found) > 1} == {}


def test_splits_have_their_exact_share_and_every_family_but_intact_is_in_each_of_the_first_three(
    tasks: list[Task],
) -> None:
    split = split_of(0, functions(), sealed_functions())
    counts = Counter(map(split, functions()))
    opened = len(functions()) - len(sealed_functions())
    for fractions, size in ((FRACTIONS, opened), (SEALED_FRACTIONS, len(sealed_functions()))):
        for name, fraction in fractions.items():
            assert abs(counts[name] - fraction * size) < 1
    families = {task.family for task in tasks if task.skill != "instruction"} - {"repair.intact"}
    for name in (Split.TRAIN, Split.DEV, Split.HELD_OUT):
        assert families == {t.family for t in tasks if t.split is name and t.skill != "instruction"}
    plain = Counter(task.split for task in tasks if task.skill == "instruction")
    assert plain == {Split.TRAIN: 28, Split.DEV: 22, Split.RETENTION: 60}


@pytest.mark.parametrize("seed", range(4))
def test_what_measures_is_sealed_whatever_the_seed(seed: int) -> None:
    """No seed lets a function on which settings were chosen measure, or one that measures teach."""
    sealed = {"repair": sealed_functions(), "lookup": lookup.sealed_origins()}
    for skill, names in (("repair", functions()), ("lookup", lookup.origins())):
        of = split_of(seed, names, sealed[skill])
        measuring = {name for name in names if of(name) in (Split.HELD_OUT, Split.BOUNDARY)}
        assert measuring == sealed[skill]


def test_every_operator_belongs_to_one_family(tasks: list[Task]) -> None:
    assert sorted(operator for operators in KINDS.values() for operator in operators) == sorted(OPERATORS)
    for task in tasks:
        if task.skill == "repair" and task.made_by != "intact":
            assert task.made_by.removeprefix("mutate:") in operators_of(task.family)
    assert operators_of("lookup.table") == operators_of("repair.intact") == ()


def test_a_repair_task_fails_as_it_is_and_its_gold_passes(tasks: list[Task]) -> None:
    repairs = [task for task in tasks if task.skill == "repair"]
    rows = [(task, source) for task in repairs for source in (task.files, task.gold, task.wrong)]
    jobs = [(Mutant("any", 0, t.origin, source["solution.py"], 1), [*t.visible, *t.hidden]) for t, source in rows]
    results = iter(outcomes(jobs))
    seen_in_visible = 0
    for task in repairs:
        start, gold, wrong = next(results), next(results), next(results)
        shown = len(task.visible)
        assert shown == 3
        assert len(task.hidden) >= 5
        assert gold.failed == ()
        assert any(i >= shown for i in wrong.failed), task.id
        assert task.wrong != task.files
        if task.made_by == "intact":
            assert start.failed == ()
            assert task.split is Split.BOUNDARY
            continue
        assert any(i >= shown for i in start.failed), task.id
        seen_in_visible += any(i < shown for i in start.failed)
    assert seen_in_visible / len(repairs) > 0.95


def test_a_boundary_statement_names_an_edge_that_a_visible_case_shows(tasks: list[Task]) -> None:
    boundary = [task for task in tasks if task.skill == "repair" and task.split is Split.BOUNDARY]
    named = [task for task in boundary if "Mind the edge: " in task.statement]
    assert named == boundary
    assert {task.family for task in boundary} > {"repair.intact", "repair.condition"}


def test_fresh_tasks_repeat_no_task_that_exists(tasks: list[Task]) -> None:
    used = {task.id for task in tasks}
    sources = {task.files["solution.py"] for task in tasks if task.skill == "repair"}
    names = sorted({t.origin for t in tasks if t.skill == "repair" and t.split is Split.TRAIN})
    fresh = fresh_repair_tasks(5, names, ["compare", "boundary"], used, 30, made_by="backflow:b1")
    assert len(fresh) == 30
    assert not {task.files["solution.py"] for task in fresh} & sources
    assert {task.family for task in fresh} == {"repair.condition"}
    assert {task.made_by for task in fresh} == {"backflow:b1"}
    assert len({task.origin for task in fresh}) > 15
    again = fresh_repair_tasks(5, names, ["compare", "boundary"], used | {t.id for t in fresh}, 30)
    assert not {t.id for t in again} & {t.id for t in fresh}


def test_fresh_tasks_of_an_unknown_function_are_refused() -> None:
    with pytest.raises(InputError, match="no_such"):
        fresh_repair_tasks(0, ["no_such"], ["compare"], [], 1)


def test_the_solver_of_a_lookup_task_gives_its_answer(tasks: list[Task]) -> None:
    for task in (task for task in tasks if task.skill == "lookup"):
        value = eval(expression_of(task), {"__builtins__": {}, "max": max})
        assert str(int(value)) == task.answer == task.gold["answer.txt"].strip()
        assert value == int(value)
        assert task.wrong["answer.txt"].strip() != task.answer


def test_lookup_tasks_on_an_edge_have_an_edge() -> None:
    made = lookup.lookup_tasks(0, lambda origin: Split.BOUNDARY, 2)
    zero = {task.origin.partition(":")[0] for task in made if task.answer == "0"}
    assert zero >= {"calc.difference", "calc.less", "calc.product", "lookup.sum", "lookup.count", "lookup.difference"}


def test_splits_refuse_what_they_do_not_know() -> None:
    with pytest.raises(InputError, match="nobody"):
        split_of(0, ["a", "b"])("nobody")


def test_load_names_the_line_of_a_bad_task(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "instruction.jsonl").read_text().splitlines()
    for bad, message in (
        ("{", r"x\.jsonl:2: not JSON"),
        ("{}", r"x\.jsonl:2: id"),
        (lines[0], r"x\.jsonl:2: .* twice"),
    ):
        (tmp_path / "x.jsonl").write_text(f"{lines[0]}\n{bad}\n")
        with pytest.raises(InputError, match=message):
            default.load(tmp_path)


def test_the_library_is_our_own_small_and_pure() -> None:
    assert len(functions()) >= 120
    assert not set(every_function()) & HUMAN_EVAL
    for function in every_function().values():
        body = function.source.splitlines()[1:]
        assert 2 <= len(body) <= 9, function.name
        assert len(function.arguments) >= 8
        kinds = {type(node) for node in ast.walk(ast.parse(function.source))}
        # an f-string is printed differently by later versions of Python, and the data must not be
        assert not kinds & {ast.Import, ast.ImportFrom, ast.Global, ast.JoinedStr}
        statement = function.must
        assert statement.startswith("return ")
        assert "\n" not in statement

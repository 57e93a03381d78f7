"""Mutation: one place is broken, a case notices, and what never ends is dropped."""

from __future__ import annotations

import ast
from difflib import SequenceMatcher

import pytest

from environments.sources.library import functions
from environments.sources.mutation import OPERATORS, Mutant, killed_by, mutants, outcomes
from environments.sources.repair import cases_of
from schemas.task import Case

CLAMP = functions()["clamp"]


def test_a_mutant_says_operator_line_and_source() -> None:
    first = next(m for m in mutants(CLAMP.source, "clamp") if m.operator == "compare")
    assert (first.line, first.number) == (2, 0)
    assert "if x <= low:" in first.source or "if x > low:" in first.source


def test_every_operator_is_used_and_no_two_mutants_are_equal() -> None:
    made = [m for f in functions().values() for m in mutants(f.source, f.name)]
    assert {m.operator for m in made} == set(OPERATORS)
    assert len({m.source for m in made}) == len(made)
    assert len({(m.entry, m.operator, m.number) for m in made}) == len(made)


def test_the_order_is_the_same_every_time() -> None:
    assert mutants(CLAMP.source, "clamp") == mutants(CLAMP.source, "clamp")


@pytest.mark.parametrize("name", sorted(functions())[::6])
def test_a_mutant_differs_from_the_original_in_one_place(name: str) -> None:
    original = functions()[name].source.splitlines()
    for mutant in mutants("\n".join(original) + "\n", name):
        lines = mutant.source.splitlines()
        assert lines != original
        ast.parse(mutant.source)
        changed = [
            op for op in SequenceMatcher(None, original, lines, autojunk=False).get_opcodes() if op[0] != "equal"
        ]
        # Exchanged branches are two changed lines with the `else` between them; all else is one stretch of lines.
        assert len(changed) <= (2 if mutant.operator == "swap" else 1)
        assert max(op[2] - op[1] for op in changed) <= 4


def test_killed_by_names_the_cases_that_fail() -> None:
    mutant = Mutant("compare", 0, "top", "def top(a, b):\n    return a if a < b else b\n", 2)
    cases = [Case(args=[1, 2], expected=2), Case(args=[3, 3], expected=3), Case(args=[9, 4], expected=9)]
    assert killed_by(mutant, cases) == [0, 2]


@pytest.mark.parametrize(
    ("body", "case", "failed"),
    [
        ("return 1.0", Case(args=[], expected=1), [0]),
        ("return True", Case(args=[], expected=1), [0]),
        ("return (1, 2)", Case(args=[], expected=[1, 2]), [0]),
        ("return [1, {'a': None}]", Case(args=[], expected=[1, {"a": None}]), []),
        ("raise ValueError", Case(args=[], raises="ValueError"), []),
        ("raise KeyError", Case(args=[], raises="ValueError"), [0]),
        ("return None", Case(args=[], raises="ValueError"), [0]),
    ],
)
def test_values_are_compared_with_their_types(body: str, case: Case, failed: list[int]) -> None:
    assert killed_by(Mutant("return", 0, "f", f"def f():\n    {body}\n", 2), [case]) == failed


def test_a_case_does_not_see_what_an_earlier_one_did_to_its_arguments() -> None:
    source = "def f(values):\n    values.append(1)\n    return values\n"
    case = Case(args=[[]], expected=[1])
    assert killed_by(Mutant("call", 0, "f", source, 2), [case, case]) == []


def test_an_endless_mutant_is_dropped_and_the_others_still_run() -> None:
    bodies = ["while True:\n        pass", "return 2"]
    cases = [Case(args=[], expected=1)]
    jobs = [(Mutant("logic", 0, "f", f"def f():\n    {body}\n", 2), cases) for body in bodies]
    endless, wrong = outcomes(jobs)
    assert endless.hung
    assert not endless.usable
    assert wrong.usable
    assert wrong.failed == (0,)


def test_a_mutant_that_ends_the_child_counts_as_hung_and_the_next_one_runs() -> None:
    case = Case(args=[], expected=1)
    ends = Mutant("logic", 0, "f", "def f():\n    import os\n    os._exit(1)\n", 2)
    good = Mutant("logic", 1, "f", "def f():\n    return 2\n", 2)
    first, second = outcomes([(ends, [case]), (good, [case])])
    assert first.hung
    assert second.failed == (0,)


def test_a_mutant_that_only_mixes_up_types_is_crude() -> None:
    source = "def f(text):\n    return text - 'a'\n"
    outcome = outcomes([(Mutant("arith", 0, "f", source, 2), [Case(args=["b"], expected="ba")])])[0]
    assert outcome.crude
    assert not outcome.usable


def test_more_than_one_function_is_refused() -> None:
    with pytest.raises(ValueError, match="one function"):
        mutants("x = 1\n", "f")


def test_every_library_function_passes_its_own_cases_in_the_child() -> None:
    jobs = [(Mutant("none", 0, f.name, f.source, 1), cases_of(f)) for f in functions().values()]
    assert [
        job[0].entry for job, outcome in zip(jobs, outcomes(jobs), strict=True) if outcome.failed or outcome.hung
    ] == []


def test_nearly_every_mutant_is_noticed_by_a_case() -> None:
    """What survives is mostly equivalent code (a bound that a slice does not care about): at most 6%."""
    jobs = [(m, cases_of(f)) for f in functions().values() for m in mutants(f.source, f.name)]
    survivors = [o for o in outcomes(jobs) if not o.failed and not o.hung]
    assert len(survivors) / len(jobs) < 0.06

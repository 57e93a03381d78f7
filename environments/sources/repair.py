"""Repair tasks: a library function with one fault, its statement, visible and hidden cases.

Every task is proven when it is made: at least one hidden case fails on the start tree and at least one on `wrong`. The
expected values are what the real function returns. Tasks of the split `boundary` name an edge in their statement, and
some of them are intact: nothing is wrong, and the tree must be handed in as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache

from environments.sources.difficulty import statements
from environments.sources.library import Function, every_function, functions
from environments.sources.mutation import OPERATORS, Mutant, Outcome, mutants, outcomes
from environments.sources.splits import order
from schemas.base import canonical
from schemas.errors import InputError
from schemas.task import Case, Split, Task

FILE = "solution.py"
VISIBLE = 3
SKILL = "repair"
# A family is a kind of mistake: few enough that a development set has several functions of each, so that a change of one
# can be seen. `made_by` names the operator itself.
KINDS = {
    "value": ("arith", "index", "literal"),
    "condition": ("boundary", "compare", "logic"),
    "step": ("call", "missing", "return", "swap"),
}
_KIND = {operator: kind for kind, operators in KINDS.items() for operator in operators}


def repair_tasks(
    seed: int,
    split_of: Callable[[str], Split],
    per_function: int,
    intact: bool = True,
    names: Sequence[str] | None = None,
) -> list[Task]:
    """Up to `per_function` mutants of each library function, of as many operators as it has; sorted by id.

    `names` keeps it to some functions, reserved ones too: a few are much quicker than all. With `intact`, each function of
    the split `boundary` also gives one task whose start tree is already correct.
    """
    tasks = []
    for name, pool in _usable(tuple(functions() if names is None else names)).items():
        split = split_of(name)
        for mutant, outcome in _chosen(pool, seed, per_function):
            tasks.append(_task(every_function()[name], mutant, outcome, pool, split, seed))
        if intact and split is Split.BOUNDARY:
            tasks.append(_intact(every_function()[name], pool, seed))
    return sorted(tasks, key=lambda task: task.id)


def fresh_repair_tasks(
    seed: int,
    names: Sequence[str],
    operators: Collection[str],
    exclude_ids: Collection[str],
    n: int,
    made_by: str | None = None,
    split: Split = Split.TRAIN,
    easy_first: bool = False,
) -> list[Task]:
    """At most `n` tasks from mutants of these functions and operators that no excluded id names, spread over functions.
    With `easy_first` the functions of fewest statements have their turn before others.

    Fewer come back when the functions have no more. An id names one mutant for ever, so excluding ids excludes sources.
    InputError for a name that the library does not have, or an operator that does not exist.
    """
    unknown = sorted(set(names) - every_function().keys()) + sorted(set(operators) - set(OPERATORS))
    if unknown:
        raise InputError(
            f"fresh tasks: no library function or operator is called {unknown[0]!r}; see environments/sources"
        )
    queues = []
    for name, pool in _usable(tuple(sorted(set(names)))).items():
        left = [pair for pair in pool if pair[0].operator in operators and _id(pair[0]) not in exclude_ids]
        queues.append([(name, pool, pair) for pair in _chosen(left, seed, len(left))])
    size = {name: statements(every_function()[name].source) if easy_first else 0 for name in names}
    queues = sorted(filter(None, queues), key=lambda queue: (size[queue[0][0]], order(seed, queue[0][0])))
    picked = [queue[i] for i in range(max(map(len, queues), default=0)) for queue in queues if i < len(queue)][:n]
    tasks = [_task(every_function()[name], *pair, pool, split, seed, made_by) for name, pool, pair in picked]
    return sorted(tasks, key=lambda task: task.id)


def operators_of(family: str) -> tuple[str, ...]:
    """The mutation operators of a family of this skill; () for any other."""
    skill, _, kind = family.partition(".")
    return KINDS.get(kind, ()) if skill == SKILL else ()


def cases_of(function: Function) -> list[Case]:
    """The table of a function: its arguments, with what the function itself makes of them."""
    cases = []
    for arguments in function.arguments:
        try:
            value = function.call(*copy.deepcopy(arguments))
        except (ValueError, ArithmeticError, LookupError, TypeError) as error:
            cases.append(Case(args=arguments, raises=type(error).__name__))
        else:
            cases.append(Case(args=arguments, expected=value))  # type: ignore[arg-type]  # pydantic checks that it is JSON
    return cases


Pool = list[tuple[Mutant, Outcome]]


@cache
def _usable(names: tuple[str, ...]) -> dict[str, Pool]:
    """The mutants of each function that cases can kill, that end, and that do more than mix up types."""
    jobs = []
    for name in names:
        function = every_function()[name]
        cases = cases_of(function)
        jobs += [(mutant, cases) for mutant in mutants(function.source, name)]
    pools: dict[str, Pool] = {name: [] for name in names}
    for (mutant, _), outcome in zip(jobs, outcomes(jobs), strict=True):
        if outcome.usable:
            pools[mutant.entry].append((mutant, outcome))
    return pools


def _chosen(pool: Iterable[tuple[Mutant, Outcome]], seed: int, count: int) -> Pool:
    """A shuffle in which each operator has its turn before one has its second; what only one case kills comes last."""
    shuffled = sorted(pool, key=lambda pair: (len(pair[1].failed) < 2, order(seed, _id(pair[0]))))
    turns: dict[str, int] = {}
    ranked = []
    for mutant, outcome in shuffled:
        turn = turns[mutant.operator] = turns.get(mutant.operator, 0) + 1
        ranked.append((len(outcome.failed) < 2, turn, order(seed, _id(mutant)), mutant, outcome))
    ranked.sort(key=lambda row: row[:3])
    return [row[3:] for row in ranked[:count]]


def _id(mutant: Mutant) -> str:
    return f"{SKILL}/{mutant.entry}/{mutant.operator}_{mutant.number}"


def _task(
    function: Function,
    mutant: Mutant,
    outcome: Outcome,
    pool: Pool,
    split: Split,
    seed: int,
    made_by: str | None = None,
) -> Task:
    cases = cases_of(function)
    edge = _edge(cases) if split is Split.BOUNDARY else None
    visible = _visible(cases, outcome.failed, edge, order(seed, _id(mutant)))
    hidden = [i for i in range(len(cases)) if i not in visible]
    return Task(
        id=_id(mutant),
        family=f"{SKILL}.{_KIND[mutant.operator]}",
        statement=_statement(function, None if edge is None else cases[edge]),
        files={FILE: mutant.source},
        wrong={FILE: _wrong(pool, mutant, hidden, seed)},
        made_by=made_by or f"mutate:{mutant.operator}",
        **_common(function, split, cases, visible, hidden),
    )


def _intact(function: Function, pool: Pool, seed: int) -> Task:
    cases = cases_of(function)
    edge = _edge(cases)
    visible = _visible(cases, (), edge, order(seed, function.name))
    hidden = [i for i in range(len(cases)) if i not in visible]
    return Task(
        id=f"{SKILL}/{function.name}/intact_0",
        family=f"{SKILL}.intact",
        statement=_statement(function, cases[edge]),
        files={FILE: function.source},
        wrong={FILE: _wrong(pool, None, hidden, seed)},
        made_by="intact",
        **_common(function, Split.BOUNDARY, cases, visible, hidden),
    )


def _common(
    function: Function, split: Split, cases: list[Case], visible: list[int], hidden: list[int]
) -> dict[str, object]:
    return {
        "kind": "function",
        "skill": SKILL,
        "origin": function.name,
        "split": split,
        "editable": [FILE],
        "entry": function.name,
        "visible": [cases[i] for i in visible],
        "hidden": [cases[i] for i in hidden],
        "gold": {FILE: function.source},
    }


def _statement(function: Function, edge: Case | None) -> str:
    text = f"{function.name} must {function.must}. Repair it if it is wrong."
    if edge is None:
        return text
    arguments = ", ".join(map(repr, edge.args))
    result = f"raises {edge.raises}" if edge.raises else f"is {edge.expected!r}"
    return f"{text} Mind the edge: {function.name}({arguments}) {result}."


def _edge(cases: list[Case]) -> int:
    """The case with the shortest arguments: the empty list, the zero."""
    return min(range(len(cases)), key=lambda i: (len(canonical(cases[i].args)), i))


def _visible(cases: list[Case], failed: Sequence[int], edge: int | None, salt: str) -> list[int]:
    """Three cases: the edge if any, one that fails unless none would stay hidden, and others, rather passing ones."""
    shuffled = sorted(range(len(cases)), key=lambda i: order(0, f"{salt}:{i}"))
    shown = [] if edge is None or list(failed) == [edge] else [edge]
    failing = [i for i in shuffled if i in failed and i not in shown]
    spare = len(failed) - 1 - sum(i in failed for i in shown)
    if spare > 0 and not set(shown) & set(failed):
        shown.append(failing.pop(0))
        spare -= 1
    others = [i for i in shuffled if i not in failed and i not in shown] + failing[: max(spare, 0)]
    return sorted([*shown, *others[: VISIBLE - len(shown)]])


def _wrong(pool: Pool, mutant: Mutant | None, hidden: list[int], seed: int) -> str:
    """Another mutant that a hidden case kills."""
    others = [m for m, outcome in pool if m != mutant and set(outcome.failed) & set(hidden)]
    if not others:
        raise InputError(f"{pool[0][0].entry}: no second mutant is killed by a hidden case; add cases to its table")
    return min(others, key=lambda m: order(seed + 1, _id(m))).source

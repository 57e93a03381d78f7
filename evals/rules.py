"""Attribution rules: evidence in, one named rule out. The first rule that matches owns the failure.

A field of an experiment that was not run is unknown: no rule matches on it, and a rule that asks for it may still match.
`open_questions` names the experiments that could give a failure to an earlier rule than the one that owns it now: these
are what the ladder runs, and what it says would decide.

Rules are data, so a person can change a route without touching code, and a bucket can say which rule put it where. A
file is refused as a whole, with every problem at its line: a typed field name that does not exist must not become a
rule that never fires.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.attribution import FILLED_BY, FILLS, ExperimentName
from schemas.base import Json, digest_of
from schemas.bucket import Evidence, Route, Rule
from schemas.errors import InputError, SpecError

DEFAULT = Path(__file__).with_name("rules.yaml")
ORDER = ("gt", "ge", "lt", "le")
OPERATORS = (*ORDER, "in", "contains")
LISTS = frozenset({"violations", "touched", "failed_tests"})
NUMBERS = frozenset(
    {
        "parse_errors",
        "turns",
        "tool_errors",
        "unknown_tools",
        "wrong_arguments",
        "forbidden",
        "failed_checks",
        "passed_checks",
        "task_passes",
        "task_attempts",
        "pass_at_k",
        "pass_at_k_low",
        "pass_at_k_high",
        "family_parse_rate",
        "family_pass",
        "trained_origins",
        "first_bad_turn",
        "group_spread",
        "similarity",
        "noisy",
        "noise_hits",
        "hinted_passes",
        "prefix_passes",
        "harness_passes",
        "quiet_passes",
        "setting_passes",
        "base_passes",
        "sft_passes",
    }
)
# The log has these too: an experiment only adds to them, so they are never unknown to `decide`.
LOGGED = frozenset({*FILLS["audit"], *FILLS["again"]})


def load_rules(path: Path | None = None) -> list[Rule]:
    """The rules of a YAML file (None: the default), checked. SpecError with `file:line: field: problem; remedy`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    path = path or DEFAULT
    try:
        loaded = YAML(typ="rt").load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); name a YAML file of rules") from error
    except YAMLError as error:
        mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
        raise SpecError([f"{path}:{mark.line + 1 if mark else 1}: not YAML; correct the syntax"]) from error
    if not isinstance(loaded, list):
        raise SpecError([f"{path}:1: rules: {type(loaded).__name__}, not a list; write one `- id:` entry a rule"])
    lines = [entry.lc.line + 1 if hasattr(entry, "lc") else 1 for entry in loaded]
    return check_rules([_plain(entry) for entry in loaded], str(path), lines)


def check_rules(rules: Sequence[Rule | Json], where: str = "routes", lines: Sequence[int] = ()) -> list[Rule]:
    """The same checks for rules from anywhere, such as the routes of a spec. SpecError with every problem.

    `where`: what to call the source; `lines`: line of each rule in it, when known.
    """
    problems: list[str] = []
    checked: list[Rule] = []
    for index, entry in enumerate(rules):
        place = f"{where}:{lines[index]}" if index < len(lines) else f"{where}[{index}]"
        try:
            rule = entry if isinstance(entry, Rule) else Rule.model_validate(entry)
        except ValidationError as error:
            problems += [
                f"{place}: {'.'.join(map(str, e['loc'])) or 'rule'}: {e['msg']}; see schemas/bucket.py, Rule"
                for e in error.errors()
            ]
            continue
        problems += [f"{place}: {rule.id}.{problem}" for problem in _problems(rule, checked)]
        checked.append(rule)
    if not problems and (not checked or checked[-1].when):
        problems.append(
            f"{where}: the last rule has a condition; end with `when: {{}}`, so that every failure has an owner"
        )
    if problems:
        raise SpecError(problems)
    return checked


def complete(rules: Sequence[Rule] | None) -> list[Rule]:
    """A spec's own rules behind those that are not a spec's to change: what has no score is nobody's failure. None: the
    default file. SpecError where both together would give one cause two routes."""
    if rules is None:
        return list(_shipped())
    fixed = {rule.id: rule for rule in _fixed()}
    problems = [
        f"routes[{index}]: {rule.id}.route: {rule.route.value}, but cause {rule.cause} goes to {one.route.value} by the "
        f"built-in rule {one.id}; one cause has one route: name another cause"
        for index, rule in enumerate(rules)
        for one in fixed.values()
        if rule.id not in fixed and one.cause == rule.cause and one.route is not rule.route
    ]
    if problems:
        raise SpecError(problems)
    return joined(rules)


def joined(rules: Sequence[Rule]) -> list[Rule]:
    """`complete` without the check, for what is recorded already: a round that is to be abandoned must still be pinned."""
    fixed = _fixed()
    return [*fixed, *(rule for rule in rules if rule.id not in {one.id for one in fixed})]


def _fixed() -> list[Rule]:
    return [rule for rule in _shipped() if "status" in rule.when]


@cache
def _shipped() -> tuple[Rule, ...]:
    """Read once: a spec with routes is checked against them at every start of a command."""
    return tuple(load_rules())


def rules_digest(rules: Sequence[Rule]) -> str:
    """Identity of an ordered list of rules."""
    return digest_of([rule.model_dump(mode="json") for rule in rules])


def decide(evidence: Evidence, rules: Sequence[Rule]) -> Rule:
    """The first rule that matches. InputError when none does, which `check_rules` rules out."""
    facts = _Facts.of(evidence)
    for rule in rules:
        if facts.holds(rule)[0] is True:
            return rule
    raise InputError(f"trajectory {evidence.trajectory}: none of {len(rules)} rules matches; end with `when: {{}}`")


def matches(evidence: Evidence, rule: Rule) -> bool:
    """Whether it holds for sure: a field that is unknown matches nothing."""
    return _Facts.of(evidence).holds(rule)[0] is True


def holding(evidence: Evidence, rules: Sequence[Rule]) -> list[Rule]:
    """Every rule with a condition that holds, in order: more than one cause can hold, the first one owns it."""
    facts = _Facts.of(evidence)
    return [rule for rule in rules if rule.when and facts.holds(rule)[0] is True]


def open_questions(evidence: Evidence, rules: Sequence[Rule], also: Collection[str] = ()) -> set[ExperimentName]:
    """Experiments that fill unknown fields of rules which stand before the one that matches and could match yet.

    `also`: fields of the log to be taken as unknown, because there is too little of it.
    """
    facts, wanted = _Facts.of(evidence, also), set[ExperimentName]()
    for rule in rules:
        holds, unknown = facts.holds(rule)
        if holds is True:
            break
        if holds is None:
            wanted |= {FILLED_BY[name] for name in unknown}
    return wanted


def still_open(evidence: Evidence, rules: Sequence[Rule]) -> set[ExperimentName]:
    """`open_questions`, with what the log tells too little of taken as unknown: no audit, or too few attempts at the task."""
    both: tuple[ExperimentName, ...] = ("audit", "again")
    thin = [name for name in both if name not in evidence.measured]
    return open_questions(evidence, rules, [field for name in thin for field in FILLS[name]])


@dataclass(frozen=True)
class _Facts:
    """Plain values, and the names of those that are not known."""

    values: Mapping[str, Any]
    unknown: frozenset[str]

    @classmethod
    def of(cls, evidence: Evidence, also: Collection[str] = ()) -> _Facts:
        missing = {n for n, by in FILLED_BY.items() if n not in LOGGED and by not in evidence.measured}
        return cls(evidence.model_dump(mode="json"), frozenset(missing.union(also)))

    def holds(self, rule: Rule) -> tuple[bool | None, list[str]]:
        """(True | False | None when unknown fields decide, those fields)."""
        needs = {name: [name, *operands(wanted)] for name, wanted in rule.when.items()}
        unknown = [field for fields in needs.values() for field in fields if field in self.unknown]
        known = [name for name, fields in needs.items() if not self.unknown.intersection(fields)]
        if not all(_holds(self.values, name, rule.when[name]) for name in known):
            return False, []
        return (None, unknown) if unknown else (True, [])


def asks_for(rule: Rule) -> set[ExperimentName]:
    """The experiments without which it can't match."""
    fields = (field for name, wanted in rule.when.items() for field in (name, *operands(wanted)))
    return {FILLED_BY[field] for field in fields if field in FILLED_BY and field not in LOGGED}


def route_of(rules: Sequence[Rule], cause: str) -> Route:
    """The one route of a cause. InputError for a cause that no rule has."""
    for rule in rules:
        if rule.cause == cause:
            return rule.route
    raise InputError(f"cause {cause!r}: no rule has it; known: {', '.join(sorted({r.cause for r in rules}))}")


def _holds(facts: Mapping[str, Any], name: str, wanted: Json) -> bool:
    value = facts[name]
    if not isinstance(wanted, dict):
        # JSON equality: true is not 1.
        return type(value) is type(wanted) and value == wanted if isinstance(wanted, bool) else bool(value == wanted)
    return all(_compares(facts, value, operator, operand) for operator, operand in wanted.items())


def operands(wanted: Json) -> list[str]:
    """Fields that a condition compares with."""
    held = wanted if isinstance(wanted, dict) else {}
    return [operand for operator, operand in held.items() if operator in ORDER and isinstance(operand, str)]


def _compares(facts: Mapping[str, Any], value: Any, operator: str, operand: Any) -> bool:
    if value is None:
        return False
    if operator == "in":
        return value in operand
    if operator == "contains":
        return operand in value
    left = len(value) if isinstance(value, list) else value
    right = facts[operand] if isinstance(operand, str) else operand
    if right is None:
        return False
    return bool({"gt": left > right, "ge": left >= right, "lt": left < right, "le": left <= right}[operator])


def _problems(rule: Rule, before: Sequence[Rule]) -> list[str]:
    problems = []
    if any(earlier.id == rule.id for earlier in before):
        problems.append("id: used twice; a bucket names its rule by it")
    if any(not earlier.when for earlier in before):
        problems.append("when: never reached, an earlier rule matches everything; put that one last")
    other = next((r.route for r in before if r.cause == rule.cause and r.route is not rule.route), None)
    if other is not None:
        problems.append(
            f"route: {rule.route.value}, but cause {rule.cause} went to {other.value}; one cause has one route"
        )
    for name, wanted in rule.when.items():
        problems += [f"when.{name}: {problem}" for problem in _field_problems(name, wanted)]
    return problems


def _field_problems(name: str, wanted: Json) -> list[str]:
    if name not in Evidence.model_fields:
        near = get_close_matches(name, Evidence.model_fields, 3, 0.4)
        meant = f"did you mean {', '.join(near)}? " if near else ""
        return [
            f"evidence has no such field; {meant}schemas/bucket.py, Evidence lists all {len(Evidence.model_fields)}"
        ]
    if not isinstance(wanted, dict):
        return []
    if not wanted:
        return [f"an empty comparison; use one of {', '.join(OPERATORS)}"]
    return [problem for op, operand in wanted.items() if (problem := _comparison_problem(name, op, operand))]


def _comparison_problem(name: str, operator: str, operand: Json) -> str | None:
    if operator not in OPERATORS:
        return f"unknown comparison {operator!r}; use one of {', '.join(OPERATORS)}"
    if operator in ORDER:
        if name not in NUMBERS | LISTS:
            return f"{operator} needs a number or a list, and {name} is neither; give the value itself"
        number = isinstance(operand, int | float) and not isinstance(operand, bool)
        if not number and operand not in NUMBERS:
            return f"{operator} {operand!r} is neither a number nor a numeric field; give one"
    if operator == "in" and not isinstance(operand, list):
        return f"in {operand!r} is not a list; write [a, b]"
    if operator == "contains" and name not in LISTS:
        return f"contains needs a list, and {name} is none; use in, or give the value itself"
    return None


def _plain(value: Any) -> Any:
    """ruamel's containers and scalars to plain JSON values."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value

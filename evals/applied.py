"""Whether an approved proposal was carried out: approval alone changes nothing, so it is no treatment.

Where the change was computed (`edits`), the later round's spec must hold it. Where a person writes it, what the proposal is
about must be another one in the later round: the bundle, the image, the rules, the tasks that it names.
Not covered: whether what was written is what was proposed; the next measurement says what it did. A subject names three tasks of
many: a repair of the others alone is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.base import Json
from schemas.bucket import Material
from schemas.goal import GoalRecord, GoalSpec
from schemas.task import Task

_TASK = re.compile(r"[a-z0-9_]+(?:/[a-z0-9_]+)+")


@dataclass(frozen=True)
class Stand:
    """What holds in a round: its goal and its proven tasks, by id."""

    goal: GoalRecord
    tasks: Mapping[str, Task]


Part = Callable[[Stand, Material], Json]


def applied(item: Material, then: Stand, now: Stand) -> bool:
    """`then`: the round whose backflow proposed it; `now`: the round that measures what came of it."""
    if item.edits:
        return all(_holds(field, value, then.goal.spec, now.goal.spec) for field, value in item.edits.items())
    parts = _ABOUT.get(item.cause, (_bundles("verifier"), _spec("rewards"), _spec("evaluation")))
    return any(part(then, item) != part(now, item) for part in parts)


def _holds(field: str, value: Json, then: GoalSpec, now: GoalSpec) -> bool:
    """A field that was to be emptied may hold something else by now: another audit verifier in place of the one that moved."""
    was, present = (_at(spec.model_dump(mode="json"), field) for spec in (then, now))
    return bool(present == value if value is not None else present != was)


def _at(spec: Any, field: str) -> Any:
    for name in field.split("."):
        spec = spec.get(name) if isinstance(spec, dict) else None
    return spec


def _bundles(role: str) -> Part:
    """Digests of those of this role, its kinds' own included."""
    return lambda stand, _: {
        name: digest for name, digest in stand.goal.bundles.named().items() if name.partition("_")[0] == role
    }


def _spec(field: str) -> Part:
    return lambda stand, _: _at(stand.goal.spec.model_dump(mode="json"), field)


def _image(stand: Stand, _: Material) -> Json:
    return stand.goal.environment.model_dump(mode="json")


def _named(stand: Stand, item: Material) -> Json:
    """Digests of the tasks in its subject; one that was left out is missing."""
    return {name: stand.tasks[name].digest() for name in _TASK.findall(item.subject) if name in stand.tasks}


# Cause -> what its proposal is about (evals/proposals.py); any of these that differs is the change.
_ABOUT: dict[str, tuple[Part, ...]] = {
    "verifier_hole": (_bundles("verifier"),),
    "verifier_too_strict": (_bundles("verifier"),),
    "reward_conflict": (_spec("rewards"),),
    "drift": (_image,),
    "unstable": (_image, _named),
    "wrong_task": (_named,),
    "wrong_statement": (_named,),
    "contamination": (_named,),
    "tool_chain": (_bundles("harness"), _image),
    "observation_cut": (_bundles("harness"),),
    "harness_broken": (_bundles("harness"),),
    "unscored": (_bundles("verifier"), _named),
    "wrong_setting": (_spec("evaluation.temperature"),),
    "no_room": (_spec("budgets"), _spec("sampling.max_tokens"), _named),
    "wrong_suite": (_spec("evaluation.suites"), _spec("capabilities")),
}

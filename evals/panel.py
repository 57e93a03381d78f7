"""One verifier for each kind of task: a table of cases, a text and a repository are judged by different bundles.

Not covered: two training verifiers for one task; a second opinion is the audit verifier's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from evals.verify import FanOut, Item, Verifier, in_turn
from schemas.task import Kind
from schemas.verdict import Verdict


class Judge(Protocol):
    """A verifier, or several behind one question."""

    def judge_many(self, items: list[Item], fan_out: FanOut = in_turn, repeat: int = 0) -> list[Verdict]: ...


@dataclass(frozen=True)
class Panel:
    """`own`: the verifiers of kinds that have one of their own; `verifier` judges all others."""

    verifier: Verifier
    own: Mapping[Kind, Verifier] = field(default_factory=dict)

    def of(self, kind: Kind) -> Verifier:
        return self.own.get(kind, self.verifier)

    def judge_many(self, items: list[Item], fan_out: FanOut = in_turn, repeat: int = 0) -> list[Verdict]:
        """As Verifier.judge_many: verdicts in the order of the items."""
        found: dict[int, Verdict] = {}
        for verifier in dict.fromkeys(self.of(task.kind) for task, _ in items):
            places = [place for place, (task, _) in enumerate(items) if self.of(task.kind) is verifier]
            judged = verifier.judge_many([items[place] for place in places], fan_out, repeat)
            found |= dict(zip(places, judged, strict=True))
        return [found[place] for place in range(len(items))]

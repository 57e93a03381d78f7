"""The ladder of experiments that finds the owner of a failure: what can be run, what it found, what it cost.

An experiment fills fields of the evidence (`FILLS`); until it has run, those fields are unknown, which is something else
than "nothing was found". A rule that asks for an unknown field is an open question, and the cheapest experiment that
answers an open question is run next.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from schemas.base import Frozen
from schemas.bucket import Evidence, Route

ExperimentName = Literal[
    "rescore", "audit", "current", "gold", "shown", "pricing", "tokenizer", "image", "replay", "gold_path", "again",
    "hint", "prefix", "harness", "quiet", "setting", "checkpoint",
]  # fmt: skip


class Rung(StrEnum):
    """L0 scores the outcome again; L1 executes the actions again; L2 lets the policy go on; L3 swaps one pin."""

    L0 = "L0"
    L1 = "L1"
    L2 = "L2"
    L3 = "L3"


DOES: dict[Rung, str] = {
    Rung.L0: "score again", Rung.L1: "execute again", Rung.L2: "let the policy go on", Rung.L3: "swap one pin",
}  # fmt: skip
# In the order in which they are run: what needs no policy first, then what needs few attempts.
RUNGS: dict[ExperimentName, Rung] = {
    "rescore": Rung.L0, "audit": Rung.L0, "current": Rung.L0, "gold": Rung.L0, "shown": Rung.L0, "pricing": Rung.L0,
    "tokenizer": Rung.L0, "image": Rung.L1, "replay": Rung.L1, "gold_path": Rung.L1, "again": Rung.L2, "hint": Rung.L2,
    "prefix": Rung.L2, "harness": Rung.L2, "quiet": Rung.L3, "setting": Rung.L3, "checkpoint": Rung.L3,
}  # fmt: skip

FILLS: dict[ExperimentName, tuple[str, ...]] = {
    "rescore": ("rescored",),
    "audit": ("audit_differs",),
    "current": ("current_differs",),
    "gold": ("gold_passes", "gold_audited", "gold_waits", "start_fails"),
    "shown": ("shown_holds",),
    "pricing": ("rules_agree",),
    "tokenizer": ("round_trip", "template_same", "chain"),
    "image": ("image_drifted",),
    "replay": ("replayed",),
    "gold_path": ("gold_reaches",),
    "again": ("task_passes", "task_attempts", "pass_at_k", "pass_at_k_low", "pass_at_k_high"),
    "hint": ("hinted_passes", "hinted_helps"),
    "prefix": ("prefix_passes", "prefix_helps"),
    "harness": ("harness_passes", "harness_helps"),
    "quiet": ("quiet_passes", "quiet_helps"),
    "setting": ("setting_passes", "setting_helps"),
    "checkpoint": ("base_passes", "sft_passes", "lost_at", "untrained"),
}
FILLED_BY: dict[str, ExperimentName] = {field: name for name, fields in FILLS.items() for field in fields}


class AttributionSpec(Frozen):
    """How much a round spends on finding causes. Attempts decide what is found, so they are in the key."""

    sample: int = Field(
        default=24,
        ge=0,
        description="tasks of a round whose failures may cost attempts of a policy, each kind of failure in its turn, as many "
        "as the attempts can bring to the end; the others are decided by the log, re-scoring and re-execution",
    )
    k: int = Field(default=4, ge=1, description="attempts a task and experiment, where a policy samples")
    attempts: int = Field(default=192, ge=0, description="attempts of a policy, all experiments of a round together")
    cpu_s: float | None = Field(
        default=None,
        gt=0,
        description="CPU-seconds of all experiments of a round, children included; no new one is begun beyond it. "
        "None: no limit, since with one the answer depends on the machine",
    )
    repeats: int = Field(
        default=3, ge=1, description="times that an outcome is judged, and its actions are executed, again"
    )
    harnesses: list[str] = Field(
        default_factory=list, description="other harness bundles to try, as REFs; none are tried when empty"
    )


class Cost(Frozen):
    """What experiments took. `executions`: outcomes judged and actions executed; `tokens`: prompt and generated."""

    experiments: int = Field(default=0, ge=0)
    attempts: int = Field(default=0, ge=0)
    executions: int = Field(default=0, ge=0)
    tokens: int = Field(default=0, ge=0)

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in type(self).model_fields})


class Experiment(Frozen):
    """One rung's look at one failure. `said`: one line for people; the fields are in the evidence."""

    name: ExperimentName
    rung: Rung
    said: str
    attempts: int = Field(default=0, ge=0)
    executions: int = Field(default=0, ge=0)
    tokens: int = Field(default=0, ge=0)
    trajectories: list[str] = Field(default_factory=list, description="ids of the attempts that it made")
    impossible: str | None = Field(default=None, description="why it could not be run; its fields stay unknown")


class Attribution(Frozen):
    """Who owns one failure, by which rule, on what evidence. Rules that also hold are named; the order decided."""

    evidence: Evidence
    rule: str
    cause: str
    route: Route
    because: str
    also: list[str] = Field(default_factory=list, description="causes of later rules that hold as well")
    undecided: list[ExperimentName] = Field(
        default_factory=list, description="experiments not run that could give it to another owner"
    )
    experiments: list[Experiment] = Field(default_factory=list)
    first_bad_turn: int | None = None
    round: int | None = Field(
        default=None, description="whose pins it was looked at under; None: the round that keeps it"
    )
    overridden_by: str | None = Field(
        default=None, description="id of the decision of the person who routed it otherwise"
    )

    @property
    def trajectory(self) -> str:
        return self.evidence.trajectory


class KeptAttribution(Frozen):
    """An answer of `postloop attribute`, with the time when it was first given."""

    when: str = Field(description="ISO 8601, UTC")
    attribution: Attribution


class Moved(Frozen):
    """Failures of one cause in one family: as the rounds recorded it, and by the rules of now."""

    cause: str
    family: str
    recorded: int = Field(ge=0)
    now: int = Field(ge=0)


class TriageResult(Frozen):
    """Recorded failures of several rounds under one set of rules. `rules`: rule id -> failures that it decides."""

    rounds: list[int]
    failures: int = Field(ge=0)
    rules: dict[str, int]
    buckets: list[Moved]

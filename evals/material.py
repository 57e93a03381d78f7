"""What a bucket hands to the next round: kinds and amounts, decided by its cause, its route and the spec alone.

data -> new tasks, sft -> demonstrations, rl -> sampling weights; where the model stops too early or never, preference
pairs at that decision as well, and what it can do but seldom does is demonstrated too, by its own successes first. What a
person must decide is a proposal: goal (verifiers, reward rules), evaluation (suites, settings), and of data whatever repairs
an environment, a task or a statement, since new tasks would be as broken.
Infrastructure and undetermined buckets get nothing.

Not covered: where the rollouts come from and what a proposal says; stages/material.py and evals/proposals.py find that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from environments.sources.repair import operators_of
from schemas.backflow import BackflowSpec
from schemas.base import Json
from schemas.bucket import Bucket, Material, Route
from schemas.task import Task

Kind = Literal["tasks", "demonstrations", "pairs", "weights", "proposal"]
Used = Mapping[tuple[str, str], Sequence[str]]  # (bucket id, kind) -> ids of training-pool rollouts

# Causes at the decision to stop. The model stops where it should go on, or goes on where it should stop.
TOO_EARLY = frozenset({"stops_early", "returns_unchanged"})
TOO_LATE = frozenset({"never_stops"})
BOUNDARY = TOO_EARLY | TOO_LATE
# Causes of what the policy can do and seldom does: shown its own successes (rejection sampling), besides more RL.
SELDOM = frozenset({"rare_success"})
# Causes that pass with the place named: attempts that were told it are shown as if they had not been.
WITH_A_HINT = frozenset({"needs_hint"})
# Causes of data for which the easier tasks of the family come first.
EASIER = frozenset({"knowledge_missing"})
# Causes of data that more data would not repair.
ENVIRONMENT = frozenset({"drift", "unstable", "tool_chain", "observation_cut", "harness_broken"})
DRIFTED = frozenset({"drift"})  # its proposal holds the pin against what is found
BROKEN_TASK = frozenset({"wrong_task", "wrong_statement"})
CONTAMINATION = frozenset({"contamination"})
# Causes that are demonstrated under the noise that backflow's attempts had.
UNDER_NOISE = frozenset({"noise_sensitivity"})
REPAIRED = ENVIRONMENT | BROKEN_TASK | CONTAMINATION
_KINDS: dict[Route, Kind] = {Route.DATA: "tasks", Route.SFT: "demonstrations", Route.RL: "weights"}


@dataclass(frozen=True)
class Proposal:
    """What a person would change, the change itself, and what to do once it is approved.

    `edits`: dotted fields of goal.yaml and their new values, where the change can be computed; `postloop apply` writes them.
    """

    subject: str
    difference: str
    then: str = ""
    edits: Mapping[str, Json] = field(default_factory=dict)


def material(
    buckets: Sequence[Bucket],
    spec: BackflowSpec,
    tasks: Iterable[Task] = (),
    used: Used | None = None,
    proposals: Mapping[str, Proposal] | None = None,
) -> list[Material]:
    """What the next round gets, the largest bucket first; a bucket may get several kinds.

    Only the `spec.max_buckets` largest that are taught get material; every bucket that a person must decide on becomes a
    proposal. `tasks`: training tasks, to say where a family has none. `used`: training-pool rollouts of that cause; never
    pass dev or held-out ones. `proposals`: bucket id -> what its proposal says.
    """
    counts = Counter(task.family for task in tasks)
    ordered = sorted((b for b in buckets if b.size), key=lambda b: (-b.size, b.id))
    taught = [b for b in ordered if b.route in _KINDS and not is_proposed(b)][: spec.max_buckets]
    handed = [_taught(b, kind, spec, counts[b.family], used or {}) for b in taught for kind in kinds_of(b)]
    return handed + [_proposed(b, (proposals or {}).get(b.id)) for b in ordered if is_proposed(b)]


def is_proposed(bucket: Bucket) -> bool:
    """A person must decide. A person who routed it to sft or rl has decided that the model is to be taught."""
    if bucket.route is Route.DATA:
        return bucket.cause in REPAIRED
    return bucket.route in (Route.GOAL, Route.EVALUATION)


def kinds_of(bucket: Bucket) -> list[Kind]:
    """Of a bucket that is taught. Pairs are for what the model decides, so a bucket owned by data has none."""
    pairs: list[Kind] = ["pairs"] if bucket.cause in BOUNDARY and bucket.route is not Route.DATA else []
    shown: list[Kind] = ["demonstrations"] if bucket.cause in SELDOM and bucket.route is Route.RL else []
    return [_KINDS[bucket.route], *shown, *pairs]


def _taught(bucket: Bucket, kind: Kind, spec: BackflowSpec, training_tasks: int, used: Used) -> Material:
    amounts = {"tasks": spec.new_tasks, "demonstrations": spec.demonstrations, "pairs": spec.pairs}
    silent = kind in ("weights", "demonstrations", "pairs") and not training_tasks
    return _item(
        bucket,
        kind,
        "; the family has no training task, so this changes nothing" if silent else "",
        amount=amounts.get(kind, 0),
        weight=spec.weight if kind == "weights" else 1.0,
        operators=list(operators_of(bucket.family)) if kind == "tasks" else [],
        trajectories=list(used.get((bucket.id, kind), ())),
        noise=spec.noise if kind == "demonstrations" and bucket.cause in UNDER_NOISE else None,
        approved=kind in spec.unattended,
    )


def _proposed(bucket: Bucket, proposal: Proposal | None) -> Material:
    said = proposal or Proposal(f"{bucket.route.value}: {bucket.cause}", "")
    then = said.then or "a person decides on it"
    return _item(
        bucket,
        "proposal",
        f"; {then}",
        amount=0,
        subject=said.subject,
        difference=said.difference,
        edits=dict(said.edits),
        approved=False,
    )


def _item(bucket: Bucket, kind: Kind, more: str, **fields: object) -> Material:
    note = f"{bucket.size} of {bucket.denominator} attempts, cause {bucket.cause}, rule {bucket.rule}{more}"
    whose = {"bucket": bucket.id, "route": bucket.route, "family": bucket.family, "cause": bucket.cause}
    return Material.model_validate({"kind": kind, **whose, "failures": bucket.members, "note": note, **fields})

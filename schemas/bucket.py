"""Failures with one cause in one family, who owns them, and what the next round gets for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.base import Digest, Frozen, Json, Name, digest_of
from schemas.metrics import Estimate
from schemas.record import StageName


class Route(StrEnum):
    GOAL = "goal"
    DATA = "data"
    SFT = "sft"
    RL = "rl"
    EVALUATION = "evaluation"
    INFRASTRUCTURE = "infrastructure"
    UNDETERMINED = "undetermined"


MAX_FAILED_TESTS = 16
MAX_TEST_NAME = 120  # characters: models write some names, in files that a verifier runs


class Evidence(Frozen):
    """Typed facts about one failed trajectory; rules decide over these and nothing else."""

    trajectory: str
    task_id: str
    family: str
    origin: str
    status: Literal["scored", "unscored", "error"]
    parse_errors: int = Field(ge=0)
    turns: int = Field(ge=0)
    tool_errors: int = Field(ge=0)
    unknown_tools: int = Field(default=0, ge=0, description="calls of a tool that the task does not have")
    wrong_arguments: int = Field(
        default=0,
        ge=0,
        description="calls whose arguments were refused: missing, of another type, of what is not there",
    )
    forbidden: int = Field(ge=0)
    violations: list[str]
    failed_checks: int = Field(ge=0)
    passed_checks: int = Field(ge=0)
    failed_tests: list[str] = Field(
        default_factory=list,
        description=f"names of failed checks in the verifier's order: the first {MAX_FAILED_TESTS}, {MAX_TEST_NAME} "
        "characters of each; empty in records of before",
    )
    limit_hit: str | None
    truncated: bool
    submitted: bool
    unchanged: bool
    visible_passed: bool | None = Field(description="the visible tests passed on the outcome; None when none were run")
    touched: list[str]
    task_passes: int = Field(ge=0, description="passes of the same task and policy")
    task_attempts: int = Field(ge=0, description="scored attempts of the same task and policy")
    pass_at_k: float | None = Field(description="unbiased estimate for this task at k = task_attempts")
    pass_at_k_low: float | None = Field(
        default=None, ge=0, le=1, description="its exact 95% bounds, for this task alone"
    )
    pass_at_k_high: float | None = Field(default=None, ge=0, le=1)
    family_parse_rate: float | None = Field(description="share of turns of the family that parsed")
    family_pass: float | None = Field(description="share of tasks of the family with at least one pass")
    trained_origins: int = Field(ge=0, description="training origins of this family")
    verdict_flipped: bool = Field(default=False, description="a repeat of the same outcome gave another verdict")
    audit_differs: bool = False
    passed: bool = Field(
        default=False, description="the training verifier passed it: it is here because it is contested"
    )
    stop: str = Field(default="", description="how the attempt ended, as in the trajectory")
    first_bad_turn: int | None = Field(default=None, ge=0, description="the first turn that went wrong, from 0")
    observation_truncated: bool = False
    context_full: bool = Field(default=False, description="the context left no room for another turn")
    wrote: bool = Field(default=False, description="the outcome differs from the start tree")
    group_spread: float | None = Field(default=None, description="range of the rewards of the task's attempts")
    contaminated: bool = Field(default=False, description="a training task is a near copy of this one, which measures")
    similarity: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="greatest overlap with a training task, as the search for near copies measures it; None for a training "
        "task, and where it was not computed",
    )
    nearest_task: str | None = Field(default=None, description="id of that training task; None where nothing is shared")
    in_capabilities: bool = Field(default=True, description="a capability of the goal names the skill of the task")
    sandbox_event: str | None = Field(default=None, description="status error: the kind of what broke")
    noisy: int = Field(default=0, ge=0, description="tool errors that speak of the tool's own failure: time-outs, lost")
    noise_hits: int = Field(default=0, ge=0, description="tool results that the declared noise broke")
    measured: list[str] = Field(default_factory=list, description="experiments that were run, schemas/attribution.py")
    rescored: Literal["same", "flips"] | None = Field(default=None, description="the outcome judged again")
    current_differs: bool | None = Field(default=None, description="the verifier of today gives another verdict")
    gold_passes: bool | None = Field(default=None, description="the task's known solution, judged now")
    gold_audited: bool | None = Field(default=None, description="the same by the audit verifier")
    gold_waits: bool | None = Field(default=None, description="judged now, it ends at the wall limit too")
    start_fails: bool | None = Field(default=None, description="the start tree, judged now, does not pass")
    shown_holds: bool | None = Field(
        default=None, description="the known solution does what the model is shown: visible cases, examples"
    )
    rules_agree: bool | None = Field(default=None, description="every pass of the task is worth more than this failure")
    round_trip: bool | None = Field(default=None, description="the tokenizer gives back the text of every turn")
    template_same: bool | None = Field(default=None, description="the policy's chat template is that of its base")
    chain: str | None = Field(default=None, description="the first link of the edit chain that differs, evals/chain.py")
    image_drifted: bool | None = Field(default=None, description="the image is another one now than the pin says")
    replayed: Literal["same", "drifted", "unstable"] | None = Field(
        default=None, description="the recorded actions executed again: drifted differs alike each time"
    )
    gold_reaches: Literal["passes", "limit", "parse", "tool", "fails"] | None = Field(
        default=None, description="the known solution, written through the harness under the same limits"
    )
    # `..._helps`: clearly more than the policy's own share (Fisher's exact test, one-sided, at 0.1)
    hinted_passes: int | None = Field(default=None, ge=0, description="of k, with a hint of the place")
    hinted_helps: bool | None = None
    prefix_passes: int | None = Field(default=None, ge=0, description="of k, going on before the first bad turn")
    prefix_helps: bool | None = None
    harness_passes: int | None = Field(default=None, ge=0, description="of k, under another harness")
    harness_helps: bool | None = None
    quiet_passes: int | None = Field(default=None, ge=0, description="of k, without the declared noise")
    quiet_helps: bool | None = None
    setting_passes: int | None = Field(default=None, ge=0, description="of k, sampled as in training")
    setting_helps: bool | None = None
    base_passes: int | None = Field(default=None, ge=0, description="of k, by the base model")
    sft_passes: int | None = Field(default=None, ge=0, description="of k, by the checkpoint before RL")
    lost_at: Literal["sft", "rl", "never"] | None = Field(
        default=None, description="the stage whose checkpoint fails where the one before it passes"
    )
    untrained: bool | None = Field(default=None, description="the trained weights are those it started from")


class Rule(Frozen):
    """First rule that matches owns the failure. `when` is a conjunction of comparisons over Evidence fields."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    cause: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    route: Route
    when: dict[str, Json] = Field(
        description="field -> value (equals) or {gt|ge|lt|le|in|contains: value}; all must hold; empty matches all"
    )
    because: str = Field(description="the line of the routing table that it implements")


def bucket_id(cause: str, family: str) -> str:
    return digest_of([cause, family])[:12]


class Bucket(Frozen):
    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    cause: str
    family: str
    route: Route
    rule: str
    rules: Digest = Field(description="digest of the rule file that put it here")
    overridden_by: str | None = Field(default=None, description="decision id of the person who changed the route")
    size: int = Field(ge=0, description="failures on the choosing half of dev")
    denominator: int = Field(ge=0, description="scored attempts of the family on the choosing half of dev")
    share: Estimate = Field(description="size / denominator, chosen on: biased upwards by the choice")
    measured: Estimate = Field(
        description="the same share on the measuring half of dev: what the next round compares with"
    )
    members: list[str] = Field(description="trajectory ids, choosing half")
    example: str = Field(description="trajectory id")
    treated: bool = Field(default=False, description="material for it goes into the next round")
    attributed: int = Field(default=0, ge=0, description="members whose cause experiments decided, not the log alone")
    size_low: int = Field(default=0, ge=0, description="members, where only a sample was attributed: lower 95% bound")
    size_high: int = Field(default=0, ge=0, description="and the upper one")
    cost: dict[str, int] = Field(
        default_factory=dict, description="what its experiments took: attempts, executions, tokens"
    )
    undecided: list[str] = Field(
        default_factory=list, description="experiments that could still move members elsewhere"
    )
    treated_in_vain: int = Field(
        default=0, ge=0, description="rounds in a row in which material for it changed nothing"
    )
    escalated: bool = Field(default=False, description="treated twice without effect: a person must look at it")


class BucketChange(Frozen):
    """A bucket of the last round, measured again. Chance alone shrinks a large bucket: read it beside untreated ones."""

    bucket: str
    cause: str
    family: str
    treated: bool
    before: Estimate
    after: Estimate
    difference: Estimate = Field(description="after - before on the measuring half, paired by task")
    verdict: Literal["shrank", "unchanged", "grew", "not enough evidence"]
    cost: dict[str, float] = Field(
        default_factory=dict,
        description="what this round made and trained on for it: tasks, demonstrations, prefixes, pairs, attempts, rollouts, "
        "generated_tokens, trained_tokens, tool_calls; records of before have what was asked for",
    )
    shares: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict,
        description="measure of this round's telemetry (stage.name) -> the part of what it was spent on that is this bucket's",
    )

    def allocated(self, telemetry: Mapping[StageName, Mapping[str, Any]]) -> dict[str, float]:
        """Seconds of the round that measured, by `shares`: allocated, since nothing measures one bucket's work alone."""
        found: dict[str, float] = {}
        for measure, share in self.shares.items():
            stage, _, name = measure.partition(".")
            spent = telemetry.get(stage, {}).get(name)  # type: ignore[call-overload]
            if isinstance(spent, int | float) and math.isfinite(spent):
                unit = "allocated_training_s" if name == "training_s" else "allocated_environment_cpu_s"
                found[unit] = found.get(unit, 0.0) + share * spent
        return found


class Material(Frozen):
    """What a bucket hands to the next round. Verifiers, reward rules and environments are proposals for a person."""

    kind: Literal["tasks", "demonstrations", "pairs", "weights", "proposal"]
    bucket: str
    route: Route
    family: str
    amount: int = Field(ge=0, description="tasks to make, demonstrations to add, or 0")
    weight: float = Field(default=1.0, gt=0, description="kind weights: factor on the sampling weight of the family")
    operators: list[str] = Field(default_factory=list, description="kind tasks: mutation operators")
    trajectories: list[str] = Field(default_factory=list, description="training-pool trajectories that it uses")
    failures: list[str] = Field(default_factory=list, description="the failures behind it: members of the bucket")
    cause: str = ""
    noise: Name | None = Field(default=None, description="kind demonstrations: profile that they are written under")
    subject: str = Field(default="", description="kind proposal: what a person would change: a file, a pin, a task")
    difference: str = Field(default="", description="kind proposal: the change, as a unified difference or one line")
    edits: dict[str, Json] = Field(
        default_factory=dict,
        description="kind proposal: fields of goal.yaml and their new values, where the change can be computed",
    )
    approved: bool = Field(description="by the spec's unattended default or by a person")
    note: str = ""

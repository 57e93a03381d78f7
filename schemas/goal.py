"""goal.yaml: the one file a person writes, and the record of the goal stage.

Only what decides a result is here, except `runtime`, which says where and how fast things run, and `pins`, which says what
may differ when something is run again; both enter no key.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from schemas.backflow import BackflowSpec
from schemas.base import SCHEMA_VERSION, Digest, Frozen, Name
from schemas.bucket import Material, Rule
from schemas.canary import Drift
from schemas.data import DataSpec
from schemas.evaluation import EvaluationSpec
from schemas.execution import Environment, Limits
from schemas.model import Checkpoint, ModelSource
from schemas.pins import PinsSpec
from schemas.record import Record
from schemas.rewards import RewardRules
from schemas.rl import RlSpec
from schemas.sft import SftSpec
from schemas.task import Kind
from schemas.trajectory import Noise, Sampling


class Capability(Frozen):
    name: Name
    skill: str
    description: str


class Criterion(Frozen):
    """Success, as a number that a suite measures. The lower (or upper) bound of the interval decides."""

    name: Name
    suite: str
    metric: str = Field(description="a metric of the suite, e.g. pass@1")
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> Criterion:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("give exactly one of at_least, at_most")
        return self


class Safety(Frozen):
    """The boundary. What is outside is a forbidden action, counted and penalised."""

    tools: list[str] = Field(default_factory=list, description="tool names allowed; empty allows all of the harness")
    network: Literal["none"] = "none"
    paths: list[str] = Field(
        default_factory=lambda: ["solution.py", "answer.txt"],
        description="paths an outcome may touch; in a repository task also what the task calls editable",
    )


class Budgets(Frozen):
    """Per attempt. Entering the pins: a longer budget is another experiment."""

    max_turns: int = Field(default=2, ge=1, description="completions of one attempt")
    max_turns_of: dict[str, int] = Field(
        default_factory=dict, description="skill -> its own max_turns, >= 1, where it differs"
    )
    max_tool_calls: int = Field(default=4, ge=0)
    max_context_tokens: int = Field(default=1024, ge=64)

    @field_validator("max_turns_of")
    @classmethod
    def _at_least_one(cls, value: dict[str, int]) -> dict[str, int]:
        for skill, turns in value.items():
            if turns < 1:
                raise ValueError(f"{skill} has {turns} turns; give at least 1")
        return value

    def turns_for(self, skill: str) -> int:
        return self.max_turns_of.get(skill, self.max_turns)


Volatile = Literal["times", "addresses", "temporary_names"]


def _volatile() -> list[Volatile]:
    return ["times", "addresses", "temporary_names"]


class EnvironmentSpec(Frozen):
    engine: Literal["bubblewrap", "docker"] = "bubblewrap"
    runtime: str | None = Field(default=None, description="of Docker, e.g. runsc; None: the daemon's default")
    name: Name = "python-pytest"
    python: str | None = Field(
        default=None,
        pattern=r"^\d+(\.\d+){0,2}$",
        description="version that the interpreter must have, e.g. 3.11; None: any",
    )
    packages: list[str] = Field(
        default_factory=lambda: ["pytest"],
        description="distributions of the image, with what they need; with a lock, what must be among its wheels",
    )
    lock: str | None = Field(
        default=None,
        description="requirements file with hashes, relative to the workspace: its wheels are the packages of the image",
    )
    files: dict[str, str] = Field(
        default_factory=dict, description="path in the image -> text; one that begins with #! can be executed"
    )
    variables: dict[str, str] = Field(default_factory=lambda: {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"})
    limits: Limits = Limits()
    volatile: list[Volatile] = Field(
        default_factory=_volatile,
        description="what observations may differ in when recorded actions are executed again; a replay makes it equal",
    )


class RuntimeSpec(Frozen):
    """Where and how fast; never what. In no key and no digest."""

    workers: int = Field(default=2, ge=1, description="sandboxes at once")
    sandbox_retries: int = Field(default=2, ge=0)
    stage_retries: int = Field(default=1, ge=0, description="Prefect retries of a stage, infrastructure errors only")
    device: str = "cpu"
    tracking_uri: str | None = Field(default=None, description="MLflow; None: SQLite in the workspace")
    max_traces: int = Field(
        default=1000, ge=0, description="failures of a round that MLflow gets as traces, about 70 ms each"
    )
    vllm_url: str | None = Field(default=None, description="OpenAI-compatible server for the vllm sampler")


def _own_harness() -> dict[Kind, str]:
    return {"repository": "tools"}


def _own_verifier() -> dict[Kind, str]:
    return {"repository": "repository"}


class GoalSpec(Frozen):
    schema_version: Literal[1] = 1
    name: Name
    seed: int = Field(default=0, ge=0)
    capabilities: list[Capability] = Field(min_length=1)
    criteria: list[Criterion] = Field(min_length=1)
    safety: Safety = Safety()
    budgets: Budgets = Budgets()
    model: ModelSource
    start: Literal["base", "champion"] = Field(default="base", description="where each round's training starts")
    sampling: Sampling = Sampling()
    noise: dict[Name, Noise] = Field(
        default_factory=dict,
        description="profiles of tools that fail by themselves; suites, rl and backflow name one, else tools are clean",
    )
    environment: EnvironmentSpec = EnvironmentSpec()
    harness: str = Field(default="fenced", description="bundle: a digest, name@version, or a path")
    harness_of: dict[Kind, str] = Field(
        default_factory=_own_harness,
        description="kind of task -> its own harness, where it differs",
    )
    verifier: str = "cases"
    verifier_of: dict[Kind, str] = Field(default_factory=_own_verifier, description="kind of task -> its own verifier")
    audit_verifier: str | None = "pytest_files"
    rewards: RewardRules = Field(default_factory=RewardRules)
    data: DataSpec
    sft: SftSpec = SftSpec()
    rl: RlSpec = RlSpec()
    evaluation: EvaluationSpec
    backflow: BackflowSpec = BackflowSpec()
    routes: list[Rule] | None = Field(default=None, description="attribution rules; None: the default file")
    stale: Literal["refuse", "use"] = Field(
        default="refuse",
        description="what used a reward that `postloop rescore` flipped: refuse to build on it, or use it all the same",
    )
    pins: PinsSpec = PinsSpec()
    runtime: RuntimeSpec = RuntimeSpec()

    @model_validator(mode="after")
    def _measurable(self) -> GoalSpec:
        suites = {suite.name for suite in self.evaluation.suites}
        for criterion in self.criteria:
            if criterion.suite not in suites:
                raise ValueError(
                    f"criterion {criterion.name} is measured by no suite: {criterion.suite!r}; add it to evaluation.suites"
                )
        return self


class Bundles(Frozen):
    """`harness_of`, `verifier_of`: of the kinds of task that have their own and that the seed data holds."""

    harness: Digest
    verifier: Digest
    audit_verifier: Digest | None
    harness_of: dict[Kind, Digest] = Field(default_factory=dict)
    verifier_of: dict[Kind, Digest] = Field(default_factory=dict)

    def named(self) -> dict[str, Digest]:
        """Pin name -> digest, as the artifacts of the goal stage are called."""
        own = {f"harness_{kind}": digest for kind, digest in self.harness_of.items()}
        own |= {f"verifier_{kind}": digest for kind, digest in self.verifier_of.items()}
        audit = {"audit_verifier": self.audit_verifier} if self.audit_verifier is not None else {}
        return {"harness": self.harness, "verifier": self.verifier, **audit, **own}

    def judging(self, kind: Kind) -> tuple[Digest, Digest]:
        """Harness and verifier of an attempt at a task of this kind."""
        return self.harness_of.get(kind, self.harness), self.verifier_of.get(kind, self.verifier)


class GoalRecord(Record):
    stage: Literal["goal"] = "goal"
    goal_version: int = Field(ge=1, description="grows when the spec changed or backflow was merged")
    spec: GoalSpec
    environment: Environment
    bundles: Bundles
    base: Checkpoint
    material: list[Material] = Field(default_factory=list, description="approved backflow of the last round, merged")
    weights: dict[str, float] = Field(default_factory=dict, description="family -> sampling weight")
    decisions: list[str] = Field(
        default_factory=list,
        description="ids of people's decisions about earlier buckets, as the round began under them",
    )
    goal_met: bool | None = Field(default=None, description="by the last round's evaluation; None in round 1")
    canary: dict[str, bool] = Field(
        default_factory=dict, description="environment -> gold, no-op and repeat as they should be"
    )
    drifts: list[Drift] = Field(
        default_factory=list, description="of tasks that the canary left out, with their causes"
    )
    schema_of: int = SCHEMA_VERSION

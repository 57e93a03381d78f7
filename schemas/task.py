"""A task: what the model is asked, the tree it works in, and how the result is judged.

Hidden cases belong to the task's record but never to the tree the agent sees (`files`). Not covered: foreign Harbor
folders, whose fields beyond these live in their own `[metadata.postloop]`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from schemas.base import Digest, Frozen, Json, Name

Kind = Literal["function", "answer", "repository"]


class Split(StrEnum):
    """train trains; dev chooses buckets (one half) and measures them (the other); the rest only measure."""

    TRAIN = "train"
    DEV = "dev"
    HELD_OUT = "held_out"
    BOUNDARY = "boundary"
    RETENTION = "retention"


class Case(Frozen):
    """One row of a test table: call `entry(*args)`, expect `expected`, or an exception of class `raises`."""

    args: list[Json] = Field(description="positional arguments, plain JSON values; copied for each call")
    expected: Json = Field(default=None, description="the value that must come back, compared by type and value")
    raises: str | None = Field(default=None, description="name of the builtin exception that must be raised instead")


class Task(Frozen):
    id: str = Field(pattern=r"^[a-z0-9_]+(/[a-z0-9_]+)+$", description="family/origin/variant, unique in the workspace")
    kind: Kind = Field(
        description="function: judged by cases; answer: by the text of answer.txt; repository: by test files (`tests`)"
    )
    family: Name = Field(
        description="the skill that a bucket is about, e.g. repair.condition, lookup.table, instruction"
    )
    skill: Name = Field(description="repair | lookup | instruction: the broad ability, several families each")
    origin: str = Field(description="what it was made from; splits are by origin, so no origin is in two splits")
    split: Split
    statement: str = Field(description="what the model is asked, plain text")
    files: dict[str, str] = Field(description="the agent's tree at the start: relative POSIX path -> text")
    editable: list[str] = Field(description="paths that the outcome tree may change; everything else is protected")
    entry: str | None = Field(default=None, description="kind function: the function that cases call, in editable[0]")
    visible: list[Case] = Field(default_factory=list, description="cases the agent may see and run")
    hidden: list[Case] = Field(default_factory=list, description="cases only the verifier sees; >= 1 for kind function")
    answer: str | None = Field(default=None, description="kind answer: the expected answer, never in files")
    match: Literal["exact", "number", "contains"] = Field(
        default="exact", description="kind answer: how answer.txt is compared, after trimming and case folding"
    )
    tests: dict[str, str] = Field(
        default_factory=dict,
        description="kind repository: test files, path -> text, laid over a fresh tree for grading; hidden, never in files",
    )
    f2p: list[str] = Field(default_factory=list, description="pytest node ids that must change from fail to pass")
    p2p: list[str] = Field(default_factory=list, description="pytest node ids that must keep passing")
    gold: dict[str, str] = Field(description="files of a correct outcome; never shown to the model")
    wrong: dict[str, str] = Field(
        description="files of a plausible but wrong outcome: the proof that the verifier can fail"
    )
    made_by: str = Field(
        description="generator and operator, e.g. mutate:compare; 'backflow:<bucket>' for routed material"
    )

    def public(self) -> dict[str, Json]:
        """What a harness may know: no hidden case, no answer, no gold."""
        return self.model_dump(
            mode="json",
            exclude={"hidden", "answer", "tests", "f2p", "p2p", "gold", "wrong", "match", "split", "made_by"},
        )

    def judged(self) -> dict[str, Json]:
        """What a verifier needs to judge an outcome; gold and wrong are not among it."""
        return self.model_dump(mode="json", exclude={"gold", "wrong", "statement", "split", "made_by"})


class TaskProof(Frozen):
    """Why a task may be trained or measured on: run through the real engine and the training verifier."""

    task_id: str
    task_digest: Digest
    gold_passes: int = Field(ge=0, description="of `runs` runs of the gold outcome")
    runs: int = Field(ge=1)
    noop_fails: bool
    wrong_fails: bool
    agree: bool = Field(description="repeats gave the same verdict digest")
    reason: str | None = Field(default=None, description="None when proven, else why it is quarantined")

"""Repair tasks from real history: what a person lists (packages, repositories, bounds), and what came of it.

Foreign code is named by version and SHA-256 and fetched when it is mined; none of it is in the spec. A candidate either
becomes a task or falls at exactly one proof, so the losses and the tasks together are all that was looked at.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import Field, model_validator

from schemas.base import Digest, Frozen
from schemas.execution import Limits
from schemas.task import Split, Task

SourceName: TypeAlias = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$", description="part of the tasks' ids")]
Version: TypeAlias = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.!+_-]{0,40}$")]


class Release(Frozen):
    """One published source distribution."""

    version: Version
    sha256: Digest = Field(description="of the source archive as the index serves it")


class SdistPair(Frozen):
    """Two releases of one package; its tasks lead from the old behaviour to the new."""

    package: str = Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,60}[A-Za-z0-9])?$", description="name on the index")
    name: SourceName
    split: Split = Split.TRAIN
    old: Release
    new: Release

    @model_validator(mode="after")
    def _two_releases(self) -> SdistPair:
        if self.old.sha256 == self.new.sha256:
            raise ValueError(f"{self.package}: old and new are the same archive; name two versions")
        return self


class GitHistory(Frozen):
    """Commits of one local repository; fetching it is the person's part."""

    name: SourceName
    path: str = Field(description="folder of the repository; relative paths start at the spec's folder")
    revisions: str = Field(
        default="HEAD",
        pattern=r"^[0-9A-Za-z][0-9A-Za-z./_~^-]*$",
        description="as `git log` takes them, e.g. v1.0..v2.0",
    )
    max_commits: int = Field(default=500, ge=1, description="newest first, merges left out")
    split: Split = Split.TRAIN


class Bounds(Frozen):
    """What is too large to ask of a model or to prove. Counts of text lines, files and tests."""

    max_tasks: int = Field(default=12, ge=1, description="per source; candidates beyond it are counted, not tried")
    max_changed_lines: int = Field(default=80, ge=1, description="added and removed lines of gold")
    max_changed_files: int = Field(default=3, ge=1)
    max_files: int = Field(default=150, ge=1, le=180, description="of the start tree and the tests together")
    max_file_chars: int = Field(default=100_000, ge=1, description="of each file that gold changes")
    max_f2p: int = Field(default=40, ge=1, description="more failing tests than this is no single repair")
    max_p2p: int = Field(
        default=60, ge=0, description="tests to keep passing; those beside the failing ones come first"
    )
    max_test_files: int = Field(default=4, ge=1, description="files that the tests of one task are in")
    wrong_tries: int = Field(default=8, ge=1, description="edits that are tried until one is proven wrong")


class MiningSpec(Frozen):
    packages: list[str] = Field(
        default_factory=lambda: ["pytest"],
        description="distributions of the image, e.g. wcwidth==0.2.13: pytest and what the mined code needs",
    )
    lock: str | None = Field(
        default=None,
        description="requirements file with hashes: the image has these wheels; relative paths start at the spec's folder",
    )
    limits: Limits = Field(default=Limits(), description="a task's tests must fit into a third of cpu_s")
    bounds: Bounds = Bounds()
    seed: int = Field(default=0, ge=0, description="order in which candidates are tried")
    sdists: list[SdistPair] = Field(default_factory=list)
    git: list[GitHistory] = Field(default_factory=list)

    @model_validator(mode="after")
    def _origins_are_whole(self) -> MiningSpec:
        splits: dict[str, Split] = {}
        listed: list[SdistPair | GitHistory] = [*self.sdists, *self.git]
        for source in listed:
            if splits.setdefault(source.name, source.split) is not source.split:
                raise ValueError(f"{source.name} is in splits {splits[source.name]} and {source.split}; choose one")
        if not splits:
            raise ValueError("nothing to mine: list a pair under sdists or a repository under git")
        return self


class Proof(StrEnum):
    """Where a candidate fell, in the order in which they are asked."""

    NO_TESTS = "no_tests"  # no test file was added or changed
    NO_SOURCE = "no_source"  # no source file was changed, or one was removed
    NOT_TEXT = "not_text"  # a changed file is a link or no UTF-8
    IMAGE_COPY = "image_copy"  # the image holds the package, or the changed function
    NO_BEHAVIOUR = "no_behaviour"  # only comments, docstrings or layout differ
    TOO_LARGE = "too_large"
    DUPLICATE = "duplicate"  # the same start as another candidate
    QUOTA = "quota"  # its source had its share already; it was not tried
    MISSING_PACKAGE = "missing_package"  # the tests need one that the image does not have
    LIMITS = "limits"  # CPU, memory, processes, disk or wall time ran out
    GOLD_FAILS = "gold_fails"  # no changed test passes with gold
    START_BROKEN = "start_broken"  # the start cannot be imported
    NO_F2P = "no_f2p"  # no changed test fails at the start
    FLAKY = "flaky"  # two runs, or a run of fewer tests, gave other results
    STATEMENT = "statement"  # it would say nothing, or give the answer away
    NO_WRONG = "no_wrong"  # no wrong edit was found that fails


class Loss(Frozen):
    source: str
    candidate: str
    proof: Proof
    detail: str = Field(default="", description="one line")


class Mined(Frozen):
    """`image`: the layer that all proofs ran in; the tasks are judged in the same one."""

    image: Digest
    tasks: list[Task]
    losses: list[Loss]

    def table(self) -> list[dict[str, str | int]]:
        """A row a source, then the sum: candidates, how many fell at each proof that took one, and tasks."""
        sources = sorted({loss.source for loss in self.losses} | {task.origin for task in self.tasks})
        used = [proof for proof in Proof if any(loss.proof is proof for loss in self.losses)]
        rows = [self._row(source, [source], used) for source in sources]
        return [*rows, self._row("all", sources, used)]

    def _row(self, name: str, sources: list[str], used: list[Proof]) -> dict[str, str | int]:
        tasks = sum(task.origin in sources for task in self.tasks)
        fell = {proof: sum(loss.source in sources and loss.proof is proof for loss in self.losses) for proof in used}
        counts = {proof.value: count for proof, count in fell.items()}
        return {"source": name, "candidates": tasks + sum(fell.values()), **counts, "tasks": tasks}

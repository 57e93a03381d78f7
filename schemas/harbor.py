"""Harbor task folders: the whole content of one, its task.toml as Harbor reads it, and our task from it.

A folder is kept byte for byte beside the task, so that writing it again is exact whatever fields it has. `Config` has
the names and types of Harbor 0.26 (schema_version 1.4) and lets unknown ones through. Not covered: Harbor's rules about
two fields together (allowed_hosts without an allowlist, ...), which Harbor itself checks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.base import Frozen
from schemas.task import Task


class FolderFile(Frozen):
    """One regular file. Exactly one of `text` and `base64`; `base64` for what is not UTF-8."""

    mode: int = Field(ge=0, le=0o777, description="permission bits")
    text: str | None = None
    base64: str | None = None

    @model_validator(mode="after")
    def _one_content(self) -> FolderFile:
        if (self.text is None) == (self.base64 is None):
            raise ValueError("give exactly one of text, base64")
        return self


class Folder(Frozen):
    """A tree of regular files. Modes of folders are not kept: they are 0755."""

    files: dict[str, FolderFile] = Field(description="relative POSIX path -> content")
    empty: list[str] = Field(default_factory=list, description="folders with nothing in them, sorted")


class Trust(StrEnum):
    """Who decides the reward. declared: our verifier, in a fresh tree; foreign: a script of the folder's own."""

    DECLARED = "declared"
    FOREIGN = "foreign"


class HarborTask(Frozen):
    """`folder` is the truth; `task` is what was read from it. A changed task is a new folder."""

    task: Task
    trust: Trust
    folder: Folder


class _Open(BaseModel):
    """A section of task.toml: known fields have a type, unknown ones are let through."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class Package(_Open):
    name: str = Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*$")
    version: str | None = None
    description: str = ""
    authors: list[dict[str, Any]] = Field(default_factory=list)
    keywords: list[str] = Field(default_factory=list)


Network = Literal["no-network", "public", "allowlist"]


class Agent(_Open):
    timeout_sec: float | None = None
    user: str | int | None = None
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None


class Container(_Open):
    """[environment] and [verifier.environment]. memory and storage are old names, text such as 2G; else Harbor skips them."""

    docker_image: str | None = None
    os: str = "linux"
    workdir: str | None = None
    build_timeout_sec: float = 600.0
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    memory: str | float | None = None
    storage: str | float | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    network_mode: Network = "public"
    allowed_hosts: list[str] | None = None
    allow_internet: bool | None = None
    env: dict[str, str] = Field(default_factory=dict)
    mcp_servers: list[dict[str, Any]] = Field(default_factory=list)
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None


class Grading(_Open):
    """[verifier]"""

    timeout_sec: float = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Container | None = None
    collect: list[dict[str, Any]] = Field(default_factory=list)


class Solution(_Open):
    env: dict[str, str] = Field(default_factory=dict)


class Config(_Open):
    schema_version: str = "1.4"
    task: Package | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    verifier: Grading = Grading()
    agent: Agent = Agent()
    environment: Container = Container()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[dict[str, Any]] | None = None
    artifacts: list[str | dict[str, Any]] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _old_version(cls, data: Any) -> Any:
        """Harbor takes `version` for `schema_version`, as old folders have it."""
        if isinstance(data, dict) and "version" in data:
            data = {
                "schema_version": data["version"],
                **{key: value for key, value in data.items() if key != "version"},
            }
        return data

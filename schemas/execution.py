"""What an engine is asked to run and what it answers. The same on every engine; nothing here names one."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from schemas.base import Digest, Frozen


class Limits(Frozen):
    """Part of the run pin. What the attempt exhausts is the attempt's failure, never infrastructure."""

    cpu_s: float = Field(default=5.0, gt=0, description="CPU-seconds of one execution, all its processes together")
    wall_s: float = Field(default=20.0, gt=0, description="wall seconds before it is killed; repeated once alone")
    memory_mb: int = Field(default=256, ge=16, description="MiB, all processes together")
    pids: int = Field(default=32, ge=1)
    disk_mb: int = Field(default=16, ge=1, description="MiB of writable tmpfs: working tree and /tmp, each")
    output_kb: int = Field(
        default=64, ge=1, description="KiB of stdout and of stderr kept; the rest is dropped and said"
    )


class Stop(StrEnum):
    EXIT = "exit"
    CPU = "cpu"
    WALL = "wall"
    MEMORY = "memory"
    SIGNAL = "signal"


class Execution(Frozen):
    """One command in a fresh sandbox over a tree. Paths are relative to /work."""

    argv: list[str] = Field(min_length=1)
    files: dict[str, str] = Field(description="relative path -> text, laid under /work before the command")
    readonly: dict[str, str] = Field(default_factory=dict, description="relative path -> text, under /tests, read-only")
    stdin: str = ""
    collect: list[str] = Field(default_factory=list, description="paths under /work to read back, regular files only")


class ExecutionResult(Frozen):
    """Only values that a repeat gives again enter; measured times are telemetry, on the engine's side."""

    stop: Stop
    exit_code: int | None = Field(description="None when it was killed")
    stdout: str = Field(description="decoded as UTF-8, undecodable bytes replaced; at most Limits.output_kb")
    stderr: str
    truncated: bool = False
    files: dict[str, str] = Field(default_factory=dict, description="those of `collect` that exist as regular files")


class Environment(Frozen):
    """A declared image. Its identity is the SHA-256 of its canonical layer tar, the same on every engine."""

    name: str
    python: str = Field(description="version, e.g. 3.11.7")
    packages: dict[str, str] = Field(
        default_factory=dict, description="distribution -> exact version, without the Python"
    )
    variables: dict[str, str] = Field(default_factory=dict, description="environment variables, the only ones set")
    layer: Digest

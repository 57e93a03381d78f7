"""The data stage: tasks proven, split by origin, and demonstrations."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from schemas.base import Digest, Frozen, Json, Name
from schemas.record import Record


class SourceSpec(Frozen):
    """Tasks of one skill from the seed data. 0 tasks of a split leaves that split empty for the skill."""

    skill: Name
    train: int = Field(default=0, ge=0, description="tasks taken for training")
    dev: int = Field(default=0, ge=0)
    held_out: int = Field(default=0, ge=0)
    boundary: int = Field(default=0, ge=0)
    retention: int = Field(default=0, ge=0)


class TeacherSpec(Frozen):
    """A stronger model behind an OpenAI-compatible chat endpoint. It is shown training tasks as a policy would be.

    The address is the person's choice: any server may be named, on this machine or not. The key stays in the environment.
    """

    url: str = Field(description="up to its version, e.g. http://127.0.0.1:8000/v1; http or https")
    model: str = Field(min_length=1, max_length=200, description="the name that the server knows it by")
    tasks: int = Field(
        default=24, ge=1, description="training tasks it is asked about, of those that nothing else shows"
    )
    samples: int = Field(default=2, ge=1, description="attempts a task; one verified attempt is kept")
    temperature: float = Field(default=1.0, ge=0, le=2)
    max_tokens: int | None = Field(
        default=None, ge=1, description="of its own tokens a turn, thinking included; None: sampling.max_tokens"
    )
    api_key_env: str | None = Field(
        default=None, description="name of the environment variable with the key, never the key; None: no key is sent"
    )
    timeout_s: float = Field(default=120.0, gt=0, le=3600, description="wall seconds of one answer")

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        """No error shows the value: a person may have put a key into it."""
        try:
            parts = urlsplit(value)
            named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            named = False
        if not named or not re.fullmatch(r"[!-~]+", value) or set("@?#") & set(value):
            raise ValueError(
                "is no http or https address without user, query and fragment; write e.g. http://127.0.0.1:8000/v1"
            )
        return value

    @field_validator("api_key_env")
    @classmethod
    def _variable(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):
            raise ValueError("is no name of an environment variable; write one such as OPENAI_API_KEY, never the key")
        return value


class TeacherVoice(Frozen):
    """Who wrote turns, as the server says, and how it was asked. Its digest is their policy; the address is no part of it."""

    model: str | None = Field(description="as the answers name it")
    fingerprint: str | None = Field(description="system_fingerprint of the answers; None where the server gives none")
    asked: dict[str, Json] = Field(description="parameters of the requests, without messages and seeds")


class DemonstrationSpec(Frozen):
    """Where demonstrations come from. gold: written from the gold outcome in the harness's format."""

    gold: dict[str, int] | None = Field(
        default=None, description="skill -> demonstrations from gold edits; None: 16 of each skill that is trained"
    )
    rejection_samples: int = Field(
        default=0, ge=0, description="attempts of the start policy a training task; verified ones kept"
    )
    rejection_tasks: int = Field(default=0, ge=0, description="training tasks that are sampled so")
    rejection_skills: list[str] = Field(default_factory=list, description="skills of those tasks; empty: every one")
    from_past_rounds: int = Field(
        default=0,
        ge=0,
        description="verified training-pool trajectories of earlier rounds to reuse, at most one a task",
    )
    teacher: TeacherSpec | None = Field(default=None, description="verified attempts of another model; None: none")


class DataSpec(Frozen):
    seed_data: str = Field(
        default="default", description="default: the embedded families; else a folder with tasks.jsonl"
    )
    sources: list[SourceSpec] = Field(min_length=1)
    demonstrations: DemonstrationSpec = DemonstrationSpec()
    proof_runs: int = Field(default=2, ge=1, description="runs of the gold outcome per task; all must pass and agree")
    contamination_ngram: int = Field(
        default=8, ge=2, description="token n-gram length for the overlap with evaluation suites"
    )
    contamination_share: float = Field(
        default=0.6, gt=0, le=1, description="share of shared n-grams that counts as a near copy"
    )
    min_tasks: int = Field(default=1, ge=1, description="gate: proven training tasks needed to go on")


class DataRecord(Record):
    stage: Literal["data"] = "data"
    tasks: dict[str, int] = Field(default_factory=dict, description="split -> proven tasks")
    families: dict[str, int] = Field(default_factory=dict, description="family -> proven training tasks")
    quarantined: dict[str, int] = Field(default_factory=dict, description="reason -> tasks")
    demonstrations: dict[str, int] = Field(
        default_factory=dict, description="gold | prefix | rejection | past | own | hinted | backflow | teacher -> rows"
    )
    voices: dict[Digest, TeacherVoice] = Field(
        default_factory=dict, description="policy of a teacher's turns -> who wrote them; of the rows that were kept"
    )
    pairs: dict[str, int] = Field(default_factory=dict, description="decision | boundary | retention -> pairs")
    routed_tasks: int = Field(default=0, ge=0, description="training tasks made for buckets of the last round")

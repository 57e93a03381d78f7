"""ATIF, the Agent Trajectory Interchange Format, versions 1.0 to 1.8, and what the workspace records of foreign documents.

The same fields, bounds and rules as the published models (harbor.models.trajectories of the wheel harbor 0.26.0), written
anew: `tests/stages/test_atif.py` compares the two JSON Schemas. As published, one model serves all versions: a document of
an earlier one may use fields of a later one. A document that was read is kept as the value that was read; these models
judge it and are not its storage.

Not covered: whether a path or URL of an image, audio file or other trajectory leads anywhere.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from schemas.artifact import ArtifactRef
from schemas.base import SCHEMA_VERSION, Closed, Digest, Frozen

Version = Literal[
    "ATIF-v1.0", "ATIF-v1.1", "ATIF-v1.2", "ATIF-v1.3", "ATIF-v1.4", "ATIF-v1.5", "ATIF-v1.6", "ATIF-v1.7", "ATIF-v1.8"
]  # fmt: skip
ATIF: Version = "ATIF-v1.8"
AudioType = Literal[
    "audio/wav", "audio/mpeg", "audio/mp4", "audio/aac", "audio/ogg", "audio/flac", "audio/webm", "audio/aiff"
]
# Spellings that providers emit for the registered types.
_AUDIO_ALIASES = {
    "audio/mp3": "audio/mpeg", "audio/mpga": "audio/mpeg", "audio/x-mpeg": "audio/mpeg", "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav", "audio/vnd.wave": "audio/wav", "audio/x-m4a": "audio/mp4", "audio/m4a": "audio/mp4",
    "audio/x-aac": "audio/aac", "audio/x-flac": "audio/flac", "audio/x-aiff": "audio/aiff",
}  # fmt: skip
_OF_AGENTS = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


class Agent(Closed):
    name: str
    version: str
    model_name: str | None = Field(default=None, description="model of the steps that name none")
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class ImageSource(Closed):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    path: str = Field(description="file or URL; never opened here")


class AudioSource(Closed):
    media_type: AudioType
    path: str = Field(description="file or URL; never opened here")
    duration_sec: float | None = Field(default=None, ge=0)

    @field_validator("media_type", mode="before")
    @classmethod
    def _registered(cls, value: Any) -> Any:
        spelled = value.strip().lower() if isinstance(value, str) else value
        return _AUDIO_ALIASES.get(spelled, spelled) if isinstance(spelled, str) else value


class ContentPart(Closed):
    """One part of a message of several kinds: text, or a reference to an image or an audio file."""

    type: Literal["text", "image", "audio"]
    text: str | None = None
    source: ImageSource | AudioSource | None = None

    @model_validator(mode="after")
    def _fields_of_its_type(self) -> ContentPart:
        given = {name for name in ("text", "source") if getattr(self, name) is not None}
        wanted = "text" if self.type == "text" else "source"
        if given != {wanted}:
            raise ValueError(f"type {self.type!r} has the field {wanted!r} alone, found {sorted(given) or 'none'}")
        kinds: dict[str, type] = {"text": type(None), "image": ImageSource, "audio": AudioSource}
        if not isinstance(self.source, kinds[self.type]):
            raise ValueError(f"type {self.type!r} with a source of another kind")
        return self


class FinalMetrics(Closed):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = Field(default=None, ge=0)
    extra: dict[str, Any] | None = None


class Metrics(Closed):
    """Of one inference. `prompt_token_ids` is the whole context of it, not only what is new."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = Field(default=None, description="natural, one a generated token")
    extra: dict[str, Any] | None = None


class SubagentTrajectoryRef(Closed):
    trajectory_id: str | None = None
    session_id: str | None = Field(default=None, description="of the run; resolves nothing")
    trajectory_path: str | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _resolvable(self) -> SubagentTrajectoryRef:
        if self.trajectory_id is None and self.trajectory_path is None:
            raise ValueError("neither trajectory_id nor trajectory_path: the reference leads nowhere")
        return self


class ObservationResult(Closed):
    source_call_id: str | None = Field(default=None, description="tool_call_id of the same step; None: of no call")
    content: str | list[ContentPart] | None = None
    subagent_trajectory_ref: list[SubagentTrajectoryRef] | None = None
    extra: dict[str, Any] | None = None


class Observation(Closed):
    results: list[ObservationResult]


class ToolCall(Closed):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class Step(Closed):
    step_id: int = Field(ge=1)
    timestamp: str | None = Field(default=None, description="ISO 8601")
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    message: str | list[ContentPart]
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = Field(
        default=None, description="copied from another trajectory, not made in this one"
    )
    llm_call_count: int | None = Field(default=None, ge=0, description="0: no model was asked; None: not tracked")
    extra: dict[str, Any] | None = None

    @field_validator("timestamp")
    @classmethod
    def _iso_8601(cls, value: str | None) -> str | None:
        if value is not None:
            datetime.fromisoformat(value.replace("Z", "+00:00"))
        return value

    @model_validator(mode="after")
    def _fields_of_agents(self) -> Step:
        present = [name for name in _OF_AGENTS if getattr(self, name) is not None]
        if present and self.source != "agent":
            raise ValueError(f"{present[0]} belongs to steps of an agent, the source is {self.source!r}")
        asked = [name for name in ("metrics", "reasoning_content") if name in present]
        if asked and self.llm_call_count == 0:
            raise ValueError(f"{asked[0]} with llm_call_count 0: no model was asked")
        return self


class Trajectory(Closed):
    """A document. Messages of its rules name the field, since a rule over the whole has no place of its own."""

    schema_version: Version = ATIF
    session_id: str | None = Field(default=None, description="of the run; documents of one run may share it")
    trajectory_id: str | None = Field(default=None, description="of this document; embedded ones need it")
    agent: Agent
    steps: list[Step] = Field(min_length=1)
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    extra: dict[str, Any] | None = None
    subagent_trajectories: list[Trajectory] | None = None

    @model_validator(mode="after")
    def _steps_are_numbered(self) -> Trajectory:
        for index, step in enumerate(self.steps):
            if step.step_id != index + 1:
                raise ValueError(f"steps[{index}].step_id: {step.step_id}, and steps are numbered 1, 2, 3: {index + 1}")
        return self

    @model_validator(mode="after")
    def _embedded_have_ids(self) -> Trajectory:
        seen: set[str] = set()
        for index, embedded in enumerate(self.subagent_trajectories or ()):
            where = f"subagent_trajectories[{index}].trajectory_id"
            if embedded.trajectory_id is None:
                raise ValueError(f"{where}: missing, and an embedded trajectory needs it")
            if embedded.trajectory_id in seen:
                raise ValueError(f"{where}: {embedded.trajectory_id!r} is another embedded trajectory's too")
            seen.add(embedded.trajectory_id)
        return self

    @model_validator(mode="after")
    def _results_name_calls(self) -> Trajectory:
        for index, step in enumerate(self.steps):
            calls = {call.tool_call_id for call in step.tool_calls or ()}
            for place, result in enumerate(step.observation.results if step.observation else ()):
                if result.source_call_id is not None and result.source_call_id not in calls:
                    where = f"steps[{index}].observation.results[{place}].source_call_id"
                    raise ValueError(f"{where}: {result.source_call_id!r} is no tool_call_id of this step")
        return self


class ForeignEntry(Closed):
    """One imported document; `digest` is the document's. Its id is no id of an own attempt: those begin with their purpose."""

    id: str = Field(pattern=r"^foreign-[0-9a-f]{16}$", description="the first 16 digits of its digest")
    digest: Digest = Field(description="of the document as a JSON value")
    source: str = Field(description="name of the file that it was read from, printable")
    version: Version
    agent: str = Field(description="name of its agent, printable, shortened")
    steps: int = Field(ge=1)


class ForeignImport(Frozen):
    """The commit point of an import: `trajectories/<first digits of the artifact's digest>.json`."""

    schema_version: int = SCHEMA_VERSION
    artifact: ArtifactRef
    trajectories: list[ForeignEntry] = Field(min_length=1)

"""What one attempt was: everything that a replay, a regeneration or an attribution will need. Wall times are telemetry.

What is not stored now cannot be replayed later, so the rendered text, the exact token ids, the behaviour
log-probabilities, the composition of the batch and the raw observations are all here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from schemas.base import Digest, Frozen, Json
from schemas.task import Split
from schemas.verdict import Conduct, Reward, Verdict

ENDPOINT = "endpoint"  # the engine of a teacher's attempts: it answers for no policy of ours


class Purpose(StrEnum):
    DEMONSTRATION = "demonstration"
    HEADROOM = "headroom"
    RL = "rl"
    EVALUATION = "evaluation"
    ATTRIBUTION = "attribution"


class Sampling(Frozen):
    """How tokens are drawn. Part of the run pin."""

    engine: str = Field(default="transformers", description="transformers | scripted | vllm; endpoint: a teacher's")
    temperature: float = Field(default=1.0, ge=0, description="0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=96, ge=1, description="new tokens a turn")
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: int = Field(
        default=2,
        ge=1,
        description="CPU threads of the model, in training too: another count sums in another order and rounds differently",
    )
    batch: int = Field(
        default=128,
        ge=1,
        description="trajectories decoded together: another composition changes the last bits of the logits",
    )


class Noise(Frozen):
    """Shares of the tool results that a model gets broken, one way each; the rest come as they are."""

    timeout: float = Field(default=0.0, ge=0, le=1, description="no output, as at the wall limit")
    fail: float = Field(default=0.0, ge=0, le=1, description="exit code 1 and one line on stderr, nothing else")
    lose: float = Field(
        default=0.0, ge=0, le=1, description="without the second half of stdout and the collected files"
    )

    @model_validator(mode="after")
    def _at_most_all(self) -> Noise:
        if (whole := self.timeout + self.fail + self.lose) > 1:
            raise ValueError(f"timeout, fail and lose make {whole:g} of the tool results; give at most 1 together")
        return self


Hit = Literal["clean", "timeout", "fail", "lose"]


class BatchPlace(Frozen):
    """Where the row stood: another composition or padding may change the last bits of the logits."""

    batch: Digest = Field(description="digest of the ids of all rows, in order")
    row: int = Field(ge=0)
    rows: int = Field(ge=1)
    padded_to: int = Field(ge=0, description="columns of the prefill, padding included")


class Turn(Frozen):
    """The context grows: `prompt_ids` are only the tokens that this turn added before the model wrote."""

    index: int = Field(ge=0)
    policy: Digest = Field(description="digest of the weights that wrote this turn, or of a teacher's voice")
    policy_version: int = Field(default=0, ge=0, description="optimizer step of that policy within its phase")
    messages: list[dict[str, str]] = Field(
        description="role and content of what the environment said before this completion"
    )
    rendered: str = Field(
        description="text added by the template before the completion; prompt_ids encode exactly this"
    )
    prompt_ids: list[int]
    completion_ids: list[int] = Field(description="with the end token, if the model wrote one")
    logprobs: list[float] = Field(
        description="behaviour log-probability (natural) of each completion token at its temperature; none of a teacher's"
    )
    place: BatchPlace | None = None
    text: str = Field(description="decoded completion, special tokens removed")
    stop: Literal["eos", "length"]
    call: dict[str, Json] | None = Field(default=None, description="parsed action: name and arguments")
    parse_error: str | None = None
    tool_error: str | None = None
    forbidden: str | None = None
    visible: dict[str, Json] | None = Field(
        default=None, description="visible tests after this turn: passed, failed, first"
    )
    observation: str | None = Field(default=None, description="what the environment answered, before the template")
    result: str | None = Field(
        default=None, description="what the tool returned, before the harness cut it or put it into a message"
    )
    observation_truncated: bool = False
    noise: list[Hit] = Field(
        default_factory=list, description="under a noise profile, what became of each tool result of the turn, in order"
    )
    tree: Digest = Field(description="digest of the working tree after the turn")

    def tests(self) -> dict[str, Json] | None:
        """What the visible tests said; None where none ran, or where noise broke what they said."""
        return self.visible if all(hit == "clean" for hit in self.noise) else None


class Trajectory(Frozen):
    id: str = Field(description="<purpose>-<16 hex>: digest of all that determines it, so a rerun has the same id")
    purpose: Purpose
    task_id: str
    task: Digest
    split: Split
    family: str
    origin: str
    group: str | None = Field(default=None, description="RL group or evaluation item that it belongs to")
    parent: str | None = Field(default=None, description="trajectory whose prefix it continues")
    prefix_turn: int | None = None
    harness: Digest
    hint: str | None = None
    seed: int
    noise: Noise | None = Field(default=None, description="profile that its tool results were broken by; None: clean")
    sampling: Sampling
    status: Literal["done", "error"] = Field(description="error: infrastructure broke; it is in no mean and no group")
    reason: str | None = None
    turns: list[Turn]
    stop: str = Field(description="submitted | turn_limit | call_limit | parse_limit | token_limit | error")
    outcome: dict[str, str] = Field(description="changed files of the final tree: path -> text")
    outcome_digest: Digest
    conduct: Conduct

    def hits(self) -> int:
        """Tool results that noise broke."""
        return sum(hit != "clean" for turn in self.turns for hit in turn.noise)

    def conversation(self) -> list[dict[str, str]]:
        """Messages in TRL's conversational format, each completion as an assistant message."""
        return [m for turn in self.turns for m in (*turn.messages, {"role": "assistant", "content": turn.text})]

    def token_ids(self) -> list[int]:
        return [token for turn in self.turns for token in (*turn.prompt_ids, *turn.completion_ids)]

    def loss_mask(self) -> list[int]:
        """1 for what the model wrote, 0 for what the environment or the template wrote. Shape (tokens,)."""
        return [bit for turn in self.turns for bit in ([0] * len(turn.prompt_ids) + [1] * len(turn.completion_ids))]


class Attempt(Frozen):
    """A trajectory with its verdicts and its reward: one row of an attempts table."""

    trajectory: Trajectory
    verdict: Verdict
    audit: Verdict | None = None
    reward: Reward


class UseEdge(Frozen):
    """What a training row came from. Without these no recall is exact."""

    use: Literal["sft_row", "preference_pair", "group_member", "checkpoint", "promotion"]
    row: str = Field(description="id of the row, pair, group, checkpoint or promotion")
    trajectory: str | None = Field(default=None, description="None for a demonstration written from gold")
    task: Digest | None = None
    verdict: Digest | None = None
    reward: Digest | None = None
    rules: Digest | None = None
    advantage: float | None = None
    step: int | None = Field(default=None, description="optimizer step that used it")

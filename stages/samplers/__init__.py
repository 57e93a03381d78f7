"""What every sampler speaks: requests with exact token ids in, completions with ids, log-probabilities and place out.

Three engines answer the same protocol: `transformers` (own decode loop, CPU or GPU), `vllm` (an OpenAI-compatible
server) and `scripted` (a deterministic policy for canaries, hack hunts and demonstrations); `endpoint_sampler` asks a
teacher for demonstrations. Importing this module imports no ML library; `open_sampler` imports what the engine needs.

Not covered: beam search, penalties, stop strings. A completion ends at an end token or at `Sampling.max_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from schemas.base import Digest, Json
from schemas.errors import InputError
from schemas.goal import GoalRecord, RuntimeSpec
from schemas.task import Task
from schemas.trajectory import BatchPlace, Sampling

Message = Mapping[str, Json]

ENGINES = ("transformers", "vllm", "scripted")


@dataclass(frozen=True)
class SampleRequest:
    """One turn of one trajectory."""

    key: str  # trajectory id: what a sampler keeps between turns (KV cache) is kept under it
    turn: int  # from 0
    context_ids: Sequence[int]  # the whole context so far, in tokens
    new_from: int  # how many leading ids stood in this key's last context (its completion included); 0 in turn 0
    seed: int
    task_id: str
    text: str  # the text rendered for this turn
    messages: Sequence[Message] = ()  # the whole conversation so far


@dataclass(frozen=True)
class Completion:
    ids: list[int]  # with the end token, if the model wrote one
    logprobs: list[float]  # natural, at the sampling temperature, before top_p; one for each id, or none where unknown
    text: str  # decoded, special tokens removed
    stop: Literal["eos", "length"]
    place: BatchPlace | None  # None where the engine composes its batches by itself
    policy: Digest | None = None  # who answered, where it is not the sampler's `policy`


class Sampler(Protocol):
    """`policy` and `version` name the weights that answer. Not safe to share between threads."""

    name: str
    policy: Digest
    version: int

    def encode(self, text: str) -> list[int]:
        """Ids of exactly this text: nothing is added; special tokens in it are parsed as such."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens removed."""
        ...

    def render(self, messages: Sequence[Message], generate: bool = True) -> str:
        """The chat template over messages; `generate` adds the opening of the assistant's turn."""
        ...

    def plain(self, text: str) -> str:
        """The text with every special token's spelling broken, so that content cannot forge a turn."""
        ...

    @property
    def end(self) -> str:
        """Text of the token that ends a turn."""
        ...

    def sample(self, requests: Sequence[SampleRequest], sampling: Sampling) -> list[Completion]:
        """One completion a request, in order. Raises SamplerError when the engine failed."""
        ...

    def release(self, keys: Sequence[str]) -> None:
        """Forget what is kept for these trajectories; unknown keys are fine."""
        ...


def scripted(strategy: str, tasks: Sequence[Task], cache: Path, goal: GoalRecord) -> Sampler:
    """The scripted policy over these tasks, with the tokenizer of the goal's model."""
    from stages.models import fetch
    from stages.samplers.scripted_sampler import ScriptedSampler

    return ScriptedSampler(fetch(goal.spec.model, cache), {task.id: task for task in tasks}, strategy)


def open_sampler(
    sampling: Sampling, checkpoint: Path, runtime: RuntimeSpec | None = None, tasks: Mapping[str, Task] | None = None
) -> Sampler:
    """The sampler of `sampling.engine` over the model folder `checkpoint`.

    Engines: transformers; vllm (needs runtime.vllm_url, serving that very folder); scripted or scripted:STRATEGY with
    gold | wrong | noop | garbage | mixed | seldom | visible, the last three with @SHARE of gold (needs `tasks`, id -> task;
    only the tokenizer of the folder is used).
    Raises InputError for an engine that does not exist or lacks what it needs, SamplerError for a silent server.
    """
    runtime = runtime or RuntimeSpec()
    engine, _, strategy = sampling.engine.partition(":")
    if engine == "transformers" and not strategy:
        from stages.samplers.transformers_sampler import TransformersSampler

        use_threads(sampling.threads)
        return TransformersSampler(checkpoint, dtype=sampling.dtype, device=runtime.device)
    if engine == "vllm" and not strategy:
        from stages.samplers.vllm_sampler import VllmSampler

        if not runtime.vllm_url:
            raise InputError(
                "sampling.engine vllm: runtime.vllm_url is not set; give the server's URL, e.g. http://127.0.0.1:8000"
            )
        return VllmSampler(runtime.vllm_url, checkpoint)
    if engine == "scripted":
        from stages.samplers.scripted_sampler import ScriptedSampler

        return ScriptedSampler(checkpoint, tasks or {}, strategy or "gold")
    raise InputError(
        f"sampling.engine {sampling.engine!r}: no such engine; use transformers, vllm or scripted[:strategy]"
    )


def use_threads(count: int) -> None:
    """CPU threads of every model of this process from now on: part of what is computed, so the spec says how many."""
    import torch

    torch.set_num_threads(count)

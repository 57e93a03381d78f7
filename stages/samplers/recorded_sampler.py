"""A sampler that answers with nothing: for replays, where every turn is taken from the record (`parent`, `prefix_turn`).

It is asked only when an attempt goes on beyond its record, which is a difference that the replay reports. Its template
is plain text and its tokens are none: a replay compares what the environment said and did, never ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.trajectory import Sampling
from stages.samplers import Completion, Message, SampleRequest


class RecordedSampler:
    """`policy` names no weights."""

    name = "recorded"
    policy = "0" * 64
    version = 0
    end = "\n"

    def encode(self, text: str) -> list[int]:
        return []

    def decode(self, ids: Sequence[int]) -> str:
        return ""

    def render(self, messages: Sequence[Message], generate: bool = True) -> str:
        said = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return f"{said}assistant: " if generate else said

    def plain(self, text: str) -> str:
        return text

    def sample(self, requests: Sequence[SampleRequest], sampling: Sampling) -> list[Completion]:
        return [Completion([], [], "", "length", None) for _ in requests]

    def release(self, keys: Sequence[str]) -> None:
        return None

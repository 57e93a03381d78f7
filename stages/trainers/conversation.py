"""A conversation as token ids and loss mask, rendered piece by piece exactly as a rollout renders it.

The chat template has no generation markers and must stay as it is, so the mask comes from incremental rendering: what
the template adds before an assistant turn (mask 0), then the assistant's text and the end token (mask 1). Whatever the
template writes after the end token (a newline) belongs to the environment and opens the next piece. Each piece is
encoded alone, since a rollout never encodes across the border between a prompt and what the model wrote.

Not covered: templates that rewrite earlier turns when later ones arrive (they are refused), images, tool schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.errors import InputError

Message = dict[str, str]


@dataclass(frozen=True)
class Tokenized:
    """ids and mask have the same length; mask is 1 exactly on what the assistant wrote, end tokens included."""

    ids: list[int]
    mask: list[int]

    def labels(self) -> list[int]:
        return [token if bit else -100 for token, bit in zip(self.ids, self.mask, strict=True)]


def plain(tokenizer: Any, text: str) -> str:
    """Text with every special token's spelling broken, as rollouts do, so that no content can forge or end a turn."""
    for token in sorted(map(str, tokenizer.all_special_tokens), key=len, reverse=True):
        if len(token) > 1:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def render(tokenizer: Any, messages: Sequence[Message], open_turn: bool = False) -> str:
    """The template's text; with `open_turn` it ends where the assistant begins to write."""
    if not messages:
        return ""
    return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=open_turn))


def tokenize_conversation(tokenizer: Any, messages: Sequence[Message], name: str = "conversation") -> Tokenized:
    """Ids and loss mask of a conversation, up to its last assistant turn.

    Raises InputError, naming `name` and the turn, when the template does not render turns as prefixes of one another,
    or no assistant turn exists.
    """
    messages = [{**message, "content": plain(tokenizer, message["content"])} for message in messages]
    ids: list[int] = []
    mask: list[int] = []
    seen = ""
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        opened = render(tokenizer, messages[:place], open_turn=True)
        written = message["content"] + tokenizer.eos_token
        whole = render(tokenizer, messages[: place + 1])
        for expected, got in ((seen, opened), (opened + written, whole)):
            if not got.startswith(expected):
                raise InputError(
                    f"{name}: turn {place} is not rendered as a continuation: {_difference(expected, got)}; "
                    "use a template that appends turns and leaves earlier ones as they were"
                )
        for text, bit in ((opened[len(seen) :], 0), (written, 1)):
            piece = tokenizer.encode(text, add_special_tokens=False)
            ids += piece
            mask += [bit] * len(piece)
        seen = opened + written
    if not seen:
        raise InputError(f"{name}: 0 assistant turns in {len(messages)} messages; nothing to train on")
    return Tokenized(ids, mask)


def _difference(expected: str, got: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), min(len(expected), len(got)))
    return f"at character {at} expected {expected[at : at + 30]!r}, got {got[at : at + 30]!r}"

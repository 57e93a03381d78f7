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
    ids: list[int] = []
    mask: list[int] = []
    seen = ""
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        opened = render(tokenizer, messages[:place], open_turn=True)
        written = message["content"] + tokenizer.eos_token
        whole = render(tokenizer, messages[: place + 1])
        if not opened.startswith(seen) or not whole.startswith(opened + written):
            raise InputError(
                f"{name}: turn {place} is not rendered as a continuation (expected {_tail(opened + written)!r}, "
                f"got {_tail(whole)!r}); use a template that appends turns unchanged"
            )
        for text, bit in ((opened[len(seen) :], 0), (written, 1)):
            piece = tokenizer.encode(text, add_special_tokens=False)
            ids += piece
            mask += [bit] * len(piece)
        seen = opened + written
    if not seen:
        raise InputError(f"{name}: 0 assistant turns in {len(messages)} messages; nothing to train on")
    return Tokenized(ids, mask)


def _tail(text: str) -> str:
    return text[-40:]

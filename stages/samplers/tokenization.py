"""Tokenizer and chat template of a model folder, as every sampler uses them: local files only, no remote code.

Not covered: multimodal processors, slow (Python) tokenizers with side files that are not in the folder.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.errors import InputError
from stages.models import template_of
from stages.samplers import Message


def quiet() -> None:
    """No network, no telemetry, no progress bars of the hub's libraries; idle OpenMP threads sleep."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers.utils import logging as hub_logging

    hub_logging.disable_progress_bar()


class Tokenization:
    """Raises InputError when the folder has no usable tokenizer or template."""

    def __init__(self, folder: Path) -> None:
        quiet()
        from transformers import AutoTokenizer

        self._template = template_of(folder)
        if "strftime_now" in self._template:
            raise InputError(
                f"model {folder}: its chat template asks for today's date; write a fixed date in the template"
            )
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0][:200]
            raise InputError(
                f"model {folder}: its tokenizer does not load: {reason}; save it again with save_pretrained"
            ) from error
        if self.tokenizer.eos_token is None:
            raise InputError(f"model {folder}: its tokenizer has no end token; set eos_token in tokenizer_config.json")
        self._special = sorted((str(token) for token in self.tokenizer.all_special_tokens), key=len, reverse=True)
        self.stop_ids = _stop_ids(folder, self.tokenizer)

    @property
    def end(self) -> str:
        return str(self.tokenizer.eos_token)

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self.tokenizer.encode(text, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def raw(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def render(self, messages: Sequence[Message], generate: bool = True) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=generate, chat_template=self._template
            )
        )

    def plain(self, text: str) -> str:
        """Spaces out each special token's spelling: `<|im_end|>` becomes `< |im_end|>`; other text is unchanged."""
        for token in self._special:
            if len(token) > 1:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text


def _stop_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    """The tokenizer's end token and those that generation_config.json names."""
    stops = {int(tokenizer.eos_token_id)}
    path = folder / "generation_config.json"
    if path.is_file():
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        stops |= set(named) if isinstance(named, list) else {named} if isinstance(named, int) else set()
    return frozenset(stops)

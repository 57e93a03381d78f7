"""The run pin: the identity of every input that could have changed a result, and which operations need which equal."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Digest, Frozen
from schemas.errors import PinMismatch

Operation = Literal["replay", "regenerate", "group", "mix"]

_REPLAY = ("tasks", "environment", "limits", "variables", "verifier", "rewards", "harness")
TABLE: dict[Operation, tuple[str, ...]] = {
    "replay": _REPLAY,
    "regenerate": (*_REPLAY, "policy", "tokenizer", "template", "sampling", "libraries"),
    "group": ("tasks", "environment", "limits", "variables", "verifier", "rewards", "harness", "policy", "sampling"),
    "mix": ("tasks", "verifier", "rewards"),
}


class RunPin(Frozen):
    """One file a person can diff: pin name -> digest. Provenance is shown and never compared."""

    pins: dict[str, Digest]
    provenance: dict[str, str] = Field(
        default_factory=dict, description="hardware, git commit, versions: never compared"
    )


def require_equal(operation: Operation, recorded: RunPin, present: RunPin, widened: tuple[str, ...] = ()) -> None:
    """Refuse with the pin's name and both values. `widened`: pins that the spec exempts; they go into the record."""
    for name in TABLE[operation]:
        if name in widened:
            continue
        before, now = recorded.pins.get(name, "absent"), present.pins.get(name, "absent")
        if before != now:
            raise PinMismatch(
                operation, name, before[:12], now[:12], f"restore it, or widen {operation} by naming {name}"
            )

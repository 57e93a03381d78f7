"""The run pin: the identity of every input that could have changed a result, and which operations need which equal.

Inputs of a record and pins of a round have exact names (`spec.sampling`, `verifier_repository`); the table speaks of pins
(`sampling`, `verifier`), and `pin_of` leads from the one to the other. A spec widens a row by naming a pin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from pydantic import Field, field_validator

from schemas.base import Digest, Frozen
from schemas.errors import PinMismatch

Operation = Literal["resume", "replay", "regenerate", "group", "mix", "rescore"]

_CHECKPOINT = ("base", "policy", "config", "tokenizer", "template", "files")
_PLACE = ("environment", "variables", "limits")
_REPLAY = ("tasks", *_PLACE, "verifier", "harness", "rewards")
TABLE: dict[Operation, tuple[str, ...]] = {
    # All that enters the key of some stage; of one stage only what enters its own is compared.
    "resume": (
        "libraries", "code", *_PLACE, "tasks", "verifier", "harness", "rewards", *_CHECKPOINT, "sampling", "budgets",
        "safety", "seed", "start", "champion", "demonstrations", "pairs", "material", "weights", "temperature", "data", "sft", "rl",
        "evaluation", "criteria", "backflow", "routes", "rules", "sft_gate", "seed_data", "barred", "past", "made",
        "previous", "rescores", "decisions", "in_vain", "noise",
    ),
    "replay": _REPLAY,
    # A replay takes the noise of each turn from the record, with the action.
    "regenerate": (*_REPLAY, *_CHECKPOINT, "sampling", "noise", "temperature", "libraries"),
    "group": (*(pin for pin in _REPLAY if pin != "variables"), "policy", "sampling", "noise", "hint"),
    "mix": ("tasks", "verifier", "rewards"),
    # Verifier and rules are what it changes; a verdict of another image or other limits would be of another key.
    "rescore": _PLACE,
}  # fmt: skip
_FAMILIES = ("verifier", "harness", "policy", "past", "made", "previous")
_SAME = {"audit_verifier": "verifier"}


class PinException(Frozen):
    """A mismatch that the spec had allowed by name: what ran, ran under `present`."""

    operation: Operation
    pin: str
    recorded: str = Field(description="digest, or `absent`")
    present: str


class PinsSpec(Frozen):
    """What a person allows to differ. It enters no key; what was allowed and did differ stands in the record."""

    widen: dict[Operation, list[str]] = Field(
        default_factory=dict,
        description="operation -> pins that may differ: resume, replay, regenerate, group, mix, rescore; used ones are recorded",
    )

    @field_validator("widen")
    @classmethod
    def _in_the_table(cls, value: dict[Operation, list[str]]) -> dict[Operation, list[str]]:
        for operation, names in value.items():
            for name in names:
                if pin_of(name) not in TABLE[operation]:
                    known = ", ".join(TABLE[operation])
                    raise ValueError(f"{operation} compares no pin {name[:40]!r}; name one of {known}")
        return value


class RunPin(Frozen):
    """One file a person can diff: pin name -> digest. Provenance is shown and never compared."""

    pins: dict[str, Digest]
    provenance: dict[str, str] = Field(
        default_factory=dict, description="hardware, git commit, versions: never compared"
    )


def pin_of(name: str) -> str:
    """The pin of the table that an exact name belongs to: `spec.sampling` is sampling, `verifier_repository` verifier."""
    name = name.removeprefix("spec.")
    first = name.partition("_")[0]
    return _SAME.get(name) or (first if first in _FAMILIES else name)


def require_equal(
    operation: Operation,
    recorded: Mapping[str, str],
    present: Mapping[str, str],
    widened: Collection[str] = (),
    subject: str = "",
) -> list[PinException]:
    """Compare what was recorded of the operation's row; returns the differences that `widened` allows, by pin or exact name.

    What was never recorded cannot be compared; what was and is no longer there is `absent`. `subject`: what is compared,
    where the operation alone does not say it. Raises PinMismatch with the pin's exact name and both values.
    """
    row, allowed = TABLE[operation], []
    compared = [name for name in recorded if pin_of(name) in row and recorded[name] != present.get(name, "absent")]
    for name in sorted(compared, key=lambda name: (row.index(pin_of(name)), len(name), name)):
        pin, shown = pin_of(name), name.removeprefix("spec.")
        before, now = recorded[name], present.get(name, "absent")
        if not {pin, name, shown} & set(widened):
            asked = f"{operation} {subject}".rstrip()
            raise PinMismatch(asked, shown, before[:12], now[:12], _remedy(operation, pin))
        allowed.append(PinException(operation=operation, pin=shown, recorded=before, present=now))
    return allowed


_WAYS: dict[Operation, str] = {
    "resume": "restore it, or end the round with `postloop run --abandon`",
    "replay": "restore it",
    "regenerate": "restore it, or replay without --regenerate",
    "group": "sample the group again",
    "mix": "leave the attempt out",
    "rescore": "restore it",
}


def _remedy(operation: Operation, pin: str) -> str:
    way = _WAYS[operation]
    if pin == "libraries":
        way = way.replace("restore it", "install the recorded requirements.lock")
    return f"{way}, or allow it in goal.yaml: pins: {{widen: {{{operation}: [{pin}]}}}}"

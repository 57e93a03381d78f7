"""What every spec and record is made of: frozen, closed models with one canonical form and one digest.

A digest is the SHA-256 of the canonical JSON of a value. What has no stable form (NaN, a callable, an object that is
not plain data) is refused, never turned into a string: a fingerprint that falls back to `str(x)` is a coincidence.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

SCHEMA_VERSION = 1
Json: TypeAlias = JsonValue
Digest: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, lower-case hex")]
Name: TypeAlias = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,63}$", description="a short machine name")]


class Closed(BaseModel):
    """Immutable, no unknown fields, no NaN or infinity on the wire."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


class Frozen(Closed):
    """A spec or record with an identity computed from its content."""

    def digest(self) -> str:
        return digest_of(self.model_dump(mode="json"))


def canonical(value: Any) -> bytes:
    """The one JSON form of a plain value: sorted keys, no spaces, UTF-8. Raises TypeError, ValueError on anything else."""
    _refuse_unstable(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def _refuse_unstable(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"no stable form: the key {key!r} is not a string")
            _refuse_unstable(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_unstable(item)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"no stable form: {value!r}")
    elif value is not None and not isinstance(value, str | int | bool):
        raise TypeError(f"no stable form: {type(value).__name__}")

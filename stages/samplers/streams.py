"""One random stream a trajectory and turn, and the draw that uses one number a token.

A token is drawn by inverse CDF: uniform number -> first token, in id order, whose cumulative probability exceeds it.
One number a token, taken from (seed, task, turn, position) alone, so what a row draws depends on no other row, on no
order and on no engine state; and a last-bit change of the logits (another batch composition) changes a token only when
the number falls between two almost equal bounds. Noise on every logit would need vocabulary-many numbers a token.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from schemas.base import canonical


def uniforms(seed: int, task_id: str, turn: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1), by position. The task enters, so that equal seeds on two tasks are independent."""
    key = hashlib.sha256(canonical([seed, task_id, turn])).digest()[:16]
    stream = np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype="<u8")))
    return stream.random(count)

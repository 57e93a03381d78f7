"""Tools that fail by themselves, as a spec declares them: which results are hit, and what is left of them.

A hit is drawn from the attempt's seed, its task, the turn and the call alone, so an attempt that is sampled again meets the
same noise, and a clean attempt draws nothing. What is left is a result that a program could have given: a harness needs to
know nothing of noise, and the attempt goes on.

Not covered: tools that a harness answers by itself, such as reading a file; delays, which no observation shows.
"""

from __future__ import annotations

from schemas.base import digest_of
from schemas.execution import ExecutionResult, Stop
from schemas.trajectory import Hit, Noise

FAILED = "the tool is temporarily unavailable"


def drawn(noise: Noise, seed: int, task_id: str, turn: int, call: int) -> Hit:
    """What becomes of this tool result. `turn` and `call`, of the turn, count from 0."""
    left = int(digest_of(["noise", seed, task_id, turn, call])[:8], 16) / 2**32
    shares: dict[Hit, float] = {"timeout": noise.timeout, "fail": noise.fail, "lose": noise.lose}
    for hit, share in shares.items():
        if left < share:
            return hit
        left -= share
    return "clean"


def broken(result: ExecutionResult, hit: Hit) -> ExecutionResult:
    """What the model gets of it."""
    if hit == "timeout":
        return ExecutionResult(stop=Stop.WALL, exit_code=None, stdout="", stderr="")
    if hit == "fail":
        return ExecutionResult(stop=Stop.EXIT, exit_code=1, stdout="", stderr=FAILED)
    if hit == "lose":
        return result.model_copy(update={"stdout": result.stdout[: len(result.stdout) // 2], "files": {}})
    return result

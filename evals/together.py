"""Many executions in few sandboxes, for a verifier bundle that can keep them apart (`packs` in its bundle.json).

The bundle makes one execution of many (`pack`) and says of each what it would have given alone, or that it has to run alone
(`unpack`). So sharing changes what judging costs, and no verdict: whatever is out of the ordinary is left out here.

Covered: a pack that broke off, one that its limits ended, a bundle that answers nonsense (all of it then runs alone).
Not covered: how the bundle keeps them apart; see the keepers of evals/verifiers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from environments.bundles import Bundle
from schemas.errors import InfrastructureError
from schemas.execution import Execution, ExecutionResult, Limits

if TYPE_CHECKING:
    from evals.verify import FanOut, Ran

FEWEST, MOST = 8, 64  # executions in a sandbox; fewer would not pay


class Wanted(NamedTuple):
    """An execution, and where the bundle knows it from: the request's id and its number there."""

    id: str
    number: int
    execution: Execution


class _Pack(NamedTuple):
    """Many executions as one: their digests in its order."""

    id: str
    members: list[str]
    execution: Execution


def can_pack(bundle: Bundle) -> bool:
    return bool(json.loads((bundle.folder / "bundle.json").read_bytes()).get("packs"))


def run_together(
    bundle: Bundle, limits: Limits, run: Callable[[Execution], Ran], wanted: dict[str, Wanted], fan_out: FanOut
) -> dict[str, ExecutionResult]:
    """Result by digest of those that could share a sandbox. What is missing has to run alone."""
    results: dict[str, ExecutionResult] = {}
    waiting = list(wanted)
    try:
        while len(waiting) >= FEWEST:
            packs = [pack for part in _parts(waiting) if (pack := _pack(bundle, limits, part, wanted))]
            answers = fan_out(run, [pack.execution for pack in packs]) if packs else []
            left = set(waiting).difference(*(pack.members for pack in packs))
            for pack, answer in zip(packs, answers, strict=True):
                for digest, said in zip(pack.members, _unpack(bundle, pack, answer), strict=True):
                    if isinstance(said, ExecutionResult):
                        results[digest] = said
                    elif said == "again":
                        left.add(digest)
            if len(left) == len(waiting):
                break
            waiting = [digest for digest in waiting if digest in left]
    except (InfrastructureError, ValidationError, LookupError, TypeError, ValueError):
        pass  # it is asked for each of them alone, and then says what is wrong
    return results


def _parts(digests: list[str]) -> list[list[str]]:
    """In order, alike in size: one for each core where that leaves FEWEST, more where one would hold over MOST."""
    count = len(digests)
    parts = max(1, -(-count // MOST), min(len(os.sched_getaffinity(0)), count // FEWEST))
    ends = [count * number // parts for number in range(parts + 1)]
    return [digests[start:end] for start, end in pairwise(ends)]


def _pack(bundle: Bundle, limits: Limits, digests: list[str], wanted: dict[str, Wanted]) -> _Pack | None:
    places = [[wanted[digest].id, wanted[digest].number] for digest in digests]
    name = bundle.fresh_id()
    reply = bundle.ask({"op": "pack", "id": name, "wanted": places, "limits": limits.model_dump()})
    members = [digests[index] for index in reply["members"]]
    return _Pack(name, members, Execution.model_validate(reply["execute"])) if members else None


def _unpack(bundle: Bundle, pack: _Pack, answer: Ran) -> list[ExecutionResult | str]:
    result = answer.model_dump(mode="json") if isinstance(answer, ExecutionResult) else None
    said = bundle.ask({"op": "unpack", "id": pack.id, "result": result})["results"]
    return [item if isinstance(item, str) else ExecutionResult.model_validate(item) for item in said]

"""Many executions in few sandboxes, for a verifier bundle that can keep them apart (`packs` in its bundle.json).

The bundle makes one execution of many (`pack`) and says of each what it would have given alone, or that it has to run alone
(`unpack`). So sharing changes what judging costs, and no verdict: whatever is out of the ordinary is left out here.

Covered: a pack that broke off, one that its limits ended, a bundle that answers nonsense (all of it then runs alone).
Not covered: how the bundle keeps them apart; see the keepers of evals/verifiers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pydantic import ValidationError

from environments.bundles import Bundle
from schemas.errors import InfrastructureError
from schemas.execution import Execution, ExecutionResult, Limits

if TYPE_CHECKING:
    from evals.verify import FanOut, Ran

FEWEST, MOST = 8, 48  # executions in a sandbox; fewer would not pay, of more not all get their turn
_NO_ANSWER = (InfrastructureError, ValidationError, LookupError, TypeError, ValueError)
A = TypeVar("A")


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


def most_together(bundle: Bundle) -> int:
    """How many attempts its packs are for: a number in its bundle.json, MOST where it says true; 0 when it makes none."""
    packs = json.loads((bundle.folder / "bundle.json").read_bytes()).get("packs")
    return MOST if packs is True else packs if isinstance(packs, int) else 0


def run_together(
    bundle: Bundle,
    limits: Limits,
    run: Callable[[Execution], Ran],
    wanted: dict[str, Wanted],
    parts: Iterable[Sequence[str]],
    fan_out: FanOut,
    most: int,
) -> dict[str, ExecutionResult]:
    """Result by digest of those that could share a sandbox. What is missing has to run alone.

    `parts`: lists of digests, which are in `wanted` once the part is taken; all are, each when the pack before it is made.
    `most`: executions in a part of those whose turn did not come the first time.
    """
    sharing, results = _Sharing(bundle, limits, wanted), dict[str, ExecutionResult]()
    while True:
        packs: list[_Pack] = []
        left: list[str] = []
        answers = list(fan_out(run, sharing.packed(parts, packs, left)))
        said: dict[str, ExecutionResult | str] = {}
        for pack, answer in zip(packs, answers, strict=True):
            said |= zip(pack.members, sharing.unpack(pack, answer), strict=False)
        results |= {digest: item for digest, item in said.items() if isinstance(item, ExecutionResult)}
        left += [digest for digest, item in said.items() if item == "again"]
        if sharing.broken or not said or len(left) < FEWEST or all(item == "again" for item in said.values()):
            return results
        parts = parts_of(left, most)


def parts_of(items: Sequence[A], most: int) -> list[Sequence[A]]:
    """In order, alike in size: one for each core where that leaves FEWEST, several for each where one would hold over `most`."""
    cores, count = len(os.sched_getaffinity(0)), len(items)
    parts = max(min(cores, count // FEWEST), -(-count // (most * cores)) * cores if count > most * cores else 1)
    ends = [count * number // parts for number in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(ends) if start < end]


class _Sharing:
    """The questions about packs. `broken`: one of them got no good answer, so no more are asked.

    Each execution is then asked for alone, and its answer says what is wrong.
    """

    def __init__(self, bundle: Bundle, limits: Limits, wanted: dict[str, Wanted]) -> None:
        self.bundle, self.limits, self.wanted = bundle, limits, wanted
        self.broken = False

    def packed(self, parts: Iterable[Sequence[str]], packs: list[_Pack], left: list[str]) -> Iterator[Execution]:
        """The executions of packs, which are added to `packs`; to `left` what is in none of them."""
        for part in parts:
            pack = None if self.broken or len(part) < FEWEST else self.pack(part)
            members = set(pack.members) if pack else set()
            left += [digest for digest in part if digest not in members]
            if pack:
                packs.append(pack)
                yield pack.execution

    def pack(self, digests: Sequence[str]) -> _Pack | None:
        places = [[self.wanted[digest].id, self.wanted[digest].number] for digest in digests]
        name = self.bundle.fresh_id()
        try:
            reply = self.bundle.ask({"op": "pack", "id": name, "wanted": places, "limits": self.limits.model_dump()})
            members = [digests[index] for index in reply["members"]]
            return _Pack(name, members, Execution.model_validate(reply["execute"])) if members else None
        except _NO_ANSWER:
            self.broken = True
            return None

    def unpack(self, pack: _Pack, answer: Ran) -> list[ExecutionResult | str]:
        """Of each member; nothing when there is no good answer."""
        if self.broken:
            return []
        result = answer.model_dump(mode="json") if isinstance(answer, ExecutionResult) else None
        try:
            said = self.bundle.ask({"op": "unpack", "id": pack.id, "result": result})["results"]
            found = [item if isinstance(item, str) else ExecutionResult.model_validate(item) for item in said]
            if len(found) != len(pack.members):
                raise ValueError(f"{len(found)} results of {len(pack.members)} executions")
            return found
        except _NO_ANSWER:
            self.broken = True
            return []

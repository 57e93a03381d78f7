"""Groups of attempts and how they lie in one optimizer step. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import InputError
from schemas.trajectory import Trajectory


@dataclass(frozen=True)
class Member:
    """One attempt of a group. reward None: an error or unscored, kept out of the baseline."""

    trajectory: Trajectory
    reward: float | None


Group = list[Member]


@dataclass
class Row:
    """A slot of the step: ids, and for each completion token its mask and behaviour log-probability."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]
    logprobs: list[float]
    member: Member | None

    @property
    def reward(self) -> float | None:
        return self.member.reward if self.member is not None else None


@dataclass
class Step:
    """What one optimizer step saw, filled as it happens. Tokens are scored tokens only."""

    rows: list[Row]
    groups: list[Group]
    advantages: list[float] = field(default_factory=list)
    ratios: list[tuple[float, float]] = field(default_factory=list)  # (log p trainer - log p sampler, advantage)
    entropies: list[float] = field(default_factory=list)
    kl_rows: list[tuple[list[int], list[int], Any]] = field(default_factory=list)  # ids, scored places, log p now
    kl: float | None = None
    measured: dict[str, float] = field(default_factory=dict)


def lay_out(groups: Sequence[Group], slots: int, size: int, filler: int) -> list[Row]:
    """`slots * size` rows, group after group. A missing group, and a member that wrote nothing, is a masked filler row.

    Raises InputError for more groups than slots or a group that has not `size` members.
    """
    if len(groups) > slots:
        raise InputError(f"grpo: {len(groups)} groups for a step of {slots}; return at most {slots}")
    rows = []
    for group in groups:
        if len(group) != size:
            raise InputError(f"grpo: a group of {len(group)} members, group_size is {size}; mark failed members None")
        rows += [_row(member, filler) for member in group]
    return rows + [_filler(filler, None) for _ in range(slots * size - len(rows))]


def _filler(token: int, member: Member | None) -> Row:
    return Row([token], [token], [0], [0.0], member)


def _row(member: Member, filler: int) -> Row:
    """The first turn's prompt, then all that followed: the model's tokens (mask 1) and the environment's (mask 0)."""
    turns = member.trajectory.turns
    if member.reward is None or member.trajectory.status == "error" or not any(turn.completion_ids for turn in turns):
        return _filler(filler, Member(member.trajectory, None))
    row = Row(list(turns[0].prompt_ids), [], [], [], member)
    for index, turn in enumerate(turns):
        context = turn.prompt_ids if index else []
        row.completion += [*context, *turn.completion_ids]
        row.mask += [0] * len(context) + [1] * len(turn.completion_ids)
        row.logprobs += [0.0] * len(context) + list(turn.logprobs)
    return row

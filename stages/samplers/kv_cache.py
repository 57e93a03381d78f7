"""Key-value caches: preallocated while decoding, sliced out for one row, kept between turns within a byte budget.

Only full attention: a sliding-window or recurrent layer keeps no state that can be cut and joined by columns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

Layers = list[tuple[torch.Tensor, torch.Tensor]]  # one (keys, values) a layer, each [heads, tokens, width] for one row


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """Writes in place into room for `capacity` columns, where the usual layer copies everything for each new token."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.used = 0
        self.room: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.room is None:
            self.open(key_states, value_states)
        assert self.room is not None
        end = self.used + key_states.shape[-2]
        self.room[0][:, :, self.used : end] = key_states
        self.room[1][:, :, self.used : end] = value_states
        self._show(end)
        return self.keys, self.values

    def open(self, keys: torch.Tensor, values: torch.Tensor, rows: int | None = None) -> None:
        """Room for `rows` (default: as many as `keys` has) in the shape of a [rows, heads, columns, width] sample.

        Zeros, not garbage: a masked column still meets a weight of 0, and 0 x NaN would be NaN.
        """
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        rows = keys.shape[0] if rows is None else rows
        self.room = (
            keys.new_zeros((rows, keys.shape[1], self.capacity, keys.shape[3])),
            values.new_zeros((rows, values.shape[1], self.capacity, values.shape[3])),
        )
        self._show(0)

    def put(self, row: int | list[int], start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Lay [heads, tokens, width] into the columns from `start` of one or several rows."""
        assert self.room is not None
        self.room[0][row, :, start : start + keys.shape[1]] = keys
        self.room[1][row, :, start : start + values.shape[1]] = values

    def keep_rows(self, rows: torch.Tensor) -> None:
        assert self.room is not None
        old, used = self.room, self.used
        self.open(old[0], old[1], rows=len(rows))
        assert self.room is not None
        for new_room, old_room in zip(self.room, old, strict=True):
            new_room[:, :, :used] = old_room[:, :, :used].index_select(0, rows)
        self._show(used)

    def _show(self, used: int) -> None:
        assert self.room is not None
        self.used = used
        self.keys, self.values = self.room[0][:, :, :used], self.room[1][:, :, :used]


class RoomyCache(Cache):  # type: ignore[misc]
    def __init__(self, layers: int, capacity: int) -> None:
        self.roomy = [RoomyLayer(capacity) for _ in range(layers)]
        super().__init__(layers=self.roomy)

    def row(self, row: int, spans: Sequence[tuple[int, int]]) -> Layers:
        """Copies of the columns [start, end) of one row, joined."""
        return [
            (
                torch.cat([layer.keys[row, :, start:end] for start, end in spans], dim=1),
                torch.cat([layer.values[row, :, start:end] for start, end in spans], dim=1),
            )
            for layer in self.roomy
        ]

    def lay(self, row: int | list[int], start: int, layers: Layers, rows: int) -> None:
        """Put one row's columns into `row` (opened for `rows` rows at the first time)."""
        for layer, (keys, values) in zip(self.roomy, layers, strict=True):
            if layer.room is None:
                layer.open(keys[None], values[None], rows=rows)
            layer.put(row, start, keys, values)

    def filled(self, columns: int) -> None:
        for layer in self.roomy:
            layer._show(columns)

    def keep_rows(self, rows: torch.Tensor) -> None:
        for layer in self.roomy:
            layer.keep_rows(rows)


@dataclass
class Held:
    ids: list[int]  # the tokens whose keys and values these are
    layers: Layers

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for layer in self.layers for part in layer)


class Shelf:
    """What is kept between turns. The longest unused goes first when `budget_bytes` is exceeded."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes, self.bytes = budget_bytes, 0
        self._held: OrderedDict[str, Held] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def prefix(self, key: str, ids: Sequence[int]) -> Held | None:
        """What is held of a context, if it is a true prefix of it."""
        held = self._held.get(key)
        if held is None or len(held.ids) >= len(ids) or list(ids[: len(held.ids)]) != held.ids:
            return None
        self._held.move_to_end(key)
        return held

    def put(self, key: str, held: Held) -> None:
        self.drop(key)
        if held.bytes > self.budget_bytes:
            return
        self._held[key] = held
        self.bytes += held.bytes
        while self.bytes > self.budget_bytes:
            self.drop(next(iter(self._held)))

    def drop(self, key: str) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self.bytes -= held.bytes

    def clear(self) -> None:
        self._held.clear()
        self.bytes = 0

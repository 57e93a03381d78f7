"""The pool: each thing is handed out once, some are ready, what broke while it waited does not count."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from environments.engines.pool import Pool
from schemas.errors import SandboxError


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Shop:
    """Makes numbered things, and fails while it is closed."""

    def __init__(self, spare: int) -> None:
        self.made: list[tuple[str, int]] = []
        self.destroyed: list[tuple[str, int]] = []
        self.broken: set[tuple[str, int]] = set()
        self.closed = False
        self.pool: Pool[str, tuple[str, int]] = Pool(self.make, self.is_good, self.destroyed.append, spare, 1, 5)

    def is_good(self, thing: tuple[str, int]) -> bool:
        return thing not in self.broken

    def make(self, kind: str) -> tuple[str, int]:
        if self.closed:
            raise SandboxError("closed")
        self.made.append((kind, len(self.made)))
        return self.made[-1]


def test_a_pool_hands_each_thing_out_once_and_keeps_some_ready() -> None:
    shop = Shop(spare=2)
    taken = [shop.pool.take("a") for _ in range(5)]
    assert len(set(taken)) == 5
    until(lambda: len(shop.made) == 7)
    for kind in ("b", "c"):  # once each: none of these is made ahead
        assert shop.pool.take(kind)[0] == kind
    until(lambda: set(shop.destroyed) == {thing for thing in shop.made if thing[0] == "a"} - set(taken))
    shop.pool.close()
    used = {*taken, *(thing for thing in shop.made if thing not in shop.destroyed)}
    assert len(shop.made) - len(shop.destroyed) == len(used) == 7


def test_what_broke_while_it_waited_is_made_again() -> None:
    shop = Shop(spare=1)
    for _ in range(2):
        shop.pool.take("a")
    until(lambda: len(shop.made) == 3)
    shop.broken.add(shop.made[2])
    assert shop.pool.take("a") not in shop.broken
    until(lambda: shop.destroyed == [shop.made[2]])
    shop.closed = True
    time.sleep(0.1)
    with contextlib.suppress(SandboxError):
        for _ in range(3):
            shop.pool.take("a")
    with pytest.raises(SandboxError, match="closed"):
        shop.pool.take("a")
    shop.closed = False
    assert shop.pool.take("a")
    shop.pool.close()

"""Things that are made before they are needed, each handed out once.

Covered: making and destroying in the background, more than one kind, what was made before its maker broke down, a fork of
the process. Not covered: using anything twice; that is the point.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Generic, TypeVar

from schemas.errors import SandboxError

Kind = TypeVar("Kind", bound=Hashable)
Thing = TypeVar("Thing")
_KINDS = 2  # kinds that are kept ready at once: the two that were asked for last


class Pool(Generic[Kind, Thing]):
    """`make` raises SandboxError; `destroy` raises nothing. Thread-safe."""

    def __init__(
        self,
        make: Callable[[Kind], Thing],
        is_good: Callable[[Thing], bool],
        destroy: Callable[[Thing], None],
        spare: int,
        workers: int,
        timeout_s: float,
    ) -> None:
        self._make, self._is_good, self._destroy = make, is_good, destroy
        self._spare, self._count, self._timeout_s = spare, workers, timeout_s
        self._lock = threading.Lock()
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._workers = ThreadPoolExecutor(self._count, thread_name_prefix="warm")
        self._ready: OrderedDict[Kind, deque[Future[Thing]]] = OrderedDict()

    def take(self, kind: Kind) -> Thing:
        """One that nobody has used, made ahead from the second of its kind on. Raises what `make` raises."""
        future, idle = self._reserve(kind)
        for other in idle:
            self._forget(other)
        early = future.done()
        try:
            thing = future.result(self._timeout_s)
        except SandboxError:
            if not early:
                raise
        except (FutureTimeout, CancelledError):
            self._forget(future)
            raise SandboxError(f"sandbox: none was ready within {self._timeout_s:g} s; try fewer at once") from None
        except BaseException:
            self._forget(future)
            raise
        else:
            if self._is_good(thing):
                return thing
            self.discard(thing)
        return self._make(kind)  # what broke while it waited says nothing about now

    def _reserve(self, kind: Kind) -> tuple[Future[Thing], list[Future[Thing]]]:
        with self._lock:
            if self._process != os.getpid():
                self._begin()  # a fork: the parent's are not ours
            spare = self._spare if kind in self._ready else 0  # what is asked for once may never be asked for again
            queue = self._ready.setdefault(kind, deque())
            self._ready.move_to_end(kind)
            while len(queue) <= spare:
                queue.append(self._workers.submit(self._make, kind))
            idle: list[Future[Thing]] = []
            while len(self._ready) > _KINDS:
                idle += self._ready.popitem(last=False)[1]
            return queue.popleft(), idle

    def discard(self, thing: Thing) -> None:
        """Destroy in the background."""
        if self._process == os.getpid() and not self._closed:
            with contextlib.suppress(RuntimeError):  # the interpreter is ending
                self._workers.submit(self._destroy, thing)
                return
        self._destroy(thing)

    def _forget(self, future: Future[Thing]) -> None:
        """Destroy what comes of it, whenever that is."""

        def done(made: Future[Thing]) -> None:
            if not made.cancelled() and made.exception() is None:
                self.discard(made.result())

        if not future.cancel():
            future.add_done_callback(done)

    def close(self) -> None:
        """Destroy all that is ready and wait until it is gone; what is in use is its user's."""
        with self._lock:
            if self._closed or self._process != os.getpid():
                return
            self._closed = True
            futures = [future for queue in self._ready.values() for future in queue]
            self._ready.clear()
        for future in futures:
            self._forget(future)
        self._workers.shutdown(wait=True)

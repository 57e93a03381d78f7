"""One environment, ready to run executions: engine, root, limits, retries, and a memo of what was already run.

The same execution in the same image under the same limits is run once: its digest is its key. That is what a pinned,
network-less, deterministic environment promises, and the canary checks before each round that the promise holds.
"""

from __future__ import annotations

import threading
from pathlib import Path

from environments.engines import Engine, base
from schemas.base import digest_of
from schemas.errors import SandboxError
from schemas.execution import Environment, Execution, ExecutionResult, Limits, Stop

MAYBE_THE_MACHINE = (Stop.WALL, Stop.SIGNAL)


class Runner:
    """Thread-safe. Counts what it ran; the counts and times are telemetry."""

    def __init__(self, engine: Engine, environment: Environment, root: Path, limits: Limits, retries: int = 2) -> None:
        self.engine, self.environment, self.root, self.limits, self.retries = engine, environment, root, limits, retries
        self.image = environment.layer
        self.limits_digest = limits.digest()
        self.telemetry: dict[str, float] = {
            "executions": 0,
            "memo_hits": 0,
            "cpu_s": 0.0,
            "wall_s": 0.0,
            "retries": 0,
            "network": 0.0,
        }
        self._memo: dict[str, ExecutionResult] = {}
        self._lock = threading.Lock()

    def run(self, execution: Execution, *, fresh: bool = False) -> ExecutionResult:
        """Run, or answer from the memo. `fresh` runs again (a repeat, a canary). Raises SandboxError past the retries."""
        key = digest_of(execution.model_dump(mode="json"))
        if not fresh:
            with self._lock:
                if key in self._memo:
                    self.telemetry["memo_hits"] += 1
                    return self._memo[key]
        result = self._settle(execution)
        with self._lock:
            self._memo[key] = result
        return result

    def prove(self) -> None:
        """Raises SandboxError where nothing can be run any more."""
        python = base.find_python(self.root)
        if python is not None:
            first = self.engine.run(self.root, self.environment, base.first_run(python), Limits())
            base.check_first_run(self.root, first.result)

    def _settle(self, execution: Execution) -> ExecutionResult:
        """A wall time-out or a signal may be the machine's fault: repeat it once before it counts."""
        result = self._retry(execution)
        return self._retry(execution) if result.stop in MAYBE_THE_MACHINE else result

    def _retry(self, execution: Execution) -> ExecutionResult:
        for attempt in range(self.retries + 1):
            try:
                outcome = self.engine.run(self.root, self.environment, execution, self.limits)
            except SandboxError:
                if attempt == self.retries:
                    raise
                with self._lock:
                    self.telemetry["retries"] += 1
                continue
            with self._lock:
                self.telemetry["executions"] += 1
                self.telemetry["cpu_s"] += outcome.telemetry.get("cpu_s", 0.0)
                self.telemetry["wall_s"] += outcome.telemetry.get("wall_s", 0.0)
                self.telemetry["network"] += outcome.telemetry.get("network", 0.0)
            return outcome.result
        raise AssertionError("unreachable: the loop returns or raises")

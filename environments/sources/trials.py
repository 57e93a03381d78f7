"""Real pytest over a tree in the sandbox, for the proofs of mining: which tests passed, failed, or could not be collected.

Each run is kept on disk under the digest of all that decides it, so that a mining that was broken off goes on where it
was and a second one asks nothing twice. `repeat` names runs that must be made anew although nothing differs.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from environments.engines import Engine
from environments.engines.base import check_execution
from environments.image import Image
from environments.runner import Runner
from environments.sources.trees import Tree
from schemas.base import digest_of
from schemas.errors import InputError
from schemas.execution import Execution, ExecutionResult, Limits, Stop

CHILD = Path(__file__).with_name("_pytest_child.py")
RESULTS = ".results.json"
WIDE = 8  # how much more CPU and wall time a whole test suite gets than the limits say
NARROW = 3  # how much less CPU time the chosen tests get: a verifier runs them twice, and machines differ


class Trial(NamedTuple):
    """`stop` is EXIT when pytest came to its end; node ids are relative to the tree."""

    stop: Stop
    passed: frozenset[str]
    failed: dict[str, str]  # node id -> one line
    broken: dict[str, str]  # file that could not be collected -> one line


class Trials:
    """Thread-safe. Counts what it ran (`ran`) and what it knew (`known`): telemetry."""

    def __init__(self, engine: Engine, image: Image, limits: Limits, store: Path) -> None:
        wide = limits.model_copy(update={"cpu_s": limits.cpu_s * WIDE, "wall_s": limits.wall_s * WIDE})
        narrow = limits.model_copy(update={"cpu_s": limits.cpu_s / NARROW})
        self._narrow = Runner(engine, image.environment, image.root, narrow)
        self._wide = Runner(engine, image.environment, image.root, wide)
        self._child, self._store = CHILD.read_text(encoding="utf-8"), store
        self.ran = self.known = 0

    def run(
        self, tree: Tree, files: Collection[str], only: Collection[str] = (), wide: bool = False, repeat: int = 0
    ) -> Trial:
        """pytest on `files` of `tree`, restricted to the node ids in `only` if there are any. Raises SandboxError."""
        job = json.dumps({"files": sorted(files), "only": sorted(only)})
        execution = Execution(
            argv=["python", "-I", "/tests/run.py"],
            files=tree,
            readonly={"run.py": self._child},
            stdin=job,
            collect=[RESULTS],
        )
        runner = self._wide if wide else self._narrow
        key = digest_of([execution.model_dump(mode="json"), runner.image, runner.limits_digest, repeat])
        place = self._store / key[:2] / f"{key}.json"
        result = _load(place)
        if result is None:
            result = _result(runner, execution)
            self.ran += 1
            _save(place, result)
        else:
            self.known += 1
        return _trial(result)


def _result(runner: Runner, execution: Execution) -> ExecutionResult:
    """A tree that no sandbox may be given (paths, sizes) counts as one that does not fit into the limits."""
    try:
        check_execution(execution, runner.limits)
    except InputError as error:
        return ExecutionResult(stop=Stop.MEMORY, exit_code=None, stdout="", stderr=str(error)[:300])
    result = runner.run(execution, fresh=True)
    return result.model_copy(update={"stdout": "", "stderr": result.stderr[-300:]})


def _load(place: Path) -> ExecutionResult | None:
    try:
        return ExecutionResult.model_validate_json(place.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _save(place: Path, result: ExecutionResult) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=place.parent, prefix=".part-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(result.model_dump_json())
    os.replace(part, place)


def _trial(result: ExecutionResult) -> Trial:
    try:
        found = json.loads(result.files[RESULTS])
        return Trial(result.stop, frozenset(found["passed"]), dict(found["failed"]), dict(found["broken"]))
    except (KeyError, ValueError, TypeError):
        stop = Stop.SIGNAL if result.stop is Stop.EXIT else result.stop  # it ended before its last line
        return Trial(stop, frozenset(), {}, {})

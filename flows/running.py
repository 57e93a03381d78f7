"""How a stage runs under Prefect: one task per stage, retried on infrastructure errors only, fan-out as chunked tasks.

A stage's attempts go out as a few chunks per worker, never as a task per sample (a Prefect task costs milliseconds).
Results are never persisted by Prefect: the loop's own record is the commit point.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ThreadPoolTaskRunner

from flows.progress import reporter
from flows.settings import cache_folder
from flows.stopping import check
from schemas.errors import InfrastructureError, PostloopError
from schemas.record import Record, StageName
from stages.context import Context, FanOut, Telemetry, chunks
from stages.rounds import run_stage
from stages.spec import load_spec
from stages.workspace import Workspace

A = TypeVar("A")
B = TypeVar("B")
RETRY_DELAY_S = 2.0


class PrefectFanOut:
    """A map over Prefect tasks: order kept, `per_worker` chunks a worker so that a slow chunk does not hold up the rest.

    Few items are spread too: a pack of attempts is one item, and runs for seconds.
    """

    def __init__(self, workers: int, per_worker: int = 2) -> None:
        self.workers, self.per_worker = workers, per_worker

    def __call__(self, fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        everything = list(items)
        if len(everything) <= 1 or self.workers == 1:
            return [fn(item) for item in everything]
        size = -(-len(everything) // (self.workers * self.per_worker))
        parts = chunks(everything, size)

        def run_chunk(index: int) -> list[B]:
            return [fn(item) for item in parts[index]]

        chunk = task(name="chunk", cache_policy=NO_CACHE, persist_result=False)(run_chunk)
        futures = [chunk.submit(index) for index in range(len(parts))]
        for future in futures:
            future.wait()
        return [result for future in futures for result in future.result()]


def runner(workers: int) -> Any:
    return ThreadPoolTaskRunner(max_workers=workers)


@contextmanager
def prefect_errors() -> Iterator[None]:
    """Where Prefect's own server fails, as on a full disk, the error that our stage had counts, else one line on Prefect's."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpcore", "prefect"):
            raise
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, PostloopError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            raise cause from None
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InfrastructureError(
            f"Prefect's server failed: {first}; look for a full disk, then run again: what was recorded is safe"
        ) from error


def infrastructure_only(task_: Any, run: Any, state: Any) -> bool:
    """Prefect asks before each retry: wrong input and wrong content do not get better by trying again."""
    try:
        state.result()
    except InfrastructureError as error:
        print(f"postloop: {error}; trying again", file=sys.stderr)
        return True
    except BaseException:  # noqa: BLE001 - whatever else it was, it is not retried, and Prefect re-raises it
        return False
    return False


def stage_in_flow(stage: StageName, workspace: str, round: int, quiet: bool = False) -> Record:
    """Body of every stage flow. Called inside a flow, so that tasks find its task runner."""
    with held(Path(workspace)) as space:
        return _run(stage, space, round, quiet)


def _run(stage: StageName, space: Workspace, round: int, quiet: bool) -> Record:
    spec = load_spec(space.root / "goal.yaml")

    def attempt() -> Record:
        with reporter(stage, quiet) as report:

            def progress(what: str, done: int, total: int | None = None) -> None:
                check()
                report(what, done, total)

            ctx = Context(
                workspace=space,
                round=round,
                spec=spec,
                cache=cache_folder(space.root),
                fan_out=fan_out(spec.runtime.workers),
                progress=progress,
                telemetry=Telemetry(),
            )
            return run_stage(ctx, stage)

    run = task(
        name=stage,
        retries=spec.runtime.stage_retries,
        retry_delay_seconds=RETRY_DELAY_S,
        retry_condition_fn=infrastructure_only,
        cache_policy=NO_CACHE,
        persist_result=False,
    )(attempt)
    return run()


def fan_out(workers: int) -> FanOut:
    return PrefectFanOut(workers)


@contextmanager
def held(root: Path) -> Iterator[Workspace]:
    """The workspace with its lock held: by the round flow for all its stages, or by a stage flow that runs alone."""
    place = str(root.resolve())
    if place in _HELD:
        yield _HELD[place]
        return
    space = Workspace.open(root)
    with space.lock():
        _HELD[place] = space
        try:
            yield space
        finally:
            del _HELD[place]


_HELD: dict[str, Workspace] = {}

"""How stages run under Prefect: what is tried again, and how work fans out."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import InfrastructureError, InputError, IntegrityError, PostloopError, SamplerError, SandboxError


@pytest.fixture(scope="module", autouse=True)
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real Prefect, with a server of this process. Named before Prefect is imported."""
    from flows import embedded
    from flows.settings import prepare

    root: Path = tmp_path_factory.mktemp("prefect")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PREFECT_API_URL", "PREFECT_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("POSTLOOP_CACHE", str(root / "cache"))
        prepare(root)
        server = embedded.start(root)
        assert server is not None
        server.wait()
        yield root / ".postloop" / "prefect" / "prefect.db"


class Failing:
    """Fails with each of the errors, one after the other, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def run_task(body: Callable[[], Any], retries: int) -> Any:
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE

    from flows.running import infrastructure_only

    made = task(
        name="stage", retries=retries, retry_delay_seconds=0.01, retry_condition_fn=infrastructure_only,
        cache_policy=NO_CACHE, persist_result=False,
    )(lambda: body())  # fmt: skip

    @flow(name="retries", persist_result=False)
    def whole() -> Any:
        return made()

    return whole()


def test_a_machine_that_failed_twice_is_given_a_third_try() -> None:
    body = Failing(SandboxError("bwrap died"), SamplerError("no answer"))
    assert run_task(body, retries=2) == "done"
    assert body.calls == 3


def test_retries_are_counted_and_the_last_error_leaves_as_it_was() -> None:
    body = Failing(*(SandboxError(f"try {number}") for number in range(5)))
    with pytest.raises(SandboxError, match="try 1"):
        run_task(body, retries=1)
    assert body.calls == 2


@pytest.mark.parametrize("error", [InputError("wrong"), IntegrityError("damaged"), ValueError("a defect")])
def test_wrong_input_damaged_content_and_defects_are_not_tried_again(error: Exception) -> None:
    body = Failing(error)
    with pytest.raises(type(error), match=str(error)):
        run_task(body, retries=3)
    assert body.calls == 1


def rows(database: Path, table: str, column: str) -> set[Any]:
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as opened:
        return set(opened.execute(f"select {column} from {table}"))


def test_a_new_workspace_begins_with_the_database_that_the_first_server_made_before_it_was_used(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.embedded import lend_database

    assert run_task(Failing(), retries=0) == "done"
    assert rows(first, "flow_run", "id")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    lend_database(tmp_path)
    own = tmp_path / "prefect.db"
    assert rows(own, "flow_run", "id") == set()
    assert rows(own, "block_type", "id") == rows(first, "block_type", "id") != set()  # drawn at random
    with closing(sqlite3.connect(own)) as opened, opened:
        opened.execute("delete from block_type")
    lend_database(tmp_path)
    assert rows(own, "block_type", "id") == set(), "what a workspace has stays"


def test_the_database_of_an_older_workspace_is_not_kept(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.embedded import keep_database

    assert run_task(Failing(), retries=0) == "done"
    monkeypatch.setenv("POSTLOOP_CACHE", str(tmp_path))
    keep_database(tmp_path)
    assert list(tmp_path.iterdir()) == []


def in_flow(workers: int, fn: Callable[[int], Any], items: range) -> list[Any]:
    from prefect import flow

    from flows.running import PrefectFanOut, runner

    @flow(name="fan", persist_result=False, task_runner=runner(workers))
    def whole() -> list[Any]:
        return PrefectFanOut(workers)(fn, items)

    return whole()


@pytest.mark.parametrize("count", [0, 3, 4, 5, 40, 41])
def test_fan_out_keeps_the_order(count: int) -> None:
    threads: set[str] = set()
    joined = threading.Event()

    def late_when_even(item: int) -> int:
        threads.add(threading.current_thread().name)
        if len(threads) > 1:
            joined.set()
        if item == 0 and count > 1:
            joined.wait(10)  # a busy machine may start the second thread late
        time.sleep(0.002 * (item % 2 == 0))
        return item * item

    assert in_flow(2, late_when_even, range(count)) == [item * item for item in range(count)]
    assert (len(threads) > 1) == (count > 1)


def test_an_error_of_one_item_is_raised_after_the_other_chunks_have_ended() -> None:
    ended: list[int] = []

    def work(item: int) -> int:
        if item == 0:
            raise SandboxError("item 0 broke")
        time.sleep(0.01)
        ended.append(item)
        return item

    with pytest.raises(PostloopError, match="item 0 broke"):
        in_flow(2, work, range(32))
    assert {item for item in range(32) if item >= 8} <= set(ended)


def test_the_stages_own_error_counts_where_prefects_server_fails_after_it() -> None:
    from prefect.exceptions import PrefectException

    from flows.running import prefect_errors

    def falls(error: Exception, own: InfrastructureError | None = None) -> None:
        error.__context__ = own  # as where Prefect was to note how the flow ended
        with prefect_errors():
            raise error

    disk = InfrastructureError("artifact rl/adapter: disk: full")
    with pytest.raises(InfrastructureError, match=r"^artifact rl/adapter: disk: full$"):
        falls(PrefectException("500 Internal Server Error"), disk)
    with pytest.raises(InfrastructureError, match=r"^Prefect's server failed: 500; look for a full disk"):
        falls(PrefectException("500\nmore"))
    with pytest.raises(KeyError):
        falls(KeyError("a fault of ours stays what it is"), disk)

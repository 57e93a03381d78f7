"""`backflow.approval: wait`: before a round's goal, time for people to approve the last round's material.

The wait ends when every bucket with material is approved or rejected, by whatever way: `postloop decide`, a label in MLflow,
or, where a Prefect server that people reach runs the round, the form of its paused run. It ends at the latest after
`backflow.wait_s`; what nobody decided then goes on by `backflow.unattended`.

The workspace is not locked meanwhile. Not covered: an approval that is given after the wait; it counts in the round after.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import httpx
from prefect.context import FlowRunContext
from prefect.exceptions import FlowPauseTimeout, NotPausedError
from prefect.flow_runs import pause_flow_run, resume_flow_run
from prefect.input import RunInput
from pydantic import Field

from flows import embedded
from flows.decide import take_in_labels
from flows.stopping import check
from schemas.backflow import BackflowSpec
from schemas.bucket import Bucket
from schemas.errors import InputError
from stages.decisions import append, backflows, bucket_named, decisions, identified, now, undecided
from stages.workspace import Workspace

POLL_S = 2.0
LABELS_EVERY_S = 20.0  # MLflow is asked less often than a folder is looked at
_SPARE_S = 600  # Prefect fails a run whose pause ran out: we resume it before that, always


class Approval(RunInput):
    """The form of a paused round. Ids or their starts; what is in neither list stays as the spec's `unattended` says."""

    approve: list[str] = Field(default_factory=list)
    reject: list[str] = Field(default_factory=list)
    who: str = ""
    because: str = ""


def wait_for_people(space: Workspace, number: int, spec: BackflowSpec) -> None:
    """Before the goal of round `number`: until people have decided about the last round's material, or time is over."""
    if spec.approval != "wait":
        return
    about = max((n for n in backflows(space) if n < number), default=None)
    if about is None or not (waiting := left(space, about)):
        return
    ids = " ".join(bucket.id for bucket in waiting)
    print(
        f"postloop: round {about}: material of {len(waiting)} buckets waits for approval, {spec.wait_s} s at most: "
        f"`postloop decide BUCKET --approve --because TEXT` (or --reject) for {ids}",
        file=sys.stderr,
        flush=True,
    )
    done = _until(space, about, spec.wait_s)
    if FlowRunContext.get() is not None and not embedded.started():
        _pause(space, about, spec.wait_s, done)
    else:
        done()
    if waiting := left(space, about):
        kinds = ", ".join(spec.unattended) or "nothing"
        print(
            f"postloop: round {about}: nobody decided about {len(waiting)} buckets; {kinds} of theirs goes on unattended",
            file=sys.stderr,
            flush=True,
        )


def left(space: Workspace, about: int) -> list[Bucket]:
    return undecided(backflows(space)[about], about, decisions(space))


def _until(space: Workspace, about: int, wait_s: float) -> Callable[..., None]:
    """A wait for decisions that ends by itself. `stop`: an event that ends it too."""
    deadline = time.monotonic() + wait_s

    def wait(stop: threading.Event | None = None) -> None:
        labels = time.monotonic() + LABELS_EVERY_S
        while time.monotonic() < deadline and left(space, about) and not (stop and stop.is_set()):
            if stop is None:  # in the main thread, where a stop can be raised
                check()
            time.sleep(max(0.0, min(POLL_S, deadline - time.monotonic())))
            if time.monotonic() >= labels:
                take_in_labels(space)
                labels = time.monotonic() + LABELS_EVERY_S

    return wait


def _pause(space: Workspace, about: int, wait_s: float, wait: Callable[..., None]) -> None:
    """Prefect's own pause, with the form. A thread resumes it when the wait ends otherwise: decided elsewhere, or over."""
    context = FlowRunContext.get()
    run, stop = cast(Any, context).flow_run.id, threading.Event()

    def resume() -> None:
        wait(stop)
        while not stop.is_set():
            with suppress(NotPausedError, RuntimeError, httpx.HTTPError):  # the pause may not have begun
                resume_flow_run(run, run_input=Approval().model_dump())
                return
            stop.wait(POLL_S)

    watcher = threading.Thread(target=resume, daemon=True)
    watcher.start()
    try:
        with suppress(FlowPauseTimeout):
            given = pause_flow_run(wait_for_input=Approval, timeout=int(wait_s) + _SPARE_S, poll_interval=int(POLL_S))
            take(space, about, given)
    finally:
        stop.set()
        watcher.join(5.0)


def take(space: Workspace, about: int, given: Approval) -> None:
    """The form's word as decisions. An id that names no bucket is told and left."""
    for name, approve in [*((one, True) for one in given.approve), *((one, False) for one in given.reject)]:
        try:
            _, bucket = bucket_named({about: backflows(space)[about]}, name.strip())
            append(
                space,
                identified(
                    bucket=bucket.id,
                    round=about,
                    approve=approve,
                    who=given.who.strip() or "unknown",
                    when=now(),
                    because=given.because.strip() or "no reason given in the form of the paused run",
                ),
            )
        except InputError as error:
            print(f"postloop: approval of {name[:40]!r}: {error}; ignored", file=sys.stderr)

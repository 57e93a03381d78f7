"""Rounds that nobody ran: real records with real artifacts, committed by a real workspace, of buckets that a test names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from schemas.attribution import Attribution
from schemas.backflow import BackflowRecord
from schemas.base import canonical, digest_of
from schemas.bucket import Bucket, BucketChange, Material, Route, bucket_id
from schemas.data import DataRecord
from schemas.metrics import Estimate
from schemas.task import Split, Task
from schemas.trajectory import Attempt
from stages.artifacts import store
from stages.attempts import write_attempts
from stages.context import Context
from stages.spec import dump_default, load_spec
from stages.workspace import Workspace
from tests.reports import synthetic

FAMILY = "repair.offbyone"


def workspace(
    folder: Path, backflow: str = "{tasks: 4, samples: 2, max_buckets: 2, new_tasks: 3, demonstrations: 2}"
) -> Workspace:
    text = dump_default("tiny")
    head, _, _ = text.partition("backflow:")
    return Workspace.create(folder, f"{head}backflow: {backflow}\n")


def context(space: Workspace, number: int) -> Context:
    return Context(space, number, load_spec(space.spec_path), space.scratch / "cache")


def bucket(cause: str, route: Route = Route.DATA, size: int = 5, family: str = FAMILY, **more: object) -> Bucket:
    share = Estimate(value=size / 10, low=max(0.0, size / 10 - 0.2), high=min(1.0, size / 10 + 0.2), n=10, clusters=5)
    members = [synthetic.attempt(index, "x").trajectory.id for index in range(min(size, 3))]
    plain = {
        "id": bucket_id(cause, family), "cause": cause, "family": family, "route": route, "rule": f"says_{cause}",
        "rules": digest_of("rules"), "size": size, "denominator": 10, "share": share, "measured": share, "members": members,
        "example": members[0],
    }  # fmt: skip
    return Bucket.model_validate({**plain, **more})


def tasks_for(one: Bucket, amount: int = 3, approved: bool = True) -> Material:
    return Material(
        kind="tasks", bucket=one.id, route=Route.DATA, family=one.family, amount=amount, operators=["offbyone"],
        failures=list(one.members), approved=approved,
    )  # fmt: skip


def change(one: Bucket, verdict: str, treated: bool = True) -> BucketChange:
    difference = Estimate(value=-0.1, low=-0.2, high=-0.01, n=10)
    return BucketChange.model_validate(
        {
            "bucket": one.id, "cause": one.cause, "family": one.family, "treated": treated, "before": one.measured,
            "after": one.measured, "difference": difference, "verdict": verdict,
        }
    )  # fmt: skip


def leave(
    space: Workspace,
    number: int,
    buckets: Sequence[Bucket],
    material: Sequence[Material] = (),
    changes: Sequence[BucketChange] = (),
    decisions: Sequence[str] = (),
    attempts: Sequence[Attempt] = (),
    attributions: Sequence[Attribution] = (),
    until: str = "backflow",
) -> BackflowRecord:
    """Goal, data and backflow of a round; the stages between are not there, and nothing here asks for them."""
    spec = load_spec(space.spec_path)
    goal = synthetic.goal_record(number, "fabricated").model_copy(update={"spec": spec, "decisions": list(decisions)})
    record = BackflowRecord(
        key=digest_of(["backflow", number]), rules=digest_of("rules"), buckets=list(buckets), material=list(material),
        changes=list(changes), failures=sum(one.size for one in buckets), attempts=20,
    )  # fmt: skip
    with space.lock():
        space.commit(number, goal.model_copy(update={"artifacts": {}}), {})
        if until == "goal":
            return record
        tasks = store(space, "data", "tasks", lambda f: (f / "tasks.jsonl").write_bytes(_line(a_task())))
        space.commit(
            number, DataRecord(key=digest_of(["data", number]), artifacts={"tasks": tasks}, tasks={"train": 1}), {}
        )
        if attempts:
            table = store(
                space, "backflow", "attempts", lambda f: write_attempts(f / "attempts.parquet", list(attempts))
            )
            record = record.model_copy(update={"artifacts": {"attempts": table}})
        if attributions:
            lines = b"".join(canonical(one.model_dump(mode="json")) + b"\n" for one in attributions)
            answers = store(space, "backflow", "attributions", lambda f: (f / "attributions.jsonl").write_bytes(lines))
            record = record.model_copy(update={"artifacts": {**record.artifacts, "attributions": answers}})
        space.commit(number, record, {})
    return record


def _line(task: Task) -> bytes:
    return canonical(task.model_dump(mode="json")) + b"\n"


def a_task() -> Task:
    return Task(
        id="repair/a/b", kind="answer", family=FAMILY, skill="repair", origin="o", split=Split.TRAIN, statement="s", files={},
        editable=["answer.txt"], answer="1", gold={"answer.txt": "1"}, wrong={"answer.txt": "2"}, made_by="a test",
    )  # fmt: skip

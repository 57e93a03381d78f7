"""Attempts and use edges as Parquet: one row an attempt, exact both ways, the same bytes for the same attempts.

Scalars of the trajectory are columns of their own, so that a table can be filtered without reading tokens; `passed`,
`score` and `value` repeat the verdict and the reward for that purpose. Turns are a list of structs. Values of free
shape (calls, visible results, outcomes, reward parts) are canonical JSON text; log-probabilities are float64, so none
is rounded.

The version of the schema stands in the metadata of the file; a table without one is of version 1.
Not covered: appending. A table is written once; what is learned later goes into a new one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.base import canonical
from schemas.errors import IntegrityError
from schemas.migrations import FIELD, Form, stamped, steps
from schemas.trajectory import Attempt, UseEdge
from schemas.verdict import Reward

_JSON_TURN = ("call", "visible")
_VERSION = "postloop.schema_version"  # in the metadata of the file


def write_attempts(path: Path, attempts: Sequence[Attempt]) -> None:
    """Replace `path` by a table of these attempts, in this order. Written aside, flushed, renamed."""
    write_table(path, [_row(attempt) for attempt in attempts], _attempt_schema())


def read_attempts(path: Path) -> list[Attempt]:
    """Raises IntegrityError when the file is no attempts table, InputError when its schema is another one."""
    return [_attempt(row) for row in read_table(path, "attempts")]


def read_rewards(path: Path) -> list[Reward]:
    """The rewards of a table's attempts alone, in its order: a small part of what it holds."""
    return [read_reward(row["reward"]) for row in read_table(path, "attempts", ["reward"])]


def read_reward(row: dict[str, Any]) -> Reward:
    """Raises IntegrityError."""
    try:
        return Reward.model_validate({**row, "parts": json.loads(row["parts"])})
    except (KeyError, ValueError, TypeError) as error:
        raise IntegrityError(f"a reward cannot be read ({_first(error)}); restore the file") from error


def reward_row(reward: Reward) -> dict[str, Any]:
    row = reward.model_dump(mode="json")
    return {**row, "parts": _text(row["parts"])}


def write_edges(path: Path, edges: Sequence[UseEdge]) -> None:
    write_table(path, [edge.model_dump(mode="json") for edge in edges], _edge_schema())


def read_edges(path: Path) -> list[UseEdge]:
    """Raises IntegrityError when the file is no edges table, InputError when its schema is another one."""
    try:
        return [UseEdge.model_validate(row) for row in read_table(path, "edges")]
    except ValueError as error:
        raise IntegrityError(f"{path}: not a table of use edges ({_first(error)}); restore it") from error


def _row(attempt: Attempt) -> dict[str, Any]:
    data = attempt.model_dump(mode="json")
    row: dict[str, Any] = data.pop("trajectory")
    row["outcome"] = _text(row["outcome"])
    for turn in row["turns"]:
        for name in _JSON_TURN:
            turn[name] = None if turn[name] is None else _text(turn[name])
    data["reward"] = reward_row(attempt.reward)
    row |= data
    row |= {"passed": attempt.verdict.passed, "score": attempt.verdict.score, "value": attempt.reward.value}
    return row


def _attempt(row: dict[str, Any]) -> Attempt:
    try:
        for name in ("passed", "score", "value"):
            del row[name]
        verdict, audit, reward = row.pop("verdict"), row.pop("audit"), row.pop("reward")
        reward["parts"] = json.loads(reward["parts"])
        row["outcome"] = json.loads(row["outcome"])
        for turn in row["turns"]:
            for name in _JSON_TURN:
                turn[name] = None if turn[name] is None else json.loads(turn[name])
        return Attempt.model_validate({"trajectory": row, "verdict": verdict, "audit": audit, "reward": reward})
    except (KeyError, ValueError, TypeError) as error:
        raise IntegrityError(f"attempts table: a row cannot be read ({_first(error)}); restore the file") from error


def _text(value: Any) -> str:
    return canonical(value).decode()


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def write_table(path: Path, rows: list[dict[str, Any]], schema: Any) -> None:
    """Written aside, flushed, renamed; the same bytes for the same rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows, schema=schema.with_metadata({_VERSION: str(stamped({})[FIELD])}))
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            pq.write_table(table, stream, compression="zstd", compression_level=3, version="2.6", row_group_size=4096)
            stream.flush()
            os.fsync(stream.fileno())
        Path(part).chmod(0o644)
        Path(part).replace(path)
    finally:
        Path(part).unlink(missing_ok=True)


def read_table(path: Path, form: Form, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Rows as our schema has them. Raises IntegrityError, InputError when the schema is another one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = (pq.read_schema(path).metadata or {}).get(_VERSION.encode(), b"1")
        way = steps(form, str(path), int(found))
        table = pq.read_table(path, columns=None if way else columns, partitioning=None)
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise IntegrityError(f"{path}: not a Parquet table that can be read ({_first(error)}); restore it") from error
    rows: list[dict[str, Any]] = table.to_pylist()
    for step in way:
        rows = [step.apply(row) for row in rows]
    return rows


def _attempt_schema() -> Any:
    import pyarrow as pa

    text, flag, whole, real = pa.string(), pa.bool_(), pa.int64(), pa.float64()
    ids = pa.list_(pa.int32())
    place = pa.struct({"batch": text, "row": whole, "rows": whole, "padded_to": whole})
    turn = pa.struct(
        {
            "index": whole, "policy": text, "policy_version": whole,
            "messages": pa.list_(pa.struct({"role": text, "content": text})), "rendered": text, "prompt_ids": ids,
            "completion_ids": ids, "logprobs": pa.list_(real), "place": place, "text": text, "stop": text,
            "call": text, "parse_error": text, "tool_error": text, "forbidden": text, "visible": text,
            "observation": text, "observation_truncated": flag, "result": text, "noise": pa.list_(text), "tree": text,
        }
    )  # fmt: skip
    conduct = pa.struct(
        {
            "turns": whole, "tool_calls": whole, "invalid_calls": whole, "forbidden": pa.list_(text),
            "truncated_turns": whole, "generated_tokens": whole, "submitted": flag, "unchanged": flag,
        }
    )  # fmt: skip
    sampling = pa.struct(
        {
            "engine": text,
            "temperature": real,
            "top_p": real,
            "max_tokens": whole,
            "dtype": text,
            "threads": whole,
            "batch": whole,
        }
    )
    noise = pa.struct({"timeout": real, "fail": real, "lose": real})
    verdict, reward = judged_types()
    return pa.schema(
        {
            "id": text, "purpose": text, "task_id": text, "task": text, "split": text, "family": text, "origin": text,
            "group": text, "parent": text, "prefix_turn": whole, "harness": text, "hint": text, "seed": whole,
            "noise": noise, "sampling": sampling, "status": text, "reason": text, "turns": pa.list_(turn), "stop": text,
            "outcome": text, "outcome_digest": text, "conduct": conduct, "verdict": verdict, "audit": verdict,
            "reward": reward, "passed": flag, "score": real, "value": real,
        }
    )  # fmt: skip


def judged_types() -> tuple[Any, Any]:
    """Arrow types of a verdict and of a reward."""
    import pyarrow as pa

    text, flag, whole, real = pa.string(), pa.bool_(), pa.int64(), pa.float64()
    check = pa.struct({"name": text, "role": text, "passed": flag, "detail": text})
    verdict = pa.struct(
        {
            "outcome": text, "task": text, "image": text, "limits": text, "verifier": text, "role": text,
            "repeat": whole, "status": text, "score": real, "passed": flag, "checks": pa.list_(check),
            "violations": pa.list_(pa.struct({"kind": text, "detail": text})), "limit_hit": text, "reason": text,
            "trust": text,
        }
    )  # fmt: skip
    return verdict, pa.struct({"trajectory": text, "verdict": text, "rules": text, "value": real, "parts": text})


def _edge_schema() -> Any:
    import pyarrow as pa

    text = pa.string()
    return pa.schema(
        {
            "use": text, "row": text, "trajectory": text, "task": text, "verdict": text, "reward": text, "rules": text,
            "advantage": pa.float64(), "step": pa.int64(),
        }
    )  # fmt: skip


def find_attempts(path: Path, start: str) -> list[Attempt]:
    """The attempts of a table whose trajectory id begins with `start`, without reading the others' columns twice."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    ids = pq.read_table(path, columns=["id"], partitioning=None).column("id")
    if not pc.any(pc.starts_with(ids, start)).as_py():
        return []
    return [attempt for attempt in read_attempts(path) if attempt.trajectory.id.startswith(start)]

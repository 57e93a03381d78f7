"""Attempts and use edges come back from Parquet exactly, and equal attempts make equal bytes."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from schemas.base import digest_of
from schemas.errors import IntegrityError
from schemas.task import Split
from schemas.trajectory import Attempt, BatchPlace, Noise, Purpose, Sampling, Trajectory, Turn, UseEdge
from schemas.verdict import Check, Conduct, Reward, Status, Verdict, Violation
from stages.attempts import read_attempts, read_edges, write_attempts, write_edges


def d(name: str) -> str:
    return digest_of(name)


def turn(index: int, full: bool) -> Turn:
    return Turn(
        index=index, policy=d("policy"), policy_version=3,
        messages=[{"role": "user", "content": "ü \x00"}] if full else [], rendered="<|im_start|>ü\n\0\u202e",
        prompt_ids=[1, 2, 49151],
        completion_ids=[7, 2], logprobs=[-0.1 - 1e-17, -math.pi], text="x = '\\'\r\n", stop="eos",
        place=BatchPlace(batch=d("b"), row=1, rows=2, padded_to=9) if full else None,
        call={"name": "edit", "arguments": {"n": 1.0, "deep": [None, True, {"é": []}]}} if full else None,
        parse_error=None if full else "no block", tool_error="t" if full else None, forbidden="f" if full else None,
        visible={"passed": 1, "failed": 0, "first": None} if full else None, observation="" if full else None,
        observation_truncated=full, noise=["clean", "lose"] if full else [], tree=d("tree"),
    )  # fmt: skip


def attempt(name: str, full: bool, passed: bool | None = True) -> Attempt:
    verdict = Verdict(
        outcome=d("o"), task=d("t"), image=d("i"), limits=d("l"), verifier=d("v"),
        status=Status.ERROR if passed is None else Status.SCORED, passed=passed,
        score=None if passed is None else 1 / 3,
        checks=[Check(name="c", role="f2p", passed=True, detail="d")] if full else [],
        violations=[Violation(kind="tampering", detail="x")] if full else [], limit_hit="cpu" if full else None,
        reason="died" if passed is None else None,
    )  # fmt: skip
    trajectory = Trajectory(
        id=name, purpose=Purpose.RL, task_id="a/b/c", task=d("t"), split=Split.DEV, family="repair", origin="f",
        group="g" if full else None, parent="p" if full else None, prefix_turn=0 if full else None, harness=d("h"),
        hint="h" if full else None, seed=2**53 + 1, noise=Noise(lose=1 / 3) if full else None,
        sampling=Sampling(temperature=0.1, top_p=0.3),
        status="done", turns=[turn(0, full), turn(1, not full)] if full else [], stop="submitted",
        outcome={"b.py": "1\n", "a.py": "é"} if full else {}, outcome_digest=d("o"),
        conduct=Conduct(
            turns=2, tool_calls=1, invalid_calls=0, generated_tokens=4, submitted=True, forbidden=["x"] * full
        ),
    )  # fmt: skip
    reward = Reward(
        trajectory=name, verdict=verdict.digest(), rules=d("r"), value=None if passed is None else 0.1 + 0.2,
        parts={"z": 0.1, "a": 0.2} if full else {},
    )  # fmt: skip
    return Attempt(trajectory=trajectory, verdict=verdict, audit=verdict if full else None, reward=reward)


ATTEMPTS = [attempt("rl-1", True), attempt("rl-2", False), attempt("rl-3", False, None), attempt("rl-4", True, False)]


def test_attempts_come_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "attempts.parquet"
    write_attempts(path, ATTEMPTS)
    back = read_attempts(path)
    assert back == ATTEMPTS
    assert [a.digest() for a in back] == [a.digest() for a in ATTEMPTS]
    assert [p.name for p in tmp_path.iterdir()] == ["attempts.parquet"]


def test_equal_attempts_make_equal_bytes(tmp_path: Path) -> None:
    write_attempts(tmp_path / "a", ATTEMPTS)
    write_attempts(tmp_path / "b", read_attempts(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_attempts(tmp_path / "c", ATTEMPTS[::-1])
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_an_empty_table_is_a_table(tmp_path: Path) -> None:
    write_attempts(tmp_path / "none", [])
    assert read_attempts(tmp_path / "none") == []


def test_every_field_of_the_schema_has_a_column(tmp_path: Path) -> None:
    write_attempts(tmp_path / "a", ATTEMPTS)
    schema = pq.read_schema(tmp_path / "a")
    flat = set(schema.names)
    assert flat == (set(Trajectory.model_fields) | set(Attempt.model_fields) | {"passed", "score", "value"}) - {
        "trajectory"
    }
    for column, model in (
        ("turns", Turn),
        ("sampling", Sampling),
        ("noise", Noise),
        ("conduct", Conduct),
        ("verdict", Verdict),
    ):
        kind = schema.field(column).type
        struct = kind.value_type if column == "turns" else kind
        assert {struct.field(i).name for i in range(struct.num_fields)} == set(model.model_fields)
    assert str(schema.field("turns").type.value_type.field("logprobs").type.value_type) == "double"


def test_a_table_can_be_filtered_without_its_tokens(tmp_path: Path) -> None:
    write_attempts(tmp_path / "a", ATTEMPTS)
    table = pq.read_table(tmp_path / "a", columns=["id", "value"], filters=[("passed", "=", True)])
    assert table.to_pydict() == {"id": ["rl-1", "rl-2"], "value": [0.1 + 0.2] * 2}


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_attempts(path, ATTEMPTS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(IntegrityError, match=str(path)):
        read_attempts(path)
    write_edges(path, [])
    write_edges(path, [UseEdge(use="sft_row", row="1")])
    with pytest.raises(IntegrityError, match="attempts table"):
        read_attempts(path)


def test_edges_come_back_exactly(tmp_path: Path) -> None:
    edges = [
        UseEdge(
            use="group_member", row="g", trajectory="rl-1", task=d("t"), verdict=d("v"), reward=d("r"), rules=d("s"),
            advantage=-0.1, step=4,
        ),
        UseEdge(use="promotion", row="champion"),
    ]  # fmt: skip
    write_edges(tmp_path / "edges", edges)
    assert read_edges(tmp_path / "edges") == edges
    write_attempts(tmp_path / "edges", ATTEMPTS)
    with pytest.raises(IntegrityError, match="not a table of use edges"):
        read_edges(tmp_path / "edges")

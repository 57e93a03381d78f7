"""Two rounds side by side."""

from __future__ import annotations

import json

import pytest
from tiny_loop import Cli, Finished

from evals.metrics import pass_shares
from schemas.errors import InputError
from stages.attempts import read_attempts
from stages.compare import compare


def test_pins_metrics_and_buckets_of_two_rounds(cli: Cli, finished: Finished) -> None:
    told = json.loads(cli("compare", "1", "2", "-w", finished.root, "--json").stdout)
    first, second = (finished.space.pins(number) for number in (1, 2))
    assert first is not None
    assert second is not None
    differ = {name for name in first.pins | second.pins if first.pins.get(name) != second.pins.get(name)}
    assert {one["pin"] for one in told["pins"]} == differ
    assert {"material", "tasks", "demonstrations", "sft"} <= differ
    assert differ.isdisjoint({"environment", "verifier", "rewards", "harness", "base"})
    assert {one["suite"] for one in told["metrics"]} == {"held_out", "boundary", "retention", "noisy"}
    buckets = [
        {bucket.id for bucket in record.buckets} for n in (1, 2) if (record := finished.space.read(n, "backflow"))
    ]  # type: ignore[attr-defined]
    for one in told["buckets"]:
        assert (one["before"] is not None, one["after"] is not None) == tuple(one["id"] in ids for ids in buckets)
    shown = cli("compare", "1", "2", "-w", finished.root)
    assert shown.returncode == 0
    assert "paired difference" in shown.stdout


def test_the_difference_is_that_of_the_policies_that_the_rounds_made(finished: Finished) -> None:
    found = compare(finished.space, 1, 2)
    moved = next(one for one in found.metrics if (one.suite, one.metric) == ("boundary", "pass@1"))
    shares = []
    for number in (1, 2):
        record = finished.space.read(number, "evaluation")
        assert record is not None
        weights = next(r.checkpoint for r in record.results if (r.suite, r.policy) == ("boundary", "rl"))  # type: ignore[attr-defined]
        for ref in record.artifacts.values():
            table = finished.root / ref.path / "boundary.parquet"
            rows = read_attempts(table) if table.is_file() else []
            if rows and rows[0].trajectory.turns[0].policy == weights:
                shares.append(pass_shares(rows))
    before, after = shares
    assert before.keys() == after.keys()
    assert moved.difference is not None
    assert moved.difference.value == pytest.approx(sum(after[t][1] - before[t][1] for t in after) / len(after))
    same = compare(finished.space, 2, 2)
    assert same.pins == []
    assert {one.change for one in same.buckets} <= {"stayed"}
    assert not any(one.significant for one in same.metrics)


def test_a_round_that_is_not_there_is_named(finished: Finished) -> None:
    with pytest.raises(InputError, match="round 7: there is none; rounds: 1, 2"):
        compare(finished.space, 1, 7)

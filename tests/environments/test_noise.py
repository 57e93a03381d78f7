"""Which tool results noise hits, and what is left of them."""

from __future__ import annotations

from collections import Counter

import pytest
from pydantic import ValidationError

from environments.noise import broken, drawn
from schemas.execution import ExecutionResult, Stop
from schemas.trajectory import Hit, Noise

FLAKY = Noise(timeout=0.1, fail=0.2, lose=0.3)
RESULT = ExecutionResult(stop=Stop.EXIT, exit_code=0, stdout="one\ntwo\n", stderr="s", files={"a": "b"})


def test_each_share_is_kept() -> None:
    counts = Counter(drawn(FLAKY, seed, "repair/f", 0, 0) for seed in range(4000))
    shares = {"clean": 0.4, "timeout": 0.1, "fail": 0.2, "lose": 0.3}
    assert {hit: count / 4000 for hit, count in counts.items()} == pytest.approx(shares, abs=0.03)
    assert {drawn(Noise(), seed, "repair/f", 0, 0) for seed in range(100)} == {"clean"}
    assert {drawn(Noise(lose=1.0), seed, "repair/f", 0, 0) for seed in range(100)} == {"lose"}


def test_a_hit_is_of_its_call_alone() -> None:
    places = [(task, turn, call) for task in ("repair/f", "repair/g") for turn in range(2) for call in range(2)]
    runs = {place: [drawn(FLAKY, seed, *place) for seed in range(50)] for place in places}
    assert runs == {place: [drawn(FLAKY, seed, *place) for seed in range(50)] for place in reversed(places)}
    assert len({tuple(run) for run in runs.values()}) == len(places)


@pytest.mark.parametrize(
    ("hit", "left"),
    [
        ("clean", RESULT),
        ("timeout", ExecutionResult(stop=Stop.WALL, exit_code=None, stdout="", stderr="")),
        (
            "fail",
            ExecutionResult(stop=Stop.EXIT, exit_code=1, stdout="", stderr="the tool is temporarily unavailable"),
        ),
        ("lose", ExecutionResult(stop=Stop.EXIT, exit_code=0, stdout="one\n", stderr="s")),
    ],
)
def test_what_is_left_of_a_result(hit: Hit, left: ExecutionResult) -> None:
    assert broken(RESULT, hit) == left


def test_more_than_all_results_cannot_be_hit() -> None:
    assert Noise(timeout=0.5, lose=0.5).fail == 0
    with pytest.raises(ValidationError, match=r"make 1\.2 of the tool results; give at most 1 together"):
        Noise(timeout=0.5, fail=0.5, lose=0.2)

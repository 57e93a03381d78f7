"""The arm without backflow: the first round alone, its material rejected, and as much of any family asked for instead."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tiny_loop import Finished

from bench.ablation import GOLD, ROUTED, TASKS, back_to_round_1, sizes, unfeed
from stages.decisions import decisions
from stages.workspace import Workspace


def asked(text: str, patterns: tuple[str, ...]) -> int:
    return sum(int(re.findall(pattern, text)[0][1]) for pattern in patterns)


def test_the_bare_arm_gets_as_much_and_nothing_of_it_is_routed(finished: Finished, tmp_path: Path) -> None:
    shutil.copytree(finished.root, tmp_path / "bare", symlinks=True, ignore=shutil.ignore_patterns(".postloop"))
    back_to_round_1(tmp_path / "bare")
    bare = Workspace.open(tmp_path / "bare")
    record, data = finished.space.read(1, "backflow"), finished.space.read(2, "data")
    before = bare.spec_path.read_text()
    unfeed(bare, finished.space)
    after = bare.spec_path.read_text()
    assert bare.rounds() == [1]
    routed = sum(data.demonstrations.get(source, 0) for source in ROUTED)  # type: ignore[union-attr]
    assert routed > 0
    assert asked(after, GOLD) - asked(before, GOLD) == routed
    assert asked(after, TASKS) - asked(before, TASKS) == data.routed_tasks  # type: ignore[union-attr]
    said = {one.bucket: one.approve for one in decisions(bare)}
    assert said == {item.bucket: False for item in record.material}  # type: ignore[union-attr]


def test_what_a_round_trained_on_is_counted(finished: Finished) -> None:
    found = sizes(finished.space)
    assert found["rows"] >= 6
    assert found["rl_steps"] > 0
    assert found["groups_sampled"] > found["groups_used"] == 0  # a random model is never right: no group has spread

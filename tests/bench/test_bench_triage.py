"""The benchmark of triage: its three ways count alike, on evidence that reaches most rules, and it can say that they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import triage as bench
from evals.rules import load_rules
from evals.triage import triage


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return bench.prepare(tmp_path_factory.mktemp("triage"), 4000, seed=3)


def test_all_ways_give_the_same_counts_and_a_rule_less_gives_others(files: tuple[Path, Path]) -> None:
    rules = load_rules()
    ours = bench.by_postloop(*files, rules)
    assert ours == bench.by_pandas_json(*files, rules) == bench.by_pandas_parquet(*files, rules)
    assert sum(ours.values()) == 4000
    assert bench.by_pandas_parquet(*files, rules[1:]) != ours
    assert bench.row_by_row(files[0], seed=0) == 0


def test_the_evidence_reaches_most_rules_and_is_the_same_for_a_seed(files: tuple[Path, Path]) -> None:
    found = triage([files[0]], load_rules())
    assert sum(n > 0 for n in found.rules.values()) >= len(found.rules) - 3, found.rules
    assert bench.draw(50, seed=3).equals(bench.draw(50, seed=3))
    assert not bench.draw(50, seed=3).equals(bench.draw(50, seed=4))

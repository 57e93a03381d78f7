"""Variants of the default are compared on dev, never on what measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.settings import VARIANTS, changed, spec_text
from schemas.task import Split
from stages.spec import load_spec
from stages.workspace import Workspace


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_variant_is_a_valid_spec_that_sees_no_measuring_task(name: str, tmp_path: Path) -> None:
    spec = load_spec(Workspace.create(tmp_path / name, spec_text(name)).spec_path)
    assert {suite.split for suite in spec.evaluation.suites} == {Split.DEV}
    assert sum(s.held_out + s.boundary + s.retention for s in spec.data.sources) == 0
    assert spec.backflow.max_buckets == 0
    assert spec.data.demonstrations.from_past_rounds == 0


def test_a_path_that_does_not_exist_is_no_variant() -> None:
    with pytest.raises(KeyError):
        changed({"a": {}}, {"a.b.c": 1})
    assert changed({"a": [{"b": 1}]}, {"a.0.b": 2}) == {"a": [{"b": 2}]}

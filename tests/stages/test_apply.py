"""An approved change of goal.yaml: the value and nothing else is another one afterwards."""

from __future__ import annotations

import difflib

import pytest
import yaml

from schemas.errors import InputError
from stages.apply import edited
from stages.spec import dump_default

DEFAULT = dump_default("default")


def changed(before: str, after: str) -> list[str]:
    """Lines that differ, with their sign."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@pytest.mark.parametrize(
    ("field", "value", "lines"),
    [
        ("verifier", "pytest_files", ["-verifier: cases", "+verifier: pytest_files"]),
        ("verifier_of.repository", "strict", ["+verifier_of: {repository: strict}"]),
        ("rewards.unchanged", -0.1, ["-  unchanged: -0.2", "+  unchanged: -0.1"]),
        ("rewards.version", "2", ["+  version: '2'"]),
    ],
)
def test_one_field_of_the_default(field: str, value: object, lines: list[str]) -> None:
    assert changed(DEFAULT, edited(DEFAULT, {field: value})) == lines  # type: ignore[dict-item]


def test_comments_behind_a_value_stay() -> None:
    after = edited(DEFAULT, {"evaluation.temperature": 1.0})
    assert yaml.safe_load(after)["evaluation"]["temperature"] == 1.0
    assert "  temperature: 1.0              # of deployment;" in after


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a: 1\n", "a: 1\nrewards: {unchanged: -0.1}\n"),
        ("a: 1 # why", "a: 1 # why\nrewards: {unchanged: -0.1}"),
        ("rewards: {}\n", "rewards: {unchanged: -0.1}\n"),
        ("rewards: {timeout: 0.0}  # why\nb: 2\n", "rewards: {timeout: 0.0, unchanged: -0.1}  # why\nb: 2\n"),
        (
            "rewards:\n    timeout: 0.0 # why\n\nb: 2\n",
            "rewards:\n    timeout: 0.0 # why\n    unchanged: -0.1\n\nb: 2\n",
        ),
        ("rewards:\n  unchanged: 1 # why\r\nb: 2\r\n", "rewards:\n  unchanged: -0.1 # why\r\nb: 2\r\n"),
    ],
)
def test_texts_of_people(text: str, after: str) -> None:
    assert edited(text, {"rewards.unchanged": -0.1}) == after


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rewards: rewards.yaml\n", "rewards is 'rewards.yaml', no mapping"),
        ("a: &x {unchanged: 1}\nrewards: *x\n", "anchor or an alias"),
        ("rewards: &x\n  unchanged: 1\nb: *x\n", "anchor or an alias"),
        ("rewards:\n  unchanged: &y 1\n", "anchor or an alias"),
        ("", "it is None, no mapping"),
    ],
)
def test_what_is_held_elsewhere_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        edited(text, {"rewards.unchanged": -0.1})

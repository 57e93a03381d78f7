"""An approved change of goal.yaml: the value and nothing else is another one afterwards."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
import yaml

from schemas.errors import InputError
from stages.apply import edited, planned, write
from stages.spec import dump_default, load_spec

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
        ("rewards:\r\n  timeout: 0\r\nb: 2", "rewards:\r\n  timeout: 0\r\n  unchanged: -0.1\r\nb: 2"),
        ("rewards:\n  unchanged:\n  timeout: 0\n", "rewards:\n  unchanged: -0.1\n  timeout: 0\n"),
        ("rewards:\n  unchanged: # later\nb: 2\n", "rewards:\n  unchanged: -0.1 # later\nb: 2\n"),
        ("rewards: {timeout: 0,}\n", "rewards: {timeout: 0,unchanged: -0.1}\n"),
        (
            "rewards:\n  name: >-\n    mine\n\n# of b\nb:\n  name: x\n",
            "rewards:\n  name: >-\n    mine\n  unchanged: -0.1\n\n# of b\nb:\n  name: x\n",
        ),
        (
            "rewards:\n  parts:\n  - a\n# of b\nb: 2\n",
            "rewards:\n  parts:\n  - a\n  unchanged: -0.1\n# of b\nb: 2\n",
        ),
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
        ("rewards: [\n", r"goal.yaml: rewards.unchanged: no place in the text \(.*\); make the change by hand"),
    ],
)
def test_what_is_held_elsewhere_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        edited(text, {"rewards.unchanged": -0.1})


def test_several_values_in_blocks_of_lines() -> None:
    text = "rewards:\n  version: >-\n    1\n\n  unchanged: |\n    0.0\nb: 2\n"
    after = edited(text, {"rewards.version": "2", "rewards.unchanged": -0.1, "rewards.timeout": 0.0})
    assert after == "rewards:\n  version: '2'\n\n  unchanged: -0.1\n  timeout: 0.0\nb: 2\n"


# --- the whole file


@pytest.fixture
def goal(tmp_path: Path) -> Path:
    path = tmp_path / "goal.yaml"
    path.write_text(dump_default("tiny") + "rewards:\n  unchanged: -0.2\n")
    return path


def test_a_text_that_would_be_another_spec_than_the_one_wanted_is_refused(
    goal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason: here the place that was found is another field's."""
    seen = load_spec(goal)
    monkeypatch.setattr("stages.apply._edit", lambda text, field, value: text.replace("max_turns: 2", "max_turns: 3"))
    with pytest.raises(
        InputError, match=r"rewards.unchanged: no safe place in the text: budgets.max_turns would be 3, not 2"
    ):
        planned(goal, {"rewards.unchanged": -0.1}, seen)


def test_a_change_that_was_made_from_another_value_is_refused_with_both(goal: Path) -> None:
    seen = load_spec(goal)
    goal.write_text(goal.read_text().replace("unchanged: -0.2", "unchanged: -0.3"))
    with pytest.raises(
        InputError, match=r"rewards.unchanged is -0.3, and it was -0.2 when the change to -0.1 was proposed"
    ):
        planned(goal, {"rewards.unchanged": -0.1, "rewards.version": "2"}, seen)
    goal.write_text(goal.read_text().replace("unchanged: -0.3", "unchanged: -0.1"))
    before, after = planned(goal, {"rewards.unchanged": -0.1, "rewards.version": "2"}, seen)
    assert changed(before, after) == ["+  version: '2'"]
    goal.write_text(after)
    assert planned(goal, {"rewards.unchanged": -0.1, "rewards.version": "2"}, seen) == (after, after)


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(goal: Path, tmp_path: Path) -> None:
    real = tmp_path / "shared" / "loop.yaml"
    real.parent.mkdir()
    goal.rename(real)
    real.chmod(0o664)
    goal.symlink_to(real)
    write(goal, "name: x\n")
    assert goal.is_symlink()
    assert (real.read_text(), real.stat().st_mode & 0o777) == ("name: x\n", 0o664)

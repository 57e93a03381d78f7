"""A version is read, brought up by named steps, or refused in one line with both versions and what to do."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from schemas import migrations as subject
from schemas.base import SCHEMA_VERSION
from schemas.errors import InputError
from schemas.migrations import Form, Migration, brought_up, stamped, stamped_row, steps


def renamed(before: str, after: str) -> Any:
    return lambda content: {after if name == before else name: value for name, value in content.items()}


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if our version were the third."""
    monkeypatch.setattr(subject, "SCHEMA_VERSION", 3)
    two = (Migration("pins", 1, renamed("a", "b")), Migration("pins", 2, renamed("b", "c")))
    monkeypatch.setattr(subject, "MIGRATIONS", (*two, Migration("goal", 2, dict)))


def test_every_step_from_the_first_version_to_ours_is_there() -> None:
    """Raising the version without a step for each form is seen here."""
    for form in get_args(Form):
        assert len(steps(form, "a file", 1)) == SCHEMA_VERSION - 1
    assert len({(one.form, one.version) for one in subject.MIGRATIONS}) == len(subject.MIGRATIONS)


def test_what_carries_no_version_is_of_the_first(third: None) -> None:
    assert brought_up("pins", "pins.json", {"a": 7}) == {"c": 7}
    assert brought_up("pins", "pins.json", {"schema_version": 2, "b": 7}) == {"c": 7}
    assert brought_up("pins", "pins.json", stamped({"c": 7})) == {"c": 7}


def test_content_of_the_caller_is_not_changed(third: None) -> None:
    raw = {"schema_version": 1, "a": 7}
    brought_up("pins", "pins.json", raw)
    assert raw == {"schema_version": 1, "a": 7}


def test_a_missing_step_and_a_newer_version_are_named_in_one_line(third: None) -> None:
    with pytest.raises(InputError) as old:
        brought_up("goal", "rounds/0001/goal.json", {"schema_version": 1})
    assert str(old.value) == (
        "rounds/0001/goal.json: schema version 1, ours 3: no migration of goal from 1 to 2; "
        "read it with the postloop that wrote it, or add the migration to schemas/migrations.py"
    )
    with pytest.raises(InputError, match=r"^x\.json: schema version 4, known 3; use a newer postloop$"):
        brought_up("pins", "x.json", {"schema_version": 4})


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, None, True, [1]])
def test_what_is_no_version_is_refused(version: object) -> None:
    with pytest.raises(ValueError, match="schema_version"):
        steps("goal", "goal.json", version)


def test_rows_of_the_first_version_carry_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stamped_row({"a": 1}) == {"a": 1}
    monkeypatch.setattr(subject, "SCHEMA_VERSION", 2)
    assert stamped_row({"a": 1}) == {"schema_version": 2, "a": 1}

"""Kept attributions: files that nobody rewrites, found again by trajectory, refused when they were changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.attribution import Attribution
from schemas.base import digest_of
from schemas.bucket import Evidence, Route
from schemas.errors import IntegrityError
from stages import git
from stages.artifacts import pretty
from stages.attributed import keep, kept
from stages.workspace import Workspace
from tests import fabricated

FIRST, LATER = "2026-03-01T08:00:00.000+00:00", "2026-03-02T08:00:00.000+00:00"


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return fabricated.workspace(tmp_path / "loop")


def answer(trajectory: str, cause: str = "coverage") -> Attribution:
    facts = dict.fromkeys(("limit_hit", "visible_passed", "pass_at_k", "family_parse_rate", "family_pass"))
    counts = dict.fromkeys(
        ("parse_errors", "turns", "tool_errors", "forbidden", "failed_checks", "passed_checks", "task_passes",
         "task_attempts", "trained_origins"), 0,
    )  # fmt: skip
    evidence = Evidence.model_validate(
        {"trajectory": trajectory, "task_id": "t", "family": "f", "origin": "o", "status": "scored", "violations": [],
         "touched": [], "truncated": False, "submitted": True, "unchanged": False, **facts, **counts}
    )  # fmt: skip
    return Attribution(
        evidence=evidence, rule="few_training_origins", cause=cause, route=Route.DATA, because="few", round=1
    )


def test_an_answer_is_kept_once_and_committed_by_the_writer(space: Workspace) -> None:
    assert len(keep(space, [answer("a-1"), answer("b-2")], FIRST)) == 2
    assert keep(space, [answer("a-1")], LATER) == []
    assert len(keep(space, [answer("a-1", "drift")], LATER)) == 1
    assert [(one.when, one.attribution.cause) for one in kept(space, "a-1")] == [(FIRST, "coverage"), (LATER, "drift")]
    assert len(kept(space)) == 3
    with space.lock():
        pass
    assert git.uncommitted(space.root, ["attributions"]) == []


def test_a_changed_answer_is_refused_by_name(space: Workspace) -> None:
    [identity] = keep(space, [answer("a-1")], FIRST)
    path = space.root / "attributions" / f"{identity}.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "attribution": {**told["attribution"], "route": "rl"}}))
    with pytest.raises(IntegrityError, match=f"attributions/{identity}.json: its content is that of"):
        kept(space)
    path.write_text("{")
    with pytest.raises(IntegrityError, match="not an attribution"):
        kept(space)


def test_an_answer_of_a_version_whose_evidence_had_fewer_fields_is_as_it_was(space: Workspace) -> None:
    one = answer("a-1").model_dump(mode="json")
    del one["evidence"]["untrained"], one["overridden_by"]
    path = space.root / "attributions" / f"{digest_of(one)[:12]}.json"
    path.parent.mkdir()
    path.write_bytes(pretty({"when": FIRST, "attribution": one}))
    assert [found.attribution for found in kept(space)] == [answer("a-1")]


def test_other_files_of_the_folder_are_left_alone_and_a_file_in_its_place_is_told(space: Workspace) -> None:
    folder = space.root / "attributions"
    folder.mkdir()
    (folder / "notes.json").write_text("{}")
    assert kept(space) == []
    (folder / "notes.json").unlink()
    folder.rmdir()
    folder.write_text("a file")
    for call in (lambda: keep(space, [answer("a-1")], FIRST), lambda: kept(space)):
        with pytest.raises(IntegrityError, match=r"^attributions: is a file, .*; move it away$"):
            call()

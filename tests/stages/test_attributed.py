"""Kept attributions: files that nobody rewrites, found again by trajectory, refused when they were changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.attribute import show_answers
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
    del one["evidence"]["failed_tests"], one["evidence"]["similarity"], one["evidence"]["nearest_task"]
    path = space.root / "attributions" / f"{digest_of(one)[:12]}.json"
    path.parent.mkdir()
    path.write_bytes(pretty({"when": FIRST, "attribution": one}))
    assert [found.attribution for found in kept(space)] == [answer("a-1")]


def test_an_answer_names_the_failed_tests_and_the_nearest_training_task(capsys: pytest.CaptureFixture[str]) -> None:
    plain = answer("a-1")
    facts = {"failed_tests": ["test_a", "\x1b[2Jb\nowner: nobody", "x" * 120], "failed_checks": 20, "similarity": 0.413}
    near = plain.evidence.model_copy(update={**facts, "nearest_task": "repair/f/arith_1"})
    far = plain.evidence.model_copy(update={"similarity": 0.0})
    show_answers([plain.model_copy(update={"evidence": evidence}) for evidence in (near, far, plain.evidence)])
    shown = capsys.readouterr().out.splitlines()
    assert shown[1:3] == [
        f"  failed tests (the first 3 of 20): test_a, \\x1b[2Jb⏎owner: nobody, {'x' * 120}",
        "  most similar training task: 0.41 of 1, repair/f/arith_1",
    ]
    assert shown[5] == "  most similar training task: 0.00 of 1"
    assert [line.split(":")[0] for line in shown[3:]] == [
        "owner", "a-1, round 1", "  most similar training task", "owner", "a-1, round 1", "owner",
    ]  # fmt: skip


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

"""Attempts as ATIF, and trajectories of others: taken in whole or not at all, found by their own ids, never among ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from tiny_loop import REPOSITORY, Cli, Finished

from flows.replay import replay
from flows.trajectories import import_, show
from schemas.errors import InputError, IntegrityError, SpecError
from stages import git, trajectories
from stages.atif import Foreign, document_of, parse, text_of
from stages.recorded import Recorded, recorded
from stages.spec import dump_default
from stages.workspace import IMPORTS, Workspace

PUBLISHED = json.loads((REPOSITORY / "tests/stages/atif-v1.8.schema.json").read_text())
HOSTILE = "\x1b]0;title\x07 \x9b2J \u202e"
ALIEN = {
    "schema_version": "ATIF-v1.5", "session_id": "s/../s", "trajectory_id": HOSTILE, "notes": HOSTILE,
    "agent": {"name": "\x1b[31mred", "version": "1", "model_name": HOSTILE},
    "steps": [{"step_id": 1, "source": "user", "message": f"{HOSTILE} [bold]hi[/bold]"},
              {"step_id": 2, "source": "agent", "message": [{"type": "text", "text": HOSTILE}], "reasoning_content": HOSTILE,
               "tool_calls": [{"tool_call_id": HOSTILE, "function_name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}],
               "observation": {"results": [{"source_call_id": HOSTILE, "content": HOSTILE},
                                           {"subagent_trajectory_ref": [{"trajectory_path": HOSTILE}]}]},
               "extra": {"purpose": "rl", "reward": 1, "none": None}}],
    "subagent_trajectories": [{"trajectory_id": HOSTILE, "agent": {"name": "b", "version": "1"},
                               "steps": [{"step_id": 1, "source": "system", "message": ""}]}],
    "extra": {"deep": [{"é": 1.0}], HOSTILE: HOSTILE},
}  # fmt: skip


@pytest.fixture(scope="module")
def rows(finished: Finished) -> list[Recorded]:
    return recorded(finished.space)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another workspace, without a round."""
    return Workspace.create(tmp_path_factory.mktemp("other") / "loop", dump_default("tiny")).root


@pytest.fixture
def space(other: Path, tmp_path: Path) -> Workspace:
    shutil.copytree(other, tmp_path / "loop", symlinks=True)
    return Workspace.open(tmp_path / "loop")


def file(folder: Path, name: str, document: object) -> Path:
    (folder / name).write_text(json.dumps(document, indent=2))
    return folder / name


def foreign(document: object) -> Foreign:
    return parse(json.dumps(document).encode(), "f", "f")


def state(space: Workspace) -> dict[str, bytes]:
    """Every file of the workspace but caches and locks: commits, pointers, records and content are among them."""
    names = ((path, path.relative_to(space.root).as_posix()) for path in space.root.rglob("*") if path.is_file())
    return {
        name: path.read_bytes()
        for path, name in names
        if not name.startswith((".postloop/", ".dvc/tmp/", ".git/index"))
    }


def test_every_attempt_of_two_rounds_is_a_published_document(finished: Finished, rows: list[Recorded]) -> None:
    validator = Draft202012Validator(PUBLISHED)
    assert len(rows) > 50
    for row in rows:
        text = text_of(document_of(row.attempt))
        assert text_of(parse(text.encode(), "f", "f").document) == text
        assert list(validator.iter_errors(json.loads(text))) == []


def test_an_own_attempt_is_printed_and_is_foreign_elsewhere(
    finished: Finished, rows: list[Recorded], space: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = rows[-1].attempt
    show(own.trajectory.id[:-1], atif=True, workspace=finished.root)
    printed = capsys.readouterr().out
    assert printed == text_of(document_of(own)) + "\n"
    (tmp_path / "own.json").write_text(printed)
    assert import_([tmp_path / "own.json"], workspace=space.root, as_json=True) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["new"]
    assert entry["source"] == "own.json"
    show(entry["id"], atif=True, workspace=space.root)
    assert capsys.readouterr().out == printed
    with pytest.raises(InputError, match=f"{own.trajectory.id}: no trajectory of this workspace"):
        show(own.trajectory.id, workspace=space.root)


def test_an_import_lies_beside_the_rounds_and_is_never_replayed(
    finished: Finished, rows: list[Recorded], tmp_path: Path
) -> None:
    shutil.copytree(finished.root, tmp_path / "loop", symlinks=True, ignore=shutil.ignore_patterns(".postloop"))
    space = Workspace.open(tmp_path / "loop")
    own = file(tmp_path, "own.json", document_of(rows[0].attempt))
    import_([own, file(tmp_path, "alien.json", ALIEN)], workspace=space.root)
    assert recorded(space) == [
        Recorded(row.round, row.stage, space.root / row.table.relative_to(finished.root), row.attempt) for row in rows
    ]
    for number in space.rounds():
        assert "artifacts/foreign" not in json.dumps(
            [r.model_dump(mode="json") for r in space.records(number).values()]
        )
    (record,) = space.imports()
    for entry in record.trajectories:
        with pytest.raises(InputError, match=f"^{entry.id}: foreign, imported from {entry.source}: made under no pins"):
            replay(names=[rows[0].attempt.trajectory.id, entry.id[:-1]], workspace=space.root)
    assert space.refs() == sorted([*finished.space.refs(), record.artifact], key=lambda ref: ref.path)
    assert space.verify() == []


def test_importing_twice_is_importing_once(
    space: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = file(tmp_path, "a.json", ALIEN)
    import_([first], workspace=space.root)
    before = state(space)
    file(tmp_path, "again.json", dict(reversed(ALIEN.items())))
    import_([tmp_path], workspace=space.root)
    assert "1 trajectories, 0 new" in capsys.readouterr().out
    assert state(space) == before
    second = file(tmp_path, "b.json", {**ALIEN, "notes": "another"})
    import_([first, second], workspace=space.root, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert {(one["source"], one["new"]) for one in told} == {("a.json", False), ("b.json", True)}
    assert [len(record.trajectories) for record in space.imports()] == [1, 1]
    assert git.uncommitted(space.root, ["."]) == []
    assert space.verify() == []


def test_one_bad_file_changes_nothing(cli: Cli, space: Workspace, tmp_path: Path) -> None:
    good = file(tmp_path, "a.json", ALIEN)
    bad = file(tmp_path, "b.json", {**ALIEN, "steps": [{"step_id": 2, "source": "user", "message": ""}]})
    before = state(space)
    with pytest.raises(SpecError, match=r"b\.json: steps\[0\]\.step_id: 2, and steps are numbered 1, 2, 3: 1"):
        import_([tmp_path], workspace=space.root)
    done = cli("trajectories", "import", good, bad, "-w", space.root)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{bad}: steps[0].step_id: 2, and steps are numbered 1, 2, 3: 1\n"
    assert state(space) == before


def test_what_a_foreign_one_says_cannot_move_a_cursor(
    space: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file(tmp_path, "n\x1b[1m.json", ALIEN)
    import_([path], workspace=space.root)
    name = space.imports()[0].trajectories[0].id
    show(name, workspace=space.root)
    show("foreign-", workspace=space.root, as_json=True)
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert "\\x1b]0;title\\x07 \\x9b2J \\u202e [bold]hi[/bold]" in shown
    show(name, atif=True, workspace=space.root)
    assert json.loads(capsys.readouterr().out) == ALIEN
    with pytest.raises(InputError, match="foreign-zz: no foreign trajectory of this workspace"):
        show("foreign-zz", workspace=space.root)


def test_an_id_that_two_documents_share_is_refused(space: Workspace) -> None:
    one, two = foreign(ALIEN), foreign({**ALIEN, "notes": "x"})
    forged = Foreign(two.entry.model_copy(update={"id": one.entry.id}), two.content)
    with space.lock():
        with pytest.raises(InputError, match=f"f: id: {one.entry.id} is the id of f too"):
            trajectories.keep(space, [one, forged])
        assert space.imports() == []
        trajectories.keep(space, [one])
        with pytest.raises(InputError, match=f"f: id: {one.entry.id} is the id of f too"):
            trajectories.keep(space, [forged])


def test_a_kill_before_git_is_made_up_for_and_damage_is_named(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with space.lock(), monkeypatch.context() as killed:
        killed.setattr(git, "commit", lambda *_: False)
        trajectories.keep(space, [foreign(ALIEN)])
    (record,) = space.imports()
    place = space.root / IMPORTS / f"{record.artifact.digest[:12]}.json"
    name = f"{IMPORTS}/{place.name}"
    assert space.verify() == [f"{name}: differs from its commit; restore it with `git checkout -- {name}`"]
    with space.lock():
        assert git.uncommitted(space.root, ["."]) == []
    assert space.verify() == []
    content = place.read_bytes()
    place.with_name("0123.json").write_bytes(content)
    with pytest.raises(
        IntegrityError, match=f"{IMPORTS}/0123.json: not a record of this name, but {IMPORTS}/{place.stem}"
    ):
        space.imports()
    place.with_name("0123.json").unlink()
    place.write_bytes(content[:-20])
    assert any(f"{IMPORTS}/{place.name}: not a record of an import" in problem for problem in space.verify())
    place.write_bytes(content)
    table = space.root / record.artifact.path / trajectories.TABLE
    table.chmod(0o644)
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    assert space.verify()[0].startswith(f"artifact {record.artifact.path}: {trajectories.TABLE}: sha256 recorded")

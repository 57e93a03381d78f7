"""What no record needs goes, whole or after a kill; what anything names stays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_loop import Finished

from flows.gc import gc as command
from schemas.artifact import ArtifactRef
from schemas.data import DataRecord
from schemas.errors import IntegrityError, WorkspaceBusy
from schemas.gc import Survey
from schemas.rescore import Rescore
from stages import artifacts, dvc, git, rounds
from stages import gc as subject
from stages.context import Context
from stages.gc import collect, survey
from stages.recorded import recorded
from stages.replay import replay as again
from stages.spec import dump_default, load_spec
from stages.workspace import Workspace

KEY = "0" * 64
GONE = 2**22 + 1  # no process has this id


def copy_of(root: Path, target: Path) -> Workspace:
    """What was one inode there is one inode here."""
    subprocess.run(["cp", "-a", str(root), str(target)], check=True)
    return Workspace.open(target)


def keep(space: Workspace, stage: str, text: str, name: str = "tasks", file: str = "content.txt") -> ArtifactRef:
    return artifacts.store(space, stage, name, lambda folder: (folder / file).write_text(text))


def wasteful(space: Workspace) -> set[str]:
    """Of each kind something that no record names, one artifact without its manifest. What is listed, relative."""
    tracked, torn = keep(space, "data", "x" * 999, "proofs"), keep(space, "data", "y" * 99)
    dvc.add(space.root, [tracked.path])
    (space.root / f"{torn.path}.manifest.json").unlink()
    left = space.scratch / f"tmp-{GONE}-abc"
    left.mkdir()
    (left / "half.bin").write_bytes(b"half")
    stray = space.root / ".dvc/cache/files/md5/ab/cdef.tmp"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"half an object")
    found = [left, stray, *dvc.objects_of(space.root, tracked.path)]
    return {tracked.path, torn.path, *(path.relative_to(space.root).as_posix() for path in found)}


def paths(found: Survey) -> set[str]:
    return {one.path for one in found.waste}


def tree(root: Path) -> set[str]:
    """Everything but what servers and git keep for themselves."""
    names = (path.relative_to(root).as_posix() for path in root.rglob("*"))
    return {name for name in names if not name.startswith((".git/", ".postloop/dvc", ".postloop/prefect", ".dvc/tmp"))}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Round 1 and the open round 2 have data recorded: what else lies in its folder is waste."""
    space = Workspace.create(tmp_path_factory.mktemp("gc") / "loop", dump_default("tiny"))
    with space.lock():
        space.commit(1, DataRecord(key=KEY, artifacts={"tasks": keep(space, "data", "one")}), {})
        space.commit(2, DataRecord(key="1" * 64, artifacts={"tasks": keep(space, "data", "two")}), {})
    return space.root


@pytest.fixture
def space(plain: Path, tmp_path: Path) -> Workspace:
    return copy_of(plain, tmp_path / "loop")


@pytest.fixture
def looped(finished: Finished, environment: dict[str, str], tmp_path: Path) -> Iterator[Workspace]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("POSTLOOP_CACHE", environment["POSTLOOP_CACHE"])
        yield copy_of(finished.root, tmp_path / "loop")


def test_a_finished_loop_loses_what_was_left_in_it_and_nothing_else(
    looped: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records and their attempts as before: verified, replayed, and planned as before."""
    root, before = looped.root, tree(looped.root)
    planned = [(step.stage, step.action, step.key) for step in rounds.plan(context(looped))]
    assert paths(survey(looped)) == set()
    left = wasteful(looped)
    wasted = tree(root)
    assert command(workspace=root, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["removed"], {one["path"] for one in told["waste"]}) == (False, left)
    assert tree(root) == wasted
    assert command(workspace=root, yes=True, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["removed"], {one["path"] for one in told["waste"]}) == (True, left)
    assert tree(root) - before <= {".dvc/cache/files/md5/ab", *folders_of(left)}
    assert before <= tree(root)
    artifacts.forget()
    assert looped.verify() == []
    assert [(step.stage, step.action, step.key) for step in rounds.plan(context(looped))] == planned
    row = next(row for row in recorded(looped) if row.stage == "backflow")
    answers = [one for level in ("L0", "L1") for one in again(looped, context(looped).cache, [row], level)]  # type: ignore[arg-type]
    assert [one.same for one in answers] == [True, True]


def context(space: Workspace) -> Context:
    from flows.settings import cache_folder

    return Context(space, 3, load_spec(space.spec_path), cache_folder(space.root))


def folders_of(paths: set[str]) -> set[str]:
    return {Path(path).parent.as_posix() for path in paths}


def test_nothing_that_a_record_reaches_is_ever_listed(looped: Workspace) -> None:
    wasteful(looped)
    listed = paths(survey(looped, caches=True))
    for number in looped.rounds():
        for record in looped.records(number).values():
            for ref in record.artifacts.values():
                assert ref.path not in listed
                objects = dvc.objects_of(looped.root, ref.path)
                assert len(objects) > 1
                assert listed.isdisjoint(path.relative_to(looped.root).as_posix() for path in objects)


def test_bytes_are_those_that_come_back(space: Workspace) -> None:
    """Content that folder and cache share is counted once, and what a kept artifact shares not at all."""
    wasteful(space)
    dvc.add(space.root, [keep(space, "data", "one", "same").path])  # the content of data/tasks of round 1
    found = survey(space)
    by_kind = {kind: [one for one in found.waste if one.kind == kind] for kind in ("temporary", "artifact", "cached")}
    assert [one.bytes for one in by_kind["temporary"]] == [4]
    disk = {path.stat().st_ino: path.stat().st_size for path in space.root.rglob("*") if path.is_file()}
    collect(space)
    left = {path.stat().st_ino for path in space.root.rglob("*") if path.is_file()}
    ours = sum(size for inode, size in disk.items() if inode not in left)
    assert abs(ours - found.bytes) < 200_000  # git's own files, and DVC's, beside
    assert sum(one.bytes for one in by_kind["artifact"]) < 3000
    assert space.verify() == []


@pytest.mark.parametrize("breaks_at", [0, 1, 2, 3, 5, 7, 9])
def test_a_kill_in_the_middle_leaves_a_workspace_that_a_second_call_finishes(
    space: Workspace, breaks_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(space.root)
    left = wasteful(space)
    calls = iter(range(99))

    def dies(function: Callable[..., object]) -> Callable[..., object]:
        def at(*arguments: object, **named: object) -> object:
            if next(calls) == breaks_at:
                raise KeyboardInterrupt
            return function(*arguments, **named)

        return at

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subject.shutil, "rmtree", dies(subject.shutil.rmtree))
        patched.setattr(Path, "rename", dies(Path.rename))
        patched.setattr(Path, "unlink", dies(Path.unlink))
        broke = False
        try:
            collect(space)
        except KeyboardInterrupt:
            broke = True
    assert broke or next(calls) <= breaks_at
    artifacts.forget()
    assert space.verify() == []
    collect(space)
    assert tree(space.root) - folders_of(left) - {".dvc/cache/files/md5/ab"} <= before
    assert space.verify() == []
    assert paths(survey(space)) == set()


def test_what_a_decision_a_spec_or_another_branch_names_stays(space: Workspace) -> None:
    decided, specified, branched, tagged = (keep(space, "data", text, "kept") for text in "abcd")
    bundle = artifacts.store(space, "data", "harness", lambda folder: (folder / "bundle.json").write_text("{}"))
    everything = {ref.path for ref in (decided, specified, branched, tagged, bundle)}
    dvc.add(space.root, sorted(everything))
    assert everything <= paths(survey(space))
    (space.root / "decisions" / "mine.json").write_text(json.dumps({"because": f"see {decided.digest}"}))
    (space.root / "rewards.yaml").write_text(f"# {specified.path}\n")
    (space.root / "suites.yaml").write_text(f"harness: {subject.tree_digest(space.root / bundle.path)[:8]}\n")
    person = ["git", "-c", "user.name=p", "-c", "user.email=p@localhost"]
    for branch, ref in (("trial", branched), ("other", tagged)):
        run(space, "git", "checkout", "-q", "-b", branch)
        (space.root / "rounds/0009").mkdir()
        (space.root / "rounds/0009/note.json").write_text(json.dumps({"artifact": ref.path}))
        run(space, "git", "add", "-f", "rounds/0009", f"{ref.path}.dvc")
        run(space, *person, "commit", "-q", "-m", branch)
        if branch == "other":
            run(space, *person, "tag", "-a", "-m", "a tag", "v1")
        run(space, "git", "checkout", "-q", "main")
    run(space, "git", "branch", "-q", "-D", "other")
    assert not (space.root / f"{branched.path}.dvc").exists()
    listed = paths(survey(space))
    assert listed.isdisjoint(everything)
    assert not any(path.startswith(".dvc") for path in listed)


def test_a_record_that_was_taken_out_holds_nothing_and_its_pointers_leave_git(space: Workspace) -> None:
    record = space.read(2, "data")
    assert record is not None
    ref = record.artifacts["tasks"]
    run(space, "git", "rm", "-q", "-r", "rounds/0002")
    assert ref.path not in paths(survey(space))  # HEAD has it still
    run(space, "git", "-c", "user.name=p", "-c", "user.email=p@localhost", "commit", "-q", "-m", "take it out")
    assert ref.path in paths(survey(space))
    collect(space)
    assert not [path for path in tree(space.root) if ref.path in path]
    assert git.uncommitted(space.root, ["."]) == []
    assert space.rounds() == [1]
    assert space.verify() == []


def run(space: Workspace, *arguments: str) -> None:
    subprocess.run(arguments, cwd=space.root, check=True, capture_output=True)


def test_an_open_round_keeps_what_its_stages_may_take_up(space: Workspace) -> None:
    leftover, resumable = keep(space, "data", "left"), keep(space, "evaluation", "work", "attempts-0123456789ab")
    found = survey(space)
    assert paths(found) == {leftover.path}
    assert any(line.startswith(f"artifact {resumable.path}: round 2 is open") for line in found.kept)


def test_a_rescore_is_a_record(space: Workspace) -> None:
    ref = keep(space, "rescore", "verdicts", "rescored")
    assert paths(survey(space)) == {ref.path}
    counts = {"attempts": 0, "judged": 0, "changed": 0}
    with space.lock():
        space.commit_rescore(
            Rescore(number=1, key=KEY, rounds=[1], verifiers={}, rewards=None, artifacts={"rescored": ref}, **counts)
        )
    assert paths(survey(space)) == set()


def test_weights_that_a_record_pins_stay_and_equal_configs_keep_nothing(space: Workspace) -> None:
    def build(weights: str) -> Callable[[Path], object]:
        def fill(folder: Path) -> None:
            (folder / "model.safetensors").write_text(weights)
            (folder / "config.json").write_text("the same")

        return fill

    pinned, other = (artifacts.store(space, "data", "checkpoint", build(text)) for text in ("pinned", "other"))
    entries = artifacts.hash_tree(space.root / pinned.path).entries
    sums = {entry.path: entry.sha256 for entry in entries}
    pins = {"policy": subject.digest_of([sums["model.safetensors"]]), "config": sums["config.json"]}
    (space.root / "decisions" / "pins.json").write_text(json.dumps(pins))
    assert paths(survey(space)) == {other.path}


def test_a_damaged_list_of_files_keeps_the_whole_cache_and_says_so(space: Workspace) -> None:
    left = wasteful(space)
    ref = space.refs()[0]
    (own, *_) = dvc.objects_of(space.root, ref.path)
    good = own.read_bytes()
    own.chmod(0o644)
    own.write_bytes(good.replace(b"content.txt", b"content.txu"))
    found = survey(space)
    assert {path for path in paths(found) if path.startswith(".dvc/")} == set()
    assert len(paths(found)) == len([path for path in left if not path.startswith(".dvc/")])
    (line,) = found.kept
    assert line.startswith(f"cached copies: the list of {ref.path} is missing or damaged")


def test_a_damaged_record_refuses_and_removes_nothing(space: Workspace) -> None:
    wasteful(space)
    before = tree(space.root)
    path = space.root / "rounds/0001/data.json"
    path.write_text(path.read_text().replace('"stage": "data"', '"stage": "dat"'))
    for call in (survey, collect):
        with pytest.raises(IntegrityError, match=r"rounds/0001/data\.json: not a data record"):
            call(space)
    assert tree(space.root) == before


def test_one_writer(space: Workspace) -> None:
    other = Workspace.open(space.root)
    with other.lock(), pytest.raises(WorkspaceBusy, match="is running in it"):
        collect(space)


def test_a_persons_own_files_links_and_shared_caches_stay(space: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "tasks-0123456789ab").mkdir()
    (space.root / "artifacts/mine").symlink_to(outside)
    (space.root / "artifacts/data/notes").mkdir()
    (space.root / "mine.csv").write_text("1,2\n")
    subprocess.run(
        [sys.executable, "-m", "dvc", "add", "-q", "mine.csv"], cwd=space.root, check=True, capture_output=True
    )
    (space.root / "artifacts/data/tasks-aaaaaaaaaaaa").symlink_to(outside)
    assert paths(survey(space)) == {"artifacts/data/tasks-aaaaaaaaaaaa"}
    collect(space)
    assert (outside / "tasks-0123456789ab").is_dir()
    cache = space.root / ".dvc/cache"
    cache.rename(tmp_path / "shared")
    cache.symlink_to(tmp_path / "shared")
    (tmp_path / "shared/files/md5/aa").mkdir(exist_ok=True)
    (tmp_path / "shared/files/md5/aa/bbbb").write_text("of another repository")
    assert paths(survey(space)) == set()


def test_caches_are_collected_only_when_asked_for(space: Workspace) -> None:
    (space.scratch / "cache" / "images").mkdir(parents=True)
    (space.scratch / "cache" / "images" / "layer.tar").write_bytes(b"12345")
    assert paths(survey(space)) == set()
    found = collect(space, caches=True)
    assert [(one.kind, one.path, one.bytes) for one in found.waste] == [("cache", ".postloop/cache/images", 5)]
    assert list((space.scratch / "cache").iterdir()) == []

"""The store: a record is the commit point; one writer at a time; nothing half after a kill, a flip or a full disk."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.artifact import ArtifactRef
from schemas.data import DataRecord
from schemas.errors import InfrastructureError, InputError, IntegrityError, SpecError, WorkspaceBusy
from schemas.record import Record
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from stages import artifacts, git
from stages.artifacts import store
from stages.spec import dump_default
from stages.workspace import Workspace

KEY = "0" * 64
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Workspace.create(tmp_path_factory.mktemp("template") / "loop", dump_default("tiny")).root


@pytest.fixture
def space(template: Path, tmp_path: Path) -> Workspace:
    shutil.copytree(template, tmp_path / "loop", symlinks=True)
    return Workspace.open(tmp_path / "loop")


def keep(space: Workspace, stage: str, text: str, name: str = "tasks") -> ArtifactRef:
    return store(space, stage, name, lambda folder: (folder / "content.txt").write_text(text))


def data_record(space: Workspace, text: str = "one", key: str = KEY) -> DataRecord:
    return DataRecord(key=key, artifacts={"tasks": keep(space, "data", text)}, tasks={"train": 1})


def test_a_new_workspace_is_a_clean_git_and_dvc_repository(space: Workspace) -> None:
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=space.root, capture_output=True, text=True, check=True
    )
    assert status.stdout == ""
    assert git.head(space.root)
    assert space.rounds() == []
    assert (space.root / ".dvc" / "config").read_text().count("analytics = false") == 1


def test_a_bad_spec_or_a_full_folder_makes_no_workspace(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        Workspace.create(tmp_path / "loop", "name: x\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="new or empty"):
        Workspace.create(tmp_path / "taken", dump_default("tiny"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine.txt", "taken"]
    with pytest.raises(InputError, match=r"goal\.yaml is missing; make one with `postloop init") as error:
        Workspace.open(tmp_path / "taken")
    assert "\n" not in str(error.value)


def test_a_committed_record_comes_back_with_artifacts_pins_telemetry_and_a_commit(space: Workspace) -> None:
    with space.lock():
        record = data_record(space)
        space.commit(3, record, {"seconds": 1.5})
    assert space.rounds() == [3]
    assert space.has(3, "data")
    assert space.read(3, "data") == record
    assert space.read(3, "sft") is None
    assert space.telemetry(3, "data") == {"seconds": 1.5}
    pin = space.pins(3)
    assert pin is not None
    assert pin.pins["tasks"] == record.artifacts["tasks"].digest
    assert (space.open_artifact(record.artifacts["tasks"]) / "content.txt").read_text() == "one"
    log = subprocess.run(
        ["git", "log", "--format=%s|%an", "-1", "--name-only"],
        cwd=space.root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    path = record.artifacts["tasks"].path
    assert log[:3] == ["round", "3:", "data|postloop"]
    assert sorted(log[3:]) == [
        f"{path}.dvc",
        f"{path}.manifest.json",
        "rounds/0003/data.json",
        "rounds/0003/pins.json",
        "rounds/0003/telemetry/data.json",
    ]


def test_records_are_sorted_indented_json_and_written_once(space: Workspace) -> None:
    with space.lock():
        space.commit(1, data_record(space), {})
        text = (space.root / "rounds/0001/data.json").read_text()
        assert text == json.dumps(json.loads(text), sort_keys=True, indent=1) + "\n"
        with pytest.raises(InputError, match="round 1: data has a record"):
            space.commit(1, data_record(space, "two"), {})


def test_a_damaged_record_and_one_of_the_future_are_refused_in_one_line(space: Workspace) -> None:
    with space.lock():
        space.commit(1, data_record(space), {})
    path = space.root / "rounds/0001/data.json"
    good = path.read_text()
    path.write_text(good[:100])
    with pytest.raises(IntegrityError, match=r"rounds/0001/data\.json: not a data record.*git checkout") as error:
        space.read(1, "data")
    assert "\n" not in str(error.value)
    assert any("rounds/0001/data.json" in line for line in space.verify())
    path.write_text(good.replace('"schema_version": 1', '"schema_version": 99'))
    with pytest.raises(InputError, match="schema version 99, known 1"):
        space.read(1, "data")


def test_an_edited_record_and_a_flipped_bit_are_found_by_name(space: Workspace) -> None:
    with space.lock():
        record = data_record(space)
        space.commit(1, record, {})
    assert space.verify() == []
    edited = space.root / "rounds/0001/data.json"
    good = edited.read_text()
    edited.write_text(good.replace('"train": 1', '"train": 9'))
    assert [line.split(":")[0] for line in space.verify()] == ["rounds/0001/data.json"]
    edited.write_text(good)
    flip(space.root / record.artifacts["tasks"].path / "content.txt")
    (line,) = space.verify()
    assert f"{record.artifacts['tasks'].path}: content.txt: sha256 recorded" in line


def flip(path: Path) -> None:
    """One bit, size and times kept: what a failing disk does, and what DVC does not see."""
    before = path.stat()
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    path.chmod(before.st_mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_pull_restores_what_is_damaged_or_missing_from_a_remote(space: Workspace, tmp_path: Path) -> None:
    with space.lock():
        first = data_record(space)
        space.commit(1, first, {})
        second = SftRecord(key=KEY, artifacts={"checkpoint": keep(space, "sft", "weights", "checkpoint")})
        space.commit(1, second, {})
        with pytest.raises(InputError, match="no default remote"):
            space.push()
        config = space.root / ".dvc/config"
        remote = f"['remote \"away\"']\n    url = {tmp_path / 'away'}\n"
        config.write_text(config.read_text().replace("[core]\n", "[core]\n    remote = away\n") + remote)
        assert space.push() > 0
        paths = [first.artifacts["tasks"].path, second.artifacts["checkpoint"].path]
        flip(space.root / paths[0] / "content.txt")
        shutil.rmtree(space.root / paths[1])
        with pytest.raises(IntegrityError, match="sha256 recorded"):
            space.push()
        assert sorted(space.pull()) == sorted(paths)
        assert space.verify() == []
        with pytest.raises(InputError, match="no remote 'elsewhere'; known: away"):
            space.pull("elsewhere")
        config.write_text("[core\n")
        with pytest.raises(InputError, match=r"\.dvc/config: .*; correct it"):
            space.push()


def test_a_missing_folder_is_taken_from_the_cache_or_named(space: Workspace) -> None:
    with space.lock():
        record = data_record(space)
        space.commit(1, record, {})
    ref = record.artifacts["tasks"]
    shutil.rmtree(space.root / ref.path)
    assert (space.open_artifact(ref) / "content.txt").read_text() == "one"
    shutil.rmtree(space.root / ref.path)
    shutil.rmtree(space.root / ".dvc/cache")
    with pytest.raises(IntegrityError, match="no remote is set; `dvc remote add") as error:
        space.open_artifact(ref)
    assert "\n" not in str(error.value)


def test_one_writer_at_a_time_and_the_kernel_frees_the_lock(space: Workspace) -> None:
    holder = child(space, "with space.lock():\n    print('in', flush=True)\n    time.sleep(60)")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "in\n"
    with pytest.raises(WorkspaceBusy, match=f"process {holder.pid} is running in it"), space.lock():
        pass
    holder.kill()
    holder.wait()
    with space.lock():
        pass


def test_a_forked_worker_does_not_keep_the_lock_of_its_parent(space: Workspace) -> None:
    code = """
with space.lock():
    if os.fork() == 0:
        print(os.getpid(), flush=True)
    time.sleep(30)
"""
    holder = child(space, code)
    assert holder.stdout is not None
    worker = int(holder.stdout.readline())
    holder.kill()
    holder.wait()
    try:
        with space.lock():
            pass
    finally:
        os.kill(worker, signal.SIGKILL)


def test_writing_without_the_lock_or_after_losing_it_is_refused(space: Workspace) -> None:
    with pytest.raises(RuntimeError, match="inside"):
        space.commit(1, data_record(space), {})
    with space.lock():
        record = data_record(space)
        shutil.rmtree(space.root / ".postloop")  # may be deleted at any time
        space.commit(1, record, {})
        shutil.rmtree(space.root / ".postloop")
        other = child(space, "with space.lock():\n    print('in', flush=True)\n    time.sleep(60)")
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(InfrastructureError, match=r"\.postloop/ was deleted"):
            space.commit(1, SftRecord(key=KEY), {})
        other.kill()
        other.wait()


def child(space: Workspace, code: str, **environment: str) -> subprocess.Popen[str]:
    head = (
        "import os, resource, sys, time\nfrom pathlib import Path\nfrom stages.workspace import Workspace\n"
        "from stages.artifacts import store\nfrom schemas.data import DataRecord\nfrom schemas.sft import SftRecord\n"
        f"space = Workspace.open(Path({str(space.root)!r}))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", head + code],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def committing(space: Workspace, number: int, kill_at_step: int = 0) -> int:
    """Process id of a fork that commits round `number`, once it has the lock.

    A step is a flush or a rename, of ours or of DVC's; 0: no kill. Without a kill it leaves their number in `steps`.
    """
    ready, tell = os.pipe()
    child_id = os.fork()
    if child_id:
        os.close(tell)
        assert os.read(ready, 1) == b"."
        os.close(ready)
        return child_id
    try:
        steps = count_steps(kill_at_step)
        with space.lock():
            os.write(tell, b".")
            steps[0] = 0
            space.commit(number, record_of(space, number), {"seconds": 1})
            (space.root.parent / "steps").write_text(str(steps[0]))
        os._exit(0)
    finally:
        os._exit(1)


def count_steps(kill_at: int) -> list[int]:
    steps = [0]

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **keywords: object) -> object:
            steps[0] += 1
            if steps[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **keywords)

        return step

    for name in ("fsync", "rename", "replace"):
        setattr(os, name, counted(getattr(os, name)))
    return steps


def ended(child_id: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child_id, 0)[1])


def test_kill_at_random_moments_of_a_commit_leaves_old_or_new(space: Workspace) -> None:
    """20 kills, each of its own round. Whatever was cut off, the next start is clean and the next commit works."""
    assert ended(committing(space, 1)) == 0
    began = time.monotonic()
    assert ended(committing(space, 2)) == 0
    duration_s = time.monotonic() - began
    moments = random.Random(7)
    for number in range(3, 23):
        child_id = committing(space, number)
        time.sleep(moments.uniform(0.0, duration_s))
        os.kill(child_id, signal.SIGKILL)
        assert ended(child_id) in (0, -signal.SIGKILL)
        go_on(space, number)
    assert space.rounds() == list(range(1, 23))
    assert space.verify() == []


def test_kill_at_every_third_flush_or_rename_leaves_old_or_new(space: Workspace) -> None:
    for number in (1, 2):
        assert ended(committing(space, number)) == 0
    steps = int((space.root.parent / "steps").read_text())
    assert steps > 20
    kept = []
    for number, step in enumerate(range(2, steps + 1, 3), start=3):
        assert ended(committing(space, number, step)) == -signal.SIGKILL
        kept.append(space.has(number, "data"))
        go_on(space, number)
    assert kept == sorted(kept)  # no record before some step, a record after it
    assert not kept[0]
    assert space.verify() == []


def test_lock_held_for_a_moment_by_what_a_killed_run_was_starting(space: Workspace) -> None:
    """Between fork and exec a child has its parent's open files, also when the parent is no more."""
    child_id = os.fork()
    if not child_id:
        descriptor = os.open(space.scratch / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not os.fork():
            time.sleep(0.5)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    assert ended(child_id) == -signal.SIGKILL
    with space.lock():
        assert space.locked


def go_on(space: Workspace, number: int) -> None:
    """What the next start does after a kill: it ends with the same record as an undisturbed run."""
    with space.lock():
        if space.read(number, "data") is None:
            assert number not in space.rounds()
            space.commit(number, record_of(space, number), {})
        assert space.read(number, "data") == record_of(space, number)
    assert git.uncommitted(space.root, ["rounds", *(f"{ref.path}.dvc" for ref in space.refs())]) == []
    assert list((space.root / ".postloop").glob("tmp-*")) == []


def record_of(space: Workspace, number: int) -> Record:
    def build(folder: Path) -> None:
        (folder / "content.txt").write_text(f"round {number}")
        (folder / "more").mkdir()
        (folder / "more" / "bytes.bin").write_bytes(bytes(200_000))

    return DataRecord(key=KEY, artifacts={"tasks": store(space, "data", "tasks", build)}, tasks={"train": number})


def test_what_a_killed_run_left_is_cleared_and_its_record_is_committed(space: Workspace) -> None:
    with space.lock():
        space.commit(1, data_record(space), {})
    head = git.head(space.root)
    shutil.copy(space.root / "rounds/0001/data.json", space.root / "kept.json")
    (space.root / ".git/index.lock").write_text("")
    (space.root / ".postloop/tmp-99-left").mkdir(parents=True)
    (space.root / "artifacts/data/tasks-000000000000.dvc").write_text("outs:\n- md5: 12")
    (space.root / ".dvc/tmp/rwlock").write_text('{"write": {"')
    folder = space.root / "rounds/0002"
    folder.mkdir()
    (folder / ".sft.json.tmp").write_text("{")
    folder.joinpath("rl.json").write_text(RlRecord(key=KEY, skipped="no headroom").model_dump_json())
    with space.lock():
        pass
    assert git.head(space.root) != head
    log = subprocess.run(["git", "log", "--format=%s"], cwd=space.root, capture_output=True, text=True, check=True)
    assert log.stdout.splitlines()[0] == "round 2: rl"
    assert sorted(path.name for path in folder.iterdir()) == ["pins.json", "rl.json"]
    assert not (space.root / ".postloop/tmp-99-left").exists()
    assert not (space.root / "artifacts/data/tasks-000000000000.dvc").exists()
    with space.lock():
        space.commit(2, data_record(space, "two"), {})


def test_a_full_disk_is_infrastructure_in_one_line_and_leaves_nothing_half(space: Workspace) -> None:
    """A limit on the size of any file stands for the disk: writing beyond it fails as a full disk does."""
    code = """
from schemas.errors import InfrastructureError
with space.lock():
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    try:
        store(space, 'data', 'tasks', lambda folder: (folder / 'big.bin').write_bytes(bytes(100_000)))
    except InfrastructureError as error:
        print(error)
"""
    out, err = child(space, code).communicate(timeout=60)
    assert err == ""
    assert len(out.splitlines()) == 1
    assert out.startswith("artifact data/tasks: disk: File too large; make room")
    assert not (space.root / "artifacts").exists()
    assert list((space.root / ".postloop").glob("tmp-*")) == []


def test_a_disk_that_is_full_at_the_commit_leaves_no_record(space: Workspace) -> None:
    code = """
from schemas.errors import InfrastructureError
with space.lock():
    ref = store(space, 'data', 'tasks', lambda folder: (folder / 'content.txt').write_text('x'))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        space.commit(1, DataRecord(key='0' * 64, artifacts={'tasks': ref}), {})
    except InfrastructureError as error:
        sys.stderr.write(str(error) + chr(10))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert space.read(1, 'data') is None
    space.commit(1, DataRecord(key='0' * 64, artifacts={'tasks': ref}), {})
"""
    _, err = child(space, code).communicate(timeout=60)
    assert len(err.splitlines()) == 1, err
    assert space.rounds() == [1]
    assert space.verify() == []


def test_a_full_file_system_during_commit_leaves_no_record(space: Workspace, tmp_path: Path) -> None:
    """The same on a real full file system of 3 MB, where the machine lets us mount one."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(small)], capture_output=True)
    try:
        shutil.copytree(space.root, small / "loop", symlinks=True)
        tight = Workspace.open(small / "loop")
        with tight.lock():
            ref = keep(tight, "data", "content")
            if mounted.returncode == 0:
                fill(small / "filler")
                with pytest.raises(InfrastructureError) as error:
                    tight.commit(1, DataRecord(key=KEY, artifacts={"tasks": ref}), {})
                assert "\n" not in str(error.value)
                (small / "filler").unlink()
            assert tight.read(1, "data") is None
            tight.commit(1, DataRecord(key=KEY, artifacts={"tasks": keep(tight, "data", "content")}), {})
            assert tight.verify() == []
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(small)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_workspace_inside_another_repository_stays_its_own(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    outer = space.root.parent
    subprocess.run(["git", "init", "-q", str(outer)], check=True)
    monkeypatch.setenv("GIT_DIR", str(outer / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(outer / "index"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "somebody")
    (space.root / ".git/hooks").mkdir(exist_ok=True)
    hook = space.root / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with space.lock():
        space.commit(1, data_record(space), {})
    assert git.uncommitted(space.root, ["rounds"]) == []
    assert git.head(outer) is None


def test_what_a_person_has_staged_stays_staged_and_uncommitted(space: Workspace) -> None:
    (space.root / "notes.txt").write_text("mine")
    subprocess.run(["git", "add", "notes.txt"], cwd=space.root, check=True)
    with space.lock():
        space.commit(1, data_record(space), {})
    assert git.uncommitted(space.root, ["notes.txt"]) == ["notes.txt"]


def test_what_people_changed_goes_along_with_the_next_record(space: Workspace) -> None:
    """Specs in folders too; not what git ignores. Records and pointers even when an ignore rule matches them."""
    (space.root / "goal.yaml").write_text(dump_default("tiny") + "# edited\n")
    (space.root / "specs").mkdir()
    (space.root / "specs/suites.yaml").write_text("[]\n")
    (space.root / "secret.yaml").write_text("key: 1\n")
    (space.root / "decisions/one.json").write_text("{}")
    with (space.root / ".gitignore").open("a") as ignore:
        ignore.write("secret.yaml\n*.json\n*.dvc\n!decisions/*.json\n")
    with space.lock():
        record = data_record(space)
        space.commit(1, record, {})
    log = ["git", "log", "-1", "--name-only", "--format="]
    committed = set(subprocess.run(log, cwd=space.root, capture_output=True, text=True, check=True).stdout.split())
    pointer = f"{record.artifacts['tasks'].path}.dvc"
    assert {"goal.yaml", "specs/suites.yaml", "decisions/one.json", "rounds/0001/data.json", pointer} <= committed
    assert "secret.yaml" not in committed


def test_a_torn_pointer_that_a_record_names_is_restored(space: Workspace) -> None:
    with space.lock():
        record = data_record(space)
        space.commit(1, record, {})
    pointer = space.root / f"{record.artifacts['tasks'].path}.dvc"
    good = pointer.read_text()
    pointer.write_text(good[:20])
    with space.lock():
        assert pointer.read_text() == good


def test_people_can_use_dvc_and_git_as_they_know_them(space: Workspace) -> None:
    with space.lock():
        record = data_record(space)
        space.commit(1, record, {})
    shutil.rmtree(space.root / record.artifacts["tasks"].path)
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(space.root.parent / "site")}
    command = [sys.executable, "-m", "dvc", "checkout", "-q"]
    subprocess.run(command, cwd=space.root, env=environment, check=True, capture_output=True)
    assert space.verify() == []
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=space.root, capture_output=True, text=True, check=True
    )
    assert status.stdout == ""


def test_a_start_on_a_settled_workspace_takes_well_under_a_second(space: Workspace) -> None:
    with space.lock():
        space.commit(1, data_record(space), {})
    began = time.monotonic()
    code = "import sys\nwith space.lock():\n    pass\nprint('dvc.repo' in sys.modules, 'numpy' in sys.modules)"
    out, err = child(space, code).communicate(timeout=60)
    assert (out, err) == ("False False\n", "")
    assert time.monotonic() - began < 3
    assert artifacts.problems_of(space, space.refs()[0]) == []

"""Foreign tasks run: graded in a fresh container from the difference alone, hostile trees, broken machines, said trust.

The first half needs no Docker; the second a real dockerd (tests/dockerd.py), with the project's own image as the base.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dockerd import dockerd

from environments.docker_image import load_image, tag_of
from environments.formats import foreign, harbor
from environments.formats.foreign import TooMuch, changes_of, difference, reward_of, variables_of
from environments.formats.foreign_docker import ForeignDocker
from environments.image import Image, build_image
from flows import tasks as commands
from schemas.errors import EXIT_DONE, EXIT_NO, InputError, SandboxError
from schemas.harbor import HarborTask, Trust
from schemas.verdict import Status, Verdict
from stages.foreign import ForeignRun, run
from stages.spec import dump_default
from stages.workspace import Workspace

# --- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "score", "said"),
    [
        ("reward.txt", b"1\n", 1.0, None),
        ("reward.txt", b" 0.25", 0.25, None),
        ("reward.json", b'{"reward": 0.5, "time": 3}', 0.5, None),
        ("reward.json", b'{"accuracy": 1}', 1.0, None),
        ("reward.json", b"0", 0.0, None),
        ("reward.txt", b"nan", 0.0, "not within 0..1"),
        ("reward.txt", b"inf", 0.0, "not within 0..1"),
        ("reward.txt", b"-0.1", 0.0, "not within 0..1"),
        ("reward.txt", b"2", 0.0, "not within 0..1"),
        ("reward.json", b"1e999", 0.0, "not within 0..1"),
        ("reward.txt", b"", 0.0, "no number"),
        ("reward.txt", b"\xff\xfe", 0.0, "no number"),
        ("reward.txt", b"passed\x1b[2J", 0.0, "no number"),
        ("reward.txt", b"1" + b" " * foreign.MAX_REWARD_BYTES, 0.0, "no number"),
        ("reward.json", b"true", 0.0, "no number"),
        ("reward.json", b'"1"', 0.0, "no number"),
        ("reward.json", b'{"a": 1, "b": 1}', 0.0, "no number"),
        ("reward.json", b"[" * 60_000, 0.0, "no number"),
        ("reward.json", b"1" + b"0" * 400, 0.0, "no number"),
    ],
)
def test_a_reward_is_a_number_from_0_to_1_or_a_fault(name: str, data: bytes, score: float, said: str | None) -> None:
    found, problem = reward_of(name, data)
    assert found == score
    assert (problem is None) is (said is None)
    assert (said or "") in (problem or "")
    assert (problem or "").isprintable()


def test_nothing_of_the_hosts_environment_is_handed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    assert variables_of({"A": "${SECRET:-none}", "B": "x${SECRET:-}y"}, {"C": "$SECRET"}) == {
        "A": "none",
        "B": "xy",
        "C": "$SECRET",
    }
    with pytest.raises(InputError, match="wants SECRET of the host"):
        variables_of({"A": "${SECRET}"})


def exported(*entries: tuple[str, bytes, bytes | str]) -> io.BytesIO:
    """A container's export: (name, type, content or where a link leads)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.mtime, entry.uid = kind, 0o4755, 77, 5
            entry.linkname = content if isinstance(content, str) else ""
            data = content if isinstance(content, bytes) else b""
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    out.seek(0)
    return out


REG, DIR, SYM, LNK, FIFO = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE


def test_a_difference_holds_what_changed_as_bytes_and_what_is_gone() -> None:
    changes = {
        "app": 0,
        "app/a": 1,
        "app/hard": 1,
        "app/soft": 1,
        "app/new": 2,
        "app/new/x": 1,
        "app/gone": 2,
        "lost/x": 2,
    }
    tree = exported(
        ("app/", DIR, ""), ("app/a", REG, b"\xff\x00"), ("app/hard", LNK, "app/a"), ("app/kept", REG, b"no"),
        ("app/new/", DIR, ""), ("app/new/x", REG, b"1"), ("app/soft", SYM, "../../../etc/shadow"), ("usr/", DIR, ""),
    )  # fmt: skip
    found = difference(changes, tree)
    with tarfile.open(fileobj=found.layer) as layer:
        entries = {entry.name: entry for entry in layer}
        content = layer.extractfile("app/a")
        assert content is not None
        assert content.read() == b"\xff\x00"
    assert list(entries) == [
        "app", "app/a", "app/hard", "app/new", "app/new/.wh..wh..opq", "app/new/x", "app/soft", "app/.wh.gone",
    ]  # fmt: skip
    assert (entries["app/a"].mode, entries["app/a"].uid, entries["app/a"].mtime) == (0o4755, 5, 77)
    assert (found.paths, found.left_out) == (6, [])
    later = exported(("app/", DIR, ""), ("app/a", REG, b"\xff\x01"))
    assert (
        difference({"app/a": 1}, later).digest != difference({"app/a": 1}, exported(("app/a", REG, b"\xff\x00"))).digest
    )


HOSTILE: dict[str, tuple[bytes, bytes | str, str]] = {
    "app/fifo": (FIFO, "", "a device or a pipe"),
    "app/null": (tarfile.CHRTYPE, "", "a device or a pipe"),
    "app/.wh.tests": (REG, b"", "begins with .wh."),
    "app/.wh..wh..opq": (REG, b"", "begins with .wh."),
    "app/hard": (LNK, "etc/shadow", "a hard link to a file that did not change"),
    "app/soft": (SYM, "\udcff", "not UTF-8"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_tree_should_hold_is_left_out_and_said(name: str) -> None:
    kind, content, said = HOSTILE[name]
    found = difference({name: 1, "app/a\x1b[2J": 1}, exported((name, kind, content), ("app/a\x1b[2J", REG, b"")))
    (line,) = found.left_out
    assert said in line
    with tarfile.open(fileobj=found.layer) as layer:
        assert layer.getnames() == ["app/a\x1b[2J"]


def test_a_name_that_docker_cannot_say_is_left_out() -> None:
    found = difference({"app/\ufffd": 1, "app/a\nb": 1}, exported(("app/\udcff", REG, b"")))
    assert len(found.left_out) == 2
    assert all("a socket, or a name that is not UTF-8" in line and line.isprintable() for line in found.left_out)


def test_too_much_is_the_attempts_own_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MAX_DIFFERENCE_BYTES", 5000)
    with pytest.raises(TooMuch, match="MiB changed"):
        difference({"a": 1, "b": 1}, exported(("a", REG, b"x" * 2000), ("b", REG, b"x" * 2000)))
    rows = [{"Path": f"/app/{number}", "Kind": 1} for number in range(foreign.MAX_CHANGES + 1)]
    with pytest.raises(TooMuch, match="20001 paths changed"):
        changes_of(json.dumps(rows).encode())


def test_what_we_or_docker_lay_is_no_part_of_a_difference() -> None:
    paths = [
        "/",
        "/tests/x",
        "/logs/verifier/reward.txt",
        "/solution",
        "/etc/hosts",
        "/.dockerenv",
        "/testsuite/a",
        "/etc/x",
    ]
    rows = [{"Path": path, "Kind": 1} for path in paths]
    assert changes_of(json.dumps(rows).encode()) == {"testsuite/a": 1, "etc/x": 1}
    assert changes_of(b"null\n") == {}


# --- containers ----------------------------------------------------------------------------------------------------

DOCKERFILE = """\
FROM {base}
COPY sh /usr/bin/sh
COPY app/ /app/
RUN [ ! -e /app/built ] && echo built > /app/built
RUN ["python3", "-c", "import os; os.chown('/app', 77, 77); os.chmod('/app', 0o751)"]
VOLUME /app/data
ENV COLOUR=green
WORKDIR /app
"""
TEST_SH = """\
#!/bin/sh
python3 /tests/check.py && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
# What a repair has to do: a file repaired, one removed, one written into the volume; and what grading promises.
CHECK = """\
import os, stat, sys
sys.path.insert(0, "/app")
import calc
assert calc.add(2, 3) == 5
assert not os.path.exists("/app/bug.txt"), "bug.txt"
assert os.path.exists("/app/built") and os.environ["COLOUR"] == "green"
assert open("/app/data/blob", "rb").read() == bytes(range(256)), "blob"
status = os.stat("/app")
assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (77, 0o751), status
assert os.listdir("/logs/verifier") == [], "left by the agent"
"""
SOLVE_SH = """\
set -e
echo 'def add(a, b): return a + b' > calc.py
python3 -c "import os; os.remove('bug.txt'); open('data/blob', 'wb').write(bytes(range(256)))"
"""
TOML = '[task]\nname = "org/{name}"\n[environment]\nmemory_mb = 256\nstorage_mb = 512\n[verifier]\ntimeout_sec = {seconds}\n'


@pytest.fixture(scope="module")
def image() -> Image:
    return build_image(Path(tempfile.gettempdir()) / "postloop-test-images")


@pytest.fixture(scope="module")
def docker(image: Image) -> Iterator[ForeignDocker]:
    with dockerd():
        docker = ForeignDocker()
        load_image(docker.client(), image.root, image.environment)
        yield docker
        docker.close()


@pytest.fixture
def folder(image: Image, tmp_path: Path) -> Path:
    return make_folder(tmp_path / "suite/fix", image)


def make_folder(path: Path, image: Image, **texts: str) -> Path:
    """A foreign task; `texts`: other content of toml, dockerfile, solve, test, check."""
    for name in ("environment/app/data", "environment/app/sub", "tests", "solution"):
        (path / name).mkdir(parents=True)
    toml = TOML.format(name=path.name, seconds=60)
    given = {"toml": toml, "dockerfile": DOCKERFILE, "solve": SOLVE_SH, "test": TEST_SH, "check": CHECK}
    given |= texts
    (path / "task.toml").write_text(given["toml"])
    (path / "instruction.md").write_text("Repair add.\n")
    (path / "environment/Dockerfile").write_text(given["dockerfile"].replace("{base}", tag_of(image.environment.layer)))
    shutil.copy(shutil.which("dash") or "/bin/sh", path / "environment/sh")
    (path / "environment/app/calc.py").write_text("def add(a, b): return a - b\n")
    (path / "environment/app/bug.txt").write_text("remove me\n")
    for name in ("data", "sub"):
        (path / f"environment/app/{name}/old").write_text("")
    (path / "solution/solve.sh").write_text(given["solve"])
    (path / "tests/test.sh").write_text(given["test"])
    (path / "tests/check.py").write_text(given["check"])
    return path


def ran(docker: ForeignDocker, folder: Path, agent: str = "oracle") -> ForeignRun:
    return run(harbor.read(folder), agent, docker)


def scored(done: ForeignRun) -> tuple[float | None, list[str], str | None]:
    assert done.verdict.trust == "foreign"
    assert done.verdict.status is Status.SCORED, done
    return done.verdict.score, [item.kind for item in done.verdict.violations], done.verdict.limit_hit


def test_a_foreign_suite_is_imported_run_and_its_trust_said(
    docker: ForeignDocker,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Solution, nothing, and files of one's own; the answer of a repeat is the same."""
    monkeypatch.setenv("POSTLOOP_CACHE", str(tmp_path / "cache"))
    loop = Workspace.create(tmp_path / "loop", dump_default("tiny")).root
    assert commands.import_(str(folder.parent), workspace=loop, as_json=True) == EXIT_DONE
    goal = loop / "goal.yaml"
    goal.write_text(goal.read_text().replace("data:\n", "data:\n  seed_data: tasks\n", 1))
    (tmp_path / "mine/data").mkdir(parents=True)
    (tmp_path / "mine/calc.py").write_text("def add(a, b): return a + b\n")
    (tmp_path / "mine/data/blob").write_bytes(bytes(range(256)))
    capsys.readouterr()
    said: dict[str, Any] = {}
    mine = str(tmp_path / "mine")
    for agent, code in (("oracle", EXIT_DONE), (mine, EXIT_NO), ("oracle", EXIT_DONE)):
        assert commands.run("harbor/org/fix", agent, workspace=loop, as_json=True) == code
        before, said[agent] = said.get(agent), json.loads(capsys.readouterr().out)
        assert said[agent]["verdict"]["trust"] == "foreign"
        assert before is None or before["verdict"] == said[agent]["verdict"]
    assert [(value["verdict"]["score"], value["paths"]) for value in said.values()] == [(1.0, 3), (0.0, 2)]
    assert said[mine]["tests_ended"] == "exit 0 AssertionError: bug.txt"
    assert commands.run("harbor/org/fix", "nop", workspace=loop) == EXIT_NO
    shown = capsys.readouterr().out
    assert "trust" in shown
    assert "foreign" in shown
    with pytest.raises(InputError, match="neither oracle, nop nor a folder"):
        commands.run("harbor/org/fix", "gold", workspace=loop)
    with pytest.raises(InputError, match="no imported folder has it; foreign ones in tasks: harbor/org/fix"):
        commands.run("harbor/org/other", workspace=loop)
    assert not [
        item for item in docker.client().images() if any("foreign-run" in tag for tag in item["RepoTags"] or [])
    ]
    assert not [item for item in docker.client().containers(all=True) if "foreign-run" in item["Image"]]


ENEMY = """\
#!/usr/bin/python3
import os, shutil, socket, subprocess, sys
os.chdir("/app")
for place in ("/logs/verifier", "/tests"):
    os.makedirs(place, exist_ok=True)
open("/logs/verifier/reward.txt", "w").write("1")
open("/logs/verifier/reward.json", "w").write("1")
open("/tests/check.py", "w").write("")
open("/tests/conftest.py", "w").write("")
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
os.symlink("/etc/shadow", "soft")
os.symlink("../../../../../../etc/passwd", "climbing")
os.link("/etc/passwd", "hard")
for name in (b".wh.calc.py", b".wh..wh..opq", b"\\xff\\xfe", b"a\\nb", b"\\x1b[2J"):
    open(name, "wb").close()
shutil.rmtree("data", ignore_errors=True)
shutil.rmtree("sub")
os.mkdir("sub")
open("sub/new", "w").close()
os.chmod("calc.py", 0o6755)
code = "import time\\nwhile 1:\\n    open('/logs/verifier/reward.txt', 'w').write('1')\\n    time.sleep(.01)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
reached = socket.socket().connect_ex(("192.0.2.1", 80))
print(status["NoNewPrivs"].strip(), status["CapBnd"].strip(), os.strerror(reached))
"""
SEEN = """\
import os
seen = sorted(os.fsencode(name) for name in os.listdir("/app"))
print(seen, os.listdir("/app/sub"), os.readlink("/app/soft"), os.listdir("/logs/verifier"), sorted(os.listdir("/tests")),
      oct(os.stat("/app/calc.py").st_mode), len([name for name in os.listdir("/proc") if name.isdigit()]))
raise SystemExit(1)
"""


def test_a_hostile_tree_crosses_only_as_what_it_is(docker: ForeignDocker, image: Image, tmp_path: Path) -> None:
    path = make_folder(tmp_path / "enemy", image, solve=ENEMY, check=SEEN)
    done = ran(docker, path)
    assert scored(done) == (0.0, [], None)
    assert done.agent_ended == "exit 0 1 00000000000004fb Network is unreachable"
    for said in (
        "fifo: a device or a pipe",
        "a socket, or a name",
        ".wh.calc.py: a name that begins",
        ".wh..wh..opq: a name",
    ):
        assert any(said in line for line in done.left_out), (said, done.left_out)
    names = sorted([b"\x1b[2J", b"a\nb", b"bug.txt", b"built", b"calc.py", b"climbing", b"hard", b"soft", b"sub"])
    assert done.tests_ended == f"exit 0 {names} ['new'] /etc/shadow [] ['check.py', 'test.sh'] 0o106755 2"


@pytest.mark.parametrize(
    ("solve", "kind"),
    [
        ("#!/usr/bin/python3\nopen('/app/big', 'wb').truncate(300 << 20)\n", "too_large"),
        ("#!/usr/bin/python3\nopen('/usr/bin/sh', 'w').write('x')\n", "no_reward"),
        ('echo \'open("/logs/verifier/reward.json", "w").write("NaN")\' >> calc.py\n', "not_a_score"),
    ],
)
def test_an_attempt_that_spoils_its_grading_has_failed(
    solve: str, kind: str, docker: ForeignDocker, image: Image, tmp_path: Path
) -> None:
    assert scored(ran(docker, make_folder(tmp_path / "spoil", image, solve=solve))) == (0.0, [kind], None)


def test_limits_that_an_attempt_hits_are_its_own(docker: ForeignDocker, image: Image, tmp_path: Path) -> None:
    """A test that the attempt makes hang, and one that it makes eat all memory."""
    test = "#!/bin/sh\nwhile [ -e hang ]; do :; done\necho 0 > /logs/verifier/reward.txt\n"
    toml = TOML.format(name="hang", seconds=2)
    hang = make_folder(tmp_path / "hang", image, toml=toml, solve="echo > hang\n", test=test)
    assert scored(ran(docker, hang)) == (0.0, [], "wall")
    eat = make_folder(tmp_path / "eat", image, solve="echo 'x = bytearray(1 << 30)' > calc.py\n")
    assert scored(ran(docker, eat))[:2] == (0.0, [])


def test_a_task_without_a_reward_is_an_error_and_no_zero(docker: ForeignDocker, image: Image, tmp_path: Path) -> None:
    done = ran(docker, make_folder(tmp_path / "mute", image, test="#!/bin/sh\necho nothing to say\n"), "nop")
    assert (done.verdict.status, done.verdict.score, done.verdict.trust) == (Status.ERROR, None, "foreign")
    assert "so does the start tree" in (done.verdict.reason or "")
    assert "nothing to say" in (done.verdict.reason or "")


def test_a_container_that_somebody_kills_is_run_again(docker: ForeignDocker, image: Image, tmp_path: Path) -> None:
    slow = TEST_SH.replace("python3", "python3 -c 'import time; time.sleep(.5)'; python3", 1)
    path = make_folder(tmp_path / "killed", image, test=slow, toml=TOML.format(name="killed", seconds=30))
    killed: list[str] = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            for item in docker.client().containers():
                if item["Command"].endswith("/tests/test.sh"):
                    killed.append(item["Id"])
                    docker.client().remove_container(item["Id"], force=True)
            time.sleep(0.02)

    thread = threading.Thread(target=kill)
    thread.start()
    done = ran(docker, path)
    thread.join()
    assert len(killed) == 1
    assert scored(done) == (1.0, [], None)


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    line = str(error.value)
    assert line.isprintable()
    assert len(line) < 700
    return line


def test_no_image_is_one_line(
    docker: ForeignDocker, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = make_folder(tmp_path / "far", image, dockerfile="FROM localhost:1/nowhere:1\n")
    bad = make_folder(tmp_path / "bad", image, dockerfile='FROM {base}\nRUN ["python3", "-c", "raise SystemExit(3)"]\n')
    for path, said in ((far, "at FROM localhost:1/nowhere:1"), (bad, "at RUN")):
        with pytest.raises(SandboxError) as error:
            ran(docker, path)
        assert said in one_line(error)
        assert "registry" in str(error.value)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    with pytest.raises(SandboxError, match="no daemon answers"):
        ForeignDocker()


def test_the_image_that_a_task_names_is_taken_when_it_is_here(
    docker: ForeignDocker, image: Image, folder: Path
) -> None:
    def found() -> str:
        made = harbor.read(folder)
        return docker.image(made.task.id, made.folder, harbor.config_of(made.folder))

    first = found()
    docker.client().tag(first, "org/fix", "1")
    toml = folder / "task.toml"
    toml.write_text(toml.read_text().replace("[environment]\n", '[environment]\ndocker_image = "org/fix:1"\n'))
    (folder / "environment/Dockerfile").write_text("FROM localhost:1/nowhere:1\n")
    assert found() == first
    docker.client().remove_image("org/fix:1")
    with pytest.raises(SandboxError, match="nowhere"):
        found()


REFUSED = {
    "several containers": ("environment/docker-compose.yaml", "services: {}\n", "several containers"),
    "a separate verifier": ("task.toml", '[verifier]\nenvironment_mode = "separate"\n', "container of their own"),
    "a GPU": ("task.toml", "[environment]\ngpus = 1\n", "gpus is 1"),
    "no memory": ("task.toml", "[environment]\nmemory_mb = 1\n", "memory_mb"),
    "a time that is none": ("task.toml", "[verifier]\ntimeout_sec = -1\n", "of its container"),
    "a hidden variable": ("task.toml", '[verifier]\nenv = { KEY = "${KEY}" }\n', "wants KEY of the host"),
    "no solution": ("solution/solve.sh", None, "solution/solve.sh: missing"),
    "an odd image": ("task.toml", '[environment]\ndocker_image = "a b"\n', "no name of an image"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_task_that_is_not_run_here_is_refused(name: str, docker: ForeignDocker, folder: Path) -> None:
    path, text, said = REFUSED[name]
    (folder / path).unlink(missing_ok=True)
    if text is not None:
        (folder / path).write_text(text)
    with pytest.raises(InputError) as error:
        ran(docker, folder)
    assert said in one_line(error)


def test_a_declared_task_is_not_run_so(docker: ForeignDocker, folder: Path) -> None:
    made = harbor.read(folder)
    declared = HarborTask(task=made.task, trust=Trust.DECLARED, folder=made.folder)
    with pytest.raises(InputError, match="declared, so rounds run it"):
        run(declared, "nop", docker)


def test_a_verdict_says_declared_unless_it_is_foreign() -> None:
    names = dict.fromkeys(("outcome", "task", "image", "limits", "verifier"), "0" * 64)
    assert Verdict.model_validate({**names, "status": "error"}).trust == "declared"

"""Harbor folders: read and written exactly, refused when hostile, and graded elsewhere by their own scripts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from environments.formats import folder as folders
from environments.formats import harbor
from environments.image import Image, build_image
from environments.sources import default
from schemas.errors import InputError, IntegrityError
from schemas.harbor import Trust
from schemas.task import Case, Split, Task

START, GOLD = "def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n"
TEST_CALC = """\
import calc

def test_adds():
    assert calc.add(2, 3) == 5

def test_zero():
    assert calc.add(4, 0) == 4
"""


def function_task(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": "repair/add/arith_0",
        "kind": "function",
        "family": "repair.value",
        "skill": "repair",
        "origin": "add",
        "split": Split.BOUNDARY,
        "statement": "Repair add: “a + b”.\r\nMind\tthe edge.\n",
        "files": {"solution.py": START, "docs/read me.txt": "one\r\ntwo"},
        "editable": ["solution.py"],
        "entry": "add",
        "visible": [Case(args=[1, 0], expected=1), Case(args=[None, 1], raises="TypeError")],
        "hidden": [
            Case(args=[2, 3], expected=5),
            Case(args=[1.5, -0.0], expected=1.5),
            Case(args=["a", "b"], expected="ab"),
        ],
        "gold": {"solution.py": GOLD},
        "wrong": {"solution.py": "def add(a, b):\n    return b\n"},
        "made_by": "mutate:arith",
    }
    return Task(**{**fields, **changes})


def answer_task() -> Task:
    given: dict[str, Any] = {
        "entry": None,
        "visible": [],
        "hidden": [],
        "files": {},
        "editable": ["answer.txt"],
        "answer": "Köln",
    }
    gold, wrong = {"answer.txt": "Köln\n"}, {"answer.txt": "Bonn\n"}
    return function_task(id="instruction/city/0", kind="answer", match="contains", gold=gold, wrong=wrong, **given)


def repository_task() -> Task:
    return function_task(
        id="mined/calc/1",
        kind="repository",
        entry=None,
        visible=[],
        hidden=[],
        files={"calc.py": START, "setup.cfg": ""},
        editable=["calc.py"],
        tests={"test_calc.py": TEST_CALC},
        f2p=["test_calc.py::test_adds"],
        p2p=["test_calc.py::test_zero"],
        gold={"calc.py": GOLD},
        wrong={"calc.py": "def add(a, b):\n    return a * b\n"},
    )


TASKS = {"function": function_task, "answer": answer_task, "repository": repository_task}


@pytest.fixture(scope="module")
def image() -> Image:
    return build_image(Path(tempfile.gettempdir()) / "postloop-test-images")


def content(path: Path) -> dict[str, tuple[bytes, int] | None]:
    """Every file with bytes and mode, every folder as None."""
    return {
        item.relative_to(path).as_posix(): (item.read_bytes(), item.stat().st_mode) if item.is_file() else None
        for item in path.rglob("*")
    }


# --- our own tasks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_of_ours_becomes_a_folder_and_the_equal_task_again(kind: str, image: Image, tmp_path: Path) -> None:
    task = TASKS[kind]()
    made = harbor.folder_of(task, image.environment)
    harbor.write(made, tmp_path / "first")
    again = harbor.read(tmp_path / "first")
    assert again.task == task
    assert again.task.digest() == task.digest()
    assert again.trust is Trust.DECLARED
    harbor.write(again, tmp_path / "second")
    assert content(tmp_path / "first") == content(tmp_path / "second")
    assert os.access(tmp_path / "first/tests/test.sh", os.X_OK)
    own = tomllib.loads((tmp_path / "first/task.toml").read_text())["metadata"]["postloop"]
    assert (own["editable"], own["split_key"], own["split"]) == (task.editable, task.origin, "boundary")
    assert own["protected"] == sorted(set(task.files) - set(task.editable))


def test_the_default_suite_becomes_folders_and_the_equal_tasks_again(image: Image, tmp_path: Path) -> None:
    """Every seventh of its tasks; all of them take a few times as long."""
    default.build(tmp_path)
    tasks = default.load(tmp_path)[::7]
    assert {task.kind for task in tasks} == {"function", "answer"}
    for task in tasks:
        made = harbor.folder_of(task, image.environment)
        assert harbor.task_of(made.folder, harbor.folder_name(task)).task == task


def test_the_agent_sees_no_hidden_case_and_no_gold(image: Image) -> None:
    made = harbor.folder_of(function_task(), image.environment)
    shown = [
        file.text or "" for path, file in made.folder.files.items() if path.startswith(("environment/", "instruction"))
    ]
    assert any("add(1, 0)" in text for text in shown)
    assert not any("a + b\n" in text or '"ab"' in text or "[2, 3]" in text for text in shown)


def test_what_people_add_to_a_folder_of_ours_survives(image: Image, tmp_path: Path) -> None:
    harbor.write(harbor.folder_of(function_task(), image.environment), tmp_path / "first")
    toml = tmp_path / "first/task.toml"
    toml.write_text(f"# ours\n{toml.read_text()}[[extra.list]]\nat = 2026-01-02T03:04:05Z  # when\n")
    (tmp_path / "first/environment/Dockerfile").write_text("FROM something:else\n")
    (tmp_path / "first/notes").mkdir()
    (tmp_path / "first/notes/picture.png").write_bytes(b"\x89PNG\xff")
    again = harbor.read(tmp_path / "first")
    assert again.task == function_task()
    harbor.write(again, tmp_path / "second")
    assert content(tmp_path / "first") == content(tmp_path / "second")


TAMPERED: dict[str, tuple[str, str, str, str]] = {
    "another start tree": ("environment/tree/solution.py", "a - b", "a * b", "environment/tree: differs"),
    "another editable list": ("task.toml", 'editable = ["solution.py"]', 'editable = ["/etc/passwd"]', "editable"),
    "a protected file less": ("task.toml", 'protected = ["docs/read me.txt"]', "protected = []", "protected"),
    "another split key": ("task.toml", 'split_key = "add"', 'split_key = "sub"', "split_key"),
    "no such split": ("task.toml", 'split = "boundary"', 'split = "test"', "split"),
    "a future format": ("task.toml", "format = 1", "format = 2", "known is 1"),
    "no mark": ("instruction.md", "<!-- postloop", "<!-- other", "instruction.md"),
    "an unknown field": ("tests/task.json", '"kind"', '"kinds": 1, "kind"', "kinds"),
    "a number that is none": ("tests/task.json", "-0.0", "NaN", "NaN"),
    "half a character": ("tests/task.json", '"ab"', '"\\ud800"', "tests/task.json"),
    "a climbing path": ("tests/task.json", '"solution.py"\n', '"../solution.py"\n', "editable"),
    "no JSON": ("tests/task.json", "{", "", "not JSON"),
    "no TOML": ("task.toml", "[metadata", "[[metadata", "not TOML"),
    "a field of another type": ("task.toml", "timeout_sec = 900.0", 'timeout_sec = "long"', "timeout_sec"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_folder_of_ours_that_contradicts_itself_is_refused(name: str, image: Image, tmp_path: Path) -> None:
    path, old, new, said = TAMPERED[name]
    harbor.write(harbor.folder_of(function_task(), image.environment), tmp_path / "task")
    text = (tmp_path / "task" / path).read_bytes().decode()
    assert old in text
    (tmp_path / "task" / path).write_bytes(text.replace(old, new, 1).encode())
    assert said in refused(lambda: harbor.read(tmp_path / "task"))


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as error:
        call()
    line = str(error.value)
    assert line.isprintable()
    assert len(line) < 700
    return line


# --- folders of others ---------------------------------------------------------------------------------------------

FOREIGN_TOML = """\
# A suite of somebody else
version = "1.0"
source = 'registry'

[task]
name = "Some-Org/fix.the_bug"
keywords = []

[metadata]   # free
difficulty = "easy"
when = 2026-01-02
ratio = inf
nested = { a = [1, "two", 3.0] }

[verifier]
timeout_sec = 120
env = { KEY = "${KEY:-none}" }

[environment]
memory = "2G"
allow_internet = true
future_field = [{ x = 1 }]

[future_section]
text = '''
as it is'''
"""


def foreign(path: Path) -> Path:
    for folder in ("environment/data", "tests", "solution", "empty/inner"):
        (path / folder).mkdir(parents=True)
    (path / "task.toml").write_text(FOREIGN_TOML)
    (path / "instruction.md").write_bytes("<!-- canary 1234 -->\n# CANARY x\n\nFix the bug.\r\nIn Zürich.".encode())
    (path / "environment/Dockerfile").write_text("FROM ubuntu:24.04\n")
    (path / "environment/data/blob.bin").write_bytes(bytes(range(256)))
    (path / "tests/test.sh").write_text("#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n")
    (path / "solution/solve.sh").write_text("true\n")
    for name, mode in {
        "tests/test.sh": 0o755,
        "solution/solve.sh": 0o700,
        "instruction.md": 0o444,
        "task.toml": 0o664,
    }.items():
        (path / name).chmod(mode)
    return path


def test_a_foreign_folder_comes_back_byte_for_byte(tmp_path: Path) -> None:
    first = foreign(tmp_path / "first")
    made = harbor.read(first)
    harbor.write(made, tmp_path / "second")
    packed = harbor.pack([made])
    harbor.write(harbor.unpack(packed)[0], tmp_path / "third")
    assert content(first) == content(tmp_path / "second") == content(tmp_path / "third")
    assert (first / "empty/inner").is_dir()
    assert harbor.toml_of(made.folder) == tomllib.loads(FOREIGN_TOML)


def test_a_foreign_task_says_that_it_is_one_and_pins_its_folder(tmp_path: Path) -> None:
    made = harbor.read(foreign(tmp_path / "first"), Split.DEV)
    assert made.trust is Trust.FOREIGN
    assert made.task.id == "harbor/some_org/fix_the_bug"
    assert (made.task.origin, made.task.split) == ("Some-Org/fix.the_bug", Split.DEV)
    assert made.task.statement == "Fix the bug.\r\nIn Zürich."
    assert (made.task.editable, made.task.gold, made.task.f2p) == ([], {}, [])
    config = harbor.config_of(made.folder)
    assert (config.schema_version, config.verifier.timeout_sec, config.environment.memory) == ("1.0", 120.0, "2G")
    (tmp_path / "first/tests/test.sh").write_text("echo 0 > /logs/verifier/reward.txt\n")
    assert harbor.read(tmp_path / "first", Split.DEV).task.digest() != made.task.digest()


def test_a_foreign_task_has_no_folder_but_its_own(image: Image, tmp_path: Path) -> None:
    made = harbor.read(foreign(tmp_path / "first"))
    assert "foreign" in refused(lambda: harbor.folder_of(made.task, image.environment))


def test_a_suite_is_every_folder_with_a_task_toml(tmp_path: Path) -> None:
    for name in ("b", "a", "deep/c"):
        foreign(tmp_path / name)
    foreign(tmp_path / "a/inner")
    (tmp_path / "README.md").write_text("not a task")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert [path.relative_to(tmp_path).as_posix() for path in harbor.find(tmp_path)] == ["a", "b", "deep/c"]
    assert harbor.find(tmp_path / "b") == [tmp_path / "b"]
    assert "no folder in it has a task.toml" in refused(lambda: harbor.find(tmp_path / "b/environment"))


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def many(path: Path) -> None:
    for number in range(folders.MAX_FILES):
        (path / f"{number}").touch()


def deep(path: Path) -> None:
    for _ in range(folders.MAX_DEPTH + 1):
        path = path / "d"
        path.mkdir()


def replace(path: Path, text: str | bytes) -> None:
    path.unlink()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link to a file": (lambda p: (p / "tests/x").symlink_to("/etc/passwd"), "a link or a special file"),
    "a link to a folder": (lambda p: (p / "tests/x").symlink_to("/etc"), "a link or a special file"),
    "a dead link": (lambda p: (p / "x").symlink_to("nowhere"), "a link or a special file"),
    "a link as instruction.md": (lambda p: (p / "i.md").symlink_to((p / "instruction.md").rename(p / "i")), "a link"),
    "a pipe": (lambda p: os.mkfifo(p / "tests/pipe"), "a link or a special file"),
    "setuid": (lambda p: (p / "tests/test.sh").chmod(0o4755), "setuid"),
    "a huge file": (lambda p: sparse(p / "big", folders.MAX_FILE_BYTES + 1), "over 16 MiB"),
    "much in all": (lambda p: [sparse(p / f"big{n}", folders.MAX_FILE_BYTES) for n in range(5)], "over 64 MiB"),
    "many files": (lambda p: many(p), "over 5000 files"),
    "too deep": (lambda p: deep(p), "too deep"),
    "a name that is not UTF-8": (lambda p: open(os.fsencode(p) + b"/\xff\xfe", "w").close(), "not UTF-8"),
    "a name with a terminal escape": (lambda p: (p / "a\x1b[2Jb").touch(), "not printable"),
    "a name with a newline": (lambda p: (p / "a\nb").touch(), "not printable"),
    "instruction.md not UTF-8": (lambda p: replace(p / "instruction.md", b"\xff"), "instruction.md: not UTF-8"),
    "task.toml not UTF-8": (lambda p: replace(p / "task.toml", b"\xff"), "task.toml: not UTF-8"),
    "task.toml deeply nested": (lambda p: replace(p / "task.toml", "a = " + "[" * 100_000), "not TOML"),
    "task.toml huge": (lambda p: replace(p / "task.toml", "#" * (2 << 20)), "over 1 MiB"),
    "no instruction.md": (lambda p: (p / "instruction.md").unlink(), "instruction.md: missing"),
    "no task.toml": (lambda p: (p / "task.toml").unlink(), "task.toml: missing"),
    "no tests": (lambda p: (p / "tests/test.sh").unlink(), "tests/test.sh: missing"),
    "an absolute name": (lambda p: replace(p / "task.toml", '[task]\nname = "/etc/passwd"\n'), "task.name"),
    "a climbing name": (lambda p: replace(p / "task.toml", '[task]\nname = "../../x"\n'), "task.name"),
    "steps": (lambda p: replace(p / "task.toml", '[[steps]]\nname = "a"\n'), "1 steps"),
    "Windows": (lambda p: replace(p / "task.toml", '[environment]\nos = "windows"\n'), "environment.os"),
    "metadata.postloop of another kind": (lambda p: replace(p / "task.toml", "[metadata]\npostloop = 3\n"), "format"),
    "metadata.postloop and nothing else": (
        lambda p: replace(p / "task.toml", "[metadata.postloop]\nformat = 1\n"),
        "tests/task.json: missing",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    spoil, said = HOSTILE[name]
    path = foreign(tmp_path / "task")
    spoil(path)
    assert said in refused(lambda: harbor.read(path))


def test_a_folder_with_a_name_that_no_terminal_should_see_is_refused(tmp_path: Path) -> None:
    assert "not printable" in refused(lambda: harbor.read(foreign(tmp_path / "a\x1b[2Jb")))


def test_a_link_to_a_task_is_refused(tmp_path: Path) -> None:
    foreign(tmp_path / "task")
    (tmp_path / "link").symlink_to(tmp_path / "task")
    assert "a link to one" in refused(lambda: harbor.read(tmp_path / "link"))


def test_nothing_is_written_over_or_outside(tmp_path: Path, image: Image) -> None:
    made = harbor.read(foreign(tmp_path / "task"))
    assert "something already" in refused(lambda: harbor.write(made, tmp_path / "task"))
    for name in ("../out", "/tmp/out", "a/../../out", "a//b", ""):
        files = {**made.folder.files, name: made.folder.files["task.toml"]}
        hostile = made.model_copy(update={"folder": made.folder.model_copy(update={"files": files})})
        assert "rename it" in refused(lambda hostile=hostile: harbor.write(hostile, tmp_path / "new"))
        assert "rename it" in refused(
            lambda name=name: harbor.folder_of(function_task(files={name: ""}), image.environment)
        )
        with pytest.raises(IntegrityError, match="import it again"):
            harbor.unpack(harbor.pack([hostile]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["task"]


def test_a_changed_pack_is_refused(tmp_path: Path) -> None:
    packed = harbor.pack([harbor.read(foreign(tmp_path / "task"))])
    once = packed.replace(b"Fix the bug", b"Do nothing", 1)  # in the folder or in the task, not in both
    for changed in (once, packed.replace(b'"held_out"', b'"tomorrow"'), packed[:-9] + b"\n", b"[]\n"):
        assert changed != packed
        with pytest.raises(IntegrityError, match="import it again"):
            harbor.unpack(changed)


# --- elsewhere: Harbor's contract, with the folder's own scripts in a container of their own ---------------------------


@pytest.fixture(scope="module")
def python(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the image's packages, as environment/Dockerfile would install them."""
    home = tmp_path_factory.mktemp("python") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    site = next(image.root.glob("usr/lib/python3*/*-packages"))
    shutil.copytree(site, next(home.glob("lib/python3*/site-packages")), dirs_exist_ok=True)
    return home


class Elsewhere:
    """/work, /tests, /solution and /logs of one trial, for commands run in a container of bubblewrap."""

    def __init__(self, task: Path, python: Path, place: Path) -> None:
        self.place, self.python = place, python
        (place / "logs/verifier").mkdir(parents=True)
        tree = task / "environment/tree"
        shutil.copytree(tree, place / "work") if tree.is_dir() else (place / "work").mkdir()
        for name in ("tests", "solution"):
            shutil.copytree(task / name, place / name)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        argv = ["bwrap", "--tmpfs", "/", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--die-with-parent"]
        for parent in [*Path(sys.base_prefix).parents][-2::-1]:  # bubblewrap would make them 0700
            argv += ["--perms", "0755", "--dir", str(parent)]
        for folder in ("/usr", "/etc", "/bin", "/lib", "/lib64", sys.base_prefix):
            if Path(folder).is_symlink():
                argv += ["--symlink", os.readlink(folder), folder]
            elif Path(folder).is_dir():
                argv += ["--ro-bind", folder, folder]
        argv += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp"]
        argv += ["--ro-bind", str(self.python), "/python"]
        for name in ("work", "tests", "solution", "logs"):
            argv += ["--bind", str(self.place / name), f"/{name}"]
        argv += ["--chdir", "/work", "--setenv", "PATH", "/python/bin:/usr/bin:/bin"]
        return subprocess.run([*argv, *command], capture_output=True, text=True, timeout=120, check=False)

    def reward(self) -> str | None:
        done = self.run("/tests/test.sh")
        path = self.place / "logs/verifier/reward.txt"
        assert (done.returncode == 0) is path.is_file(), done.stdout + done.stderr
        return path.read_text() if path.is_file() else None

    def verdict(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.place / "logs/verifier/verdict.json").read_text())
        return loaded


@pytest.mark.parametrize("kind", TASKS)
def test_gold_start_and_wrong_are_graded_elsewhere(kind: str, image: Image, python: Path, tmp_path: Path) -> None:
    task = TASKS[kind]()
    harbor.write(harbor.folder_of(task, image.environment), tmp_path / "task")
    rewards = {}
    for name in ("start", "gold", "wrong"):
        trial = Elsewhere(tmp_path / "task", python, tmp_path / name)
        if name == "gold":
            assert trial.run("/solution/solve.sh").returncode == 0
        elif name == "wrong":
            for path, text in task.wrong.items():
                (trial.place / "work" / path).write_text(text)
        rewards[name] = trial.reward()
    assert rewards == {"start": "0\n", "gold": "1\n", "wrong": "0\n"}


def test_elsewhere_an_attempt_cannot_read_the_hidden_cases_or_write_the_reward(
    image: Image, python: Path, tmp_path: Path
) -> None:
    """As root; without root the hidden cases can be read, as grade.py says."""
    cheat = """
import os, subprocess, sys, time
found = [os.path.join(p, n) for top in ("/tests", "/tmp") for p, _, names in os.walk(top) for n in names]
leaked = [f for f in found if "expected" in open(f, errors="replace").read() and not f.endswith("run.py")]
code = "import time\\nwhile 1:\\n    open('/logs/verifier/reward.txt', 'w').write('1')\\n    time.sleep(.01)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
time.sleep(.2)
def add(a, b):
    return leaked and 5
"""
    harbor.write(harbor.folder_of(function_task(), image.environment), tmp_path / "task")
    trial = Elsewhere(tmp_path / "task", python, tmp_path / "trial")
    (trial.place / "work/solution.py").write_text(cheat)
    (trial.place / "work/docs/read me.txt").write_text("changed")
    assert trial.reward() == "0\n"
    verdict = trial.verdict()
    assert [violation["kind"] for violation in verdict["violations"]] == ["protected_file"]
    assert os.getuid() != 0 or not any("got 5" in check["detail"] or check["passed"] for check in verdict["checks"])


def test_elsewhere_no_score_is_no_reward(image: Image, python: Path, tmp_path: Path) -> None:
    harbor.write(harbor.folder_of(answer_task(), image.environment), tmp_path / "task")
    trial = Elsewhere(tmp_path / "task", python, tmp_path / "trial")
    told = json.loads((trial.place / "tests/task.json").read_text())
    (trial.place / "tests/task.json").write_text(json.dumps({**told, "answer": None}))
    assert trial.reward() is None


def test_the_grader_refuses_to_run_anywhere_else(tmp_path: Path) -> None:
    shutil.copy(harbor.GRADER, tmp_path / "grade.py")
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path / "grade.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "not in a Harbor container" in done.stderr

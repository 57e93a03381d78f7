"""`postloop tasks ...`: suites come in and go out, what fails its proof is said, exit codes as everywhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from environments.formats import harbor
from environments.sources import default
from environments.sources.library import functions
from environments.sources.repair import repair_tasks
from flows import tasks as commands
from schemas.errors import EXIT_DONE, EXIT_NO, InputError
from schemas.execution import Environment
from schemas.task import Split, Task
from stages.spec import dump_default
from stages.workspace import Workspace

ENVIRONMENT = Environment(name="python-pytest", python="3.11.7", packages={"pytest": "9.0.0"}, layer="0" * 64)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its own, but for the images."""
    images = Path(tempfile.gettempdir()) / "postloop-test-images"
    images.mkdir(exist_ok=True)
    cache = tmp_path_factory.mktemp("cache")
    (cache / "images").symlink_to(images)
    return cache


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = dump_default("tiny").replace("data:\n", "data:\n  seed_data: default\n", 1)
    return Workspace.create(tmp_path_factory.mktemp("template") / "loop", text).root


@pytest.fixture
def loop(template: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POSTLOOP_CACHE", str(cache))
    shutil.copytree(template, tmp_path / "loop", symlinks=True)
    return tmp_path / "loop"


def own() -> list[Task]:
    return repair_tasks(0, lambda _: Split.DEV, 1, names=sorted(functions())[:3])


def use_imported(loop: Path) -> None:
    path = loop / "goal.yaml"
    path.write_text(path.read_text().replace("seed_data: default", "seed_data: tasks"))


def suite(folder: Path, tasks: list[Task]) -> Path:
    for task in tasks:
        harbor.write(harbor.folder_of(task, ENVIRONMENT), folder / harbor.folder_name(task))
    return folder


def foreign(path: Path, name: str) -> Path:
    (path / "tests").mkdir(parents=True)
    (path / "task.toml").write_text(f'[task]\nname = "org/{name}"\n')
    (path / "instruction.md").write_text("Do [bold]it[/bold].\n")
    (path / "tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    return path


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_suite_comes_in_with_its_folders_and_goes_out_as_it_came(
    loop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = suite(tmp_path / "My Suite", own())
    foreign(place / "theirs", "one")
    assert commands.import_(str(place), workspace=loop, as_json=True) == EXIT_DONE
    said = printed(capsys)
    assert said["file"] == "tasks/my_suite.jsonl"
    assert {row["trust"] for row in said["tasks"]} == {"declared", "foreign"}
    assert "seed_data: tasks" in said["set_in_goal_yaml"]
    stored = default.load(loop / "tasks")
    assert [task for task in stored if task.skill == "repair"] == sorted(own(), key=lambda task: task.id)
    use_imported(loop)
    assert commands.export(tmp_path / "out", workspace=loop, as_json=True) == EXIT_DONE
    for made in map(harbor.read, harbor.find(place)):
        assert harbor.read(tmp_path / "out" / harbor.folder_name(made.task)) == made
    with pytest.raises(InputError, match="something already"):
        commands.export(tmp_path / "out", workspace=loop)


def test_a_refused_folder_is_said_and_the_others_are_taken(
    loop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = suite(tmp_path / "suite", own()[:1])
    foreign(place / "linked", "linked")
    (place / "linked/tests/passwd").symlink_to("/etc/passwd")
    foreign(place / "a", "same-name")
    foreign(place / "b", "same_name")
    assert commands.import_(str(place), split=Split.DEV, workspace=loop) == EXIT_NO
    out = capsys.readouterr()
    lines = out.err.splitlines()
    assert len(lines) == 2
    assert any("a link or a special file" in line for line in lines)
    assert any("another folder's too" in line for line in lines)
    assert {(task.skill, task.split) for task in default.load(loop / "tasks")} == {
        ("repair", Split.DEV),
        ("harbor", Split.DEV),
    }
    assert "foreign" in out.out


def test_nothing_good_in_a_suite_writes_nothing(loop: Path, tmp_path: Path) -> None:
    (foreign(tmp_path / "suite/a", "a") / "instruction.md").unlink()
    assert commands.import_(str(tmp_path / "suite"), workspace=loop, as_json=True) == EXIT_NO
    assert not (loop / "tasks").exists()
    with pytest.raises(InputError, match="no folder"):
        commands.import_(str(tmp_path / "nowhere"), workspace=loop)


def test_humaneval_comes_in_by_name_and_only_measures(loop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.import_("humaneval", workspace=loop, as_json=True) == EXIT_DONE
    assert len(printed(capsys)["tasks"]) == 164
    assert {task.split for task in default.load(loop / "tasks")} == {Split.HELD_OUT}


def test_validation_says_what_failed_and_keeps_it(
    loop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = own()
    bad = good[0].model_copy(update={"id": "repair/bad/0", "gold": good[0].wrong})
    place = suite(tmp_path / "suite", [*good, bad])
    foreign(place / "theirs", "one")
    assert commands.import_(str(place), workspace=loop) == EXIT_DONE
    use_imported(loop)
    assert commands.validate(only="repair/a", runs=2, workspace=loop, as_json=True) == EXIT_DONE
    capsys.readouterr()
    assert commands.validate(runs=2, workspace=loop, as_json=True) == EXIT_NO
    said = printed(capsys)
    assert (said["tasks"], said["proven"], said["lost"]) == (5, 3, [])
    reasons = {row["id"]: row["reason"] for row in said["quarantined"]}
    assert reasons.keys() == {"repair/bad/0", "harbor/org/one"}
    assert reasons["repair/bad/0"] == "gold does not pass"
    kept = json.loads((loop / "decisions/quarantine.json").read_bytes())["tasks"]
    assert {entry["id"]: entry["reason"] for entry in kept.values()} == reasons
    assert commands.validate(runs=2, workspace=loop) == EXIT_NO
    shown = capsys.readouterr().out
    assert "gold does not pass" in shown
    assert "5 known from before" in shown
    for command in (commands.validate, commands.list_):
        with pytest.raises(InputError, match="--only nothing"):
            command(only="nothing", workspace=loop)
    assert commands.list_(workspace=loop, as_json=True) == EXIT_DONE
    listed = {row["id"]: row["quarantined"] for row in printed(capsys)}
    assert len(listed) == 5
    assert {name: reason for name, reason in listed.items() if reason} == reasons


# --- mining --------------------------------------------------------------------------------------------------------

BEFORE = "def area(width, height):\n    return width + height\n\n\ndef double(x):\n    return 2 * x\n"
TESTS = "from shapes import area, double\n\n\ndef test_double():\n    assert double(4) == 8\n"
NEW_TEST = "\n\ndef test_area():\n    assert area(3, 5) == 15\n    assert area(2, 0) == 0\n"


def commit(folder: Path, message: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    given = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run(["git", *given, "commit", "-qm", message], cwd=folder, check=True)


def test_history_is_mined_into_the_seed_data(loop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = tmp_path / "shapes"
    repository.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    commit(repository, "Start", {"shapes.py": BEFORE, "tests/test_shapes.py": TESTS})
    fixed = BEFORE.replace("width + height", "width * height")
    commit(
        repository, "The area of a rectangle was wrong", {"shapes.py": fixed, "tests/test_shapes.py": TESTS + NEW_TEST}
    )
    spec = tmp_path / "small.yaml"
    spec.write_text("git:\n  - {name: shapes, path: shapes, split: dev}\n")
    assert commands.mine(spec, workspace=loop, as_json=True) == EXIT_DONE
    said = printed(capsys)
    assert said["file"] == "tasks/mined_small.jsonl"
    assert said["set_in_goal_yaml"] is None
    (task,) = default.load(loop / "tasks")
    assert (task.kind, task.split, task.gold) == ("repository", Split.DEV, {"shapes.py": fixed})
    use_imported(loop)
    assert commands.validate(runs=2, workspace=loop, as_json=True) == EXIT_DONE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Input should be an object"),
        ("git: 3\n", "git"),
        ("git: [{name: a, path: a}]\nmore: 1\n", "more"),
        ("sdists: []\n", "nothing to mine"),
        ("a: [1\n", "not plain YAML"),
        ("!!python/object:os.system {}\n", "not plain YAML"),
        ("- &a [*a]\n", "spec"),
        ("seed: 2026-01-01\n", "not plain YAML"),
    ],
)
def test_a_bad_mining_spec_is_one_line(text: str, said: str, loop: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        commands.mine(tmp_path / "bad.yaml", workspace=loop)
    assert said in str(error.value)
    assert "\n" not in str(error.value)

"""The command line on a finished loop: what each command answers, and how it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from tiny_loop import REPOSITORY, Cli, Finished, tiny_spec
from typer.testing import CliRunner

from flows.cli import app
from schemas.record import STAGES
from stages.attempts import read_attempts
from stages.workspace import Workspace
from tests.stages.test_spec import MALFORMED

STAGE_OF_A_FAILURE = "backflow"


def listing(root: Path) -> dict[str, tuple[int, int]]:
    """Path -> size and time of change of everything, .git and .postloop included."""
    return {
        str(path.relative_to(root)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
    }


def one_line(stderr: str) -> str:
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].isprintable()
    return lines[0]


def a_trajectory(finished: Finished) -> str:
    record = finished.space.read(2, "backflow")
    assert record is not None
    folder = finished.space.open_artifact(record.artifacts["attempts"])
    return read_attempts(folder / "attempts.parquet")[0].trajectory.id


# --- answers


def test_the_first_summary_names_gates_results_and_what_to_look_at_next(finished: Finished) -> None:
    for part in ("headroom", "held_out", "pass@1", "postloop report", "postloop failures"):
        assert part in finished.output


def test_status_counts_the_rounds(cli: Cli, finished: Finished) -> None:
    shown = cli("status", "-w", finished.root)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert re.search(r"\d GO", shown.stdout)
    told = json.loads(cli("status", "-w", finished.root, "--json").stdout)
    assert [(one["round"], one["complete"]) for one in told] == [(1, True), (2, True)]
    assert set(told[1]["records"]) == set(STAGES)
    assert told[1]["infrastructure_errors"] == 0
    record = finished.space.read(2, "sft")
    assert record is not None
    assert told[1]["records"]["sft"] == record.content_digest()


def test_plan_says_what_the_next_round_would_run_and_why(cli: Cli, finished: Finished) -> None:
    told = json.loads(cli("plan", "-w", finished.root, "--json").stdout)
    assert (told["round"], told["open"], told["up_to_date"]) == (3, False, False)
    assert [step["stage"] for step in told["stages"]] == list(STAGES)
    assert told["stages"][0]["action"] == "run"
    assert told["stages"][0]["why"].startswith("changed")
    shown = cli("plan", "-w", finished.root)
    assert shown.returncode == 0
    assert "backflow" in shown.stdout


def test_show_takes_the_start_of_an_id(cli: Cli, finished: Finished) -> None:
    name = a_trajectory(finished)
    told = json.loads(cli("show", name, "-w", finished.root, "--json").stdout)
    assert (told["round"], told["stage"]) == (2, STAGE_OF_A_FAILURE)
    assert told["trajectory"]["id"] == name
    shown = cli("show", name[:-4], "-w", finished.root)
    assert shown.returncode == 0
    assert name in shown.stdout
    several = cli("show", name[:-16], "-w", finished.root)
    assert several.returncode == 2
    assert "give more digits" in one_line(several.stderr)


def test_failures_lists_the_buckets_of_a_round(cli: Cli, finished: Finished) -> None:
    told = json.loads(cli("failures", "1", "-w", finished.root, "--json").stdout)
    assert told["buckets"]
    assert {bucket["rule"] for bucket in told["buckets"]} == {"everything"}
    assert [json.loads(cli("failures", "-w", finished.root, "--json").stdout)["key"]] != [told["key"]]
    shown = cli("failures", "1", "-w", finished.root)
    assert shown.returncode == 0
    assert "coverage" in shown.stdout


def test_report_writes_one_page(cli: Cli, finished: Finished, tmp_path: Path) -> None:
    page = tmp_path / "round.html"
    told = json.loads(cli("report", "2", "--out", page, "-w", finished.root, "--json").stdout)
    assert told == {"round": 2, "path": str(page)}
    text = page.read_text()
    assert "<html" in text
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", text), "it needs no network"
    assert "coverage" in text


def test_verify_and_check_say_that_all_is_well(cli: Cli, finished: Finished) -> None:
    assert json.loads(cli("verify", "-w", finished.root, "--json").stdout) == {"ok": True, "problems": []}
    told = json.loads(cli("check", "-w", finished.root, "--json").stdout)
    assert (told["ok"], told["goal"]) == (True, "tiny")
    assert "every artifact matches" in cli("verify", "-w", finished.root).stdout
    assert "goal.yaml is valid" in cli("check", "-w", finished.root).stdout


def test_running_again_does_nothing_at_once_and_loads_nothing_heavy(
    finished: Finished, environment: dict[str, str]
) -> None:
    code = (
        "import sys, time, atexit; from flows import cli;"
        "atexit.register(lambda: print(sorted({'prefect', 'torch', 'mlflow', 'dvc'} & set(sys.modules)), file=sys.stderr));"
        "cli.main()"
    )
    before = listing(finished.root)
    used = os.times()
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "--rounds", "2", "-w", str(finished.root)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.monotonic() - began
    now = os.times()
    cpu = (now.children_user + now.children_system) - (used.children_user + used.children_system)
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (0, "up to date", "[]")
    assert min(wall, cpu) < 3, f"{wall:.1f} s wall, {cpu:.1f} s of processor time"
    assert listing(finished.root) == before


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["status"], "it is none, goal.yaml is missing"),
        (["run"], "it is none, goal.yaml is missing"),
        (["verify"], "make one with `postloop init"),
    ],
)
def test_a_folder_that_is_no_workspace_is_refused(cli: Cli, tmp_path: Path, arguments: list[str], says: str) -> None:
    done = cli(*arguments, "-w", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in one_line(done.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "attribution-nowhere"], "attribution-nowhere: no trajectory of this workspace"),
        (["report", "7"], "round 7: there is none; rounds: 1, 2"),
        (["failures", "7"], "round 7: there is none; rounds: 1, 2"),
        (["run", "--until", "training"], "--until training: no such stage; one of goal, data"),
        (["run", "--rounds", "3", "--next"], "--rounds and --next: give one of the two"),
        (["run", "--rounds", "0"], "greater than or equal to 1"),
        (["run", "--rouds", "2"], "No such option: --rouds"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["show"], "Missing argument"),
        (["serve"], "no schedule yet; run `postloop schedule"),
        (["schedule", "--cron", "every night"], "'every night' is no cron expression"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(
    cli: Cli, finished: Finished, arguments: list[str], says: str
) -> None:
    before = listing(finished.root)
    done = cli(*arguments, "-w", finished.root)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    one_line(done.stderr)
    assert {path for path in listing(finished.root) if ".postloop" not in path} == {
        p for p in before if ".postloop" not in p
    }


def test_an_error_is_json_too_where_json_was_asked_for(cli: Cli, finished: Finished, tmp_path: Path) -> None:
    done = cli("failures", "7", "--json", "-w", finished.root)
    assert json.loads(done.stdout) == {
        "ok": False, "problems": ["round 7: there is none; rounds: 1, 2"], "exit_code": done.returncode
    }  # fmt: skip
    assert one_line(done.stderr) == "postloop: round 7: there is none; rounds: 1, 2"
    for wrong in (["status", "--bogus"], ["tasks", "list", "--split", "nosplit"]):
        told = json.loads(cli(*wrong, "--json", "-w", finished.root).stdout)
        assert (told["ok"], told["exit_code"], len(told["problems"])) == (False, 2, 1)
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "flows.cli", "failures", "7", "--json", "-w", str(finished.root)]
        done = subprocess.run(words, cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_the_version_is_the_packages_own(cli: Cli) -> None:
    done = cli("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"postloop {version('postloop')}\n", "")


def test_debug_shows_where_it_was_raised(cli: Cli, finished: Finished) -> None:
    done = cli("report", "7", "--debug", "-w", finished.root)
    assert done.returncode == 2
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("postloop: round 7")


# --- malformed specs


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace.create(tmp_path_factory.mktemp("specs") / "loop", tiny_spec())


@pytest.mark.parametrize("row", MALFORMED, ids=lambda row: str(row[0]))
def test_a_malformed_spec_is_refused_by_check_and_run_and_nothing_is_written(
    empty: Workspace, row: tuple[str, ...]
) -> None:
    _, text, start, _ = row
    empty.spec_path.write_bytes(text.encode() if isinstance(text, str) else text)
    CliRunner().invoke(app, ["check", "-w", str(empty.root)])  # .postloop may come to be; nothing else
    before = listing(empty.root)
    for command in ("check", "run"):
        done = CliRunner().invoke(app, [command, "-w", str(empty.root)])
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        lines = done.stderr.splitlines()
        assert any(line.startswith(start) for line in lines), lines
        for line in lines:
            assert re.match(r"[\w.-]+:\d+: \S+: .*\S", line), line
    assert listing(empty.root) == before
    assert len(MALFORMED) >= 20


def test_a_malformed_spec_through_the_real_process(cli: Cli, empty: Workspace) -> None:
    empty.spec_path.write_text(tiny_spec().replace("at_least: 0.0", "at_leest: 0.0", 1))
    clean = subprocess.run(["git", "status", "--porcelain"], cwd=empty.root, capture_output=True, text=True, check=True)
    for command in ("check", "run"):
        done = cli(command, "-w", empty.root)
        assert (done.returncode, done.stdout) == (2, "")
        assert any(
            re.match(r"goal\.yaml:9: criteria\.0\.at_leest: .*did you mean at_least", line)
            for line in done.stderr.splitlines()
        )
    again = subprocess.run(["git", "status", "--porcelain"], cwd=empty.root, capture_output=True, text=True, check=True)
    assert again.stdout == clean.stdout == " M goal.yaml\n"
    told = cli("check", "--json", "-w", empty.root)
    assert told.returncode == 2
    assert json.loads(told.stdout)["ok"] is False


# --- a flipped bit


def test_one_flipped_byte_is_named_by_verify_and_refused_by_use(cli: Cli, finished: Finished, tmp_path: Path) -> None:
    root = tmp_path / "loop"
    # The artifacts share their inodes with DVC's cache: copied as they are, each file is a copy of its own.
    shutil.copytree(finished.root, root, symlinks=True)
    space = Workspace.open(root)
    record = space.read(2, "backflow")
    assert record is not None
    ref = record.artifacts["attempts"]
    victim = root / ref.path / "attempts.parquet"
    victim.chmod(0o644)
    with victim.open("r+b") as file:
        file.seek(-9, os.SEEK_END)
        byte = file.read(1)
        file.seek(-9, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    done = cli("verify", "-w", root)
    assert done.returncode == 1
    assert f"artifact {ref.path}: attempts.parquet: sha256 recorded" in done.stdout
    used = cli("failures", "2", "-w", root)
    assert (used.returncode, used.stdout) == (2, "")
    assert f"artifact {ref.path}: attempts.parquet: sha256 recorded" in one_line(used.stderr)
    assert cli("verify", "-w", finished.root).returncode == 0

"""Two rounds of the loop: what they leave, what the second has from the first, and what a broken machine does to them."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_loop import Cli, Finished, Interrupted, Result, tiny_spec

from flows.review import view_of
from reports.page import render
from schemas.backflow import BackflowRecord
from schemas.data import DataRecord
from schemas.evaluation import EvaluationRecord
from schemas.goal import GoalRecord
from schemas.record import STAGES, Record, StageName
from schemas.sft import SftRecord
from schemas.task import Task
from stages.attempts import read_attempts, read_edges
from stages.demonstrations import read_demonstrations
from stages.tasks import bucket_of, read_tasks
from stages.workspace import Workspace


def git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def record(finished: Finished, number: int, stage: StageName) -> Record:
    found = finished.space.read(number, stage)
    assert found is not None
    return found


# --- what is left


def test_each_round_has_six_records_and_its_pins(finished: Finished) -> None:
    for number in (1, 2):
        assert list(finished.space.records(number)) == list(STAGES)
        pin = finished.space.pins(number)
        assert pin is not None
        assert {"base", "environment", "harness", "verifier", "template", "tasks"} <= set(pin.pins)


def test_each_stage_is_a_commit_with_its_record_and_its_pointers(finished: Finished) -> None:
    subjects = [line for line in git(finished.root, "log", "--reverse", "--format=%s") if line.startswith("round ")]
    assert subjects == [f"round {number}: {stage}" for number in (1, 2) for stage in STAGES]
    tracked = set(git(finished.root, "ls-files"))
    for number in (1, 2):
        for stage, found in finished.space.records(number).items():
            assert f"rounds/{number:04d}/{stage}.json" in tracked
            for ref in found.artifacts.values():
                assert {f"{ref.path}.dvc", f"{ref.path}.manifest.json"} <= tracked
    assert git(finished.root, "status", "--porcelain", "--", "rounds", "artifacts") == []


def test_times_lie_beside_the_records_and_in_no_digest(finished: Finished) -> None:
    for stage in STAGES:
        assert finished.space.telemetry(1, stage)["seconds"] > 0
        text = (finished.space.folder(1) / f"{stage}.json").read_text()
        assert not re.search(r'"(seconds|sample_s|execute_s|host|time|path_of_workspace)"', text)
        assert str(finished.made_at) not in text


def test_every_trained_row_points_to_the_trajectory_verdict_and_reward_behind_it(finished: Finished) -> None:
    folder = finished.space.open_artifact(record(finished, 2, "data").artifacts["demonstrations"])
    attempts = {one.trajectory.id: one for one in read_attempts(folder / "attempts.parquet")}
    edges = read_edges(folder / "edges.parquet")
    rows = (folder / "demonstrations.jsonl").read_text().splitlines()
    assert len(edges) == len(rows) == len(attempts) > 0
    for edge in edges:
        assert edge.trajectory is not None
        attempt = attempts[edge.trajectory]
        assert (edge.verdict, edge.reward) == (attempt.verdict.digest(), attempt.reward.digest())
        assert attempt.verdict.passed


# --- the loop closes


def test_what_round_1_hands_over_is_in_the_goal_the_data_and_the_training_of_round_2(finished: Finished) -> None:
    handed, goals = record(finished, 1, "backflow"), [record(finished, number, "goal") for number in (1, 2)]
    data = [record(finished, number, "data") for number in (1, 2)]
    assert isinstance(handed, BackflowRecord)
    assert isinstance(goals[0], GoalRecord)
    assert isinstance(goals[1], GoalRecord)
    assert isinstance(data[0], DataRecord)
    assert isinstance(data[1], DataRecord)
    approved = [item for item in handed.material if item.approved and item.kind == "tasks"]
    assert approved
    assert (goals[0].goal_version, goals[1].goal_version) == (1, 2)
    assert goals[1].material == approved
    assert data[0].routed_tasks == 0
    assert data[1].routed_tasks == sum(item.amount for item in approved)
    folder = finished.space.open_artifact(data[1].artifacts["tasks"])
    tasks = [Task.model_validate_json(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    routed = [task for task in tasks if task.made_by.startswith("backflow:")]
    assert {task.made_by for task in routed} == {f"backflow:{item.bucket}" for item in approved}
    assert {task.family for task in routed} == {item.family for item in approved}
    assert {task.split.value for task in routed} == {"train"}
    assert data[1].demonstrations["backflow"] > data[0].demonstrations["backflow"] == 0
    assert record(finished, 1, "sft").inputs["demonstrations"] != record(finished, 2, "sft").inputs["demonstrations"]


def test_round_2_says_for_each_bucket_of_round_1_how_large_it_was_and_is(finished: Finished) -> None:
    before, after = record(finished, 1, "backflow"), record(finished, 2, "backflow")
    assert isinstance(before, BackflowRecord)
    assert isinstance(after, BackflowRecord)
    assert before.changes == []
    assert {change.bucket for change in after.changes} == {bucket.id for bucket in before.buckets}
    assert [bucket.treated for bucket in before.buckets].count(True) == 1, "tiny.yaml treats one bucket; others compare"
    seen = {trajectory for one in (before, after) for bucket in one.buckets for trajectory in bucket.members}
    assert len(seen) == sum(len(b.members) for one in (before, after) for b in one.buckets), "never on the same seeds"


def test_a_row_leads_to_its_bucket_and_to_the_failures_behind_it(finished: Finished) -> None:
    first, goal, data = (record(finished, n, stage) for n, stage in ((1, "backflow"), (2, "goal"), (2, "data")))
    assert isinstance(first, BackflowRecord)
    assert isinstance(goal, GoalRecord)
    assert isinstance(data, DataRecord)
    rows = read_demonstrations(finished.space.open_artifact(data.artifacts["demonstrations"]))
    made = [row for row in rows if row["bucket"] is not None]
    assert len(made) == data.demonstrations["backflow"] > 0
    assert {row["source"] for row in made} == {"backflow"}
    dev = read_attempts(finished.space.open_artifact(first.artifacts["attempts"]) / "attempts.parquet")
    failed = {attempt.trajectory.id for attempt in dev if not attempt.verdict.passed}
    for row in made:
        (item,) = [item for item in goal.material if item.bucket == row["bucket"]]
        (bucket,) = [bucket for bucket in first.buckets if bucket.id == row["bucket"]]
        assert (row["cause"], row["family"]) == (item.cause, item.family) == (bucket.cause, bucket.family)
        assert item.failures == bucket.members
        assert set(item.failures) <= failed
        assert item.failures


def test_round_2_counts_what_it_made_and_trained_on_for_the_bucket_that_was_treated(finished: Finished) -> None:
    space = finished.space
    after, data, sft = (record(finished, 2, stage) for stage in ("backflow", "data", "sft"))
    assert isinstance(after, BackflowRecord)
    assert isinstance(data, DataRecord)
    assert isinstance(sft, SftRecord)
    assert all((one.cost, one.shares) == ({}, {}) for one in after.changes if not one.treated)
    (change,) = [one for one in after.changes if one.treated]
    folder = space.open_artifact(data.artifacts["demonstrations"])
    rows = {row["id"] for row in read_demonstrations(folder) if row["bucket"] == change.bucket}
    written = [one for one in read_attempts(folder / "attempts.parquet") if one.trajectory.id in rows]
    sampled = read_attempts(space.open_artifact(data.artifacts["attempts"]) / "attempts.parquet")
    rl = space.open_artifact(record(finished, 2, "rl").artifacts["attempts"])
    names = {
        task.id for task in read_tasks(space.open_artifact(data.artifacts["tasks"])) if bucket_of(task) == change.bucket
    }
    rejected = [one for one in sampled if one.trajectory.task_id in names]
    rollouts = [one for one in read_attempts(rl / "attempts.parquet") if one.trajectory.task_id in names]
    trained = {edge.trajectory for edge in read_edges(rl / "edges.parquet")}
    conducts = [one.trajectory.conduct for one in (*written, *rejected, *rollouts)]
    tokens = [len(a.trajectory.token_ids()) for a in (*written, *[r for r in rollouts if r.trajectory.id in trained])]
    counted = {
        "attempts": len(written) + len(rejected), "demonstrations": len(rows),
        "generated_tokens": sum(c.generated_tokens for c in conducts),
        "rollouts": len(rollouts), "tasks": data.routed_tasks, "tool_calls": sum(c.tool_calls for c in conducts),
        "trained_tokens": sum(tokens),
    }  # fmt: skip
    assert change.cost == {unit: n for unit, n in counted.items() if n}
    assert {
        "attempts",
        "demonstrations",
        "generated_tokens",
        "tasks",
        "tool_calls",
        "trained_tokens",
    } <= change.cost.keys()
    assert change.shares["sft.training_s"] == len(rows) / sft.rows
    assert 0 < change.shares["data.sandbox_cpu_s"] < 1


def test_seconds_of_a_treatment_are_allocated_from_the_telemetry_and_shown(finished: Finished, cli: Cli) -> None:
    space = finished.space
    told = {stage: space.telemetry(2, stage) for stage in STAGES}
    (change,) = [one for one in record(finished, 2, "backflow").changes if one.treated]  # type: ignore[attr-defined]
    seconds = change.allocated(told)
    assert min(told["sft"]["training_s"], told["rl"]["training_s"], told["data"]["verifier_cpu_s"]) > 0
    parts = {name: share * told[name.split(".")[0]][name.split(".")[1]] for name, share in change.shares.items()}
    training = sum(part for name, part in parts.items() if name.endswith("training_s"))
    cpu = {"allocated_environment_cpu_s": sum(parts.values()) - training, "allocated_training_s": training}
    assert seconds == pytest.approx(cpu)
    assert min(seconds.values()) > 0
    assert change.allocated({"sft": {"training_s": "long"}}) == change.allocated({}) == {}
    rows = json.loads(cli("failures", "--ledger", "--json", "-w", finished.root).stdout)
    (row,) = [row for row in rows if (row["round"], row["bucket"]) == (1, change.bucket)]
    assert (row["treatment"], row["allocated"]) == (change.cost, seconds)
    words = [
        f"{change.cost['trained_tokens']:.0f} trained tokens",
        "allocated training s",
        "allocated environment cpu s",
    ]
    shown = " ".join(cli("failures", "--ledger", "-w", finished.root).stdout.split())
    page = render(view_of(space, 2, with_attempts=True))
    ledger = (finished.root / "reports" / "ledger.md").read_text()
    assert [word for word in words if word not in shown or word not in page or word not in ledger] == []


def test_the_base_is_evaluated_once(finished: Finished) -> None:
    first, second = (record(finished, number, "evaluation") for number in (1, 2))
    assert isinstance(first, EvaluationRecord)
    assert isinstance(second, EvaluationRecord)
    shared = {n for n in first.artifacts if n.startswith("attempts-")} & set(second.artifacts)
    base = {result.checkpoint for one in (first, second) for result in one.results if result.policy == "base"}
    assert len(base) == 1
    assert len(shared) == 1
    name = shared.pop()
    assert first.artifacts[name] == second.artifacts[name]
    assert {result.policy for result in second.results} >= {"base", "sft", "rl"}


# --- same key, nothing to do


def test_a_stage_whose_inputs_did_not_change_repeats_the_record_of_the_round_that_has_it(
    cli: Cli, served: dict[str, str], interrupted: Interrupted, tmp_path: Path
) -> None:
    root = tmp_path / "loop"
    shutil.copytree(interrupted.space.root, root, symlinks=True)
    plan = json.loads(cli("plan", "-w", root, "--json").stdout)
    assert plan["stages"][0] == {"stage": "goal", "action": "reuse", "why": "same key as round 1", "attempts": 0}
    done = cli("run", "--next", "-w", root, env=served)
    assert done.returncode == 0, done.stderr
    space = Workspace.open(root)
    for stage in STAGES[:5]:
        first, again = space.read(1, stage), space.read(2, stage)
        assert first is not None
        assert again is not None
        assert (first.reused_from, again.reused_from) == (None, 1), stage
        assert again.content_digest() == first.content_digest()
    backflow = space.read(2, "backflow")
    assert backflow is not None
    assert backflow.reused_from is None, "it has a round before it to compare with now"
    assert len(git(root, "log", "--format=%s")) == 13


# --- MLflow


def test_a_round_is_a_parent_run_and_a_stage_a_run_in_it(finished: Finished) -> None:
    with sqlite3.connect(f"file:{finished.root / '.postloop' / 'mlflow.db'}?mode=ro", uri=True) as database:
        runs = database.execute("select run_uuid, status from runs where lifecycle_stage = 'active'").fetchall()
        tags = database.execute("select run_uuid, key, value from tags").fetchall()
    of = {run: {key: value for owner, key, value in tags if owner == run} for run, _ in runs}
    parents = {run: of[run]["postloop.round"] for run in of if "mlflow.parentRunId" not in of[run]}
    assert sorted(parents.values()) == ["1", "2"]
    nested = [(parents[t["mlflow.parentRunId"]], t["postloop.stage"]) for t in of.values() if "mlflow.parentRunId" in t]
    assert sorted(nested) == sorted((str(number), stage) for number in (1, 2) for stage in STAGES)
    assert {status for _, status in runs} == {"FINISHED"}


# --- a broken machine


@dataclass(frozen=True)
class Repaired:
    """A workspace whose first run had no sandbox, and whose second one recorded the goal."""

    space: Workspace
    broken: Result
    left: tuple[list[int], list[str]]  # by the broken run: its rounds, its commits
    again: Result


@pytest.fixture(scope="module")
def repaired(cli: Cli, served: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Repaired:
    folder = tmp_path_factory.mktemp("repaired")
    tools = folder / "bin"
    tools.mkdir()
    for name in ("git", "python3"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    space = Workspace.create(folder / "loop", f"{tiny_spec()}\nruntime: {{stage_retries: 0}}\n")
    broken = cli("run", "--until", "goal", "-w", space.root, env={**served, "PATH": str(tools)})
    left = space.rounds(), git(space.root, "log", "--format=%s")
    return Repaired(space, broken, left, cli("run", "--until", "goal", "-w", space.root, env=served))


def test_a_machine_without_its_sandbox_fails_the_stage_and_the_next_run_goes_on(
    repaired: Repaired, finished: Finished
) -> None:
    broken, space = repaired.broken, repaired.space
    assert broken.returncode == 3, broken.stderr
    told = [line for line in broken.stderr.splitlines() if line.startswith("postloop: ")]
    assert len(told) == 1
    assert "bwrap" in told[0]
    assert "Traceback" not in broken.stderr
    assert repaired.left == ([], ["a new workspace"])
    assert repaired.again.returncode == 0, repaired.again.stderr
    goal = space.read(1, "goal")
    first = finished.space.read(1, "goal")
    assert goal is not None
    assert first is not None
    assert goal.content_digest() == first.content_digest()
    assert not list((space.root / ".postloop").glob("tmp-*"))


def test_a_round_with_a_wrong_spec_can_be_abandoned_and_the_next_begins_under_the_new_one(
    cli: Cli, served: dict[str, str], repaired: Repaired, tmp_path: Path
) -> None:
    root = tmp_path / "loop"
    shutil.copytree(repaired.space.root, root, symlinks=True)
    space = Workspace.open(root)
    done = cli("run", "--abandon", "-w", root)
    assert (done.returncode, done.stdout.startswith("round 1: abandoned")) == (0, True)
    assert {stage: record.skipped for stage, record in space.records(1).items()} == {
        "goal": None, "data": "abandoned", "sft": "abandoned", "rl": "abandoned", "evaluation": "abandoned",
        "backflow": "abandoned",
    }  # fmt: skip
    plan = json.loads(cli("plan", "--json", "-w", root).stdout)
    assert (plan["round"], plan["open"]) == (2, False)
    assert cli("run", "--until", "goal", "--next", "-w", root, env=served).returncode == 0
    assert space.has(2, "goal")

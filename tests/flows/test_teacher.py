"""Demonstrations from a teacher: a real round whose server knows the answers to some tasks, says wrong ones to others, and lies."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from endpoint import Answer, Body, Endpoint, endpoint, said
from tiny_loop import Cli

from environments.sources import default
from schemas.bucket import Material, Route
from schemas.data import DataRecord
from schemas.errors import SamplerError
from schemas.goal import GoalRecord
from schemas.replay import Level
from schemas.task import Split, Task
from schemas.trajectory import ENDPOINT, Attempt
from stages.attempts import read_attempts
from stages.context import Context
from stages.demonstrations import demonstrate, open_teacher
from stages.equipment import equip
from stages.leaks import leaks
from stages.pins import derive
from stages.recorded import recorded
from stages.replay import replay
from stages.samplers.scripted_sampler import fenced
from stages.spec import dump_default, load_spec
from stages.tasks import load_tasks, seed_folder
from stages.workspace import Workspace

KEY = "sk-test-0123456789abcdef"
LEVELS: tuple[Level, ...] = ("L0", "L1")


class Teacher:
    """Of the tasks it is shown: gold for one, a wrong outcome for the next, then gold at the second try, and so on.

    It repeats the key wherever a server can.
    """

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = tasks
        self.asked: dict[str, list[int]] = {}  # task -> seeds of its first turns

    def __call__(self, body: Body, key: str) -> tuple[int, Any]:
        more = {"model": "large-2026", "system_fingerprint": f"fp {key}"}
        shown = body["messages"][0 if body["messages"][0]["role"] == "user" else 1]["content"]
        task = self.about(shown)
        if task is None:
            return 200, said("ok", **more)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        seeds = self.asked.setdefault(task.id, [])
        if turn == 0:
            seeds.append(body["seed"])
        outcome = task.gold if self.right(task.id, len(seeds)) else task.wrong
        return 200, said(fenced(task, outcome, turn), **more)

    def about(self, shown: str) -> Task | None:
        """The code of a function is shown without its statement. The longest, as one statement may begin another."""
        fits = [t for t in self.tasks if t.kind == "function" or t.statement in shown]
        fits = [t for t in fits if all(text.strip() in shown for text in t.files.values())]
        return max(fits, key=lambda t: len(t.statement), default=None)

    def right(self, task: str, tries: int) -> bool:
        place = list(self.asked).index(task) % 3
        return place == 0 or (place == 2 and tries > 1)

    def known(self) -> set[str]:
        return {task for task, seeds in self.asked.items() if self.right(task, len(seeds))}


@dataclass(frozen=True)
class Taught:
    space: Workspace
    cache: Path
    server: Endpoint
    teacher: Teacher
    told: str  # all that the commands said
    away: Any  # the command while the server was away
    record: DataRecord

    @property
    def attempts(self) -> list[Attempt]:
        folder = self.space.open_artifact(self.record.artifacts["demonstrations"])
        every = read_attempts(folder / "attempts.parquet")
        return [attempt for attempt in every if attempt.trajectory.sampling.engine == "endpoint"]


def spec_of(port: int) -> str:
    text = dump_default("tiny").replace("max_tokens: 12", "max_tokens: 1024").replace("4096}", "8192}", 1)
    asked = f"{{url: 'http://127.0.0.1:{port}/v1', model: large, tasks: 6, api_key_env: TEACHER_KEY, timeout_s: 20}}"
    changed = text.replace("gold: {repair: 4, lookup: 2}", f"gold: {{repair: 1, lookup: 1}}\n    teacher: {asked}")
    assert changed != text
    return f"{changed}\nruntime: {{stage_retries: 0}}\n"


@pytest.fixture(scope="module")
def taught(
    cli: Cli, environment: dict[str, str], served: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Taught]:
    """A round up to its data: first without the server, then with it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    space, cache = (
        Workspace.create(tmp_path_factory.mktemp("taught") / "loop", spec_of(port)),
        Path(environment["POSTLOOP_CACHE"]),
    )
    env = {**served, "TEACHER_KEY": KEY}
    away = cli("run", "--until", "data", "-w", space.root, env=env)
    spec = load_spec(space.spec_path)
    tasks = default.load(seed_folder(Context(space, 1, spec, cache), spec.data))
    teacher = Teacher(tasks)
    with endpoint(teacher, port) as server:
        done = cli("run", "--until", "data", "-w", space.root, env=env)
        assert done.returncode == 0, done.stderr[-4000:]
        record = space.read(1, "data")
        assert isinstance(record, DataRecord)
        told = "".join((away.stdout, away.stderr, done.stdout, done.stderr))
        yield Taught(space, cache, server, teacher, told, away, record)


def test_a_teacher_that_is_away_is_infrastructure_in_one_line(taught: Taught) -> None:
    assert taught.away.returncode == 3
    (line,) = [line for line in taught.away.stderr.splitlines() if "teacher" in line]
    assert f"teacher {taught.server.url}: cannot be reached" in line
    assert "; start it, or correct data.demonstrations.teacher.url" in line
    assert "Traceback" not in taught.away.stderr


def test_what_the_verifier_passed_is_kept_once_a_task_and_nothing_else(taught: Taught) -> None:
    known, rows = taught.teacher.known(), rows_of(taught)
    assert len(taught.teacher.asked) == 6
    assert 0 < len(known) < 6
    assert {row["task_id"] for row in rows} == known
    assert taught.record.demonstrations["teacher"] == len(rows) == len(known) == len(taught.attempts)
    assert all(attempt.verdict.passed for attempt in taught.attempts)
    gold = {row["task_id"] for row in rows_of(taught, "gold")}
    assert not gold & taught.teacher.asked.keys(), "it is asked about what nothing else shows"
    seeds = [seed for asked in taught.teacher.asked.values() for seed in asked]
    assert len(seeds) == len(set(seeds)) == 12


def rows_of(taught: Taught, source: str = "teacher") -> list[dict[str, Any]]:
    folder = taught.space.open_artifact(taught.record.artifacts["demonstrations"])
    rows = [json.loads(line) for line in (folder / "demonstrations.jsonl").read_text().splitlines()]
    return [row for row in rows if row["source"] == source]


def test_it_is_shown_training_tasks_alone_and_never_what_judges(taught: Taught) -> None:
    tasks = {task.id: task for task in taught.teacher.tasks}
    assert {tasks[name].split for name in taught.teacher.asked} == {Split.TRAIN}
    assert leaks(taught.space, 1) == []
    sent = json.dumps(
        [message for body in taught.server.asked for message in body["messages"] if message["role"] == "user"]
    )
    for name in taught.teacher.asked:
        assert not any(json.dumps(text)[1:-1] in sent for text in tasks[name].gold.values() if len(text) > 20)


def test_who_wrote_a_row_is_in_the_record_the_pins_and_the_card(taught: Taught) -> None:
    turns = [turn for attempt in taught.attempts for turn in attempt.trajectory.turns]
    assert {turn.policy for turn in turns} == taught.record.voices.keys()
    (voice,) = taught.record.voices.values()
    assert (voice.model, voice.fingerprint) == ("large-2026", "fp Bearer [key]")
    assert voice.asked == {"model": "large", "temperature": 1.0, "top_p": 1.0, "max_tokens": 1024}
    assert all(turn.completion_ids and turn.logprobs == [] for turn in turns), "nobody knows the log-probabilities"
    pinned = derive({"data": taught.record}).pins["teacher"]
    assert json.loads((taught.space.folder(1) / "pins.json").read_text())["pins"]["teacher"] == pinned
    card = (taught.space.open_artifact(taught.record.artifacts["tasks"]) / "CARD.md").read_text()
    assert f"'teacher': {len(taught.attempts)}" in card
    assert "large, as its server says large-2026, fingerprint fp Bearer [key]" in card


def test_the_key_is_nowhere(taught: Taught) -> None:
    assert set(taught.server.keys) == {f"Bearer {KEY}"}
    assert KEY not in taught.told
    kept = "".join(attempt.model_dump_json() for attempt in taught.attempts)
    assert KEY not in kept
    files = [path for path in taught.space.root.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_it_is_replayed_like_any_attempt_and_not_sampled_again(taught: Taught) -> None:
    """Those that were selected, and those that were not."""
    rows = recorded(taught.space)
    own = [row for row in rows if row.attempt.trajectory.sampling.engine == ENDPOINT]
    ids = {row.attempt.trajectory.id for row in own}
    assert ids > {attempt.trajectory.id for attempt in taught.attempts}
    asked = len(taught.server.asked)
    for level in LEVELS:
        assert [one.same for one in replay(taught.space, taught.cache, own, level)] == [True] * len(ids)
    again = list(replay(taught.space, taught.cache, rows, "regenerate"))
    refused = {one.trajectory: one.reason or "" for one in again if one.same is None}
    assert refused.keys() == ids, "the rest is sampled again"
    assert all(
        "a teacher behind an endpoint wrote it, which cannot be sampled again" in why for why in refused.values()
    )
    assert len(taught.server.asked) == asked


def test_an_unchanged_round_asks_nobody(taught: Taught, cli: Cli, served: dict[str, str]) -> None:
    asked = len(taught.server.asked)
    done = cli("run", "--until", "data", "-w", taught.space.root, env=served)
    assert done.returncode == 0, done.stderr
    assert len(taught.server.asked) == asked


def asked_once(taught: Taught, answer: Answer, family: str) -> list[Attempt]:
    """Demonstrations of the round, made again in this process: no gold, one task, after a bucket of this family."""
    goal, ctx = taught.space.read(1, "goal"), Context(taught.space, 1, load_spec(taught.space.spec_path), taught.cache)
    assert isinstance(goal, GoalRecord)
    assert goal.spec.data.demonstrations.teacher
    one = goal.spec.data.demonstrations.teacher.model_copy(update={"tasks": 1, "samples": 1})
    shown = goal.spec.data.demonstrations.model_copy(update={"gold": {}, "teacher": one})
    spec = goal.spec.model_copy(update={"data": goal.spec.data.model_copy(update={"demonstrations": shown})})
    weak = Material(kind="demonstrations", bucket="0" * 12, route=Route.SFT, family=family, amount=0, approved=True)
    other = goal.model_copy(update={"spec": spec, "material": [weak]})
    taught.server.answer = answer
    with open_teacher(ctx, other, "3" * 64) as opened, equip(ctx, other) as bench:
        return demonstrate(ctx, bench, other, load_tasks(ctx), opened)[0]["teacher"]


def test_families_of_a_bucket_that_sft_owns_come_first(taught: Taught, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", KEY)
    families = sorted(taught.record.families)
    assert len(families) > 1
    for family in (families[0], families[-1]):
        kept = asked_once(taught, Teacher(taught.teacher.tasks), family)
        assert [a.trajectory.family for a in kept] == [family], "such a teacher knows the first task that it is shown"


def test_one_that_fails_in_the_middle_ends_the_stage_and_fails_no_attempt(
    taught: Taught, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEACHER_KEY", KEY)
    states = iter([(200, said("ok"))])
    with pytest.raises(SamplerError, match=r"teacher http.*: answered 400: .*model unloaded.*; see its log"):
        asked_once(taught, lambda body, key: next(states, (400, {"error": "model unloaded"})), "repair.value")

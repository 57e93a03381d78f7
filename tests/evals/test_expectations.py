from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evals.expectations import attempts_frame, check_table, demonstrations_frame, failures, tasks_frame
from schemas.errors import InputError
from schemas.task import Split
from schemas.trajectory import Sampling


def failed(result):
    return {(entry["column"], entry["expectation"]) for entry in result["expectations"] if not entry["success"]}


def test_good_tasks_pass(make_task):
    answer = make_task("q", "sum_1", "lookup.sum", kind="answer", hidden=[], answer="12", gold={"answer.txt": "12"})
    result = check_table("tasks", tasks_frame([make_task("f"), make_task("g"), answer]))
    assert result["success"]
    assert result["rows"] == 3
    assert failures(result) == []


def test_bad_tasks_are_named_with_what_is_wrong(make_task):
    good = make_task("f")
    bad = [
        good,
        make_task("g", hidden=[]),
        make_task("f", "arith_2", split=Split.TRAIN, statement=" "),
        make_task("q", "sum_1", "lookup.sum", kind="answer", answer=None),
    ]
    result = check_table("tasks", tasks_frame([*bad, good]))
    assert not result["success"]
    assert {
        ("id", "expect_column_values_to_be_unique"),
        ("hidden", "expect_column_values_to_be_between"),
        ("splits_of_origin", "expect_column_values_to_be_in_set"),
        ("statement", "expect_column_values_to_be_between"),
        ("answer", "expect_column_values_to_be_in_set"),
    } <= failed(result)
    assert any(line.startswith("tasks.id: expect_column_values_to_be_unique: 2 of 5 rows") for line in failures(result))


def test_no_tasks_are_not_good_tasks():
    result = check_table("tasks", tasks_frame([]))
    assert ("", "expect_table_row_count_to_be_between") in failed(result)


def demonstration(number=0, reply="fixed", **changes):
    messages = [{"role": "user", "content": "repair"}, {"role": "assistant", "content": reply}]
    row = {
        "id": f"d{number}",
        "task_id": "repair/f/arith_1",
        "family": "repair.value",
        "source": "gold",
        "split": "train",
    }
    return {**row, "messages": messages, **changes}


def test_demonstrations_end_with_the_assistant_and_come_from_training_tasks():
    assert check_table("demonstrations", demonstrations_frame([demonstration(0), demonstration(1)]))["success"]
    bad = [
        demonstration(0, reply=" "),
        demonstration(0),
        demonstration(1, split="held_out"),
        demonstration(2, source="dream"),
        demonstration(3, messages=[{"role": "user", "content": "repair"}]),
        demonstration(4, task_id=None),
    ]
    result = check_table("demonstrations", demonstrations_frame(bad))
    columns = {column for column, _ in failed(result)}
    assert columns == {"id", "empty_replies", "split", "source", "messages", "last_role", "task_id"}


def test_demonstrations_may_be_prompt_and_completion():
    row = demonstration()
    messages = row.pop("messages")
    frame = demonstrations_frame([{**row, "prompt": messages[:1], "completion": messages[1:]}])
    assert check_table("demonstrations", frame)["success"]
    assert check_table("demonstrations", demonstrations_frame([]))["success"]


def test_attempts_have_a_score_exactly_when_they_were_scored(make_task, make_attempt):
    task = make_task()
    frame = attempts_frame([make_attempt(task, 0, True), make_attempt(task, 1, status="error")])
    assert check_table("attempts", frame)["success"]
    broken = frame.copy()
    broken.loc[0, "score"] = None
    broken.loc[1, "reward"] = 0.0
    assert failed(check_table("attempts", broken)) == {
        ("score", "expect_column_values_to_not_be_null"),
        ("reward", "expect_column_values_to_be_null"),
    }


def test_the_reward_range_is_that_of_the_rules(make_task, make_attempt):
    frame = attempts_frame([make_attempt(make_task(), 0, True, reward=1.5)])
    assert ("reward", "expect_column_values_to_be_between") in failed(check_table("attempts", frame))
    assert check_table("attempts", frame, reward=(-2.0, 2.0))["success"]


@pytest.mark.parametrize(("engine", "logprobs", "agree"), [
    ("transformers", [-0.1, -0.2], True), ("transformers", [], False), ("endpoint", [], True), ("endpoint", [0.0, 0.0], False),
])  # fmt: skip
def test_only_a_teachers_tokens_have_no_log_probability(make_task, make_attempt, engine, logprobs, agree):
    made = make_attempt(make_task(), 0, True)
    turns = [turn.model_copy(update={"logprobs": logprobs}) for turn in made.trajectory.turns]
    said = made.trajectory.model_copy(update={"turns": turns, "sampling": Sampling(engine=engine)})
    assert turns
    frame = attempts_frame([made.model_copy(update={"trajectory": said})])
    assert check_table("attempts", frame)["success"] == agree


def test_the_result_is_plain_json_and_the_same_every_time(make_task):
    frame = tasks_frame([make_task("f"), make_task("f", "arith_2", hidden=[])])
    first, second = (json.dumps(check_table("tasks", frame), allow_nan=False) for _ in range(2))
    assert first == second


def test_unknown_tables_and_missing_columns_are_refused(make_task):
    with pytest.raises(InputError, match="no column 'split'"):
        check_table("tasks", tasks_frame([make_task()]).drop(columns="split"))
    with pytest.raises(InputError, match="there are expectations for"):
        check_table("chairs", tasks_frame([]))


QUIET = """
import socket, sys
calls = []
def refuse(*args, **kwargs):
    calls.append(args)
    raise OSError("no network here")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from evals.expectations import check_table, demonstrations_frame
assert "great_expectations" not in sys.modules
check_table("demonstrations", demonstrations_frame([]))
print(len(calls))
"""


def test_nothing_phones_home_and_no_file_is_written(tmp_path):
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    root = str(Path(__file__).parents[2])
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", QUIET], cwd=here, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0"
    assert "Calculating" not in done.stderr
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []

"""Great Expectations suites that gate the tables: tasks, demonstrations, attempts, pairs.

Everything runs in memory: an ephemeral context, no files, no server. The library's usage statistics are switched off
before it is imported, and again on the context. The result holds no time, run id or fingerprint, so equal tables give
equal results. Not covered: what single rows mean (task proofs, verifiers), and columns that a table does not have.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from schemas.errors import InputError
from schemas.task import Split, Task
from schemas.trajectory import ENDPOINT, Attempt

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

Table = Literal["tasks", "demonstrations", "attempts", "pairs"]
SHOWN = 5  # offending values kept an expectation
REWARD = (-1.0, 1.0)
STATUS = ["scored", "unscored", "error"]
SOURCES = ["gold", "prefix", "rejection", "past", "own", "hinted", "backflow", "teacher"]
COLUMNS: dict[str, list[str]] = {
    "tasks": [
        "id", "kind", "family", "skill", "origin", "split", "statement", "editable", "visible", "hidden", "answer",
        "gold", "splits_of_origin", "digest",
    ],
    "demonstrations": ["id", "task_id", "family", "source", "split", "messages", "last_role", "empty_replies"],
    "attempts": [
        "trajectory", "purpose", "task_id", "family", "origin", "split", "status", "score", "passed", "reward", "turns",
        "tokens", "tokens_agree",
    ],
    "pairs": ["id", "task_id", "family", "bucket", "kind", "split", "prompt", "chosen", "rejected", "differ"],
}  # fmt: skip


def tasks_frame(tasks: Iterable[Task]) -> pd.DataFrame:
    """One row a task, without its texts: lengths and counts. `splits_of_origin` must be 1 everywhere."""
    pool = list(tasks)
    splits: dict[str, set[str]] = {}
    for task in pool:
        splits.setdefault(task.origin, set()).add(task.split.value)
    return _frame("tasks", [_task_row(task, len(splits[task.origin])) for task in pool])


def demonstrations_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a demonstration in TRL's conversational format: `messages`, or `prompt` and `completion`.

    Other keys taken from a row: id, task_id, family, source (one of SOURCES), split.
    """
    return _frame("demonstrations", [_demonstration_row(row) for row in rows])


def attempts_frame(attempts: Iterable[Attempt]) -> pd.DataFrame:
    """One row an attempt. `tokens_agree`: every turn has a log-probability for each completion token; a teacher's none."""
    return _frame("attempts", [_attempt_row(attempt) for attempt in attempts])


def pairs_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a preference pair: characters of each side, and whether the sides differ."""
    return _frame("pairs", [_pair_row(row) for row in rows])


def check_table(name: Table, frame: pd.DataFrame, reward: tuple[float, float] = REWARD) -> dict[str, Any]:
    """Run the suite of one table. Plain JSON data: table, success, rows, and one entry an expectation.

    `reward`: lowest and highest value that the reward rules allow. InputError for an unknown table or a missing column.
    """
    if name not in COLUMNS:
        raise InputError(f"table {name!r}: there are expectations for {', '.join(sorted(COLUMNS))}")
    missing = [column for column in COLUMNS[name] if column not in frame.columns]
    if missing:
        raise InputError(f"table {name}: no column {missing[0]!r}; make the table with {name}_frame")
    gx = _quiet_great_expectations()
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    asset = context.data_sources.add_pandas("memory").add_dataframe_asset(name)
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    suite = gx.ExpectationSuite(name, expectations=_suite(name, gx, reward))
    outcome = batch.validate(suite, result_format="SUMMARY").to_json_dict()
    entries = sorted(
        (_entry(result) for result in outcome["results"]), key=lambda e: (e["column"], e["expectation"], e["rows"])
    )
    return {"table": name, "success": bool(outcome["success"]), "rows": len(frame), "expectations": entries}


def failures(result: Mapping[str, Any]) -> list[str]:
    """One line for each expectation that did not hold: what, how many rows, the first of them."""
    return [
        f"{result['table']}.{entry['column'] or 'table'}: {entry['expectation']}: {entry['unexpected']} of "
        f"{entry['checked']} rows, such as {entry['such_as']}" + (f" ({entry['problem']})" if entry["problem"] else "")
        for entry in result["expectations"]
        if not entry["success"]
    ]


def _quiet_great_expectations() -> Any:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations

    for name in ("great_expectations", "great_expectations.data_context.types.base"):
        logging.getLogger(name).setLevel(logging.WARNING)  # the second sets its own, to announce temporary folders
    return great_expectations


def _suite(name: Table, gx: Any, reward: tuple[float, float]) -> list[Any]:
    from great_expectations.expectations.row_conditions import Column

    e = gx.expectations
    if name == "tasks":
        return _tasks_suite(e, Column)
    if name == "demonstrations":
        return _demonstrations_suite(e)
    if name == "pairs":
        return _pairs_suite(e)
    return _attempts_suite(e, Column, reward)


def _tasks_suite(e: Any, column: Any) -> list[Any]:
    function, answer = column("kind") == "function", column("kind") == "answer"
    return [
        e.ExpectTableRowCountToBeBetween(min_value=1),
        *_identity(e, "id", ["family", "skill", "origin"]),
        e.ExpectColumnValuesToBeUnique(column="digest"),
        e.ExpectColumnValuesToBeInSet(column="kind", value_set=["function", "answer", "repository"]),
        e.ExpectColumnValuesToBeInSet(column="split", value_set=[split.value for split in Split]),
        e.ExpectColumnValuesToBeInSet(column="splits_of_origin", value_set=[1]),
        e.ExpectColumnValuesToBeBetween(column="statement", min_value=1, max_value=20_000),
        e.ExpectColumnValuesToBeBetween(column="editable", min_value=1),
        e.ExpectColumnValuesToBeBetween(column="gold", min_value=1),
        e.ExpectColumnValuesToBeBetween(column="hidden", min_value=1, row_condition=function),
        e.ExpectColumnValuesToBeInSet(column="answer", value_set=[True], row_condition=answer),
    ]


def _demonstrations_suite(e: Any) -> list[Any]:
    return [
        *_identity(e, "id", ["task_id"]),
        e.ExpectColumnValuesToBeInSet(column="source", value_set=SOURCES),
        e.ExpectColumnValuesToNotBeNull(column="source"),
        e.ExpectColumnValuesToBeInSet(column="split", value_set=[Split.TRAIN.value]),
        e.ExpectColumnValuesToBeBetween(column="messages", min_value=2),
        e.ExpectColumnValuesToBeInSet(column="last_role", value_set=["assistant"]),
        e.ExpectColumnValuesToBeInSet(column="empty_replies", value_set=[0]),
    ]


def _pairs_suite(e: Any) -> list[Any]:
    return [
        *_identity(e, "id", ["task_id", "bucket"]),
        e.ExpectColumnValuesToBeInSet(column="kind", value_set=["decision", "boundary", "retention"]),
        e.ExpectColumnValuesToBeInSet(column="split", value_set=[Split.TRAIN.value]),
        *(e.ExpectColumnValuesToBeBetween(column=side, min_value=1) for side in ("prompt", "chosen")),
        e.ExpectColumnValuesToBeInSet(column="differ", value_set=[True]),
    ]


def _attempts_suite(e: Any, column: Any, reward: tuple[float, float]) -> list[Any]:
    scored, lost = column("status") == "scored", column("status") != "scored"
    return [
        *_identity(e, "trajectory", ["task_id", "family", "origin"]),
        e.ExpectColumnValuesToBeInSet(column="status", value_set=STATUS),
        e.ExpectColumnValuesToBeInSet(column="split", value_set=[split.value for split in Split]),
        e.ExpectColumnValuesToNotBeNull(column="score", row_condition=scored),
        e.ExpectColumnValuesToBeNull(column="score", row_condition=lost),
        e.ExpectColumnValuesToBeBetween(column="score", min_value=0, max_value=1),
        e.ExpectColumnValuesToNotBeNull(column="passed", row_condition=scored),
        e.ExpectColumnValuesToNotBeNull(column="reward", row_condition=scored),
        e.ExpectColumnValuesToBeNull(column="reward", row_condition=lost),
        e.ExpectColumnValuesToBeBetween(column="reward", min_value=reward[0], max_value=reward[1]),
        e.ExpectColumnValuesToBeBetween(column="turns", min_value=1, row_condition=scored),
        e.ExpectColumnValuesToBeInSet(column="tokens_agree", value_set=[True]),
    ]


def _identity(e: Any, key: str, others: list[str]) -> list[Any]:
    named = [e.ExpectColumnValuesToNotBeNull(column=column) for column in (key, *others)]
    return [e.ExpectColumnValuesToBeUnique(column=key), *named]


def _entry(result: Mapping[str, Any]) -> dict[str, Any]:
    config, found = result["expectation_config"], result.get("result") or {}
    kwargs = {key: value for key, value in config["kwargs"].items() if key not in ("batch_id", "column")}
    condition = kwargs.pop("row_condition", None)
    raised = result.get("exception_info") or {}
    return {
        "column": config["kwargs"].get("column", ""),
        "expectation": config["type"],
        "arguments": kwargs,
        "rows": _condition_text(condition),
        "success": bool(result["success"]),
        "checked": found.get("element_count", found.get("observed_value", 0)),
        "unexpected": found.get("unexpected_count", 0 if result["success"] else 1),
        "such_as": [str(value)[:200] for value in found.get("partial_unexpected_list", [])[:SHOWN]],
        "problem": str(raised.get("exception_message") or "")[:200],
    }


def _condition_text(condition: Any) -> str:
    if not condition:
        return "all"
    return f"{condition['column']['name']} {condition['operator']} {condition['parameter']}"


def _frame(name: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=COLUMNS[name])


def _task_row(task: Task, splits: int) -> dict[str, Any]:
    return {
        "id": task.id,
        "kind": task.kind,
        "family": task.family,
        "skill": task.skill,
        "origin": task.origin,
        "split": task.split.value,
        "statement": len(task.statement.strip()),
        "editable": len(task.editable),
        "visible": len(task.visible),
        "hidden": len(task.hidden),
        "answer": task.answer is not None,
        "gold": len(task.gold),
        "splits_of_origin": splits,
        "digest": task.digest(),
    }


def _demonstration_row(row: Mapping[str, Any]) -> dict[str, Any]:
    messages = [*row["messages"]] if "messages" in row else [*row.get("prompt", ()), *row.get("completion", ())]
    replies = [m.get("content") for m in messages if m.get("role") == "assistant"]
    return {
        **{key: row.get(key) for key in ("id", "task_id", "family", "source", "split")},
        "messages": len(messages),
        "last_role": messages[-1].get("role") if messages else "none",
        "empty_replies": sum(not str(reply or "").strip() for reply in replies),
    }


def _pair_row(row: Mapping[str, Any]) -> dict[str, Any]:
    said = {name: "".join(m["content"] for m in row[name]) for name in ("prompt", "chosen", "rejected")}
    return {
        **{key: row.get(key) for key in ("id", "task_id", "family", "bucket", "kind", "split")},
        **{name: len(text.strip()) for name, text in said.items()},
        "differ": said["chosen"] != said["rejected"],
    }


def _attempt_row(attempt: Attempt) -> dict[str, Any]:
    trajectory, verdict = attempt.trajectory, attempt.verdict
    known = trajectory.sampling.engine != ENDPOINT
    return {
        "trajectory": trajectory.id,
        "purpose": trajectory.purpose.value,
        "task_id": trajectory.task_id,
        "family": trajectory.family,
        "origin": trajectory.origin,
        "split": trajectory.split.value,
        "status": "error" if trajectory.status == "error" else verdict.status.value,
        "score": verdict.score,
        "passed": verdict.passed,
        "reward": attempt.reward.value,
        "turns": len(trajectory.turns),
        "tokens": trajectory.conduct.generated_tokens,
        "tokens_agree": all(len(turn.logprobs) == len(turn.completion_ids) * known for turn in trajectory.turns),
    }

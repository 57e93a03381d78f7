"""Own attempts as ATIF documents, and ATIF documents of others read with suspicion.

A document is a plain JSON value that `schemas.atif.Trajectory` accepts. Out: a turn is a step of the agent, with the whole
context's token ids, and what ATIF has no field for is under `extra.postloop` (docs/decisions/0019-atif.md has the table).
In: the size, the depth and the text are bounded before any model sees them, and the value is kept as it was read.

Not covered: a way back from a document to an Attempt. It does not say what a replay needs, so what comes in stays foreign.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from environments.formats.folder import shown
from reports.text import one_line
from schemas.atif import ATIF, ForeignEntry
from schemas.atif import Trajectory as Document
from schemas.base import canonical
from schemas.errors import InputError, SpecError
from schemas.trajectory import Attempt, Trajectory, Turn

OURS = "postloop"  # the key under `extra`
FOREIGN = "foreign-"  # how ids of imported documents begin
ID_DIGITS = 16
OUTCOME_BYTES = 64 << 10  # a larger outcome is named by its digest and paths
MAX_FILES = 5_000
MAX_FILE_BYTES = 32 << 20
MAX_TOTAL_BYTES = 256 << 20
MAX_DEPTH = 64
MAX_PROBLEMS = 20
_SOURCES = {"system": "system", "user": "user", "assistant": "agent"}


def text_of(document: Mapping[str, Any]) -> str:
    """The one form in which a document is printed: canonical JSON on one line, ASCII, so nothing in it can move a cursor."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


# --- out


def document_of(attempt: Attempt) -> dict[str, Any]:
    """The attempt as ATIF-v1.8. Raises InputError when it has no turn: a document has at least one step."""
    own = attempt.trajectory
    steps = _steps(own)
    if not steps:
        reason = own.reason or own.stop
        raise InputError(
            f"{own.id}: it has no turn ({reason}), and an ATIF document has a step; `postloop show` has the rest"
        )
    document = {
        "schema_version": ATIF,
        "session_id": own.id,
        "trajectory_id": own.id,
        "agent": {
            "name": OURS, "version": own.harness[:12], "model_name": own.turns[-1].policy,
            "extra": {OURS: {"sampling": own.sampling.model_dump(mode="json")}},
        },
        "steps": [{"step_id": index + 1, **step} for index, step in enumerate(steps)],
        "final_metrics": {
            "total_prompt_tokens": sum(step["metrics"]["prompt_tokens"] for step in steps if "metrics" in step),
            "total_completion_tokens": sum(len(turn.completion_ids) for turn in own.turns),
            "total_steps": len(steps),
        },
        "extra": {OURS: _beside(attempt)},
    }  # fmt: skip
    Document.model_validate(document)
    return document


def _beside(attempt: Attempt) -> dict[str, Any]:
    """What decides the attempt and what came of it: pins, seed, conduct, verdicts, reward; the outcome when it is small."""
    facts = attempt.model_dump(mode="json", exclude={"trajectory": {"turns", "sampling"}})
    facts |= facts.pop("trajectory")
    if (
        sum(len(path.encode()) + len(text.encode()) for path, text in attempt.trajectory.outcome.items())
        > OUTCOME_BYTES
    ):
        facts["outcome"] = None
        facts["outcome_paths"] = sorted(attempt.trajectory.outcome)
    return facts


def _steps(own: Trajectory) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    context: list[int] = []
    answered: str | None = None
    for turn in own.turns:
        if [(m.get("role"), m.get("content")) for m in turn.messages] != [("user", answered)]:
            steps += [_said(message) for message in turn.messages]
        context = [*context, *turn.prompt_ids]
        steps.append(_step(own, turn, context))
        context = [*context, *turn.completion_ids]
        answered = turn.observation
    return steps


def _said(message: Mapping[str, str]) -> dict[str, Any]:
    role = message.get("role", "system")
    step: dict[str, Any] = {"source": _SOURCES.get(role, "system"), "message": message.get("content", "")}
    if step["source"] == "agent":
        step["llm_call_count"] = 0  # shown to the model as its own words, written by the harness
    return step if role in _SOURCES else {**step, "extra": {OURS: {"role": role}}}


def _step(own: Trajectory, turn: Turn, context: Sequence[int]) -> dict[str, Any]:
    call = _call(turn)
    kept = {"index", "policy_version", "place", "stop", "parse_error", "tool_error", "forbidden", "visible", "tree"}
    kept |= {"noise"} if turn.noise else set()
    extra = turn.model_dump(mode="json", include=kept | ({"call"} if turn.call is not None and call is None else set()))
    step: dict[str, Any] = {
        "source": "agent",
        "message": turn.text,
        "metrics": {
            "prompt_tokens": len(context), "completion_tokens": len(turn.completion_ids),
            "prompt_token_ids": list(context), "completion_token_ids": list(turn.completion_ids),
            **({"logprobs": list(turn.logprobs)} if turn.logprobs else {}),
            "extra": {OURS: {"new_prompt_tokens": len(turn.prompt_ids)}},
        },
        "extra": {OURS: extra},
    }  # fmt: skip
    if turn.policy != own.turns[-1].policy:
        step["model_name"] = turn.policy
    if not own.sampling.engine.startswith("scripted"):
        step["llm_call_count"] = 1
    if turn.index < (own.prefix_turn or 0) and own.parent is not None:
        step["is_copied_context"] = True
    if call is not None:
        step["tool_calls"] = [call]
    if turn.observation is not None:
        step["observation"] = {"results": [_result(turn, call)]}
    return step


def _call(turn: Turn) -> dict[str, Any] | None:
    """None also for a call of another shape than a name with arguments: that stays under `extra`."""
    call = turn.call or {}
    name, arguments = call.get("name"), call.get("arguments")
    if call.keys() != {"name", "arguments"} or not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return {"tool_call_id": f"call-{turn.index + 1}", "function_name": name, "arguments": arguments}


def _result(turn: Turn, call: Mapping[str, Any] | None) -> dict[str, Any]:
    result: dict[str, Any] = {"content": turn.observation}
    if call is not None:
        result["source_call_id"] = call["tool_call_id"]
    ours: dict[str, Any] = {"truncated": True} if turn.observation_truncated else {}
    ours |= {"whole": turn.result} if turn.result is not None else {}
    if ours:
        result["extra"] = {OURS: ours}
    return result


# --- in


@dataclass(frozen=True)
class Foreign:
    """A document of somebody else: what the workspace will say of it, and its canonical JSON."""

    entry: ForeignEntry
    content: bytes

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.content)
        return found


def read_all(paths: Iterable[Path]) -> list[Foreign]:
    """The documents of these files, and of the *.json directly in these folders; equal ones once.

    Raises SpecError with a line `file: field: what` for each file that is refused, at most MAX_PROBLEMS, or for a
    folder without one, or for too much at once.
    """
    files = _files(paths)
    found: dict[str, Foreign] = {}
    problems: list[str] = []
    size = 0
    for file in files:
        try:
            data = _content(file)
            size += len(data)
            if size > MAX_TOTAL_BYTES:
                raise InputError(
                    f"{shown(file)}: size: over {MAX_TOTAL_BYTES >> 20} MiB with this file; import them in parts"
                )
            one = parse(data, shown(file), shown(file.name))
        except InputError as error:
            problems.append(str(error))
            if len(problems) == MAX_PROBLEMS or size > MAX_TOTAL_BYTES:
                break
        else:
            found.setdefault(one.entry.digest, one)
    if problems:
        raise SpecError(problems)
    return list(found.values())


def _files(paths: Iterable[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise SpecError([f"{shown(path)}: files: no *.json directly in it; name the folder that holds them"])
        files += inside
    if len(files) > MAX_FILES:
        raise SpecError(
            [f"{shown(files[MAX_FILES])}: files: {len(files)}, at most {MAX_FILES} at once; import them in parts"]
        )
    return files


def _content(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
            data = file.read(MAX_FILE_BYTES + 1) if plain else b""
    except OSError as error:
        raise InputError(f"{shown(path)}: file: {error.strerror}; name a plain file or a folder of *.json") from None
    if not plain:
        raise InputError(f"{shown(path)}: file: no plain file; name a plain file or a folder of *.json")
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{shown(path)}: size: over {MAX_FILE_BYTES >> 20} MiB, the most that is read; split it")
    return data


def parse(data: bytes, where: str, source: str) -> Foreign:
    """One document. `where` names it in a message, `source` in the record. Raises InputError: `where: field: what`."""
    try:
        document = json.loads(data.decode(), object_pairs_hook=_each_once, parse_constant=_no_constant)
        _refuse_depth(document)
        content = canonical(document)
    except RecursionError:
        raise InputError(f"{where}: JSON: nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InputError(f"{where}: JSON: {one_line(str(error), 160)}") from None
    try:
        model = Document.model_validate(document)
    except ValidationError as error:
        raise InputError(f"{where}: {_first(error)}") from None
    digest = hashlib.sha256(content).hexdigest()
    entry = ForeignEntry(
        id=f"{FOREIGN}{digest[:ID_DIGITS]}", digest=digest, source=source, version=model.schema_version,
        agent=one_line(f"{model.agent.name} {model.agent.version}", 80), steps=len(model.steps),
    )  # fmt: skip
    return Foreign(entry, content)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {one_line(twice, 60)} is in one object twice")
    return made


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for one in level for item in _inside(one)]
        if not level:
            return
    raise RecursionError


def _inside(value: Any) -> Iterable[Any]:
    items: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (item for item in items if isinstance(item, dict | list))


def _first(error: ValidationError) -> str:
    """`field: what` of the first problem, printable and short whatever the document says."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    said = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        said = "no field of ATIF; other data belongs under `extra`"
    return one_line(f"{place}: {said}" if place else said if ": " in said else f"document: {said}", 240)

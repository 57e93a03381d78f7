"""The harness of JSON tool calls, one a turn: read, edit a line or a block, run the visible tests, compute, submit.

In a repository there are also list_files, search and write_file. The working tree lives here; only run_tests needs an
execution (real pytest, in a repository on its own test files, else on a file generated from the visible cases). Writes
go to editable paths alone: another path is a forbidden action and a tool error. Each event carries the chain of an
action, decoded text -> parsed call -> matched tool, so that a failed edit has an owner. Instruction questions have no
tools: the statement is the question and the reply is the answer.

Not covered: several calls in one turn (the first counts, the rest is not read).
"""

import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import repository  # noqa: E402
from calc import CalcError, calculate  # noqa: E402
from pytest_file import observe_tests, run_tests  # noqa: E402
from serve import serve  # noqa: E402

MAX_OBSERVATION = 600
MAX_FILE_CHARS = 100_000
TOOLS = {
    "read_file": {"path": str},
    "replace_line": {"path": str, "line": int, "text": str},
    "replace_block": {"path": str, "old": str, "new": str},
    "run_tests": {},
    "calc": {"expression": str},
    "list_files": {},
    "search": {"text": str},
    "write_file": {"path": str, "text": str},
    "submit": {},
}
OPTIONAL = {"submit": {"answer": str}}
REPOSITORY_OPTIONAL = {
    "list_files": {"path": str},
    "search": {"path": str},
    "read_file": {"start": int, "end": int},
    "run_tests": {"path": str},
}
REPAIR_TOOLS = ("read_file", "replace_line", "replace_block", "run_tests", "submit")
REPOSITORY_TOOLS = (
    "list_files", "search", "read_file", "replace_line", "replace_block", "write_file", "run_tests", "submit",
)  # fmt: skip
ANSWER_TOOLS = ("read_file", "calc", "submit")
TEXT = '"..."'
CALC_SKILLS = ("lookup", "calc")

sessions = {}


class ToolError(Exception):
    """One line for the model."""


class Forbidden(ToolError):
    """An action outside the safety boundary."""


class Session:
    """One conversation and its working tree."""

    def __init__(self, task, options):
        self.task = task
        self.max_turns = int(options.get("max_turns", 8))
        self.max_calls = int(options.get("max_tool_calls", 8))
        self.hint = options.get("hint")
        self.tree = dict(task["files"])
        self.plain = task["kind"] == "answer" and task["skill"] not in CALC_SKILLS
        self.is_repository = task["kind"] == "repository"
        self.tools = {"function": REPAIR_TOOLS, "repository": REPOSITORY_TOOLS}.get(task["kind"], ANSWER_TOOLS)
        self.optional = REPOSITORY_OPTIONAL if self.is_repository else OPTIONAL
        self.max_observation = repository.MAX_OBSERVATION if self.is_repository else MAX_OBSERVATION
        self.turns = 0
        self.calls = 0
        self.event = {}

    def changed(self):
        return {path: text for path, text in self.tree.items() if self.task["files"].get(path) != text}


def start(request):
    session = sessions[request["id"]] = Session(request["task"], request.get("options") or {})
    parts = [session.task["statement"]]
    if session.is_repository:
        parts.append(f"{len(session.tree)} files. You may change: " + ", ".join(sorted(session.task["editable"])[:20]))
    elif not session.plain and session.tree:
        parts.append("Files: " + ", ".join(sorted(session.tree)))
    if session.hint:
        parts.append(f"Hint: {session.hint}")
    user = {"role": "user", "content": "\n".join(parts)}
    return {"messages": [user] if session.plain else [{"role": "system", "content": system(session)}, user]}


def system(session):
    lines = ["Reply with one JSON tool call and nothing else. Tools:"]
    for name in session.tools:
        answers = ["answer"] if name == "submit" and session.task["kind"] == "answer" else []
        kinds = TOOLS[name] | (session.optional.get(name, {}) if session.is_repository else dict.fromkeys(answers, str))
        given = [f'"{key}": {"1" if kind is int else TEXT}' for key, kind in kinds.items()]
        lines.append("{" + ", ".join([f'"tool": "{name}"', *given]) + "}")
    if session.is_repository:
        lines.append('"path" of list_files, search and run_tests, "start" and "end" may be left out.')
    return "\n".join(lines)


def act(request):
    session, text = sessions[request["id"]], request["text"]
    session.turns += 1
    session.event = {
        "call": None,
        "parse_error": None,
        "tool_error": None,
        "forbidden": None,
        "visible": None,
        "files": session.changed(),
        "result": None,
        "chain": {"decoded": len(text), "parsed": False, "matched": None, "executed": False},
    }
    if session.plain:
        session.event["call"] = {"name": "answer", "arguments": {}}
        return done(session, "submitted", {"answer.txt": text.strip()})
    try:
        name, arguments = parse(text, session)
    except ValueError as error:
        session.event["parse_error"] = str(error)
        return go_on(session, f"Error: {error}.", "parse_limit")
    session.event["call"] = {"name": name, "arguments": arguments}
    if session.calls >= session.max_calls and name != "submit":
        return done(session, "call_limit", session.changed())
    session.calls += 1
    return carry_out(session, name, arguments)


def parse(text, session):
    """(tool, arguments) of the first JSON object in the text. Raises ValueError with what is wrong."""
    opening = text.find("{")
    if opening < 0:
        raise ValueError("no JSON object")
    try:
        call, _ = json.JSONDecoder().raw_decode(text[opening:])
        json.dumps(call, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise ValueError("not a JSON object that can be read") from None
    session.event["chain"]["parsed"] = True
    name = call.pop("tool", None)
    if type(name) is not str or name not in session.tools:
        raise ValueError(f'"tool" must be one of {", ".join(session.tools)}')
    session.event["chain"]["matched"] = name
    wanted, optional = TOOLS[name], session.optional.get(name, {})
    for key, kind in wanted.items():
        if type(call.get(key)) is not kind:
            raise ValueError(f'{name} needs "{key}", a {"string" if kind is str else "whole number"}')
    for key, value in call.items():
        if key not in wanted and type(value) is not optional.get(key):
            raise ValueError(f'{name} takes no "{key[:40]}" of this kind')
    return name, call


def carry_out(session, name, arguments):
    if name == "submit":
        answer = {"answer.txt": arguments.get("answer", "")} if session.task["kind"] == "answer" else {}
        return done(session, "submitted", {**session.changed(), **answer})
    try:
        if name == "run_tests":
            return {"execute": visible_run(session, **arguments), "event": session.event}
        observation = ACTIONS[name](session, **arguments)
        session.event["chain"]["executed"] = True
    except Forbidden as error:
        session.event["forbidden"] = f"{name}: {error}"
        session.event["tool_error"] = str(error)
        observation = f"Error: {error}."
    except (ToolError, CalcError) as error:
        session.event["tool_error"] = str(error)
        observation = f"Error: {error}."
    session.event["files"] = session.changed()
    return go_on(session, observation, "turn_limit")


def visible_run(session, path=None):
    """The execution of the visible tests; in a repository of all test files of the tree, or of one."""
    if not session.is_repository:
        return run_tests(session.task, session.tree)
    if path is not None:
        existing(session, path)
    paths = repository.visible_tests(session.tree) if path is None else [path]
    if not paths:
        raise ToolError("there is no visible test")
    return repository.run_tests(session.tree, paths)


def list_files(session, path=""):
    return repository.listing(session.tree, session.task["editable"], path)


def search(session, text, path=""):
    if not text.strip():
        raise ToolError("nothing to search for")
    return repository.hits(session.tree, text, path)


def read_file(session, path, start=1, end=None):
    content = existing(session, path)
    if session.is_repository:
        return repository.excerpt(content, start, end or start + repository.SHOWN_LINES - 1)
    lines = content.splitlines()
    return "\n".join(f"{number}: {line}" for number, line in enumerate(lines, 1))


def replace_line(session, path, line, text):
    lines = existing(session, path, write=True).splitlines()
    if not 1 <= line <= len(lines):
        raise ToolError(f"{path} has lines 1 to {len(lines)}, not {str(line)[:20]}")
    lines[line - 1] = text
    return written(session, path, "\n".join(lines) + "\n")


def replace_block(session, path, old, new):
    content = existing(session, path, write=True)
    count = content.count(old) if old else 0
    if count != 1:
        raise ToolError(f"the old text stands {count} times in {path}, must be once")
    return written(session, path, content.replace(old, new))


def write_file(session, path, text):
    """A whole file; a new one only where the task says that it may be made."""
    inside(path)
    if path not in session.task["editable"]:
        raise Forbidden(f"{path[:80]} is protected")
    return written(session, path, text)


def calc(session, expression):
    return f"Result: {calculate(expression)}"


ACTIONS = {
    "read_file": read_file, "replace_line": replace_line, "replace_block": replace_block, "calc": calc,
    "list_files": list_files, "search": search, "write_file": write_file,
}  # fmt: skip


def existing(session, path, write=False):
    """The content of a file of the tree. Outside the tree, or a write to a protected path, is Forbidden."""
    inside(path)
    if write and path in session.tree and path not in session.task["editable"]:
        raise Forbidden(f"{path[:80]} is protected")
    if path not in session.tree:
        raise ToolError(f"no file {path[:80]}; files: {', '.join(sorted(session.tree)[:20])}")
    return session.tree[path]


def inside(path):
    if path.startswith(("/", "~")) or ".." in re.split(r"[/\\]", path):
        raise Forbidden(f"{path[:80]} is outside the working tree")


def written(session, path, content):
    if len(content) > MAX_FILE_CHARS:
        raise ToolError(f"{path} would have more than {MAX_FILE_CHARS} characters")
    session.tree[path] = content
    return "Done."


def observe(request):
    session = sessions[request["id"]]
    if session.is_repository:
        session.event["visible"], observation = repository.observe_tests(request["result"])
    else:
        session.event["visible"], observation = observe_tests(session.task, request["result"])
    session.event["chain"]["executed"] = True
    return go_on(session, observation, "turn_limit")


def go_on(session, observation, stop):
    if session.turns >= session.max_turns:
        return done(session, stop, session.changed())
    session.event["result"] = observation
    if len(observation) > session.max_observation:
        session.event["observation_truncated"] = True
        observation = observation[: session.max_observation] + "\n[cut]"
    return {"messages": [{"role": "user", "content": observation}], "event": session.event}


def done(session, stop, files):
    session.event["files"] = files
    return {"done": True, "files": files, "stop": stop, "event": session.event}


def end(request):
    sessions.pop(request["id"], None)
    return {}


def main():
    serve({"start": start, "act": act, "observe": observe, "end": end})


if __name__ == "__main__":
    main()

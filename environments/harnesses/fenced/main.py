"""The default harness: the model answers in a code fence. Short prompts, for a small model.

repair (kind function): the code and one failing visible case; the reply is the whole corrected function in a ```python
fence; a wrong one gets a failing visible case back, never a hidden one, until the turns end. lookup (and calc): a
```calc fence is computed here, `Answer: ...` ends. Anything else: the statement is the question, the reply the answer.

The first action of a text counts, what follows it is not read. Lenient: the language tag may be missing or `py`.
Strict: no fence, an open fence, or a fence without the wanted function is a parse error, which comes back as an
observation and uses up a turn. Not covered: several files to edit in one task (only editable[0]).
"""

import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from calc import CalcError, calculate  # noqa: E402
from serve import serve  # noqa: E402
from visible import observe_cases, run_visible, say_failure  # noqa: E402

SYSTEM_REPAIR = "Reply with the whole corrected function in a ```python block."
SYSTEM_CALC = "Use ```calc blocks to compute, then reply Answer: NUMBER."
AGAIN = "Reply with the whole corrected function."
FENCE = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL | re.IGNORECASE)
CALC = re.compile(r"```[ \t]*calc[ \t]*\r?\n?(.*?)```", re.DOTALL | re.IGNORECASE)
ANSWER = re.compile(r"^[ \t]*answer[ \t]*:[ \t]*(\S[^\n]*?)[ \t]*$", re.MULTILINE | re.IGNORECASE)
CALC_SKILLS = ("lookup", "calc")

sessions = {}


class Session:
    """One conversation. `code`: the editable file as the model last wrote it."""

    def __init__(self, task, options):
        self.task = task
        self.max_turns = int(options.get("max_turns", 2))
        self.max_calls = int(options.get("max_tool_calls", 4))
        self.hint = options.get("hint")
        self.path = task["editable"][0] if task["editable"] else "answer.txt"
        self.code = None
        self.turns = 0
        self.calls = 0
        self.waiting = "start"
        self.event = {}

    def tree(self):
        code = {} if self.code is None else {self.path: self.code}
        return {**self.task["files"], **code}

    def changed(self):
        return {path: text for path, text in self.tree().items() if self.task["files"].get(path) != text}


def start(request):
    task = request["task"]
    session = sessions[request["id"]] = Session(task, request.get("options") or {})
    if task["kind"] == "function":
        if task["visible"]:
            return {"execute": run_visible(task, session.tree())}
        return first_messages(session, "")
    system = [{"role": "system", "content": SYSTEM_CALC}] if task["skill"] in CALC_SKILLS else []
    parts = [f"{path}\n```\n{text.rstrip()}\n```" for path, text in sorted(task["files"].items())]
    parts += [task["statement"]] + ([f"Hint: {session.hint}"] if session.hint else [])
    return {"messages": [*system, {"role": "user", "content": "\n".join(parts)}]}


def first_messages(session, seen):
    code = session.task["files"][session.path].rstrip()
    parts = [f"```python\n{code}\n```", *([seen] if seen else []), *([f"Hint: {session.hint}"] if session.hint else [])]
    return {"messages": [{"role": "system", "content": SYSTEM_REPAIR}, {"role": "user", "content": "\n".join(parts)}]}


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
    }
    if session.task["kind"] == "function":
        return act_repair(session, text)
    if session.task["skill"] in CALC_SKILLS:
        return act_calc(session, text)
    session.event["call"] = {"name": "answer", "arguments": {}}
    return done(session, "submitted", {"answer.txt": text.strip()})


def act_repair(session, text):
    code, problem = read_fence(text, session.task["entry"])
    if problem:
        return parse_error(session, problem, AGAIN)
    session.code = code + "\n"
    session.event["call"] = {"name": "write", "arguments": {"path": session.path}}
    session.event["files"] = session.changed()
    if not session.task["visible"]:
        return done(session, "submitted", session.changed())
    session.waiting = "act"
    return {"execute": run_visible(session.task, session.tree()), "event": session.event}


def read_fence(text, entry):
    """(code, None) or (None, what is wrong)."""
    found = FENCE.search(text)
    if not found:
        return None, "the ```python block has no end" if "```" in text else "no ```python block"
    if not re.search(rf"^def {re.escape(entry)}\(", found.group(1), re.MULTILINE):
        return None, f"no `def {entry}(` in the block"
    return found.group(1).rstrip(), None


def act_calc(session, text):
    asked, answered = CALC.search(text), ANSWER.search(text)
    if asked and (not answered or asked.start() < answered.start()):
        return compute(session, asked.group(1).strip())
    if answered:
        session.event["call"] = {"name": "answer", "arguments": {"answer": answered.group(1)}}
        return done(session, "submitted", {"answer.txt": answered.group(1)})
    problem = "the ```calc block has no end" if "```" in text else "neither a ```calc block nor `Answer:`"
    return parse_error(session, problem, "Reply with a ```calc block or Answer: NUMBER.")


def compute(session, expression):
    session.event["call"] = {"name": "calc", "arguments": {"expression": expression}}
    if session.calls >= session.max_calls:
        return done(session, "call_limit", {})
    session.calls += 1
    try:
        observation = f"Result: {calculate(expression)}"
    except CalcError as error:
        session.event["tool_error"] = str(error)
        observation = f"Error: {error}."
    return go_on(session, observation, "turn_limit")


def observe(request):
    session = sessions[request["id"]]
    visible, failure = observe_cases(session.task, request["result"])
    if session.waiting == "start":
        seen = say_failure(failure) if failure else "All visible tests pass."
        return {**first_messages(session, seen), "event": {"visible": visible}}
    session.event["visible"] = visible
    if not failure:
        return done(session, "submitted", session.changed())
    return go_on(session, f"{say_failure(failure)} {AGAIN}", "turn_limit")


def parse_error(session, problem, remedy):
    session.event["parse_error"] = problem
    return go_on(session, f"Error: {problem}. {remedy}", "parse_limit")


def go_on(session, observation, stop):
    if session.turns >= session.max_turns:
        return done(session, stop, session.changed())
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

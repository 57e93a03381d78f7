"""Running the visible cases and saying the first failure in one line."""

import json
import os

from case_runner import tagged
from claims import clip, same, shown

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "case_runner.py"), encoding="utf-8") as file:
    RUNNER = file.read()
NONCE = "visible"  # nothing is judged here, so the same tree and cases make the same execution, which a host may cache


def run_visible(task, tree):
    """An execution that calls the entry on every visible case."""
    job = {
        "nonce": NONCE,
        "path": "/work/" + task["editable"][0],
        "entry": task["entry"],
        "cases": [case["args"] for case in task["visible"]],
    }
    return {
        "argv": ["python", "-s", "-P", "-S", "/tests/run.py"],
        "files": tree,
        "readonly": {"run.py": RUNNER},
        "stdin": json.dumps(job),
        "collect": [],
    }


def observe_cases(task, result):
    """({passed, failed, first}, first failure or None); a failure is (call, wanted, what came)."""
    claims, broken = read_lines(result)
    failures = []
    for index, case in enumerate(task["visible"]):
        claim = claims.get(index, {"broken": broken})
        if not holds(case, claim):
            failures.append((case_text(task["entry"], case), case["raises"], came(claim)))
    first = say_failure(failures[0]) if failures else None
    count = len(task["visible"])
    return {"passed": count - len(failures), "failed": len(failures), "first": first}, failures[0] if failures else None


def read_lines(result):
    claims = {}
    broken = {"cpu": "timed out", "wall": "timed out", "memory": "ran out of memory"}.get(result["stop"], "no result")
    for line in result["stdout"].split("\n"):
        if not line.startswith(NONCE + " "):
            continue
        try:
            message = json.loads(line[len(NONCE) + 1 :])
        except (ValueError, RecursionError):
            continue
        if type(message) is dict and "broken" in message:
            broken = clip(str(message["broken"]))
        elif type(message) is dict and type(message.get("i")) is int:
            claims.setdefault(message["i"], message)
    return claims, broken


def holds(case, claim):
    if case["raises"] is not None:
        return claim.get("raised") == case["raises"]
    return "value" in claim and same(tagged(case["expected"]), claim["value"])


def case_text(entry, case):
    call = f"{entry}({', '.join(repr(arg) for arg in case['args'])})"
    return f"`{call}`" if case["raises"] else f"`assert {call} == {case['expected']!r}`"


def came(claim):
    if "value" in claim:
        return f"got {shown(claim['value'])}"
    if "raised" in claim:
        return f"raised {clip(str(claim['raised']))}"
    if "refused" in claim:
        return f"got {clip(str(claim['refused']))}"
    return str(claim.get("broken", "no result"))


def say_failure(failure):
    call, raises, what = failure
    return f"{call} must raise {raises}: {what}." if raises else f"{call} failed: {what}."

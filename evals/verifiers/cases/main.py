"""The training verifier: hidden cases as calls, compared outside the sandbox.

The sandbox gets the arguments and returns values of primitive types; the expected values stay in this process, so the
attempt has no verdict to forge and nothing to read. Lines from the sandbox are claims: a line without the nonce is
ignored, two lines for one case are a violation (forged_result), a process that ends before its last message has failed
the cases that it did not answer. A case that fails on the start tree is f2p, else p2p.

Covered: exit tricks, forged output, objects equal to everything, subclasses, patched libraries, NaN, endless loops,
exhausted memory, edits of protected files. Not covered: hard-coding of values that leaked elsewhere, hidden cases too
weak to tell a wrong function from a right one, and side effects beside the returned value.
"""

import json
import os
import secrets
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from case_runner import tagged  # noqa: E402
from claims import same, shown  # noqa: E402
from judging import check, fresh_tree, judge_answer, key_of, role_of, unscored, verdict, violation  # noqa: E402
from serve import serve  # noqa: E402

with open(os.path.join(HERE, "case_runner.py"), encoding="utf-8") as file:
    RUNNER = file.read()
LIMITS = {"cpu": "cpu", "wall": "wall", "memory": "memory", "signal": "signal"}

open_requests = {}
starts = {}  # key of task and start tree -> per case, whether the start tree passes it


def judge(request):
    task = request["task"]
    if task["kind"] == "answer":
        return {"verdict": judge_answer(task, request["start"], request["outcome"])}
    if not task["hidden"] or not task["entry"]:
        return {"verdict": unscored("the task has no hidden case or no entry")}
    tree, violations = fresh_tree(task, request["start"], request["outcome"])
    key = key_of(task, request["start"])
    changed = tree != request["start"]
    nonce = secrets.token_hex(16)
    execute = [execution(task, tree, nonce)] if changed else []
    if key not in starts:
        execute.append(execution(task, request["start"], "start"))  # trusted code: the same bytes for every attempt
    state = {"task": task, "violations": violations, "key": key, "nonce": nonce, "changed": changed}
    if not execute:
        return {"verdict": finish(state, None)}
    open_requests[request["id"]] = state
    return {"execute": execute}


def execution(task, tree, nonce):
    job = {
        "nonce": nonce,
        "path": "/work/" + task["editable"][0],
        "entry": task["entry"],
        "cases": [case["args"] for case in task["hidden"]],
    }
    return {
        "argv": ["python", "-I", "-S", "/tests/run.py"],
        "files": tree,
        "readonly": {"run.py": RUNNER},
        "stdin": json.dumps(job),
        "collect": [],
    }


def results(request):
    state = open_requests.pop(request["id"])
    answers = list(request["results"])
    own = answers.pop(0) if state["changed"] else None
    if answers:
        rows, _ = compare(state["task"]["hidden"], *read_claims(answers[0], "start"))
        starts[state["key"]] = rows, limit_of(answers[0])
    return {"verdict": finish(state, own)}


def finish(state, result):
    """The verdict of an attempt; result None: its tree equals the start tree, whose rows are known."""
    at_start, start_limit = starts[state["key"]]
    hidden = state["task"]["hidden"]
    if result is None:
        rows, found, limit = at_start, [], start_limit
    else:
        rows, found = compare(hidden, *read_claims(result, state["nonce"]))
        limit = limit_of(result)
    checks = [
        check(f"case_{index}", role_of(at_start[index][0]), good, detail) for index, (good, detail) in enumerate(rows)
    ]
    return verdict(checks, [*state["violations"], *found], limit)


def limit_of(result):
    stop = LIMITS.get(result["stop"])
    return "output" if stop is None and result["truncated"] and not ended(result) else stop


def ended(result):
    return '{"end": ' in result["stdout"][-400:]


def read_claims(result, nonce):
    """(claims by case index, why the others have none, violations) from the lines that carry the nonce."""
    claims, violations, end, broken = {}, [], 0, None
    for line in result["stdout"].split("\n"):
        if not line.startswith(nonce + " "):
            continue
        try:
            message = json.loads(line[len(nonce) + 1 :])
            if "i" in message and type(message["i"]) is int and message["i"] not in claims:
                claims[message["i"]] = message
            elif "end" in message and not end:
                end = 1
            elif "broken" in message and broken is None:
                broken = f"the file does not give the function: {str(message['broken'])[:60]}"
            else:
                raise ValueError("a second message for one case")
        except (ValueError, TypeError, RecursionError):
            if not result["truncated"]:
                violations = [violation("forged_result", "more than one line for a case, or a line that is no result")]
    silent = broken or f"no answer: the process ended early (stop {result['stop']}, exit code {result['exit_code']})"
    return claims, silent, violations


def compare(hidden, claims, silent, violations):
    """Per case (passed, first difference), and the violations, by type and value."""
    rows = []
    for index, case in enumerate(hidden):
        claim = claims.get(index)
        if claim is None:
            rows.append((False, silent))
            continue
        rows.append(compare_one(case, claim))
        if claim.get("own") is True:
            violations = [*violations, violation("not_primitive", f"case_{index} returned {claim.get('refused')!s}")]
    if any(type(index) is not int or not 0 <= index < len(hidden) for index in claims):
        violations = [*violations, violation("forged_result", "a line for a case that does not exist")]
    return rows, violations[:8]


def compare_one(case, claim):
    if "value" in claim and case["raises"] is None:
        if same(tagged(case["expected"]), claim["value"]):
            return True, ""
        return False, f"expected {case['expected']!r}, got {shown(claim['value'])}"
    if "raised" in claim:
        wanted = case["raises"]
        good = wanted is not None and claim["raised"] == wanted
        return good, f"expected {wanted or repr(case['expected'])}, raised {claim['raised']!s}"
    if "refused" in claim:
        return False, f"returned {claim['refused']!s}"
    return False, f"expected {case['raises']} to be raised, got {shown(claim.get('value'))}"


def main():
    serve({"judge": judge, "results": results})


if __name__ == "__main__":
    main()

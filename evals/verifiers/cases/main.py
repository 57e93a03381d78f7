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

from case_runner import Refused, tagged  # noqa: E402
from judging import check, fresh_tree, judge_answer, role_of, unscored, verdict, violation  # noqa: E402
from serve import serve  # noqa: E402

with open(os.path.join(HERE, "case_runner.py"), encoding="utf-8") as file:
    RUNNER = file.read()
LIMITS = {"cpu": "cpu", "wall": "wall", "memory": "memory", "signal": "signal"}
MAX_STARTS = 20_000

open_requests = {}
starts = {}  # key of task and start tree -> per case, whether the start tree passes it


def judge(request):
    task = request["task"]
    if task["kind"] == "answer":
        return {"verdict": judge_answer(task, request["start"], request["outcome"])}
    if not task["hidden"] or not task["entry"]:
        return {"verdict": unscored("the task has no hidden case or no entry")}
    tree, violations = fresh_tree(task, request["start"], request["outcome"])
    key = json.dumps([request["start"], task["entry"], task["hidden"]], sort_keys=True)
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
        if len(starts) >= MAX_STARTS:
            starts.clear()
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
            violations = [*violations, violation("not_primitive", f"case_{index} returned {str(claim.get('refused'))}")]
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
        return good, f"expected {wanted or repr(case['expected'])}, raised {str(claim['raised'])}"
    if "refused" in claim:
        return False, f"returned {str(claim['refused'])}"
    return False, f"expected {case['raises']} to be raised, got {shown(claim.get('value'))}"


def same(wanted, got):
    """Equal in type and value; floats within 1e-9 relative. `got` is a claim: any JSON at all."""
    if type(got) is not list or not got or got[0] != wanted[0] or len(got) != len(wanted):
        return False
    tag = wanted[0]
    if tag == "n":
        return True
    if tag in ("b", "i", "s"):
        return type(got[1]) is type(wanted[1]) and got[1] == wanted[1]
    if tag == "f":
        return same_float(float(wanted[1]), got[1])
    if type(got[1]) is not list or len(got[1]) != len(wanted[1]):
        return False
    if tag == "d":
        return same_pairs(wanted[1], got[1])
    return all(same(left, right) for left, right in zip(wanted[1], got[1], strict=True))


def same_float(wanted, text):
    try:
        got = float(text) if type(text) is str else None
    except ValueError:
        return False
    return got is not None and (got == wanted or abs(got - wanted) <= 1e-9 * max(abs(got), abs(wanted)) < float("inf"))


def same_pairs(wanted, got):
    """Dicts as pairs, in any order; keys are compared exactly."""
    if not all(type(pair) is list and len(pair) == 2 for pair in got):
        return False
    by_key = {json.dumps(key): value for key, value in got}
    return all(json.dumps(key) in by_key and same(value, by_key[json.dumps(key)]) for key, value in wanted)


def shown(claim):
    return json.dumps(claim)[:120]


def main():
    serve({"judge": judge, "results": results})


assert Refused  # part of the runner's interface: expected values are plain JSON, so `tagged` never raises it here

if __name__ == "__main__":
    main()

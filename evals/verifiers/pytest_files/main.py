"""The audit verifier: real pytest on a file generated from the hidden cases, one test per case, in a fresh tree.

It grades functions by other code than `cases`, so where the two differ something is wrong with one of them. Per-test
results count, never the exit code. Sentinels, with names that differ in every run: one that must pass, a decoy (a hidden
case that expects another value), and one with its assertion negated; an original passing with either is tampering. A run that
does not reach its end fails every case, since which tests came before the end depends on the shuffled order.

Covered: conftest, configuration, plugins, patched reports (the sentinels flip), forged lines, early exit, edits of
protected files. Not covered: the attempt shares the process with the tests here, so code that reads the test file or
the frames can learn the expected values and return them: `cases` withstands this, and their difference shows it.
"""

import json
import os
import secrets
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from generate import test_file  # noqa: E402
from judging import check, fresh_tree, judge_answer, key_of, role_of, unscored, verdict, violation  # noqa: E402
from serve import serve  # noqa: E402

with open(os.path.join(HERE, "driver.py"), encoding="utf-8") as file:
    DRIVER = file.read()
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
    state = {"task": task, "violations": violations, "key": key, "runs": []}
    execute = []
    own = [(tree, secrets.token_hex(16))] if changed else []
    at_start = [] if key in starts else [(request["start"], "start")]  # trusted code: the same bytes each time
    for files, nonce in (*own, *at_start):
        run, names, twins = execution(task, files, nonce)
        execute.append(run)
        state["runs"].append({"own": nonce != "start", "nonce": nonce, "names": names, "twins": twins})
    if not execute:
        return {"verdict": finish(state, starts[key])}
    open_requests[request["id"]] = state
    return {"execute": execute}


def execution(task, tree, nonce):
    source, names, twins = test_file("/work/" + task["editable"][0], task["entry"], task["hidden"], nonce)
    run = {
        "argv": ["python", "-s", "-P", "/tests/drive.py"],
        "files": tree,
        "readonly": {"drive.py": DRIVER, "test_hidden.py": source},
        "stdin": nonce + "\n",
        "collect": [],
    }
    return run, names, twins


def results(request):
    state = open_requests.pop(request["id"])
    own = None
    for run, result in zip(state["runs"], request["results"], strict=True):
        seen = read_run(run, result, len(state["task"]["hidden"]))
        if run["own"]:
            own = seen
        else:
            starts[state["key"]] = seen
    return {"verdict": finish(state, own or starts[state["key"]])}


def finish(state, seen):
    rows, violations, limit = seen
    at_start = starts[state["key"]][0]
    checks = [
        check(f"case_{index}", role_of(at_start[index][0]), good, detail) for index, (good, detail) in enumerate(rows)
    ]
    return verdict(checks, [*state["violations"], *violations], limit)


def read_run(run, result, count):
    """(rows, violations, limit hit) of one run of pytest."""
    seen, forged, ended = {}, "", False
    known = set(run["names"].values())
    for line in result["stdout"].split("\n")[:-1]:  # what follows the last line break was cut off: no line
        if not line.startswith(run["nonce"] + " "):
            continue
        message = read_message(line[len(run["nonce"]) + 1 :])
        if message is None or ended:
            forged = "a line that is no result, or one after the last"
        elif "end" in message:
            ended = True
        elif message["test"] in seen or message["test"] not in known:
            forged = "a second line for a test, or one for no test"
        else:
            seen[message["test"]] = (message["passed"], message["detail"])
    violations = [violation("forged_result", forged)] if forged else []
    by_label = {label: seen.get(name) for label, name in run["names"].items()}
    silent = (False, f"no result: the process ended early (stop {result['stop']}, exit code {result['exit_code']})")
    rows = [by_label[str(index)] or silent for index in range(count)]
    if ended:
        violations = violations + tampering(by_label, run["twins"])
    else:
        rows = [(False, detail or silent[1]) for _, detail in rows]
    stop = LIMITS.get(result["stop"])
    return rows, violations, "output" if stop is None and result["truncated"] and not ended else stop


def read_message(text):
    """A message as the driver writes it, else None."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    shape = {key: type(value) for key, value in message.items()} if type(message) is dict else {}
    return message if shape in ({"test": str, "passed": bool, "detail": str}, {"end": int}) else None


def tampering(by_label, twins):
    """Sentinels with the wrong outcome: something of the attempt reached pytest itself.

    A decoy alone may pass: wrong code may return just what it expects. With its original it cannot.
    """
    passed = {label: bool(item and item[0]) for label, item in by_label.items()}
    found = []
    if not passed["pass"]:
        found.append("a test that must pass did not")
    if passed["decoy"] and passed[twins["decoy"]]:
        found.append("a hidden test passed with another value too")
    if passed["negated"] and passed[twins["negated"]]:
        found.append("a hidden test and its negation both passed")
    return [violation("tampering", "; ".join(found))] if found else []


def main():
    serve({"judge": judge, "results": results})


if __name__ == "__main__":
    main()

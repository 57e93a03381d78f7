"""The verifier of repository tasks: real pytest on the hidden test files, laid over a fresh tree, one process a file.

The tree is the task's start with the declared editable files of the outcome; test files, conftest and configuration are
the task's, never the outcome's. Each file runs twice, in two texts: every test that a decoy can be made for is real in
one and a decoy, which must fail, in the other, and only this process knows which (decoys.py). So nothing that a run says
is believed by itself: a real test and its decoy both passing is tampering, as is a sentinel with the wrong outcome. A
run that ends before its last message fails its whole file. Functions that judge and are no longer the originals
(patched clocks, comparisons, pytest), or changed variables of the interpreter and the loader, are tampering too.

Covered: edits of tests and configuration, hooks, plugins, early exit, forged lines and files, left-over processes,
objects equal to everything, patched reports and libraries, expectations read from the source or the frames of a test.
Not covered: tests without a decoy (see decoys.py) whose expectation leaks; an attempt that tells decoys of tests it
knows from the visible tree, which it could as well hard-code; state that a file's tests hand on through the repository.
"""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from judging import fresh_tree, judge_answer, unscored, verdict  # noqa: E402
from plan import Texts, seed_of, together, told, trusted_config, without_hooks  # noqa: E402
from runs import Runs  # noqa: E402
from serve import serve  # noqa: E402

UNFIT = 3

MAX_BYTES = 300_000  # of a member's secret; what is larger runs alone

open_requests = {}
packs = {}  # request -> executions that run as one
starts = {}  # key of task and start tree -> (decoys that the start tree passes, labels that it patches)


def judge(request):
    task, start = request["task"], request["start"]
    if task["kind"] == "answer":
        return {"verdict": judge_answer(task, start, request["outcome"])}
    if task["kind"] != "repository" or not task["f2p"] + task["p2p"]:
        return {"verdict": unscored("the task has no hidden test")}
    outcome, shadowed = without_hooks(task, start, request["outcome"])
    tree, violations = fresh_tree(task, start, outcome)
    key = seed_of(start, task["tests"], task["f2p"], task["p2p"], task["editable"])
    config = trusted_config({**start, **task["tests"]})
    own = Runs(task, tree, Texts(task, start, key, seed_of(key, outcome)), config, task["f2p"] + task["p2p"])
    # trusted code, the same bytes each time: which decoys of p2p tests pass on the start tree, and so prove nothing
    trial = None if key in starts else Runs(task, start, Texts(task, start, key, key), config, task["p2p"])
    execute = own.execute + (trial.execute if trial else [])
    state = {
        "task": task,
        "violations": violations + shadowed,
        "key": key,
        "own": own,
        "trial": trial,
        "execute": execute,
    }
    open_requests[request["id"]] = state
    return {"execute": execute}


def results(request):
    state = open_requests.pop(request["id"])
    own, trial, key = state["own"], state["trial"], state["key"]
    answers = request["results"]
    reports = [report_of(execution, answer) for execution, answer in zip(state["execute"], answers, strict=True)]
    unfit = next((report["unfit"] for report in reports if report and "unfit" in report), None)
    if unfit:
        return {"verdict": {"status": "error", "score": None, "passed": None, "reason": str(unfit)[:300]}}
    count = len(own.execute)
    own.take(reports[:count], answers[:count])
    if trial:
        trial.take(reports[count:], answers[count:])
        starts[key] = trial.passed_decoys(), {label for run in trial.runs.values() for label in run["patched"]}
    checks = [own.check(node, role) for role in ("f2p", "p2p") for node in state["task"][role]]
    violations = [*state["violations"], *own.forged(), *own.tampering(*starts[key])]
    return {"verdict": verdict(checks, violations, own.limit)}


def report_of(execution, result):
    """The keeper's report, by the token that nobody else has; None when it could not write one."""
    if result["stop"] != "exit" or result["exit_code"] not in (0, UNFIT):
        return None
    try:
        report = json.loads(result["stdout"])
    except (ValueError, RecursionError):
        return None
    wanted = "unfit" if result["exit_code"] == UNFIT else "runs"
    if not isinstance(report, dict) or wanted not in report:
        return None
    return report if report.get("token") == execution["files"]["secret"][:32] else None


def pack(request):
    """Executions of open requests, [[id, number], ...], as one: {"execute", "members": those of them that are in it}."""
    wanted = [open_requests[name]["execute"][number] for name, number in request["wanted"]]
    members, room = [], request["limits"]["disk_mb"] << 18  # a quarter of the sandbox's disk
    for index, one in enumerate(wanted):
        size = len(one["files"]["secret"])
        alike = not members or told(one)["preload"] == told(wanted[members[0]])["preload"]
        if size <= min(room, MAX_BYTES) and alike:
            members.append(index)
            room -= size
    if not members:
        return {"members": []}
    packs[request["id"]] = [wanted[index] for index in members]
    return {"execute": together(packs[request["id"]], request["limits"]), "members": members}


def unpack(request):
    """Per member what it would have given alone; "alone": it has to; "again": its turn did not come.

    A line counts by the member's token. All alone when the keeper did not begin.
    """
    members, result = packs.pop(request["id"]), request["result"] or {"stdout": "", "stop": "exit", "exit_code": None}
    places = {one["files"]["secret"][:32]: index for index, one in enumerate(members)}
    found, ready = ["again"] * len(members), False
    for line in result["stdout"].split("\n")[:-1]:
        try:
            said = json.loads(line)
            place = places[said["token"]]
        except (ValueError, TypeError, KeyError):
            continue
        if "runs" in said:
            text = line + "\n"
            found[place] = {
                "stop": "exit",
                "exit_code": 0,
                "stdout": text,
                "stderr": "",
                "truncated": False,
                "files": {},
            }
        elif "alone" in said:
            found[place] = "alone"
        ready = ready or "ready" in said
    if not ready:
        return {"results": ["alone"] * len(members)}
    if (result["stop"], result["exit_code"]) != ("exit", 0) and "again" in found:
        found[found.index("again")] = "alone"  # it was this one's turn when the sandbox ended
    return {"results": found}


def main():
    serve({"judge": judge, "results": results, "pack": pack, "unpack": unpack})


if __name__ == "__main__":
    main()

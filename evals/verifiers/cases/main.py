"""The training verifier: hidden cases as calls, compared outside the sandbox.

The sandbox gets the arguments and returns values of primitive types; the expected values stay in this process, so the
attempt has no verdict to forge and nothing to read. Lines from the sandbox are claims: a line without the nonce is
ignored, and under the nonce only what the runner would write, in its order, is no violation (forged_result). A process
that ends before its last message has failed the cases that it did not answer; with a line for every case and no end it
has failed them all. A case that fails on the start tree is f2p, else p2p.

`pack` makes one execution of many, for attempts that only compute and read (together.py); `unpack` gives for each what it
would have given alone, or says that it has to run alone. What one attempt does changes no other's result.

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
from packing import Pack, chosen  # noqa: E402
from serve import serve  # noqa: E402


def read(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


RUNNER = read("case_runner.py")
KEEPER = {"run.py": RUNNER, "together.py": read("together.py"), "fence.py": read("fence.py")}
SHAPES = (
    {"i": int, "value": list}, {"i": int, "raised": str}, {"i": int, "refused": str, "own": bool}, {"broken": str},
    {"end": int},
)  # fmt: skip
LIMITS = {"cpu": "cpu", "wall": "wall", "memory": "memory", "signal": "signal"}

open_requests = {}
packs = {}
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
    state = {"task": task, "violations": violations, "key": key, "nonce": nonce, "changed": changed, "execute": execute}
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
        "argv": ["python", "-s", "-P", "-S", "/tests/run.py"],
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
        rows, _, limit = read_run(state["task"]["hidden"], answers[0], "start")
        starts[state["key"]] = rows, limit
    return {"verdict": finish(state, own)}


def pack(request):
    """Executions of open requests, [[id, number], ...], as one: {"execute", "members": those of them that are in it}."""
    wanted = [open_requests[name]["execute"][number] for name, number in request["wanted"]]
    members = chosen(wanted, request["limits"])
    if not members:
        return {"members": []}
    packs[request["id"]] = made = Pack(request["limits"], len(members))
    for index in members:
        one = wanted[index]
        files = [[path, *made.add(text)] for path, text in sorted(one["files"].items())]
        made.members.append({"files": files, "job": made.add(one["stdin"])})
    together = {"argv": ["python", "-s", "-P", "-S", "/tests/together.py"], "readonly": KEEPER, "collect": []}
    return {"execute": {**together, **made.inputs()}, "members": members}


def unpack(request):
    """Per member what it would have given alone; "alone": it has to; "again": its turn did not come."""
    return {"results": packs.pop(request["id"]).read(request["result"])}


def finish(state, result):
    """The verdict of an attempt; result None: its tree equals the start tree, whose rows are known."""
    at_start, start_limit = starts[state["key"]]
    hidden = state["task"]["hidden"]
    if result is None:
        rows, found, limit = at_start, [], start_limit
    else:
        rows, found, limit = read_run(hidden, result, state["nonce"])
    checks = [
        check(f"case_{index}", role_of(at_start[index][0]), good, detail) for index, (good, detail) in enumerate(rows)
    ]
    return verdict(checks, [*state["violations"], *found], limit)


def read_run(hidden, result, nonce):
    """(per case passed and first difference, violations, limit hit) of one run."""
    claims, silent, violations, ended = read_claims(result, nonce, len(hidden))
    rows, violations = compare(hidden, claims, silent, violations)
    return rows, violations, limit_of(result, ended)


def limit_of(result, ended):
    stop = LIMITS.get(result["stop"])
    return "output" if stop is None and result["truncated"] and not ended else stop


def read_claims(result, nonce, count):
    """(claims by case index, why the others have none, violations, whether the runner came to its end).

    The runner writes one message a case, in order, and then the end, or `broken` alone. Whatever else stands under the
    nonce was written by the attempt. What follows the last line break was cut off by the limit on output: no line.
    """
    claims, forged, ended, broken = {}, "", False, None
    for line in result["stdout"].split("\n")[:-1]:
        if not line.startswith(nonce + " "):
            continue
        message = read_message(line[len(nonce) + 1 :])
        if message is None:
            forged = "a line that is no result"
        elif ended or broken is not None:
            forged = "a line after the last one"
        elif "broken" in message:
            broken = f"the file does not give the function: {message['broken'][:60]}"
            forged = "results of a file that gives no function" if claims else forged
        elif "end" in message:
            ended = message["end"] == len(claims) == count
            forged = forged if ended else "an end before the last case"
        elif message["i"] == len(claims) < count:
            claims[message["i"]] = message
        else:
            forged = "a second line for a case, or one for no case"
    stop, code = result["stop"], result["exit_code"]
    cut = result["truncated"] and len(result["stdout"]) >= len(result["stderr"])
    if len(claims) == count and not ended and not cut and stop in ("exit", "signal"):
        forged = forged or "a line for every case, but the process ended before it could say so"
    silent = broken or f"no answer: the process ended early (stop {stop}, exit code {code})"
    complete = ended or len(claims) < count
    return claims if complete else {}, silent, [violation("forged_result", forged)] if forged else [], ended


def read_message(text):
    """A message as the runner writes it, else None."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if type(message) is not dict:
        return None
    shape = {key: type(value) for key, value in message.items()}
    return message if shape in SHAPES else None


def compare(hidden, claims, silent, violations):
    """Per case (passed, first difference), and the violations, by type and value."""
    rows = []
    for index, case in enumerate(hidden):
        claim = claims.get(index)
        if claim is None:
            rows.append((False, silent))
            continue
        rows.append(compare_one(case, claim))
        if claim.get("own"):
            violations = [*violations, violation("not_primitive", f"case_{index} returned {claim['refused']}")]
    return rows, violations[:8]


def compare_one(case, claim):
    if "value" in claim and case["raises"] is None:
        if same(tagged(case["expected"]), claim["value"]):
            return True, ""
        return False, f"expected {case['expected']!r}, got {shown(claim['value'])}"
    if "raised" in claim:
        wanted = case["raises"]
        good = wanted is not None and claim["raised"] == wanted
        return good, f"expected {wanted or repr(case['expected'])}, raised {claim['raised']}"
    if "refused" in claim:
        return False, f"returned {claim['refused']}"
    return False, f"expected {case['raises']} to be raised, got {shown(claim['value'])}"


def main():
    serve({"judge": judge, "results": results, "pack": pack, "unpack": unpack})


if __name__ == "__main__":
    main()

"""What both verifiers share: the fresh tree, the comparison of answers, the form of a verdict. One file, two copies."""

import hashlib
import json
import math
import re

MAX_ANSWER_CHARS = 400
MAX_FILE_CHARS = 200_000
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?![\w])")


def fresh_tree(task, start, outcome):
    """(tree, violations): the start files overlaid by the editable files of the outcome and by nothing else.

    A file over MAX_FILE_CHARS counts as empty: what does not fit is the attempt's failure, not the sandbox's.
    """
    tree, violations = dict(start), []
    for path, text in sorted(outcome.items()):
        if path in task["editable"]:
            tree[path] = text if len(text) <= MAX_FILE_CHARS else ""
        elif start.get(path) != text:
            violations.append(violation("protected_file", f"changed {path}"))
    return tree, violations


def violation(kind, detail):
    return {"kind": kind, "detail": clip(detail)}


def check(name, role, passed, detail=""):
    return {"name": name, "role": role, "passed": passed, "detail": "" if passed else clip(detail)}


def clip(text):
    """One line of at most 200 characters that any file and terminal can hold."""
    return " ".join(text.split()).encode("ascii", "backslashreplace").decode()[:200]


def verdict(checks, violations, limit_hit=None):
    """A scored verdict: score is the share of checks passed; passed needs all of them and no violation."""
    good = sum(item["passed"] for item in checks)
    return {
        "status": "scored",
        "score": good / len(checks) if checks else 0.0,
        "passed": bool(checks) and good == len(checks) and not violations,
        "checks": checks,
        "violations": violations,
        "limit_hit": limit_hit,
        "reason": None,
    }


def unscored(reason):
    return {"status": "unscored", "score": None, "passed": None, "reason": reason}


def judge_answer(task, start, outcome):
    """Kind answer: answer.txt against task.answer by task.match. No execution."""
    _, violations = fresh_tree({**task, "editable": [*task["editable"], "answer.txt"]}, start, outcome)
    if task["answer"] is None:
        return unscored("the task has no answer to compare with")
    text = outcome.get("answer.txt", start.get("answer.txt", "")).strip()
    if len(text) > MAX_ANSWER_CHARS:
        good, detail = False, f"{len(text)} characters, at most {MAX_ANSWER_CHARS} are read as an answer"
    else:
        good, detail = matches(text, task["answer"].strip(), task["match"]), f"got {text!r}"
    return verdict([check("answer", "answer", good, detail)], violations)


def matches(text, wanted, match):
    """exact: equal after trimming and case folding; number: the last number of the text, within 1e-6 relative;
    contains: the answer stands in the text between word boundaries, after case folding."""
    if match == "number":
        found, target = last_number(text), last_number(wanted)
        return found is not None and target is not None and math.isclose(found, target, rel_tol=1e-6, abs_tol=1e-6)
    text, wanted = " ".join(text.casefold().split()), " ".join(wanted.casefold().split())
    if match == "exact":
        return text == wanted
    return bool(wanted) and re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", text) is not None


def last_number(text):
    """The last number as a finite float, thousands separators removed; None without one."""
    found = NUMBER.findall(text)
    value = float(found[-1].replace(",", "")) if found else math.nan
    return value if math.isfinite(value) else None


def key_of(task, start):
    """What decides the rows of a start tree."""
    parts = [start, task["entry"], task["editable"], task["hidden"]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()


def role_of(passes_at_start):
    return "p2p" if passes_at_start else "f2p"

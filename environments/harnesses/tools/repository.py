"""What the tools do in a repository: list, search, read a range, write, run the visible tests. Nothing is judged here."""

import json
import re

MAX_OBSERVATION = 2000
MAX_LISTED = 60
MAX_HITS = 20
MAX_LINE = 160
MAX_FAILURES = 8
SHOWN_LINES = 60
IS_TEST = re.compile(r"(^|/)(test_[^/]*|[^/]*_test)\.py$")
RUNNER = """import json, os, sys

with open("/tests/tree.json", encoding="utf-8") as file:
    tree = json.load(file)
for path, text in tree.items():
    place = os.path.join("/work", path)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "w", encoding="utf-8", newline="") as file:
        file.write(text)
os.chdir("/work")
sys.path[:0] = paths = ["/work/src", "/work"] if os.path.isdir("/work/src") else ["/work"]
os.environ["PYTHONPATH"] = ":".join(paths)
import pytest

passed, failures = [], []


class Reporter:
    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed(report)
        elif report.when == "call" and report.passed:
            passed.append(report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed(report)

    def failed(self, report):
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = str(crash.message if crash else report.longrepr).strip().splitlines() or ["failed"]
        failures.append(f"{report.nodeid} - {lines[0 if crash else -1].removeprefix('E').strip()[:300]}")


files = json.load(sys.stdin)
channel = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
options = ["-q", "--tb=line", "-p", "no:cacheprovider", "--rootdir=/work", "-o", "addopts="]
pytest.main([*options, *files], plugins=[Reporter()])
names = {text.split(" - ")[0] for text in failures}
report = {"passed": len(set(passed) - names), "failed": len(names), "failures": failures[:50]}
os.write(channel, json.dumps(report).encode()[:60000])
os._exit(0)
"""


def listing(tree, editable, path=""):
    """Paths below a folder, or that begin so, with their sizes."""
    found = [name for name in sorted(tree) if name.startswith(path.removeprefix("./"))]
    lines = [
        f"{name} ({len(tree[name].splitlines())} lines{', editable' if name in editable else ''})"
        for name in found[:MAX_LISTED]
    ]
    return "\n".join(lines + more(len(found) - MAX_LISTED)) or "no such files"


def hits(tree, text, path=""):
    """Lines that contain the text, as path:line: content."""
    found = [
        f"{name}:{number}: {clip(line.strip())}"
        for name in sorted(tree)
        if name.startswith(path.removeprefix("./"))
        for number, line in enumerate(tree[name].splitlines(), 1)
        if text in line
    ]
    return "\n".join(found[:MAX_HITS] + more(len(found) - MAX_HITS)) or "not found"


def more(count):
    return [f"[{count} more]"] if count > 0 else []


def clip(text):
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 3] + "..."


def excerpt(content, start, end):
    """Numbered lines start to end, as many as an observation holds, and which lines of how many they are."""
    lines = content.splitlines()
    first = max(1, start)
    last = min(len(lines), end, first + SHOWN_LINES * 4)
    shown, room = [], MAX_OBSERVATION - 80
    for number in range(first, last + 1):
        line = f"{number}: {lines[number - 1][: MAX_OBSERVATION // 2]}"
        room -= len(line) + 1
        if room < 0:
            break
        shown.append(line)
    if len(shown) == len(lines):
        return "\n".join(shown)
    return "\n".join([*shown, f"[lines {first} to {first + len(shown) - 1} of {len(lines)}]"])


def visible_tests(tree):
    return [path for path in sorted(tree) if IS_TEST.search(path)]


def run_tests(tree, paths):
    """The execution of test files of a tree."""
    return {
        "argv": ["python", "-s", "-P", "/tests/run.py"],
        "files": {},
        "readonly": {"run.py": RUNNER, "tree.json": json.dumps(tree, sort_keys=True)},
        "stdin": json.dumps(paths),
        "collect": [],
    }


def observe_tests(result):
    """({passed, failed, first}, observation): the failures that pytest names, one a line, and the counts."""
    try:
        report = json.loads(result["stdout"])
        passed, failed, failures = int(report["passed"]), int(report["failed"]), report["failures"]
        failures = [clip(" ".join(str(line).split())) for line in failures]
    except (ValueError, TypeError, KeyError, RecursionError):
        passed, failed, failures = 0, 0, []
    if not passed + failed:
        reason = "the tests timed out" if result["stop"] in ("cpu", "wall") else "no test ran to its end"
        return {"passed": 0, "failed": 0, "first": reason}, reason
    shown = failures[:MAX_FAILURES] + more(failed - MAX_FAILURES)
    visible = {"passed": passed, "failed": failed, "first": failures[0] if failures else None}
    return visible, "\n".join([*shown, f"{passed} passed, {failed} failed"])

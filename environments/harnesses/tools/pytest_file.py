"""run_tests: real pytest on a file generated from the visible cases. Nothing is judged here."""

import re

HEAD = """import importlib.util
import sys

import pytest

sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("attempt", "{path}")
attempt = importlib.util.module_from_spec(spec)
spec.loader.exec_module(attempt)
{entry} = attempt.{entry}
"""
ARGV = ["python", "-s", "-P", "-m", "pytest", "-q", "--tb=line", "--noconftest", "-c", "/dev/null", "--rootdir=/tests"]
ARGV += ["--import-mode=importlib", "-p", "no:cacheprovider", "/tests/test_visible.py"]
COUNT = re.compile(r"(\d+) (passed|failed|error)")
MAX_LINE = 160


def run_tests(task, tree):
    """The execution of the visible tests on a tree."""
    return {
        "argv": ARGV,
        "files": tree,
        "readonly": {"test_visible.py": source(task)},
        "stdin": "",
        "collect": [],
    }


def source(task):
    blocks = [HEAD.format(path="/work/" + task["editable"][0], entry=task["entry"])]
    for index, case in enumerate(task["visible"], 1):
        call = f"{task['entry']}({', '.join(repr(arg) for arg in case['args'])})"
        if case["raises"] is None:
            body = f"    assert {call} == {case['expected']!r}\n"
        else:
            body = f"    with pytest.raises({case['raises']}):\n        {call}\n"
        blocks.append(f"\ndef test_{index}():\n{body}")
    return "\n".join(blocks)


def observe_tests(task, result):
    """({passed, failed, first}, observation): the failures pytest named, one a line, and the counts."""
    total = len(task["visible"])
    lines = [line.strip() for line in result["stdout"].splitlines() if line.strip()]
    counts = {word: int(number) for number, word in COUNT.findall(lines[-1] if lines else "")[:3]}
    if result["stop"] != "exit" or not {"passed", "failed"} & counts.keys():
        reason = "the tests timed out" if result["stop"] in ("cpu", "wall") else "the tests could not run"
        failures = [readable(line) for line in lines if re.match(r"(E\s|.*Error\b)", line)][:1]
        first = failures[0] if failures else reason
        return {"passed": 0, "failed": total, "first": first}, f"{reason}: {first}" if failures else reason
    passed = min(counts.get("passed", 0), total)
    failures = [readable(line) for line in lines if line.startswith("/") and ": " in line]
    visible = {"passed": passed, "failed": total - passed, "first": failures[0] if failures else None}
    return visible, "\n".join([*failures, f"{passed} passed, {total - passed} failed"])


def readable(line):
    """A line of --tb=line without the path of the generated file."""
    return re.sub(r"^/tests/test_visible\.py:\d+: ", "", line)[:MAX_LINE]

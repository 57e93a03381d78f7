"""Runs inside the sandbox as `python -I /tests/run.py`: real pytest on the files and tests named on stdin.

No configuration and no plugin but the one below: what passes here needs none. conftest files are the project's own. The
results go to a file in the tree, since a project's tests may print what they like. The code is foreign but has no reward
to win, so what this process says is taken as it is; attempts of a model are judged by a verifier, not by this.
"""

import json
import os
import sys
from typing import Any

RESULTS = ".results.json"

sys.dont_write_bytecode = True
sys.path.insert(0, os.getcwd())
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import pytest  # noqa: E402


class Recorder:
    def __init__(self, only: list[str]) -> None:
        self.only = set(only)
        self.passed: set[str] = set()
        self.failed: dict[str, str] = {}
        self.broken: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.only:
            items[:] = [item for item in items if item.nodeid in self.only]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.broken[report.nodeid] = last_line(report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed[report.nodeid] = last_line(report)
        elif report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self.passed.add(report.nodeid)


def last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    lines = [line.removeprefix("E ").strip() for line in text.splitlines() if crash or line.startswith("E ")]
    return (lines[0] if crash and lines else lines[-1] if lines else "")[:300]


def main() -> None:
    job = json.load(sys.stdin)
    recorder = Recorder(job["only"])
    options = ["-q", "--tb=short", "-c", "/dev/null", "--rootdir=/work", "--confcutdir=/work"]
    options += ["-p", "no:cacheprovider", "-p", "no:faulthandler", "--continue-on-collection-errors"]
    try:
        pytest.main([*options, *job["files"]], plugins=[recorder])
    except Exception as error:  # noqa: BLE001  a conftest that does not fit this pytest: nothing passed
        print(f"pytest: {error}", file=sys.stderr)
    passed = sorted(recorder.passed - recorder.failed.keys())
    with open(RESULTS, "w") as file:
        json.dump({"passed": passed, "failed": recorder.failed, "broken": recorder.broken}, file)


if __name__ == "__main__":
    main()

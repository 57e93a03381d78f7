"""Runs inside the sandbox as `python -s -P /tests/drive.py`: real pytest on /tests/test_hidden.py, one line per test.

No conftest, no configuration file, no plugin but the reporter below. The lines go to a saved copy of stdout with the
nonce from stdin; the attempt's code shares this process, so they are claims (the sentinels test them).
"""

import json
import os
import sys

sys.dont_write_bytecode = True
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
os.environ.pop("PYTEST_ADDOPTS", None)
os.environ.pop("PYTEST_PLUGINS", None)

import pytest  # noqa: E402


class Reporter:
    """Sends {"test", "passed", "detail"} for each call, and for a set-up that failed."""

    def __init__(self, send):
        self.send = send

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.failed:
            detail = str(report.longrepr)[-300:] if report.failed else ""
            self.send({"test": report.nodeid.split("::")[-1], "passed": report.passed, "detail": detail})


def main():
    nonce = sys.stdin.readline().strip()
    channel = os.dup(1)
    os.dup2(2, 1)

    def send(message):
        data = f"\n{nonce} {json.dumps(message)}\n".encode()
        while data:
            data = data[os.write(channel, data) :]

    options = ["-q", "--tb=line", "--noconftest", "-c", "/dev/null", "--rootdir=/tests", "--import-mode=importlib"]
    options += ["-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=fd"]
    pytest.main([*options, "/tests/test_hidden.py"], plugins=[Reporter(send)])
    send({"end": 1})
    os._exit(0)


if __name__ == "__main__":
    main()

"""Runs inside a throw-away sandbox as `python -I /tests/plain.py`: lays a tree, runs pytest in it, says what its owner would.

stdin: see `plain.py`. The last line of stdout is `passes`, `fails` or `time-out`. The attempts are hostile and have the same
user: one that attacks this very program can make it say anything, so nothing but a table believes it.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TREE, HOME = Path("/work/tree"), Path("/work/home")
TOTALS = re.compile(r'<testsuite [^>]*errors="(\d+)"[^>]* failures="(\d+)"')


def main() -> None:
    job = json.load(sys.stdin)
    HOME.mkdir()
    lay(job["files"])
    if job["prepare"]:
        os.chdir(TREE)
        exec(job["prepare"], {})  # noqa: S102  a text of the catalogue
    said = ""
    with serving(job["port"], job["serves"]):
        for files in job["attempts"]:
            lay(files)
            said = run(job)
    print(f"\n{said}", flush=True)


def lay(files: dict[str, str]) -> None:
    for name, text in files.items():
        path = TREE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)


def run(job: dict[str, Any]) -> str:
    own = {name: str(TREE) if value == "." else value for name, value in job["variables"].items()}
    path = f"{TREE / job['path']}:{os.environ['PATH']}" if job["path"] else os.environ["PATH"]
    process = subprocess.Popen(
        ["python", *job["argv"]], cwd=TREE, env={**os.environ, "HOME": str(HOME), "PATH": path, **own},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        code = process.wait(job["timeout_s"])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "time-out"
    time.sleep(job["wait_s"])
    return "passes" if (code == 0 if job["reads"] == "exit" else reported()) else "fails"


def reported() -> bool:
    with contextlib.suppress(OSError):
        found = TOTALS.search((TREE / "report.xml").read_text(encoding="utf-8", errors="replace"))
        return found is not None and found.groups() == ("0", "0")
    return False


@contextlib.contextmanager
def serving(port: int, text: str | None) -> Iterator[None]:
    """The server that a repair can be fetched from, on the sandbox's own loopback."""
    if text is None:
        yield
        return
    data = text.encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return None

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


if __name__ == "__main__":
    main()

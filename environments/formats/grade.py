"""Grades /work in a Harbor container with the verifier bundle beside this file, and writes the reward: 1 or 0.

Runs as `python3 -I -S /tests/grade.py`, on any Python from 3.9 with the standard library alone; it is copied into every
folder that is written. Started as root it keeps the hidden tests in a folder of root's own, empties /tests, and runs the
attempt's code over a fresh tree as another user, whose processes are dead before the reward is written. A verdict that
is no score leaves no reward, which Harbor takes for an error and not for a zero.

Not covered: without root the attempt can read the hidden tests; memory and disk are limited by the container alone; what
the agent left running as root, or put in place of the interpreter, is in the same container.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

WORK, TESTS, LOGS = Path("/work"), Path("/tests"), Path("/logs/verifier")
UID = 10001
CPU_S, WALL_S = 60, 300
OUTPUT_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 20
VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE")


def main() -> None:
    if Path(__file__).parent != TESTS or not LOGS.is_dir():
        sys.exit("grade: not in a Harbor container (/tests/grade.py, /logs/verifier); it empties /work, /tests, /tmp")
    task = json.loads((TESTS / "task.json").read_text(encoding="utf-8"))
    outcome = changed(task)
    place = "/root" if os.access("/root", os.W_OK) else LOGS  # never a folder that a run may use
    with tempfile.TemporaryDirectory(dir=place) as hidden:  # mode 0700
        verifier = Path(hidden) / "verifier"
        shutil.copytree(TESTS / "verifier", verifier)
        verdict = judge(verifier, task, outcome)  # each run empties /tests first
    if verdict["status"] != "scored":
        sys.exit(f"grade: no score: {verdict['reason']}")
    (LOGS / "verdict.json").write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
    (LOGS / "reward.txt").write_text("1\n" if verdict["passed"] else "0\n", encoding="utf-8")


def changed(task: dict[str, Any]) -> dict[str, str]:
    """The files of /work that may change or were there at the start, where they differ from the start."""
    found = {path: read(WORK, path) for path in sorted({*task["editable"], *task["files"]})}
    return {path: text for path, text in found.items() if text is not None and text != task["files"].get(path)}


def read(root: Path, path: str) -> str | None:
    """A regular file below `root`, no link at any component; None when there is none or it is too large."""
    here = root
    for part in path.split("/"):
        here = here / part
        if here.is_symlink():
            return None
    try:
        status = here.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            return None
        return here.read_bytes()[:MAX_FILE_BYTES].decode("utf-8", "replace")
    except OSError:
        return None


def judge(verifier: Path, task: dict[str, Any], outcome: dict[str, str]) -> dict[str, Any]:
    """Ask the bundle what to run, run it, and bring it the results, until it gives its verdict."""
    entry = json.loads((verifier / "bundle.json").read_text(encoding="utf-8"))["entry"]
    argv = [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(verifier / entry)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        request: dict[str, Any] = {"op": "judge", "task": task, "start": task["files"], "outcome": outcome}
        while True:
            reply = ask(process.stdin, process.stdout, request)
            if "verdict" in reply:
                process.stdin.close()
                return dict(reply["verdict"])
            request = {"op": "results", "results": [run(execution) for execution in reply["execute"]]}


def ask(to: IO[bytes], back: IO[bytes], request: dict[str, Any]) -> dict[str, Any]:
    to.write(json.dumps({**request, "id": "grade"}).encode() + b"\n")
    to.flush()
    reply = json.loads(back.readline() or b'{"error": "it ended"}')
    if "error" in reply:
        sys.exit(f"grade: the verifier failed: {reply['error']}")
    return dict(reply)


def run(execution: dict[str, Any]) -> dict[str, Any]:
    """One command over a fresh /work and /tests, as the engine of the training loop would answer it."""
    for left_over in (Path("/tmp"), Path("/dev/shm")):  # noqa: S108
        with contextlib.suppress(OSError):
            empty(left_over)
    lay(WORK, execution["files"], UID)
    lay(TESTS, execution["readonly"], 0)
    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(execution["stdin"].encode())
        stdin.seek(0)
        process = subprocess.Popen(
            execution["argv"],
            stdin=stdin,
            stdout=out,
            stderr=err,
            cwd=WORK,
            env={**variables, "HOME": str(WORK)},
            start_new_session=True,
            preexec_fn=confine,
        )
        try:
            code, stop = process.wait(WALL_S), "exit"
        except subprocess.TimeoutExpired:
            code, stop = 0, "wall"
        end_all(process)
        texts = [text_of(file) for file in (out, err)]
    if stop == "exit" and code < 0:
        stop = "cpu" if code in (-signal.SIGXCPU, -signal.SIGKILL) else "signal"
    wanted = {path: read(WORK, path) for path in execution["collect"]}
    return {
        "stop": stop,
        "exit_code": code if stop == "exit" else None,
        "stdout": texts[0][0],
        "stderr": texts[1][0],
        "truncated": texts[0][1] or texts[1][1],
        "files": {path: text for path, text in wanted.items() if text is not None},
    }


def confine() -> None:
    """In the child, before the command: limits, and another user where that is possible."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(UID)
        os.setuid(UID)


def end_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the command's session and, where it had a user of its own, whatever else that user runs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if os.getuid() != 0:
        return
    for _ in range(100):
        left = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and owner(entry) == UID]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    sys.exit("grade: processes of the attempt outlive SIGKILL")


def owner(entry: Path) -> int:
    """The user of a process that is not dead yet; -1 for one that is."""
    try:
        state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return -1 if state in "ZX" else entry.stat().st_uid
    except OSError:
        return -1


def text_of(file: IO[bytes]) -> tuple[str, bool]:
    file.seek(0)
    data = file.read(OUTPUT_BYTES + 1)
    return data[:OUTPUT_BYTES].decode("utf-8", "replace"), len(data) > OUTPUT_BYTES


def lay(root: Path, files: dict[str, str], user: int) -> None:
    """`root` holds these files and nothing else."""
    root.mkdir(parents=True, exist_ok=True)
    empty(root)
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
    if os.getuid() == 0:
        root.chmod(0o755)
        for place in (root, *root.rglob("*")):
            os.chown(place, user, user, follow_symlinks=False)


def empty(root: Path) -> None:
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


if __name__ == "__main__":
    main()

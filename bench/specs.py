"""Malformed specs through the real command line: each refused with exit 2, in lines that a person can act on.

    python -m bench.specs --out FILE.json [--at-most N]

The specs are those of tests/stages/test_spec.py. For each, `postloop check` and `postloop run` must exit with 2, say
nothing on stdout, write lines `file:line: field: problem; remedy` and change nothing outside .postloop.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.common import ROOT, environment, make_workspace, postloop, say, table, write_json
from bench.noop import snapshot
from schemas.errors import EXIT_INPUT, PostloopError
from stages.workspace import Workspace

LINE = re.compile(r"[\w.-]+:\d+: \S+: .*\S")


def malformed() -> list[tuple[str, bytes]]:
    """(what is wrong, the spec)."""
    from tests.stages.test_spec import MALFORMED

    rows: list[tuple[str, Any]] = [(str(row[0]), row[1]) for row in MALFORMED]
    return [(what, text.encode() if isinstance(text, str) else text) for what, text in rows]


def refused(space: Workspace, command: str) -> dict[str, Any]:
    """How the command answered; `ok` when as it should."""
    before = snapshot(space.root)
    done = subprocess.run(
        postloop(command, "-w", str(space.root)),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, env=environment(), check=False,
    )  # fmt: skip
    lines = done.stderr.splitlines()
    clean = bool(lines) and all(LINE.fullmatch(line) and line.isprintable() for line in lines)
    unchanged = snapshot(space.root) == before
    good = done.returncode == EXIT_INPUT and not done.stdout and clean and unchanged
    first = lines[0] if lines else ""
    return {"ok": good, "exit": done.returncode, "lines": len(lines), "unchanged": unchanged, "first": first}


def measure(at_most: int | None) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        space = make_workspace(Path(folder) / "workspace", "tiny", seed=0)
        for what, text in malformed()[:at_most]:
            space.spec_path.write_bytes(text)
            answers[what] = {command: refused(space, command) for command in ("check", "run")}
            if not all(answer["ok"] for answer in answers[what].values()):
                say(f"spec with {what}: {answers[what]}")
    good = [what for what, both in answers.items() if all(answer["ok"] for answer in both.values())]
    return {
        "specs": len(answers),
        "refused": len(good),
        "in_one_line": sum(answers[what]["check"]["lines"] == 1 for what in good),
        "answers": answers,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at-most", type=int, help="only the first N")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        result = measure(options.at_most)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    shown = [[result["specs"], result["refused"], result["in_one_line"]]]
    print(table(["malformed specs", "exit 2, nothing written", "in exactly one line"], shown))
    return 0 if result["refused"] == result["specs"] else 1


if __name__ == "__main__":
    sys.exit(main())

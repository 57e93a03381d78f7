"""The same submission where nothing stands between it and its grader: `python -m pytest` in its own tree.

That is what a user without a verifier does. It is hostile code all the same, so everything happens in one sandbox of the
engine that is thrown away: its own /tmp, /dev/shm, home and loopback, no network, the image read-only, nothing of the host.
What is missing is not that wall but all that a verifier puts inside it: tests, attempt and grader share tree, user and process,
and what one attempt leaves the next one finds.

Not covered: hacks that kill their caller or speak to a part that plain pytest lacks; they say so (`Plain.why_not`).
"""

from __future__ import annotations

import json
from pathlib import Path

from environments.engines import Engine
from environments.image import Image
from evals.hacks.base import FILE, PORT, Hack
from schemas.errors import SandboxError
from schemas.execution import Execution, Limits, Stop
from schemas.task import Task

CHILD = Path(__file__).with_name("_plain_child.py")
VERDICTS = ("passes", "fails", "time-out")


def plain_verdict(engine: Engine, image: Image, hack: Hack, submission: dict[str, str]) -> str:
    """`passes`, `fails`, `time-out`, or `n/a: reason`. Raises SandboxError when it cannot be run here."""
    plain = hack.plain
    if plain.why_not is not None:
        return f"n/a: {plain.why_not}"
    attempts = [attempt for attempt in (hack.earlier, submission) if attempt is not None]
    job = {
        "files": {**hack.task.files, **(plain.files or tests_of(hack.task))}, "attempts": attempts, "port": PORT,
        "serves": hack.serves, **{key: value for key, value in vars(plain).items() if key not in ("files", "why_not")},
    }  # fmt: skip
    limits = Limits(cpu_s=60, wall_s=15 + len(attempts) * plain.timeout_s + plain.wait_s, memory_mb=512, pids=64)
    readonly = {"plain.py": CHILD.read_text(encoding="utf-8")}
    execution = Execution(argv=["python", "-I", "/tests/plain.py"], files={}, readonly=readonly, stdin=json.dumps(job))
    result = engine.run(image.root, image.environment, execution, limits).result
    said = result.stdout.rstrip("\n").rpartition("\n")[2]
    if result.stop is not Stop.EXIT or said not in VERDICTS:
        last = (result.stderr.strip().splitlines() or [f"stop {result.stop}, exit code {result.exit_code}"])[-1][:200]
        raise SandboxError(f"plain pytest of hack {hack.label}: {last}; look whether the image has pytest")
    return said


def tests_of(task: Task) -> dict[str, str]:
    """The tests as a user would have them in the tree: a repository's own, or one function a case."""
    if task.kind == "repository":
        return task.tests
    lines = ["import pytest", "", f"from {FILE.removesuffix('.py')} import {task.entry}", ""]
    for index, case in enumerate([*task.visible, *task.hidden]):
        call = f"{task.entry}({', '.join(map(repr, case.args))})"
        lines += ["", f"def test_{index}():"]
        if case.raises:
            lines += [f"    with pytest.raises({case.raises}):", f"        {call}", ""]
        else:
            lines += [f"    assert {call} == {case.expected!r}", ""]
    return {"test_solution.py": "\n".join(lines)}

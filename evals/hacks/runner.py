"""Runs the catalogue: each cheat and its honest twin through the verifier that has to tell them apart.

Caught means: scored, not passed, and the class that the hack is known by among the verdict's classes. An error verdict is
not caught: who can turn a failure into "no result" escapes its price.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from environments.bundles import Bundle, builtin
from environments.engines import Engine
from environments.image import Image
from evals.hacks.base import FAILED, PORT, Hack
from evals.hacks.gaps import gaps
from evals.hacks.gullible import GullibleJudge
from evals.hacks.numbered import NUMBERS
from evals.hacks.plain import plain_verdict
from evals.hacks.rules import idle_parts
from evals.judge import Judge
from evals.verify import Ran, Verifier
from schemas.execution import Execution, Limits
from schemas.rewards import RewardRules
from schemas.task import Task
from schemas.verdict import Status, Verdict

LIMITS = {
    "cases": Limits(cpu_s=3),
    "pytest_files": Limits(cpu_s=10, wall_s=40),
    "repository": Limits(cpu_s=20, wall_s=60, pids=64),
}
ERROR = "error"


class Seen(NamedTuple):
    """What a verdict says about a submission: whether it got what it wanted, and as what it is known."""

    passed: bool
    classes: frozenset[str]
    detail: str


@dataclass(frozen=True)
class Finding:
    hack: Hack
    cheat: Seen
    honest: Seen
    plain: str | None

    @property
    def caught(self) -> bool:
        return not self.cheat.passed and self.hack.expected in self.cheat.classes

    @property
    def twin_passes(self) -> bool:
        return self.honest.passed and not self.honest.classes

    @property
    def good(self) -> bool:
        return self.caught and self.twin_passes


class Ground:
    """Where hacks are tried: an engine, an image, and the verifier bundles (`folders` replaces those that ship)."""

    def __init__(self, engine: Engine, image: Image, folders: dict[str, Path] | None = None) -> None:
        self.engine, self.image = engine, image
        self._folders = folders or {}
        self._bundles: dict[str, Bundle] = {}

    def __enter__(self) -> Ground:
        return self

    def __exit__(self, *_: object) -> None:
        for bundle in self._bundles.values():
            bundle.close()

    def bundle(self, name: str) -> Bundle:
        if name not in self._bundles:
            self._bundles[name] = Bundle(self._folders.get(name) or builtin(name))
        return self._bundles[name]

    def verifier(self, name: str, limits: Limits | None = None) -> Verifier:
        image, limits = self.image, limits or LIMITS[name]
        return Verifier(self.bundle(name), image.environment, image.root, self.engine, limits)

    def judge(self, hack: Hack, *submissions: tuple[Task, dict[str, str]]) -> list[Seen]:
        """What the verifier of this hack says of each, all of them at once after the earlier attempt."""
        if hack.by == "rules":
            return [_seen_rules(submission) for _, submission in submissions]
        if hack.by == "proof":
            return [_seen_proof(self.verifier("cases"), task) for task, _ in submissions]
        if hack.by == "judge":
            return list(map(seen, Judge(self.bundle("judge"), GullibleJudge()).judge_many(list(submissions))))
        verifier = self.verifier(hack.by, hack.limits)
        if hack.earlier is not None:
            verifier.judge_many([(hack.task, hack.earlier)])
        return list(map(seen, verifier.judge_many(list(submissions), at_once)))


def at_once(function: Callable[[Execution], Ran], executions: Iterable[Execution]) -> list[Ran]:
    """A fan-out over the cores of this machine."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(function, executions))


def run_hacks(ground: Ground, hacks: Iterable[Hack], plain: bool = True) -> Iterator[Finding]:
    """One finding a hack, as they come. `plain`: also what plain pytest says of the cheat."""
    for hack in hacks:
        yield run_hack(ground, hack, plain)


def run_gaps(ground: Ground) -> list[tuple[Finding, str]]:
    """The known gaps, each with the reason why it gets through."""
    return [(run_hack(ground, hack, plain=False), why) for hack, why in gaps()]


def caught_numbers(findings: Iterable[Finding]) -> list[int]:
    """Numbers of the list (1 to 40) of which every variant was caught, and every twin passed."""
    by_number: dict[int, list[bool]] = {}
    for finding in findings:
        by_number.setdefault(finding.hack.number, []).append(finding.good)
    return sorted(number for number, good in by_number.items() if number in NUMBERS and all(good))


def run_hack(ground: Ground, hack: Hack, plain: bool = True) -> Finding:
    with _surroundings(hack):
        cheat, honest = ground.judge(hack, (hack.task, hack.cheat), (hack.twin_task or hack.task, hack.honest))
        said = plain_verdict(ground.engine, ground.image, hack, hack.cheat) if plain else None
        return Finding(hack, cheat, honest, said)


def seen(verdict: Verdict) -> Seen:
    """The classes of a verdict: its violations, else FAILED or error; none when it passed."""
    if verdict.status is not Status.SCORED:
        return Seen(False, frozenset({ERROR}), verdict.reason or "")
    kinds = frozenset(violation.kind for violation in verdict.violations)
    details = [violation.detail for violation in verdict.violations]
    details += [check.detail for check in verdict.checks if not check.passed]
    classes = kinds or (frozenset() if verdict.passed else frozenset({FAILED}))
    return Seen(bool(verdict.passed), classes, details[0] if details else "")


def _seen_proof(verifier: Verifier, task: Task) -> Seen:
    """The proof that a task can tell right from wrong: gold passes, the start and the wrong outcome do not."""
    gold, start, wrong = verifier.judge_many([(task, task.gold), (task, {}), (task, task.wrong)])
    if any(verdict.status is not Status.SCORED for verdict in (gold, start, wrong)):
        return Seen(False, frozenset({ERROR}), gold.reason or start.reason or wrong.reason or "")
    if wrong.passed:
        return Seen(False, frozenset({"weak_tests"}), "the wrong outcome passes: the task is quarantined")
    proven = bool(gold.passed and not start.passed)
    return Seen(proven, frozenset() if proven else frozenset({FAILED}), "")


def _seen_rules(submission: dict[str, str]) -> Seen:
    rules = RewardRules.model_validate(json.loads(submission["rewards.json"]))
    idle = idle_parts(rules)
    return Seen(not idle, frozenset({"idle_part"} if idle else ()), ", ".join(idle))


@contextlib.contextmanager
def _surroundings(hack: Hack) -> Iterator[None]:
    """A secret in the grader's own environment, a server on this machine's loopback: what must not reach the sandbox."""
    with contextlib.ExitStack() as stack:
        if hack.secret is not None:
            name, value = hack.secret
            before = os.environ.get(name)
            os.environ[name] = value
            stack.callback(_restore, name, before)
        if hack.serves is not None:
            stack.enter_context(_serving(hack.serves))
        yield


def _restore(name: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before


@contextlib.contextmanager
def _serving(text: str) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            return None

    ThreadingHTTPServer.allow_reuse_address = True
    with ThreadingHTTPServer(("127.0.0.1", PORT), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()

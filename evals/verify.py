"""Host side of a verifier: asks the bundle what to run, runs it on the engine, hands back the results, keeps verdicts.

A verdict is keyed by outcome, task, image, limits and verifier: the same key gives the same verdict, from memory if it
was judged before. Infrastructure failure is retried and then an error verdict without a score, never a zero. What the
machine may have done counts against the attempt only if it recurs: a wall time-out or a signal is repeated once, alone;
a sandbox that died again and again is tried once more after the task's gold has passed on the same engine. Many attempts
that are judged at once share sandboxes where the bundle knows how to keep them apart (together.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from environments.bundles import Bundle, Reply
from environments.engines import Engine
from environments.runner import MAYBE_THE_MACHINE
from evals.together import MOST, Wanted, most_together, parts_of, run_together
from schemas.base import digest_of
from schemas.errors import InfrastructureError
from schemas.execution import Environment, Execution, ExecutionResult, Limits, Stop
from schemas.task import Task
from schemas.verdict import Status, Verdict

Item = tuple[Task, dict[str, str]]
In = TypeVar("In")
Out = TypeVar("Out")
FanOut = Callable[[Callable[[Execution], "Ran"], Iterable[Execution]], Iterable["Ran"]]
Ran = ExecutionResult | str  # the result, or why there is none
DIED = ExecutionResult(stop=Stop.SIGNAL, exit_code=None, stdout="", stderr="the sandbox died")


def in_turn(function: Callable[[In], Out], items: Iterable[In]) -> list[Out]:
    """The smallest fan-out: one after the other."""
    return list(map(function, items))


@dataclass
class _Case:
    """One item on its way to a verdict."""

    task: Task
    outcome: dict[str, str]
    key: tuple[str, ...]
    id: str
    executions: list[Execution] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)  # of the executions
    verdict: Verdict | None = None


class Verifier:
    """A verifier bundle on an engine. Safe to share between threads. Close the bundle, not this.

    `telemetry`: what its sandboxes took, tries that failed not among it.
    """

    def __init__(
        self,
        bundle: Bundle,
        environment: Environment,
        root: Path,
        engine: Engine,
        limits: Limits,
        role: Literal["training", "audit"] = "training",
        retries: int = 2,
    ) -> None:
        self.bundle = bundle
        self.environment = environment
        self.limits = limits
        self.role = role
        self._limits_digest = limits.digest()
        self._together = most_together(bundle)
        self.telemetry: dict[str, float] = {"executions": 0, "cpu_s": 0.0}
        self._counting = threading.Lock()
        self._run = partial(_run, engine, root, environment, limits, retries, self._count)
        self._memo: dict[tuple[str, ...], Verdict] = {}

    def _count(self, measured: Mapping[str, float]) -> None:
        with self._counting:
            self.telemetry["executions"] += 1
            self.telemetry["cpu_s"] += measured.get("cpu_s", 0.0)

    def judge_many(self, items: list[Item], fan_out: FanOut = in_turn, repeat: int = 0) -> list[Verdict]:
        """Verdicts in the order of the items. Equal items are judged once.

        `fan_out(function, executions)` is a map over all executions of all items; where it takes them one by one, as a pool
        of threads does, the first run while the next are made. `repeat` > 0 judges the same key
        again (a canary, a test of stability) and is written into the verdict. Raises nothing for a broken sandbox or
        bundle: that is an error verdict, which is not remembered.
        """
        keys = self._keys(items, repeat)
        fresh = {
            key: _Case(task, outcome, key, self.bundle.fresh_id())
            for key, (task, outcome) in zip(keys, items, strict=True)
            if key not in self._memo
        }
        results = self._run_all(list(fresh.values()), fan_out)
        opened = [case for case in fresh.values() if case.verdict is None]
        self._blame(opened, results)
        self._settle(opened, results)
        found = {key: case.verdict for key, case in fresh.items() if case.verdict is not None}
        self._memo.update({key: verdict for key, verdict in found.items() if verdict.status is not Status.ERROR})
        return [found.get(key) or self._memo[key] for key in keys]

    def _keys(self, items: list[Item], repeat: int) -> list[tuple[str, ...]]:
        tasks = {id(task): task for task, _ in items}  # many attempts at one task: its digest is made once
        digests = {name: task.digest() for name, task in tasks.items()}
        return [self._key(digests[id(task)], outcome, repeat) for task, outcome in items]

    def _key(self, task_digest: str, outcome: dict[str, str], repeat: int) -> tuple[str, ...]:
        fixed = (self.environment.layer, self._limits_digest, self.bundle.digest)
        return (digest_of(outcome), task_digest, *fixed, str(repeat))

    def _open(self, cases: Sequence[_Case]) -> None:
        """Each gets its executions, a verdict, or an error verdict."""
        requests = [
            {
                "op": "judge",
                "id": case.id,
                "task": case.task.judged(),
                "start": case.task.files,
                "outcome": case.outcome,
            }
            for case in cases
        ]
        for case, reply in zip(cases, self.bundle.ask_each(requests), strict=True):
            self._take(case, reply)

    def _settle(self, cases: list[_Case], results: dict[str, Ran]) -> None:
        """Each gets a verdict, or an error verdict."""
        asked = []
        for case in cases:
            ran = [results[digest] for digest in case.digests]
            if broken := next((result for result in ran if isinstance(result, str)), None):
                case.verdict = self._error(case, broken)
            else:
                rows = [result.model_dump(mode="json") for result in ran if isinstance(result, ExecutionResult)]
                asked.append((case, {"op": "results", "id": case.id, "results": rows}))
        replies = self.bundle.ask_each([request for _, request in asked])
        for (case, _), reply in zip(asked, replies, strict=True):
            self._take(case, reply)

    def _take(self, case: _Case, reply: Reply) -> None:
        """What came of a question: executions, a verdict, or an error verdict."""
        try:
            if isinstance(reply, InfrastructureError):
                case.verdict = self._error(case, str(reply))
            elif "verdict" in reply:
                case.verdict = self._verdict(case, reply["verdict"])
            else:
                case.executions = [Execution.model_validate(wanted) for wanted in reply["execute"]]
                case.digests = [execution.digest() for execution in case.executions]
        except (ValidationError, KeyError, TypeError) as error:
            who, first = f"verifier {self.bundle.name}@{self.bundle.version}", str(error).splitlines()[0]
            case.verdict = self._error(case, f"{who} answered garbage: {first}")

    def _run_all(self, cases: list[_Case], fan_out: FanOut) -> dict[str, Ran]:
        """Result by digest of execution. Equal ones (a task's start tree) run once; what may be the machine's again, alone.

        The cases are opened part by part, as the fan-out takes the executions: the next while those of the last run.
        """
        unique: dict[str, Wanted] = {}
        parts = (self._wanted(part, unique) for part in parts_of(cases, self._together or MOST))
        together: dict[str, ExecutionResult] = {}
        if self._together:
            together = run_together(self.bundle, self.limits, self._run, unique, parts, fan_out, self._together)
            parts = ([digest] for digest in list(unique) if digest not in together)
        alone: list[str] = []

        def executions() -> Iterator[Execution]:
            for part in parts:
                for digest in part:
                    alone.append(digest)
                    yield unique[digest].execution

        answers = list(fan_out(self._run, executions()))
        results = dict(zip(alone, answers, strict=True))
        for digest, result in results.items():
            if isinstance(result, ExecutionResult) and result.stop in MAYBE_THE_MACHINE:
                results[digest] = self._run(unique[digest].execution)
        return {**together, **results}

    def _wanted(self, cases: Sequence[_Case], unique: dict[str, Wanted]) -> list[str]:
        """Open the cases; the digests of executions that none before them needs, which are added."""
        self._open(cases)
        before = len(unique)
        for case in cases:
            for number, (digest, execution) in enumerate(zip(case.digests, case.executions, strict=True)):
                unique.setdefault(digest, Wanted(case.id, number, execution))
        return list(unique)[before:]

    def _blame(self, cases: list[_Case], results: dict[str, Ran]) -> None:
        """Whoever kills its sandbox must not get off without a verdict: it dies under this outcome, and gold passes now.

        Stops at the first gold that does not pass: then the machine is broken, and all that is lost stays an error.
        """
        for case in cases:
            each = dict(zip(case.digests, case.executions, strict=True))
            lost = [digest for digest in each if isinstance(results[digest], str)]
            if not lost or not case.task.gold or case.outcome == case.task.gold:
                continue
            if not self._gold_passes(case):
                return
            for digest in lost:
                again = self._run(each[digest])
                results[digest] = DIED if isinstance(again, str) else again

    def _gold_passes(self, case: _Case) -> bool:
        """The gold of its task, judged now, whatever is remembered."""
        gold = _Case(case.task, case.task.gold, self._key(case.key[1], case.task.gold, 0), self.bundle.fresh_id())
        self._open([gold])
        if gold.verdict is None:
            ran = [self._run(execution) for execution in gold.executions]
            self._settle([gold], dict(zip(gold.digests, ran, strict=True)))
        return bool(gold.verdict and gold.verdict.passed)

    def _verdict(self, case: _Case, said: dict[str, Any]) -> Verdict:
        return Verdict.model_validate({**said, **self._names(case)})

    def _error(self, case: _Case, reason: str) -> Verdict:
        return Verdict.model_validate({"status": "error", "reason": reason[:500], **self._names(case)})

    def _names(self, case: _Case) -> dict[str, Any]:
        outcome, task, image, limits, verifier, repeat = case.key
        names = {"outcome": outcome, "task": task, "image": image, "limits": limits, "verifier": verifier}
        return {**names, "role": self.role, "repeat": int(repeat)}


def _run(
    engine: Engine, root: Path, environment: Environment, limits: Limits, retries: int,
    count: Callable[[Mapping[str, float]], None], execution: Execution,
) -> Ran:  # fmt: skip
    """One execution, tried `1 + retries` times. Infrastructure failure comes back as a sentence, not as an exception,
    so that one broken sandbox does not lose the others of a fan-out."""
    reason = ""
    for _ in range(1 + retries):
        try:
            outcome = engine.run(root, environment, execution, limits)
        except InfrastructureError as error:
            reason = str(error)
        else:
            count(outcome.telemetry)
            return outcome.result
    return f"{reason} (tried {1 + retries} times)"

"""Host side of a verifier: asks the bundle what to run, runs it on the engine, hands back the results, keeps verdicts.

A verdict is keyed by outcome, task, image, limits and verifier: the same key gives the same verdict, from memory if it
was judged before. Infrastructure failure is retried and then an error verdict without a score, never a zero. What the
machine may have done counts against the attempt only if it recurs: a wall time-out or a signal is repeated once, alone;
a sandbox that died again and again is tried once more after the task's gold has passed on the same engine. Many attempts
that are judged at once share sandboxes where the bundle knows how to keep them apart (together.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from environments.bundles import Bundle
from environments.engines import Engine
from environments.runner import MAYBE_THE_MACHINE
from evals.together import Wanted, can_pack, run_together
from schemas.base import digest_of
from schemas.errors import InfrastructureError
from schemas.execution import Environment, Execution, ExecutionResult, Limits, Stop
from schemas.task import Task
from schemas.verdict import Status, Verdict

Item = tuple[Task, dict[str, str]]
In = TypeVar("In")
Out = TypeVar("Out")
FanOut = Callable[[Callable[[Execution], "Ran"], list[Execution]], Iterable["Ran"]]
Ran = ExecutionResult | str  # the result, or why there is none
DIED = ExecutionResult(stop=Stop.SIGNAL, exit_code=None, stdout="", stderr="the sandbox died")


def in_turn(function: Callable[[In], Out], items: list[In]) -> list[Out]:
    """The smallest fan-out: one after the other."""
    return list(map(function, items))


@dataclass
class _Case:
    """One item on its way to a verdict."""

    task: Task
    outcome: dict[str, str]
    key: tuple[str, ...]
    executions: list[Execution] = field(default_factory=list)
    verdict: Verdict | None = None
    id: str = ""


class Verifier:
    """A verifier bundle on an engine. Safe to share between threads. Close the bundle, not this."""

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
        self._packs = can_pack(bundle)
        self._run = partial(_run, engine, root, environment, limits, retries)
        self._memo: dict[tuple[str, ...], Verdict] = {}

    def judge_many(self, items: list[Item], fan_out: FanOut = in_turn, repeat: int = 0) -> list[Verdict]:
        """Verdicts in the order of the items. Equal items are judged once.

        `fan_out(function, executions)` is a map over all executions of all items. `repeat` > 0 judges the same key
        again (a canary, a test of stability) and is written into the verdict. Raises nothing for a broken sandbox or
        bundle: that is an error verdict, which is not remembered.
        """
        keys = [self._key(task, outcome, repeat) for task, outcome in items]
        fresh = {
            key: _Case(task, outcome, key)
            for key, (task, outcome) in zip(keys, items, strict=True)
            if key not in self._memo
        }
        for case in fresh.values():
            self._open(case)
        results = self._run_all([case for case in fresh.values() if case.verdict is None], fan_out)
        self._blame([case for case in fresh.values() if case.verdict is None], results)
        for case in fresh.values():
            if case.verdict is None:
                self._settle(case, [results[execution.digest()] for execution in case.executions])
        found = {key: case.verdict for key, case in fresh.items() if case.verdict is not None}
        self._memo.update({key: verdict for key, verdict in found.items() if verdict.status is not Status.ERROR})
        return [found.get(key) or self._memo[key] for key in keys]

    def _key(self, task: Task, outcome: dict[str, str], repeat: int) -> tuple[str, ...]:
        return (
            digest_of(outcome),
            task.digest(),
            self.environment.layer,
            self.limits.digest(),
            self.bundle.digest,
            str(repeat),
        )

    def _open(self, case: _Case) -> None:
        request = {"op": "judge", "task": case.task.judged(), "start": case.task.files, "outcome": case.outcome}
        self._take(case, request)

    def _settle(self, case: _Case, results: list[Ran]) -> None:
        broken = next((result for result in results if isinstance(result, str)), None)
        if broken is not None:
            case.verdict = self._error(case, broken)
            return
        rows = [result.model_dump(mode="json") for result in results if isinstance(result, ExecutionResult)]
        self._take(case, {"op": "results", "results": rows})

    def _take(self, case: _Case, request: dict[str, Any]) -> None:
        """Ask, and take what comes: executions, a verdict, or an error verdict."""
        case.id = case.id or self.bundle.fresh_id()
        try:
            reply = self.bundle.ask({**request, "id": case.id})
            if "verdict" in reply:
                case.verdict = self._verdict(case, reply["verdict"])
            else:
                case.executions = [Execution.model_validate(wanted) for wanted in reply["execute"]]
        except InfrastructureError as error:
            case.verdict = self._error(case, str(error))
        except (ValidationError, KeyError, TypeError) as error:
            who, first = f"verifier {self.bundle.name}@{self.bundle.version}", str(error).splitlines()[0]
            case.verdict = self._error(case, f"{who} answered garbage: {first}")

    def _run_all(self, cases: list[_Case], fan_out: FanOut) -> dict[str, Ran]:
        """Result by digest of execution. Equal ones (a task's start tree) run once; what may be the machine's again, alone."""
        unique: dict[str, Wanted] = {}
        for case in cases:
            for number, execution in enumerate(case.executions):
                unique.setdefault(execution.digest(), Wanted(case.id, number, execution))
        together = run_together(self.bundle, self.limits, self._run, unique, fan_out) if self._packs else {}
        alone = {digest: wanted.execution for digest, wanted in unique.items() if digest not in together}
        results = dict(zip(alone, fan_out(self._run, list(alone.values())), strict=True)) if alone else {}
        for digest, result in results.items():
            if isinstance(result, ExecutionResult) and result.stop in MAYBE_THE_MACHINE:
                results[digest] = self._run(alone[digest])
        return {**together, **results}

    def _blame(self, cases: list[_Case], results: dict[str, Ran]) -> None:
        """Whoever kills its sandbox must not get off without a verdict: it dies under this outcome, and gold passes now.

        Stops at the first gold that does not pass: then the machine is broken, and all that is lost stays an error.
        """
        for case in cases:
            lost = [execution for execution in case.executions if isinstance(results[execution.digest()], str)]
            if not lost or not case.task.gold or case.outcome == case.task.gold:
                continue
            if not self._gold_passes(case.task):
                return
            for execution in lost:
                again = self._run(execution)
                results[execution.digest()] = DIED if isinstance(again, str) else again

    def _gold_passes(self, task: Task) -> bool:
        """Judged now, whatever is remembered."""
        gold = _Case(task, task.gold, self._key(task, task.gold, 0))
        self._open(gold)
        if gold.verdict is None:
            self._settle(gold, [self._run(execution) for execution in gold.executions])
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
    engine: Engine, root: Path, environment: Environment, limits: Limits, retries: int, execution: Execution
) -> Ran:
    """One execution, tried `1 + retries` times. Infrastructure failure comes back as a sentence, not as an exception,
    so that one broken sandbox does not lose the others of a fan-out."""
    reason = ""
    for _ in range(1 + retries):
        try:
            return engine.run(root, environment, execution, limits).result
        except InfrastructureError as error:
            reason = str(error)
    return f"{reason} (tried {1 + retries} times)"

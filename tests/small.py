"""Real records, small: a task, and attempts at it in every shape that the tests need."""

from __future__ import annotations

from typing import Any

from schemas.base import digest_of
from schemas.task import Case, Split, Task
from schemas.trajectory import Attempt, Purpose, Sampling, Trajectory, Turn
from schemas.verdict import Check, Conduct, Reward, Status, Verdict, Violation

START, GOLD = "def f(x):\n    return x - 1\n", "def f(x):\n    return x + 1\n"
CUT = digest_of("any")


def task(name: str = "f", variant: str = "arith_1", family: str = "repair.value", **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": f"repair/{name}/{variant}",
        "kind": "function",
        "family": family,
        "skill": family.split(".")[0],
        "origin": name,
        "split": Split.DEV,
        "statement": f"Repair {name}: it must return the next number.",
        "files": {"solution.py": START.replace("f(", f"{name}(")},
        "editable": ["solution.py"],
        "entry": name,
        "visible": [Case(args=[1], expected=2)],
        "hidden": [Case(args=[5], expected=6)],
        "gold": {"solution.py": GOLD.replace("f(", f"{name}(")},
        "wrong": {"solution.py": "def f(x):\n    return x\n"},
        "made_by": "mutate:arith",
    }
    return Task(**{**fields, **changes})


def attempt(
    of: Task,
    number: int = 0,
    passed: bool | None = False,
    *,
    errors: tuple[str | None, ...] = (None,),
    tool_errors: int = 0,
    visible: bool | None = None,
    outcome: dict[str, str] | None = None,
    violations: tuple[str, ...] = (),
    limit_hit: Any = None,
    audit: bool | None = None,
    status: str = "scored",
    reward: float | None = None,
    **conduct: Any,
) -> Attempt:
    """`errors`: parse error of each turn. passed None is not allowed with status scored."""
    outcome = {"solution.py": f"# {number}\n"} if outcome is None else outcome
    turns = [_turn(i, e, i < tool_errors, visible) for i, e in enumerate(errors)]
    behaviour = {
        "turns": len(errors),
        "tool_calls": 0,
        "invalid_calls": sum(e is not None for e in errors),
        "generated_tokens": 2 * len(errors),
        "submitted": False,
        "unchanged": not outcome,
    }
    trajectory = Trajectory(
        id=f"evaluation-{digest_of([of.id, number])[:16]}",
        purpose=Purpose.EVALUATION,
        task_id=of.id,
        task=of.digest(),
        split=of.split,
        family=of.family,
        origin=of.origin,
        harness=CUT,
        seed=number,
        sampling=Sampling(),
        status="error" if status == "lost" else "done",
        turns=turns,
        stop="turn_limit",
        outcome=outcome,
        outcome_digest=digest_of(outcome),
        conduct=Conduct(**{**behaviour, **conduct}),
    )
    verdict = _verdict(of, trajectory, status, bool(passed), violations, limit_hit, "training")
    second = None if audit is None else _verdict(of, trajectory, "scored", audit, (), None, "audit")
    value = (float(bool(passed)) if reward is None else reward) if status == "scored" else None
    price = Reward(trajectory=trajectory.id, verdict=verdict.digest(), rules=CUT, value=value)
    return Attempt(trajectory=trajectory, verdict=verdict, audit=second, reward=price)


def _turn(index: int, parse_error: str | None, tool_error: bool, visible: bool | None) -> Turn:
    return Turn(
        index=index,
        policy=CUT,
        messages=[{"role": "user", "content": "x"}],
        rendered="x",
        prompt_ids=[1],
        completion_ids=[2, 3],
        logprobs=[-0.1, -0.2],
        text="y",
        stop="eos",
        parse_error=parse_error,
        tool_error="no such tool" if tool_error else None,
        visible=None if visible is None else {"passed": int(visible), "failed": int(not visible), "first": None},
        tree=CUT,
    )


def _verdict(
    of: Task, trajectory: Trajectory, status: str, passed: bool, violations: tuple[str, ...], limit_hit: Any, role: Any
) -> Verdict:
    scored = status == "scored"
    passed = passed and not violations
    checks = [Check(name="hidden_0", role="f2p", passed=passed or bool(violations))] if scored else []
    return Verdict(
        outcome=trajectory.outcome_digest,
        task=of.digest(),
        image=CUT,
        limits=CUT,
        verifier=CUT,
        role=role,
        status=Status.SCORED if scored else Status.UNSCORED if status == "unscored" else Status.ERROR,
        score=float(passed) if scored else None,
        passed=passed if scored else None,
        checks=checks,
        violations=[Violation(kind=kind) for kind in violations] if scored else [],
        limit_hit=limit_hit,
        reason=None if scored else status,
    )

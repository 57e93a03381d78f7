"""What one failure shows, as typed facts: the only thing that attribution rules see.

A failure is a scored attempt that did not pass, a pass that the audit verifier contests or that training data had given
away, or an attempt without a score (error, unscored), which is kept apart by its status and never counts as a failure of
the model. These are the facts of the log; what experiments find is added to them by stages/attribute.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from evals.metrics import pass_at_k, pass_at_k_interval
from schemas.bucket import MAX_FAILED_TESTS, MAX_TEST_NAME, Evidence
from schemas.errors import InputError
from schemas.task import Split, Task
from schemas.trajectory import Attempt, Trajectory, Turn
from schemas.verdict import Check, Status


def collect(
    attempts: Sequence[Attempt],
    tasks: Mapping[str, Task],
    trained_origins: Mapping[str, int],
    flipped: Collection[str] = (),
    *,
    contaminated: Collection[str] = (),
    skills: Collection[str] | None = None,
) -> list[Evidence]:
    """Evidence of every failure among `attempts`, which are all of one policy; sorted by trajectory id.

    `tasks`: id -> task. `trained_origins`: family -> training origins. `flipped`: ids of trajectories whose outcome got
    another verdict in a repeat; equal outcomes of one task with different verdicts are found here as well.
    `contaminated`: ids of tasks that measure and of which a training task is a near copy. `skills`: those that the
    goal names or trains; None when no goal is at hand.
    InputError for an attempt whose task is unknown.
    """
    context = _Context.of(attempts)
    context.contaminated, context.skills = frozenset(contaminated), None if skills is None else frozenset(skills)
    found = []
    for attempt in sorted(attempts, key=lambda a: a.trajectory.id):
        trajectory = attempt.trajectory
        if trajectory.task_id not in tasks:
            raise InputError(f"trajectory {trajectory.id}: task {trajectory.task_id} is not in the task set; add it")
        if is_failure(attempt) or trajectory.task_id in context.contaminated:
            unstable = trajectory.id in flipped or context.outcome(attempt) in context.flipped
            origins = trained_origins.get(trajectory.family, 0)
            found.append(_evidence(attempt, tasks[trajectory.task_id], context, origins, unstable))
    return found


def is_failure(attempt: Attempt) -> bool:
    """Anything but a pass that no audit contests."""
    return _status(attempt) != "scored" or not attempt.verdict.passed or _audit_differs(attempt)


@dataclass
class _Context:
    """Counts over all attempts, passes included."""

    task: dict[str, tuple[int, int]] = field(default_factory=dict)  # task -> (scored, passes)
    turns: dict[str, tuple[int, int]] = field(default_factory=dict)  # family -> (turns, parsed)
    families: dict[str, dict[str, bool]] = field(default_factory=lambda: defaultdict(dict))  # family -> task -> solved
    flipped: set[tuple[str, str]] = field(default_factory=set)
    rewards: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # task -> what its attempts got
    contaminated: frozenset[str] = frozenset()
    skills: frozenset[str] | None = None

    @classmethod
    def of(cls, attempts: Iterable[Attempt]) -> _Context:
        context = cls()
        verdicts: dict[tuple[str, str], set[bool]] = defaultdict(set)
        for attempt in attempts:
            trajectory = attempt.trajectory
            if trajectory.status == "done":
                turns, parsed = context.turns.get(trajectory.family, (0, 0))
                parsed += sum(turn.parse_error is None for turn in trajectory.turns)
                context.turns[trajectory.family] = (turns + len(trajectory.turns), parsed)
            if attempt.reward.value is not None:
                context.rewards[trajectory.task_id].append(attempt.reward.value)
            if _status(attempt) == "scored":
                passed = bool(attempt.verdict.passed)
                n, c = context.task.get(trajectory.task_id, (0, 0))
                context.task[trajectory.task_id] = (n + 1, c + passed)
                family = context.families[trajectory.family]
                family[trajectory.task_id] = family.get(trajectory.task_id, False) or passed
                verdicts[cls.outcome(attempt)].add(passed)
        context.flipped = {outcome for outcome, answers in verdicts.items() if len(answers) > 1}
        return context

    @staticmethod
    def outcome(attempt: Attempt) -> tuple[str, str]:
        return attempt.trajectory.task_id, attempt.trajectory.outcome_digest

    def is_meant(self, task: Task) -> bool:
        """Boundary and retention suites measure other skills on purpose."""
        kept = task.split in (Split.BOUNDARY, Split.RETENTION)
        return self.skills is None or kept or task.skill in self.skills

    def spread(self, task: str) -> float | None:
        rewards = self.rewards.get(task, [])
        return max(rewards) - min(rewards) if len(rewards) > 1 else None

    def parse_rate(self, family: str) -> float | None:
        turns, parsed = self.turns.get(family, (0, 0))
        return parsed / turns if turns else None

    def family_pass(self, family: str) -> float | None:
        tasks = self.families.get(family, {})
        return sum(tasks.values()) / len(tasks) if tasks else None


def _evidence(attempt: Attempt, task: Task, context: _Context, origins: int, unstable: bool) -> Evidence:
    trajectory, verdict, conduct = attempt.trajectory, attempt.verdict, attempt.trajectory.conduct
    n, c = context.task.get(trajectory.task_id, (0, 0))
    return Evidence(
        trajectory=trajectory.id,
        task_id=trajectory.task_id,
        family=trajectory.family,
        origin=trajectory.origin,
        status=_status(attempt),
        parse_errors=sum(turn.parse_error is not None for turn in trajectory.turns),
        turns=len(trajectory.turns),
        tool_errors=sum(turn.tool_error is not None for turn in trajectory.turns),
        unknown_tools=sum(bool(_NO_SUCH_TOOL.search(turn.parse_error or "")) for turn in trajectory.turns),
        wrong_arguments=sum(_refuses_arguments(turn) for turn in trajectory.turns),
        forbidden=len(conduct.forbidden),
        violations=sorted({violation.kind for violation in verdict.violations}),
        failed_checks=sum(not check.passed for check in verdict.checks),
        passed_checks=sum(check.passed for check in verdict.checks),
        failed_tests=_failed_tests(verdict.checks),
        limit_hit=verdict.limit_hit,
        truncated=conduct.truncated_turns > 0,
        submitted=conduct.submitted,
        unchanged=conduct.unchanged,
        visible_passed=_visible_passed(trajectory),
        touched=sorted(path for path, text in trajectory.outcome.items() if task.files.get(path) != text),
        **tally(n, c),
        family_parse_rate=context.parse_rate(trajectory.family),
        family_pass=context.family_pass(trajectory.family),
        trained_origins=origins,
        verdict_flipped=unstable,
        audit_differs=_audit_differs(attempt),
        passed=bool(verdict.passed),
        stop=trajectory.stop,
        first_bad_turn=first_bad_turn(trajectory),
        observation_truncated=any(turn.observation_truncated for turn in trajectory.turns),
        context_full=trajectory.stop == "token_limit",
        wrote=any(task.files.get(path) != text for path, text in trajectory.outcome.items()),
        group_spread=context.spread(trajectory.task_id),
        contaminated=trajectory.task_id in context.contaminated,
        in_capabilities=context.is_meant(task),
        sandbox_event=_event(trajectory.reason or verdict.reason) if _status(attempt) == "error" else None,
        noise_hits=trajectory.hits(),
        noisy=sum(bool(turn.tool_error and _NOISE.search(turn.tool_error)) for turn in trajectory.turns),
    )


def _failed_tests(checks: Iterable[Check]) -> list[str]:
    failed = islice((check for check in checks if not check.passed), MAX_FAILED_TESTS)
    return [check.name[:MAX_TEST_NAME] for check in failed]


def tally(n: int, c: int) -> dict[str, Any]:
    """What `c` passes of `n` attempts at a task say, as fields of the evidence."""
    low, high = pass_at_k_interval(n, c, max(n, 1)) or (None, None)
    known = {"task_passes": c, "task_attempts": n, "pass_at_k": pass_at_k(n, c, n) if n else None}
    return {**known, "pass_at_k_low": low, "pass_at_k_high": high}


_NOISE = re.compile(r"timed? ?out|unavailable|connection|try again|temporar|lost|refused", re.IGNORECASE)
# What harnesses say of a call that is JSON and no call of theirs (environments/harnesses/tools/main.py, parse).
_NO_SUCH_TOOL = re.compile(r'"tool" must be one of')
_NO_SUCH_ARGUMENT = re.compile(r'^\w+ (needs|takes no) "')
_EVENTS = {
    "disk": r"no space|disk|quota", "server": r"server|connection|refused|vllm|http|unreachable",
    "memory": r"memory|oom", "wall": r"time-?out|timed out|wall", "sandbox": r"sandbox|bubblewrap|docker|container|killed",
    "harness": r"harness|bundle",
}  # fmt: skip


def _refuses_arguments(turn: Turn) -> bool:
    """Of a tool that is there: by the harness, or by the tool itself where that speaks of the call and not of its own failure."""
    if turn.parse_error:
        return bool(_NO_SUCH_ARGUMENT.search(turn.parse_error))
    own = turn.forbidden or _NOISE.search(turn.tool_error or "") or any(hit != "clean" for hit in turn.noise)
    return bool(turn.tool_error and (turn.call or {}).get("arguments") and not own)


def _event(reason: str | None) -> str:
    """The kind of what broke, by the words of the reason; `other` when they say none."""
    return next((kind for kind, words in _EVENTS.items() if re.search(words, reason or "", re.IGNORECASE)), "other")


def first_bad_turn(trajectory: Trajectory) -> int | None:
    """The first turn that did not parse, was cut, was refused or failed as a call; else the first whose visible tests
    failed after it; None when no turn shows anything."""
    for turn in trajectory.turns:
        if turn.parse_error or turn.forbidden or turn.tool_error or turn.stop == "length":
            return turn.index
    return next((t.index for t in trajectory.turns if (v := t.tests()) is not None and v.get("failed") != 0), None)


def _status(attempt: Attempt) -> Literal["scored", "unscored", "error"]:
    if attempt.trajectory.status == "error" or attempt.verdict.status is Status.ERROR:
        return "error"
    return "scored" if attempt.verdict.status is Status.SCORED else "unscored"


def _audit_differs(attempt: Attempt) -> bool:
    """Both verifiers scored it and disagree. An audit that broke, or that the machine was too slow for, contests nothing."""
    if not audited(attempt) or _status(attempt) != "scored" or attempt.audit is None:
        return False
    return attempt.audit.passed != attempt.verdict.passed


def audited(attempt: Attempt) -> bool:
    """Whether an audit gave a word on it."""
    audit = attempt.audit
    return audit is not None and audit.status is Status.SCORED and audit.limit_hit != "wall"


def _visible_passed(trajectory: Trajectory) -> bool | None:
    """Of the last visible run, if the tree did not change after it; None when no run saw the outcome."""
    for turn in reversed(trajectory.turns):
        if (visible := turn.tests()) is not None:
            seen = turn.tree == trajectory.turns[-1].tree
            return visible.get("failed") == 0 if seen else None
    return None

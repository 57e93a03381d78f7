"""A deterministic policy that knows its tasks: for gold demonstrations, canaries and whole loops in seconds.

It speaks the formats of both harnesses that ship: fenced (```python fence, `Answer:`) and tools (one JSON call a turn),
told apart by the context it is shown. Strategies: gold, wrong (the task's plausible wrong outcome), noop (changes
nothing), garbage (parses as no action), mixed (gold for a share of the (seed, task) pairs, else one of the others), seldom
(gold for a share, else wrong), visible (gold for a share, else code that returns what the visible cases want and no more),
shaken (gold, taken back for the wrong outcome where code is asked for again), hinted (gold where it is told the place, else
wrong), drilled (gold in tool calls, wrong in any other protocol), begins (reads the file for a share, and from there on is
mostly right; else wrong). A share follows the name, as in seldom@0.25.

Not covered: other harnesses' formats; reading tools but for begins, since gold does not need them.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from environments.sources.lookup import expression_of
from environments.toolcalls import edit_calls
from schemas.base import canonical, digest_of
from schemas.errors import InputError
from schemas.task import Task
from schemas.trajectory import Sampling
from stages.samplers import Completion, SampleRequest
from stages.samplers.tokenization import Tokenization

STRATEGIES = ("gold", "wrong", "noop", "garbage", "mixed", "seldom", "visible", "shaken", "hinted", "drilled", "begins")
OTHERWISE = {"mixed": ("wrong", "noop", "garbage"), "seldom": ("wrong",), "visible": ("seen",)}  # where it is not gold
GARBAGE = ("I am not sure what to do here.", "```python\nprint('hello'", "{'tool': run_tests}", "```calc\n1 +", "")
_TOOLS_MARK = "Reply with one JSON tool call"
_HINT_MARK = "Hint: "
_BEGUN_WELL = 0.65  # share of attempts of `begins` that are right once the file was read
_CALC_SKILLS = ("lookup", "calc")
_VERSION = 3  # grows when an answer changes: part of the policy's digest


class ScriptedSampler:
    """`gold_share`: of (seed, task) pairs that are answered with gold, in [0, 1]; one after an @ in the strategy is meant.
    `begun`: (task id, seed) -> turns that another policy has taken before; its own first turn is the one after them."""

    name = "scripted"
    version = 0

    def __init__(
        self,
        folder: Path,
        tasks: Mapping[str, Task],
        strategy: str = "gold",
        gold_share: float = 0.5,
        begun: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        strategy, _, share = strategy.partition("@")
        if strategy not in STRATEGIES:
            raise InputError(f"scripted sampler: no strategy {strategy!r}; use {', '.join(STRATEGIES)}")
        if share and not (re.fullmatch(r"\d*\.?\d+", share) and float(share) <= 1):
            raise InputError(f"scripted sampler: share {share!r} is none; give one of 0 to 1, as in seldom@0.25")
        gold_share = float(share) if share else gold_share
        self._tokens = Tokenization(folder)
        self.encode, self.decode = self._tokens.encode, self._tokens.decode
        self.render, self.plain = self._tokens.render, self._tokens.plain
        self.end = self._tokens.end
        self.tasks, self.strategy, self.gold_share = tasks, strategy, gold_share
        self.begun = begun or {}
        self.policy = digest_of(["scripted", _VERSION, strategy, gold_share])

    def release(self, keys: Sequence[str]) -> None:
        return None

    def sample(self, requests: Sequence[SampleRequest], sampling: Sampling) -> list[Completion]:
        """Log-probabilities are 0: the policy is certain. A text beyond max_tokens is cut, as a model's would be."""
        return [self._complete(request, sampling) for request in requests]

    def _complete(self, request: SampleRequest, sampling: Sampling) -> Completion:
        task = self.tasks.get(request.task_id)
        if task is None:
            raise InputError(
                f"scripted sampler: task {request.task_id} is not among its {len(self.tasks)}; pass it in tasks="
            )
        text = self.plain(self._answer(task, request))
        ids = [*self.encode(text), *self.encode(self.end)][: sampling.max_tokens]
        stop = ids[-1] in self._tokens.stop_ids
        return Completion(ids, [0.0] * len(ids), self.decode(ids), "eos" if stop else "length", None)

    def _answer(self, task: Task, request: SampleRequest) -> str:
        strategy = self.strategy
        lot = hashlib.sha256(canonical([request.seed, request.task_id])).digest()
        context = self.decode(request.context_ids)
        in_calls = _TOOLS_MARK in context
        if strategy in OTHERWISE:
            others = OTHERWISE[strategy]
            strategy = "gold" if _falls(lot[:8], self.gold_share) else others[lot[8] % len(others)]
        if strategy == "shaken":
            strategy = "wrong" if request.turn and task.kind == "function" else "gold"
        if strategy in ("hinted", "drilled"):
            strategy = "gold" if (_HINT_MARK in context if strategy == "hinted" else in_calls) else "wrong"
        if strategy == "begins":
            return self._begins(task, request, lot, context) if in_calls else fenced(task, task.wrong, request.turn)
        if strategy == "garbage":
            return GARBAGE[lot[9] % len(GARBAGE)]
        taken = self.begun.get((request.task_id, request.seed), 0)
        # What was computed is not computed again.
        turn = request.turn if task.kind == "answer" else request.turn - taken
        outcome = {"gold": task.gold, "wrong": task.wrong, "noop": {}, "seen": _seen(task)}[strategy]
        return tool_call(task, outcome, turn) if in_calls else fenced(task, outcome, turn)

    def _begins(self, task: Task, request: SampleRequest, lot: bytes, context: str) -> str:
        """What follows a read is decided by the seed of whoever goes on: a prefix of another attempt is as good as its own."""
        path = next(iter(task.editable), "")
        read = {"tool": "read_file", "path": path}
        if request.turn == 0:
            return json.dumps(read) if _falls(lot[:8], self.gold_share) else tool_call(task, task.wrong, 0)
        if json.dumps(read) not in context:
            return tool_call(task, task.wrong, request.turn)
        if _falls(lot[8:16], _BEGUN_WELL):
            return tool_call(task, task.gold, request.turn - 1)
        if request.turn == 1:
            return json.dumps({"tool": "replace_block", "path": path, "old": "# not there", "new": ""})
        return tool_call(task, task.wrong, request.turn - 2)


def _falls(lot: bytes, share: float) -> bool:
    return int.from_bytes(lot, "big") < share * 2.0 ** (8 * len(lot))


def _seen(task: Task) -> dict[str, str]:
    """Code that knows the visible cases by heart and does nothing else; the wrong outcome for a task without code."""
    if task.kind != "function" or task.entry is None:
        return dict(task.wrong)
    rows = [
        f"    if list(given) == {case.args!r}:\n        return {case.expected!r}"
        for case in task.visible
        if not case.raises
    ]
    return {task.editable[0]: "\n".join([f"def {task.entry}(*given):", *rows, "    return None"]) + "\n"}


def fenced(task: Task, outcome: Mapping[str, str], turn: int) -> str:
    """The text of this turn by which the fenced harness reaches the outcome. Gold numbers are computed first."""
    if task.kind == "function":
        path = task.editable[0]
        return f"```python\n{outcome.get(path, task.files[path]).rstrip()}\n```"
    answer = outcome.get("answer.txt", "unknown").strip()
    if task.skill not in _CALC_SKILLS:
        return answer
    expression = _expression(task, outcome) if turn == 0 else None
    return f"Answer: {answer}" if expression is None else f"```calc\n{expression}\n```"


def tool_call(task: Task, outcome: Mapping[str, str], turn: int) -> str:
    """The JSON call of this turn: one edit a changed file, then submit."""
    if task.kind == "answer":
        expression = _expression(task, outcome) if turn == 0 else None
        if expression is not None:
            return json.dumps({"tool": "calc", "expression": expression})
        return json.dumps({"tool": "submit", "answer": outcome.get("answer.txt", "unknown").strip()})
    if task.kind == "repository":
        calls = [*edit_calls(task.files, outcome), {"tool": "submit"}]
        return json.dumps(calls[min(turn, len(calls) - 1)])
    edits = [(path, text) for path, text in sorted(outcome.items()) if task.files.get(path) != text]
    if turn >= len(edits):
        return json.dumps({"tool": "submit"})
    path, text = edits[turn]
    old, new = changed_block(task.files.get(path, ""), text)
    return json.dumps({"tool": "replace_block", "path": path, "old": old, "new": new})


def _expression(task: Task, outcome: Mapping[str, str]) -> str | None:
    """What to compute on the way to the gold answer; None for another outcome or a question without an expression."""
    if task.skill not in _CALC_SKILLS or outcome != task.gold:
        return None
    try:
        return expression_of(task)
    except (ValueError, KeyError):
        return None  # a question of another source


def changed_block(before: str, after: str) -> tuple[str, str]:
    """The shortest run of whole lines that turns one text into the other and stands once in `before`."""
    left, right = before.splitlines(keepends=True), after.splitlines(keepends=True)
    blocks = [
        block
        for block in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
        if block[0] != "equal"
    ]
    if not blocks:
        return before, after
    start, end = blocks[0][1], blocks[-1][2]
    tail = len(left) - end
    while True:
        old, new = "".join(left[start:end]), "".join(right[start : len(right) - tail])
        # The replacement itself is tried: overlapping occurrences count once and still replace the wrong one.
        if old and before.count(old) == 1 and before.replace(old, new) == after:
            return old, new
        if start:
            start -= 1
        elif tail:
            end, tail = end + 1, tail - 1
        else:
            return before, after

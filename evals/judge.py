"""Host side of a judge verifier: its bundle asks questions, a sampler answers, the bundle makes the verdict of it.

The judge is any object with the sampler protocol of stages/samplers (`encode`, `render`, `plain`, `sample`). A question
holds text of the attempt: every spelling of a special token is broken before the chat template is laid around it, so an
answer cannot begin a turn of its own. A verdict is keyed as one of evals/verify.py; the verifier's digest covers the
bundle, the model that judges and how it is sampled. No sandbox is used, so image and limits are those of "none".

A sampler that fails gives an error verdict, never a zero. Not covered: several judges, and judging by more than a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from environments.bundles import Bundle
from schemas.base import digest_of
from schemas.errors import InfrastructureError
from schemas.task import Task
from schemas.trajectory import Sampling
from schemas.verdict import Verdict

NONE = digest_of("none")
GREEDY = Sampling(engine="scripted", temperature=0.0, max_tokens=8)


@dataclass(frozen=True)
class Ask:
    """One question, with the fields of a sampler's request."""

    key: str
    turn: int
    context_ids: Sequence[int]
    new_from: int
    seed: int
    task_id: str
    text: str


class Judging(Protocol):
    """What a judge needs of a sampler."""

    policy: str

    def encode(self, text: str) -> list[int]: ...

    def render(self, messages: Any, generate: bool = True) -> str: ...

    def plain(self, text: str) -> str: ...

    def sample(self, requests: Any, sampling: Sampling) -> Any: ...

    def release(self, keys: Any) -> None: ...


class Judge:
    """A judge bundle and the sampler that answers it. Not safe to share between threads, as samplers are not."""

    def __init__(
        self,
        bundle: Bundle,
        sampler: Judging,
        sampling: Sampling = GREEDY,
        role: Literal["training", "audit"] = "training",
    ) -> None:
        self.bundle, self.sampler, self.sampling, self.role = bundle, sampler, sampling, role
        self.digest = digest_of([bundle.digest, sampler.policy, sampling.digest()])

    def judge_many(self, items: list[tuple[Task, dict[str, str]]]) -> list[Verdict]:
        """Verdicts in the order of the items. A broken sampler or bundle is an error verdict, never an exception."""
        return [self._judge(task, outcome) for task, outcome in items]

    def _judge(self, task: Task, outcome: dict[str, str]) -> Verdict:
        seen = {**task.judged(), "statement": task.statement}
        request = {"op": "judge", "task": seen, "start": task.files, "outcome": outcome, "id": self.bundle.fresh_id()}
        try:
            reply = self.bundle.ask(request)
            if "ask" in reply:
                said = self._answers(task, reply["ask"])
                reply = self.bundle.ask({"op": "completions", "id": request["id"], "completions": said})
            return self._verdict(task, outcome, reply["verdict"])
        except InfrastructureError as error:
            return self._verdict(task, outcome, {"status": "error", "reason": str(error)[:500]})
        except (ValidationError, KeyError, TypeError) as error:
            who, first = f"judge {self.bundle.name}@{self.bundle.version}", str(error).splitlines()[0]
            return self._verdict(task, outcome, {"status": "error", "reason": f"{who} answered garbage: {first}"[:500]})

    def _answers(self, task: Task, questions: list[str]) -> list[str]:
        asks = []
        for index, question in enumerate(questions):
            text = self.sampler.render([{"role": "user", "content": self.sampler.plain(question)}])
            seed = int(digest_of([task.id, question])[:8], 16)
            asks.append(Ask(f"judge-{seed}-{index}", 0, self.sampler.encode(text), 0, seed, task.id, text))
        try:
            return [str(completion.text) for completion in self.sampler.sample(asks, self.sampling)]
        finally:
            self.sampler.release([ask.key for ask in asks])

    def _verdict(self, task: Task, outcome: dict[str, str], said: dict[str, Any]) -> Verdict:
        names = {"outcome": digest_of(outcome), "task": task.digest(), "image": NONE, "limits": NONE}
        return Verdict.model_validate({**said, **names, "verifier": self.digest, "role": self.role})

"""The sampler on a vLLM server, through its OpenAI-compatible completions with token ids in and out.

The server must serve the very folder that the checkpoint is in. Seeds are given per request, but the server composes
its batches by itself: the last bits, and rarely a token, may differ between runs, so `place` is None. vLLM reports
log-probabilities either before (its default) or after temperature and top_p; the first call compares two answers and
refuses a server whose numbers would not be those at the sampling temperature. Before each batch it asks the server what it
serves, so that one that hangs is noticed in seconds and not after the longest completion.

Not covered: weights pushed into a running server, several servers, authentication beyond what the URL carries.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from schemas.base import canonical
from schemas.errors import InputError, SamplerError
from schemas.trajectory import Sampling
from stages.models import checkpoint_of
from stages.samplers import Completion, SampleRequest
from stages.samplers.tokenization import Tokenization

PARALLEL = 64  # requests in flight
COMPLETION_S = 300.0  # of one completion
LISTING_S = 10.0  # a server that works says what it serves at once
PROBE_TOLERANCE = 0.05  # nats, between two log-probabilities that should be equal


class VllmSampler:
    """`timeout_s`: of one completion, COMPLETION_S when None. Raises SamplerError when the server does not answer or
    serves another model."""

    name = "vllm"
    version = 0

    def __init__(self, url: str, folder: Path, timeout_s: float | None = None) -> None:
        self._tokens = Tokenization(folder)
        self.encode, self.decode = self._tokens.encode, self._tokens.decode
        self.render, self.plain = self._tokens.render, self._tokens.plain
        self.end = self._tokens.end
        self.policy = checkpoint_of(folder).weights
        self.url = url.rstrip("/").removesuffix("/v1")
        limits = httpx.Limits(max_connections=PARALLEL, max_keepalive_connections=PARALLEL)
        self._client = httpx.Client(
            timeout=httpx.Timeout(timeout_s or COMPLETION_S, connect=10.0), limits=limits, trust_env=False
        )
        self._folder, self._model = folder, self._served(folder)
        self._probed: set[tuple[float, float]] = set()

    def close(self) -> None:
        self._client.close()

    def release(self, keys: Sequence[str]) -> None:
        return None  # the server manages its own prefix cache

    def sample(self, requests: Sequence[SampleRequest], sampling: Sampling) -> list[Completion]:
        if not requests:
            return []
        self._model = self._served(self._folder)
        self._probe(requests[0], sampling)
        with ThreadPoolExecutor(min(PARALLEL, len(requests))) as pool:
            return list(pool.map(lambda request: self._complete(request, sampling), requests))

    def _complete(self, request: SampleRequest, sampling: Sampling) -> Completion:
        choice = self._completion(
            list(request.context_ids),
            sampling.temperature,
            sampling.top_p,
            sampling.max_tokens,
            stream_seed(request),
            1,
        )
        ids: Any = choice.get("token_ids")
        logprobs: Any = (choice.get("logprobs") or {}).get("token_logprobs")
        if not _list_of(ids, int) or not _list_of(logprobs, int | float) or len(ids) != len(logprobs) or not ids:
            raise self._error("answered without token_ids and their logprobs", "use a vLLM that knows return_token_ids")
        if any(not math.isfinite(value) for value in logprobs):
            raise self._error("answered a log-probability that is not finite", "check the checkpoint")
        sent, echoed = list(request.context_ids), choice.get("prompt_token_ids")
        if echoed is not None and echoed != sent:
            raise self._error(f"read {len(echoed)} prompt tokens, {len(sent)} were sent", "raise its --max-model-len")
        ended, reason = ids[-1] in self._tokens.stop_ids, choice.get("finish_reason")
        if not ended and reason != "length":
            raise self._error(f"ended a completion by {reason!r} without an end token", "remove its stop settings")
        return Completion(
            ids, [float(value) for value in logprobs], self.decode(ids), "eos" if ended else "length", None
        )

    def _completion(
        self, prompt: list[int], temperature: float, top_p: float, max_tokens: int, seed: int, logprobs: int
    ) -> dict[str, Any]:
        body = {
            "model": self._model, "prompt": prompt, "max_tokens": max_tokens, "temperature": temperature,
            "top_p": top_p, "seed": seed, "logprobs": logprobs, "return_token_ids": True,
            "stop_token_ids": sorted(self._tokens.stop_ids), "add_special_tokens": False,
        }  # fmt: skip
        answer = self._ask("POST", "/v1/completions", body)
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self._error("answered without exactly one choice", "check that the URL is a vLLM server")
        return choices[0]

    def _probe(self, request: SampleRequest, sampling: Sampling) -> None:
        """Are the log-probabilities those at the temperature, before top_p? Compares the top five of a token."""
        wanted = (sampling.temperature, sampling.top_p)
        if wanted in self._probed or wanted == (1.0, 1.0):
            return
        scale = sampling.temperature or 1.0
        prompt = list(request.context_ids)
        plain = self._top(prompt, 1.0, 1.0)
        under = self._top(prompt, *wanted)
        shared = [token for token in plain if token in under and math.isfinite(under[token])]
        first = shared[0] if shared else ""
        gaps = [(plain[token] - plain[first]) / scale - (under[token] - under[first]) for token in shared]
        # At temperature 1 the numbers themselves must agree; at another one only differences can be foreseen.
        gaps += [plain[token] - under[token] for token in shared] if scale == 1.0 else []
        unclear = scale != 1.0 and (sampling.top_p < 1 or len(shared) < 2)
        if not shared or unclear or max(abs(gap) for gap in gaps) > PROBE_TOLERANCE:
            raise InputError(
                f"vllm server {self.url}: its log-probabilities are not those at temperature {sampling.temperature:g} "
                f"before top_p {sampling.top_p:g}; for top_p 1 start it with --logprobs-mode processed_logprobs, "
                "else use temperature 1"
            )
        self._probed.add(wanted)

    def _top(self, prompt: list[int], temperature: float, top_p: float) -> dict[str, float]:
        choice = self._completion(prompt, temperature, top_p, 1, 0, 5)
        top = (choice.get("logprobs") or {}).get("top_logprobs")
        if not isinstance(top, list) or not top or not isinstance(top[0], dict):
            raise self._error("answered without top_logprobs", "use a vLLM that reports logprobs")
        return {str(token): float(value) for token, value in top[0].items()}

    def _served(self, folder: Path) -> str:
        """The name under which the folder is served."""
        models = self._ask("GET", "/v1/models", None).get("data")
        served = [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []
        wanted = {str(folder), str(folder.resolve())}
        for model in served:
            if {str(model.get("root")), str(model.get("id"))} & wanted:
                return str(model["id"])
        names = ", ".join(str(model.get("root") or model.get("id"))[:120] for model in served) or "nothing"
        raise self._error(f"serves {names}, not {folder}", f"restart it with --model {folder.resolve()}")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        try:
            limit = httpx.USE_CLIENT_DEFAULT if body else LISTING_S
            response = self._client.request(method, self.url + path, json=body, timeout=limit)
        except httpx.TimeoutException as error:
            raise self._error(f"no answer to {path} in time", "check its load, or lower sampling.batch") from error
        except httpx.HTTPError as error:
            raise self._error(f"cannot be reached ({error})", "start it, or correct runtime.vllm_url") from error
        except httpx.InvalidURL as error:
            raise InputError(f"runtime.vllm_url {self.url!r}: {error}; write e.g. http://127.0.0.1:8000") from error
        if response.status_code != 200:
            raise self._error(
                f"answered {response.status_code}: {' '.join(response.text.split())[:200]}", "see its log"
            )
        try:
            answer = response.json()
        except ValueError as error:
            raise self._error(f"answered no JSON to {path}", "check that the URL is a vLLM server") from error
        if not isinstance(answer, dict):
            raise self._error(f"answered {type(answer).__name__} to {path}", "check that the URL is a vLLM server")
        return answer

    def _error(self, what: str, remedy: str) -> SamplerError:
        return SamplerError(f"vllm server {self.url}: {what}; {remedy}")


def stream_seed(request: SampleRequest) -> int:
    """63 bits from (seed, task, turn): equal seeds on two tasks are independent."""
    digest = hashlib.sha256(canonical([request.seed, request.task_id, request.turn])).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _list_of(value: object, kind: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)

"""The sampler on transformers: own decode loop over a causal language model, on CPU or GPU.

What saves time: each distinct prompt is prefilled once and its cache repeated for the group; finished rows leave the
batch; the cache of a trajectory is kept for its next turn within a byte budget, and is otherwise made again. What makes
it repeatable: a random stream for each trajectory and turn (see streams.py), a batch whose composition is recorded in
`place`, and no hidden state: the same call gives the same bits. Another composition of the batch, or another number of
threads, changes the last bits of a large model's logits, and so now and then a token.

Not covered: models with sliding-window or recurrent layers, several devices, speculative decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from schemas.base import Digest, digest_of
from schemas.errors import InputError, SamplerError
from schemas.trajectory import BatchPlace, Sampling
from stages.models import checkpoint_of
from stages.samplers import Completion, SampleRequest
from stages.samplers.kv_cache import Held, Layers, RoomyCache, Shelf
from stages.samplers.streams import uniforms
from stages.samplers.tokenization import Tokenization

KEPT_BYTES = 1 << 30
PREFILL_TOKENS = 4096  # of one prefill forward, padding included: bounds its activations
COMPACT_SHARE = 0.25  # of finished rows in the batch at which they are dropped
ONE_THREAD_BELOW = 5_000_000  # parameters
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class _Prompt:
    """One distinct context of the batch, and the rows that have it."""

    held: Held | None
    new: list[int]
    rows: list[int]
    padded_to: int = 0

    @property
    def cached(self) -> int:
        return len(self.held.ids) if self.held else 0

    @property
    def length(self) -> int:
        return self.cached + len(self.new)


@dataclass
class _Batch:
    """The state of one decode. Column `width` is where the first new token goes; rows are left-padded before it."""

    cache: RoomyCache
    mask: torch.Tensor  # [rows, columns], 1 where a token stands
    lengths: torch.Tensor  # [rows]: tokens of each context
    logits: torch.Tensor  # [rows, vocabulary]
    alive: list[int] = field(default_factory=list)  # which request each row is
    width: int = 0


class TransformersSampler:
    """`model`: an already loaded one, e.g. the policy in training; then `policy` must say what it is. It is only read,
    and is in evaluation mode while it is."""

    name = "transformers"

    def __init__(
        self, folder: Path, *, model: Any = None, policy: Digest | None = None, version: int = 0,
        dtype: str = "float32", device: str = "cpu", kept_bytes: int = KEPT_BYTES,
    ) -> None:  # fmt: skip
        if model is not None and policy is None:
            raise InputError(f"sampler over {folder}: a loaded model has no digest of its own; give policy=")
        self._tokens = Tokenization(folder)
        self.encode, self.decode = self._tokens.encode, self._tokens.decode
        self.render, self.plain = self._tokens.render, self._tokens.plain
        self.end = self._tokens.end
        self.dtype = dtype
        self.model: Any = _load(folder, dtype, device) if model is None else model
        self.policy = policy or checkpoint_of(folder).weights
        self.version = version
        self.shelf = Shelf(kept_bytes)
        self.telemetry: dict[str, int] = {"prefill_tokens": 0, "generated_tokens": 0, "reused_tokens": 0}
        self._layers = _layer_count(self.model, folder)

    def update(self, policy: Digest, version: int) -> None:
        """The weights of the model changed in place: what was kept of the old ones is dropped."""
        self.policy, self.version = policy, version
        self.shelf.clear()

    def release(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.shelf.drop(key)

    def sample(self, requests: Sequence[SampleRequest], sampling: Sampling) -> list[Completion]:
        """Raises SamplerError when the device fails or the model gives no finite logits."""
        if not requests:
            return []
        if sampling.dtype != self.dtype:
            raise InputError(
                f"sampling.dtype {sampling.dtype}: the model is loaded as {self.dtype}; open a sampler for it"
            )
        for request in requests:
            if not request.context_ids:
                raise InputError(
                    f"trajectory {request.key}: turn {request.turn} has an empty context; render a prompt first"
                )
        try:
            with torch.inference_mode(), _evaluating(self.model):
                return self._sample(requests, sampling)
        except (RuntimeError, MemoryError) as error:
            self.shelf.clear()
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise SamplerError(f"transformers sampler: {reason}; try a smaller sampling.batch") from error

    def _sample(self, requests: Sequence[SampleRequest], sampling: Sampling) -> list[Completion]:
        prompts = self._prompts(requests)
        batch = self._prefill(prompts, len(requests), sampling.max_tokens)
        ids, logprobs = self._decode(requests, batch, sampling)
        places = _places(prompts, len(requests))
        self.telemetry["generated_tokens"] += sum(len(row) for row in ids)
        return [
            Completion(
                ids=ids[row],
                logprobs=logprobs[row],
                text=self.decode(ids[row]),
                stop="eos" if ids[row][-1] in self._tokens.stop_ids else "length",
                place=places[row],
            )
            for row in range(len(requests))
        ]

    def _prompts(self, requests: Sequence[SampleRequest]) -> list[_Prompt]:
        """Distinct contexts, in the order in which they first appear."""
        fresh: dict[tuple[int, ...], _Prompt] = {}
        prompts: list[_Prompt] = []
        for row, request in enumerate(requests):
            ids = [int(token) for token in request.context_ids]
            held = self.shelf.prefix(request.key, ids) if request.new_from else None
            same = fresh.get(tuple(ids)) if held is None else None
            if same is not None:
                same.rows.append(row)
                continue
            prompt = _Prompt(held, ids[len(held.ids) :] if held else ids, [row])
            prompts.append(prompt)
            if held is None:
                fresh[tuple(ids)] = prompt
        return prompts

    def _prefill(self, prompts: list[_Prompt], rows: int, room: int) -> _Batch:
        width = max(prompt.length for prompt in prompts)
        cache = RoomyCache(self._layers, width + room)
        device = self.model.device
        mask = torch.zeros((rows, width + room), dtype=torch.long, device=device)
        lengths = torch.zeros(rows, dtype=torch.long, device=device)
        logits: torch.Tensor | None = None
        for bucket in _buckets(prompts):
            for prompt, layers, last in self._forward_bucket(bucket):
                cache.lay(prompt.rows, width - prompt.length, layers, rows)
                mask[prompt.rows, width - prompt.length :] = 1
                lengths[prompt.rows] = prompt.length
                logits = last.new_zeros((rows, last.shape[-1])) if logits is None else logits
                logits[prompt.rows] = last
                self.telemetry["prefill_tokens"] += len(prompt.new)
                self.telemetry["reused_tokens"] += prompt.cached
        assert logits is not None
        cache.filled(width)
        return _Batch(cache, mask, lengths, logits, list(range(rows)), width)

    def _forward_bucket(self, bucket: list[_Prompt]) -> Iterator[tuple[_Prompt, Layers, torch.Tensor]]:
        """One forward: held columns right-aligned first, then the new tokens, right-aligned too."""
        device = self.model.device
        held, new = max(p.cached for p in bucket), max(len(p.new) for p in bucket)
        cache = RoomyCache(self._layers, held + new)
        ids = torch.zeros((len(bucket), new), dtype=torch.long, device=device)
        mask = torch.zeros((len(bucket), held + new), dtype=torch.long, device=device)
        positions = torch.zeros((len(bucket), new), dtype=torch.long, device=device)
        for row, prompt in enumerate(bucket):
            count = len(prompt.new)
            ids[row, new - count :] = torch.tensor(prompt.new, device=device)
            positions[row, new - count :] = torch.arange(prompt.cached, prompt.length, device=device)
            mask[row, held - prompt.cached : held] = 1
            mask[row, held + new - count :] = 1
            prompt.padded_to = held + new
            if prompt.held:
                cache.lay(row, held - prompt.cached, prompt.held.layers, len(bucket))
        if held:
            cache.filled(held)
        last = self._forward(ids, mask, positions, cache)
        for row, prompt in enumerate(bucket):
            spans = [(held - prompt.cached, held), (held + new - len(prompt.new), held + new)]
            yield prompt, cache.row(row, spans), last[row]

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: RoomyCache
    ) -> torch.Tensor:
        """Logits of the last column, float32 [rows, vocabulary]."""
        out = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
        )
        return torch.as_tensor(out.logits[:, -1]).float()

    def _decode(
        self, requests: Sequence[SampleRequest], batch: _Batch, sampling: Sampling
    ) -> tuple[list[list[int]], list[list[float]]]:
        streams = np.stack([uniforms(r.seed, r.task_id, r.turn, sampling.max_tokens) for r in requests])
        ids: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        done: set[int] = set()
        for step in range(sampling.max_tokens):
            drawn = torch.from_numpy(streams[batch.alive, step]).to(batch.logits.device)
            tokens, chosen = choose(batch.logits, drawn, sampling)
            values = zip(batch.alive, tokens.tolist(), chosen.tolist(), strict=True)
            for row, (request, token, logprob) in enumerate(values):
                if request in done:
                    continue
                ids[request].append(token)
                logprobs[request].append(logprob)
                if token in self._tokens.stop_ids or step == sampling.max_tokens - 1:
                    done.add(request)
                    self._hold(requests[request], batch, row, step, ids[request])
            if len(done) == len(requests):
                break
            tokens = _compact(batch, tokens, done)
            self._step(batch, tokens, step)
        return ids, logprobs

    def _step(self, batch: _Batch, tokens: torch.Tensor, step: int) -> None:
        column = batch.width + step
        batch.mask[:, column] = 1
        positions = (batch.lengths + step)[:, None]
        batch.logits = self._forward(tokens[:, None], batch.mask[:, : column + 1], positions, batch.cache)

    def _hold(self, request: SampleRequest, batch: _Batch, row: int, step: int, ids: list[int]) -> None:
        """Keep the cache of a finished row: its context and all it wrote but the last token, which was never fed."""
        if self.shelf.budget_bytes == 0:
            return
        start = batch.width - int(batch.lengths[row])
        fed = [*(int(token) for token in request.context_ids), *ids[:-1]]
        self.shelf.put(request.key, Held(fed, batch.cache.row(row, [(start, batch.width + step)])))


def choose(logits: torch.Tensor, drawn: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, log-probabilities) for float32 logits [rows, vocabulary] and one uniform number a row.

    Temperature 0 takes the most probable token (lowest id of equals) and reports its log-probability at temperature 1.
    """
    if not bool(torch.isfinite(logits).all()):
        raise SamplerError("transformers sampler: the model gave logits that are not finite; check the checkpoint")
    greedy = sampling.temperature == 0
    logprobs = torch.log_softmax(logits if greedy else logits / sampling.temperature, dim=-1)
    if greedy:
        tokens = logits.argmax(dim=-1)
    else:
        weights = logprobs.exp()
        if sampling.top_p < 1:
            weights = torch.where(weights >= _nucleus_floor(weights, sampling.top_p), weights, 0.0)
        bounds = weights.double().cumsum(dim=-1)
        tokens = torch.searchsorted(bounds, drawn.double()[:, None] * bounds[:, -1:], right=True)[:, 0]
        tokens = tokens.clamp(max=logits.shape[-1] - 1)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def _nucleus_floor(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """Smallest probability that stays [rows, 1]: the fewest tokens whose mass reaches top_p, and their equals.

    The top 256 nearly always suffice; sorting the whole vocabulary for each token costs as much as a forward.
    """
    for count in (min(256, weights.shape[-1]), weights.shape[-1]):
        top = weights.topk(count, dim=-1).values
        mass = top.double().cumsum(dim=-1)
        if bool((mass[:, -1] >= top_p).all()):
            break
    last = (mass < top_p).sum(dim=-1, keepdim=True).clamp(max=count - 1)
    return top.gather(-1, last)


def _compact(batch: _Batch, tokens: torch.Tensor, done: set[int]) -> torch.Tensor:
    """Drop finished rows once they are a quarter of the batch; returns the tokens of the rows that remain."""
    keep = [row for row, request in enumerate(batch.alive) if request not in done]
    if len(batch.alive) - len(keep) < COMPACT_SHARE * len(batch.alive):
        return tokens
    rows = torch.tensor(keep, device=tokens.device)
    batch.cache.keep_rows(rows)
    batch.mask, batch.lengths = batch.mask.index_select(0, rows), batch.lengths.index_select(0, rows)
    batch.alive = [batch.alive[row] for row in keep]
    return tokens.index_select(0, rows)


def _buckets(prompts: list[_Prompt]) -> list[list[_Prompt]]:
    """Prompts of like length together, so that a long one does not pad the others. Depends on the batch alone."""
    buckets: list[list[_Prompt]] = []
    for prompt in sorted(prompts, key=lambda p: (p.cached > 0, len(p.new), p.rows[0])):
        last = buckets[-1] if buckets else None
        fits = (
            last is not None
            and (last[0].cached > 0) == (prompt.cached > 0)
            and len(prompt.new) <= 1.25 * len(last[0].new) + 8
            and (len(last) + 1) * len(prompt.new) <= PREFILL_TOKENS
        )
        if last is not None and fits:
            last.append(prompt)
        else:
            buckets.append([prompt])
    return buckets


def _places(prompts: list[_Prompt], rows: int) -> list[BatchPlace]:
    """The digest covers, row by row, the ids taken from a kept cache and the ids computed here."""
    of_row = {row: prompt for prompt in prompts for row in prompt.rows}
    parts = [[of_row[row].held.ids if of_row[row].held else [], of_row[row].new] for row in range(rows)]  # type: ignore[union-attr]
    digest = digest_of(parts)
    return [BatchPlace(batch=digest, row=row, rows=rows, padded_to=of_row[row].padded_to) for row in range(rows)]


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Dropout off while sampling, and one thread for a small model, then as it was: a small model gains nothing from a
    second thread and waits for it on a busy machine."""
    training, threads = bool(model.training), torch.get_num_threads()
    model.eval()
    if sum(parameter.numel() for parameter in model.parameters()) < ONE_THREAD_BELOW:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        model.train(training)


def _load(folder: Path, dtype: str, device: str) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=_DTYPES[dtype], local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"model {folder}: does not load: {str(error).splitlines()[0][:200]}; check the folder"
        ) from error
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise SamplerError(f"device {device}: {str(error).splitlines()[0][:200]}; set runtime.device") from error


def _layer_count(model: Any, folder: Path) -> int:
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise InputError(
            f"model {folder}: layers of kind {', '.join(sorted(kinds))}; this sampler needs full attention, use vllm"
        )
    return int(config.num_hidden_layers)

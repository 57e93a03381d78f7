"""Repair tasks mined from published packages: what became of every candidate, and an agent that solves them by tools.

    python -m bench.mined --folder WORK --out FILE.json [--spec recipes/mined.yaml] [--runs 5]

`postloop tasks mine` and `postloop tasks validate` run in a workspace under WORK; the archives come from the index that
pip is configured with. Then a scripted policy looks around, edits, runs the visible tests and submits, through the real
rollout loop, harness and sandbox, and the verifier judges what it hands in. The same policy with the task's wrong edit,
and with no edit, must solve nothing. Runs and proofs are kept in the cache: what was broken off goes on.

Holds with at least TASKS proven tasks from PACKAGES sources, of which the policy solves some.
Not covered: whether a model can solve them; the policy has read the answer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from bench.common import ROOT, cache_folder, environment, load, machine, postloop, say, table, write_json
from environments.bundles import Bundle, builtin
from environments.engines import open_engine
from environments.image import Image, build_image
from environments.runner import Runner
from environments.sources import default
from environments.toolcalls import edit_calls
from evals.verify import Verifier
from schemas.base import Digest, digest_of
from schemas.errors import EXIT_DONE, EXIT_NO, InfrastructureError, InputError, PostloopError
from schemas.goal import Budgets, Safety
from schemas.mining import Loss, Mined, MiningSpec
from schemas.model import TinyModel
from schemas.task import Task
from schemas.trajectory import Purpose, Sampling, Trajectory
from schemas.verdict import Verdict
from stages.artifacts import write_durably
from stages.context import threads
from stages.models import fetch
from stages.rollout import RolloutRequest, Setting, rollout
from stages.samplers import SampleRequest
from stages.samplers.scripted_sampler import ScriptedSampler
from stages.seeds import suite_name
from stages.spec import dump_default
from stages.workspace import Workspace

TASKS, PACKAGES, WORKERS = 30, 6, 2
STRATEGIES = ("gold", "wrong", "noop")
# As wide as the policy needs: it hands in whole blocks of files, and no model reads them.
SETTING = Setting(
    Sampling(max_tokens=1_000_000), Budgets(max_turns=200, max_tool_calls=200, max_context_tokens=100_000_000),
    Safety(paths=[]), batch=8,
)  # fmt: skip


# --- mining and proof, as a person would -----------------------------------------------------------------------------


def command(*arguments: str) -> Any:
    """`postloop ...`: its answer with --json, else its progress and tables go to stderr. InfrastructureError if it breaks."""
    output = subprocess.PIPE if "--json" in arguments else sys.stderr
    done = subprocess.run(
        postloop(*arguments), stdin=subprocess.DEVNULL, stdout=output, cwd=ROOT, env=environment(), check=False
    )
    if done.returncode not in (EXIT_DONE, EXIT_NO):
        raise InfrastructureError(f"postloop {' '.join(arguments[:2])}: exit {done.returncode}; see the lines above")
    return json.loads(done.stdout) if done.stdout else None


def workspace(folder: Path, spec: MiningSpec) -> Workspace:
    """One whose image and limits are those of the spec, and whose seed data is what is mined."""
    given = json.dumps({"packages": spec.packages, "limits": spec.limits.model_dump()})
    text = f"{dump_default('tiny')}\nenvironment: {given}\n"
    space = Workspace.open(folder) if (folder / "goal.yaml").is_file() else Workspace.create(folder, text)
    (space.root / "tasks").mkdir(exist_ok=True)
    write_durably(space.spec_path, text.replace("data:\n", "data:\n  seed_data: tasks\n", 1).encode())
    return space


def mine(space: Workspace, path: Path, layer: Digest) -> Mined:
    command("tasks", "mine", str(path.resolve()), "-w", str(space.root))
    place = space.root / "tasks" / f"mined_{suite_name(path.stem)}.losses.json"
    if not place.is_file():
        raise InputError(f"{path}: no task came of it, so there is nothing to solve; name other sources")
    losses = [Loss.model_validate_json(json.dumps(item)) for item in json.loads(place.read_text(encoding="utf-8"))]
    return Mined(image=layer, tasks=default.load(space.root / "tasks"), losses=losses)


def refused(space: Workspace, runs: int) -> dict[str, str]:
    """Task -> why it is not proven."""
    answer = command("tasks", "validate", "--runs", str(runs), "--json", "-w", str(space.root))
    return {row["id"]: row["reason"] for row in (*answer["quarantined"], *answer["lost"])}


# --- the agent -------------------------------------------------------------------------------------------------------


class Agent(ScriptedSampler):
    """The scripted policy with the calls of somebody who looks before and tests after."""

    def __init__(self, folder: Path, tasks: Sequence[Task], strategy: str) -> None:
        super().__init__(folder, {task.id: task for task in tasks}, strategy)
        self.policy = digest_of(["agent", self.policy])

    def _answer(self, task: Task, request: SampleRequest) -> str:
        made = calls(task, {"gold": task.gold, "wrong": task.wrong}.get(self.strategy, {}))
        return json.dumps(made[min(request.turn, len(made) - 1)])


def calls(task: Task, outcome: dict[str, str]) -> list[dict[str, str]]:
    """One a turn: what there is, the visible tests, the place; the edits; the tests again; the end."""
    named = dict.fromkeys(node.partition("::")[0] for node in (*task.f2p, *task.p2p))
    tests = [{"tool": "run_tests", "path": path} for path in named if path in task.files][:1]
    place = [{"tool": "read_file", "path": path} for path in sorted(task.gold) if path in task.files]
    return [{"tool": "list_files"}, *tests, *place, *edit_calls(task.files, outcome), *tests, {"tool": "submit"}]


class Ground:
    """Sandbox, harness and verifier for a whole call."""

    def __init__(self, spec: MiningSpec, image: Image, harness: Bundle, verifier: Bundle) -> None:
        engine = open_engine("bubblewrap")
        self.runner = Runner(engine, image.environment, image.root, spec.limits)
        self.verifier = Verifier(verifier, image.environment, image.root, engine, spec.limits)
        self.harness, self.fan_out, self.model = harness, threads(WORKERS), fetch(TinyModel(), cache_folder())

    def play(self, tasks: Sequence[Task], strategy: str) -> list[dict[str, Any]]:
        """A row for each task: what the agent did, and the verdict on what it handed in."""
        requests = [RolloutRequest(task, 0, Purpose.EVALUATION) for task in tasks]
        agent = Agent(self.model, tasks, strategy)
        done, _ = rollout(agent, self.harness, self.runner, requests, SETTING, self.fan_out)
        items = [(task, trajectory.outcome) for task, trajectory in zip(tasks, done, strict=True)]
        verdicts = self.verifier.judge_many(items, self.fan_out)
        return [row(*each) for each in zip(tasks, done, verdicts, strict=True)]


def row(task: Task, done: Trajectory, verdict: Verdict) -> dict[str, Any]:
    """`visible_failures`: of the first and of the last run of the visible tests."""
    failures = [turn.visible["failed"] for turn in done.turns if turn.visible]
    return {
        "task": task.id,
        "solved": verdict.passed,
        "score": verdict.score,
        "verdict": verdict.reason or verdict.status.value,
        "stop": done.reason or done.stop,
        "turns": len(done.turns),
        "tool_errors": sum(turn.tool_error is not None for turn in done.turns),
        "forbidden": len(done.conduct.forbidden),
        "visible_failures": [failures[0], failures[-1]] if len(failures) > 1 else None,
    }


# --- the figure ------------------------------------------------------------------------------------------------------


def measure(path: Path, folder: Path, runs: int) -> dict[str, Any]:
    spec = MiningSpec.model_validate_json(json.dumps(YAML(typ="safe").load(path.read_text(encoding="utf-8"))))
    image = build_image(cache_folder() / "images", "python-pytest", tuple(spec.packages))
    space = workspace(folder / "loop", spec)
    times = [time.perf_counter()]
    found = mine(space, path, image.environment.layer)
    times.append(time.perf_counter())
    say(f"{len(found.tasks)} tasks are mined; proving them, {runs} runs of gold each")
    reasons = refused(space, runs)
    times.append(time.perf_counter())
    proven = [task for task in found.tasks if task.id not in reasons]
    with Bundle(builtin("tools")) as harness, Bundle(builtin("repository")) as verifier:
        ground = Ground(spec, image, harness, verifier)
        rows = {strategy: ground.play(proven, strategy) for strategy in STRATEGIES}
    times.append(time.perf_counter())
    seconds = [round(after - before, 1) for before, after in pairwise(times)]
    return {
        "machine": machine(),
        "load": load(),
        "seconds": dict(zip(("mine", "prove", "agents"), seconds, strict=True)),
        "image": found.image,
        "packages": [source.model_dump(mode="json") for source in spec.sdists],
        **counts(found),
        "refused": reasons,
        **outcome(proven, rows),
    }


def outcome(proven: Sequence[Task], rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    sources, solved = Counter(task.origin for task in proven), {}
    for strategy, played in rows.items():
        solved[strategy] = sum(bool(item["solved"]) for item in played)
    enough = len(proven) >= TASKS and len(sources) >= PACKAGES
    return {
        "proven": len(proven),
        "proven_of": dict(sorted(sources.items())),
        "splits": dict(sorted(Counter(task.split.value for task in proven).items())),
        "families": dict(sorted(Counter(task.family for task in proven).items())),
        "solved": solved,
        "agents": rows,
        "holds": enough and solved["gold"] > 0 and solved["wrong"] == solved["noop"] == 0,
    }


def counts(found: Mined) -> dict[str, Any]:
    """Candidates, losses by proof and tasks, in all and of each source."""
    *rows, whole = found.table()
    losses = {key: count for key, count in whole.items() if key not in ("source", "candidates", "tasks")}
    return {"candidates": whole["candidates"], "losses": losses, "tasks": whole["tasks"], "table": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, default=ROOT / "recipes" / "mined.yaml")
    parser.add_argument("--folder", type=Path, required=True, help="the workspace is made in it, or gone on with")
    parser.add_argument("--runs", type=int, default=5, help="of each gold outcome")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        result = measure(options.spec, options.folder, options.runs)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    rows = [[*item.values(), result["proven_of"].get(item["source"], 0)] for item in result["table"]]
    print(table([*(result["table"] or [{}])[0], "proven"], rows))
    print(f"{result['proven']} of {result['tasks']} tasks are proven; solved: {result['solved']}")
    return EXIT_DONE if result["holds"] else EXIT_NO


if __name__ == "__main__":
    sys.exit(main())

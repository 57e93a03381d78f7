"""Failures of the machine in real rounds, one of each kind, and attempts that exhaust their own limits.

    python -m bench.faults --out FILE.json [--faults NAME ...] [--seed N] [--folder DIR]

killed_sandbox  SIGKILL from outside to every sandbox of one task, and to every sandbox of another one's right answer
killed_once     SIGKILL to each of those only once, to one of its processes in turn: the round must not show it
dead_dockerd    kill -9 to dockerd in the middle of a round on it; it starts again when the run has ended
full_disk       the disk of the workspace is full from some stage on; there is room again when the run has ended
hung_server     a server of completions accepts and never answers; it answers again when the run has ended
own_limits      the policy writes programs that exhaust processor, memory, ...: failures, and not one error

Holds when every record counts its own error verdicts, none of them has a reward, a use edge, a row, a place in a mean or
a bucket of anybody's, and the round ends: at once, or the run stops with exit 3 and one line and the next one goes on.
It needs root, for /proc, a small disk and dockerd. Not covered: a machine that loses power, a network between machines.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ruamel.yaml import YAML

from bench.common import ROOT, cache_folder, environment, machine, postloop, say, table, write_json
from bench.plain import Threads
from environments.sources import default
from evals.metrics import attempt_metrics
from schemas.base import canonical
from schemas.bucket import Route
from schemas.errors import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_NO, InfrastructureError, PostloopError
from schemas.record import STAGES, StageName
from schemas.task import Split, Task
from schemas.trajectory import Attempt
from schemas.verdict import Status
from stages.attempts import read_attempts, read_edges
from stages.context import Context
from stages.models import fetch
from stages.rounds import complete_rounds, run_stage
from stages.samplers import vllm_sampler
from stages.samplers.tokenization import Tokenization
from stages.spec import TEMPLATES, dump_default, load_spec
from stages.tasks import seed_folder, select
from stages.workspace import Workspace

PATIENCE_S = 900.0
SCORES = ("score", "reward", "violations")
RESTARTS = 3
DISK_MIB = 192
MARK = "import time; time.sleep(0.2)  # doomed\n"
SOURCES = [
    {"skill": "repair", "train": 4, "dev": 4, "held_out": 2, "boundary": 1},
    {"skill": "instruction", "retention": 2},
]
DPO = {
    "method": "dpo",
    "name": "dpo",
    "steps": 1,
    "batch_size": 2,
    "groups": 4,
    "group_size": 4,
    "lora": {"r": 2, "alpha": 4},
}
# What an attempt may write to use up what it was given; none of them is the machine's fault.
HOGS = {
    "processor": "while True: pass",
    "memory": "x = []\n    while True: x.append(bytearray(1 << 20))",
    "processes": "import os\n    while True: os.fork()",
    "output": "while True: print('x' * 4096)",
    "disk": "open('/tmp/x', 'wb').write(bytes(1 << 28))",
    "time": "import time; time.sleep(600)",
    "descriptors": "x = [open('/dev/null') for _ in range(10 ** 6)]",
    "exit": "import os; os._exit(0)",
    "own end": "import os; os.kill(os.getpid(), 9)",
    "every end": "import os; os.kill(-1, 9)",
    "stop": "import os; os.kill(os.getppid(), 19); os.kill(os.getpid(), 19)",
}


# --- a small round -------------------------------------------------------------------------------------------------


def small_spec(**changes: Any) -> str:
    """The tiny template with fewer tasks, longer completions, and sections replaced. JSON is YAML too."""
    spec = YAML(typ="safe").load(dump_default("tiny"))
    spec["data"] |= {"sources": SOURCES, "demonstrations": {"gold": {"repair": 2}}}
    spec["sampling"] |= {"engine": "scripted:mixed", "max_tokens": 1400}
    spec["rl"]["phases"] = [DPO]
    spec["runtime"] = {"stage_retries": 0}
    spec["routes"] = [
        {"id": "all", "cause": "any", "route": "data", "when": {}, "because": "errors must not be among them"}
    ]
    return json.dumps({**spec, **changes}, indent=1)


def context(space: Workspace, cache: Path) -> Context:
    spec = load_spec(space.spec_path)
    return Context(space, 1, spec, cache, fan_out=Threads(spec.runtime.workers))


def advance(space: Workspace, cache: Path, until: StageName = "backflow") -> str | None:
    """The open round in this process, without an orchestrator. None at its end, else the line of what stopped it."""
    with space.lock():
        for stage in STAGES[: STAGES.index(until) + 1]:
            try:
                run_stage(context(space, cache), stage)
            except (InfrastructureError, OSError) as error:  # what the command line ends with exit 3 for
                return str(error)
    return None


def doom(space: Workspace, cache: Path) -> None:
    """Give the workspace seed data of its own, in which `# doomed` marks what will be killed: in each split every tree of
    the first task, and the right answer alone of the second. The marked ones take their time, so that nobody is late."""
    ctx = context(space, cache)
    pool = select(default.load(seed_folder(ctx, ctx.spec.data)), ctx.spec.data.sources, ctx.spec.seed)
    for split in (Split.TRAIN, Split.DEV, Split.HELD_OUT):
        places = [place for place, task in enumerate(pool) if task.split is split and task.kind == "function"]
        pool[places[0]] = _marked(pool[places[0]], "files", "gold", "wrong")
        pool[places[1]] = _marked(pool[places[1]], "gold")
    (space.root / "tasks").mkdir()
    lines = b"".join(canonical(task.model_dump(mode="json")) + b"\n" for task in pool)
    (space.root / "tasks" / "tasks.jsonl").write_bytes(lines)
    spec = json.loads(space.spec_path.read_text(encoding="utf-8"))
    spec["data"]["seed_data"] = "tasks"
    space.spec_path.write_text(json.dumps(spec, indent=1), encoding="utf-8")


def _marked(task: Task, *trees: str) -> Task:
    path = task.editable[0]
    changed = {name: {**getattr(task, name), path: MARK + getattr(task, name)[path]} for name in trees}
    return task.model_copy(update=changed)


@dataclass
class Ended:
    """How a `postloop run` ended: exit code, its last words, and whether they are one line as a person should get it."""

    code: int
    told: list[str]
    output: str

    @property
    def stopped(self) -> bool:
        """By the machine, said in one line; what the round had gone on after is told before it, a line each."""
        *notices, last = self.told or [""]
        went_on = all(line.startswith("postloop: ") and line.endswith("; the round goes on") for line in notices)
        return self.code == EXIT_INFRASTRUCTURE and went_on and last.startswith("postloop: ")


@contextlib.contextmanager
def running(space: Workspace) -> Iterator[subprocess.Popen[str]]:
    """`postloop run` in a session of its own. Its words are kept on no disk that a test fills."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            postloop("run", "-w", str(space.root)), stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=ROOT,
            env=environment(), start_new_session=True, text=True,
        )  # fmt: skip
        process.stdout, process.stderr = out, err
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait for the end. Raises InfrastructureError when there is none."""
    try:
        code = process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"postloop run: no end within {PATIENCE_S:.0f} s") from None
    words = []
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.seek(0)
        words.append(stream.read())
    told = [line for line in words[1].splitlines() if not re.match(r"\d\d:\d\d:\d\d |$", line)]  # without the progress
    return Ended(code, told, words[0])


def finish(space: Workspace) -> Ended:
    """Run until the round is complete, a few times at most."""
    for _ in range(RESTARTS):
        with running(space) as process:
            end = ended(process)
        if end.code == EXIT_DONE:
            break
    return end


def wait_for(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    """Until it holds or the process has ended, whichever comes first."""
    while not holds() and process.poll() is None:
        time.sleep(0.02)


# --- what a round shows of it --------------------------------------------------------------------------------------


@dataclass
class Seen:
    """`errors`: error verdicts by stage, as the attempts say. `leaks`: where one of them, or a wrong number, got in."""

    errors: dict[str, int] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return sum(self.errors.values())


def look(space: Workspace, number: int = 1) -> Seen:
    """Read every table of a complete round. What a record says is compared with what its attempts say."""
    seen, records = Seen(), space.records(number)
    tables = {stage: dict(_tables(space, record)) for stage, record in records.items()}
    for stage, record in records.items():
        own = [attempt for attempts in tables[stage].values() for attempt in attempts]
        seen.errors[stage] = sum(map(_lost, own))
        seen.attempts += own
        if record.infrastructure_errors != seen.errors[stage] and stage != "data":  # data keeps what it uses alone
            seen.leaks.append(
                f"{stage}: counts {record.infrastructure_errors} errors, its attempts {seen.errors[stage]}"
            )
    lost = {attempt.trajectory.id for attempt in seen.attempts if _lost(attempt)}
    seen.leaks += [f"{a.trajectory.id}: an error with a number" for a in seen.attempts if _lost(a) and _has_number(a)]
    seen.leaks += [f"{use}: uses {one}" for use, one in _used(space, records) if one in lost]
    seen.leaks += _wrong_means(records["evaluation"], tables["evaluation"])
    seen.leaks += _wrong_buckets(records["backflow"], lost)
    return seen


def _lost(attempt: Attempt) -> bool:
    return attempt.verdict.status is Status.ERROR


def _has_number(attempt: Attempt) -> bool:
    return not attempt.reward.value is attempt.verdict.score is attempt.verdict.passed is None


def _tables(space: Workspace, record: Any) -> Iterator[tuple[str, list[Attempt]]]:
    for name, ref in record.artifacts.items():
        for path in sorted(space.open_artifact(ref).glob("*.parquet")):
            if path.name != "edges.parquet":
                yield f"{name}/{path.stem}", read_attempts(path)


def _used(space: Workspace, records: Mapping[StageName, Any]) -> Iterator[tuple[str, str]]:
    """Every use of a trajectory: edges of rows, pairs and groups, and the rows themselves."""
    for stage, record in records.items():
        for ref in record.artifacts.values():
            folder = space.open_artifact(ref)
            for path in folder.glob("edges.parquet"):
                yield from ((f"{stage}: {edge.use}", edge.trajectory) for edge in read_edges(path) if edge.trajectory)
            for path in folder.glob("demonstrations.jsonl"):
                yield from ((f"{stage}: row", json.loads(line)["id"]) for line in path.read_text("utf-8").splitlines())


def _wrong_means(record: Any, tables: Mapping[str, list[Attempt]]) -> Iterator[str]:
    """Results that no table gives by its scored attempts alone, with the others counted beside them."""
    for result in record.results:
        scores = {name: found for name, found in result.metrics.items() if name.startswith("pass") or name in SCORES}
        k = max(int(name.removeprefix("pass@")) for name in scores if name.startswith("pass@"))
        said = {name: (found.value, found.errors) for name, found in scores.items()}
        own = [rows for name, rows in tables.items() if name.endswith(f"/{result.suite}")]
        if said not in [_without_errors(rows, k) for rows in own]:
            yield f"evaluation: {result.policy} on {result.suite}: {said}, without errors another"


def _without_errors(rows: Sequence[Attempt], k: int) -> dict[str, tuple[float | None, int]]:
    clean = attempt_metrics([row for row in rows if not _lost(row)], k, resamples=10)
    lost = sum(map(_lost, rows))
    return {name: (e.value, e.errors + lost) for name, e in clean.items() if name.startswith("pass") or name in SCORES}


def _wrong_buckets(record: Any, lost: set[str]) -> Iterator[str]:
    """Errors may be shown to whoever runs the machine, and go no further."""
    for bucket in record.buckets:
        if bucket.route is not Route.INFRASTRUCTURE:
            yield from (f"backflow: bucket {bucket.cause} holds {one}" for one in bucket.members if one in lost)
        elif bucket.share.value is not None or any(item.bucket == bucket.id for item in record.material):
            yield f"backflow: bucket {bucket.cause} has a share or material"


def said_by(space: Workspace) -> int:
    """What `postloop status` tells of it."""
    argv = postloop("status", "-w", str(space.root), "--json")
    done = subprocess.run(argv, cwd=ROOT, env=environment(), capture_output=True, check=True)
    return int(json.loads(done.stdout)[0]["infrastructure_errors"])


# --- SIGKILL -------------------------------------------------------------------------------------------------------


class Killer(threading.Thread):
    """Kills sandboxes of `parent`, a process, whose tree holds `# doomed`, from outside, as the kernel may when memory is short.

    `once`: each tree only once, and in turn bubblewrap, the sandbox's first process and the command in it; else always
    bubblewrap.
    """

    def __init__(self, parent: int, once: bool = False) -> None:
        super().__init__(daemon=True)
        self.parent, self.once = parent, once
        self.kills = 0
        self._trees: set[str] = set()
        self._pids: set[int] = set()
        self._over = threading.Event()
        self._broke: BaseException | None = None

    def __enter__(self) -> Killer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        if self._broke is not None:
            raise self._broke

    def run(self) -> None:
        try:
            while not self._over.is_set():
                for outer in children(self.parent):
                    for first in children(outer):
                        self._look(outer, first)
                time.sleep(0.003)
        except BaseException as error:  # noqa: BLE001 - a killer that died would look like a machine that survives
            self._broke = error

    def _look(self, outer: int, first: int) -> None:
        tree = tree_of(first)
        if "# doomed" not in tree or outer in self._pids or (self.once and tree in self._trees):
            return
        command = children(first)
        if self.once and not command:
            return  # it is still being built
        victim = (outer, first, *command)[self.kills % 3] if self.once else outer
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            self.kills += 1
            self._trees.add(tree)
            self._pids.add(outer)


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
        for path in list(Path(f"/proc/{pid}/task").glob("*/children")):
            with contextlib.suppress(OSError):
                found += map(int, path.read_text().split())
    return found


def tree_of(pid: int) -> str:
    """The texts in a sandbox's /work, seen from outside; empty while it is built or when it is gone."""
    try:
        folder = Path(f"/proc/{pid}/root/work")
        return "".join(path.read_text() for path in sorted(folder.glob("*.py")))
    except (OSError, UnicodeDecodeError):
        return ""


def killed_sandbox(options: Options) -> dict[str, Any]:
    """From the data on: a task whose proof fails for the machine stops the data stage, which is tried again."""
    space = options.workspace("killed_sandbox", small_spec())
    doom(space, options.cache)
    with running(space) as process:
        wait_for(process, partial(space.has, 1, "data"))
        with Killer(process.pid) as killer:
            end = ended(process)
    seen = look(space)
    seen.leaks += [f"{a.trajectory.id}: a failure" for a in seen.attempts if a.verdict.limit_hit == "signal"]
    scored = sum(a.verdict.status is Status.SCORED for a in seen.attempts)
    return options.result(
        space, seen, [end], kills=killer.kills, scored=scored, holds=seen.lost > 0 and killer.kills > 0
    )


def killed_once(options: Options) -> dict[str, Any]:
    """With the retries that a round has; the records are those of a round that nobody disturbed."""
    calm, space = (options.workspace(name, small_spec()) for name in ("calm", "killed_once"))
    for one in (calm, space):
        doom(one, options.cache)
    ends = [finish(calm)]
    with running(space) as process:
        wait_for(process, partial(space.has, 1, "goal"))
        with Killer(process.pid, once=True) as killer:
            ends.append(ended(process))
    equal = digests(space) == digests(calm)
    return options.result(space, look(space), ends, kills=killer.kills, equal=equal, holds=equal and killer.kills > 0)


def digests(space: Workspace) -> dict[str, str]:
    return {stage: record.content_digest() for stage, record in space.records(1).items()}


# --- dockerd -------------------------------------------------------------------------------------------------------


def dead_dockerd(options: Options) -> dict[str, Any]:
    """Two moments: while tasks are proven, and while the policies are measured."""
    new = runpy.run_path(str(ROOT / "tests" / "dockerd.py"))["Dockerd"]
    daemons = [new()]
    ends, seen = [], Seen()
    try:
        daemons[-1].start()
        with patch.dict(os.environ, DOCKER_HOST=daemons[-1].url):
            space = options.workspace("dead_dockerd", small_spec(environment={"engine": "docker"}, audit_verifier=None))
            for stage in ("goal", "rl"):
                with running(space) as process:
                    wait_for(process, partial(space.has, 1, stage))
                    time.sleep(1)
                    daemons[-1].stop(signal.SIGKILL)
                    ends.append(ended(process))
                daemons.append(new())
                daemons[-1].start()
                os.environ["DOCKER_HOST"] = daemons[-1].url
            if ends[-1].code != EXIT_DONE:
                ends.append(finish(space))
            seen = look(space)
            return options.result(space, seen, ends, holds=any(end.stopped for end in ends))
    finally:
        for daemon in daemons:
            daemon.remove()


# --- a full disk ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path, mib: int = DISK_MIB) -> Iterator[Path]:
    """A file system of its own in memory. Raises InfrastructureError where it cannot be mounted."""
    folder.mkdir(parents=True)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0755", "tmpfs", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"small disk: {done.stderr.strip()}; it needs root and the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path, left_kib: int = 0) -> Path:
    """Take all room but `left_kib`, for real. Remove the file that is returned to have it back."""
    path = folder / "ballast"
    with path.open("wb") as file:
        for _ in range(100):  # others take some of it meanwhile
            room = os.statvfs(folder)
            free = room.f_bavail * room.f_frsize - (left_kib << 10)
            if free <= 0:
                break
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), path.stat().st_size, free)
    return path


def full_disk(options: Options) -> dict[str, Any]:
    """From each stage on, with no room and with a little, drawn by the seed: a record, an artifact, git or a server fails."""
    draw = random.Random(options.seed)
    calm = options.workspace("calm_disk", small_spec())
    ends = [finish(calm)]
    trials = []
    for stage in STAGES[:-1]:
        with small_disk(options.folder / f"disk-{stage}") as disk:
            space = options.workspace(f"disk-{stage}/loop", small_spec())
            left = draw.choice((0, 16, 256, 2048))
            with running(space) as process:
                wait_for(process, partial(space.has, 1, stage))
                ballast = fill(disk, left)
                end = ended(process)
            before = space.verify()
            ballast.unlink()
            ends.append(finish(space))
            found, wanted = digests(space), digests(calm)
            differ = sorted(name for name in wanted.keys() | found.keys() if found.get(name) != wanted.get(name))
            fine = not differ and (end.stopped or end.code == EXIT_DONE) and not before
            trials.append(
                {"from": stage, "left_kib": left, "code": end.code, "told": end.told, "differ": differ, "holds": fine}
            )
            recovered = all(trial["holds"] for trial in trials)
            failed = any(trial["code"] == EXIT_INFRASTRUCTURE for trial in trials)
            result = options.result(space, look(space), ends, trials=trials, holds=recovered and failed)
    return result  # of all trials so far; the disks are gone by now


# --- a server ------------------------------------------------------------------------------------------------------


class Server:
    """Speaks the protocol of completions with token ids for every folder in `folders()`. `write(prompt, number)` is its policy.

    After `hang()` it accepts whatever comes and never answers, until `answer()`.
    """

    def __init__(
        self, folders: Callable[[], Sequence[Path]], tokens: Tokenization, write: Callable[[str, int], str]
    ) -> None:
        self.count, self.hang_at = 0, -1
        self._open = threading.Event()
        self._open.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._open.wait()
                self.send({"data": [{"id": str(folder), "root": str(folder)} for folder in folders()]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if outer.count == outer.hang_at:
                    outer.hang()
                outer.count += 1
                outer._open.wait()
                text = write(tokens.decode(body["prompt"]), body["seed"])
                ids = [*tokens.encode(text), *tokens.encode(tokens.end)]
                logprobs = {"token_logprobs": [-0.5] * len(ids)}
                choice = {
                    "token_ids": ids,
                    "prompt_token_ids": body["prompt"],
                    "finish_reason": "stop",
                    "logprobs": logprobs,
                }
                self.send({"choices": [choice]})

            def send(self, value: Any) -> None:
                data = json.dumps(value).encode()
                with contextlib.suppress(OSError):  # whoever asked may have gone
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def hang(self) -> None:
        self._open.clear()

    def answer(self) -> None:
        self.hang_at = -1
        self._open.set()

    def close(self) -> None:
        self.answer()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def served(
    options: Options, name: str, write: Callable[[str, int], str], **changes: Any
) -> Iterator[tuple[Workspace, Server]]:
    """A workspace whose policy is such a server."""
    places: list[Workspace] = []
    base = fetch(load_spec(TEMPLATES / "tiny.yaml").model, options.cache)

    def folders() -> list[Path]:
        return [
            base,
            *(path for space in places for path in space.root.glob("artifacts/*/checkpoint-*") if path.is_dir()),
        ]

    server = Server(folders, Tokenization(base), write)
    try:
        spec = json.loads(small_spec(audit_verifier=None, **changes))
        spec["sampling"]["engine"], spec["runtime"]["vllm_url"] = "vllm", server.url
        spec["evaluation"]["temperature"] = 1.0  # at any other one the sampler asks for more than this server knows
        places.append(options.workspace(name, json.dumps(spec, indent=1)))
        yield places[0], server
    finally:
        server.close()


def against_server(options: Options, name: str, kinds: Sequence[str], moments: Sequence[int]) -> dict[str, Any]:
    """A round whose policy writes the programs of HOGS that `kinds` names, in turn, and whose server hangs at its n-th next
    completion, in the middle of a batch, for each of `moments`. In this process, with the patience of a test."""

    turn = itertools.cycle(kinds)

    def write(prompt: str, number: int) -> str:
        names = re.findall(r"def (\w+)\(", prompt)
        if not names:
            return "42"
        return f"```python\ndef {names[-1]}(*arguments, **more):\n    {HOGS[next(turn)]}\n```"

    limits = {"cpu_s": 1.0, "wall_s": 8.0, "memory_mb": 64, "pids": 16, "disk_mb": 8, "output_kb": 16}
    lines = []
    with (
        patch.object(vllm_sampler, "COMPLETION_S", 4.0),
        patch.object(vllm_sampler, "LISTING_S", 2.0),
        served(options, name, write, environment={"limits": limits}) as (space, server),
    ):
        for moment in moments:
            server.hang_at = server.count + moment
            lines.append(advance(space, options.cache))
            server.answer()
        last = advance(space, options.cache)
        stopped = all(line is not None and f"vllm server {server.url}" in line for line in lines)
    seen = look(space)
    ends: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    for attempt in seen.attempts:
        text = "".join(attempt.trajectory.outcome.values())
        for kind in kinds:
            ends[kind].update([_end_of(attempt)] if HOGS[kind] in text else [])
    wrong = [kind for kind in kinds if not ends[kind] or {"error", "passed", "unscored"} & set(ends[kind])]
    hung = all("in time" in str(attempt.verdict.reason) for attempt in seen.attempts if _lost(attempt))
    holds = stopped and last is None and hung and not wrong and (bool(moments) or not seen.lost)
    counts = {kind: dict(found) for kind, found in ends.items()}
    return options.result(space, seen, [], stopped_by=lines, programs=counts, last=last, holds=holds)


def hung_server(options: Options) -> dict[str, Any]:
    return against_server(options, "hung_server", ("exit",), (0, 5, 30))


def own_limits(options: Options) -> dict[str, Any]:
    return against_server(options, "own_limits", tuple(HOGS), ())


def _end_of(attempt: Attempt) -> str:
    verdict = attempt.verdict
    if verdict.status is not Status.SCORED or verdict.passed:
        return "passed" if verdict.passed else verdict.status.value
    return f"failed: {verdict.limit_hit or 'checks'}"


# --- all of them ---------------------------------------------------------------------------------------------------


@dataclass
class Options:
    """Where, with which cache, and what is drawn."""

    folder: Path
    cache: Path
    seed: int = 0

    def workspace(self, name: str, spec: str) -> Workspace:
        return Workspace.create(self.folder / name, spec)

    def result(self, space: Workspace, seen: Seen, ends: Sequence[Ended], holds: bool, **more: Any) -> dict[str, Any]:
        """`holds`: what this fault must show beside what holds for all."""
        told = said_by(space)
        whole = complete_rounds(space) == 1 and all(end.code == EXIT_DONE or end.stopped for end in ends)
        return {
            "attempts": len(seen.attempts), "errors": seen.errors, "status_says": told, "leaks": seen.leaks,
            "runs": [{"code": end.code, "told": end.told} for end in ends], **more,
            "holds": holds and whole and not seen.leaks and told >= seen.lost,
        }  # fmt: skip


FAULTS: dict[str, Callable[[Options], dict[str, Any]]] = {
    "killed_sandbox": killed_sandbox,
    "killed_once": killed_once,
    "dead_dockerd": dead_dockerd,
    "full_disk": full_disk,
    "hung_server": hung_server,
    "own_limits": own_limits,
}


def measure(names: Sequence[str], options: Options) -> dict[str, Any]:
    result: dict[str, Any] = {"machine": machine(), "seed": options.seed, "faults": {}}
    for name in names:
        began = time.monotonic()
        found = FAULTS[name](options)
        result["faults"][name] = {**found, "seconds": round(time.monotonic() - began, 1)}
        say(f"{name}: {'holds' if found['holds'] else 'DOES NOT HOLD'} ({result['faults'][name]['seconds']} s)")
    result["holds"] = all(found["holds"] for found in result["faults"].values())
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="+", choices=tuple(FAULTS), default=list(FAULTS))
    parser.add_argument("--seed", type=int, default=0, help="draws the moments of the full disk")
    parser.add_argument("--folder", type=Path, help="where the workspaces go; default: a temporary folder")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            place = Options(options.folder or Path(temporary), cache_folder(), options.seed)
            result = measure(options.faults, place)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    rows = [
        [name, found["attempts"], sum(found["errors"].values()), len(found["leaks"]), "yes" if found["holds"] else "NO"]
        for name, found in result["faults"].items()
    ]
    print(table(["fault", "attempts", "error verdicts", "of them used", "holds"], rows))
    return EXIT_DONE if result["holds"] else EXIT_NO


if __name__ == "__main__":
    sys.exit(main())

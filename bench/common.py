"""What the benchmarks share: one JSON form, where a figure was measured, the command line as a subprocess.

Every benchmark is `python -m bench.NAME --out FILE.json`; the file holds the result and nothing that was typed in.
Not covered: statistics, which are those of evals/metrics.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from schemas.errors import InfrastructureError, InputError
from schemas.metrics import Estimate
from stages.artifacts import write_durably
from stages.workspace import Workspace

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("torch", "transformers", "trl", "peft", "prefect", "dvc", "mlflow")
TAIL = 15  # lines of a failed command's output that are shown


def say(text: str) -> None:
    """Progress, to stderr: results go to stdout."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def write_json(path: Path, value: Any) -> None:
    """Temporary file, flush, rename: a killed benchmark leaves the old figure or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_durably(path, f"{text}\n".encode())


def cache_folder() -> Path:
    """Models, images and seed data: $POSTLOOP_CACHE, else .cache beside the sources, as `make` has it."""
    return Path(os.environ.get("POSTLOOP_CACHE") or ROOT / ".cache").resolve()


def environment() -> dict[str, str]:
    """For a subprocess: the shared cache, our sources, no other server than its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ours = {"POSTLOOP_CACHE": str(cache_folder()), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "PYTHONPATH": path}
    return {**kept, **ours}


def postloop(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", *arguments]


def timed(argv: Sequence[str], log: Path, timeout_s: float | None = None) -> float:
    """Wall seconds of a command whose output goes to `log`. Raises InfrastructureError unless it exits with 0."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with log.open("ab") as output:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=environment(),
            timeout=timeout_s, check=False,
        )  # fmt: skip
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        tail = "\n  ".join(log.read_text("utf-8", "replace").splitlines()[-TAIL:])
        raise InfrastructureError(f"{' '.join(argv[1:])}: exit {done.returncode}; see {log}\n  {tail}")
    return seconds


def make_workspace(folder: Path, template: str, seed: int) -> Workspace:
    """The workspace of a seed, made from the template with its one `seed:` line edited. One that is there is reused.

    Raises InputError when the folder's goal.yaml is another one: figures of two specs must not be mixed.
    """
    from stages.spec import dump_default

    origin = dump_default("tiny" if template == "tiny" else "default")
    text, edits = re.subn(r"(?m)^seed: \d+$", f"seed: {seed}", origin)
    if edits != 1:
        raise InputError(f"template {template}: {edits} lines `seed: N`, expected 1; correct the template")
    if not (folder / "goal.yaml").is_file():
        return Workspace.create(folder, text)
    if (folder / "goal.yaml").read_text(encoding="utf-8") != text:
        raise InputError(f"workspace {folder}: its goal.yaml is not the template with seed {seed}; name another folder")
    return Workspace.open(folder)


def run_rounds(space: Workspace, rounds: int, log: Path) -> float:
    """Bring a workspace to `rounds` complete rounds by the command line; 0.0 seconds when it has them already."""
    from stages.rounds import complete_rounds

    if complete_rounds(space) >= rounds:
        say(f"{space.root}: has {rounds} rounds")
        return 0.0
    say(f"{space.root}: running up to round {rounds}; output in {log}")
    return timed(postloop("run", "--rounds", str(rounds), "-w", str(space.root)), log)


def machine() -> dict[str, Any]:
    """Where a figure was measured: provenance, compared with nothing."""
    from importlib.metadata import version

    model = re.search(r"(?m)^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")))
    memory = re.search(r"(?m)^MemTotal:\s*(\d+) kB$", _text(Path("/proc/meminfo")))
    return {
        "processor": model.group(1) if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.group(1)) / 2**20, 1) if memory else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def load() -> float:
    """Runnable processes, mean of the last minute. Above the cores, times are not those of a quiet machine."""
    return round(os.getloadavg()[0], 2)


def sources_digest(patterns: Iterable[str]) -> str:
    """Digest of the relative paths and contents of our files that match; byte code does not count."""
    found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file() and path.suffix != ".pyc"}
    whole = hashlib.sha256()
    for path in sorted(found):
        whole.update(f"{path.relative_to(ROOT).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median with the extremes: wall times have a long right tail, so no mean and no standard deviation."""
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
        "n": len(values),
        "all": [round(value, 4) for value in values],
    }


def share(estimate: Estimate | dict[str, Any] | None, signed: bool = False) -> str:
    """`0.421 [0.350, 0.497]`; `-` where there is no data."""
    if estimate is None:
        return "-"
    e = Estimate.model_validate(estimate)
    if e.value is None:
        return "-"
    form = "+.3f" if signed else ".3f"
    if e.low is None or e.high is None:
        return f"{e.value:{form}}"
    return f"{e.value:{form}} [{e.low:{form}}, {e.high:{form}}]"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)

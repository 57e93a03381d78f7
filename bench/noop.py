"""How long `postloop run` takes when there is nothing to do, and that it then leaves everything as it was.

    python -m bench.noop --out FILE.json [--workspace DIR | --folder DIR] [--rounds N] [--runs N]

On a complete workspace (--workspace), or on a tiny one that is made and completed in --folder first.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import common
from bench.common import make_workspace, postloop, say, spread, table, write_json
from schemas.errors import IntegrityError, PostloopError
from stages.rounds import complete_rounds
from stages.workspace import Workspace

LIMIT_S = 3.0


def snapshot(root: Path) -> str:
    """Digest of every path, size and time of change outside .postloop, which may be deleted at any time; .git too."""
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if ".postloop" not in path.relative_to(root).parts[:1]:
            stat = path.lstat()
            whole.update(f"{path.relative_to(root)}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return whole.hexdigest()


def once(space: Workspace, rounds: int) -> float:
    """Wall seconds of one no-op run. Raises IntegrityError when it was not one."""
    before, began = snapshot(space.root), time.perf_counter()
    done = subprocess.run(
        postloop("run", "--rounds", str(rounds), "-w", str(space.root)),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        cwd=common.ROOT, env=common.environment(),
    )  # fmt: skip
    seconds = time.perf_counter() - began
    if done.returncode != 0 or done.stdout.strip() != "up to date":
        said = (done.stderr or done.stdout).strip()[:300]
        raise IntegrityError(f"{space.root}: expected exit 0 and 'up to date', got {done.returncode} and {said!r}")
    if snapshot(space.root) != before:
        raise IntegrityError(f"{space.root}: a run with nothing to do changed something outside .postloop")
    return seconds


def measure(workspace: Path | None, folder: Path, rounds: int, runs: int) -> dict[str, Any]:
    if workspace is not None:
        space = Workspace.open(workspace)
    else:
        space = make_workspace(folder / "workspace", "tiny", seed=0)
        common.run_rounds(space, rounds, folder / "workspace.log")
    complete = complete_rounds(space)
    if complete < rounds:
        raise IntegrityError(f"{space.root}: {complete} complete rounds, expected {rounds}; finish it first")
    first = once(space, rounds)  # reads the sources from disk; not counted, but shown
    seconds = spread([once(space, rounds) for _ in range(runs)])
    return {
        "machine": common.machine(),
        "load": common.load(),
        "rounds": rounds,
        "template": space.spec_path.read_text(encoding="utf-8").split("name: ")[1].split()[0],
        "first_s": round(first, 3),
        "seconds": seconds,
        "limit_s": LIMIT_S,
        "within_limit": seconds["median"] <= LIMIT_S,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", type=Path, help="a complete workspace; it is not changed")
    parser.add_argument("--folder", type=Path, default=Path("proofs/work/noop"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        result = measure(options.workspace, options.folder.resolve(), options.rounds, options.runs)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    times = result["seconds"]
    print(table(["no-op run, seconds", "median", "max", "runs"], [["", times["median"], times["max"], times["n"]]]))
    return 0 if result["within_limit"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""A flipped bit in a stored object: refused by name, by `postloop verify` and by the stage that would use it?

    python -m bench.integrity --out FILE.json (--workspace DIR | --folder DIR) [--flips N] [--quick]

On a copy of a complete workspace (--workspace), else of the default's first round, which is made in --folder. Each trial
flips one seeded bit of one stored file, drawn uniformly from all files of all artifacts, keeps its size, mode and times,
and repairs it after. Where DVC linked its cache object to the file they are one inode, so both are damaged at once.
Refused by name: one line with the artifact, the file and both digests, the found one computed here. Some trials run the
whole command, which has to name exactly that file. Some ask plain DVC what it serves: `dvc status`, `dvc checkout` of a
removed folder, and `dvc pull` in a fresh clone whose remote is the damaged cache. Some flip the cached copy alone (the
list of a folder's files, or an object that DVC copied), which is met when the folder has to be fetched again.
Not covered: a flip after the first use in one process, which checks each artifact once; flips in records, which git and
`postloop verify` hold; more than one flip at a time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import common
from bench.common import make_workspace, postloop, say, table, write_json
from schemas.artifact import ArtifactRef
from schemas.errors import EXIT_DONE, EXIT_NO, InfrastructureError, IntegrityError, PostloopError
from stages import artifacts, dvc
from stages.workspace import Workspace

SEED = 0
FLIPS, QUICK_FLIPS = 1000, 100
WHOLE, DVC, CACHED = 20, 20, 20  # trials of the slower kinds
LEFT_OUT = {".postloop"}  # caches: the largest part of a workspace, and none of it is stored content


@dataclass(frozen=True)
class Flip:
    """One bit of one file of an artifact. `path` is the file's place on disk."""

    ref: ArtifactRef
    file: str
    path: Path
    byte: int
    bit: int
    recorded: str  # sha256 in the manifest


def copied(space: Workspace, target: Path) -> Workspace:
    """The workspace without its caches, in one call, so that what was one inode there is one inode here."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    entries = [str(entry) for entry in sorted(space.root.iterdir()) if entry.name not in LEFT_OUT]
    subprocess.run(["cp", "-a", "--", *entries, str(target)], check=True)
    return Workspace.open(target)


def drawn(space: Workspace, count: int, seed: int) -> list[Flip]:
    """`count` flips; the file uniform over all that are not empty, then byte and bit uniform."""
    stream = random.Random(seed)
    stored = [
        (ref, entry)
        for ref in space.refs()
        for entry in _manifest(space, ref).entries
        if entry.bytes > 0
    ]  # fmt: skip
    flips = []
    for _ in range(count):
        ref, entry = stream.choice(stored)
        byte, bit = stream.randrange(entry.bytes), stream.randrange(8)
        flips.append(Flip(ref, entry.path, space.root / ref.path / entry.path, byte, bit, entry.sha256))
    return flips


def _manifest(space: Workspace, ref: ArtifactRef) -> Any:
    manifest = artifacts.read_manifest(space, ref)
    if manifest is None:
        raise IntegrityError(f"artifact {ref.path}: its manifest is missing or damaged; restore it with git")
    return manifest


def toggle(path: Path, byte: int, bit: int) -> None:
    """Flip one bit in place: the same inode, size, mode and times (only the inode's change time moves on)."""
    before = path.stat()
    path.chmod(stat.S_IMODE(before.st_mode) | stat.S_IWUSR)
    with path.open("r+b", buffering=0) as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ 1 << bit]))
    path.chmod(stat.S_IMODE(before.st_mode))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    same = [(s.st_ino, s.st_size, s.st_mode, s.st_mtime_ns, s.st_nlink) for s in (before, after)]
    if same[0] != same[1]:
        raise InfrastructureError(f"{path}: the flip did not keep inode, size, mode and time: {same}")


@contextmanager
def flipped(path: Path, byte: int, bit: int) -> Iterator[None]:
    toggle(path, byte, bit)
    try:
        yield
    finally:
        toggle(path, byte, bit)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def names(line: str, flip: Flip, found: str) -> bool:
    """The line has the artifact, the file and both digests."""
    return line.startswith(
        f"artifact {flip.ref.path}: {flip.file}: sha256 recorded {flip.recorded[:12]}, found {found[:12]}; "
    )


def used(space: Workspace, ref: ArtifactRef) -> str:
    """What a stage of a new process is told when it opens the artifact; empty when it is served."""
    artifacts.forget()
    try:
        space.open_artifact(ref)
    except IntegrityError as error:
        return str(error)
    return ""


def trial(space: Workspace, flip: Flip) -> dict[str, Any]:
    """One flip: is it refused by name, and is the artifact intact again after the repair?"""
    with flipped(flip.path, flip.byte, flip.bit):
        found = sha256(flip.path)
        lines = artifacts.problems_of(space, flip.ref)
        said = used(space, flip.ref)
    return {
        "file": f"{flip.ref.path}/{flip.file}",
        "byte": flip.byte,
        "bit": flip.bit,
        "links": flip.path.stat().st_nlink,
        "verify": len(lines) == 1 and names(lines[0], flip, found),
        "use": names(said, flip, found),
    }


def whole(space: Workspace, flip: Flip) -> bool:
    """`postloop verify` as a command: exit 1, and exactly this file."""
    with flipped(flip.path, flip.byte, flip.bit):
        found = sha256(flip.path)
        done = _run(postloop("verify", "--json", "-w", str(space.root)), common.ROOT)
    if done.returncode not in (EXIT_DONE, EXIT_NO):
        raise InfrastructureError(f"postloop verify: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    problems = json.loads(done.stdout)["problems"]
    return done.returncode == EXIT_NO and len(problems) == 1 and names(problems[0], flip, found)


def _run(argv: Sequence[str], cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=cwd,
        env={**common.environment(), "DVC_NO_ANALYTICS": "1", **variables},
    )  # fmt: skip


# --- what plain DVC does


@contextmanager
def held(space: Workspace, ref: ArtifactRef, spare: Path) -> Iterator[None]:
    """Afterwards folder and cache hold the inodes that they held before, whatever was removed in between."""
    folder = space.root / ref.path
    keep = {path: spare / str(number) for number, path in enumerate(_objects(space, ref))}
    spare.mkdir(parents=True)
    for path, link in keep.items():
        os.link(path, link)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for path, link in keep.items():
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(link, path)
        shutil.rmtree(spare)


def _objects(space: Workspace, ref: ArtifactRef) -> list[Path]:
    """Files of the folder and its objects in the cache."""
    files = [path for path in sorted((space.root / ref.path).rglob("*")) if path.is_file()]
    return files + list(dict.fromkeys(dvc.objects_of(space.root, ref.path)))


def served(space: Workspace, flip: Flip, work: Path) -> dict[str, str]:
    """What each plain DVC command does with the flipped object: `silent` (flipped bytes as if they were good) or not."""
    found = {}
    state = {"DVC_SITE_CACHE_DIR": str(work / "site")}
    program = [sys.executable, "-m", "dvc"]
    pointer = f"{flip.ref.path}.dvc"
    _run([*program, "status", pointer], space.root, **state)  # what DVC knows of the good file, as after any use
    linked = flip.path.stat().st_nlink > 1
    with held(space, flip.ref, work / "held"), flipped(flip.path, flip.byte, flip.bit):
        bad = sha256(flip.path)
        done = _run([*program, "status", pointer], space.root, **state)
        found["status"] = "silent" if done.returncode == 0 and "up to date" in done.stdout else "changed"
        clone = _clone(space, work / "clone", program, state)
        pulled = _run([*program, "pull", pointer], clone, **state)
        found["pull_in_clone"] = _answer(pulled.returncode, clone / flip.ref.path / flip.file, bad)
        found["use_in_clone"] = _use_in(clone, flip, bad)
        shutil.rmtree(clone)
        aside = work / "aside"
        (space.root / flip.ref.path).rename(aside)
        done = _run([*program, "checkout", "--force", pointer], space.root, **state)
        found["checkout"] = _answer(done.returncode, space.root / flip.ref.path / flip.file, bad)
        shutil.rmtree(space.root / flip.ref.path, ignore_errors=True)
        aside.rename(space.root / flip.ref.path)
    return found | {"linked": "yes" if linked else "no"}


def _clone(space: Workspace, clone: Path, program: list[str], state: dict[str, str]) -> Path:
    shutil.rmtree(clone, ignore_errors=True)
    for argv, place in (
        (["git", "clone", "--quiet", str(space.root), str(clone)], space.root),
        ([*program, "remote", "add", "--default", "store", str(space.root / ".dvc" / "cache")], clone),
    ):
        done = _run(argv, place, **state)
        if done.returncode != 0:
            raise InfrastructureError(f"{' '.join(argv[:3])}: {done.stderr.strip()[-300:]}")
    return clone


def _answer(code: int, path: Path, bad: str) -> str:
    if not path.is_file():
        return "refused" if code else "nothing"
    if sha256(path) == bad:
        return "silent" if code == 0 else "served, exit not 0"
    return "good bytes"


def _use_in(clone: Path, flip: Flip, bad: str) -> str:
    """What a stage of ours says in the clone. Good bytes come where DVC's cache held a copy of its own."""
    if not (clone / flip.ref.path).is_dir():
        return "nothing was pulled"
    said = used(Workspace.open(clone), flip.ref)
    if not said and sha256(clone / flip.ref.path / flip.file) == flip.recorded:
        return "good bytes"
    return "refused by name" if names(said, flip, bad) else f"NOT REFUSED: {said or 'served'}"


# --- the cached copy alone


def cached_only(space: Workspace) -> list[tuple[ArtifactRef, Path]]:
    """Cache objects that no file of their artifact's folder is linked to: lists of files, and copies."""
    found = []
    for ref in space.refs():
        inodes = {path.stat().st_ino for path in (space.root / ref.path).rglob("*") if path.is_file()}
        kept = [(path, path.stat()) for path in dvc.objects_of(space.root, ref.path)]
        found += [(ref, path) for path, at in kept if at.st_size > 0 and at.st_ino not in inodes]
    return found


def fetched_again(space: Workspace, ref: ArtifactRef, path: Path, stream: random.Random, work: Path) -> str:
    """The folder is gone and its cached copy has a flipped bit: what does a stage get? `good bytes` or an error's start."""
    byte, bit = stream.randrange(path.stat().st_size), stream.randrange(8)
    with held(space, ref, work / "held"), flipped(work / "held" / _index(space, ref, path), byte, bit):
        shutil.rmtree(space.root / ref.path)
        artifacts.forget()
        try:
            space.open_artifact(ref)
        except PostloopError as error:
            return "refused" if ref.path in str(error) else f"refused without the artifact's name: {error}"
        return "good bytes" if not artifacts.problems_of(space, ref) else "SERVED"


def _index(space: Workspace, ref: ArtifactRef, path: Path) -> str:
    return str(_objects(space, ref).index(path))


# --- together


def measure(space: Workspace, flips: int, slow: int, folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    before = space.verify()
    if before:
        raise IntegrityError(f"the copy is damaged before the first flip: {before[0]}")
    chosen = drawn(space, flips, SEED)
    trials = []
    for number, flip in enumerate(chosen, 1):
        trials.append(trial(space, flip))
        if number % 100 == 0:
            say(f"{number} of {flips} flips, {sum(t['verify'] and t['use'] for t in trials)} refused by name")
    sample = random.Random(SEED).sample(chosen, min(slow, len(chosen)))
    exact = [whole(space, flip) for flip in sample[:WHOLE]]
    say(f"postloop verify: {sum(exact)} of {len(exact)} name exactly the file")
    answers = [served(space, flip, folder) for flip in sample[:DVC]]
    say(f"plain DVC: {counts(answers)}")
    stream = random.Random(SEED)
    copies = cached_only(space)
    again = [fetched_again(space, *stream.choice(copies), stream, folder) for _ in range(min(slow, CACHED))]
    say(f"cached copy alone: {dict(Counter(again))}")
    refs = space.refs()
    return {
        "machine": common.machine(),
        "load": common.load(),
        "seed": SEED,
        "artifacts": len(refs),
        "files": sum(ref.files for ref in refs),
        "bytes": sum(ref.bytes for ref in refs),
        "flips": len(trials),
        "distinct_files": len({t["file"] for t in trials}),
        "linked_to_cache": sum(t["links"] > 1 for t in trials),
        "refused_by_verify": sum(t["verify"] for t in trials),
        "refused_by_use": sum(t["use"] for t in trials),
        "whole_command": {"runs": len(exact), "exact": sum(exact)},
        "plain_dvc": {"flips": len(answers), **counts(answers)},
        "cached_copy_alone": {"flips": len(again), **Counter(again)},
        "intact_after": not space.verify(),
        "seconds": round(time.monotonic() - began, 1),
        "trials": trials,
    }


def counts(answers: Sequence[dict[str, str]]) -> dict[str, dict[str, int]]:
    asked = list(answers[0]) if answers else []
    return {name: dict(Counter(answer[name] for answer in answers)) for name in asked}


def holds(result: dict[str, Any]) -> bool:
    """What is ours: everything refused by name. What DVC serves is reported, and nothing is claimed of it."""
    whole_command, dvc_ = result["whole_command"], result["plain_dvc"]
    return bool(
        result["flips"] == result["refused_by_verify"] == result["refused_by_use"] > 0
        and whole_command["runs"] == whole_command["exact"] > 0
        and set(dvc_["use_in_clone"]) <= {"refused by name", "good bytes", "nothing was pulled"}
        and dvc_["use_in_clone"].get("refused by name", 0) == dvc_["pull_in_clone"].get("silent", 0)
        and set(result["cached_copy_alone"]) <= {"flips", "refused", "good bytes"}
        and result["intact_after"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", type=Path, help="a complete workspace; it is copied and not changed")
    parser.add_argument("--folder", type=Path, help="where the workspace is made and the copy goes; default: temporary")
    parser.add_argument("--flips", type=int, default=FLIPS)
    parser.add_argument("--slow", type=int, default=DVC, help="flips of each of the slower kinds, at most 20")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_FLIPS} flips")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.folder or Path(temporary)).resolve()
            space = Workspace.open(options.workspace) if options.workspace is not None else _made(folder)
            say(f"copying {space.root}")
            copy = copied(space, folder / "copy")
            flips = QUICK_FLIPS if options.quick else options.flips
            result = measure(copy, flips, options.slow, folder / "trial")
            shutil.rmtree(copy.root)
            shutil.rmtree(folder / "trial", ignore_errors=True)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    rows = [[result["flips"], result["refused_by_verify"], result["refused_by_use"]]]
    print(table(["flips", "refused by verify", "refused at use"], rows))
    print(table(["plain DVC", *result["plain_dvc"]], [["", *result["plain_dvc"].values()]]))
    return EXIT_DONE if holds(result) else EXIT_NO


def _made(folder: Path) -> Workspace:
    space = make_workspace(folder / "workspace", "default", seed=SEED)
    common.run_rounds(space, 1, folder / "workspace.log")
    return space


if __name__ == "__main__":
    sys.exit(main())

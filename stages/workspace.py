"""A workspace on disk: specs, records, artifacts, locks. The record is the commit point.

A stage's artifacts are stored and flushed first, then handed to DVC, then its telemetry and the round's pins are
written, and the record last, by rename; a git commit follows and may be made up for later. So a kill at any instant
leaves either the old state or the new one, and the next start needs no repair by hand: `with workspace.lock():` clears
what a killed run left and commits what it had recorded.

Not covered: several machines writing one workspace over a network file system without working locks.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.artifact import ArtifactRef
from schemas.atif import ForeignImport
from schemas.backflow import BackflowRecord
from schemas.data import DataRecord
from schemas.errors import InfrastructureError, InputError, IntegrityError, WorkspaceBusy
from schemas.evaluation import EvaluationRecord
from schemas.goal import GoalRecord
from schemas.migrations import brought_up, stamped
from schemas.pins import RunPin
from schemas.record import STAGES, Record, StageName
from schemas.rescore import Rescore
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from stages import artifacts, git, pins
from stages.artifacts import disk_errors, make_folder, pretty, write_durably
from stages.spec import load_spec

RECORDS: dict[StageName, type[Record]] = {
    "goal": GoalRecord,
    "data": DataRecord,
    "sft": SftRecord,
    "rl": RlRecord,
    "evaluation": EvaluationRecord,
    "backflow": BackflowRecord,
}
IMPORTS = "trajectories"  # a record for each import of foreign trajectories
ATTRIBUTIONS = "attributions"  # answers of `postloop attribute`: stages/attributed.py reads and appends them
DECISIONS = "decisions"  # what people decided: stages/decisions.py reads and appends them
_RECORDED = ("rounds", "rescores", IMPORTS)  # folders of records
LOCK_PATIENCE_S = 2.0  # a process that was being started when its parent was killed holds the lock until its exec
_STORE = (*_RECORDED, "artifacts", "datasets", "reports")
# By the shape of a name, and folders only: DVC reads `/artifacts/*/*` as ignoring artifacts/data/ itself, and then a
# person's own `dvc checkout` or `dvc push` silently finds no pointer.
_IGNORE = """\
/.postloop/
/reports/
/artifacts/*/*-????????????/
.*.tmp
"""
_README = """\
# A postloop workspace

`goal.yaml` says what is wanted; edit it, then `postloop check` and `postloop run`.
`rounds/` holds the records, `artifacts/` the content (DVC; `postloop verify` checks every byte), `decisions/` what
people decided, `attributions/` what `postloop attribute` found, `trajectories/` what was imported from elsewhere.
`git log` is the history of the loop. `.postloop/` holds caches and may be deleted.
"""


class Workspace:
    """The folder of one loop. Reading needs no lock; `commit`, `sweep` and `settle` belong inside `with lock()`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def create(cls, root: Path, spec_text: str) -> Workspace:
        """A new workspace around this goal.yaml, whole or not at all. `root` must be missing or empty.

        Raises InputError, SpecError (with nothing written), InfrastructureError.
        """
        root = Path(os.path.abspath(root))
        if root.is_symlink() or (root.exists() and not (root.is_dir() and not any(root.iterdir()))):
            raise InputError(f"workspace {root}: there is something already; name a folder that is new or empty")
        with disk_errors(f"workspace {root}"):
            root.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(root)
            tmp = Path(tempfile.mkdtemp(prefix=f".{root.name}.new-{os.getpid()}-", dir=root.parent))
            try:
                _furnish(tmp, spec_text)
                tmp.rename(root)
            finally:
                shutil.rmtree(tmp, ignore_errors=True)
            artifacts.flush_folder(root.parent)
        return cls(root)

    @classmethod
    def open(cls, root: Path) -> Workspace:
        """Raises InputError when `root` is not a workspace."""
        root = Path(os.path.abspath(root))
        for needed in ("goal.yaml", ".git", ".dvc/config"):
            if not (root / needed).exists():
                known = needed == "goal.yaml" and (root / ".dvc").is_dir()
                remedy = (
                    "bring it back with `git checkout goal.yaml`" if known else "make one with `postloop init FOLDER`"
                )
                raise InputError(f"workspace {root}: it is none, {needed} is missing; {remedy}")
        return cls(root)

    @property
    def spec_path(self) -> Path:
        return self.root / "goal.yaml"

    @property
    def scratch(self) -> Path:
        """Caches and local servers' files; may be deleted at any time."""
        folder = self.root / ".postloop"
        folder.mkdir(exist_ok=True)
        return folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the one writer, after clearing what a killed one left. Freed by the kernel when its owner dies.

        Raises WorkspaceBusy naming the process that holds it.
        """
        self._acquire()
        try:
            self.sweep()
            self.settle()
            yield
        finally:
            self._release()

    @property
    def locked(self) -> bool:
        """Whether this process is the writer."""
        return self.root.resolve() in _HELD

    def _acquire(self) -> None:
        path = self.scratch / "lock"
        until = time.monotonic() + LOCK_PATIENCE_S
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(descriptor)
                if time.monotonic() < until:
                    time.sleep(0.05)
                    continue
                raise WorkspaceBusy(
                    f"workspace {self.root}: process {holder} is running in it; wait until it ends, or stop it"
                ) from None
            if _is_at(descriptor, path):
                break
            os.close(descriptor)  # .postloop/ was deleted between opening and locking
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        _HELD[self.root.resolve()] = descriptor

    def _release(self) -> None:
        descriptor = _HELD.pop(self.root.resolve(), None)
        if descriptor is not None:
            os.close(descriptor)

    def _require_lock(self) -> None:
        """Also after somebody deleted .postloop/ while we ran: take the new file's lock, or refuse."""
        descriptor = _HELD.get(self.root.resolve())
        if descriptor is None:
            raise RuntimeError("write to a workspace inside `with workspace.lock():`")
        if not _is_at(descriptor, self.scratch / "lock"):
            try:
                self._release()
                self._acquire()
            except WorkspaceBusy as error:
                raise WorkspaceBusy(f"{error}; .postloop/ was deleted while this process ran") from error

    def rounds(self) -> list[int]:
        """Numbers of the rounds that have a record, ascending."""
        found = (path for path in (self.root / "rounds").glob("*") if re.fullmatch(r"\d{4,}", path.name))
        return sorted(int(path.name) for path in found if any((path / f"{stage}.json").is_file() for stage in STAGES))

    def folder(self, number: int) -> Path:
        if number < 1:
            raise InputError(f"round {number}: rounds are numbered from 1")
        return self.root / "rounds" / f"{number:04d}"

    def has(self, number: int, stage: StageName) -> bool:
        return (self.folder(number) / f"{stage}.json").is_file()

    def open_artifact(self, ref: ArtifactRef) -> Path:
        """`artifacts.open_artifact`: the folder, checked. Raises IntegrityError."""
        return artifacts.open_artifact(self, ref)

    def read(self, number: int, stage: StageName) -> Record | None:
        """The record, as the class of its stage, or None. Raises IntegrityError when it is damaged."""
        path = self.folder(number) / f"{stage}.json"
        name = path.relative_to(self.root).as_posix()
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return RECORDS[stage].model_validate_json(json.dumps(stamped(brought_up(stage, name, json.loads(raw)))))
        except (ValueError, AttributeError, TypeError) as error:
            remedy = f"restore it with `git checkout -- {name}`"
            raise IntegrityError(f"{name}: not a {stage} record: {_first(error)}; {remedy}") from error

    def stored(self, number: int, stage: StageName) -> dict[str, Any]:
        """The record as it was written, without what its schema has since got. Call it after `read`, which checks it."""
        content: dict[str, Any] = json.loads((self.folder(number) / f"{stage}.json").read_bytes())
        return content

    def records(self, number: int) -> dict[StageName, Record]:
        """Records of a round in the order of the stages."""
        found = ((stage, self.read(number, stage)) for stage in STAGES)
        return {stage: record for stage, record in found if record is not None}

    def telemetry(self, number: int, stage: StageName) -> dict[str, Any]:
        """Times and counts of a stage; empty when there are none."""
        path = self.folder(number) / "telemetry" / f"{stage}.json"
        try:
            content = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def pins(self, number: int) -> RunPin | None:
        """The run pin as it was written with the round's last record. Raises InputError, IntegrityError."""
        path = self.folder(number) / "pins.json"
        name = path.relative_to(self.root).as_posix()
        if not path.is_file():
            return None
        try:
            return RunPin.model_validate(brought_up("pins", name, json.loads(path.read_bytes())))
        except (ValueError, TypeError, AttributeError) as error:
            remedy = f"restore it with `git checkout -- {name}`"
            raise IntegrityError(f"{name}: no run pin: {_first(error)}; {remedy}") from error

    def commit(self, number: int, record: Record, telemetry: Mapping[str, Any]) -> None:
        """Make the stage done: artifacts to DVC, telemetry, pins, then the record, then git.

        Raises InputError when the stage has a record already, InfrastructureError when disk, DVC or git fail: then
        there is no record (or, if only git failed, one that the next start commits).
        """
        self._require_lock()
        if self.read(number, record.stage) is not None:
            raise InputError(f"round {number}: {record.stage} has a record; it is written once, so start a new round")
        subject = f"round {number}: {record.stage}"
        sidecar = pretty(json.loads(json.dumps(telemetry, default=str)))
        with disk_errors(subject):
            self._track(record.artifacts.values())
            folder = self.folder(number)
            make_folder(folder / "telemetry")
            write_durably(folder / "telemetry" / f"{record.stage}.json", sidecar)
            everything = {**self.records(number), record.stage: record}
            write_durably(folder / "pins.json", pretty(self._derive(everything)))
            write_durably(folder / f"{record.stage}.json", pretty(record.model_dump(mode="json")))
        git.commit(self.root, [*self._specs(), *self._files_of(number, record)], subject)

    def rescores(self) -> list[Rescore]:
        """Records of `postloop rescore`, oldest first. Raises IntegrityError when one is damaged."""
        found = []
        for path in sorted((self.root / "rescores").glob("[0-9]*.json")):
            name = path.relative_to(self.root).as_posix()
            try:
                raw = brought_up("rescore", name, json.loads(path.read_bytes()))
                found.append(Rescore.model_validate_json(json.dumps(stamped(raw))))
            except (ValueError, TypeError) as error:
                remedy = f"restore it with `git checkout -- {name}`"
                raise IntegrityError(f"{name}: not a rescore record: {_first(error)}; {remedy}") from error
        return found

    def commit_rescore(self, record: Rescore) -> None:
        """As `commit`: artifacts to DVC, then the record, then git."""
        self._require_lock()
        subject = f"rescore {record.number}"
        with disk_errors(subject):
            self._track(record.artifacts.values())
            make_folder(self.root / "rescores")
            write_durably(self.root / _rescore_file(record.number), pretty(record.model_dump(mode="json")))
        git.commit(self.root, _files_of_rescore(record), subject)

    def imports(self) -> list[ForeignImport]:
        """The records of imported trajectories, sorted by name. Raises IntegrityError when one is damaged."""
        return [self._import(path) for path in sorted((self.root / IMPORTS).glob("*.json"))]

    def _import(self, path: Path) -> ForeignImport:
        name = path.relative_to(self.root).as_posix()
        remedy = f"restore it with `git checkout -- {name}`"
        try:
            raw = brought_up("import", name, json.loads(path.read_bytes()))
            found = ForeignImport.model_validate_json(json.dumps(stamped(raw)))
        except (ValueError, TypeError) as error:
            raise IntegrityError(f"{name}: not a record of an import: {_first(error)}; {remedy}") from error
        if name != _import_name(found):
            raise IntegrityError(f"{name}: not a record of this name, but {_import_name(found)}; {remedy}")
        return found

    def commit_import(self, record: ForeignImport) -> None:
        """Make an import done: its artifact to DVC, then the record, then git. Raises InfrastructureError."""
        self._require_lock()
        path = self.root / _import_name(record)
        with disk_errors(f"import {path.name}"):
            self._track([record.artifact])
            make_folder(path.parent)
            write_durably(path, pretty(record.model_dump(mode="json")))
        self._commit_import(record)

    def _commit_import(self, record: ForeignImport) -> str | None:
        message = f"import {len(record.trajectories)} foreign trajectories"
        return (
            message if git.commit(self.root, [_import_name(record), *_pointers([record.artifact])], message) else None
        )

    def _track(self, refs: Iterable[ArtifactRef]) -> None:
        present = []
        for ref in refs:
            if (self.root / ref.path).is_dir():
                present.append(ref.path)
            elif not (self.root / f"{ref.path}.dvc").is_file():
                raise InfrastructureError(f"artifact {ref.path}: gone before its record was written; run again")
        if present:
            from stages import dvc

            dvc.add(self.root, present)

    def _derive(self, records: Mapping[StageName, Record]) -> dict[str, Any]:
        return stamped(pins.derive(records, commit=git.head(self.root)).model_dump(mode="json"))

    def sweep(self) -> list[str]:
        """Remove what killed runs left: temporary files, stale locks, torn pointers. Returns their relative paths."""
        self._require_lock()
        removed = git.remove_stale_locks(self.root)
        for path in self.leftovers():
            removed.append(path.relative_to(self.root).as_posix())
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        from stages import dvc

        for pointer in dvc.torn_pointers(self.root):
            if not git.restore(self.root, pointer):
                (self.root / pointer).unlink()  # no record names it: records come later
            removed.append(pointer)
        return removed + dvc.remove_stale_locks(self.root)

    def leftovers(self) -> list[Path]:
        """Temporary files and folders: of the process that holds the lock, else of one that was killed."""
        recorded = ("rounds/*/**/.*.tmp", "rescores/.*.tmp", f"{IMPORTS}/.*.tmp")
        patterns = (f".postloop/{artifacts.TMP_PREFIX}*", *recorded, "artifacts/*/.*.tmp")
        return [path for pattern in patterns for path in self.root.glob(pattern)]

    def settle(self) -> list[str]:
        """Commit records that a killed run wrote and did not come to commit. Returns the commits' messages."""
        self._require_lock()
        messages = []
        waiting = self._uncommitted()
        for number in self.rounds():
            prefix = f"rounds/{number:04d}/"
            if not any(name.startswith(prefix) for name in waiting):
                continue
            records = self.records(number)
            self._settle_pins(number, records)
            for stage, record in records.items():
                message = f"round {number}: {stage}"
                if f"{prefix}{stage}.json" in waiting and git.commit(
                    self.root, self._files_of(number, record), message
                ):
                    messages.append(message)
        for rescored in self.rescores() if any(name.startswith("rescores/") for name in waiting) else ():
            message = f"rescore {rescored.number}"
            if _rescore_file(rescored.number) in waiting and git.commit(
                self.root, _files_of_rescore(rescored), message
            ):
                messages.append(message)
        if any(name.startswith(f"{IMPORTS}/") for name in waiting):
            messages += [done for record in self.imports() if (done := self._commit_import(record))]
        return messages + self.settle_appended()

    def settle_appended(self) -> list[str]:
        """Commit each decision and attribution that was appended since, also while we held the lock. One that was changed is
        left for `verify` to find: they are never written twice. Returns the commits' messages."""
        self._require_lock()
        folders = [name for name in (DECISIONS, ATTRIBUTIONS) if (self.root / name).is_dir()]
        waiting = set(git.uncommitted(self.root, folders) if folders else ()) - set(self._changed_appended())
        new = [name for name in sorted(waiting) if _APPENDED.fullmatch(name) and (self.root / name).is_file()]
        told = {name: f"{Path(name).parent.name.removesuffix('s')} {Path(name).stem}" for name in new}
        return [message for name, message in told.items() if git.commit(self.root, [name], message)]

    def _changed_appended(self) -> list[str]:
        found = git.changed(self.root, [DECISIONS, ATTRIBUTIONS])
        return [name for name in found if _APPENDED.fullmatch(name)]

    def _settle_pins(self, number: int, records: Mapping[StageName, Record]) -> None:
        """Pins are written just before the record: after a kill in between they name a stage that is not done."""
        path = self.folder(number) / "pins.json"
        derived = self._derive(records)
        if not path.is_file() or json.loads(path.read_bytes())["pins"] != derived["pins"]:
            write_durably(path, pretty(derived))

    def _uncommitted(self) -> list[str]:
        folders = [name for name in _RECORDED if (self.root / name).is_dir()]
        return git.uncommitted(self.root, folders) if folders else []

    def _specs(self) -> list[str]:
        """What people write and has changed: specs, decisions, the schedule; nothing git ignores. A decision that was written
        once is no such thing: with its change committed, `verify` could not tell."""
        shown = [path for path in self.root.iterdir() if not path.name.startswith(".") and path.name not in _STORE]
        found = [file for path in shown for file in (path.rglob("*.yaml") if path.is_dir() else [path])]
        names = [path.relative_to(self.root).as_posix() for path in found if path.suffix == ".yaml"]
        waiting = git.uncommitted(self.root, [*names, DECISIONS, "schedule.json"])
        return sorted(set(waiting) - set(self._changed_appended()))

    def _files_of(self, number: int, record: Record) -> list[str]:
        names = (f"{record.stage}.json", "pins.json", f"telemetry/{record.stage}.json")
        return [*(f"rounds/{number:04d}/{name}" for name in names), *_pointers(record.artifacts.values())]

    def refs(self) -> list[ArtifactRef]:
        """Every artifact that some record names, once, sorted by path."""
        records = [record.artifacts for number in self.rounds() for record in self.records(number).values()]
        records += [record.artifacts for record in self.rescores()]
        found = {ref.path: ref for artifacts in records for ref in artifacts.values()}
        found |= {record.artifact.path: record.artifact for record in self.imports()}
        return [found[path] for path in sorted(found)]

    def verify(self) -> list[str]:
        """Every record and every artifact against its digest. One line for each problem; empty when all is well."""
        problems = [
            f"{name}: differs from its commit; restore it with `git checkout -- {name}`"
            for name in self._uncommitted()
            if re.fullmatch(rf"rounds/\d{{4,}}/[a-z]+\.json|rescores/\d{{4,}}\.json|{IMPORTS}/[0-9a-f]+\.json", name)
        ]
        for number in self.rounds():
            for stage in STAGES:
                try:
                    self.read(number, stage)
                except IntegrityError as error:
                    problems.append(str(error))
        try:
            self.rescores()
            self.imports()
        except IntegrityError as error:
            problems.append(str(error))
        if any("not a " in problem for problem in problems):
            return problems
        return problems + [problem for ref in self.refs() for problem in artifacts.problems_of(self, ref)]

    def verify_appended(self) -> list[str]:
        """Decisions and attributions that were deleted or changed since they were committed, one line for each.

        Not covered: one whose deletion or change somebody committed; `git log` shows that.
        """
        what = {
            name: "differs from its commit" if (self.root / name).exists() else "is gone"
            for name in self._changed_appended()
        }
        return [f"{name}: {said}; restore it with `git checkout HEAD -- {name}`" for name, said in what.items()]

    def push(self, remote: str | None = None) -> int:
        """Send every artifact to a DVC remote; damaged ones are refused. Returns the number of files sent."""
        from stages import dvc

        refs = self.refs()
        here = [ref for ref in refs if (self.root / ref.path).exists()]
        problems = [problem for ref in here for problem in artifacts.problems_of(self, ref)]
        if problems:
            raise IntegrityError(problems[0])
        return dvc.push(self.root, [ref.path for ref in refs], remote)

    def pull(self, remote: str | None = None) -> list[str]:
        """Fetch every artifact that is missing or damaged, and check it. Returns the paths that were restored."""
        from stages import dvc

        bad = [ref for ref in self.refs() if artifacts.problems_of(self, ref)]
        for ref in bad:
            dvc.drop_damaged(self.root, ref.path)
            shutil.rmtree(self.root / ref.path, ignore_errors=True)
        dvc.pull(self.root, [ref.path for ref in bad], remote)
        still = [problem for ref in bad for problem in artifacts.problems_of(self, ref)]
        if still:
            raise IntegrityError(still[0])
        return [ref.path for ref in bad]


_APPENDED = re.compile(rf"({DECISIONS}|{ATTRIBUTIONS})/[0-9a-f]{{12}}\.json")


def decision_file(identity: str) -> str:
    return f"{DECISIONS}/{identity}.json"


def _rescore_file(number: int) -> str:
    return f"rescores/{number:04d}.json"


def _files_of_rescore(record: Rescore) -> list[str]:
    return [_rescore_file(record.number), *_pointers(record.artifacts.values())]


def _import_name(record: ForeignImport) -> str:
    return f"{IMPORTS}/{record.artifact.digest[: artifacts.DIGITS]}.json"


def _pointers(refs: Iterable[ArtifactRef]) -> list[str]:
    return [f"{ref.path}{end}" for ref in refs for end in (".dvc", ".manifest.json")]


def _first(error: Exception) -> str:
    return error.errors()[0]["msg"] if isinstance(error, ValidationError) else " ".join(str(error).split())


_HELD: dict[Path, int] = {}  # workspaces that this process writes to -> descriptor of the lock


def _drop_in_child() -> None:
    """A forked worker must not keep the lock of a parent that died."""
    for descriptor in _HELD.values():
        os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_drop_in_child)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _furnish(root: Path, spec_text: str) -> None:
    from stages import dvc

    root.chmod(0o755)
    write_durably(root / "goal.yaml", spec_text.encode())
    load_spec(root / "goal.yaml")
    git.init(root)
    dvc.init(root)
    write_durably(root / ".gitignore", _IGNORE.encode())
    write_durably(root / "README.md", _README.encode())
    (root / "decisions").mkdir()
    write_durably(root / "decisions" / ".gitkeep", b"")
    own = [".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "README.md", "decisions", "goal.yaml"]
    git.commit(root, own, "a new workspace")


def _remove_abandoned(root: Path) -> None:
    """Half-made workspaces of creators that were killed."""
    pattern = re.compile(re.escape(f".{root.name}.new-") + r"(\d+)-\w+")
    for path in root.parent.iterdir():
        found = pattern.fullmatch(path.name)
        if found and not Path("/proc", found[1]).exists():
            shutil.rmtree(path, ignore_errors=True)

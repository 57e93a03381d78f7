"""What later judgements say of recorded attempts, and what had used a reward that they flipped.

Everything here is derived from the records: nothing is rewritten. Of an attempt that was rescored more than once the
latest judgement is in force. A reward that it flipped is stale, and so is what used it: by the use edges exactly, a
demonstration, a preference pair or a group member; through these the checkpoint that was trained on them and every one
that goes on from it; the suites and buckets that counted the attempt; the promotion that rested on either.

Not covered: how much a stale row moved a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from schemas.artifact import ArtifactRef
from schemas.backflow import BackflowRecord
from schemas.base import Digest
from schemas.data import DataRecord
from schemas.errors import IntegrityError
from schemas.evaluation import EvaluationRecord
from schemas.record import STAGES, Record, StageName
from schemas.rescore import Rescore, StaleUse, Use
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.trajectory import Attempt
from schemas.verdict import Reward, Verdict
from stages.attempts import judged_types, read_edges, read_reward, read_table, reward_row, write_table
from stages.recorded import Named, attempts_of, edges_of, rewards_in, tables_of
from stages.workspace import Workspace

TABLE = "rescored"  # name of the artifact, and of the file in it
_USES: dict[str, Use] = {
    "sft_row": "demonstration", "preference_pair": "preference_pair", "group_member": "group_member",
}  # fmt: skip
# What a stage's result takes from verdicts: the parse rate is in no verdict, a metric may hang on any of its checks.
_WEIGHS: dict[StageName, str] = {"goal": "nothing", "data": "reward", "sft": "nothing", "rl": "reward"}


@dataclass(frozen=True)
class Rescored:
    """One attempt, judged again. `before`: digest of its recorded reward."""

    trajectory: str
    before: Digest
    round: int
    stage: StageName
    flipped: bool  # it passes otherwise, or is worth another reward
    same: bool  # not even a check differs
    verdict: Verdict
    reward: Reward


def write_rescored(folder: Path, rows: list[Rescored]) -> None:
    import pyarrow as pa

    verdict, reward = judged_types()
    text, flag = pa.string(), pa.bool_()
    schema = pa.schema(
        {
            "trajectory": text, "before": text, "round": pa.int64(), "stage": text, "flipped": flag, "same": flag,
            "verdict": verdict, "reward": reward,
        }
    )  # fmt: skip
    plain = [
        {**vars(row), "verdict": row.verdict.model_dump(mode="json"), "reward": reward_row(row.reward)} for row in rows
    ]
    write_table(folder / f"{TABLE}.parquet", plain, schema)


def read_rescored(path: Path) -> list[Rescored]:
    """Raises IntegrityError."""
    try:
        return [
            Rescored(**{**row, "verdict": Verdict.model_validate(row["verdict"]), "reward": read_reward(row["reward"])})
            for row in read_table(path, "rescored")
        ]
    except (TypeError, ValueError, KeyError) as error:
        raise IntegrityError(f"{path}: not a table of rescored attempts: {error}; restore it") from error


class Recall:
    """A workspace's rescores, as they stand when this is made."""

    def __init__(self, space: Workspace) -> None:
        self.space = space
        self.rescores = space.rescores()

    @cached_property
    def tables(self) -> dict[int, list[Rescored]]:
        """Number of the rescore -> its rows."""
        return {one.number: read_rescored(self._table(one)) for one in self.rescores}

    def _table(self, one: Rescore) -> Path:
        return self.space.open_artifact(one.artifacts[TABLE]) / f"{TABLE}.parquet"

    @cached_property
    def in_force(self) -> dict[Named, Rescored]:
        """The latest judgement of each attempt that has one."""
        return {(row.trajectory, row.before): row for rows in self.tables.values() for row in rows}

    @cached_property
    def stale(self) -> frozenset[Named]:
        """Trajectories with the recorded rewards that hold no more."""
        return frozenset(name for name, row in self.in_force.items() if row.flipped)

    def of(self, attempt: Attempt) -> Attempt:
        """The attempt with the verdict and the reward in force."""
        now = self.in_force.get((attempt.trajectory.id, attempt.reward.digest())) if self.rescores else None
        return attempt if now is None else attempt.model_copy(update={"verdict": now.verdict, "reward": now.reward})

    def flipped_in(self, record: Record) -> int:
        """Flipped attempts among those that decided this record."""
        if not self.rescores or not self.stale or _WEIGHS.get(record.stage) == "nothing":
            return 0
        names = {name for table in attempts_of(self.space, record) for name in rewards_in(table)}
        return len(names & self.stale)

    def judged_alike(self, record: Record, made_in: int, pins: Mapping[str, Digest]) -> int | None:
        """Number of a rescore that stands in for running the stage again.

        `pins` differ from the record's in verifiers and reward rules alone, those of `pins` are the rescore's, it
        judged every attempt of the record, and nothing that the stage's result takes from a verdict differs.
        """
        names = {name for name in pins.keys() | record.inputs.keys() if pins.get(name) != record.inputs.get(name)}
        judges = {name for name in names if name == "verifier" or name.startswith("verifier_")}
        if not names or names - judges - {"spec.rewards"}:
            return None
        for one in reversed(self.rescores):
            rules = None if one.rewards is None else one.rewards.digest()
            priced = rules == pins["spec.rewards"] if "spec.rewards" in names else rules in (None, pins["spec.rewards"])
            asked = priced and all(one.verifiers.get(name) == pins.get(name) for name in judges)
            if asked and self._proven(one, record, made_in, judges) and self._alike(one, record):
                return one.number
        return None

    def _proven(self, one: Rescore, record: Record, made_in: int, judges: set[str]) -> bool:
        """The tasks of a data stage are proven under the verifier that judges from now on."""
        return record.stage != "data" or not judges or (made_in in one.proven and not one.proofs)

    def _alike(self, one: Rescore, record: Record) -> bool:
        weighs = _WEIGHS.get(record.stage, "everything")
        if weighs == "nothing":
            return True
        rows = {(row.trajectory, row.before): row for row in self.tables[one.number]}
        found = [rows.get(name) for table in attempts_of(self.space, record) for name in rewards_in(table)]
        return all(row is not None and (row.same if weighs == "everything" else not row.flipped) for row in found)

    # --- what used a flipped reward

    def uses(self) -> list[StaleUse]:
        """Everything that used a stale reward, in the order of rounds and stages."""
        return list(self._uses()) if self.rescores and self.stale else []

    def weights(self) -> frozenset[Digest]:
        """Checkpoints that were trained on stale rewards, or go on from one that was."""
        return frozenset(use.name for use in self.uses() if use.use == "checkpoint")

    def _uses(self) -> Iterator[StaleUse]:
        stale_weights: set[Digest] = set()
        for number in self.space.rounds():
            taught = 0
            for stage in STAGES:
                record = self.space.read(number, stage)
                if record is None or record.reused_from is not None:
                    continue
                rows = list(self._rows(record, number))
                yield from rows
                taught += len(rows)
                if isinstance(record, SftRecord | RlRecord) and record.checkpoint is not None:
                    used = taught if isinstance(record, SftRecord) else len(rows)
                    if used or record.checkpoint.parent in stale_weights:
                        stale_weights.add(record.checkpoint.weights)
                        yield self._use("checkpoint", number, record, record.checkpoint.weights, flipped=used)
                if isinstance(record, EvaluationRecord):
                    yield from self._measured(record, number, stale_weights)
                if isinstance(record, BackflowRecord):
                    yield from self._buckets(record, number)

    def _rows(self, record: Record, number: int) -> Iterator[StaleUse]:
        if not isinstance(record, DataRecord | RlRecord):
            return
        for edge in (edge for table in edges_of(self.space, record) for edge in read_edges(table)):
            if (edge.trajectory, edge.reward) in self.stale:
                yield self._use(
                    _USES[edge.use], number, record, edge.row, trajectory=edge.trajectory, advantage=edge.advantage,
                    step=edge.step,
                )  # fmt: skip

    def _measured(self, record: EvaluationRecord, number: int, stale_weights: set[Digest]) -> Iterator[StaleUse]:
        doubtful = False
        for ref in record.artifacts.values():
            for table in tables_of(self.space, ref):
                names = rewards_in(table)
                flipped = sum(name in self.stale for name in names)
                if flipped:
                    doubtful = True
                    name = f"{table.stem} of {self._measured_policy(record, ref)}"
                    yield self._use("measurement", number, record, name, flipped=flipped, of=len(names))
        if record.promoted and record.champion and (doubtful or record.champion in stale_weights):
            yield self._use("promotion", number, record, record.champion, flipped=0)

    def _measured_policy(self, record: EvaluationRecord, ref: ArtifactRef) -> str:
        made = self.space.open_artifact(ref)
        policies = {result.checkpoint: result.policy for result in record.results}
        for table in sorted(made.glob("*.parquet")):
            for row in read_table(table, "attempts", ["turns"]):
                for turn in row["turns"]:
                    return policies.get(turn["policy"], "an earlier policy")
        return "a policy"

    def _buckets(self, record: BackflowRecord, number: int) -> Iterator[StaleUse]:
        stale = {trajectory for trajectory, _ in self.stale}
        for bucket in record.buckets:
            flipped = sum(member in stale for member in bucket.members)
            if flipped:
                yield self._use("bucket", number, record, bucket.id, flipped=flipped, of=len(bucket.members))
        tables = [name for table in attempts_of(self.space, record) for name in rewards_in(table)]
        flipped = sum(name in self.stale for name in tables)
        if flipped:
            yield self._use("measurement", number, record, "dev", flipped=flipped, of=len(tables))

    def _use(self, use: Use, number: int, record: Record, name: str, **more: object) -> StaleUse:
        return StaleUse.model_validate({"use": use, "round": number, "stage": record.stage, "name": name, **more})

"""What people decided in triage: decisions/<id>.json, appended beside the records and never changed.

Anyone may append one while a round runs: a decision is a file of its own, under a name made of its content, and the
workspace's writer commits it. A decision is about one round: its route holds for that round's material and for later
rounds, until a newer one; its approval is of the material that the person saw, so of that round's alone.

Not covered: a `when` edited by hand before its file was committed (`postloop verify` tells of later ones); clocks of several
machines that disagree about which is newer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from schemas.backflow import BackflowRecord
from schemas.base import Json, digest_of
from schemas.bucket import Bucket, Material, Route
from schemas.decision import TriageDecision
from schemas.errors import InputError, IntegrityError
from stages.artifacts import disk_errors, make_folder, pretty, write_durably
from stages.workspace import DECISIONS, Workspace, decision_file

Remake = Callable[[Bucket], list[Material]]


def now() -> str:
    return stamp(datetime.now(UTC))


def stamp(moment: datetime) -> str:
    """One form and one zone, so that the order of the texts is the order in time."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def identified(**said: object) -> TriageDecision:
    """A decision under the id that its content gives it. Raises InputError for a name or reason that UTF-8 cannot hold."""
    for field in ("who", "because"):
        if any("\ud800" <= char <= "\udfff" for char in str(said[field])):
            value = ascii(said[field])[:60]
            raise InputError(f"bucket {said['bucket']}: {field} {value}: not UTF-8; write it in plain characters")
    draft = TriageDecision.model_validate({"id": "0" * 12, **said})
    return draft.model_copy(update={"id": _id_of(draft.model_dump(mode="json"))})


def _id_of(written: Mapping[str, Json]) -> str:
    """Of the fields as they were written: those that our schema gets later leave the ids of old files."""
    return digest_of({name: value for name, value in written.items() if name not in ("id", "when")})[:12]


def append(space: Workspace, decision: TriageDecision) -> bool:
    """Keep it; False when it was made before and is in force. Needs no lock: the workspace's writer commits it.

    Raises InputError for one that was made before and has since been replaced, InfrastructureError.
    """
    found = decisions(space)
    same = [one for one in found if one.id == decision.id]
    if same:
        _require_newest(same[0], found)
        return False
    with disk_errors(f"decision {decision.id}"):
        make_folder(space.root / DECISIONS)
        write_durably(space.root / decision_file(decision.id), pretty(decision.model_dump(mode="json")))
    return True


def _require_newest(same: TriageDecision, found: Iterable[TriageDecision]) -> None:
    """To decide A, then B, then A again needs a reason of its own: files are never written twice."""
    about = [
        one for one in found if (one.bucket, one.trajectory, one.round) == (same.bucket, same.trajectory, same.round)
    ]
    newest = [one for one in about if _says(one) & _says(same)][-1]
    if newest.id != same.id:
        raise InputError(
            f"bucket {same.bucket}: decision {same.id} said the same for the same reason and was replaced by {newest.id}; "
            "give the reason why it holds again"
        )


def _says(decision: TriageDecision) -> set[str]:
    return {name for name in ("route", "approve") if getattr(decision, name) is not None}


def decisions(space: Workspace) -> list[TriageDecision]:
    """Oldest first. Raises IntegrityError for a file that is none, or whose content was changed."""
    paths = [path for path in (space.root / DECISIONS).glob("*.json") if re.fullmatch(r"[0-9a-f]{12}", path.stem)]
    return sorted((_read(path) for path in sorted(paths)), key=lambda one: (one.when, one.id))


def _read(path: Path) -> TriageDecision:
    name = f"{DECISIONS}/{path.name}"
    remedy = f"restore it with `git checkout -- {name}`"
    try:
        raw = json.loads(path.read_bytes())
        found = TriageDecision.model_validate_json(json.dumps(raw))
        when, identity = stamp(datetime.fromisoformat(found.when)), _id_of(raw)
    except ValueError as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise IntegrityError(f"{name}: not a decision: {first}; {remedy}") from error
    if path.stem != identity or found.id != identity:
        raise IntegrityError(f"{name}: its content is that of decision {identity}; {remedy}")
    return found.model_copy(update={"when": when})


# --- what is in force


@dataclass(frozen=True)
class Ruling:
    """What people want of one bucket in one round, and the decisions that say so."""

    route: TriageDecision | None = None
    approval: TriageDecision | None = None

    @property
    def approve(self) -> bool | None:
        return self.approval.approve if self.approval else None

    @property
    def ids(self) -> set[str]:
        return {one.id for one in (self.route, self.approval) if one is not None}


def in_force(found: Sequence[TriageDecision], number: int, buckets: Iterable[Bucket] = ()) -> dict[str, Ruling]:
    """Bucket id -> what people want of it in this round. `found`: oldest first, as `decisions` gives them.

    A newer route takes an older approval with it, as it was of other material; the route that a bucket has by itself does
    not. `buckets`: of the round, as recorded; not needed by who asks for routes alone.
    """
    own = {bucket.id: bucket.route for bucket in buckets}
    rulings: dict[str, Ruling] = {}
    for one in found:
        if one.trajectory is not None or one.round > number:
            continue
        before = rulings.get(one.bucket, Ruling())
        held = before.route.route if before.route else own.get(one.bucket)
        moved = one.route is not None and one.route is not held
        approval = one if one.approve is not None and one.round == number else None
        rulings[one.bucket] = Ruling(
            route=before.route if one.route is None else one,
            approval=approval or (None if moved else before.approval),
        )
    return {bucket: ruling for bucket, ruling in sorted(rulings.items()) if ruling.ids}


def overrides(found: Sequence[TriageDecision], number: int) -> dict[str, tuple[Route, str]]:
    """Bucket id -> the route that a person gave it, and the decision's id: for `evals.buckets.build`."""
    rulings = in_force(found, number)
    return {b: (one.route.route, one.route.id) for b, one in rulings.items() if one.route and one.route.route}


def struck(found: Sequence[TriageDecision], number: int) -> dict[str, dict[str, TriageDecision]]:
    """Bucket id -> its failures that a person took out of it, by rejecting or routing them alone: trajectory -> decision."""
    newest: dict[tuple[str, str], TriageDecision] = {}
    for one in found:
        if one.trajectory is not None and one.round <= number:
            newest[one.bucket, one.trajectory] = one
    out: dict[str, dict[str, TriageDecision]] = {}
    for (bucket, trajectory), one in sorted(newest.items()):
        if one.approve is False or (one.approve is None and one.route is not None):
            out.setdefault(bucket, {})[trajectory] = one
    return out


def obeyed(
    record: BackflowRecord, number: int, found: Sequence[TriageDecision], remake: Remake
) -> tuple[list[Material], set[str]]:
    """The material of a round as people want it, and the decisions that bear on its buckets.

    A bucket whose route was changed gets the material of the new route, made by `remake` from the bucket as it then is.
    A failure that was taken out of its bucket is none of the failures behind the material; with none left there is no
    material. Approved proposals pass; what they propose is still a person's to do.
    """
    rulings, out = in_force(found, number, record.buckets), struck(found, number)
    handed: list[Material] = []
    bears: set[str] = set()
    for bucket in sorted(record.buckets, key=lambda one: one.id):
        ruling, gone = rulings.get(bucket.id, Ruling()), out.get(bucket.id, {})
        items = [item for item in record.material if item.bucket == bucket.id]
        if ruling.route is not None and ruling.route.route not in (None, bucket.route):
            items = remake(bucket.model_copy(update={"route": ruling.route.route, "overridden_by": ruling.route.id}))
        bears |= ruling.ids | {one.id for one in gone.values()}
        kept = (_without(item, bucket, gone) for item in items)
        handed += [_approved(item, ruling) for item in kept if item is not None]
    known = {bucket.id for bucket in record.buckets}
    return handed + [item for item in record.material if item.bucket not in known], bears


def _approved(item: Material, ruling: Ruling) -> Material:
    return item if ruling.approve is None else item.model_copy(update={"approved": ruling.approve})


def _without(item: Material, bucket: Bucket, gone: Mapping[str, TriageDecision]) -> Material | None:
    if gone and gone.keys() >= set(bucket.members):
        return None
    left = {name: [one for one in getattr(item, name) if one not in gone] for name in ("failures", "trajectories")}
    return item.model_copy(update=left) if gone else item


def undecided(record: BackflowRecord, number: int, found: Sequence[TriageDecision]) -> list[Bucket]:
    """Buckets with material that no person has approved or rejected yet, largest first."""
    rulings, waiting = in_force(found, number, record.buckets), {item.bucket for item in record.material}
    left = [one for one in record.buckets if one.id in waiting and rulings.get(one.id, Ruling()).approve is None]
    return sorted(left, key=lambda one: (-one.size, one.id))


def chosen(found: Iterable[TriageDecision], ids: Collection[str]) -> list[TriageDecision]:
    return [one for one in found if one.id in ids]


def bucket_named(records: Mapping[int, BackflowRecord], start: str) -> tuple[int, Bucket]:
    """The newest round with a bucket of this id, or the start of one, and the bucket. Raises InputError for none or several."""
    for number in sorted(records, reverse=True):
        hits = [one for one in records[number].buckets if start and one.id.startswith(start)]
        if len(hits) == 1:
            return number, hits[0]
        if hits:
            named = ", ".join(f"{one.id} ({one.cause} in {one.family})" for one in hits[:3])
            raise InputError(f"bucket {start}: names {len(hits)} of round {number}, e.g. {named}; give more digits")
    rounds = ", ".join(map(str, sorted(records))) or "none"
    raise InputError(f"bucket {start}: no such bucket; rounds with buckets: {rounds}; `postloop failures` lists them")


def backflows(space: Workspace) -> dict[int, BackflowRecord]:
    """Round -> its backflow, where that came to an end with buckets of its own."""
    read = {number: space.read(number, "backflow") for number in space.rounds()}
    return {n: one for n, one in read.items() if isinstance(one, BackflowRecord) and one.skipped is None}

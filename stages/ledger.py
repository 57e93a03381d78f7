"""The ledger: over all rounds, what each bucket was, what was done about it, and whether that helped one round later.

Everything is derived from records. A bucket that was treated twice in a row without having shrunk is escalated: material for
it waits for a person. Not enough evidence is not success: more of what shows nothing is what escalation is there to stop.
What a treatment took is what the next round counted for the bucket (stages/treatment.py); seconds are allocated from that
round's telemetry, which is no record, when somebody looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from schemas.backflow import BackflowRecord
from schemas.bucket import Bucket, BucketChange, Material, Route
from schemas.ledger import LedgerRow
from schemas.record import STAGES
from stages.context import Context
from stages.decisions import backflows
from stages.goal import handed_by
from stages.workspace import Workspace

IN_VAIN = 2  # treatments in a row without effect, after which a person must look
Measured = tuple[Sequence[Bucket], Sequence[BucketChange]]  # a round's buckets, and what it measured of the last one's


def in_vain(space: Workspace, number: int, now: Measured | None = None) -> dict[str, int]:
    """Bucket id -> its treatments in a row that did not shrink it, as the rounds before `number` say, and `now`, what
    `number` itself has measured. A repeated record measured nothing anew."""
    earlier = [one for n, one in sorted(backflows(space).items()) if n < number and one.reused_from is None]
    return streaks([*((one.buckets, one.changes) for one in earlier), *([now] if now else [])])


def streaks(rounds: Iterable[Measured]) -> dict[str, int]:
    """Shrinking, or being gone for a round, ends the row; being left untreated does not, else an escalated bucket would be
    treated again of itself. Another route is another treatment, and begins a row of its own."""
    count: dict[str, int] = {}
    routes: dict[str, Route] = {}
    for buckets, changes in rounds:
        found = {change.bucket: change for change in changes}
        after: dict[str, int] = {}
        for bucket in buckets:
            change = found.get(bucket.id)
            if change is not None and change.verdict != "shrank":
                same = routes.get(bucket.id, bucket.route) is bucket.route
                after[bucket.id] = (count.get(bucket.id, 0) if same else 0) + change.treated
        count, routes = after, {bucket.id: bucket.route for bucket in buckets}
    return {bucket: n for bucket, n in sorted(count.items()) if n}


def marked(buckets: Iterable[Bucket], vain: Mapping[str, int]) -> list[Bucket]:
    """The buckets with the length of their row of vain treatments."""
    return [
        one.model_copy(update={"treated_in_vain": vain[one.id], "escalated": vain[one.id] >= IN_VAIN})
        if vain.get(one.id)
        else one
        for one in buckets
    ]


def held_back(material: Iterable[Material], buckets: Iterable[Bucket]) -> list[Material]:
    """Nothing goes on unattended for an escalated bucket: a person approves it, or gives it another route."""
    vain = {one.id: one.treated_in_vain for one in buckets if one.escalated}
    return [
        one.model_copy(
            update={
                "approved": False,
                "note": f"{one.note}; treated {vain[one.bucket]} times without effect: a person must decide".lstrip(
                    "; "
                ),
            }
        )
        if one.bucket in vain
        else one
        for one in material
    ]


def ledger(ctx: Context) -> list[LedgerRow]:
    """A row for each bucket of each round before `ctx.round`, by round, then size."""
    records = {n: one for n, one in sorted(backflows(ctx.workspace).items()) if n < ctx.round}
    return [
        _row(ctx.workspace, bucket, number, [item for item in handed if item.bucket == bucket.id], after)
        for (number, record), after in zip(records.items(), [*list(records)[1:], None], strict=True)
        for handed in [_handed(ctx, number)]
        for bucket in sorted(record.buckets, key=lambda one: (-one.size, one.id))
    ]


def _row(space: Workspace, bucket: Bucket, number: int, handed: Sequence[Material], after: int | None) -> LedgerRow:
    """`after`: the round that measured it again."""
    measured = space.read(after, "backflow") if after else None
    changes = measured.changes if isinstance(measured, BackflowRecord) else ()
    change = next((one for one in changes if one.bucket == bucket.id), None)
    told = {stage: space.telemetry(after, stage) for stage in STAGES} if change and after else {}
    return LedgerRow(
        round=number,
        bucket=bucket.id,
        cause=bucket.cause,
        family=bucket.family,
        size=bucket.size,
        denominator=bucket.denominator,
        measured=bucket.measured,
        route=handed[0].route if handed else bucket.route,
        rule=bucket.rule,
        decided_by=bucket.overridden_by,
        treated=change.treated if change else any(item.approved and item.kind != "proposal" for item in handed),
        material=[worded(item) for item in handed if item.approved],
        difference=change.difference if change else None,
        verdict=change.verdict if change else None,
        cost={unit: float(amount) for unit, amount in bucket.cost.items()},
        treatment=change.cost if change else {},
        allocated=change.allocated(told) if change else {},
        treated_in_vain=bucket.treated_in_vain,
        escalated=bucket.escalated,
    )


def _handed(ctx: Context, number: int) -> list[Material]:
    """As the next round took it, where that has begun; else as people want it now."""
    later = [n for n in ctx.workspace.rounds() if n > number and ctx.workspace.has(n, "goal")]
    return handed_by(Context(ctx.workspace, min(later, default=ctx.round), ctx.spec, ctx.cache), number)[0]


def worded(item: Material) -> str:
    return (
        f"weight ×{item.weight:g}"
        if item.kind == "weights"
        else f"{item.amount} {item.kind}"
        if item.amount
        else item.kind
    )

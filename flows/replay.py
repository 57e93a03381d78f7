"""`postloop replay`: recorded attempts again, under the pins of their round. Identical, or the first difference.

Exit 0 when all that was compared is identical, 1 when something differs, 3 when the machine failed some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flows.options import HERE, AsJson, Debug, Folder, print_json, show_table
from flows.progress import reporter
from flows.settings import cache_folder, prepare
from schemas.errors import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_NO, InputError

LISTED = 20  # attempts that are named one by one when they are identical


def replay(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="trajectory ids, or starts of them")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="every attempt of the workspace")] = False,
    bucket: Annotated[str | None, typer.Option(help="the members of a bucket, by id or the start of one")] = None,
    regenerate: Annotated[
        bool, typer.Option("--regenerate", help="sample again from the pinned checkpoint; compares tokens")
    ] = False,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Run recorded attempts again: the outcome scored (L0), the actions executed (L1), or the tokens sampled again."""
    from stages.context import threads
    from stages.replay import replay as again
    from stages.spec import load_spec
    from stages.trajectories import refuse_to_replay
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    if sum((bool(names), everything, bucket is not None)) != 1:
        raise InputError("replay: give ids, --all or --bucket ID, one of them; `postloop failures` lists examples")
    refuse_to_replay(space, names or [])
    chosen = chosen_by(space, names or [], bucket)
    spec = load_spec(space.root / "goal.yaml")
    runtime = spec.runtime
    found: list[Any] = []
    levels: Sequence[Any] = ("regenerate",) if regenerate else ("L0", "L1")
    cache, fan_out = cache_folder(space.root), threads(runtime.workers)
    with reporter("replay", as_json) as progress:
        for level in levels:
            found += again(
                space, cache, chosen, level, runtime=runtime, pins=spec.pins, fan_out=fan_out, progress=progress
            )
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
    else:
        _show(found)
    if any(one.same is False for one in found):
        return EXIT_NO
    return EXIT_INFRASTRUCTURE if any(one.infrastructure for one in found) else EXIT_DONE


def chosen_by(space: Any, names: Sequence[str], bucket: str | None) -> list[Any]:
    """Recorded attempts by the starts of their ids, of a bucket, or all. Raises InputError for none or several."""
    from stages.recorded import recorded

    rows = recorded(space)
    if not rows:
        raise InputError(f"{space.root}: no round has recorded an attempt yet; run `postloop run`")
    return _chosen(rows, names, _members(space, bucket) if bucket is not None else None)


def _chosen(rows: Sequence[Any], names: Sequence[str], members: set[str] | None) -> list[Any]:
    if members is not None:
        return [row for row in rows if row.attempt.trajectory.id in members]
    if not names:
        return list(rows)
    found: dict[str, list[Any]] = {}
    for name in names:
        hits = [row for row in rows if row.attempt.trajectory.id.startswith(name)]
        ids = list(dict.fromkeys(row.attempt.trajectory.id for row in hits))
        if not ids:
            raise InputError(f"{name}: no trajectory of this workspace; `postloop failures` lists examples")
        if len(ids) > 1:
            raise InputError(f"{name}: names {len(ids)} trajectories, e.g. {', '.join(ids[:3])}; give more digits")
        found[ids[0]] = hits  # one that was judged by two rounds' verifiers is replayed under both
    return [row for hits in found.values() for row in hits]


def _members(space: Any, bucket: str) -> set[str]:
    known: dict[str, set[str]] = {}
    for number in space.rounds():
        record = space.read(number, "backflow")
        for one in record.buckets if record else ():
            if one.id.startswith(bucket):
                known.setdefault(one.id, set()).update(one.members)
    if len(known) != 1:
        what = (
            f"names {len(known)} buckets, e.g. {', '.join(sorted(known)[:3])}"
            if known
            else "no bucket of this workspace"
        )
        raise InputError(f"bucket {bucket}: {what}; `postloop failures` lists them")
    return next(iter(known.values()))


def _show(found: Sequence[Any]) -> None:
    by_level = {
        level: [one for one in found if one.level == level] for level in dict.fromkeys(one.level for one in found)
    }
    for level, answers in by_level.items():
        rows = [_row(one) for one in answers if not one.same or len(answers) <= LISTED]
        if rows:
            show_table(
                f"replay {level}", ("attempt", "round", "answer", "where", "recorded", "now"), rows, whole=("attempt",)
            )
        counts = Counter(
            "identical" if one.same else "not compared" if one.same is None else "different" for one in answers
        )
        print(
            f"{level}: {len(answers)} attempts, "
            + ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        )
    for one in dict.fromkeys(widened for answer in found for widened in answer.exceptions):
        print(
            f"allowed by goal.yaml: {one.operation}: pin {one.pin}: recorded {one.recorded[:12]}, now {one.present[:12]}"
        )


def _row(one: Any) -> tuple[object, ...]:
    if one.same is None:
        return one.trajectory, one.round, "not compared", one.reason, "", ""
    if one.first is None:
        return one.trajectory, one.round, "identical", "", "", ""
    return one.trajectory, one.round, "different", one.first.where, one.first.recorded, one.first.now

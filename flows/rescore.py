"""`postloop rescore`: old trajectories judged or priced again; the flips, what had used them, the smallest rebuild.

Exit 0 when every attempt has its verdict, whether it flipped or not, 3 when infrastructure kept some from one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import typer

from flows.options import HERE, AsJson, Debug, Folder, print_json, show_table
from flows.progress import reporter
from flows.settings import cache_folder, prepare
from schemas.errors import EXIT_DONE, EXIT_INFRASTRUCTURE, InputError

LISTED = 20


def rescore(
    verifier: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[KIND=]REF", help="a bundle: digest, name@version or path; of goal.yaml's kinds, or KIND's own"
        ),
    ] = None,
    rules: Annotated[
        str | None, typer.Option(metavar="REF", help="rules: a .yaml file, name@version or digest")
    ] = None,
    rounds: Annotated[str | None, typer.Option(metavar="A..B", help="all rounds when left out")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the flips and keep nothing")] = False,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Judge and price recorded trajectories again; goal.yaml's verifiers and rules when neither is named.

    What used a flipped reward becomes stale: no round builds on it unless goal.yaml says `stale: use`.
    """
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    what = asked(space, verifier or [], rules, rounds)
    with space.lock():
        outcome = judged_again(what, dry_run, as_json)
    if as_json:
        print_json(outcome.plain())
    else:
        show(outcome, dry_run)
    return outcome.exit_code


class Asked(NamedTuple):
    ctx: Any
    judging: Any
    rounds: list[int]


class Outcome(NamedTuple):
    """The record, what had used what flipped, and the stages that would be made anew; the last two are empty when dry."""

    record: Any
    uses: Sequence[Any]
    steps: Sequence[Any]

    def plain(self) -> dict[str, Any]:
        return {
            **self.record.model_dump(mode="json"),
            "stale": [use.model_dump(mode="json") for use in self.uses],
            "rebuild": [{"stage": step.stage, "action": step.action, "why": step.why} for step in self.steps],
        }

    @property
    def exit_code(self) -> int:
        return EXIT_INFRASTRUCTURE if self.record.unjudged else EXIT_DONE


def asked(space: Any, verifier: Sequence[str] = (), rules: str | None = None, rounds: str | None = None) -> Asked:
    """Raises InputError for what is not there, SpecError."""
    from stages.context import Context
    from stages.spec import load_spec

    spec = load_spec(space.root / "goal.yaml")
    ctx = Context(space, (space.rounds() or [0])[-1] + 1, spec, cache_folder(space.root))
    chosen = _rounds(space.rounds(), rounds)
    return Asked(ctx, _judging(ctx, verifier, rules), chosen)


def judged_again(what: Asked, dry_run: bool, quiet: bool) -> Outcome:
    """Under the lock. The same question has its answer: it is judged once."""
    from stages.context import threads
    from stages.recall import Recall
    from stages.rescore import rescore as again

    space, runtime = what.ctx.workspace, what.ctx.spec.runtime
    with reporter("rescore", quiet) as progress:
        record = again(
            space, what.ctx.cache, what.judging, what.rounds, keep=not dry_run, runtime=runtime,
            fan_out=threads(runtime.workers), progress=progress,
        )  # fmt: skip
    if dry_run:
        return Outcome(record, [], [])
    return Outcome(record, Recall(space).uses(), _rebuild(what.ctx, what.judging, record))


def _rounds(there: Sequence[int], asked: str | None) -> list[int]:
    """`2`, `1..3`, `2..` and `..3` of the rounds there are."""
    if not there:
        raise InputError("rescore: no round yet; run `postloop run`")
    if asked is None:
        return list(there)
    found = re.fullmatch(r"(\d*)(\.\.)?(\d*)", asked)
    if found is None or not asked.strip("."):
        raise InputError(f"--rounds {asked}: give a round or a range, e.g. 1..3")
    low = int(found[1] or there[0])
    high = int(found[3] or there[-1]) if found[2] else low
    gone = [number for number in (low, high) if number not in there]
    if gone or low > high:
        what = f"there is no round {gone[0]}" if gone else "ends before it begins"
        raise InputError(f"--rounds {asked}: {what}; rounds: {', '.join(map(str, there))}")
    return [number for number in there if low <= number <= high]


def _judging(ctx: Any, refs: Sequence[str], rules: str | None) -> Any:
    """What was named; goal.yaml's own verifiers and rules where nothing was."""
    from schemas.task import Kind
    from stages.canary import bundle_folder
    from stages.goal import bundles_of
    from stages.rescore import Judging

    if not refs and rules is None:
        own = {name: folder for name, folder in bundles_of(ctx).items() if name.startswith("verifier")}
        return Judging(own, ctx.spec.rewards)
    verifiers: dict[str, Path] = {}
    for asked in refs:
        kind, _, ref = asked.rpartition("=")
        if kind and kind not in get_args(Kind):
            raise InputError(f"--verifier {asked}: no kind {kind}; one of {', '.join(get_args(Kind))}")
        verifiers[f"verifier_{kind}" if kind else "verifier"] = bundle_folder(ctx, ref)
    return Judging(verifiers, None if rules is None else _rules(ctx, rules))


def _rules(ctx: Any, ref: str) -> Any:
    """A file of the workspace, or rules that some round or rescore was priced by."""
    from stages.spec import load_rules

    if ref.endswith((".yaml", ".yml")):
        return load_rules(ctx.workspace.root, ref)
    goals = [ctx.workspace.read(number, "goal") for number in ctx.workspace.rounds()]
    known = [ctx.spec.rewards, *(goal.spec.rewards for goal in goals if goal is not None and not goal.skipped)]
    known += [one.rewards for one in ctx.workspace.rescores() if one.rewards is not None]
    for one in known:
        if ref == f"{one.name}@{one.version}" or (len(ref) >= 8 and one.digest().startswith(ref)):
            return one
    names = ", ".join(sorted({f"{one.name}@{one.version}" for one in known}))
    raise InputError(f"--rules {ref}: no such rules; give a .yaml file of the workspace, or one of {names}")


def _rebuild(ctx: Any, judging: Any, record: Any) -> list[Any]:
    """The plan of the next round under these verifiers and rules."""
    from dataclasses import replace

    from stages.rounds import open_round, plan

    if open_round(ctx.workspace) is not None:
        return []
    changed: dict[str, Any] = {} if judging.rewards is None else {"rewards": judging.rewards}
    own = dict(ctx.spec.verifier_of)
    for name, digest in record.verifiers.items():
        if name == "verifier":
            changed["verifier"] = digest
        else:
            own[name.removeprefix("verifier_")] = digest
    spec = ctx.spec.model_copy(update={**changed, "verifier_of": own})
    steps: list[Any] = plan(replace(ctx, spec=spec))
    return steps


def show(outcome: Outcome, dry_run: bool) -> None:
    record, uses, steps = outcome
    judges = ", ".join(f"{name} {digest[:12]}" for name, digest in record.verifiers.items()) or "verdicts as they were"
    rules = f"rules {record.rewards.name}@{record.rewards.version}" if record.rewards else "each round's own rules"
    print(f"rescore {record.number}: {record.attempts} attempts, {judges}, {rules}")
    rows = [
        (one.trajectory, one.round, f"{_passed(one.passed_before)} {_value(one.value_before)}",
         f"{_passed(one.passed_after)} {_value(one.value_after)}", one.because)
        for one in record.flips[:LISTED]
    ]  # fmt: skip
    columns = ("attempt", "round", "was", "is", "because")
    show_table(f"{len(record.flips)} flips" + _more(len(record.flips)), columns, rows, whole=("attempt",))
    for task in list(record.proofs.values())[:LISTED]:
        print(f"no longer proven as recorded: {task}")
    if record.unjudged:
        print(f"{len(record.unjudged)} attempts have no verdict: infrastructure failed twice; run the command again")
    if dry_run:
        print("nothing was kept")
        return
    counts = Counter(one.use for one in uses)
    told = ", ".join(f"{count} {use.replace('_', ' ')}" for use, count in counts.items()) or "nothing used them"
    shown = [
        (one.use.replace("_", " "), f"{one.round} {one.stage}", _what(one),
         "" if one.advantage is None else f"{one.advantage:+.3f}", "" if one.step is None else one.step)
        for one in uses
    ]  # fmt: skip
    show_table(
        f"stale now: {told}" + _more(len(shown)), ("use", "round", "what", "advantage", "step"), shown[:LISTED],
        whole=("use", "what"),
    )  # fmt: skip
    if steps:
        show_table(
            "the smallest rebuild: name these in goal.yaml, then `postloop run --next`",
            ("stage", "action", "why"), [(step.stage, step.action, step.why) for step in steps],
        )  # fmt: skip


def _what(one: Any) -> str:
    """The attempt behind it, or what counted several of them."""
    if one.trajectory is not None:
        return str(one.trajectory)
    name = one.name[:12] if len(one.name) == 64 else one.name
    return f"{name}: {one.flipped} of {one.of}" if one.of else str(name)


def _more(count: int) -> str:
    return f" (the first {LISTED}; --json lists all)" if count > LISTED else ""


def _passed(value: bool | None) -> str:
    return {True: "pass", False: "fail", None: "none"}[value]


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"

"""The command line: one script, typer. Exit 0 done, 1 the answer is no, 2 wrong input, 3 infrastructure.

Results go to stdout (a table, or JSON with --json), progress and errors to stderr. Heavy libraries are imported by the
commands that need them, so that `status` answers at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from flows import (
    apply,
    attribute,
    canary,
    compare,
    decide,
    gc,
    hacks,
    remote,
    replay,
    rescore,
    tasks,
    trajectories,
    triage,
)
from flows.options import HERE, AsJson, Debug, Folder, display, print_json
from flows.settings import cache_folder, collect_rarely, prepare
from schemas.errors import (
    EXIT_DONE,
    EXIT_INFRASTRUCTURE,
    EXIT_INPUT,
    EXIT_NO,
    InputError,
    IntegrityError,
    PostloopError,
    SpecError,
)
from schemas.record import STAGES

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"postloop {version('postloop')}")
        raise typer.Exit(EXIT_DONE)


@app.callback(help=__doc__.splitlines()[0])
def postloop(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and exit")
    ] = False,
) -> None: ...


STOPPED, EXIT_STOPPED = "postloop: stopped; `postloop run` goes on from the last finished stage", 130


class Template(StrEnum):
    DEFAULT = "default"
    TINY = "tiny"


def command(function: Callable[..., Any], group: typer.Typer = app, name: str | None = None) -> Callable[..., Any]:
    """Register a command and turn our errors into one line and an exit code; a traceback only with --debug."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        debug = bool(kwargs.get("debug"))
        try:
            code = function(*args, **kwargs)
        except PostloopError as error:
            _report(error, debug)
            if kwargs.get("as_json"):
                _refuse_in_json(error.problems if isinstance(error, SpecError) else [str(error)], error.exit_code)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:  # whoever reads our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_DONE) from None
        except OSError as error:
            if debug:
                traceback.print_exc()
            name = f" {error.filename}:" if error.filename else ""
            print(
                f"postloop:{name} {error.strerror or error}; free or repair it, then run the command again",
                file=sys.stderr,
            )
            raise typer.Exit(EXIT_INFRASTRUCTURE) from None
        except KeyboardInterrupt:
            print(STOPPED, file=sys.stderr)
            raise typer.Exit(EXIT_STOPPED) from None
        raise typer.Exit(code or EXIT_DONE)

    return group.command(name)(guarded)


def _report(error: PostloopError, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    lines = error.problems if isinstance(error, SpecError) else [f"postloop: {error}"]
    for line in lines:
        print(line, file=sys.stderr)


def _refuse_in_json(problems: Sequence[str], code: int) -> None:
    with suppress(OSError):  # stderr has it
        print_json({"ok": False, "problems": problems, "exit_code": code})


def _open(workspace: Path) -> Any:
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    return space


def _context(space: Any, number: int) -> Any:
    from stages.context import Context
    from stages.spec import load_spec

    return Context(space, number, load_spec(space.root / "goal.yaml"), cache_folder(space.root))


@command
def init(
    folder: Annotated[Path, typer.Argument(help="a new or empty folder")],
    template: Annotated[
        Template, typer.Option(help="default: a real 135M model; tiny: seconds, learns nothing")
    ] = Template.DEFAULT,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Make a workspace with a working goal.yaml."""
    from stages.spec import dump_default
    from stages.workspace import Workspace

    space = Workspace.create(folder, dump_default(template.value))
    if as_json:
        print_json({"workspace": str(space.root), "template": template.value})
    else:
        print(f"{space.root}: workspace made. Edit goal.yaml, then: postloop run -w {folder}")
    return EXIT_DONE


@command
def check(workspace: Folder = HERE, as_json: AsJson = False, debug: Debug = False) -> int:
    """Validate the specs; one line per problem: file:line: field: what and what to do."""
    from stages.spec import load_spec

    space = _open(workspace)
    try:
        spec = load_spec(space.root / "goal.yaml")
    except SpecError as error:
        if as_json:
            _refuse_in_json(error.problems, EXIT_INPUT)
        else:
            _report(error, debug)
        return EXIT_INPUT
    if as_json:
        print_json({"ok": True, "goal": spec.name, "digest": spec.digest()})
    else:
        print(f"{spec.name}: goal.yaml is valid")
    return EXIT_DONE


@command
def plan(workspace: Folder = HERE, as_json: AsJson = False, debug: Debug = False) -> int:
    """What the open round, or else the next one, would run, why, and how many attempts that is."""
    from reports.tables import PlanRow
    from reports.tables import plan as table
    from stages import rounds
    from stages.estimate import attempts_per_stage

    space = _open(workspace)
    number = rounds.open_round(space)
    opened = number is not None
    number = number or (space.rounds()[-1] + 1 if space.rounds() else 1)
    ctx = _context(space, number)
    steps = rounds.plan(ctx)
    cost = attempts_per_stage(ctx.spec)
    nothing = not opened and all(step.action == "reuse" for step in steps)
    rows = [
        PlanRow(s.stage, s.action, s.why, {"attempts": cost[s.stage] if s.action in ("run", "unknown") else 0})
        for s in steps
    ]
    if as_json:
        plain = [{"stage": row.stage, "action": row.action, "why": row.why, **row.cost} for row in rows]
        print_json({"round": number, "open": opened, "up_to_date": nothing, "stages": plain})
    elif nothing:
        print("up to date")
    else:
        display(table(rows))
    return EXIT_DONE


@command
def run(
    workspace: Folder = HERE,
    rounds: Annotated[int | None, typer.Option(min=1, help="go on until this many rounds exist")] = None,
    following: Annotated[bool, typer.Option("--next", help="finish the open round, then add one")] = False,
    until: Annotated[str | None, typer.Option(help="stop after this stage")] = None,
    abandon: Annotated[bool, typer.Option("--abandon", help="end the open round as it is, and run nothing")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Finish the open round; go on until N rounds exist (--rounds), or add one (--next). Exit 0 when complete."""
    from stages import rounds as progress

    if until is not None and until not in STAGES:
        raise InputError(f"--until {until}: no such stage; one of {', '.join(STAGES)}")
    if rounds is not None and following:
        raise InputError("--rounds and --next: give one of the two")
    space = _open(workspace)
    if abandon:
        return _abandon(space, as_json)
    complete = progress.complete_rounds(space)
    if following:
        wanted = complete + (2 if progress.open_round(space) else 1)
    else:
        wanted = rounds or max(1, complete + bool(progress.open_round(space)))
    did = complete < wanted
    if did:
        from stages.spec import load_spec

        load_spec(space.root / "goal.yaml")
        _run_rounds(space, wanted, until, quiet=as_json)
    if not did and not as_json:
        print("up to date")
    return _summary(space, as_json, show=did)


def _abandon(space: Any, as_json: bool) -> int:
    from stages.rounds import abandon

    with space.lock():
        number = abandon(space)
    if as_json:
        print_json({"abandoned": number})
    else:
        print(
            "no round is open" if number is None else f"round {number}: abandoned; `postloop run --next` begins another"
        )
    return EXIT_DONE


def _run_rounds(space: Any, wanted: int, until: Any, quiet: bool) -> None:
    """In this process: Prefect is imported only now, and only one flow run a stage is made."""
    from flows import embedded, stopping

    stopping.install()
    server = embedded.start(space.root)
    from flows.loop import round_flow
    from flows.running import prefect_errors
    from stages import rounds as progress

    if server is not None:
        embedded.import_until(_needed_later(space, until), server.answers)
        server.wait()
    while progress.complete_rounds(space) < wanted:
        with prefect_errors():
            round_flow(str(space.root), until, quiet)
        if until is not None:
            return


def _needed_later(space: Any, until: Any) -> list[str]:
    """Modules with heavy imports that the stages still to be run will need."""
    from stages import rounds as progress

    number = progress.open_round(space)
    left = progress.missing(space, number) if number else list(STAGES)
    wanted = set(left) & set(STAGES[: STAGES.index(until) + 1] if until else STAGES)
    sampling, training = wanted - {"goal"}, wanted & {"sft", "rl"}
    return ["stages.samplers.transformers_sampler"] * bool(sampling) + ["stages.trainers.grouped"] * bool(training)


def _summary(space: Any, as_json: bool, show: bool = True) -> int:
    from flows.review import view_of

    numbers = space.rounds()
    if not numbers:
        return EXIT_DONE
    view = view_of(space, numbers[-1])
    if as_json:
        print_json(_round_json(view))
    elif show:
        from reports.tables import summary

        display(summary(view))
        folder = space.root
        print(f"report: postloop report -w {folder} {view.round}   failures: postloop failures -w {folder}")
    return EXIT_DONE


def _round_json(view: Any) -> dict[str, Any]:
    return {
        "round": view.round,
        "complete": view.complete,
        "records": {stage: record.content_digest() for stage, record in view.ordered()},
        "gates": [{"stage": stage, **gate.model_dump(mode="json")} for stage, gate in view.gates()],
        "results": [r.model_dump(mode="json") for r in view.evaluation.results] if view.evaluation else [],
        "paired": [p.model_dump(mode="json") for p in view.evaluation.paired] if view.evaluation else [],
        "infrastructure_errors": view.infrastructure_errors(),
        "escalated": [bucket.id for bucket in view.escalated()],
    }


@command
def status(workspace: Folder = HERE, as_json: AsJson = False, debug: Debug = False) -> int:
    """The rounds of the workspace and how far each one is."""
    from flows.review import view_of
    from reports.tables import status as table

    space = _open(workspace)
    views = [view_of(space, number, depth=0) for number in space.rounds()]
    if as_json:
        print_json([_round_json(view) for view in views])
    elif not views:
        print("no round yet; run `postloop run`")
    else:
        display(table(views))
    return EXIT_DONE


command(trajectories.show)


@command
def failures(
    number: Annotated[int | None, typer.Argument(metavar="[ROUND]", help="the last one when left out")] = None,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="all rounds: what each bucket was, what was done, what came of it")
    ] = False,
    matrix: Annotated[bool, typer.Option("--matrix", help="the buckets beside the last rounds")] = False,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """The buckets of a round: size, share with interval and by round, route, rule, example, material, who decided."""
    from flows.review import number_of, view_of
    from reports.tables import failures as table

    if ledger and matrix:
        raise InputError("--ledger and --matrix: give one of the two")
    space = _open(workspace)
    if ledger:
        return _ledger(space, number_of(space, number), as_json)
    view = view_of(space, number_of(space, number), with_attempts=not matrix)
    if view.backflow is None:
        raise InputError(f"round {view.round}: backflow has not run yet; run `postloop run`")
    if matrix:
        return _matrix(view, as_json)
    if as_json:
        print_json(view.backflow.model_dump(mode="json"))
    else:
        display(table(view.backflow.buckets, {a.trajectory.id: a for a in view.attempts}, view))
    return EXIT_DONE


def _matrix(view: Any, as_json: bool) -> int:
    from reports.tables import matrix as table

    if not as_json:
        display(table(view))
        return EXIT_DONE
    rounds = [old for old in view.history() if old.backflow is not None]
    print_json(
        [{"round": old.round, "buckets": [b.model_dump(mode="json") for b in old.backflow.buckets]} for old in rounds]
    )
    return EXIT_DONE


def _ledger(space: Any, last: int, as_json: bool) -> int:
    """Up to round `last`. The file is for people to read and keep; nothing reads it back."""
    from dataclasses import replace

    from flows.review import after_the_last
    from reports.tables import ledger as table
    from reports.tables import ledger_markdown
    from stages.artifacts import make_folder, write_durably
    from stages.ledger import ledger

    rows = ledger(replace(after_the_last(space), round=last + 1))
    path = space.root / "reports" / "ledger.md"
    make_folder(path.parent)
    write_durably(path, ledger_markdown(rows, space.root.name).encode())
    if as_json:
        print_json([row.model_dump(mode="json") for row in rows])
    else:
        display(table(rows))
        print(path)
    return EXIT_DONE


@command
def report(
    number: Annotated[int | None, typer.Argument(metavar="[ROUND]", help="the last one when left out")] = None,
    out: Annotated[
        Path | None, typer.Option(help="where to write it; default reports/round-N.html in the workspace")
    ] = None,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Write the report of a round: one HTML file."""
    from flows.review import number_of, view_of
    from reports.page import render
    from stages.artifacts import write_durably

    space = _open(workspace)
    chosen = number_of(space, number)
    path = out or space.root / "reports" / f"round-{chosen}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, render(view_of(space, chosen, with_attempts=True)).encode())
    if as_json:
        print_json({"round": chosen, "path": str(path)})
    else:
        print(path)
    return EXIT_DONE


@command
def schedule(
    cron: Annotated[str, typer.Option(help="five fields, e.g. '0 2 * * *'")],
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Declare when rounds run; `postloop serve` runs them."""
    from flows.schedule import deployment_name, write_schedule

    space = _open(workspace)
    write_schedule(space.root, cron)
    if as_json:
        print_json({"deployment": deployment_name(space.root), "cron": cron})
    else:
        print(f"{deployment_name(space.root)}: a round at {cron!r}; start it with: postloop serve -w {workspace}")
    return EXIT_DONE


@command
def serve(workspace: Folder = HERE, debug: Debug = False) -> int:
    """Run the schedule: local Prefect and MLflow on loopback, one round at a time, until stopped."""
    from flows import stopping
    from flows.schedule import serve as serve_until_stopped
    from stages.spec import load_spec

    space = _open(workspace)
    stopping.install()  # until Prefect's runner takes it over
    with suppress(KeyboardInterrupt):
        serve_until_stopped(space.root, load_spec(space.root / "goal.yaml").runtime.tracking_uri)
    return EXIT_DONE


@command
def verify(workspace: Folder = HERE, as_json: AsJson = False, debug: Debug = False) -> int:
    """Every artifact, decision and kept attribution of the workspace against its digest. Exit 1 when one differs."""
    from stages.attributed import kept
    from stages.decisions import decisions

    space = _open(workspace)
    problems = space.verify()
    for read in (decisions, kept):
        try:
            read(space)
        except IntegrityError as error:
            problems.append(str(error))
    told = {problem.partition(":")[0] for problem in problems}
    problems += [problem for problem in space.verify_appended() if problem.partition(":")[0] not in told]
    if as_json:
        print_json({"ok": not problems, "problems": problems})
    else:
        print("\n".join(problems) if problems else "every artifact matches its digest")
    return EXIT_NO if problems else EXIT_DONE


tasks_app = typer.Typer(no_args_is_help=True, help="import, mine, prove, run and export tasks")
app.add_typer(tasks_app, name="tasks")
command(tasks.import_, tasks_app, "import")
command(tasks.mine, tasks_app)
command(tasks.list_, tasks_app, "list")
command(tasks.validate, tasks_app)
command(tasks.run, tasks_app)
command(tasks.export, tasks_app)
trajectories_app = typer.Typer(no_args_is_help=True, help="trajectories of others")
app.add_typer(trajectories_app, name="trajectories")
command(trajectories.import_, trajectories_app, "import")
command(canary.canary)
command(compare.compare)
command(decide.decide)
command(apply.apply)
command(gc.gc)
command(hacks.hacks)
command(replay.replay)
command(attribute.attribute)
command(triage.triage)
command(rescore.rescore)
command(remote.push)
command(remote.pull)


_UsageError: Any = typer.BadParameter.__base__  # typer has no public name for it


def main() -> None:
    """The script. A misspelt command or option is one line too, with exit 2; without arguments the help is shown."""
    collect_rarely()
    if not sys.argv[1:]:
        app()
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):  # it fell while a command was being left
        print(STOPPED, file=sys.stderr)
        sys.exit(EXIT_STOPPED)
    except _UsageError as error:
        told = " ".join(str(error.format_message()).split()).rstrip(".")
        asked = error.ctx.command_path if error.ctx else "postloop"
        print(f"postloop: {told}; see: {asked} --help", file=sys.stderr)
        if "--json" in sys.argv:
            _refuse_in_json([f"{told}; see: {asked} --help"], EXIT_INPUT)
        sys.exit(EXIT_INPUT)
    sys.exit(code or EXIT_DONE)


if __name__ == "__main__":
    main()

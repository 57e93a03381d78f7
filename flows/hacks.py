"""`postloop hacks`: the hack catalogue against the verifiers. A table, exit 1 when a hack passes or an honest twin does not.

Beside what the verifiers say stands what the same submission gets from plain `python -m pytest` in its own tree.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from flows.options import HERE, AsJson, Debug, Folder, display, print_json
from flows.settings import cache_folder, prepare
from reports.columns import Columns
from schemas.errors import EXIT_DONE, EXIT_NO, InputError

if TYPE_CHECKING:
    from evals.hacks import Finding, Hack


def hacks(
    engine: Annotated[list[str] | None, typer.Option(help="may be repeated; default: that of goal.yaml")] = None,
    runtime: Annotated[str | None, typer.Option(help="Docker's runtime, e.g. runsc")] = None,
    verifier: Annotated[str | None, typer.Option(help="a bundle in place of the one that ships, by its name")] = None,
    only: Annotated[str | None, typer.Option(help="numbers or labels, e.g. 20,26a")] = None,
    plain: Annotated[bool, typer.Option("--plain/--no-plain", help="also run plain pytest, in a sandbox")] = True,
    workspace: Folder = HERE,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """The hack catalogue against the verifiers: caught or not, class, honest twin, plain pytest. Exit 1 if one passes."""
    from evals.hacks import caught_numbers
    from stages.spec import load_spec
    from stages.workspace import Workspace

    space = Workspace.open(workspace)
    prepare(space.root)
    chosen = chosen_hacks(only)
    names = engine or [load_spec(space.root / "goal.yaml").environment.engine]
    found, open_gaps = _run(names, runtime, verifier, chosen, plain, cache_folder(space.root), whole=only is None)
    good = all(finding.good for findings in found.values() for finding in findings)
    if as_json:
        print_json(_plain(found, open_gaps))
    else:
        display(_table(chosen, found))
        for name, findings in found.items():
            display(Text(_summary(name, findings, len(caught_numbers(findings)))))
        for text in open_gaps:
            display(Text(f"known gap: {text}", "yellow"))
    return EXIT_DONE if good else EXIT_NO


def chosen_hacks(only: str | None) -> list[Hack]:
    """Those that --only names, by number or label; all without it. Raises InputError for one that does not exist."""
    from evals.hacks import catalogue

    wanted = [word.strip() for word in only.split(",")] if only is not None else []
    known = {word for hack in catalogue() for word in (hack.label, str(hack.number))}
    for word in wanted:
        if word not in known:
            raise InputError(f"--only {word}: no such hack; give numbers or labels of the table, e.g. 20,26a")
    return [hack for hack in catalogue() if not wanted or hack.label in wanted or str(hack.number) in wanted]


def _run(
    names: Sequence[str], runtime: str | None, ref: str | None, hacks: list[Hack], plain: bool, cache: Path, whole: bool
) -> tuple[dict[str, list[Finding]], list[str]]:
    """Findings by engine, and the known gaps. Plain pytest knows no engine: it is asked with the first."""
    from environments.engines import open_engine
    from environments.image import build_image
    from evals.hacks import Ground, run_gaps, run_hacks

    found: dict[str, list[Finding]] = {}
    open_gaps: list[str] = []
    image = build_image(cache / "images")
    for name in dict.fromkeys(names):
        engine = open_engine(name, runtime if name == "docker" else None)
        with Ground(engine, image, _folders(ref)) as ground:
            found[name] = []
            for finding in run_hacks(ground, hacks, plain and len(found) == 1):
                found[name].append(finding)
                _progress(name, len(found[name]), len(hacks))
            if whole and not open_gaps:
                open_gaps = [f"{item.hack.name}: {why}" for item, why in run_gaps(ground) if not item.caught]
    return found, open_gaps


def _folders(ref: str | None) -> dict[str, Path]:
    """The bundle that takes the place of the one of its name. InputError for one that no hack is run against."""
    from environments.bundles import Bundle, find

    if ref is None:
        return {}
    folder = find(ref)
    name = Bundle(folder).name
    if name not in ("cases", "pytest_files", "repository", "judge"):
        raise InputError(
            f"--verifier {ref}: the bundle is called {name}; name it as the one that it replaces, e.g. cases"
        )
    return {name: folder}


def _progress(name: str, done: int, total: int) -> None:
    if sys.stderr.isatty() or done == total:
        print(f"\r{name}: {done} of {total} hacks", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _plain(found: dict[str, list[Finding]], open_gaps: list[str]) -> dict[str, Any]:
    from evals.hacks import caught_numbers

    engines = {
        name: {
            "numbers_caught": caught_numbers(findings),
            "hacks": [row_of(finding) for finding in findings],
        }
        for name, findings in found.items()
    }
    return {"engines": engines, "known_gaps": open_gaps}


def row_of(finding: Finding) -> dict[str, Any]:
    hack = finding.hack
    return {
        "number": hack.number, "label": hack.label, "name": hack.name, "section": hack.section, "by": hack.by,
        "expected": hack.expected, "classes": sorted(finding.cheat.classes), "detail": finding.cheat.detail,
        "passed": finding.cheat.passed, "caught": finding.caught, "honest_twin_passes": finding.twin_passes,
        "plain_pytest": finding.plain,
    }  # fmt: skip


def _table(hacks: Sequence[Hack], found: dict[str, list[Finding]]) -> Columns:
    from reports.text import one_line

    titles = (word for name in found for word in (name, "honest twin"))
    shown = Columns("no.", "hack", "class", *titles, "plain pytest")
    columns = list(found.values())
    for index, hack in enumerate(hacks):
        row = [findings[index] for findings in columns]
        cells = [Text(hack.label), Text(one_line(hack.name)), Text(", ".join(sorted(row[0].cheat.classes)) or "-")]
        for finding in row:
            cells += [_word(finding.caught, "caught", "PASSES" if finding.cheat.passed else "another class")]
            cells += [_word(finding.twin_passes, "passes", "FLAGGED")]
        said = row[0].plain or "-"
        shown.add_row(*cells, Text(said, "red" if said == "passes" else "dim" if said.startswith("n/a") else ""))
    return shown


def _word(good: bool, yes: str, no: str) -> Text:
    return Text(yes, "green") if good else Text(no, "bold red")


def _summary(name: str, findings: Sequence[Finding], numbers: int) -> str:
    total = len({finding.hack.number for finding in findings if finding.hack.number <= 40})
    caught = sum(finding.caught for finding in findings)
    twins = sum(finding.twin_passes for finding in findings)
    asked = [finding.plain for finding in findings if finding.plain and not finding.plain.startswith("n/a")]
    text = f"{name}: {numbers} of {total} of the list caught; {caught} of {len(findings)} with all variants and our own"
    text += f"; {twins} of {len(findings)} honest twins pass"
    return f"{text}; plain pytest lets {asked.count('passes')} of {len(asked)} pass" if asked else text

"""The hack catalogue on every engine, honest submissions beside it, and what plain pytest says of the same cheats.

    python -m bench.hacks --out FILE.json [--engines bubblewrap docker] [--honest N] [--equivalent N]

Holds when every number of the list is caught with its class on each engine, every honest twin passes, no honest
submission is flagged, plain pytest passes every twin that it can be asked about, and each removed defence lets one of its
hacks through. Docker is the daemon of DOCKER_HOST, else one of our own. Not covered: other images than the default one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench.common import cache_folder, load, machine, say, table, write_json
from bench.probes import real_dockerd
from environments.engines import Engine, open_engine
from environments.image import Image, build_image
from evals.hacks import NUMBERS, Finding, Ground, catalogue, caught_numbers, run_gaps, run_hacks, seen
from evals.hacks.defences import DEFENCES, slips, weaken
from evals.hacks.honest import Submission, honest_repositories, honest_submissions
from evals.hacks.plain import plain_verdict
from evals.hacks.runner import at_once
from schemas.errors import EXIT_DONE, EXIT_NO, PostloopError


def on_engine(engine: Engine, image: Image, plain: bool, honest: Sequence[Submission]) -> dict[str, Any]:
    began = time.perf_counter()
    with Ground(engine, image) as ground:
        findings = []
        for finding in run_hacks(ground, catalogue(), plain):
            findings.append(finding)
            if not finding.good:
                say(f"{engine.name}: {finding.hack.label} {finding.hack.name}: {finding.cheat}, twin {finding.honest}")
        result = {
            "numbers_caught": len(caught_numbers(findings)),
            "caught": sum(finding.caught for finding in findings),
            "twins_passing": sum(finding.twin_passes for finding in findings),
            "hacks": len(findings),
            "rows": [_row(finding) for finding in findings],
            "honest": honest_on(ground, honest),
            "known_gaps": [
                {"name": item.hack.name, "gets_through": not item.caught, "why": why} for item, why in run_gaps(ground)
            ],
        }
    return {**result, "seconds": round(time.perf_counter() - began, 1)}


def honest_on(ground: Ground, honest: Sequence[Submission]) -> dict[str, Any]:
    """How many were judged, in which styles, and every one that did not simply pass."""
    flagged = []
    for kind, name in (("function", "cases"), ("repository", "repository")):
        chosen = [submission for submission in honest if submission.task.kind == kind]
        verdicts = ground.verifier(name).judge_many([(item.task, item.outcome) for item in chosen], at_once)
        for item, verdict in zip(chosen, verdicts, strict=True):
            said = seen(verdict)
            if not said.passed or said.classes:
                flagged.append(
                    {"style": item.style, "task": item.task.id, "classes": sorted(said.classes), "detail": said.detail}
                )
    styles = Counter(f"{item.task.kind}: {item.style}" for item in honest)
    return {
        "submissions": len(honest),
        "flagged": len(flagged),
        "which": flagged,
        "styles": dict(sorted(styles.items())),
    }


def without_defences(engine: Engine, image: Image) -> list[dict[str, Any]]:
    """For each defence: which of its hacks slip through a verifier that lacks only that one."""
    known = {hack.label: hack for hack in catalogue()}
    rows = []
    for defence in DEFENCES:
        with tempfile.TemporaryDirectory() as folder:
            weak = {defence.bundle: weaken(defence, Path(folder))}
            with Ground(engine, image, weak) as ground:
                slipped = [label for label in defence.hacks if slips(ground, defence, known[label])]
        rows.append(
            {"defence": defence.name, "bundle": defence.bundle, "hacks": list(defence.hacks), "slipped": slipped,
             "they_pass": defence.passes}
        )  # fmt: skip
    return rows


def plain_twins(engine: Engine, image: Image) -> dict[str, int]:
    """What plain pytest says of the honest twins: it must pass them where it can be asked, else its column means nothing."""
    said = Counter(plain_verdict(engine, image, hack, hack.honest).split(":")[0] for hack in catalogue())
    return dict(sorted(said.items()))


def measure(engines: Sequence[str], honest: int, equivalent: int) -> dict[str, Any]:
    image = build_image(cache_folder() / "images")
    submissions = honest_submissions(honest, equivalent=equivalent) + honest_repositories()
    result: dict[str, Any] = {"machine": machine(), "load": load(), "numbers": len(NUMBERS), "engines": {}}
    for index, name in enumerate(engines):
        say(f"{name}: {len(catalogue())} hacks, {len(submissions)} honest submissions")
        with real_dockerd() if name == "docker" else nullcontext():
            engine = open_engine(name)
            result["engines"][name] = on_engine(engine, image, index == 0, submissions)
            if index == 0:
                result["defences"] = without_defences(engine, image)
                result["plain_of_twins"] = plain_twins(engine, image)
    result["plain"] = _plain_column(result)
    result["holds"] = holds(result)
    return result


def _plain_column(result: dict[str, Any]) -> dict[str, int]:
    rows = next(iter(result["engines"].values()))["rows"]
    return dict(sorted(Counter(row["plain"].split(":")[0] for row in rows).items()))


def holds(result: dict[str, Any]) -> bool:
    engines = result["engines"].values()
    caught = all(
        run["numbers_caught"] == result["numbers"] and run["caught"] == run["hacks"] == run["twins_passing"]
        for run in engines
    )
    clean = all(run["honest"]["flagged"] == 0 and run["honest"]["submissions"] >= 400 for run in engines)
    fair = result["plain_of_twins"].keys() <= {"passes", "n/a"}
    return caught and clean and fair and all(row["slipped"] for row in result["defences"])


def _row(finding: Finding) -> dict[str, Any]:
    hack, cheat = finding.hack, finding.cheat
    return {
        "label": hack.label, "name": hack.name, "section": hack.section, "expected": hack.expected,
        "classes": sorted(cheat.classes), "detail": cheat.detail, "passed": cheat.passed, "caught": finding.caught,
        "twin_passes": finding.twin_passes, "plain": finding.plain,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", default=["bubblewrap"])
    parser.add_argument("--honest", type=int, default=480)
    parser.add_argument("--equivalent", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        result = measure(options.engines, options.honest, options.equivalent)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    rows = [
        [name, run["numbers_caught"], run["caught"], run["hacks"], run["twins_passing"],
         f"{run['honest']['flagged']} of {run['honest']['submissions']}"]
        for name, run in result["engines"].items()
    ]  # fmt: skip
    print(table(["engine", "numbers caught", "hacks caught", "hacks", "twins pass", "honest flagged"], rows))
    print(f"plain pytest on the cheats: {result['plain']}; on the honest twins: {result['plain_of_twins']}")
    return EXIT_DONE if result["holds"] else EXIT_NO


if __name__ == "__main__":
    sys.exit(main())

"""Escape and exhaustion probes on real engines, and the same programs beside their bait: a table, exit 1 on an escape.

    python -m bench.probes --out FILE.json [--engines bubblewrap rlimits docker] [--probes NAME ...] [--no-plain]

`rlimits` is bubblewrap as an ordinary user gets it, without a cgroup: probes that only a cgroup contains are shown and do
not count there. Two controls show that the probes can see an escape: in a sandbox that is thrown away, with the bait inside
it, no filter and every capability there, a program must reach something (the last column); and each defence of bubblewrap that can
be taken away by itself is taken away, which at least one probe must notice. No program runs outside of a sandbox. Not
covered: kernels other than this machine's, and probes that this control cannot show (`Probe.plain` is False).
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.common import ROOT, cache_folder, machine, say, table, write_json
from environments.engines import Engine, bubblewrap, open_engine, reading
from environments.engines.bubblewrap import BubblewrapEngine
from environments.image import Image, build_image
from environments.probes import PROBES, Finding, Probe, bait, host, run_probe
from environments.probes.running import PROGRAMS, judge
from schemas.errors import PostloopError, SandboxError
from schemas.execution import Execution, ExecutionResult, Limits, Stop

ENGINES = ("bubblewrap", "rlimits", "docker")
ROOMY = Limits(cpu_s=60, wall_s=90, memory_mb=1024, pids=1000, disk_mb=256, output_kb=1024)


# --- without one defence -------------------------------------------------------------------------------------------

Words = list[str]
_ALLOW_ALL = bytes.fromhex("06000000 0000ff7f")


def _shared(*kept: str) -> Callable[[Words], Words]:
    """All namespaces but those of `kept`, which stay the host's."""
    names = [name for name in ("user", "ipc", "pid", "net", "uts", "cgroup-try") if name not in kept]

    def change(words: Words) -> Words:
        place = words.index("--unshare-all")
        return [*words[:place], *(f"--unshare-{name}" for name in names), *words[place + 1 :]]

    return change


def _without(flag: str, count: int = 0, after: str | None = None) -> Callable[[Words], Words]:
    """Leave out each `flag` with its `count` arguments; with `after`, only where the first argument is that."""

    def change(words: Words) -> Words:
        left: Words = []
        place = 0
        while place < len(words):
            if words[place] == flag and (after is None or words[place + 1] == after):
                place += 1 + count
            else:
                left.append(words[place])
                place += 1
        return left

    return change


def _follow_links(folder_fd: int, parts: list[str]) -> bytes | None:
    try:
        fd = os.open("/".join(parts), os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder_fd)
        with open(fd, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return None


# Defence -> how to take it away, and probes of which at least one must notice.
DEFENCES: dict[str, tuple[Callable[[Words], Words] | str, tuple[str, ...]]] = {
    "system-call filter": ("filter", ("exotic", "prctl", "other_tables", "keys", "io_uring")),
    "dropped user": ("user", ("control",)),
    "cgroup": ("cgroup", ("memory_files", "memory_segments", "memory_sockets")),
    "read-back without links": ("links", ("links", "swapped")),
    "network namespace": (_shared("net"), ("host_tcp", "abstract_unix")),
    "process namespace": (_shared("pid"), ("other_processes",)),
    "ipc namespace": (_shared("ipc"), ("shared_memory",)),
    "read-only tests": (_without("--remount-ro", 1, "/tests"), ("read_only",)),
    "size of the disk": (_without("--size", 1), ("disk_fill",)),
}


@contextmanager
def weakened(defence: str) -> Iterator[BubblewrapEngine]:
    """The real engine without one of its defences. Only for probes whose success changes nothing on the host."""
    how, _ = DEFENCES[defence]
    engine = BubblewrapEngine()
    with ExitStack() as stack:
        if how == "filter":
            engine._filter = _ALLOW_ALL
        elif how == "cgroup":
            engine._tree = None  # after its filter was chosen: where no cgroup is to be had, a stricter one stands in
        elif how == "user":
            engine._drop = []
        elif how == "links":
            stack.enter_context(patch.object(reading, "_read_regular", _follow_links))
        elif callable(how):
            stack.enter_context(_options(how))
        yield engine


@contextmanager
def _options(change: Callable[[Words], Words]) -> Iterator[None]:
    """Change bubblewrap's options before they are handed over."""
    original = bubblewrap._Options.sealed

    def sealed(options: Any) -> int:
        options._words = change(options._words)
        return original(options)

    with patch.object(bubblewrap._Options, "sealed", sealed):
        yield


def unnoticed(image: Image, defences: Sequence[str]) -> list[str]:
    """Defences whose absence no probe noticed: there must be none."""
    found = []
    for defence in defences:
        names = DEFENCES[defence][1]
        with weakened(defence) as engine:
            findings = run_all(f"without {defence}", engine, image, [p for p in PROBES if p.name in names])
        if all(finding.contained for finding in findings.values()):
            found.append(defence)
    return found


def _everything(words: Words) -> Words:
    """Every capability, which holds inside the sandbox's own namespaces and nowhere else."""
    return ["--cap-add" if word == "--cap-drop" else word for word in words]


def beside_bait(engine: BubblewrapEngine, image: Image, probe: Probe) -> Finding:
    """The program with nothing between it and the bait: both in one sandbox, which is thrown away."""
    texts = [PROGRAMS / "control.py", PROGRAMS / "inside.py", PROGRAMS / f"{probe.program}.py", Path(host.__file__)]
    facts = {"memory_mb": probe.limits.memory_mb, "disk_mb": probe.limits.disk_mb}
    job = {"program": probe.program, "name": probe.name, "facts": facts, "seconds": ROOMY.wall_s / 2}
    execution = Execution(
        argv=["/usr/bin/python3", "-I", "-S", "/tests/control.py"], files={}, stdin=json.dumps(job),
        readonly={path.name: path.read_text(encoding="utf-8") for path in texts},
    )  # fmt: skip
    with _options(_everything):
        told = engine.run(image.root, image.environment, execution, ROOMY).result
    try:
        said = json.loads(told.stdout.rstrip("\n").rpartition("\n")[2])
    except ValueError:
        raise SandboxError(f"control of probe {probe.name}: ended by {told.stop}: {told.stderr[-300:]}") from None
    stop = Stop.EXIT if said["code"] >= 0 else Stop.SIGNAL
    result = ExecutionResult(stop=stop, exit_code=max(0, said["code"]), stdout=said["stdout"], stderr=told.stderr)
    finding = Finding(probe.name, host=said["host"])
    judge(finding, probe, result, said["secret"])
    return finding


def blind(image: Image, probes: Sequence[Probe]) -> list[str]:
    """Probes that reach nothing even there."""
    engine = BubblewrapEngine()
    engine._filter = _ALLOW_ALL
    return sorted(probe.name for probe in probes if beside_bait(engine, image, probe).contained)


def engine_named(name: str) -> Engine:
    return BubblewrapEngine(use_cgroups=False) if name == "rlimits" else open_engine(name)


def run_all(label: str, engine: Engine, image: Image, probes: Sequence[Probe]) -> dict[str, Finding]:
    """A fresh bait for each probe: what one of them spoils must not hide what the next one does."""
    found = {}
    for probe in probes:
        with bait() as lure:
            found[probe.name] = run_probe(engine, image, probe, lure)
        if not found[probe.name].contained:
            say(f"{label}: {probe.name}: {'; '.join([*found[probe.name].reached, *found[probe.name].host])[:300]}")
    return found


@contextmanager
def real_dockerd() -> Iterator[None]:
    """The daemon that DOCKER_HOST names, else one of our own, as the tests start it."""
    if "DOCKER_HOST" in os.environ:
        yield
        return
    with (
        runpy.run_path(str(ROOT / "tests" / "dockerd.py"))["dockerd"]() as host,
        patch.dict(os.environ, DOCKER_HOST=host),
    ):
        yield


def measure(engines: Sequence[str], probes: Sequence[Probe], plain: bool) -> dict[str, Any]:
    image = build_image(cache_folder() / "images")
    result: dict[str, Any] = {"machine": machine(), "engines": {}, "probes": {p.name: p.what for p in probes}}
    for name in engines:
        with ExitStack() as stack:
            if name == "docker":
                stack.enter_context(real_dockerd())
            found = run_all(name, engine_named(name), image, probes)
        excused = {probe.name for probe in probes if name == "rlimits" and probe.needs_group}
        result["engines"][name] = {
            "contained": sum(finding.contained for finding in found.values()),
            "of": len(probes),
            "weaker": sorted(n for n in excused if not found[n].contained),
            "escaped": sorted(n for n, f in found.items() if not f.contained and n not in excused),
            "doors": {n: f.doors for n, f in found.items() if f.doors},
            "findings": {n: asdict(f) for n, f in found.items()},
        }
    if plain:
        shown = [probe for probe in probes if probe.plain]
        unseeing = blind(image, shown)
        result["plain"] = {"reached": len(shown) - len(unseeing), "of": len(shown), "blind": unseeing}
        result["unnoticed"] = unnoticed(image, list(DEFENCES))
        result["defences"] = len(DEFENCES)
    result["holds"] = (
        not result.get("unnoticed")
        and not any(e["escaped"] for e in result["engines"].values())
        and not result.get("plain", {}).get("blind")
    )
    return result


def rows(result: dict[str, Any], probes: Sequence[Probe]) -> list[list[str]]:
    lines = []
    for probe in probes:
        cells = []
        for engine in result["engines"].values():
            weak = probe.name in engine["weaker"]
            finding = engine["findings"][probe.name]
            held = not finding["reached"] and not finding["host"]
            cells.append("contained" if held else "no limit covers it" if weak else "NOT CONTAINED")
        known = result.get("plain", {}).get("blind", [])
        control = (
            "" if "plain" not in result or not probe.plain else "saw nothing" if probe.name in known else "reached"
        )
        lines.append([probe.name, probe.what, *cells, control])
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["bubblewrap", "rlimits"])
    parser.add_argument("--probes", nargs="+", choices=[probe.name for probe in PROBES])
    parser.add_argument("--no-plain", action="store_true", help="without the control")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    chosen = [probe for probe in PROBES if not options.probes or probe.name in options.probes]
    try:
        result = measure(options.engines, chosen, not options.no_plain)
    except PostloopError as error:
        say(str(error))
        return error.exit_code
    write_json(options.out, result)
    print(table(["probe", "what it tries", *options.engines, "beside the bait"], rows(result, chosen)))
    for name, engine in result["engines"].items():
        doors = sum(map(len, engine["doors"].values()))
        print(f"{name}: {engine['contained']} of {engine['of']} contained; open doors: {doors}")
    if "plain" in result:
        missed = result["defences"] - len(result["unnoticed"])
        print(f"beside their bait {result['plain']['reached']} of {result['plain']['of']} reach something")
        print(f"{missed} of {result['defences']} defences are missed when they are taken away")
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""One probe on one engine: what the program reached, what it used, and what of the host is different afterwards."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from environments.engines import Engine, Outcome
from environments.image import Image
from environments.probes.host import Bait, changes, clock_offset, look
from environments.probes.table import Probe
from schemas.errors import PostloopError
from schemas.execution import Execution, ExecutionResult, Stop

PROGRAMS = Path(__file__).parent / "programs"
_SETTLE_S = 3.0  # the kernel takes its time to let go of the dead
_CLOCK_S = 2.0
Message = dict[str, object]


@dataclass
class Finding:
    """`reached` and `host`: what must be empty. `doors`: system calls that are answered though nothing needs them."""

    probe: str
    reached: list[str] = field(default_factory=list)
    host: list[str] = field(default_factory=list)
    doors: list[str] = field(default_factory=list)
    tried: int = 0
    stop: str = ""
    measured: dict[str, float] = field(default_factory=dict)
    wall_s: float = 0.0

    @property
    def contained(self) -> bool:
        return not self.reached and not self.host


def execution(probe: Probe, lure: Bait, role: str = "", **facts: object) -> Execution:
    """The program, as an attempt would be run: its files read-only below /tests, the facts on stdin."""
    names = ("inside.py", f"{probe.program}.py")
    told = {**lure.facts, "memory_mb": probe.limits.memory_mb, "disk_mb": probe.limits.disk_mb, **facts}
    return Execution(
        argv=["/usr/bin/python3", "-I", "-S", f"/tests/{probe.program}.py", role or probe.name, lure.nonce],
        files={"start.txt": "start"},
        readonly={name: (PROGRAMS / name).read_text(encoding="utf-8") for name in names},
        stdin=json.dumps(told),
        collect=["report.jsonl", *probe.collect],
    )


def run_probe(engine: Engine, image: Image, probe: Probe, lure: Bait) -> Finding:
    """Never raises for what the program did.

    An engine's own exception counts as reached, since an attempt may cause none; so does a program that did not try.
    """
    before, offset = look(lure), clock_offset()
    finding = Finding(probe.name)
    began = time.monotonic()
    try:
        for outcome in _outcomes(engine, image, probe, lure):
            judge(finding, probe, outcome.result, lure.secret)
        killed = outcome.result.stop is Stop.MEMORY  # memory of no process: whatever would report was killed for it
        if finding.tried + len(finding.measured) < probe.tries and not killed:
            finding.reached.append(f"no proof: {finding.tried} of {probe.tries} tries: {outcome.result.stderr[-300:]}")
    except PostloopError as error:
        finding.reached.append(f"the engine raised {type(error).__name__}: {error}")
    finding.wall_s = round(time.monotonic() - began, 2)
    allowed_s = (probe.limits.wall_s + 20) * (2 if probe.how == "twice" else 1)
    if finding.wall_s > allowed_s:
        finding.reached.append(f"held the engine for {finding.wall_s:.1f} s, allowed are {allowed_s:.1f}")
    finding.host = _settled(before, lure)
    finding.host += [f"bait: somebody came to the listener {name}" for name in lure.visitors()]
    if abs(clock_offset() - offset) > _CLOCK_S:
        finding.host.append(f"clock: moved by {clock_offset() - offset:+.1f} s")
    return finding


def _outcomes(engine: Engine, image: Image, probe: Probe, lure: Bait) -> list[Outcome]:
    def run(wanted: Execution) -> Outcome:
        return engine.run(image.root, image.environment, wanted, probe.limits)

    if probe.how == "twice":
        return [run(execution(probe, lure)), run(execution(probe, lure, look=True))]
    if probe.how == "beside":
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(run, execution(probe, lure))
            time.sleep(1)
            return [run(execution(probe, lure, role="neighbour")), other.result()]
    return [run(execution(probe, lure))]


def _settled(before: dict[str, frozenset[str]], lure: Bait) -> list[str]:
    deadline = time.monotonic() + _SETTLE_S
    while (found := changes(before, look(lure))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


# --- judging -------------------------------------------------------------------------------------------------------


def judge(finding: Finding, probe: Probe, result: ExecutionResult, secret: str) -> None:
    """Add what one run shows."""
    messages = _messages(result)
    finding.stop = result.stop.value
    tried = [message for message in messages if "tried" in message]
    finding.tried += len(tried)
    finding.reached += [f"{message['tried']}: {message['reached']}" for message in tried if message["reached"]]
    finding.doors += [str(message["door"]) for message in messages if message.get("open")]
    for message in messages:
        if "measured" in message:
            name, value = str(message["measured"]), float(str(message["value"]))
            finding.measured[name] = max(value, finding.measured.get(name, 0.0))
    for name, most in probe.most.items():
        if finding.measured.get(name, 0.0) > most:
            finding.reached.append(f"{name}: {finding.measured[name]:g}, allowed are {most:g}")
    if result.stop not in probe.stops:
        wanted = ", ".join(stop.value for stop in probe.stops)
        finding.reached.append(
            f"ended by {result.stop.value} (exit {result.exit_code}), expected {wanted}: {result.stderr[-200:]}"
        )
    told = "".join([result.stdout, result.stderr, *result.files.values()])
    if secret in told:
        finding.reached.append("the secret of the host came back")
    finding.reached += probe.check(result, probe.limits)


def _messages(result: ExecutionResult) -> list[Message]:
    """From stdout and from the report, whichever survived; each line once."""
    lines = [*result.files.get("report.jsonl", "").splitlines(), *result.stdout.splitlines()]
    found: dict[str, Message] = {}
    for line in lines:
        if line.startswith("{") and line not in found:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # cut by the output limit
            found[line] = message
    return list(found.values())

"""Escape and exhaustion probes: a seeded sample on each engine, and the proof that the probes can see an escape.

All of them on all engines: python -m bench.probes --engines bubblewrap rlimits docker --out FILE.json
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from dockerd import dockerd

from bench.probes import DEFENCES, blind, engine_named, unnoticed
from environments.engines import Engine, Outcome, open_engine
from environments.image import Image, build_image, layer_digest
from environments.probes import PROBES, Bait, Probe, bait, run_probe
from environments.probes.host import changes, look
from schemas.errors import SandboxError
from schemas.execution import Environment, Execution, ExecutionResult, Limits, Stop
from schemas.goal import EnvironmentSpec

SEED = 20
BY_NAME = {probe.name: probe for probe in PROBES}


def sample(count: int, probes: Sequence[Probe] = PROBES) -> list[str]:
    return [probe.name for probe in random.Random(SEED).sample(list(probes), count)]


GROUPLESS = [probe for probe in PROBES if not probe.needs_group]
CHOSEN = [
    *(("bubblewrap", name) for name in sample(16)),
    *(("rlimits", name) for name in sample(6, GROUPLESS)),
    *(("docker", name) for name in sample(6)),
]


@pytest.fixture(scope="module")
def image() -> Image:
    """The one that a round's spec declares."""
    told = EnvironmentSpec()
    folder = Path(tempfile.gettempdir()) / "postloop-test-images"
    return build_image(folder, told.name, tuple(told.packages), told.variables)


@pytest.fixture(scope="module")
def engines(image: Image) -> Iterator[dict[str, Engine]]:
    """Every engine once. The image is the same before and after all probes."""
    with dockerd():
        yield {
            "bubblewrap": open_engine("bubblewrap"),
            "rlimits": engine_named("rlimits"),
            "docker": open_engine("docker"),
        }
    assert layer_digest(image.root) == image.environment.layer


@pytest.fixture
def lure() -> Iterator[Bait]:
    with bait() as found:
        yield found


def test_there_are_many_kinds_and_each_has_its_program() -> None:
    assert len(PROBES) >= 70
    assert len(BY_NAME) == len(PROBES)
    programs = Path(run_probe.__code__.co_filename).parent / "programs"
    for probe in PROBES:
        assert f"def {probe.name}(facts, nonce):" in (programs / f"{probe.program}.py").read_text()


@pytest.mark.parametrize(("engine", "name"), CHOSEN)
def test_a_probe_is_contained(engines: dict[str, Engine], image: Image, lure: Bait, engine: str, name: str) -> None:
    finding = run_probe(engines[engine], image, BY_NAME[name], lure)
    assert finding.reached == []
    assert finding.host == []


# --- the probes can see --------------------------------------------------------------------------------------------


def test_beside_its_bait_a_program_reaches_it(image: Image) -> None:
    shown = [probe for probe in PROBES if probe.plain]
    assert len(shown) >= 16
    chosen = {
        probe.name: probe for probe in [*random.Random(SEED).sample(shown, 3), BY_NAME["host_files"], BY_NAME["rights"]]
    }
    assert blind(image, list(chosen.values())) == []


def test_a_defence_that_is_taken_away_is_missed(image: Image) -> None:
    """The cgroup always: where there is none a stricter filter stands in, which must not be what is tried here."""
    as_root = os.getuid() == 0
    others = set(DEFENCES) - {"cgroup"} - (set() if as_root else {"dropped user"})
    chosen = random.Random(SEED).sample(sorted(others), 1)
    assert unnoticed(image, [*chosen, "cgroup"] if as_root else chosen) == []


class Answering:
    """An engine that gives a made result, or fails."""

    name = "made"

    def __init__(self, result: ExecutionResult | None) -> None:
        self.result = result

    def enforced(self) -> list[str]:
        return []

    def run(self, root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        if self.result is None:
            raise SandboxError("sandbox: died")
        return Outcome(self.result, {})


def ended(stdout: str, stop: Stop = Stop.EXIT, **files: str) -> ExecutionResult:
    return ExecutionResult(stop=stop, exit_code=0 if stop is Stop.EXIT else None, stdout=stdout, stderr="", files=files)


def test_a_program_that_did_not_try_is_no_proof(image: Image, lure: Bait) -> None:
    finding = run_probe(Answering(ended("")), image, BY_NAME["host_tcp"], lure)
    assert "no proof: 0 of 5 tries" in finding.reached[0]


def test_an_engine_that_fails_on_an_attempt_is_not_contained(image: Image, lure: Bait) -> None:
    finding = run_probe(Answering(None), image, BY_NAME["kill_all"], lure)
    assert finding.reached == ["the engine raised SandboxError: sandbox: died"]


def test_the_secret_in_any_output_and_a_wrong_end_are_seen(image: Image, lure: Bait) -> None:
    leaked = ended("", Stop.WALL, **{"out/link": lure.secret})
    reached = " ".join(run_probe(Answering(leaked), image, BY_NAME["links"], lure).reached)
    assert "the secret of the host came back" in reached
    assert "ended by wall" in reached
    assert "collected 'out/link'" in reached


def test_changes_of_the_host_are_seen_and_named(lure: Bait) -> None:
    before = look(lure)
    (lure.folder / "open" / lure.nonce).write_text("x")
    (lure.folder / "writable.txt").write_text("changed")
    lure.process.kill()
    lure.process.wait()
    found = " ".join(changes(before, look(lure)))
    for word in (f"files: + {lure.folder}/open/{lure.nonce}", "bait: + writable.txt", "bait: + process dead"):
        assert word in found


def test_the_bait_leaves_nothing_behind() -> None:
    with bait() as lure:
        folder, pid, shared = lure.folder, lure.process.pid, lure.facts["posix_shm"]
        assert (Path("/dev/shm") / shared).exists()
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()
    assert not (Path("/dev/shm") / shared).exists()

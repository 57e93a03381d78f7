"""Attempts that share a sandbox: each gets the verdict that it gets alone, and none finds or leaves anything of the others."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any, TypeVar

import pytest

from environments.bundles import Bundle, Reply, builtin
from environments.engines import Outcome, open_engine
from environments.image import Image, build_image
from evals.verify import Verifier
from schemas.base import digest_of
from schemas.errors import SandboxError
from schemas.execution import Environment, Execution, Limits
from schemas.task import Task
from schemas.verdict import Status, Verdict
from tests.evals.test_verify import BROKEN, CHEATS, FIXED, LIMITS, task
from tests.evals.test_verify_repository import ATTACKS, HONEST, calc, slugs, stats
from tests.evals.test_verify_repository import FIXED as CORE_FIXED
from tests.evals.test_verify_repository import LIMITS as REPOSITORY_LIMITS

sys.path.insert(0, str(builtin("cases")))

import fence  # type: ignore[import-not-found]
import packing  # type: ignore[import-not-found]

sys.path.pop(0)

A = TypeVar("A")
B = TypeVar("B")
Item = tuple[Task, dict[str, str]]
SHARED_SCRIPTS = ("/tests/together.py", "/tests/drive.py")


def two_at_once(fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(fn, items))


class Watching:
    """The real engine; keeps what it ran, and fails shared sandboxes when told to."""

    name = "watching"

    def __init__(self, broken: bool = False) -> None:
        self.engine, self.broken = open_engine("bubblewrap"), broken
        self.ran: list[Execution] = []

    def enforced(self) -> list[str]:
        return self.engine.enforced()

    def run(self, environment_root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        self.ran.append(execution)
        if self.broken and members_of(execution) > 1:
            raise SandboxError("sandbox: it fell over; try again")
        return self.engine.run(environment_root, environment, execution, limits)

    def alone(self) -> int:
        return sum(members_of(execution) <= 1 for execution in self.ran)


def members_of(execution: Execution) -> int:
    """Of a shared sandbox; 0 for another."""
    return len(json.loads(execution.stdin)["members"]) if execution.argv[-1] in SHARED_SCRIPTS else 0


@pytest.fixture(scope="module")
def image() -> Image:
    return build_image(Path(tempfile.gettempdir()) / "postloop-test-images")


@pytest.fixture(scope="module")
def make(image: Image) -> Iterator[Callable[..., tuple[Verifier, Watching]]]:
    bundles: list[Bundle] = []

    def made(name: str | Path = "cases", limits: Limits = LIMITS, **options: Any) -> tuple[Verifier, Watching]:
        limits = limits.model_copy(update={"wall_s": 120.0})  # a busy machine is no reason to run alone
        bundles.append(Bundle(name if isinstance(name, Path) else builtin(name)))
        engine = Watching(**options)
        return Verifier(bundles[-1], image.environment, image.root, engine, limits), engine  # type: ignore[arg-type]

    yield made
    for bundle in bundles:
        bundle.close()


def apart(verifier: Verifier, items: list[Item]) -> list[Verdict]:
    """Each alone."""
    return two_at_once(lambda item: verifier.judge_many([item])[0], items)


def solutions(*codes: str) -> list[Item]:
    return [(task(), {"solution.py": code}) for code in codes]


def honest(count: int, text: str = FIXED) -> list[Item]:
    return solutions(*(f"{text}# {number}\n" for number in range(count)))


# --- case tables -------------------------------------------------------------------------------------------------------

STYLES = (
    f"import heapq, re, math, collections, datetime, random, decimal\n{FIXED}",
    f"print('working', flush=True)\n{FIXED}",
    f"import threading\nthreading.Thread(target=print).start()\n{FIXED}",
    f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''], check=True)\n{FIXED}",
    f"import tempfile\ntempfile.TemporaryFile().close()\n{FIXED}",
    f"SOURCE = open(__file__).read()\nassert 'SOURCE' in SOURCE\n{FIXED}",
    f"import sys\nassert (sys.argv, __name__) == (['/tests/run.py'], 'attempt')\n{FIXED}",
    # as deep as it goes alone: a keeper's frames below would make the difference
    "def add(a, b, depth=0):\n    return a + b if depth == 990 else add(a, b, depth + 1)\n",
    "def add(a, b, depth=0):\n    return a + b if depth == 996 else add(a, b, depth + 1)\n",
    BROKEN + "# differs in no case from the start\n",
    "def add(a, b):\n    return {str(a + b)}\n",
    "import os\ndef add(a, b):\n    os._exit(3)\n",
    "raise SystemExit\n",
)


def test_a_verdict_does_not_depend_on_company(make: Any) -> None:
    """Cheats, styles and honest attempts of two tasks, in one go and each alone."""
    other = task(id="repair/add/2", files={"solution.py": "def add(a, b):\n    return a\n", "lib/x.py": "Y = 1\n"})
    uses = (other, {"solution.py": f"from lib.x import Y\nassert Y == 1\n{FIXED}"})
    items = [*solutions(*(code for code, _ in list(CHEATS.values())[::2]), *STYLES), uses, (other, {}), *honest(6)]
    together, engine = make()
    shared = together.judge_many(items, two_at_once)
    alone, _ = make()
    for item, one, two in zip(items, shared, apart(alone, items), strict=True):
        assert one.digest() == two.digest(), (item[1], one, two)
    assert shared[-1].passed
    assert sum(map(members_of, engine.ran)) > len(items) / 2


def test_honest_attempts_need_few_sandboxes(make: Any) -> None:
    verifier, engine = make()
    assert all(verdict.passed for verdict in verifier.judge_many(honest(64), two_at_once))
    assert len(engine.ran) <= 4
    assert engine.alone() == 0


def test_what_is_out_of_the_ordinary_runs_alone_and_the_rest_together(make: Any) -> None:
    """Each of these ends or breaks its keeper's patience; only the one that ends the sandbox costs others their place."""
    loops = "def add(a, b):\n    while True:\n        pass\n"
    memory = "def add(a, b):\n    x = []\n    while True:\n        x.append(bytearray(1 << 24))\n"
    spoilers = solutions(
        loops, "import os\nos.fork()\n" + FIXED, "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\n" + FIXED,
        "import resource, os\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))\n" + FIXED,
        "open('/work/left', 'w').write('a note')\n" + FIXED, "import ctypes\nctypes.string_at(0)\n" + FIXED,
        "import os\nos.closerange(0, 100)\nwhile True:\n    pass\n", "import socket\nsocket.socket()\n" + FIXED, memory,
    )  # fmt: skip
    verifier, engine = make(limits=Limits(cpu_s=6, memory_mb=128))
    items = [item for pair in zip(spoilers, honest(9), strict=True) for item in pair]
    verdicts = verifier.judge_many(items, two_at_once)
    assert [verdict.passed for verdict in verdicts[1::2]] == [True] * 9
    assert not any(verdict.violations for verdict in verdicts[1::2])
    repeats, after_memory = 1, 2  # what a signal ended is repeated; too few are left then to share again
    assert engine.alone() <= len(spoilers) + repeats + after_memory
    assert [verdict.limit_hit for verdict in verdicts[:2:2]] == ["cpu"]


NEIGHBOUR = 'NOTE = "neighbour-{0:06d}-0123abcd"\nprint(NOTE, flush=True)\n\n\ndef add(a, b):\n    return NOTE\n'
LOOK = r"""
import os
import re

NOTE = re.compile(rb"neighbour-[0-9]{6}-[0-9a-f]{8}")
found = []


def look(name, parts):
    try:
        for part in parts:
            if NOTE.search(part) and name not in found:
                found.append(name)
    except (OSError, ValueError, OverflowError):
        pass


def content(path):
    with open(path, "rb", 0) as file:
        yield file.read(1 << 20)


def memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as file:
        for line in maps:
            start, end = (int(item, 16) for item in line.split()[0].split("-"))
            if line.split()[1][0] == "r" and "[v" not in line:
                file.seek(start)
                yield file.read(end - start)


def look_around():
    for root in ("/work", "/tests", "/tmp", "/dev/shm"):
        for folder, _, names in os.walk(root):
            for name in names:
                look("files", content(os.path.join(folder, name)))
    for pid in (1, os.getppid()):
        look("another's memory", memory(pid))
        for number in range(8):
            look("another's files", content(f"/proc/{pid}/fd/{number}"))
    look("own memory", memory("self"))


look_around()
SEEN = ", ".join(found) or "nothing"
"""
SPY = LOOK + "\n\ndef add(a, b):\n    return SEEN\n"
ROOMY = Limits(cpu_s=12, wall_s=200, memory_mb=192)


def among_neighbours(count: int, spy: str) -> list[Item]:
    """Two packs, a spy in each with neighbours before and after."""
    codes = [NEIGHBOUR.format(number) for number in range(count)]
    codes[count // 4], codes[count * 3 // 4] = spy + "# one\n", spy + "# two\n"
    return solutions(*codes)


def test_a_spy_finds_nothing_of_its_neighbours(make: Any) -> None:
    verifier, engine = make(limits=ROOMY)
    verdicts = verifier.judge_many(among_neighbours(16, SPY), two_at_once)
    seen = [verdict.checks[0].detail for verdict in verdicts if "neighbour" not in verdict.checks[0].detail]
    assert seen == ["expected 8675311, got 'nothing'"] * 2
    assert engine.alone() == 0


def test_a_spy_would_find_what_a_careless_keeper_leaves(make: Any, tmp_path: Path) -> None:
    kept = "    sys.kept = [*getattr(sys, 'kept', ()), memory]\n"
    careless = weakened(tmp_path, "cases", "together.py", "    memory.madvise(mmap.MADV_DONTFORK)\n", kept)
    verifier, _ = make(careless, limits=ROOMY)
    verdicts = verifier.judge_many(among_neighbours(16, SPY), two_at_once)
    assert sum("memory" in verdict.checks[0].detail for verdict in verdicts) == 2


def weakened(folder: Path, name: str, file: str, old: str, new: str) -> Path:
    """A copy of a bundle with one edit."""
    copytree(builtin(name), folder / name, ignore=ignore_patterns("__pycache__"))
    text = (folder / name / file).read_text()
    assert text.count(old) == 1
    (folder / name / file).write_text(text.replace(old, new))
    return folder / name


def test_without_the_fence_a_process_would_outlive_its_attempt(make: Any, tmp_path: Path) -> None:
    """The same program with and without the list of system calls: it leaves a process that speaks for the next one."""
    forks = "import os\nif os.fork() == 0:\n    while True:\n        pass\n" + FIXED
    unfenced = weakened(
        tmp_path, "cases", "fence.py", "    if libc.prctl(SECCOMP,", "    if False and libc.prctl(SECCOMP,"
    )
    for bundle, ran_alone in ((builtin("cases"), 1), (unfenced, 0)):
        verifier, engine = make(bundle)
        verdicts = verifier.judge_many([*solutions(forks), *honest(7)])
        assert all(verdict.passed for verdict in verdicts)
        assert engine.alone() - ran_alone in (0, 1), bundle  # and the start tree, when it is alone then


def test_a_shared_sandbox_that_dies_costs_nobody_its_verdict(make: Any) -> None:
    verifier, engine = make(broken=True)
    assert all(verdict.passed for verdict in verifier.judge_many(honest(8), two_at_once))
    assert engine.alone() == 9


@pytest.mark.parametrize(
    "reply",
    [{"results": "nonsense"}, {"results": [{"stop": "never"}] * 9}, {"results": []}],
)
def test_a_bundle_that_answers_nonsense_is_asked_for_each_alone(
    make: Any, tmp_path: Path, reply: dict[str, Any]
) -> None:
    old = 'return {"results": packs.pop(request["id"]).read(request["result"])}'
    verifier, engine = make(weakened(tmp_path, "cases", "main.py", old, f"return {reply!r}"))
    assert all(verdict.passed for verdict in verifier.judge_many(honest(8), two_at_once))
    assert engine.alone() == 9


class Asked(Bundle):
    """Notes the kinds of the questions, in their order."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ops: list[str] = []

    def ask_each(self, requests: Sequence[dict[str, Any]]) -> list[Reply]:
        self.ops += [request["op"] for request in requests]
        return super().ask_each(requests)


def test_sandboxes_run_while_the_next_attempts_are_opened(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """And in any order: verdicts are those of the items."""
    opened = []

    def backwards(fn: Callable[[A], B], items: Iterable[A]) -> list[B]:
        taken = []
        for item in items:
            opened.append(bundle.ops.count("judge"))
            taken.append(item)
        return [fn(item) for item in reversed(taken)][::-1]

    monkeypatch.setattr("evals.together.os.sched_getaffinity", lambda _: {0, 1})
    items = [(task(), {"solution.py": (FIXED, BROKEN)[number % 2] + f"# {number}\n"}) for number in range(100)]
    with Asked(builtin("cases")) as bundle:
        verifier = Verifier(bundle, image.environment, image.root, open_engine("bubblewrap"), LIMITS)
        verdicts = verifier.judge_many(items, backwards)
        assert [verdict.passed for verdict in verdicts] == [True, False] * 50
        assert [verdict.outcome for verdict in verdicts] == [digest_of(outcome) for _, outcome in items]
    assert opened == [25, 50, 75, 100]
    assert bundle.ops.count("pack") == 4


def test_a_bundle_that_dies_of_an_attempt_is_an_error_and_never_a_zero(make: Any, tmp_path: Path) -> None:
    """Whoever was opened before is lost with its process, whoever comes after is judged; the next time all others are."""
    dies = '    os._exit(3) if "DIE" in str(request["outcome"]) else None\n    task = request["task"]\n'
    verifier, _ = make(weakened(tmp_path, "cases", "main.py", '    task = request["task"]\n', dies))
    items = [*honest(12), *solutions(FIXED + "# DIE\n"), *honest(12, FIXED + "#")]
    verdicts = verifier.judge_many(items, two_at_once)
    lost = [verdict for verdict in verdicts if verdict.status is Status.ERROR]
    assert lost == verdicts[:13]
    assert {(verdict.score, verdict.passed) for verdict in lost} == {(None, None)}
    assert "ended before its answer" in lost[12].reason
    assert all(verdict.passed for verdict in verdicts[13:])
    assert all(verdict.passed for verdict in verifier.judge_many([*items[:12], *items[13:]], two_at_once))


def test_what_a_keeper_said_is_read_by_its_token_alone() -> None:
    pack = packing.Pack({"cpu_s": 1, "wall_s": 1, "output_kb": 1}, 3)
    token = pack.token
    begun = f"{token} ready\nsaid 0\n\n{token} 0 done\nhalf"
    result = {"stop": "exit", "exit_code": 0, "stdout": begun}
    assert [item if isinstance(item, str) else item["stdout"] for item in pack.read(result)] == [
        "said 0\n",
        "again",
        "again",
    ]
    assert pack.read({**result, "stop": "memory", "exit_code": None})[1:] == ["alone", "again"]
    forged = begun.replace(f"\n{token} 0", f"\n{token[:-1]}x 0")
    assert pack.read({**result, "stdout": forged}) == ["again"] * 3
    assert pack.read({**result, "stdout": forged[1:]}) == pack.read(None) == ["alone"] * 3


def test_what_the_engine_would_refuse_or_cut_runs_alone() -> None:
    def shares(**files: str) -> bool:
        return bool(packing.chosen([{"files": files, "stdin": ""}], {"disk_mb": 1}))

    assert shares(**{"solution.py": "x", "lib/a_b-c.py": "y"})
    for name in ("../x", "/x", "a//b", "secret", "secret/x", ".", "a/../b", "x\n", "a" * 300):
        assert not shares(**{name: ""}), name
    assert not shares(**{"a": "", "a/b": ""})
    assert not shares(**{"a": "x" * 200_000})
    assert not shares(**{"a": "\ud800"})
    large = [{"files": {"a": "x" * 90_000}, "stdin": ""} for _ in range(4)]
    assert packing.chosen(large, {"disk_mb": 1}) == [0, 1]


def test_the_fence_is_the_same_file_in_both_bundles_and_knows_its_machines() -> None:
    assert (builtin("cases") / "fence.py").read_bytes() == (builtin("repository") / "fence.py").read_bytes()
    assert fence.program("riscv64", False) is None
    for machine in ("x86_64", "aarch64"):
        assert len(fence.program(machine, False)) < len(fence.program(machine, True)) <= 8 * 4096


# --- repositories ------------------------------------------------------------------------------------------------------


def test_a_repository_gets_the_same_verdict_in_company(make: Any) -> None:
    """Right and wrong ones of three tasks, some attacks, honest styles; most need no sandbox of their own."""
    some = [ATTACKS[name] for name in sorted(ATTACKS)[::16]]
    items: list[Item] = [(of(), outcome) for of, outcome, _ in some]
    items += [(slugs(), {"src/slugs/core.py": text + CORE_FIXED}) for text in list(HONEST.values())[::9]]
    for of in (slugs, stats, calc):
        about = of()
        items += [(about, outcome) for outcome in (about.gold, {}, about.wrong)]
    together, engine = make("repository", REPOSITORY_LIMITS)
    shared = together.judge_many(items, two_at_once)
    alone, _ = make("repository", REPOSITORY_LIMITS)
    for item, one, two in zip(items, shared, apart(alone, items), strict=True):
        assert one.digest() == two.digest(), (item, one, two)
    assert engine.alone() < len(items) / 2


def test_a_spy_in_a_repository_finds_nothing_of_its_neighbours(make: Any) -> None:
    """Nor of its own other run. A neighbour's note is in its code, its output, its failures and its files' names."""
    note = "import os\nNOTE = 'neighbour-{0:06d}-0123abcd'\nopen(f'/tmp/{{NOTE}}', 'w').write(NOTE)\n"
    note += "os.mkdir(f'/dev/shm/{{NOTE}}')\nprint(NOTE)\nraise ImportError(NOTE)\n"
    spy = LOOK + "raise ImportError('saw ' + SEEN)\n"
    texts = [note.format(number) for number in range(8)]
    texts[2], texts[5] = spy, spy + "# two\n"
    verifier, engine = make("repository", ROOMY)
    verdicts = verifier.judge_many([(slugs(), {"src/slugs/core.py": text}) for text in texts])
    details = [verdict.checks[0].detail for verdict in verdicts]
    assert [detail for detail in details if "saw" in detail] == ["ImportError: saw nothing"] * 2
    assert all("neighbour" in detail for detail in details if "saw" not in detail)
    assert engine.alone() == 0


def test_a_repository_attempt_that_does_more_than_compute_and_write_runs_alone(make: Any) -> None:
    about = slugs()
    texts = [f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''])\n{CORE_FIXED}"]
    texts += [f"import os\nos.chmod('/work', 0o500)\n{CORE_FIXED}", f"import socket\nsocket.socket()\n{CORE_FIXED}"]
    texts += [f"{CORE_FIXED}# {number}\n" for number in range(7)]
    verifier, engine = make("repository", REPOSITORY_LIMITS)
    verdicts = verifier.judge_many([(about, {"src/slugs/core.py": text}) for text in texts])
    assert [verdict.passed for verdict in verdicts] == [True, False, *[True] * 8], verdicts[:3]
    assert all(verdict.status is Status.SCORED for verdict in verdicts)
    assert engine.alone() == 3

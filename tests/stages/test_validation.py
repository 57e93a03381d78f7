"""The proof of tasks on demand: what fails is named and quarantined, what is proven is not proven again."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from environments.bundles import builtin
from schemas.base import canonical
from schemas.errors import InputError
from schemas.task import Case, Split, Task
from stages.context import Context
from stages.quarantine import FILE, note, quarantined
from stages.seeds import keep, seed_place, suite_name
from stages.spec import dump_default, load_spec
from stages.validation import FOREIGN, validate
from stages.workspace import Workspace

START, GOLD = "def f(x):\n    return x - 1\n", "def f(x):\n    return x + 1\n"
# A different answer in every process, in about half of the calls.
FLAKY = "import os\ndef f(x):\n    return x + 1 if os.urandom(1)[0] % 2 else x + 2\n"
SLOW = "import time\ndef f(x):\n    while time.process_time() < 0.8:\n        pass\n    return x + 1\n"


def task(name: str, **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": f"repair/{name}/0",
        "kind": "function",
        "family": "repair.value",
        "skill": "repair",
        "origin": name,
        "split": Split.TRAIN,
        "statement": "Repair f.",
        "files": {"solution.py": START},
        "editable": ["solution.py"],
        "entry": "f",
        "hidden": [Case(args=[n], expected=n + 1) for n in range(8)],
        "gold": {"solution.py": GOLD},
        "wrong": {"solution.py": "def f(x):\n    return 1\n"},
        "made_by": "test",
    }
    return Task(**{**fields, **changes})


REPOSITORY: dict[str, Any] = {
    "kind": "repository",
    "entry": None,
    "hidden": [],
    "tests": {"test_f.py": "from solution import f\n\ndef test_f():\n    assert f(1) == 2\n"},
    "f2p": ["test_f.py::test_f"],
}
CITY: dict[str, Any] = {"kind": "answer", "files": {}, "editable": ["answer.txt"], "entry": None, "hidden": []}
ANSWER = CITY | {"answer": "Köln", "gold": {"answer.txt": "Köln"}, "wrong": {"answer.txt": "Bonn"}}
CASES: dict[str, tuple[dict[str, Any], str | None]] = {
    "good": ({}, None),
    "good_answer": (ANSWER, None),
    "good_repository": (REPOSITORY, None),
    "intact": ({"files": {"solution.py": GOLD}, "made_by": "intact"}, None),
    "gold_fails": ({"gold": {"solution.py": START}}, "gold does not pass"),
    "gold_flakes": ({"gold": {"solution.py": FLAKY}}, "gold does not pass"),
    "start_passes": ({"files": {"solution.py": GOLD + "\n"}}, "start tree passes"),
    "wrong_passes": ({"wrong": {"solution.py": "def f(x):\n    return 1 + x\n"}}, "wrong outcome passes"),
    "start_flakes": ({"files": {"solution.py": FLAKY}}, None),  # the start only has to fail
    "gold_is_slow": ({"gold": {"solution.py": SLOW}}, "over budget"),
    "gold_edits_protected": ({"gold": {"solution.py": GOLD, "other.py": "x = 1\n"}}, "gold does not pass"),
    "too_large": ({"files": {"solution.py": START, "data.txt": "x" * (20 << 20)}}, "does not fit the sandbox"),
    "no_cases": ({"hidden": []}, "no verifier judges it"),
    "no_wrong": ({"wrong": {}}, "no wrong outcome"),
    "no_gold": ({"gold": {}}, "no gold outcome"),
    "foreign": ({"made_by": "foreign:0123", **REPOSITORY}, FOREIGN),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its own, but for the images."""
    images = Path(tempfile.gettempdir()) / "postloop-test-images"
    images.mkdir(exist_ok=True)
    cache = tmp_path_factory.mktemp("cache")
    (cache / "images").symlink_to(images)
    return cache


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = dump_default("tiny") + "\nenvironment: {limits: {cpu_s: 1.2, wall_s: 10}}\n"
    return Workspace.create(tmp_path_factory.mktemp("template") / "loop", text).root


@pytest.fixture
def context(template: Path, cache: Path, tmp_path: Path) -> Context:
    """A copy of a fresh workspace, its proofs its own, the image shared."""
    shutil.copytree(template, tmp_path / "loop", symlinks=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/images").symlink_to(cache / "images")
    space = Workspace.open(tmp_path / "loop")
    return Context(space, 0, load_spec(space.root / "goal.yaml"), tmp_path / "cache")


def with_spec(context: Context, **changes: Any) -> Context:
    return Context(context.workspace, 0, context.spec.model_copy(update=changes), context.cache)


def test_what_fails_is_named_with_its_reason(context: Context) -> None:
    tasks = [task(name, **changes) for name, (changes, _) in CASES.items()]
    done = validate(context, tasks, runs=3)
    assert done.lost == {}
    assert [proof.task_id for proof in done.proofs] == [one.id for one in tasks]
    for proof, (name, (_, reason)) in zip(done.proofs, CASES.items(), strict=True):
        assert (proof.reason is None) is (reason is None), (name, proof)
        assert (proof.reason or "").startswith(reason or ""), (name, proof.reason)
        assert proof.runs == 3
    proven = [proof for proof in done.proofs if proof.reason is None]
    assert {proof.gold_passes for proof in proven} == {3}
    assert done.verifiers["repository"].startswith("repository@")
    assert done.verifiers["function"].startswith("cases@")


def test_a_proof_is_kept_by_its_digests(context: Context) -> None:
    tasks = [task("one"), task("two"), task("bad", gold={"solution.py": START})]
    first = validate(context, tasks, runs=2)
    (store,) = (context.cache / "proofs").glob("*.jsonl")
    before = store.read_bytes()
    again = validate(context, tasks, runs=2)
    assert (first.cached, again.cached) == (0, 3)
    assert again.proofs == first.proofs
    assert store.read_bytes() == before
    changed = [tasks[0], task("two", statement="Another statement."), tasks[2]]
    assert validate(context, changed, runs=2).cached == 2
    limits = context.spec.environment.limits.model_copy(update={"memory_mb": 200})
    other = with_spec(context, environment=context.spec.environment.model_copy(update={"limits": limits}))
    assert validate(other, tasks, runs=2).cached == 0
    assert validate(context, tasks, runs=3).cached == 0
    assert validate(with_spec(context, verifier="pytest_files"), tasks[:1], runs=2).cached == 0


def test_a_line_that_a_kill_left_torn_is_proven_again(context: Context) -> None:
    tasks = [task("one"), task("two")]
    validate(context, tasks, runs=2)
    (store,) = (context.cache / "proofs").glob("*.jsonl")
    store.write_bytes(store.read_bytes()[:-40])
    assert validate(context, tasks, runs=2).cached == 1
    assert validate(context, tasks, runs=2).cached == 2


def test_what_the_machine_fails_at_is_lost_and_not_quarantined(context: Context) -> None:
    """A verifier whose process dies at one task: that says nothing about the task."""
    shutil.copytree(builtin("cases"), context.workspace.root / "dying", ignore=shutil.ignore_patterns("__pycache__"))
    main = context.workspace.root / "dying/main.py"
    text = main.read_text()
    assert "def judge(request):\n" in text
    dies = "def judge(request):\n    if request['task']['origin'] == 'fatal':\n        os._exit(1)\n"
    main.write_text(text.replace("def judge(request):\n", dies, 1))
    tasks = [task("one"), task("fatal"), task("two")]
    done = validate(with_spec(context, verifier="dying"), tasks, runs=2)
    assert list(done.lost) == ["repair/fatal/0"]
    assert "ended before its answer" in done.lost["repair/fatal/0"]
    assert [(proof.task_id, proof.reason) for proof in done.proofs] == [("repair/one/0", None), ("repair/two/0", None)]
    assert validate(with_spec(context, verifier="dying"), tasks, runs=2).cached == 2


def test_the_quarantine_holds_what_failed_until_it_is_proven_or_changed(context: Context) -> None:
    space = context.workspace
    bad, good = task("bad", gold={"solution.py": START}), task("good")
    note(space.root, validate(context, [good], runs=2).proofs, whole=True)
    assert not (space.root / FILE).exists()
    note(space.root, validate(context, [good, bad], runs=2).proofs, whole=True)
    assert quarantined(space.root) == {bad.digest(): "gold does not pass"}
    entry = json.loads((space.root / FILE).read_bytes())["tasks"][bad.digest()]
    assert entry["id"] == "repair/bad/0"
    note(space.root, validate(context, [good], runs=2).proofs, whole=False)
    assert list(quarantined(space.root)) == [bad.digest()]
    repaired = task("bad")
    assert repaired.digest() not in quarantined(space.root)
    note(space.root, validate(context, [good, repaired], runs=2).proofs, whole=True)
    assert quarantined(space.root) == {}


@pytest.mark.parametrize("content", ["", "[]", '{"tasks": [1]}', '{"tasks": {"a": 1}}'])
def test_a_damaged_quarantine_is_an_error_and_not_an_empty_one(content: str, tmp_path: Path) -> None:
    (tmp_path / "decisions").mkdir()
    (tmp_path / FILE).write_text(content)
    with pytest.raises(InputError, match="restore it with git"):
        quarantined(tmp_path)


# --- the seed data -------------------------------------------------------------------------------------------------


def test_a_suite_replaces_itself_and_nothing_else(tmp_path: Path) -> None:
    keep(tmp_path / "tasks", "one", [task("b"), task("a")], {"harbor": b"x\n"})
    keep(tmp_path / "tasks", "two", [task("c")], {})
    path = keep(tmp_path / "tasks", "one", [task("d")], {"harbor": b"y\n"})
    assert path.read_bytes() == canonical(task("d").model_dump(mode="json")) + b"\n"
    assert sorted(item.name for item in (tmp_path / "tasks").iterdir()) == ["one.harbor", "one.jsonl", "two.jsonl"]


def test_an_id_is_in_one_file_once(tmp_path: Path) -> None:
    keep(tmp_path, "one", [task("a")], {})
    for tasks, said in (([task("a")], "one.jsonl"), ([task("b"), task("b")], "this suite")):
        with pytest.raises(InputError, match=said):
            keep(tmp_path, "two", tasks, {})
    assert not (tmp_path / "two.jsonl").exists()
    (tmp_path / "bad.jsonl").write_text("{\n")
    with pytest.raises(InputError, match=r"bad\.jsonl"):
        keep(tmp_path, "two", [task("c")], {})


@pytest.mark.parametrize("into", ["..", "/tmp", ".", "../x", "a/../../x"])
def test_seed_data_stays_inside_the_workspace(into: str, context: Context) -> None:
    with pytest.raises(InputError, match="no folder inside the workspace"):
        seed_place(context.workspace, context.spec.data, into)


def test_seed_data_goes_where_the_spec_says(context: Context) -> None:
    root = context.workspace.root.resolve()
    assert seed_place(context.workspace, context.spec.data) == root / "tasks"
    assert seed_place(context.workspace, context.spec.data.model_copy(update={"seed_data": "mine"})) == root / "mine"
    assert seed_place(context.workspace, context.spec.data, "a/b") == root / "a/b"


@pytest.mark.parametrize(
    ("text", "name"), [("Terminal-Bench 2", "terminal_bench_2"), ("../../etc", "etc"), ("a.b", "a_b")]
)
def test_the_name_of_a_suite_is_a_plain_word(text: str, name: str) -> None:
    assert suite_name(text) == name


def test_a_name_without_a_letter_is_refused() -> None:
    refuse: Callable[[], str] = lambda: suite_name("..")  # noqa: E731
    with pytest.raises(InputError, match="no letter"):
        refuse()

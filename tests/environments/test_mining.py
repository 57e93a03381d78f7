"""Mining: a package of two versions and a repository, made here, mined through pip, git and pytest in a real sandbox."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pluggy
import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from environments.engines import Engine, Outcome, open_engine
from environments.image import Image, build_image
from environments.sources import edits, history, sdists, trees, wording
from environments.sources.copies import copies_of
from environments.sources.history import Repository
from environments.sources.mining import mine
from schemas.errors import InfrastructureError, InputError, IntegrityError
from schemas.execution import Environment, Execution, Limits
from schemas.mining import GitHistory, Mined, MiningSpec, Proof, Release, SdistPair
from schemas.task import Split, Task

SHELF = Path(tempfile.gettempdir()) / "postloop-test-images"
ROOT = Path(__file__).resolve().parents[2]
WAS_RUN = Path(tempfile.gettempdir()) / f"postloop-test-was-run-{os.getpid()}"

# --- a package with a history ----------------------------------------------------------------------------------------

MODULE_OLD = '''"""Small tools."""


def words(text):
    """Split at separators."""
    return text.split("-")


def total(values):
    """The sum of the values."""
    result = 0
    for value in values:
        result += value
    return result


def quiet(text):
    """Old words."""
    return text.lower()


def untested(value):
    return value + 1
'''
MODULE_NEW = '''"""Small tools."""


def words(text):
    """Split at separators."""
    for separator in ("_", " "):
        text = text.replace(separator, "-")
    return [word for word in text.split("-") if word]


def total(values, start=0):
    """The sum of the values."""
    result = start
    for value in values:
        result += value
    return result


def quiet(text: str) -> str:
    """New words, and annotations."""
    return text.lower()


def untested(value):
    return value + 2


def largest_gap(values):
    """The largest difference between neighbours of the sorted values, 0 for fewer than two."""
    ordered = sorted(values)
    gaps = [after - before for before, after in zip(ordered, ordered[1:])]
    return max(gaps, default=0)
'''
TESTS_OLD = """from tinyhistory.core import total, words


def test_total():
    assert total([1, 2]) == 3


def test_words_at_dash():
    assert words("a-b") == ["a", "b"]
"""
TESTS_NEW = (
    TESTS_OLD.replace("import total", "import largest_gap, total")
    + """

def test_words_at_underscore():
    assert words("a_b-c") == ["a", "b", "c"]


def test_words_leaves_out_empty():
    assert words("a--b") == ["a", "b"]


def test_total_from_a_start():
    assert total([1, 2], start=10) == 13


def test_largest_gap():
    assert largest_gap([5, 1, 2]) == 3
    assert largest_gap([]) == 0
"""
)
NEEDS_PACKAGE = "import a_package_that_is_not_there\n\n\ndef test_other():\n    assert True\n"
CHANGES = """Changes
=======

2.0
---

- ``words`` splits at underscores too and leaves out empty words (#12).
- `total()` takes a start.
- The function ``largest_gap``:
  return max(gaps, default=0)

1.0
---

- First release with ``words``.
"""


def version(module: str, tests: str, **more: str) -> dict[str, str]:
    return {
        "setup.py": f"open({str(WAS_RUN)!r}, 'w').write('x')\nraise SystemExit('never run me')\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: tinyhistory\nVersion: 0\n",
        "README.md": "Tiny.\n",
        "docs/conf.py": "x = 1\n",
        "src/tinyhistory/__init__.py": "",
        "src/tinyhistory/core.py": module,
        "tests/test_core.py": tests,
        **more,
    }


OLD = version(MODULE_OLD, TESTS_OLD, **{"CHANGES.rst": CHANGES[CHANGES.index("1.0") :]})
NEW = version(MODULE_NEW, TESTS_NEW, **{"CHANGES.rst": CHANGES, "tests/test_more.py": NEEDS_PACKAGE})


def archive(files: dict[str, str], top: str = "tinyhistory-1") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{top}/{path}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


class Index(NamedTuple):
    """A package index in a folder, as pip reads it, and the digests of what it serves."""

    folder: Path
    old: str
    new: str


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("index")
    page = folder / "tinyhistory"
    page.mkdir()
    digests = []
    for name, files in (("tinyhistory-1.0", OLD), ("tinyhistory-2.0", NEW)):
        data = archive(files, name)
        (page / f"{name}.tar.gz").write_bytes(data)
        digests.append(hashlib.sha256(data).hexdigest())
    links = "".join(f'<a href="tinyhistory-{v}.tar.gz">tinyhistory-{v}.tar.gz</a>' for v in ("1.0", "2.0"))
    (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return Index(folder, *digests)


@contextmanager
def pip_reads(index: Index) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_INDEX_URL", index.folder.as_uri())
        yield


# --- fetching --------------------------------------------------------------------------------------------------------


def test_archives_come_from_the_index_of_pip_and_no_build_code_runs(mining: Mining, index: Index) -> None:
    store = mining.cache / "sdists"
    assert sorted(path.name for path in store.iterdir()) == sorted([f"{index.old}.sdist", f"{index.new}.sdist"])
    assert sdists.unpack(store / f"{index.new}.sdist").files == NEW
    assert not WAS_RUN.exists()


def test_what_is_stored_is_checked_at_each_use(index: Index, tmp_path: Path) -> None:
    path = tmp_path / f"{index.new}.sdist"
    path.write_bytes(b"flipped")
    with pip_reads(index):
        assert sdists.unpack(sdists.fetch("tinyhistory", "2.0", index.new, tmp_path)).files == NEW
    with pip_reads(index._replace(folder=tmp_path / "nowhere")):
        assert sdists.fetch("tinyhistory", "2.0", index.new, tmp_path) == path  # the store needs no index


def test_what_the_index_does_not_have_is_told_apart(index: Index, tmp_path: Path) -> None:
    with pip_reads(index):
        with pytest.raises(IntegrityError, match=rf"{index.new}.*{index.old}"):
            sdists.fetch("tinyhistory", "1.0", index.new, tmp_path)
        with pytest.raises(InputError, match="no source archive"):
            sdists.fetch("tinyhistory", "9.9", index.new, tmp_path)
        with pytest.raises(InfrastructureError, match="no package"):
            sdists.fetch("no-such-package-here", "1.0", index.new, tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- hostile archives ------------------------------------------------------------------------------------------------


def hostile_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, kind, link in (
            ("p-1/../../up.py", tarfile.REGTYPE, ""), ("/abs.py", tarfile.REGTYPE, ""), ("p-1/.git/config", tarfile.REGTYPE, ""),
            ("p-1/link.py", tarfile.SYMTYPE, "/etc/passwd"), ("p-1/hard.py", tarfile.LNKTYPE, "/etc/passwd"),
            ("p-1/device", tarfile.CHRTYPE, ""), ("p-1/pipe", tarfile.FIFOTYPE, ""), ("p-1/a\nb.py", tarfile.REGTYPE, ""),
            ("p-1/good.py", tarfile.REGTYPE, ""), ("p-1/good.py", tarfile.REGTYPE, ""),
        ):  # fmt: skip
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, link
            tar.addfile(entry, io.BytesIO())
        binary = tarfile.TarInfo("p-1/binary.py")
        binary.size = 2
        tar.addfile(binary, io.BytesIO(b"\xff\xfe"))
    return buffer.getvalue()


def test_of_a_hostile_archive_only_plain_files_come_in(tmp_path: Path) -> None:
    path = tmp_path / "x.sdist"
    path.write_bytes(hostile_tar())
    found = sdists.unpack(path)
    assert found.files == {"good.py": ""}
    assert set(found.left_out) == {
        "p-1/../../up.py", "/abs.py", "p-1/.git/config", "link.py", "hard.py", "device", "pipe", "p-1/a\nb.py",
        "p-1/good.py", "binary.py",
    }  # fmt: skip
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.sdist"]


def test_zip_archives_are_read_by_the_same_rules(tmp_path: Path) -> None:
    path = tmp_path / "x.sdist"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("p-1/good.py", "x = 1\n")
        made.writestr("p-1/../up.py", "")
        link = zipfile.ZipInfo("p-1/link.py")
        link.external_attr = 0o120777 << 16
        made.writestr(link, "/etc/passwd")
    found = sdists.unpack(path)
    assert found.files == {"good.py": "x = 1\n"}
    assert set(found.left_out) == {"p-1/../up.py", "link.py"}


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_bomb_ends_in_one_line(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdists, "MAX_CONTENT_BYTES", 1 << 20)
    path = tmp_path / "x.sdist"
    if kind == "tar":
        path.write_bytes(archive({"big.py": "0" * (3 << 20)}))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("p/big.py", "0" * (3 << 20))
    with pytest.raises(InputError, match="more than 1 MiB"):
        sdists.unpack(path)


BROKEN = {
    "empty": b"",
    "no zip": b"PK\x03\x04broken",
    "no tar": gzip.compress(b"no tar")[:-4],
    "cut off": archive({"a.py": "x"})[:60],
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)  # gzip writes the time: no bytes in names
def test_a_broken_archive_is_wrong_input(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.sdist"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"x\.sdist"):
        sdists.unpack(path)


# --- pieces of a difference ------------------------------------------------------------------------------------------


def test_each_piece_of_a_difference_is_taken_back_alone() -> None:
    box = "\n\nclass Box:\n    LIMIT = 1\n\n    def first(self):\n        return self.items[0]\n"
    old, new = MODULE_OLD + box, MODULE_NEW + box.replace("1", "2").replace("[0]", "[-1]")
    found = {(edit.kind, edit.name): edit.text for edit in edits.edits(old, new)}
    assert found.keys() == {
        ("changed", "words"), ("changed", "total"), ("changed", "untested"), ("changed", "Box.first"),
        ("added", "largest_gap"), ("constant", "LIMIT"), ("file", ""),
    }  # fmt: skip
    assert found["changed", "total"] == new.replace("values, start=0", "values").replace("= start", "= 0")
    assert found["constant", "LIMIT"] == new.replace("LIMIT = 2", "LIMIT = 1")
    stub = found["added", "largest_gap"]
    assert '"""The largest difference' in stub
    assert "sorted(values)" not in stub
    assert found["file", ""] == old


def test_docstrings_annotations_and_layout_are_no_behaviour() -> None:
    assert (
        edits.edits(MODULE_NEW, MODULE_NEW.replace("New words", "Newer words").replace("text: str", "text:  str")) == []
    )


def test_wrong_edits_are_neither_the_start_nor_the_answer() -> None:
    start, gold = MODULE_OLD, MODULE_NEW
    halves, slips = list(edits.half_repairs(start, gold)), list(edits.slips(start, gold, 0))
    assert len(halves) >= 4
    assert len(slips) > 20
    assert not {start, gold} & {*halves, *slips}
    assert slips == list(edits.slips(start, gold, 0)) != list(edits.slips(start, gold, 1))


def test_tests_are_cut_out_of_a_file_by_name() -> None:
    text = "import x\n\n\nclass TestA:\n    def test_b(self):\n        pass\n\n\n@x.mark\ndef test_c():\n    pass\n"
    assert edits.without(text, {"test_c"}) == text[: text.index("@x.mark")]
    assert "class TestA" not in str(edits.without(text, {"TestA.test_b"}))
    assert edits.without(text, {"test_of_a_generator"}) is None


def test_a_tree_is_laid_so_that_it_can_be_imported_and_holds_no_build_files() -> None:
    tree = trees.kept(trees.laid_flat(NEW))
    assert set(tree) == {
        "tinyhistory/__init__.py", "tinyhistory/core.py", "tests/test_core.py", "tests/test_more.py", "README.md",
    }  # fmt: skip
    assert trees.tops(tree) == {"tinyhistory"}


# --- mining versions -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Engine:
    return open_engine("bubblewrap")


@pytest.fixture(scope="module")
def image() -> Image:
    return build_image(SHELF)


def spec_of(index: Index, **bounds: int) -> MiningSpec:
    """The whole file and the whole version are too large, so that each function is tried alone."""
    releases = {"old": {"version": "1.0", "sha256": index.old}, "new": {"version": "2.0", "sha256": index.new}}
    pair = {"package": "tinyhistory", "name": "tiny", "split": "dev", **releases}
    bounds = {"max_changed_lines": 10, **bounds}
    return MiningSpec.model_validate({"sdists": [pair], "limits": {"wall_s": 60}, "bounds": bounds})


class Mining(NamedTuple):
    spec: MiningSpec
    cache: Path
    mined: Mined

    def task(self, ending: str) -> Task:
        return next(task for task in self.mined.tasks if task.id.endswith(ending))

    def proof(self, candidate: str) -> Proof:
        return next(loss.proof for loss in self.mined.losses if loss.candidate.endswith(candidate))


@pytest.fixture(scope="module")
def mining(index: Index, engine: Engine, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Mining:
    cache, spec = tmp_path_factory.mktemp("cache"), spec_of(index)
    with pip_reads(index):
        return Mining(spec, cache, mine(spec, cache, engine, image=image, workers=2))


def test_each_piece_becomes_a_task_or_falls_at_a_named_proof(mining: Mining) -> None:
    assert [task.id.removeprefix("mined/tiny/v2_0_core_") for task in mining.mined.tasks] == [
        "largest_gap_added", "total_changed", "words_changed",
    ]  # fmt: skip
    assert {loss.candidate.removeprefix("v2_0_"): loss.proof for loss in mining.mined.losses} == {
        "core_untested_changed": Proof.NO_F2P, "core_file": Proof.TOO_LARGE, "release": Proof.DUPLICATE,
    }  # fmt: skip
    assert mining.mined.table() == [
        {"source": name, "candidates": 6, "too_large": 1, "duplicate": 1, "no_f2p": 1, "tasks": 3}
        for name in ("tiny", "all")
    ]


def test_a_task_holds_what_history_says(mining: Mining, image: Image) -> None:
    task = mining.task("core_words_changed")
    assert task.f2p == [
        "tests/test_core.py::test_words_at_underscore",
        "tests/test_core.py::test_words_leaves_out_empty",
    ]
    assert "tests/test_core.py::test_words_at_dash" in task.p2p
    assert (task.kind, task.family, task.origin, task.split) == ("repository", "repository.changed", "tiny", Split.DEV)
    assert task.gold == {"tinyhistory/core.py": MODULE_NEW}
    assert task.editable == ["tinyhistory/__init__.py", "tinyhistory/core.py"]
    assert task.tests == {"tests/test_core.py": TESTS_NEW}
    assert task.made_by == "mine:changed:tinyhistory@2.0"
    assert mining.mined.image == image.environment.layer


def test_one_failing_test_stays_in_the_tree_and_the_others_do_not(mining: Mining) -> None:
    task = mining.task("core_words_changed")
    shown = [name for name in task.f2p if name.partition("::")[2] in task.files["tests/test_core.py"]]
    assert len(shown) == 1
    assert f"{shown[0]} is in the tree" in task.statement
    alone = mining.task("core_total_changed")
    assert "test_total_from_a_start" not in alone.files["tests/test_core.py"]
    assert "test_words_at_underscore" in alone.files["tests/test_core.py"]


def test_the_statement_has_the_words_of_the_change_log_and_never_a_line_of_the_answer(mining: Mining) -> None:
    words = mining.task("core_words_changed").statement
    assert "splits at underscores too and leaves out empty words" in words
    assert "#12" not in words
    assert "First release" not in words
    gap = mining.task("core_largest_gap_added").statement
    assert "max(gaps" not in gap
    assert "Release notes" not in gap
    assert "unexpected keyword argument 'start'" in mining.task("core_total_changed").statement
    for task in mining.mined.tasks:
        for path, text in task.gold.items():
            added = edits.added_lines(task.files.get(path, ""), text)
            assert not any(line.strip() in task.statement for line in added if len(line.strip()) >= 20)


def outcome_of(task: Task, changed: dict[str, str], folder: Path) -> set[str]:
    """What passes by plain pytest in a folder of this machine, by other code than that of mining."""
    for path, text in {**task.files, **changed, **task.tests}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    wanted = sorted({node.partition("::")[0] for node in (*task.f2p, *task.p2p)})
    options = ["-rA", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir=."]
    command = [sys.executable, "-m", "pytest", *options, *wanted]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return set(re.findall(r"^PASSED (\S+)", done.stdout, re.MULTILINE))


def test_plain_pytest_agrees_about_start_gold_and_wrong(mining: Mining, tmp_path: Path) -> None:
    task = mining.task("core_words_changed")
    start, gold, wrong = (
        outcome_of(task, outcome, tmp_path / name)
        for name, outcome in (("start", {}), ("gold", task.gold), ("wrong", task.wrong))
    )
    assert not set(task.f2p) & start
    assert set(task.p2p) <= start
    assert {*task.f2p, *task.p2p} <= gold
    assert not {*task.f2p, *task.p2p} <= wrong


def test_gold_and_wrong_change_only_what_may_be_changed(mining: Mining) -> None:
    for task in mining.mined.tasks:
        assert set(task.gold) == set(task.wrong) <= set(task.editable)
        assert not set(task.editable) & {*task.tests, "tests/test_core.py"}


class NoEngine:
    name = "bubblewrap"

    def enforced(self) -> list[str]:
        return []

    def run(self, environment_root: Path, environment: Environment, execution: Execution, limits: Limits) -> Outcome:
        raise AssertionError("a second mining must run nothing")


def test_a_second_mining_runs_nothing_and_gives_the_same(mining: Mining, image: Image) -> None:
    """Whatever the number of workers."""
    assert mine(mining.spec, mining.cache, NoEngine(), image=image, workers=3) == mining.mined


def test_a_source_gets_its_share_and_the_rest_is_counted(mining: Mining, index: Index, image: Image) -> None:
    one, three = (
        mine(spec_of(index, max_tasks=1), mining.cache, NoEngine(), image=image, workers=count) for count in (1, 3)
    )
    assert one == three
    assert one.table()[-1] == {"source": "all", "candidates": 6, "duplicate": 1, "quota": 4, "tasks": 1}


def pair(old: dict[str, str], new: dict[str, str], tmp_path: Path, **more: object) -> MiningSpec:
    """A spec of two archives that already lie in the store of `tmp_path`."""
    (tmp_path / "sdists").mkdir()
    releases = {}
    for which, files in (("old", old), ("new", new)):
        data = archive(files)
        digest = hashlib.sha256(data).hexdigest()
        (tmp_path / "sdists" / f"{digest}.sdist").write_bytes(data)
        releases[which] = {"version": which, "sha256": digest}
    sources = [{"package": "tinyhistory", "name": "tiny", **releases}]
    return MiningSpec.model_validate({"sdists": sources, "limits": {"wall_s": 60}, **more})


BASE = {"one.py": "def f(x):\n    return x\n", "test_one.py": "from one import f\n\n\ndef test_f():\n    assert f(1)\n"}
BETTER = "def f(x):\n    if x < 0:\n        return -x\n    return x\n"
BETTER_TEST = BASE["test_one.py"] + "\n\ndef test_g():\n    assert f(-1) == 1\n"
COINS = """import os
import pytest
from one import f


@pytest.mark.parametrize("number", range(40))
def test_g(number):
    assert f(-1) == 1
    assert os.urandom(1)[0] % 2
"""
OTHER_HOOK = "def pytest_ignore_collect(of_another_pytest):\n    return False\n"
MINUS = "import pytest\n\n\n@pytest.fixture\ndef minus():\n    return -1\n"


@pytest.mark.parametrize(
    ("changed", "proof"),
    [
        ({"one.py": BETTER}, Proof.NO_TESTS),
        ({"test_one.py": BETTER_TEST}, Proof.NO_SOURCE),
        ({"one.py": BETTER, "test_one.py": "import absent\n" + BETTER_TEST}, Proof.MISSING_PACKAGE),
        ({"one.py": BETTER, "test_one.py": BETTER_TEST.replace("== 1", "== 2").replace("f(1)", "f(0)")}, Proof.GOLD_FAILS),
        ({"one.py": BETTER, "test_one.py": BASE["test_one.py"] + "\n# more\n"}, Proof.NO_F2P),
        # Without its conftest, which this pytest cannot start with: else gold would fail.
        ({"one.py": BETTER, "test_one.py": BASE["test_one.py"] + "\n# more\n", "conftest.py": OTHER_HOOK}, Proof.NO_F2P),
        ({"one.py": BETTER, "test_one.py": BASE["test_one.py"] + "\n# more\n", "conftest.py": "import absent"}, Proof.NO_F2P),
        ({"one.py": "# note\n" + BASE["one.py"], "test_one.py": BETTER_TEST}, Proof.NO_BEHAVIOUR),
        ({"one.py": BETTER, "test_one.py": COINS}, Proof.FLAKY),
        ({"one.py": BETTER, "test_one.py": BETTER_TEST + "    while True: pass\n"}, Proof.LIMITS),
        ({"one.py": BETTER.replace("    if", "    x += 0\n" * 90 + "    if"), "test_one.py": BETTER_TEST}, Proof.TOO_LARGE),
    ],
)  # fmt: skip
def test_what_is_no_task_falls_where_it_should(
    changed: dict[str, str], proof: Proof, tmp_path: Path, engine: Engine, image: Image
) -> None:
    limits = {"cpu_s": 0.2, "wall_s": 60} if proof is Proof.LIMITS else {"wall_s": 60}
    mined = mine(pair(BASE, {**BASE, **changed}, tmp_path, limits=limits), tmp_path, engine, image=image)
    assert mined.tasks == []
    assert {loss.proof for loss in mined.losses} - {Proof.DUPLICATE} == {proof}
    if proof is Proof.FLAKY:
        assert mined.losses[-1].detail.endswith("has two results on one tree")


def test_an_edit_that_passes_is_not_taken_as_wrong(tmp_path: Path, engine: Engine, image: Image) -> None:
    """And a conftest of the project is used and kept."""
    old = "def f(x):\n    note = 'old'\n    if x < 0:\n        raise ValueError(note)\n    return x\n"
    new = old.replace("'old'", "'new'").replace("raise ValueError(note)", "return -x")
    tests = BETTER_TEST.replace("test_g()", "test_g(minus)").replace("f(-1)", "f(minus)")
    base = {**BASE, "one.py": old, "conftest.py": MINUS}
    spec = pair(base, {**base, "one.py": new, "test_one.py": tests}, tmp_path)
    [task] = mine(spec, tmp_path, engine, image=image).tasks
    assert task.files["conftest.py"] == MINUS
    harmless = new.replace("'new'", "'old'")
    assert harmless == next(edits.half_repairs(old, new))
    assert task.wrong["one.py"] not in (harmless, new)


def test_the_image_has_the_wheels_of_the_lock(index: Index, engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text("pytest==9.0.0\n")
    with pytest.raises(InputError, match=r"lock\.txt:1.*hash"):
        mine(spec_of(index).model_copy(update={"lock": "lock.txt"}), tmp_path, engine, base=tmp_path)


# --- copies in the image ---------------------------------------------------------------------------------------------


def test_a_package_of_the_image_or_a_copied_function_is_no_task(tmp_path: Path, engine: Engine, image: Image) -> None:
    copies = copies_of(image.root)
    assert copies.package({"one", "iniconfig"}) == "iniconfig"
    assert copies.package({"json"}) == "json"
    assert copies.package({"one", "tinyhistory"}) is None
    source = textwrap.dedent(inspect.getsource(pluggy.PluginManager.parse_hookimpl_opts))
    assert (
        copies.function(BETTER, BETTER + "\n\n" + source.replace("parse_hookimpl_opts", "under_another_name"))
        == "under_another_name"
    )
    assert copies.function("", BETTER) is None
    assert copies.function(source, source) is None
    new = {**BASE, "one.py": BASE["one.py"] + "\n\n" + source, "test_one.py": BETTER_TEST}
    [loss, *_] = mine(pair(BASE, new, tmp_path), tmp_path, engine, image=image).losses
    assert (loss.candidate, loss.proof) == ("vnew_one_parse_hookimpl_opts_added", Proof.IMAGE_COPY)


# --- git -------------------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    environment = {
        "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    }  # fmt: skip
    done = subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, message: str, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


MORE = "\n\ndef test_{name}():\n    assert f(-{number}) == {number}\n"
LATER = "def f(x):\n    # a secret of the future\n    return abs(x) if x < 0 else x + 0\n"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q", "--initial-branch=main")
    module, test = "src/pkg/one.py", "tests/test_one.py"
    tests, better = (text.replace("from one", "from pkg.one") for text in (BASE["test_one.py"], BETTER_TEST))
    commit(folder, "Begin", {module: BASE["one.py"], test: tests, "src/pkg/__init__.py": ""})
    commit(folder, "Say what it is", {"README.md": "A text.\n"})
    message = "Give f the size of negative numbers (#7)\n\nThey came back as they were, see https://example.org/7.\n\n"
    commit(folder, message + "Signed-off-by: A <a@b.c>\n", {module: BETTER, test: better})
    commit(folder, "Rename things in the module", {module: BETTER.replace("x", "value")})
    commit(folder, "Use the function of the language", {module: LATER, test: better + MORE.format(name="h", number=3)})
    (folder / "src" / "pkg" / "link.py").symlink_to("one.py")
    commit(folder, "Link a module", {test: better + MORE.format(name="i", number=4)})
    git(folder, "tag", "v9", "-m", "the future")
    git(folder, "config", "core.fsmonitor", f"touch {folder}/.git/i-was-run; false")
    git(folder, "config", "diff.external", f"touch {folder}/.git/i-was-run")
    git(folder, "config", "core.pager", f"touch {folder}/.git/i-was-run")
    return folder


@pytest.fixture(scope="module")
def from_git(repository: Path, engine: Engine, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Mined:
    cache = tmp_path_factory.mktemp("cache")
    spec = MiningSpec(git=[GitHistory(name="pkg", path=repository.name)], limits=Limits(wall_s=60))
    return mine(spec, cache, engine, image=image, base=repository.parent)


def test_a_commit_that_changes_source_and_tests_is_a_task(from_git: Mined, repository: Path) -> None:
    [task] = [task for task in from_git.tasks if "negative" in task.statement]
    assert task.f2p == ["tests/test_one.py::test_g"]
    assert task.p2p == ["tests/test_one.py::test_f"]
    assert task.files["pkg/one.py"] == BASE["one.py"]
    assert "test_g" not in task.files["tests/test_one.py"]
    assert task.gold == {"pkg/one.py": BETTER}
    assert "Give f the size of negative numbers. They came back as they were" in task.statement
    for noise in ("Signed-off", "https", "#7"):
        assert noise not in task.statement
    assert not (repository / ".git" / "i-was-run").exists()


def test_the_other_commits_fall_and_say_why(from_git: Mined) -> None:
    assert sorted(loss.proof for loss in from_git.losses) == sorted(
        [Proof.NO_TESTS, Proof.NO_TESTS, Proof.NOT_TEXT, Proof.NO_F2P]
    )


def test_the_tree_of_a_commit_holds_nothing_of_what_came_later(
    from_git: Mined, repository: Path, tmp_path: Path
) -> None:
    [task] = from_git.tasks
    text = "\n".join([*task.files, *task.files.values(), task.statement])
    ids = git(repository, "rev-list", "--objects", "--all").split()
    assert not any(name in text for name in ids if re.fullmatch(r"[0-9a-f]{40}", name))
    assert "secret of the future" not in text
    assert "v9" not in text
    assert not any(".git" in path.split("/") for path in task.files)
    for path, content in task.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    for command in (["log", "--all"], ["reflog"], ["tag"], ["fsck"]):
        with pytest.raises(subprocess.CalledProcessError):
            git(tmp_path, f"--git-dir={tmp_path}/.git", *command)


def test_only_plain_files_of_bounded_size_are_read(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(Repository(repository).tree("HEAD")) == {
        "README.md", "src/pkg/__init__.py", "src/pkg/one.py", "tests/test_one.py",
    }  # fmt: skip
    monkeypatch.setattr(history, "MAX_FILE_BYTES", len(LATER) - 1)
    assert set(Repository(repository).tree("HEAD")) == {"README.md", "src/pkg/__init__.py"}


@pytest.mark.parametrize(
    "path", ["../a.py", "/a.py", "a//b.py", ".git/config", "a/.git/b", "a\nb", "a\\b", "a" * 256, ""]
)
def test_a_path_that_no_tree_may_have(path: str) -> None:
    assert not trees.may_be(path)
    assert trees.may_be("src/a/b-c.py")


def test_a_message_that_is_the_answer_is_not_quoted(repository: Path) -> None:
    gold = edits.added_lines(BETTER, LATER)
    assert wording.gives_away("It must return abs(x) if x < 0 else x + 0.", gold)


def test_a_folder_without_a_repository_is_wrong_input(repository: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, repository / "tests"):  # the second lies in one that nobody named
        with pytest.raises(InputError, match="correct path"):
            Repository(folder)
    with pytest.raises(InputError, match="no such folder"):
        Repository(tmp_path / "absent")


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Fix typo", ""),
        ("wip", ""),
        ("Handle empty input in split (#12)\n\nFixes #11\nCo-authored-by: X <x@y.z>", "Handle empty input in split."),
        ("Handle empty input\n\n- one\n- two", "Handle empty input. one two"),
        ("split: handle empty input (#12)", "split: handle empty input."),
        ("Closes: #4\n\nSome sentence of it. " + "word " * 200, "Some sentence of it. " + "word " * 95 + "..."),
        (
            "Handle empty input\n\n" + "A sentence of five words. " * 40,
            "Handle empty input." + " A sentence of five words." * 18,
        ),
    ],
)
def test_a_message_keeps_its_words(message: str, said: str) -> None:
    assert wording.message_of(message) == said


def test_an_entry_must_name_the_function() -> None:
    entries = wording.new_entries(
        "- old\n", "- old\n- `first` takes a default\n- The first release\n- see split_at\n  of ours\n"
    )
    assert entries == ["`first` takes a default", "The first release", "see split_at of ours"]
    assert wording.entry_about("Box.first", entries) == "`first` takes a default"
    assert wording.entry_about("split_at", entries) == "see split_at of ours"
    assert wording.entry_about("release", entries) == ""


def test_an_error_is_quoted_only_when_it_shows_no_expected_value() -> None:
    lines = ["AssertionError: assert 3 == 4", "assert f(1) == 2", "TypeError: f() got <object at 0x7f00ab>"]
    assert wording.short_error(lines) == "TypeError: f() got <object at 0x..>"
    assert wording.short_error(lines[:2]) == ""


# --- specs -----------------------------------------------------------------------------------------------------------


def test_the_recipe_names_packages_by_version_and_digest() -> None:
    plain = YAML(typ="safe").load((ROOT / "recipes" / "mined.yaml").read_text())
    spec = MiningSpec.model_validate_json(json.dumps(plain), strict=True)
    assert len({source.package for source in spec.sdists}) >= 10
    assert {source.split for source in spec.sdists} == {Split.TRAIN, Split.DEV, Split.HELD_OUT}
    assert all(source.old.sha256 != source.new.sha256 for source in spec.sdists)


def test_a_package_is_in_one_split() -> None:
    releases = {"old": Release(version="1", sha256="0" * 64), "new": Release(version="2", sha256="1" * 64)}
    one, other = (SdistPair(package="p", name="p", split=split, **releases) for split in (Split.TRAIN, Split.DEV))
    with pytest.raises(ValidationError, match="choose one"):
        MiningSpec(sdists=[one, other])
    with pytest.raises(ValidationError, match="nothing to mine"):
        MiningSpec()
    with pytest.raises(ValidationError, match="same archive"):
        SdistPair(package="p", name="p", old=releases["old"], new=releases["old"])

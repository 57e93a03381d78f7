"""Keys: a setting, a byte of code or a library's version changes one; where and how fast things run does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.base import Json
from schemas.record import STAGES, StageName
from stages import keys
from stages.keys import DECLARED, PLUMBING, ROOT, code_digest, declared_files, import_closure, key_inputs, stage_key

SECTIONS: dict[str, Json] = {"sft": {"steps": 12}, "seed": 0}
INPUTS = {"tasks": "a" * 64}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Our declared files at another place."""
    for path in {path for stage in STAGES for path in declared_files(DECLARED[stage])}:
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def present(stage: StageName) -> Path:
    path = ROOT / "stages" / f"{stage}.py"
    assert path.is_file()
    return path


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_stage_imports_lies_inside_its_declared_set(stage: StageName) -> None:
    allowed = declared_files(DECLARED[stage]) | declared_files(PLUMBING)
    beyond = sorted(path.relative_to(ROOT).as_posix() for path in import_closure(present(stage)) - allowed)
    assert beyond == [], f"declare these in stages/keys.py, or stop importing them: {beyond}"


def test_plumbing_and_what_only_shows_decide_no_result() -> None:
    for stage in STAGES:
        declared = declared_files(DECLARED[stage])
        assert present(stage) in declared
        assert not declared & declared_files(PLUMBING)
        assert {path.relative_to(ROOT).parts[0] for path in declared} <= {"schemas", "environments", "evals", "stages"}


def test_the_key_is_the_same_at_another_place_and_in_another_environment(copy: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path; from stages.keys import stage_key; "
        f"print(json.dumps(stage_key('sft', {SECTIONS!r}, {INPUTS!r}, Path(sys.argv[1]))))"
    )
    seen = {stage_key("sft", SECTIONS, INPUTS)}
    for place, extra in (
        (ROOT, {"TZ": "Asia/Tokyo", "LANG": "tr_TR.UTF-8", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
        (copy, {"TZ": "UTC", "CUDA_VISIBLE_DEVICES": "3", "OMP_NUM_THREADS": "7", "PYTHONHASHSEED": "2"}),
    ):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, str(place)],
            cwd=ROOT,
            env={**os.environ, **extra},
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(json.loads(done.stdout))
    assert len(seen) == 1


def test_order_of_sections_and_inputs_does_not_matter() -> None:
    inputs = {"tasks": "a" * 64, "start": "b" * 64}
    backwards = dict(reversed(inputs.items()))
    assert stage_key("sft", SECTIONS, inputs) == stage_key("sft", dict(reversed(SECTIONS.items())), backwards)


def test_a_setting_an_input_and_the_stage_change_the_key() -> None:
    base = stage_key("sft", SECTIONS, INPUTS)
    others = {
        stage_key("sft", {"sft": {"steps": 13}, "seed": 0}, INPUTS),
        stage_key("sft", {"sft": {"steps": 12}, "seed": 1}, INPUTS),
        stage_key("sft", SECTIONS, {"tasks": "b" * 64}),
        stage_key("sft", SECTIONS, {**INPUTS, "start": "b" * 64}),
        stage_key("rl", SECTIONS, INPUTS),
    }
    assert len(others | {base}) == 6


def test_the_runtime_section_is_refused() -> None:
    with pytest.raises(ValueError, match="runtime"):
        stage_key("sft", {"runtime": {"workers": 2}}, INPUTS)


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="code"):
        stage_key("sft", SECTIONS, {"code": "a" * 64})


def test_one_byte_of_a_declared_file_changes_the_key_and_no_other_file_does(copy: Path) -> None:
    before = {stage: code_digest(stage, copy) for stage in STAGES}
    (copy / "stages" / "workspace.py").write_text("# another store")
    (copy / "flows").mkdir()
    (copy / "flows" / "sft.py").write_text("# another flow")
    assert {stage: code_digest(stage, copy) for stage in STAGES} == before
    with (copy / "stages" / "sft.py").open("a") as file:
        file.write("\n")
    after = {stage: code_digest(stage, copy) for stage in STAGES}
    assert [stage for stage in STAGES if after[stage] != before[stage]] == ["sft", "rl", "evaluation", "backflow"]
    with (copy / "schemas" / "task.py").open("a") as file:
        file.write("\n")
    assert all(code_digest(stage, copy) != after[stage] for stage in STAGES)


def test_another_version_of_a_library_changes_the_key(tmp_path: Path) -> None:
    """A newer trl, by its metadata alone, put first on the path."""
    info = tmp_path / "trl-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trl\nVersion: 99.0\n")
    code = (
        "from stages.keys import stage_key\n"
        f"for stage in ('goal', 'data', 'sft', 'rl'): print(stage_key(stage, {SECTIONS!r}, {INPUTS!r}))"
    )
    results = []
    for path in ("", str(tmp_path)):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        results.append(done.stdout.split())
    assert [mine != other for mine, other in zip(*results, strict=True)] == [True, False, True, True]


def test_a_record_can_say_by_name_what_entered_its_key() -> None:
    named = key_inputs("sft", SECTIONS, INPUTS)
    assert sorted(named) == ["code", "libraries", "spec.seed", "spec.sft", "tasks"]
    assert all(len(value) == 64 for value in named.values())


def test_the_closure_follows_every_form_of_import(tmp_path: Path) -> None:
    for name, text in {
        "stages/__init__.py": "",
        "stages/a.py": "import evals.one\nfrom stages import b\nimport os, json.decoder\n",
        "stages/b.py": "def late():\n    from .c import d\n    from . import e\n",
        "stages/c/__init__.py": "",
        "stages/c/d.py": "from ..f import g\n",
        "stages/e.py": "import stages.a\n",
        "stages/f.py": "",
        "stages/unused.py": "",
        "evals/__init__.py": "",
        "evals/one.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {path.relative_to(tmp_path).as_posix() for path in import_closure(tmp_path / "stages/a.py", tmp_path)}
    wanted = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.py")} - {"stages/unused.py"}
    assert found == wanted


def test_an_absent_library_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(keys.LIBRARIES, "goal", ("no-such-distribution",))
    absent = keys.libraries_digest("goal")
    monkeypatch.setitem(keys.LIBRARIES, "goal", ())
    assert keys.libraries_digest("goal") != absent

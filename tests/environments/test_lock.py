"""Lock files: which wheels an image gets, that nothing of them is run, and what is refused, each in one line."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from wheels import Index, locked_lines, make_wheel

from environments import lock as locks
from environments.lock import Wheel, lay, locked, read
from schemas.errors import InputError


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    return Index(tmp_path / "index", monkeypatch)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as error:
        call()
    line = str(error.value)
    assert line.isprintable()
    assert len(line) < 500
    return line


# --- the file ------------------------------------------------------------------------------------------------------

A, B = "a" * 64, "b" * 64


def test_a_lock_is_read_as_pip_would(tmp_path: Path) -> None:
    text = (
        f"""# made by a tool
-e-is-no-option-here==1  --hash=sha256:{A}
""".replace("-e-is-no-option-here", "Some_Pkg")
        + f"""
other[extra]==2.0 ; python_version >= "3" \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}   # both
    # via some-pkg
never==1 ; python_version < "3"  --hash=sha256:{A}
"""
    )
    lines = read(write(tmp_path / "lock", text))
    assert [(line.name, line.version, line.hashes) for line in lines] == [
        ("some-pkg", "1", (A,)),
        ("other", "2.0", (A, B)),
    ]
    assert lines[1].where == "lock:4"


BAD = {
    "no hash": ("tiny==1.0\n", "no hash"),
    "another hash": (f"tiny==1.0 --hash=sha512:{A}\n", "no SHA-256"),
    "half a hash": ("tiny==1.0 --hash=sha256:aaaa\n", "no SHA-256"),
    "a range": (f"tiny>=1.0 --hash=sha256:{A}\n", "not pinned to one version"),
    "any version of a series": (f"tiny==1.* --hash=sha256:{A}\n", "not pinned to one version"),
    "a url": (f"tiny @ https://example.org/tiny.whl --hash=sha256:{A}\n", "not pinned"),
    "a path": ("./tiny-1.0-py3-none-any.whl\n", "no name==version"),
    "an option": ("--index-url https://example.org\n", "no name==version"),
    "another file": ("-r other.txt\n", "no name==version"),
    "an editable": ("-e .\n", "no name==version"),
    "twice": (f"tiny==1.0 --hash=sha256:{A}\nTiny==2.0 --hash=sha256:{A}\n", "lock:2: tiny==2.0"),
    "nothing": ("# nothing\n", "no line that holds"),
    "not UTF-8": ("\udcff", "not UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_line_that_pins_no_wheel_is_refused(name: str, tmp_path: Path) -> None:
    text, said = BAD[name]
    (tmp_path / "lock").write_bytes(os.fsencode(text))
    line = refused(lambda: read(tmp_path / "lock"))
    assert said in line
    assert "lock" in line


def test_a_lock_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "No such file" in refused(lambda: read(tmp_path / "nowhere.txt"))


# --- the shelf -----------------------------------------------------------------------------------------------------


def shelve(shelf: Path, *wheels: Path) -> Path:
    for wheel in wheels:
        home = shelf / hashlib.sha256(wheel.read_bytes()).hexdigest()
        home.mkdir(parents=True, exist_ok=True)
        (home / wheel.name).write_bytes(wheel.read_bytes())
    return shelf


def test_wheels_are_fetched_once_and_checked_at_each_use(index: Index, tmp_path: Path) -> None:
    wheel = make_wheel(index.folder)
    lock = write(tmp_path / "lock", locked_lines(wheel))
    (first,) = locked(lock, tmp_path / "shelf")
    assert first == Wheel("tiny", "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(), first.path)
    index.close()
    assert locked(lock, tmp_path / "shelf") == [first]
    first.path.write_bytes(b"changed")
    index.open()
    (again,) = locked(lock, tmp_path / "shelf")
    assert again.path.read_bytes() == wheel.read_bytes()


def test_of_two_wheels_the_one_that_the_interpreter_prefers_is_taken(index: Index, tmp_path: Path) -> None:
    plain, newer = (
        make_wheel(index.folder),
        make_wheel(index.folder, tag="py311-none-any", files={"tiny.py": "b = 1\n"}),
    )
    shelf = shelve(tmp_path / "shelf", plain, newer)
    index.close()
    (taken,) = locked(write(tmp_path / "lock", locked_lines(plain, newer)), shelf)
    assert taken.path.name == newer.name


def sdist(folder: Path, mark: Path, version: str) -> str:
    """A source archive whose build code leaves a mark; its SHA-256."""
    path = folder / f"tiny-{version}.tar.gz"
    setup = f"open({str(mark)!r}, 'w')\nfrom setuptools import setup\nsetup(name='tiny', version={version!r})\n"
    about = f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in (("setup.py", setup), ("PKG-INFO", about)):
            entry = tarfile.TarInfo(f"tiny-{version}/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_wrong_hash_a_source_archive_and_a_missing_wheel_are_one_line_each(index: Index, tmp_path: Path) -> None:
    wheel, mark = make_wheel(index.folder), tmp_path / "mark"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    source = sdist(index.folder, mark, "2.0")
    shelf = tmp_path / "shelf"

    def said(text: str) -> str:
        return refused(lambda: locked(write(tmp_path / "lock", text), shelf))

    wrong = said(f"tiny==1.0 --hash=sha256:{A}\n")
    assert A in wrong
    assert digest in wrong
    assert "only a source archive" in said(f"tiny==2.0 --hash=sha256:{source}\n")
    assert not mark.exists()
    other = make_wheel(index.folder, "other")
    missing = said(locked_lines(other) + f"nowhere==3.0 --hash=sha256:{A}\n")
    assert "lock:2: nowhere==3.0: the index has no wheel of it for CPython" in missing
    assert not list(shelf.rglob("*.whl"))


def test_a_lock_without_what_its_wheels_need_is_refused(tmp_path: Path) -> None:
    needs = make_wheel(tmp_path, "needs", requires=("tiny>=2", "never; python_version < '3'", "more; extra == 'x'"))
    old, new = make_wheel(tmp_path), make_wheel(tmp_path, version="2.1")
    shelf = shelve(tmp_path / "shelf", needs, old, new)
    for have, said in (((), "needs tiny>=2, the lock has none"), ((old,), "the lock has 1.0")):
        lock = write(tmp_path / "lock", locked_lines(needs, *have))
        assert said in refused(lambda lock=lock: locked(lock, shelf))  # type: ignore[misc]
    wheels = locked(write(tmp_path / "lock", locked_lines(needs, new)), shelf)
    assert [wheel.name for wheel in wheels] == ["needs", "tiny"]


# --- content -------------------------------------------------------------------------------------------------------


def laid(wheel: Path, site: Path) -> dict[str, str]:
    site.mkdir(exist_ok=True)
    lay(Wheel("tiny", "1.0", "", wheel), site)
    return {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*") if path.is_file()}


def test_modules_and_data_are_laid_and_nothing_that_starts_by_itself(tmp_path: Path) -> None:
    files = {
        "tiny/__init__.py": "x = 1\n",
        "tiny/data.txt": "data",
        "tiny/__pycache__/a.pyc": "",
        "start.pth": "import os",
        "tiny-1.0.data/purelib/more.py": "y = 2\n",
        "tiny-1.0.data/scripts/tiny": "#!python\n",
        "tiny-1.0.data/headers/tiny.h": "",
        "tiny-1.0.dist-info/licenses/METADATA": "",
        "tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\n",
    }
    assert laid(make_wheel(tmp_path, files=files), tmp_path / "site").keys() == {
        "tiny/__init__.py",
        "tiny/data.txt",
        "more.py",
        "tiny-1.0.dist-info/METADATA",
        "tiny-1.0.dist-info/entry_points.txt",
        "tiny-1.0.dist-info/top_level.txt",
    }
    assert (tmp_path / "site/tiny-1.0.dist-info/top_level.txt").read_text() == "more\ntiny\n"


def link(archive: zipfile.ZipFile) -> None:
    entry = zipfile.ZipInfo("tiny/link")
    entry.external_attr = 0o120777 << 16
    archive.writestr(entry, "/etc/passwd")


def many(archive: zipfile.ZipFile) -> None:
    for number in range(40):
        archive.writestr(f"f{number}", "")


HOSTILE: dict[str, tuple[Callable[[zipfile.ZipFile], object], str]] = {
    "a climbing name": (lambda z: z.writestr("../out.py", ""), "climbs"),
    "an absolute name": (lambda z: z.writestr("/out.py", ""), "climbs"),
    "a name of another system": (lambda z: z.writestr("a\\..\\out.py", ""), "climbs"),
    "a terminal escape": (lambda z: z.writestr("a\x1b[2J.py", ""), "climbs"),
    "a climbing data folder": (lambda z: z.writestr("tiny-1.0.data/purelib/../../out.py", ""), "climbs"),
    "a link": (link, "a link"),
    "a file as folder": (lambda z: z.writestr("tiny.py/x.py", ""), "tiny.py"),
    "too much": (lambda z: z.writestr("big.txt", "x" * 5000), "of content"),
    "too many": (lambda z: many(z), "files"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_wheel_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, said = HOSTILE[name]
    monkeypatch.setattr(locks, "MAX_CONTENT_BYTES", 4000)
    monkeypatch.setattr(locks, "MAX_MEMBERS", 30)
    wheel = make_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        spoil(archive)
    assert said in refused(lambda: laid(wheel, tmp_path / "site"))
    assert not (tmp_path / "out.py").exists()


def test_two_wheels_share_a_file_only_when_it_is_the_same(tmp_path: Path) -> None:
    one = make_wheel(tmp_path, files={"shared/__init__.py": "", "shared/a.py": "a = 1\n"})
    two = make_wheel(tmp_path, "other", files={"shared/__init__.py": "", "shared/b.py": ""})
    bad = make_wheel(tmp_path, "third", files={"shared/a.py": "a = 2\n"})
    laid(one, tmp_path / "site")
    assert {"shared/a.py", "shared/b.py"} <= laid(two, tmp_path / "site").keys()
    assert "another wheel's file" in refused(lambda: laid(bad, tmp_path / "site"))


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny-1.0-py3-none-any.whl").write_bytes(b"no archive")
    assert "not a zip" in refused(lambda: laid(tmp_path / "tiny-1.0-py3-none-any.whl", tmp_path / "site"))

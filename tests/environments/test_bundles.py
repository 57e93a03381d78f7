"""A bundle is a source tree with an identity, run as one process that answers many requests."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from environments.bundles import Bundle, builtin, find, tree_digest
from schemas.errors import InfrastructureError, InputError, IntegrityError

SHIPPED = ("fenced", "tools", "cases", "pytest_files", "repository", "judge")
SHARED = ("serve.py", "case_runner.py", "claims.py", "calc.py", "judging.py", "fence.py")
ECHO = """
import os, sys, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serve import serve

def echo(request):
    return {"said": request["text"]}

def say(request):
    os.write(9, request["raw"].encode())
    time.sleep(30)

def fail(request):
    raise ValueError("not this one")

def leave(request):
    print("out of ideas", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)

os.dup2(1, 9)
serve({"echo": echo, "say": say, "fail": fail, "leave": leave})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle that echoes, dies or misbehaves on demand."""
    tree = tmp_path / "echo"
    tree.mkdir()
    shutil.copy(builtin("cases") / "serve.py", tree)
    (tree / "main.py").write_text(ECHO)
    about = {"name": "echo", "version": "1.2", "protocol": 1, "kind": "verifier", "entry": "main.py"}
    (tree / "bundle.json").write_text(json.dumps(about))
    return tree


def test_the_digest_names_paths_and_contents_and_nothing_else(folder: Path) -> None:
    first = tree_digest(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "main.pyc").write_bytes(b"a cache")
    (folder / "main.py").touch()
    assert tree_digest(folder) == first
    (folder / "main.py").rename(folder / "main2.py")
    assert tree_digest(folder) != first


def test_a_link_is_refused(folder: Path) -> None:
    (folder / "link.py").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match=r"link\.py is not a regular file"):
        tree_digest(folder)


def test_a_ref_is_a_path_a_name_a_name_with_version_or_a_digest(folder: Path) -> None:
    assert find(str(folder)) == folder
    assert find("echo@1.2", [folder]) == folder
    assert find(tree_digest(folder), [folder]) == folder
    assert find("fenced") == builtin("fenced")
    with pytest.raises(InputError, match="no such path"):
        find("echo@9", [folder])
    with pytest.raises(InputError, match="known: cases, fenced, judge, pytest_files, repository, tools"):
        builtin("../schemas")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_bundle_greets_and_has_its_name_and_version(name: str) -> None:
    with Bundle(builtin(name)) as bundle:
        reply = bundle.ask({"op": "hello", "id": "x", "protocol": 1})
        assert (reply["id"], reply["name"], reply["version"]) == ("x", name, bundle.version)


def test_shared_files_of_the_shipped_bundles_are_identical() -> None:
    for name in SHARED:
        copies = [builtin(bundle) / name for bundle in SHIPPED if (builtin(bundle) / name).exists()]
        assert len(copies) >= 2, name
        assert len({copy.read_bytes() for copy in copies}) == 1, name


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_bundle_imports_only_the_standard_library_and_itself(name: str) -> None:
    own = {path.stem for path in builtin(name).glob("*.py")}
    for path in builtin(name).glob("*.py"):
        allowed = (
            set(sys.stdlib_module_names)
            | own
            | ({"pytest", "_pytest"} if path.name in ("driver.py", "child.py") else set())
        )
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert {item.split(".")[0] for item in names} <= allowed, path


def test_many_large_requests_do_not_block_a_pipe(folder: Path) -> None:
    requests = [{"op": "echo", "id": str(n), "text": str(n) * 200_000} for n in range(20)]
    with Bundle(folder) as bundle:
        replies = bundle.ask_each(requests)
    assert [len(reply["said"]) for reply in replies if isinstance(reply, dict)] == [len(r["text"]) for r in requests]


def test_threads_share_one_bundle(folder: Path) -> None:
    with Bundle(folder) as bundle, ThreadPoolExecutor(8) as pool:
        said = pool.map(lambda n: bundle.ask({"op": "echo", "id": bundle.fresh_id(), "text": n})["said"], range(200))
        assert list(said) == list(range(200))


def test_a_request_that_fails_leaves_the_process_and_its_sessions_alive(folder: Path) -> None:
    with Bundle(folder) as bundle:
        for op, said in (("fail", "not this one"), ("nonsense", "unknown op")):
            with pytest.raises(InfrastructureError, match=said):
                bundle.ask({"op": op, "id": "1"})
        before = bundle._process
        assert bundle.ask({"op": "echo", "id": "2", "text": "on"})["said"] == "on"
        assert bundle._process is before


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"op": "leave", "id": "1"}, r"ended before its answer \(stderr: out of ideas\)"),
        ({"op": "say", "id": "1", "raw": "hello\n"}, "answered garbage"),
        ({"op": "say", "id": "1", "raw": '{"id": "2"}\n'}, "to request '1'"),
        ({"op": "say", "id": "1", "raw": "[1]\n"}, "to request '1'"),
        ({"op": "say", "id": "1", "raw": '{"id": "1"}\n{"id": "1"}\n'}, "2 lines to 1 requests"),
        ({"op": "say", "id": "1", "raw": "half a line"}, "no answer within 2 s"),
    ],
)
def test_a_broken_bundle_is_one_line_of_infrastructure_and_starts_afresh(
    folder: Path, request_: dict[str, str], said: str
) -> None:
    with Bundle(folder, timeout_s=2) as bundle:
        with pytest.raises(InfrastructureError, match=said) as caught:
            bundle.ask(request_)
        assert "\n" not in str(caught.value)
        assert bundle.ask({"op": "echo", "id": "9", "text": "again"})["said"] == "again"


def test_what_one_of_many_requests_does_to_the_bundle_costs_that_one_its_reply(folder: Path) -> None:
    """In the order of the requests; a hang costs the time-out once."""
    echoes = [{"op": "echo", "id": f"e{number}", "text": number} for number in range(4)]
    bad = [{"op": "leave", "id": "a"}, {"op": "fail", "id": "b"}, {"op": "say", "id": "c", "raw": "half a line"}]
    requests = [request for pair in zip(echoes, [*bad, echoes[0]], strict=True) for request in pair]
    with Bundle(folder, timeout_s=1) as bundle:
        replies = bundle.ask_each(requests)
        assert bundle.ask_each([]) == []
    assert [reply["said"] for reply in replies[::2] if isinstance(reply, dict)] == [0, 1, 2, 3]
    assert isinstance(replies[7], dict)
    said = ["ended before its answer", "not this one", "no answer within 1 s"]
    for reply, text in zip(replies[1:7:2], said, strict=True):
        assert isinstance(reply, InfrastructureError)
        assert text in str(reply)


def test_a_bundle_that_does_not_start_says_why(folder: Path) -> None:
    (folder / "main.py").write_text("import numpy\n")
    with Bundle(folder) as bundle, pytest.raises(InfrastructureError, match="No module named 'numpy'"):
        bundle.ask({"op": "echo", "id": "1", "text": ""})


def test_another_protocol_is_refused_before_anything_runs(folder: Path) -> None:
    about = json.loads((folder / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps({**about, "protocol": 7}))
    with pytest.raises(InputError, match="speaks protocol 7, this program 1"):
        Bundle(folder)


def test_a_tree_that_changed_since_it_was_named_is_not_run(folder: Path) -> None:
    with Bundle(folder) as bundle:
        (folder / "main.py").write_text(ECHO + "\n")
        with pytest.raises(IntegrityError, match="its tree changed"):
            bundle.ask({"op": "echo", "id": "1", "text": ""})


def test_half_a_surrogate_pair_never_reaches_a_digest(folder: Path) -> None:
    with Bundle(folder) as bundle:
        assert bundle.ask({"op": "echo", "id": "1", "text": "a\ud800b\U0001f600"})["said"] == "a\ufffdb\U0001f600"

"""One run of one test file, in a process that the keeper forked: lays the tree, runs real pytest, sends its messages.

The attempt's code shares this process, so whatever is sent from here is a claim: the verifier compares it with what the
decoys among the tests must give. conftest files are those of the tree as it was laid, never the attempt's.
"""

import importlib
import importlib.metadata
import json
import os
import re
import sys
import types

import pytest
from _pytest.config import default_plugins

ROOT, CONFIG = "/work/tree", "/work/grade.ini"
PREPARED = ("datetime", "math", "operator", "pdb", "time", "unittest.case", "unittest.mock")  # imported before any fork
WATCHED = ("builtins", "time", "math", "operator", "datetime")
LENT = ("time", "math", "operator")  # tests get copies of these modules, which the attempt does not hold
WATCHED_PACKAGES = ("_pytest", "pytest", "pluggy", "unittest", "numpy")
VARIABLES = ("PATH", "LD_", "PYTHON")
OPTIONS = ["-q", "--tb=line", "-c", CONFIG, f"--rootdir={ROOT}", f"--confcutdir={ROOT}"]
OPTIONS += ["-p", "no:cacheprovider", "-p", "no:faulthandler"]

VARYING = re.compile(r"\b0x[0-9a-f]{6,}|\b\d+\.\d{7,}")

plugins = []
originals = []  # (label, namespace, key, object) of what tests are judged with
copies = {}  # module -> its copy


def prepare(preload):
    """Before any fork: import what each run would, find the image's own plugins, remember the originals."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    for name in (*PREPARED, *(f"_pytest.{name}" for name in default_plugins), *preload):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    for name in LENT:
        copies[sys.modules[name]] = copy = types.ModuleType(name)
        vars(copy).update(vars(sys.modules[name]))
    plugins.extend(sorted({entry.value for entry in importlib.metadata.entry_points(group="pytest11")}))
    for name, module in sorted(sys.modules.items()):
        if name in (*WATCHED, *preload) or name.split(".")[0] in WATCHED_PACKAGES:
            originals.append((f"module {name}", sys.modules, name, module))
            remember(name, module)


def remember(name, module):
    for key, value in list(vars(module).items()):
        if callable(value):
            originals.append((f"{name}.{key}", vars(module), key, value))
        if isinstance(value, type) and value.__module__ == name:
            for part, item in list(vars(value).items()):
                if callable(item) or isinstance(item, classmethod | staticmethod | property):
                    originals.append((f"{name}.{key}.{part}", vars(value), part, item))


def lend(module):
    """The test module's own names for LENT modules become copies of the originals, unless the tests patch things."""
    with open(module.__file__, encoding="utf-8") as file:
        if re.search(r"patch|setattr", file.read()):
            return
    for name, value in list(vars(module).items()):
        if isinstance(value, types.ModuleType) and value in copies:
            setattr(module, name, copies[value])


def patched(variables):
    """Labels of what is no longer what it was."""
    found = [
        label for label, namespace, key, value in originals
        if namespace.get(key) is not value and not (label.startswith("_pytest.") and of_pytest(namespace.get(key)))
    ]  # fmt: skip
    now = watched_variables()
    return found + [f"variable {key}" for key in {*variables, *now} if variables.get(key) != now.get(key)]


def of_pytest(value):
    """pytest exchanges a few of its own functions for others of its own."""
    return getattr(value, "__globals__", {}).get("__name__", "").startswith("_pytest.")


def watched_variables():
    return {key: value for key, value in os.environ.items() if key.startswith(VARIABLES)}


def run(job_fd, message_fd, member):
    """Does not return."""
    with os.fdopen(job_fd, "rb") as file:
        tree, text, job = (json.loads(line) for line in file.read().splitlines())

    def send(message):
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(message_fd, data) :]

    silence()
    lay(ROOT, {path: content for path, content in tree.items() if path not in text})
    lay(ROOT, text, 0o444)
    with open(CONFIG, "w", encoding="utf-8") as file:
        file.write(member["ini"])
    os.chdir(ROOT)
    paths = [os.path.normpath(os.path.join(ROOT, path)) for path in member["paths"]]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = ":".join(paths)
    reporter = Reporter(job["tests"], send)
    options = [*OPTIONS, *(word for plugin in plugins for word in ("-p", plugin))]
    pytest.main([*options, job["file"]], plugins=[reporter])
    send({"patched": sorted(reporter.patched)[:20]})
    send({"end": 1})
    os._exit(0)


def silence():
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def lay(root, files, mode=0o644):
    for path, text in files.items():
        place = os.path.join(root, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(place, mode)


class Reporter:
    """Keeps to the tests that are asked for, and sends one message for each when its teardown is over."""

    def __init__(self, tests, send):
        self.tests = {name: index for index, name in enumerate(tests)}
        self.send = send
        self.variables = watched_variables()
        self.patched = set()
        self.seen = {}
        self.broken = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.nodeid in self.tests]
        for module in {item.module for item in items if getattr(item, "module", None)}:
            lend(module)
        self.patched.update(patched(self.variables))

    def pytest_collectreport(self, report):
        if report.failed and not self.broken:
            self.broken = True
            self.send({"broken": first_line(report)})

    def pytest_runtest_logreport(self, report):
        outcomes, details = self.seen.setdefault(report.nodeid, (set(), []))
        outcomes.add((report.when, report.outcome))
        if report.failed:
            details.append(first_line(report))
        if report.when == "teardown" and report.nodeid in self.tests:
            outcome = "f" if details else "p" if ("call", "passed") in outcomes else "s"
            detail = details[0] if details else ""
            self.send({"test": self.tests[report.nodeid], "outcome": outcome, "detail": detail})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        self.patched.update(patched(self.variables))


def first_line(report):
    """Where and what, of the failure's last frame, without what differs in every run: addresses, measured times."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        lines = [line.removeprefix("E").strip() for line in str(report.longrepr).splitlines() if line.strip()]
        place, message = "", lines[-1] if lines else "failed"
    else:
        place, message = f"{os.path.relpath(crash.path, ROOT)}:{crash.lineno}: ", " ".join(crash.message.split())
    return (place + VARYING.sub("...", message))[:200]

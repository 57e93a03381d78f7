"""From a task and an outcome to executions: the fresh tree, the trusted test files, their two texts, the runs.

Which text of a test is real, the order of the runs and the names of the sentinels follow from the hidden tests and the
outcome, so that a repeat does the same and nobody without the hidden tests can know them.
"""

import ast
import configparser
import hashlib
import json
import os
import random
import re
import sys
import tomllib

from decoys import plan_file
from judging import violation

FILES_PER_EXECUTION = 6
HOOK = re.compile(
    r"(^|/)((conftest|sitecustomize|usercustomize)\.py|\.?pytest\.(ini|toml)|tox\.ini|[^/]*\.pth)$"
    r"|\.(egg-info|dist-info)/"
)
CHANGED_BY_PYTEST = {"sys", "os", "io", "logging", "warnings", "threading", "unittest", "asyncio", "tempfile"}
OF_PYTEST = {"pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup"}
INI_KEYS = ("python_classes", "python_functions", "usefixtures", "xfail_strict", "markers", "filterwarnings")
plans = {}  # digest of source, tests and seed -> plan
WORDS = ("again", "basic", "cases", "default", "edge", "more", "order", "plain", "simple", "small", "twice", "value")


def read(name):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), encoding="utf-8") as file:
        return file.read()


DRIVER, CHILD, FENCE = read("driver.py"), read("child.py"), read("fence.py")


def seed_of(*parts):
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def without_hooks(task, start, outcome):
    """(outcome, violations): the outcome without what would reach pytest or the interpreter before the tests do.

    Test files, conftest and configuration are those of the task, whatever the task declares as editable. A new module
    at the top that bears the name of a library is a violation.
    """
    trusted = {*task["tests"], *test_files(task)}
    kept, violations = {}, []
    for path, text in outcome.items():
        if path not in task["editable"]:
            kept[path] = text  # fresh_tree says so
        elif shadows(path, start):
            violations.append(violation("shadow_module", f"new module {path} hides a library"))
        elif path not in trusted and not HOOK.search(path):
            kept[path] = text
    return kept, violations


def shadows(path, start):
    parts = path.removeprefix("src/").split("/")
    name = parts[0].removesuffix(".py")
    known = name in sys.stdlib_module_names or name in OF_PYTEST or name == "numpy"
    top = len(parts) == 1 or (len(parts) == 2 and parts[1] == "__init__.py")
    return known and top and path.endswith(".py") and path not in start


def test_files(task):
    """Paths of the test files that the task names, in order of first mention."""
    return list(dict.fromkeys(node.split("::")[0] for node in (*task["f2p"], *task["p2p"])))


def trusted_config(files):
    """(ini text, folders for sys.path): what the project's own pytest configuration says that tests depend on.

    Only keys of INI_KEYS and pythonpath: addopts, plugins and the rest have no say in a verdict.
    """
    found = read_config(files)
    lines = [f"{key} =" + "".join(f"\n    {item}" for item in listed(found[key])) for key in INI_KEYS if key in found]
    if "python_functions" in found:
        lines = [line + "\n    test" if line.startswith("python_functions") else line for line in lines]
    paths = " ".join(listed(found.get("pythonpath", []))).split()
    if any(path.startswith("src/") for path in files) and "src/__init__.py" not in files:
        paths.append("src")
    inside = [path for path in dict.fromkeys([*paths, "."]) if not path.startswith("/") and ".." not in path.split("/")]
    return "\n".join(["[pytest]", *lines, ""]), inside


def listed(value):
    """A configured value as lines."""
    if isinstance(value, str):
        return [line.strip() for line in value.splitlines() if line.strip()]
    return [str(item) for item in (value if isinstance(value, list) else [value])]


def read_config(files):
    """The section that pytest would take, from the first file that has one."""
    for path, section in (("pytest.ini", "pytest"), (".pytest.ini", "pytest")):
        if path in files:
            return ini_section(files[path], section) or {}
    for path, keys in (("pytest.toml", ("pytest",)), ("pyproject.toml", ("tool", "pytest"))):
        found = toml_section(files.get(path, ""), keys)
        if found:
            return {**found, **found.get("ini_options", {})}
    return (
        ini_section(files.get("tox.ini", ""), "pytest") or ini_section(files.get("setup.cfg", ""), "tool:pytest") or {}
    )


def ini_section(text, section):
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        parser.read_string(text)
    except (configparser.Error, ValueError):
        return None
    return {key: value or "" for key, value in parser.items(section)} if parser.has_section(section) else None


def toml_section(text, keys):
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    for key in keys:
        found = found.get(key, {}) if isinstance(found, dict) else {}
    return found


class Texts:
    """The trusted test files in two texts. Each test with a decoy is real in one of them and a decoy in the other.

    The decoys depend on `task_seed` alone; `seed` says which text has the real one. `real_in`: node id as in the texts
    -> number of its text; `named`: node id of the task -> as in the texts, where they differ; `sentinels`: file ->
    [node id that must pass, node id that must fail].
    """

    def __init__(self, task, start, task_seed, seed):
        self.files = {path: task["tests"].get(path, start.get(path)) for path in test_files(task)}
        self.rng = random.Random(seed)  # noqa: S311  seeded by what nobody outside knows
        self.token = seed_of("token", seed)[:32]
        self.real_in, self.sentinels, self.named = {}, {}, {}
        self.texts = [dict(task["tests"]), dict(task["tests"])]
        for path, source in self.files.items():
            if source is not None:
                wanted = [node.partition("::")[2] for node in nodes_of(task, path)]
                plan = plan_of(source, wanted, f"{task_seed}:{path}")
                for text, content in zip(self.texts, self._two(path, plan, wanted), strict=True):
                    text[path] = content

    def _two(self, path, plan, wanted):
        decoyed = [[], []]
        for unit in plan.units:
            real = self.rng.randrange(2)
            decoyed[1 - real].append(unit)
            self.real_in |= {f"{path}::{name}": real for name in unit.names}
        self.named |= {f"{path}::{old}": f"{path}::{new}" for old, new in plan.renamed.items()}
        added, names = sentinels(plan.data.decode(), wanted, self.rng)
        self.sentinels[path] = [f"{path}::{name}" for name in names]
        return [plan.variant(units) + added for units in decoyed]

    def name(self, node):
        """A node id of the task, as it is in the texts."""
        return self.named.get(node, node)


def nodes_of(task, path):
    return [node for node in (*task["f2p"], *task["p2p"]) if node.split("::")[0] == path]


def plan_of(source, wanted, seed):
    """The plan of a test file, made once; only decoys that leave it valid Python."""
    key = seed_of(source, wanted, seed)
    if key not in plans:
        plan = plan_file(source, wanted, seed)
        plan.units = [unit for unit in plan.units if is_python(plan.variant([unit]))]
        plans[key] = plan
    return plans[key]


def is_python(text):
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def sentinels(source, names, rng):
    """(text, [must pass, must fail]): two tests with unknown names that look like the others."""
    known = [name.split("[")[0].split("::")[-1] for name in names] or ["test_it"]  # a row's name may hold :: itself
    chosen = []
    while len(chosen) < 2:
        name = f"{rng.choice([*known, 'test_result'])}_{rng.choice(WORDS)}"
        name = name if name.startswith("test") else f"test_{name}"
        if not re.search(rf"\b{re.escape(name)}\b", source) and name not in chosen:
            chosen.append(name)
        else:
            known.append(f"{rng.choice(known)}_{rng.choice(WORDS)}")
    numbers = rng.sample(range(2, 60), 4)
    good, bad = sorted(numbers), sorted(numbers, reverse=True)
    wanted = list(zip(chosen, (good, bad), strict=True))
    bodies = [f"\n\ndef {name}():\n    assert sorted({numbers}) == {want}\n" for name, want in wanted]
    return "\n" + "".join(bodies if rng.randrange(2) else bodies[::-1]), chosen


def imported(sources):
    """Modules that the tests import beside the attempt's: what they ask must be what it was before the attempt ran."""
    found = {"numpy.testing"} if any("numpy" in source for source in sources) else set()
    for node in (node for source in sources if is_python(source) for node in statements(ast.parse(source))):
        names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        found |= {name for name in names if name.split(".")[0] in sys.stdlib_module_names - CHANGED_BY_PYTEST}
    return sorted(found)


def statements(block):
    """All statements below a node that holds statements: few of a tree's nodes, and imports are nothing else."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(block, part, ()):
            yield node
            yield from statements(node)


def executions(tree, texts, jobs, token, ini, paths):
    """Executions of `jobs`, a list of (file, text number, tests), FILES_PER_EXECUTION files each; and their jobs."""
    files = list(dict.fromkeys(file for file, _, _ in jobs))
    groups = [files[at : at + FILES_PER_EXECUTION] for at in range(0, len(files), FILES_PER_EXECUTION)]
    parts = [[job for job in jobs if job[0] in group] for group in groups]
    tokens = [seed_of(token, index)[:32] for index in range(len(parts))]
    members = [member(tree, texts, part, token, ini, paths) for part, token in zip(parts, tokens, strict=True)]
    return [execution([one]) for one in members], parts


def member(tree, texts, jobs, token, ini, paths):
    """(what the keeper is told, its part of the secret file). The token begins it: only the keeper can give it back."""
    secret, spans = token, []
    for part in (tree, *texts, *({"file": file, "tests": tests} for file, _, tests in jobs)):
        line = json.dumps(part, sort_keys=True)
        spans.append((len(secret), len(secret) + len(line)))
        secret += line
    number = {file: str(index) for index, file in enumerate(dict.fromkeys(file for file, _, _ in jobs))}
    runs = [
        {"file": number[file], "text": text, "job": span}
        for (file, text, _), span in zip(jobs, spans[1 + len(texts) :], strict=True)
    ]
    about = {"token": 0, "tree": spans[0], "texts": spans[1 : 1 + len(texts)], "runs": runs, "ini": ini, "paths": paths}
    return {**about, "preload": imported(texts[0].values())}, secret


def execution(members, shared=None):
    """One execution of members, which preload the same; `shared`: the limits of their sandbox."""
    abouts, secret = [], ""
    for about, part in members:
        abouts.append(moved(about, len(secret)))
        secret += part
    header = {"members": abouts, "preload": abouts[0]["preload"], "shared": shared}
    return {
        "argv": ["python", "-s", "-P", "/tests/drive.py"],
        "files": {"secret": secret},
        "readonly": {"drive.py": DRIVER, "child.py": CHILD, "fence.py": FENCE},
        "stdin": json.dumps(header),
        "collect": [],
    }


def moved(about, by):
    """What a member is told, with its places in a secret that begins elsewhere."""
    runs = [{**run, "job": [place + by for place in run["job"]]} for run in about["runs"]]
    texts = [[place + by for place in span] for span in about["texts"]]
    tree = [place + by for place in about["tree"]]
    return {**about, "token": about["token"] + by, "tree": tree, "texts": texts, "runs": runs}


def told(execution):
    """What the keeper of an execution is told about its one member."""
    return json.loads(execution["stdin"])["members"][0]


def together(executions, limits):
    """Executions of one member each as one, for attempts that only compute and make files."""
    members = [(told(one), one["files"]["secret"]) for one in executions]
    keys = ("cpu_s", "wall_s")
    return execution(members, {**{key: limits[key] for key in keys}, "room": limits["output_kb"] << 10})

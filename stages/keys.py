"""The key of a stage: equal keys mean that there is nothing to do.

A key is the digest of the stage's sections of the spec, the digests of its inputs, a declared set of our own files that
decide its result, and the versions of the libraries that matter. Round numbers, paths, devices, worker counts, retries
and the `runtime` section never enter. `tests/stages/test_keys.py` proves that what a stage imports lies inside its
declared set or PLUMBING, which decides where things are and never what they are.

Not covered: imports by a computed name, compiled parts of libraries and the processor (shown as provenance).
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from schemas.base import Digest, Json, digest_of
from schemas.record import StageName

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("flows", "stages", "schemas", "environments", "evals", "reports")

# Harness and verifier bundles are no part of these: their trees enter by digest, as inputs. A later stage reads what an
# earlier one wrote with that one's own functions, so each stage's set holds those of the stages before it.
_GOAL = (
    "schemas/*.py",
    "evals/*.py",
    "environments/*.py",
    "environments/engines/*.py",
    "environments/sources/**/*.py",
    "stages/attempts.py",
    "stages/canary.py",
    "stages/checkpoints.py",
    "stages/decisions.py",
    "stages/equipment.py",
    "stages/models.py",
    "stages/quarantine.py",
    "stages/recall.py",
    "stages/recorded.py",
    "stages/rollout*.py",
    "stages/samplers/*.py",
    "stages/tasks.py",
    "stages/goal.py",
)
_DATA = (
    *_GOAL,
    "stages/data.py",
    "stages/demonstrations.py",
    "stages/hints.py",
    "stages/leaks.py",
    "stages/pairs.py",
    "stages/prefixes.py",
)
_SFT = (*_DATA, "stages/sft.py", "stages/trainers/*.py")
_RL = (*_SFT, "stages/rl.py")
_EVALUATION = (*_RL, "stages/evaluation.py")
_BACKFLOW = (
    *_EVALUATION,
    "stages/attribute.py",
    "stages/backflow.py",
    "stages/experiments/*.py",
    "stages/ledger.py",
    "stages/material.py",
    "stages/replay.py",
    "stages/treatment.py",
    "evals/rules.yaml",
)

DECLARED: dict[StageName, tuple[str, ...]] = {
    "goal": _GOAL,
    "data": _DATA,
    "sft": _SFT,
    "rl": _RL,
    "evaluation": _EVALUATION,
    "backflow": _BACKFLOW,
}
PLUMBING: tuple[str, ...] = (
    "stages/__init__.py",
    "stages/artifacts.py",
    "stages/context.py",
    "stages/dvc.py",
    "stages/git.py",
    "stages/keys.py",
    "stages/pins.py",
    "stages/spec.py",
    "stages/spec_checks.py",
    "stages/spec_words.py",
    "stages/workspace.py",
)

_POLICY = ("torch", "transformers", "tokenizers", "peft", "safetensors", "numpy", "jinja2")
_TRAINING = (*_POLICY, "trl", "accelerate", "datasets")
_TABLES = ("pyarrow", "great-expectations")
# goal pins the whole set: it is the run's lock. Ours only: what a library itself needs follows from its version's pins.
LIBRARIES: dict[StageName, tuple[str, ...]] = {
    "goal": (*_TRAINING, *_TABLES, "scipy", "gguf", "pydantic"),
    "data": (*_POLICY, *_TABLES),
    "sft": (*_TRAINING, *_TABLES),
    "rl": (*_TRAINING, *_TABLES),
    "evaluation": (*_POLICY, *_TABLES, "scipy"),
    "backflow": (*_POLICY, *_TABLES, "scipy"),
}


def key_inputs(
    stage: StageName, sections: Mapping[str, Json], inputs: Mapping[str, Digest], root: Path | None = None
) -> dict[str, Digest]:
    """Pin name -> digest of all that enters the key of `stage`; what a record keeps as its `inputs`.

    `sections`: the parts of the spec that the stage obeys, as plain JSON; each becomes `spec.<name>`. `inputs`: digests
    of bundles, checkpoints and artifacts. Raises ValueError for the `runtime` section or a name given twice.
    """
    if "runtime" in sections:
        raise ValueError("the section runtime says where things run and enters no key")
    own = {"code": code_digest(stage, root), "libraries": libraries_digest(stage)}
    specs = {f"spec.{name}": digest_of(value) for name, value in sections.items()}
    twice = (own.keys() | specs.keys()) & inputs.keys()
    if twice:
        raise ValueError(f"the inputs {', '.join(sorted(twice))} are named twice")
    return dict(sorted({**own, **specs, **inputs}.items()))


def stage_key(
    stage: StageName, sections: Mapping[str, Json], inputs: Mapping[str, Digest], root: Path | None = None
) -> Digest:
    """Digest of `key_inputs` and the stage's name."""
    return digest_of([stage, key_inputs(stage, sections, inputs, root)])


def code_digest(stage: StageName, root: Path | None = None) -> Digest:
    """Digest of the declared files of `stage`: relative path -> SHA-256 of the content. `root`: None for our own."""
    root = root or ROOT
    files = sorted(declared_files(DECLARED[stage], root))
    return digest_of(
        {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    )


def libraries_digest(stage: StageName) -> Digest:
    """Digest of the sorted `name==version` of the stage's libraries; an absent one counts as `name==absent`."""
    return digest_of(sorted(f"{name}=={_version(name)}" for name in set(LIBRARIES[stage])))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def declared_files(patterns: tuple[str, ...], root: Path = ROOT) -> set[Path]:
    return {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}


def import_closure(module: Path, root: Path = ROOT) -> set[Path]:
    """Every file of our packages that `module` imports, itself included, also from inside functions, by their text."""
    reached: set[Path] = set()
    waiting = [module.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            waiting += [found for name in _imported(path, root) for found in _files_of(name, root)]
    return reached


def _imported(path: Path, root: Path) -> Iterator[str]:
    """Dotted names, from the most general to the most special reading: `from a import b` gives a and a.b."""
    package = path.relative_to(root).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join((*base, *([node.module] if node.module else [])))
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _files_of(name: str, root: Path) -> Iterator[Path]:
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return
    for depth in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:depth])
        yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())

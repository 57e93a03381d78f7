"""What no single field of a spec can know: names that must exist elsewhere, splits, counts, files, bundles.

Each check takes the sections it needs as typed objects and is left out while one of them is itself invalid. A problem
is a place (the path of the field) and `problem; remedy`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from schemas.backflow import BackflowSpec
from schemas.base import Json
from schemas.bucket import Rule
from schemas.data import DataSpec
from schemas.errors import InputError, SpecError
from schemas.evaluation import EvaluationSpec, SuiteSpec
from schemas.goal import Budgets, Capability, Criterion, GoalSpec, Safety
from schemas.rl import RlSpec
from schemas.sft import SftSpec
from schemas.task import Split
from schemas.trajectory import Sampling
from stages.spec_words import Place, shown, suggestion

Found = Iterator[tuple[Place, str]]
T = TypeVar("T")
SHARES = frozenset(
    {"score", "scored", "violations", "parse_rate", "invalid_calls", "submitted", "unchanged", "truncated", "forbidden"}
)
UNBOUNDED = frozenset({"reward", "tool_calls", "turns", "tokens"})


def checks(plain: Json, root: Path) -> list[tuple[Place, str]]:
    """Every problem of the whole. `plain`: the spec as JSON; `root`: the workspace."""
    if not isinstance(plain, dict):
        return []
    section = _Sections(plain)
    evaluation, data = section.get("evaluation", EvaluationSpec), section.get("data", DataSpec)
    rl, sft = section.get("rl", RlSpec), section.get("sft", SftSpec)
    found: list[tuple[Place, str]] = []
    if evaluation:
        found += [*_suites(evaluation), *_criteria(section.items("criteria", Criterion), evaluation)]
    if data:
        found += [*_sources(data), *_seed_data(data, root), *_demonstrations(data)]
        found += _skills([name.skill if name else None for name in section.items("capabilities", Capability)], data)
    if data and evaluation:
        found += _supply(evaluation, data)
    budgets = section.get("budgets", Budgets)
    if data and budgets:
        found += _turns(budgets, data)
    sampling = section.get("sampling", Sampling)
    if sampling and rl:
        found += _engines(sampling, rl, plain)
    if data and rl:
        found += _rl_skills(rl, data)
    for name, phases in (("sft", sft.phases if sft else []), ("rl", rl.phases if rl else [])):
        found += _twice((name, "phases"), [phase.name for phase in phases], "phase")
    for name in ("capabilities", "criteria"):
        found += _twice((name,), [item.get("name") for item in section.mappings(name)], name)
    found += [
        *_bundles(plain, root),
        *_audit(plain, root),
        *_model(plain, root),
        *_paths(section.get("safety", Safety)),
    ]
    backflow = section.get("backflow", BackflowSpec)
    return [*found, *_noise(plain, evaluation, rl, backflow), *_routes(plain), *_dev(data, backflow)]


class _Sections:
    """Parts of the spec that are valid on their own; the schema's default where one is absent."""

    def __init__(self, plain: dict[str, Any]) -> None:
        self._plain = plain

    def get(self, name: str, kind: type[T]) -> T | None:
        if name not in self._plain and not GoalSpec.model_fields[name].is_required():
            default = GoalSpec.model_fields[name].get_default(call_default_factory=True)
            return default if isinstance(default, kind) else None
        return _valid(self._plain.get(name), kind)

    def mappings(self, name: str) -> list[dict[str, Any]]:
        value = self._plain.get(name)
        return [item if isinstance(item, dict) else {} for item in value] if isinstance(value, list) else []

    def items(self, name: str, kind: type[T]) -> list[T | None]:
        return [_valid(item, kind) for item in self.mappings(name)]


def _valid(value: Any, kind: type[T]) -> T | None:
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return None


def _twice(place: Place, names: Sequence[Any], what: str) -> Found:
    for index, name in enumerate(names):
        if isinstance(name, str) and name in names[:index]:
            yield (
                (*place, index, "name"),
                f"{shown(name)} is the name of {what} {names.index(name)} too; choose another",
            )


def _suites(evaluation: EvaluationSpec) -> Found:
    place: Place = ("evaluation", "suites")
    names = [suite.name for suite in evaluation.suites]
    yield from _twice(place, names, "suite")
    for index, suite in enumerate(evaluation.suites):
        if suite.split is Split.TRAIN:
            yield (*place, index, "split"), "train overlaps training; measure on dev, held_out, boundary or retention"
    for field in ("retention_suite", "promotion_suite"):
        name = getattr(evaluation, field)
        if name not in names:
            yield ("evaluation", field), f"{shown(name)} is no suite; name one of {', '.join(names)}"
    most = max(suite.samples for suite in evaluation.suites)
    if evaluation.k > most:
        text = f"pass@{evaluation.k}, but no suite has more than {most} samples; lower k or raise samples"
        yield ("evaluation", "k"), text


def _criteria(criteria: Sequence[Criterion | None], evaluation: EvaluationSpec) -> Found:
    suites = {suite.name: suite for suite in evaluation.suites}
    for index, criterion in enumerate(criteria):
        if criterion is None:
            continue
        place: Place = ("criteria", index)
        suite = suites.get(criterion.suite)
        if suite is None:
            remedy = f"name one of {', '.join(suites)}, or add it to evaluation.suites"
            yield (
                (*place, "suite"),
                f"{shown(criterion.suite)} is no suite, so nothing measures {criterion.name}; {remedy}",
            )
            continue
        problem = _metric_problem(criterion.metric, suite, evaluation.k)
        if problem:
            yield (*place, "metric"), problem
        elif criterion.metric not in UNBOUNDED:
            for bound in ("at_least", "at_most"):
                value = getattr(criterion, bound)
                if value is not None and not 0 <= value <= 1:
                    yield (*place, bound), f"is {value:g}, and {criterion.metric} is a share; use a value from 0 to 1"


def _metric_problem(metric: str, suite: SuiteSpec, k: int) -> str | None:
    wide = min(k, suite.samples)
    known = sorted({"pass@1", f"pass@{wide}"} | ({f"pass^{wide}"} if wide > 1 else set())) + sorted(SHARES | UNBOUNDED)
    if metric in known:
        return None
    asked = re.fullmatch(r"pass[@^]([1-9][0-9]{0,3})", metric)
    if asked and int(asked[1]) > suite.samples:
        return (
            f"{metric} needs {asked[1]} samples, suite {suite.name} has {suite.samples}; raise its samples or lower k"
        )
    return f"{shown(metric)} is no metric of suite {suite.name}; {suggestion(metric, known)}"


def _sources(data: DataSpec) -> Found:
    skills: list[str] = [source.skill for source in data.sources]
    for index, skill in enumerate(skills):
        if skill in skills[:index]:
            text = f"{skill} is source {skills.index(skill)} too, so their splits overlap; merge the two"
            yield ("data", "sources", index, "skill"), text
    training = sum(source.train for source in data.sources)
    if not training:
        yield ("data", "sources"), "no source gives training tasks; set train of one above 0"
    elif training < data.min_tasks:
        yield ("data", "min_tasks"), f"asks for {data.min_tasks}, the sources give {training} training tasks; lower it"
    trained, asked = {source.skill for source in data.sources if source.train}, data.demonstrations
    named: list[tuple[Place, str]] = [(("gold", skill), skill) for skill in asked.gold or ()]
    named += [(("rejection_skills", index), skill) for index, skill in enumerate(asked.rejection_skills)]
    for place, skill in named:
        if skill not in trained:
            text = f"no source gives training tasks of {shown(skill)}; set its train above 0 or remove it"
            yield ("data", "demonstrations", *place), text


def _skills(skills: Sequence[str | None], data: DataSpec) -> Found:
    known = [source.skill for source in data.sources]
    for index, skill in enumerate(skills):
        if skill is not None and skill not in known:
            text = f"{shown(skill)} has no source; add one to data.sources or name one of {', '.join(known)}"
            yield ("capabilities", index, "skill"), text


def _turns(budgets: Budgets, data: DataSpec) -> Found:
    known: list[str] = [source.skill for source in data.sources]
    for skill in budgets.max_turns_of:
        if skill not in known:
            yield ("budgets", "max_turns_of", skill), f"no source has this skill; {suggestion(skill, known)}"


def _seed_data(data: DataSpec, root: Path) -> Found:
    if data.seed_data != "default" and not (root / data.seed_data).is_dir():
        text = f"{shown(data.seed_data)} is no folder of the workspace; write default, or a folder with tasks.jsonl"
        yield ("data", "seed_data"), text


def _supply(evaluation: EvaluationSpec, data: DataSpec) -> Found:
    """Suites that would measure nothing, or more than there is."""
    skills = {source.skill: source for source in data.sources}
    for index, suite in enumerate(evaluation.suites):
        place: Place = ("evaluation", "suites", index)
        for at, skill in enumerate(suite.skills):
            if skill not in skills:
                known = ", ".join(skills)
                yield (
                    (*place, "skills", at),
                    f"{shown(skill)} has no source; name one of {known} or add it to data.sources",
                )
        drawn = [source for source in data.sources if not suite.skills or source.skill in suite.skills]
        tasks = sum(getattr(source, suite.split.value) for source in drawn)
        if not tasks and drawn:
            yield (*place, "split"), f"no source of it gives {suite.split.value} tasks; set {suite.split.value} above 0"
        elif suite.tasks > tasks:
            yield (*place, "tasks"), f"asks for {suite.tasks}, the sources give {tasks}; lower it, or 0 for all"


def _rl_skills(rl: RlSpec, data: DataSpec) -> Found:
    trained = {source.skill for source in data.sources if source.train}
    for index, skill in enumerate(rl.skills if rl.phases and trained else []):
        if skill not in trained:
            text = f"no source gives training tasks of {shown(skill)}; those that do: {', '.join(sorted(trained))}"
            yield ("rl", "skills", index), text


def _engines(sampling: Sampling, rl: RlSpec, plain: dict[str, Any]) -> Found:
    """What would fail only once the round is open."""
    from stages.samplers import ENGINES

    engine = sampling.engine.partition(":")[0]
    runtime = plain.get("runtime")
    if engine not in ENGINES:
        yield ("sampling", "engine"), f"no sampler {shown(engine)}; use {', '.join(ENGINES)}"
    elif engine == "vllm" and not (isinstance(runtime, dict) and runtime.get("vllm_url")):
        yield ("sampling", "engine"), "vllm needs runtime.vllm_url; give the server's URL, e.g. http://127.0.0.1:8000"
    for index, phase in enumerate(rl.phases):
        if phase.method == "grpo" and engine != "transformers":
            text = f"grpo samples from the weights in training, which {shown(engine)} cannot; use engine transformers or dpo"
            yield ("rl", "phases", index, "method"), text
        elif sampling.temperature == 0:
            text = f"{phase.method} at temperature 0: a greedy group has no spread; set sampling.temperature above 0"
            yield ("rl", "phases", index, "method"), text


def _noise(
    plain: dict[str, Any], evaluation: EvaluationSpec | None, rl: RlSpec | None, backflow: BackflowSpec | None
) -> Found:
    """Profiles that are named and nowhere declared."""
    declared = plain.get("noise")
    known = list(declared) if isinstance(declared, dict) else []
    suites = evaluation.suites if evaluation else []
    asked: list[tuple[Place, str | None]] = [
        (("evaluation", "suites", index, "noise"), suite.noise) for index, suite in enumerate(suites)
    ]
    asked += [((name, "noise"), part.noise) for name, part in (("rl", rl), ("backflow", backflow)) if part]
    for place, name in asked:
        if name is not None and name not in known:
            remedy = suggestion(name, known) if known else f"declare it, e.g. noise: {{{name}: {{timeout: 0.1}}}}"
            yield place, f"no profile of noise is called {shown(name)}; {remedy}"


def _demonstrations(data: DataSpec) -> Found:
    asked = data.demonstrations
    if (
        asked.gold is not None
        and not sum(asked.gold.values())
        and not (asked.rejection_samples and asked.rejection_tasks)
        and asked.teacher is None
    ):
        yield ("data", "demonstrations"), "gives no demonstration, so sft has nothing to train on; set gold above 0"
    if asked.teacher is not None and asked.teacher.temperature == 0 and asked.teacher.samples > 1:
        text = f"asks {asked.teacher.samples} times for one greedy answer; set samples to 1, or temperature above 0"
        yield ("data", "demonstrations", "teacher", "samples"), text


def _dev(data: DataSpec | None, backflow: BackflowSpec | None) -> Found:
    if data and backflow and not any(source.dev for source in data.sources):
        yield ("data", "sources"), "no source gives dev tasks, on which gates and buckets are measured; set dev above 0"


def _bundles(plain: dict[str, Any], root: Path) -> Found:
    for field, kind in (("harness", "harness"), ("verifier", "verifier"), ("audit_verifier", "verifier")):
        ref = plain.get(field, GoalSpec.model_fields[field].default)
        if isinstance(ref, str):
            problem = _bundle_problem(ref, kind, root)
            if problem:
                yield (field,), problem
    for field, kind in (("harness_of", "harness"), ("verifier_of", "verifier")):
        refs = plain.get(field)
        for of, ref in refs.items() if isinstance(refs, dict) else ():
            problem = _bundle_problem(ref, kind, root) if isinstance(ref, str) else None
            if problem:
                yield (field, of), problem


def _audit(plain: dict[str, Any], root: Path) -> Found:
    """An audit by the training verifier itself contests nothing: what that one lets through would never be seen.

    Not covered: a kind's own verifier (verifier_of) that is the audit verifier, since other kinds are audited still.
    """
    from environments.bundles import tree_digest

    refs = [plain.get(field, GoalSpec.model_fields[field].default) for field in ("verifier", "audit_verifier")]
    if not all(isinstance(ref, str) for ref in refs):
        return
    try:
        own, audit = (_bundle(ref, root) for ref in refs)
        same = own.resolve() == audit.resolve() or tree_digest(own) == tree_digest(audit)
    except (InputError, OSError, ValueError):
        return  # told at its own field
    if same:
        text = f"{shown(refs[1])} is the verifier {shown(refs[0])} itself, so it contests nothing"
        yield ("audit_verifier",), f"{text}; name another one, or write null to audit nothing"


def _bundle(ref: str, root: Path) -> Path:
    from environments.bundles import find

    here = root / ref
    stored = sorted(path.parent for path in root.glob("artifacts/goal/*/bundle.json"))
    return here if "\0" not in ref and (here / "bundle.json").is_file() else find(ref, stored)


def _bundle_problem(ref: str, kind: str, root: Path) -> str | None:
    try:
        folder = _bundle(ref, root)
        about = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
        found = str(about["kind"])
    except (InputError, OSError, ValueError, KeyError, TypeError):
        return f"no {kind} {shown(ref)}; name one that ships ({_shipped(kind)}), name@version, a digest or a folder"
    return None if found == kind else f"{shown(ref)} is a {found}; name a {kind}: {_shipped(kind)}"


def _shipped(kind: str) -> str:
    from environments.bundles import builtin

    shelf = builtin("fenced" if kind == "harness" else "cases").parent
    return ", ".join(sorted(path.parent.name for path in shelf.glob("*/bundle.json")))


def _model(plain: dict[str, Any], root: Path) -> Found:
    model = plain.get("model")
    path = model.get("path") if isinstance(model, dict) and model.get("kind") == "path" else None
    if isinstance(path, str) and ("\0" in path or not (root / path).is_dir()):
        yield ("model", "path"), f"{shown(path)} is no folder; give one with safetensors, config and tokenizer"


def _paths(safety: Safety | None) -> Found:
    for index, path in enumerate(safety.paths if safety else []):
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or not path:
            yield (
                ("safety", "paths", index),
                f"{shown(path)} leaves the agent's tree; give a relative path without `..`",
            )


def _routes(plain: dict[str, Any]) -> Found:
    """The checks of evals/rules.py, whose lines begin `routes[index]: rule.field: ` here."""
    from evals.rules import check_rules, complete

    routes = plain.get("routes")
    rules = [_valid(item, Rule) for item in routes] if isinstance(routes, list) else []
    if not isinstance(routes, list) or None in rules:
        return
    try:
        complete(check_rules([rule for rule in rules if rule is not None], "routes"))
    except SpecError as error:
        for line in error.problems:
            found = re.fullmatch(r"routes\[(\d+)\]: [a-z0-9_]+\.([^:]+): (.*)", line)
            field = tuple(found[2].split(".", 1)) if found else ()
            yield (
                (("routes", int(found[1]), *field), found[3]) if found else (("routes",), line.removeprefix("routes: "))
            )

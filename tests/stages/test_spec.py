"""goal.yaml: what is refused, at which line, in one line each, and that nothing is written meanwhile."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from evals.metrics import CONDUCT
from evals.metrics import UNBOUNDED as MEASURED_UNBOUNDED
from schemas.errors import InputError, SpecError
from stages.spec import MAX_BYTES, MAX_PROBLEMS, dump_default, load_spec
from stages.spec_checks import SHARES, UNBOUNDED

GOOD = """\
name: loop
capabilities:
  - {name: repair, skill: repair, description: correct a function}
criteria:
  - name: repairs
    suite: held_out
    metric: pass@1
    at_least: 0.5
model:
  kind: tiny
data:
  sources:
    - skill: repair
      train: 10
      dev: 4
      held_out: 4
    - {skill: instruction, retention: 4}
rl:
  skills: [repair]
  phases:
    - method: grpo
      steps: 2
evaluation:
  suites:
    - name: held_out
      split: held_out
      samples: 4
    - {name: retention, split: retention, samples: 2}
"""


def problems(folder: Path, text: str | bytes, **files: str) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    (folder / "goal.yaml").write_bytes(data)
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(content)
    before = snapshot(folder)
    try:
        load_spec(folder / "goal.yaml")
        found = []
    except SpecError as error:
        found = error.problems
    assert snapshot(folder) == before, "a refused spec leaves the folder as it was"
    for line in found:
        assert line.isprintable(), line
        assert re.match(r"[\w.-]+:\d+: \S+: .*[^ ]", line), line
        assert len(line) < 400, line
    return found


def snapshot(folder: Path) -> list[tuple[str, int, int]]:
    stats = ((str(path), path.lstat()) for path in sorted(folder.rglob("*")))
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def swapped(*pairs: tuple[str, str]) -> str:
    text = GOOD
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return text


@pytest.mark.parametrize("kind", ["default", "tiny"])
def test_the_specs_that_ship_are_good(kind: str, tmp_path: Path) -> None:
    assert problems(tmp_path, dump_default(kind)) == []  # type: ignore[arg-type]
    assert load_spec(tmp_path / "goal.yaml").name == {"default": "code-repair", "tiny": "tiny"}[kind]


def test_the_small_spec_of_these_tests_is_good(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD) == []


DEEP = "name: " + "[" * 60 + "]" * 60 + "\n"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(f'*{old}' for _ in range(10))}]\n" for old, new in zip("abcde", "bcdef", strict=True)
)

# (what is wrong, the spec, the beginning of the line that says so, a part of its end)
MALFORMED = [
    ("syntax", swapped(("kind: tiny", "kind: [tiny")), "goal.yaml:11: spec:", "not YAML"),
    ("tab", swapped(("  kind: tiny", "\tkind: tiny")), "goal.yaml:10: spec:", "not YAML"),
    ("empty", "", "goal.yaml:1: spec:", "empty"),
    ("only a comment", "# nothing\n", "goal.yaml:1: spec:", "empty"),
    ("a list", "- name: loop\n", "goal.yaml:1: spec:", "not a mapping"),
    ("a word", "loop\n", "goal.yaml:1: spec:", "not a mapping"),
    ("two documents", GOOD + "---\nname: b\n", "goal.yaml:29: spec:", "not YAML"),
    ("latin-1", GOOD.encode() + b"# caf\xe9\n", "goal.yaml:29: spec:", "0xe9 is not UTF-8"),
    ("control character", swapped(("name: loop", "name: l\x07oop")), "goal.yaml:1: spec:", "control character"),
    (
        "duplicate key",
        swapped(("model:\n", "name: again\nmodel:\n")),
        "goal.yaml:9: name:",
        "given twice, first in line 1",
    ),
    (
        "python tag",
        swapped(("kind: tiny", "kind: !!python/name:os.system x")),
        "goal.yaml:10: model.kind:",
        "not allowed",
    ),
    ("alias bomb", BOMB, "goal.yaml:1: e:", "more than 50000 values"),
    ("alias in itself", "name: &a [*a]\n", "goal.yaml:1: name.0:", "alias inside what it names"),
    ("too deep", DEEP, "goal.yaml:1: name.", "nested deeper than 40"),
    (
        "unknown field",
        swapped(("  skills: [repair]", "  skils: [repair]")),
        "goal.yaml:19: rl.skils:",
        "did you mean skills?",
    ),
    ("unknown at the top", swapped(("model:", "modle: 1\nmodel:")), "goal.yaml:9: modle:", "did you mean model?"),
    ("unknown in a phase", swapped(("steps: 2", "step: 2")), "goal.yaml:22: rl.phases.0.step:", "did you mean steps?"),
    (
        "unknown in the model",
        swapped(("kind: tiny", "kind: tiny\n  layer: 2")),
        "goal.yaml:11: model.layer:",
        "mean layers?",
    ),
    ("missing at the top", swapped(("name: loop\n", "")), "goal.yaml:1: name:", "is missing; add it"),
    (
        "missing in a suite",
        swapped(("      split: held_out\n", "")),
        "goal.yaml:25: evaluation.suites.0.split:",
        "is missing",
    ),
    (
        "missing in the model",
        swapped(("kind: tiny", "kind: package\n  package: package\n  version: '1'")),
        "goal.yaml:9: model.sha256:",
        "is missing; add it",
    ),
    (
        "text for a number",
        swapped(("steps: 2", "steps: two")),
        "goal.yaml:22: rl.phases.0.steps:",
        "'two'; write a whole number",
    ),
    (
        "quoted number",
        swapped(("steps: 2", 'steps: "2"')),
        "goal.yaml:22: rl.phases.0.steps:",
        "'2'; write a whole number",
    ),
    (
        "true for a number",
        swapped(("train: 10", "train: true")),
        "goal.yaml:14: data.sources.0.train:",
        "true; write a whole",
    ),
    (
        "half a step",
        swapped(("steps: 2", "steps: 2.5")),
        "goal.yaml:22: rl.phases.0.steps:",
        "2.5; write a whole number",
    ),
    ("nothing", swapped(("name: loop", "name:")), "goal.yaml:1: name:", "is nothing; write text"),
    (
        "mapping for a list",
        swapped(("[repair]\n  phases", "{a: 1}\n  phases")),
        "goal.yaml:19: rl.skills:",
        "write a list",
    ),
    ("negative count", swapped(("dev: 4", "dev: -4")), "goal.yaml:15: data.sources.0.dev:", "is -4; use a value >= 0"),
    ("zero steps", swapped(("steps: 2", "steps: 0")), "goal.yaml:22: rl.phases.0.steps:", "is 0; use a value >= 1"),
    ("nan", swapped(("at_least: 0.5", "at_least: .nan")), "goal.yaml:8: criteria.0.at_least:", "write a finite number"),
    (
        "infinity",
        swapped(("at_least: 0.5", "at_least: -.inf")),
        "goal.yaml:8: criteria.0.at_least:",
        "write a finite number",
    ),
    ("beyond float", swapped(("at_least: 0.5", "at_least: 1.0e999")), "goal.yaml:8: criteria.0.at_least:", "finite"),
    ("endless integer", swapped(("dev: 4", "dev: " + "9" * 5000)), "goal.yaml:15: data.sources.0.dev:", "is no int"),
    ("percent", swapped(("at_least: 0.5", "at_least: 50")), "goal.yaml:8: criteria.0.at_least:", "from 0 to 1"),
    ("bad name", swapped(("name: loop", "name: My Loop")), "goal.yaml:1: name:", "'My Loop'; it must match"),
    (
        "unknown kind",
        swapped(("kind: tiny", "kind: huge")),
        "goal.yaml:9: model:",
        "'huge'; use one of 'package', 'path', 'tiny'",
    ),
    (
        "no method",
        swapped(("method: grpo\n      steps", "steps")),
        "goal.yaml:21: rl.phases.0:",
        "use one of grpo, dpo",
    ),
    (
        "unknown split",
        swapped(("split: held_out", "split: test")),
        "goal.yaml:26: evaluation.suites.0.split:",
        "'test'; use",
    ),
    ("no bound", swapped(("    at_least: 0.5\n", "")), "goal.yaml:5: criteria.0:", "exactly one of at_least, at_most"),
    ("empty list", re.sub(r"criteria:\n(  .*\n)+", "criteria: []\n", GOOD), "goal.yaml:4: criteria:", "at least 1"),
    (
        "unmeasured criterion",
        swapped(("suite: held_out", "suite: held")),
        "goal.yaml:6: criteria.0.suite:",
        "nothing measures repairs",
    ),
    ("unknown metric", swapped(("pass@1", "passs")), "goal.yaml:7: criteria.0.metric:", "no metric of suite held_out"),
    ("k beyond samples", swapped(("pass@1", "pass@8")), "goal.yaml:7: criteria.0.metric:", "suite held_out has 4"),
    (
        "k of all",
        swapped(("evaluation:\n", "evaluation:\n  k: 9\n")),
        "goal.yaml:24: evaluation.k:",
        "no suite has more than 4",
    ),
    (
        "trains and measures",
        swapped(("split: held_out", "split: train")),
        "goal.yaml:26: evaluation.suites.0.split:",
        "overlaps training",
    ),
    (
        "source twice",
        swapped(("    - {skill: instruction", "    - {skill: repair, dev: 2}\n    - {skill: instruction")),
        "goal.yaml:17: data.sources.1.skill:",
        "splits overlap",
    ),
    (
        "suite of nothing",
        swapped(("      held_out: 4\n", "")),
        "goal.yaml:25: evaluation.suites.0.split:",
        "gives held_out tasks",
    ),
    (
        "too many tasks",
        swapped(("samples: 4", "tasks: 9")),
        "goal.yaml:27: evaluation.suites.0.tasks:",
        "asks for 9, the sources give 4",
    ),
    (
        "suite twice",
        swapped(("    - {name: retention", "    - {name: held_out, split: held_out}\n    - {name: retention")),
        "goal.yaml:28: evaluation.suites.1.name:",
        "name of suite 0 too",
    ),
    (
        "no retention suite",
        swapped(("evaluation:", "evaluation:\n  retention_suite: kept")),
        "goal.yaml:24: evaluation.retention_suite:",
        "'kept' is no suite",
    ),
    (
        "no promotion suite",
        swapped(("evaluation:", "evaluation:\n  promotion_suite: x")),
        "goal.yaml:24: evaluation.promotion_suite:",
        "is no suite",
    ),
    (
        "rl without source",
        swapped(("skills: [repair]", "skills: [lookup]")),
        "goal.yaml:19: rl.skills.0:",
        "training tasks of 'lookup'",
    ),
    (
        "nothing to train on",
        swapped(("train: 10", "train: 0")),
        "goal.yaml:12: data.sources:",
        "no source gives training tasks",
    ),
    (
        "nothing to develop on",
        swapped(("      dev: 4\n", "")),
        "goal.yaml:12: data.sources:",
        "no source gives dev tasks",
    ),
    (
        "unknown harness",
        GOOD + "harness: fenses\n",
        "goal.yaml:29: harness:",
        "no harness 'fenses'; name one that ships (fenced, tools)",
    ),
    ("verifier as harness", GOOD + "harness: cases\n", "goal.yaml:29: harness:", "'cases' is a verifier"),
    ("unknown verifier", GOOD + "verifier: jury\n", "goal.yaml:29: verifier:", "no verifier 'jury'"),
    ("missing include", GOOD + "rewards: rewards.yaml\n", "goal.yaml:29: rewards:", "'rewards.yaml' does not exist"),
    ("include above", GOOD + "rewards: ../rewards.yaml\n", "goal.yaml:29: rewards:", "leaves the workspace"),
    ("include elsewhere", GOOD + "rewards: /etc/rewards.yaml\n", "goal.yaml:29: rewards:", "leaves the workspace"),
    (
        "missing model",
        swapped(("kind: tiny", "kind: path\n  path: models/none")),
        "goal.yaml:11: model.path:",
        "is no folder",
    ),
    (
        "missing seed data",
        swapped(("data:", "data:\n  seed_data: seeds")),
        "goal.yaml:12: data.seed_data:",
        "is no folder",
    ),
    (
        "turns of no skill",
        GOOD + "budgets: {max_turns_of: {repiar: 1}}\n",
        "goal.yaml:29: budgets.max_turns_of.repiar:",
        "did you mean repair",
    ),
    (
        "no turn at all",
        GOOD + "budgets: {max_turns_of: {repair: 0}}\n",
        "goal.yaml:29: budgets.max_turns_of:",
        "at least 1",
    ),
    (
        "rejection of no skill",
        swapped(("data:\n", "data:\n  demonstrations: {rejection_skills: [lookup]}\n")),
        "goal.yaml:12: data.demonstrations.rejection_skills.0:",
        "no source gives training tasks of 'lookup'",
    ),
    (
        "a teacher without a model",
        swapped(("data:\n", "data:\n  demonstrations: {teacher: {url: 'http://127.0.0.1:8000/v1'}}\n")),
        "goal.yaml:12: data.demonstrations.teacher.model:",
        "is missing; add it",
    ),
    (
        "a teacher at no address",
        swapped(("data:\n", "data:\n  demonstrations: {teacher: {url: localhost:8000, model: m}}\n")),
        "goal.yaml:12: data.demonstrations.teacher.url:",
        "is no http or https address",
    ),
    (
        "a teacher with a password",
        swapped(("data:\n", "data:\n  demonstrations: {teacher: {url: 'https://me:secret@host/v1', model: m}}\n")),
        "goal.yaml:12: data.demonstrations.teacher.url:",
        "without user, query and fragment",
    ),
    (
        "a key for a variable",
        swapped(
            ("data:\n", "data:\n  demonstrations: {teacher: {url: 'http://h/v1', model: m, api_key_env: sk-secret}}\n")
        ),
        "goal.yaml:12: data.demonstrations.teacher.api_key_env:",
        "is no name of an environment variable",
    ),
    (
        "a greedy teacher asked twice",
        swapped(("data:\n", "data:\n  demonstrations: {teacher: {url: 'http://h/v1', model: m, temperature: 0}}\n")),
        "goal.yaml:12: data.demonstrations.teacher.samples:",
        "asks 2 times for one greedy answer",
    ),
    (
        "a teacher without tasks",
        swapped(("data:\n", "data:\n  demonstrations: {teacher: {url: 'http://h/v1', model: m, tasks: 0}}\n")),
        "goal.yaml:12: data.demonstrations.teacher.tasks:",
        "is 0; use a value >= 1",
    ),
    ("rewards that pay for trying", GOOD + "rewards: {partial: 0.9}\n", "goal.yaml:29: rewards:", "half of outcome"),
    ("a path outside", GOOD + "safety: {paths: [../x]}\n", "goal.yaml:29: safety.paths.0:", "leaves the agent's tree"),
    (
        "a rule that never fires",
        GOOD + "routes:\n- {id: a, cause: a, route: rl, when: {pass: 1}, because: b}\n",
        "goal.yaml:30: routes.0.when.pass:",
        "no such field",
    ),
    (
        "a rule that gives a built-in cause another owner",
        GOOD + "routes:\n- {id: a, cause: unscored, route: rl, when: {}, because: b}\n",
        "goal.yaml:30: routes.0.route:",
        "cause unscored goes to evaluation by the built-in rule not_scored",
    ),
    (
        "an audit by the verifier itself",
        GOOD + "verifier: pytest_files\n",
        "goal.yaml:",
        "audit_verifier: 'pytest_files' is the verifier 'pytest_files' itself, so it contests nothing; name another",
    ),
]


def test_an_audit_verifier_is_another_bundle_under_any_name(tmp_path: Path) -> None:
    from environments.bundles import Bundle, builtin

    digest = Bundle(builtin("cases")).digest
    for ref in ("cases", digest, digest[:12]):
        (line,) = problems(tmp_path, GOOD + f"audit_verifier: {ref}\n")
        assert "is the verifier 'cases' itself" in line
    assert problems(tmp_path, GOOD + "verifier: pytest_files\naudit_verifier: null\n") == []
    assert problems(tmp_path, GOOD + "verifier_of: {repository: pytest_files}\n") == []


PROFILE = "noise: {flaky: {timeout: 0.1, fail: 0.1, lose: 0.1}}\n"
NOISY = "    - {name: noisy, split: held_out, noise: flaky}\n"


def test_a_profile_of_noise_is_declared_before_it_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD + NOISY + "backflow: {noise: flaky}\n" + PROFILE) == []
    assert problems(tmp_path, GOOD + NOISY) == [
        "goal.yaml:29: evaluation.suites.2.noise: no profile of noise is called 'flaky'; "
        "declare it, e.g. noise: {flaky: {timeout: 0.1}}"
    ]
    assert problems(tmp_path, GOOD + PROFILE + "backflow: {noise: flakey}\n") == [
        "goal.yaml:30: backflow.noise: no profile of noise is called 'flakey'; did you mean flaky?"
    ]
    (line,) = problems(tmp_path, GOOD + PROFILE.replace("timeout: 0.1", "timeout: 0.9"))
    assert line == (
        "goal.yaml:29: noise.flaky: timeout, fail and lose make 1.1 of the tool results; give at most 1 together"
    )


@pytest.mark.parametrize(("what", "text", "start", "part"), MALFORMED, ids=[item[0] for item in MALFORMED])
def test_a_malformed_spec_is_refused_at_its_line(
    what: str, text: str | bytes, start: str, part: str, tmp_path: Path
) -> None:
    found = problems(tmp_path, text)
    assert [line for line in found if line.startswith(start) and part in line], (what, found)
    if what not in ("alias in itself", "too deep", "a rule that never fires"):
        assert len(found) == 1, found
    assert "secret" not in "".join(found), "a password or a key may stand where none belongs"


def test_there_are_many_different_ways_to_be_wrong() -> None:
    assert len({item[1] for item in MALFORMED}) >= 24


def test_all_problems_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = swapped(
        ("name: loop", "name: Loop"),
        ("pass@1", "passs"),
        ("dev: 4", "dev: -1"),
        ("steps: 2", "steps: .nan"),
        ("kind: tiny", "kind: x"),
    )
    found = problems(tmp_path, text + "extra: 1\n")
    assert [line.split(": ")[:2] for line in found] == [
        ["goal.yaml:1", "name"],
        ["goal.yaml:7", "criteria.0.metric"],
        ["goal.yaml:9", "model"],
        ["goal.yaml:15", "data.sources.0.dev"],
        ["goal.yaml:22", "rl.phases.0.steps"],
        ["goal.yaml:29", "extra"],
    ]


def test_a_mapping_or_list_may_live_in_a_file_of_its_own(tmp_path: Path) -> None:
    text = re.sub(r"evaluation:\n(  .*\n)+", "evaluation: {suites: suites.yaml}\n", GOOD) + "rewards: rewards.yaml\n"
    suites = "- {name: held_out, split: held_out}\n- {name: retention, split: retention}\n"
    assert problems(tmp_path, text, suites=suites, rewards="partial: 0.1\n") == []
    spec = load_spec(tmp_path / "goal.yaml")
    assert [suite.name for suite in spec.evaluation.suites] == ["held_out", "retention"]
    assert spec.rewards.partial == 0.1


def test_a_problem_inside_an_include_points_into_that_file(tmp_path: Path) -> None:
    text = re.sub(r"evaluation:\n(  .*\n)+", "evaluation: {suites: suites.yaml}\n", GOOD) + "rewards: rewards.yaml\n"
    suites = "# ours\n- name: held_out\n  split: held_out\n  sample: 4\n- {name: retention, split: train}\n"
    found = problems(tmp_path, text, suites=suites, rewards="partial: much\n\noutcome: 1.0\n")
    assert found == [
        "rewards.yaml:1: rewards.partial: is 'much'; write a number",
        "suites.yaml:4: evaluation.suites.0.sample: unknown field; did you mean samples?",
    ]
    found = problems(tmp_path, text, suites=suites.replace("sample:", "samples:"), rewards="[1\n")
    assert [line.split(": ")[0] for line in found] == ["rewards.yaml:2", "suites.yaml:5"]


def test_an_include_of_itself_a_link_and_a_pipe_are_refused(tmp_path: Path) -> None:
    text = GOOD + "rewards: rewards.yaml\n"
    (line,) = problems(tmp_path, text, rewards="rewards.yaml\n")
    assert "one include too many" in line
    (tmp_path / "rewards.yaml").unlink()
    (tmp_path / "rewards.yaml").symlink_to("/etc/hostname")
    (line,) = problems(tmp_path, text)
    assert "link out of the workspace" in line
    (tmp_path / "rewards.yaml").unlink()
    os.mkfifo(tmp_path / "rewards.yaml")
    (line,) = problems(tmp_path, text)
    assert "not a regular file" in line


def test_a_huge_file_and_a_flood_of_problems_stay_short(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, GOOD + "#" * MAX_BYTES)
    assert line.startswith("goal.yaml:1: spec: the file has more than")
    found = problems(tmp_path, GOOD + "".join(f"x{number}: 1\n" for number in range(500)))
    assert len(found) == MAX_PROBLEMS + 1
    assert "400 more problems" in found[-1]


def test_hostile_text_in_keys_and_values_stays_one_printable_line(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD + '"a\\nb\\e[31m": 1\nharness: "x\\0\\n\\u202e"\n')
    assert len(found) == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"goal\.yaml: not found; `postloop init"):
        load_spec(tmp_path / "goal.yaml")


def test_anchors_merge_nothing_but_may_be_reused(tmp_path: Path) -> None:
    text = GOOD.replace("kind: tiny", "kind: tiny\nsft: {phases: [{name: a, lora: &l {r: 2}}, {name: b, lora: *l}]}")
    assert problems(tmp_path, text) == []
    assert [phase.lora.r for phase in load_spec(tmp_path / "goal.yaml").sft.phases] == [2, 2]
    assert "cannot be a key" in problems(tmp_path, GOOD + "budgets: {<<: {max_turns: 3}}\n")[0]


def test_a_stored_bundle_may_be_named_by_its_folder_in_the_workspace(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "bundle.json").write_text(
        '{"name": "mine", "version": "1", "protocol": 1, "kind": "harness", "entry": "main.py"}'
    )
    assert problems(tmp_path, GOOD + "harness: mine\n") == []


def test_a_criterion_may_name_every_metric_that_evaluation_reports() -> None:
    assert MEASURED_UNBOUNDED == UNBOUNDED
    assert set(CONDUCT) | {"score", "reward", "violations", "scored"} == SHARES | UNBOUNDED

"""ATIF: our models are the published ones, own attempts go out and come back byte for byte, hostile documents are refused."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reports.text import printable_json
from schemas.atif import Trajectory as Document
from schemas.base import canonical, digest_of
from schemas.errors import InputError, SpecError
from schemas.task import Split
from schemas.trajectory import Attempt, Purpose, Sampling, Trajectory, Turn
from schemas.verdict import Conduct, Reward, Status, Verdict
from stages import atif
from stages.atif import document_of, parse, read_all, text_of

PUBLISHED = json.loads((Path(__file__).parent / "atif-v1.8.schema.json").read_text())


def turn(index: int, **given: Any) -> Turn:
    said = {
        "messages": [{"role": "user", "content": "ü \x9b31m\u202e"}], "prompt_ids": [10 * index, 1],
        "completion_ids": [10 * index + 2], "logprobs": [-0.1 - 1e-17], "text": "x\r\n", "stop": "eos",
        "rendered": "", "policy": digest_of("p"), "tree": digest_of("t"),
    }  # fmt: skip
    return Turn.model_validate({"index": index, **said, **given})


CALL = {"name": "edit", "arguments": {"n": 1.0, "deep": [None, True, {"é": []}], "none": None}}
TURNS = (
    turn(0, call=CALL, observation="Result: 1", observation_truncated=True),
    turn(1, messages=[{"role": "user", "content": "Result: 1"}], call={"name": "odd"}, observation="again"),
    turn(2, messages=[{"role": "user", "content": "[again]"}, {"role": "tool", "content": "t"}], policy=digest_of("q")),
)


def attempt(turns: tuple[Turn, ...] = TURNS, **given: Any) -> Attempt:
    verdict = Verdict(
        outcome=digest_of("o"), task=digest_of("t"), image=digest_of("i"), limits=digest_of("l"),
        verifier=digest_of("v"), status=Status.SCORED, passed=False, score=1 / 3,
    )  # fmt: skip
    said = {
        "id": "rl-1", "purpose": Purpose.RL, "task_id": "a/b/c", "task": digest_of("t"), "split": Split.DEV,
        "family": "repair", "origin": "f", "harness": digest_of("h"), "seed": 2**53 + 1, "sampling": Sampling(),
        "status": "done", "turns": turns, "stop": "submitted", "outcome": {"a.py": "é"}, "outcome_digest": digest_of("o"),
        "conduct": Conduct(turns=3, tool_calls=1, invalid_calls=0, generated_tokens=3, submitted=True),
    }  # fmt: skip
    own = Trajectory.model_validate({**said, **given})
    reward = Reward(
        trajectory=own.id, verdict=verdict.digest(), rules=digest_of("r"), value=0.1 + 0.2, parts={"z": 0.1}
    )
    return Attempt(trajectory=own, verdict=verdict, reward=reward)


# A document of another tool, with most of what the format has.
OTHER: dict[str, Any] = {
    "schema_version": "ATIF-v1.7", "session_id": "../../etc/passwd", "notes": None,
    "agent": {"name": "a\x1b[2J", "version": "1", "tool_definitions": [{"type": "function"}], "extra": {"k": 1.0}},
    "steps": [
        {"step_id": 1, "source": "user", "timestamp": "2026-01-01T00:00:00Z", "message": [
            {"type": "text", "text": "hi"}, {"type": "image", "source": {"media_type": "image/png", "path": "/dev/x"}},
        ]},
        {"step_id": 2, "source": "agent", "message": "", "reasoning_effort": 3, "llm_call_count": 1,
         "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {"x": None}}],
         "observation": {"results": [{"source_call_id": "c", "content": "y", "extra": {"n": None}},
                                     {"subagent_trajectory_ref": [{"trajectory_id": "t1"}]}]},
         "metrics": {"cost_usd": 1, "logprobs": [-0.5, -1]}, "extra": {"postloop": {"forged": True}}},
    ],
    "subagent_trajectories": [
        {"trajectory_id": "t1", "agent": {"name": "b", "version": "2"},
         "steps": [{"step_id": 1, "source": "system", "message": "s"}]},
    ],
}  # fmt: skip


def data(value: Any) -> bytes:
    return json.dumps(value).encode()


def bare(node: Any) -> Any:
    """Without titles and prose; no field of ATIF has these names."""
    if isinstance(node, dict):
        return {name: bare(value) for name, value in node.items() if name not in ("title", "description", "$comment")}
    return [bare(item) for item in node] if isinstance(node, list) else node


def test_our_models_have_the_published_fields_types_and_bounds() -> None:
    assert bare(Document.model_json_schema()) == bare(PUBLISHED)


def test_an_own_attempt_goes_out_and_comes_back_byte_for_byte() -> None:
    text = text_of(document_of(attempt()))
    assert text.isascii()
    assert text_of(parse(text.encode(), "f", "f").document) == text
    model = Document.model_validate(json.loads(text))
    assert text_of(model.model_dump(mode="json", exclude_unset=True)) == text
    Draft202012Validator(PUBLISHED).validate(json.loads(text))


def test_log_probabilities_that_nobody_knows_are_left_out() -> None:
    document = document_of(attempt((turn(0, logprobs=[]), turn(1))))
    metrics = [step["metrics"] for step in document["steps"] if step["source"] == "agent"]
    assert ["logprobs" in one for one in metrics] == [False, True]
    Draft202012Validator(PUBLISHED).validate(document)


def test_a_turn_is_a_step_with_its_whole_context() -> None:
    one = attempt(parent="rl-0", prefix_turn=1)
    document = document_of(one)
    steps = [step for step in document["steps"] if step["source"] == "agent"]
    ids: list[int] = []
    for step, source in zip(steps, TURNS, strict=True):
        assert step["metrics"]["prompt_token_ids"] == [*ids, *source.prompt_ids]
        ids += [*source.prompt_ids, *source.completion_ids]
        assert step["metrics"]["completion_token_ids"] == source.completion_ids
        assert step["metrics"]["logprobs"] == source.logprobs
        assert step["message"] == source.text
    assert ids == one.trajectory.token_ids()
    assert [step.get("is_copied_context", False) for step in steps] == [True, False, False]
    assert [step.get("model_name") for step in steps] == [digest_of("p"), digest_of("p"), None]
    assert document["agent"]["model_name"] == digest_of("q")
    assert steps[0]["tool_calls"] == [
        {"tool_call_id": "call-1", "function_name": "edit", "arguments": CALL["arguments"]}
    ]
    assert steps[0]["observation"]["results"] == [
        {"source_call_id": "call-1", "content": "Result: 1", "extra": {"postloop": {"truncated": True}}}
    ]
    assert steps[1]["extra"]["postloop"]["call"] == {"name": "odd"}  # no call of ATIF, and not lost
    assert "tool_calls" not in steps[1]


def test_what_was_said_again_is_a_step_only_where_it_differs() -> None:
    said = [(s["source"], s["message"]) for s in document_of(attempt())["steps"] if s["source"] != "agent"]
    assert said == [("user", "ü \x9b31m\u202e"), ("user", "[again]"), ("system", "t")]


def test_verdict_reward_pins_and_seed_are_beside_it() -> None:
    one = attempt()
    kept = document_of(one)["extra"]["postloop"]
    assert kept["verdict"] == one.verdict.model_dump(mode="json")
    assert kept["reward"] == one.reward.model_dump(mode="json")
    assert (kept["seed"], kept["harness"], kept["outcome"]) == (2**53 + 1, digest_of("h"), {"a.py": "é"})
    large = document_of(attempt(outcome={"b": "x" * atif.OUTCOME_BYTES}))["extra"]["postloop"]
    assert (large["outcome"], large["outcome_paths"], large["outcome_digest"]) == (None, ["b"], digest_of("o"))
    scripted = document_of(attempt(sampling=Sampling(engine="scripted:gold")))
    assert not any("llm_call_count" in step for step in scripted["steps"])


def test_an_attempt_without_a_turn_is_refused() -> None:
    with pytest.raises(InputError, match=r"^rl-1: it has no turn \(died\), and an ATIF document has a step"):
        document_of(attempt((), status="error", reason="died"))


def test_a_document_of_others_is_kept_as_it_was_read() -> None:
    found = parse(data(OTHER), "f", "f")
    assert canonical(found.document) == canonical(OTHER)
    assert text_of(found.document) == text_of(OTHER)
    assert found.entry.id == f"foreign-{digest_of(OTHER)[:16]}"
    assert (found.entry.version, found.entry.steps, found.entry.agent) == ("ATIF-v1.7", 2, "a\\x1b[2J 1")
    Draft202012Validator(PUBLISHED).validate(OTHER)
    for minor in range(9):
        assert parse(data({**OTHER, "schema_version": f"ATIF-v1.{minor}"}), "f", "f").entry.version.endswith(str(minor))


Change = Callable[[dict[str, Any]], object]
REFUSED: list[tuple[Change, str]] = [
    (lambda d: d.update(schema_version="ATIF-v2.0"), "schema_version: Input should be 'ATIF-v1.0', 'ATIF-v1.1'"),
    (lambda d: d.update(steps=[]), "steps: List should have at least 1 item"),
    (lambda d: d["steps"][1].update(step_id=3), "steps[1].step_id: 3, and steps are numbered 1, 2, 3: 2"),
    (lambda d: d.pop("agent"), "agent: Field required"),
    (lambda d: d["agent"].update(nam="x"), "agent.nam: no field of ATIF; other data belongs under `extra`"),
    (lambda d: d.update({"\x1b]0;x\x07\n": 1}), "\\x1b]0;x\\x07⏎: no field of ATIF"),
    (lambda d: d["steps"][0].update(metrics={}), "steps[0]: metrics belongs to steps of an agent, the source is 'user'"),
    (lambda d: d["steps"][0].update(timestamp="noon"), "steps[0].timestamp: Invalid isoformat string: 'noon'"),
    (lambda d: d["steps"][1].update(llm_call_count=0), "steps[1]: metrics with llm_call_count 0: no model was asked"),
    (
        lambda d: d["steps"][1]["tool_calls"][0].update(tool_call_id="\x1b[1m"),
        "steps[1].observation.results[0].source_call_id: 'c' is no tool_call_id of this step",
    ),
    (
        lambda d: d["steps"][1]["observation"]["results"][1]["subagent_trajectory_ref"][0].pop("trajectory_id"),
        "steps[1].observation.results[1].subagent_trajectory_ref[0]: neither trajectory_id nor trajectory_path",
    ),
    (lambda d: d["steps"][0]["message"][0].update(source={}), "steps[0].message"),
    (lambda d: d["steps"][0]["message"][1].update(type="audio"), "steps[0].message"),
    (
        lambda d: d["subagent_trajectories"][0].pop("trajectory_id"),
        "subagent_trajectories[0].trajectory_id: missing, and an embedded trajectory needs it",
    ),
    (
        lambda d: d["subagent_trajectories"].append(d["subagent_trajectories"][0]),
        "subagent_trajectories[1].trajectory_id: 't1' is another embedded trajectory's too",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_a_rule_that_is_broken_is_named_with_its_field(change: Change, said: str) -> None:
    document = copy.deepcopy(OTHER)
    change(document)
    with pytest.raises(InputError) as refused:
        parse(data(document), "f.json", "f.json")
    line = str(refused.value)
    assert line.startswith(f"f.json: {said}")
    assert line.isprintable()
    assert len(line) < 260


HOSTILE: list[tuple[bytes, str]] = [
    (b"[" * 200_000, "nested deeper than 64 levels"),
    (data({"extra": json.loads('{"a":' * 80 + "1" + "}" * 80)}), "nested deeper than 64 levels"),
    (b'{"notes": "a", "notes": "b"}', "the key notes is in one object twice"),
    (b'{"a": NaN}', "NaN is no JSON"),
    (b'{"a": 1e999}', "no stable form: inf"),
    (b'{"a": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
    (b'{"a": "\\ud800"}', "'utf-8' codec can't encode character"),
    (b"\xff\xfe", "'utf-8' codec can't decode byte"),
    (b"", "Expecting value"),
    (b'{"a": 1} \x1b[2J', "Extra data"),
]


@pytest.mark.parametrize(("content", "said"), HOSTILE, ids=[said for _, said in HOSTILE])
def test_hostile_bytes_are_refused_in_one_line(content: bytes, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(content, "f.json", "f.json")
    assert str(refused.value).startswith(f"f.json: JSON: {said}")
    assert str(refused.value).isprintable()


def test_files_are_plain_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tmp_path / "good"
    good.mkdir()
    (good / "a.json").write_bytes(data(OTHER))
    (good / "b.json").write_bytes(json.dumps(OTHER, indent=3, sort_keys=True).encode())
    (good / "c.txt").write_text("no JSON")
    found = read_all([good, good / "a.json"])
    assert [(one.entry.source, one.document) for one in found] == [("a.json", OTHER)]  # equal values are one document
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "1.json").symlink_to(good / "a.json")
    os.mkfifo(bad / "2\x1b[m.json")
    (bad / "3.json").write_bytes(b" " * 100 + data(OTHER))
    monkeypatch.setattr(atif, "MAX_FILE_BYTES", len(data(OTHER)) + 50)
    with pytest.raises(SpecError) as refused:
        read_all([bad, tmp_path / "none.json", good / "a.json"])
    assert [line.removeprefix(f"{tmp_path}/").partition("; ")[0] for line in refused.value.problems] == [
        "bad/1.json: file: Too many levels of symbolic links",
        "bad/2\\x1b[m.json: file: no plain file",
        "bad/3.json: size: over 0 MiB, the most that is read",
        "none.json: file: No such file or directory",
    ]
    with pytest.raises(SpecError, match=r"files: no \*\.json directly in it"):
        read_all([tmp_path])
    monkeypatch.setattr(atif, "MAX_FILES", 1)
    with pytest.raises(SpecError, match="files: 2, at most 1 at once"):
        read_all([good])
    monkeypatch.undo()
    monkeypatch.setattr(atif, "MAX_TOTAL_BYTES", len(data(OTHER)))
    with pytest.raises(SpecError, match=r"b\.json: size: over 0 MiB with this file"):
        read_all([good])


def test_json_that_is_shown_cannot_move_a_cursor() -> None:
    value = {"é": "\x9b2J \u202e \U000e0001 \x7f é\n"}
    shown = printable_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(shown) == value
    assert "é" in shown
    assert shown.replace("\n", "").isprintable()

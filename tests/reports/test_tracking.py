"""Rounds in a real MLflow on SQLite: nested runs, curves with steps, traces with assessments, and never twice."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from synthetic import HOSTILE, attribution, make_view

from reports import tracking
from reports.view import RoundView
from schemas.attribution import Cost
from schemas.bucket import Route
from schemas.errors import EXIT_INFRASTRUCTURE, InputError

EXPERIMENT = "small-coder"


class Logged:
    """A round that was logged into a workspace's MLflow, and a client to look at it as a person would."""

    def __init__(self, workspace: Path, view: RoundView, experiment: str = EXPERIMENT) -> None:
        (workspace / ".postloop").mkdir(exist_ok=True)
        self.workspace, self.view, self.uri = workspace, view, tracking.default_uri(workspace)
        self.ids = tracking.log_round(self.uri, experiment, view)
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=self.uri)
        self.experiment = self.client.get_experiment_by_name(experiment).experiment_id

    def artifact(self, run: str, name: str) -> Path:
        return self.workspace / ".postloop" / "mlartifacts" / self.ids[run] / "artifacts" / name

    def runs(self, where: str = "") -> list[Any]:
        return list(self.client.search_runs([self.experiment], where))

    def traces(self, where: str | None = None, run: str | None = None) -> list[Any]:
        return list(self.client.search_traces(locations=[self.experiment], filter_string=where, run_id=run))


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    return Logged(tmp_path_factory.mktemp("workspace"), make_view())


def test_a_round_is_a_parent_run_and_its_stages_are_nested(logged: Logged) -> None:
    assert list(logged.ids) == ["round", "goal", "data", "sft", "rl", "evaluation", "backflow"]
    nested = logged.runs(f"tags.`mlflow.parentRunId` = '{logged.ids['round']}'")
    assert {run.info.run_id for run in nested} == set(logged.ids.values()) - {logged.ids["round"]}
    assert {run.info.status for run in logged.runs()} == {"FINISHED"}


def test_curves_keep_their_steps_and_gaps(logged: Logged) -> None:
    loss = logged.client.get_metric_history(logged.ids["sft"], "loss")
    assert [(m.step, m.value) for m in loss] == list(enumerate(logged.view.sft.loss, 1))  # type: ignore[union-attr]
    assert [m.step for m in logged.client.get_metric_history(logged.ids["rl"], "kl")] == list(range(2, 13))


def test_an_estimate_has_its_bounds_and_what_is_unknown_is_absent(logged: Logged) -> None:
    metrics = logged.client.get_run(logged.ids["evaluation"]).data.metrics
    pass_1 = logged.view.final()
    assert pass_1 is not None
    found = [metrics[f"held_out/rl/pass_at_1{suffix}"] for suffix in ("", "_low", "_high")]
    assert found == [pass_1.value, pass_1.low, pass_1.high]
    assert "boundary/rl/tool_calls" not in metrics
    assert "held_out/rl_minus_champion/pass_at_1" in metrics
    assert logged.client.get_run(logged.ids["round"]).data.metrics["final/pass_at_1"] == pass_1.value


def test_params_are_the_flattened_section_and_gates_are_tags(logged: Logged) -> None:
    run = logged.client.get_run(logged.ids["rl"])
    assert run.data.params["phases.0.method"] == "grpo"
    assert run.data.params["headroom.min_mixed"] == "0.15"
    assert run.data.tags["gate.headroom"] == "GO"
    assert run.data.tags["alarm.zero_spread"].startswith("step 9: 0.91")
    assert run.data.tags["postloop.record"] == logged.view.records["rl"].content_digest()


def test_records_pins_page_and_dataset_are_there(logged: Logged) -> None:
    assert logged.artifact("round", "report.html").read_text().startswith("<!doctype html>")
    pins = json.loads(logged.artifact("round", "pins.json").read_text())
    assert pins["pins"] == logged.view.pins.pins  # type: ignore[union-attr]
    assert json.loads(logged.artifact("data", "data.json").read_text())["tasks"]["train"] == 168
    inputs = logged.client.get_run(logged.ids["data"]).inputs.dataset_inputs
    assert [i.dataset.digest for i in inputs] == [logged.view.data.artifacts["tasks"].digest[:36]]  # type: ignore[union-attr]


def test_failures_are_traces_with_a_span_a_turn_call_and_verification(logged: Logged) -> None:
    traces = logged.traces(run=logged.ids["backflow"])
    assert len(traces) == 7  # eight attempts, one of them passed
    trace = next(t for t in traces if t.info.tags["postloop.trajectory"] == logged.view.attempts[1].trajectory.id)
    assert [span.name for span in trace.data.spans] == ["trajectory", "turn 1", "edit", "turn 2", "verification"]
    assert trace.data.spans[-1].outputs["checks"][1]["detail"] == "longest_run([1, 1]) gave 1, expected 2"


def test_a_bucket_finds_its_traces_with_cause_and_route_as_assessments_by_code(logged: Logged) -> None:
    bucket = logged.view.backflow.buckets[1]  # type: ignore[union-attr]
    (trace,) = logged.traces(f"tags.`postloop.bucket` = '{bucket.id}'")
    found = {one.name: one for one in trace.info.assessments}
    assert {name: one.value for name, one in found.items()} == {"bucket": bucket.cause, "route": bucket.route.value}
    sources = {(one.source.source_type, one.source.source_id) for one in found.values()}
    assert sources == {("CODE", bucket.rule)}


def test_what_experiments_found_is_on_the_trace_and_its_rule_is_the_reason(logged: Logged) -> None:
    view, said = logged.view, attribution(logged.view.attempts[0], rule="some_pass", route=Route.RL)
    begun = dataclasses.replace(view, attributions={said.trajectory: said})
    again = Logged(logged.workspace, begun, "attributed")
    (trace,) = again.traces(f"tags.`postloop.trajectory` = '{said.trajectory}'")
    backflow = view.backflow
    assert backflow is not None
    assert {name: trace.info.tags[f"postloop.{name}"] for name in ("rule", "round", "bucket", "record")} == {
        "rule": "some_pass", "round": "2", "bucket": backflow.buckets[0].id, "record": backflow.content_digest(),
    }  # fmt: skip
    root = trace.data.spans[0].attributes
    assert (root["evidence.pass_at_k"], root["evidence.task_attempts"], root["first_bad_turn"]) == (0.25, 4, 0)
    assert root["evidence.failed_tests"] == ["hidden_1"]
    assert (root["evidence.similarity"], root["evidence.nearest_task"]) == (0.42, "repair/near/arith_1")
    assert "evidence.audit_differs" in root
    assert "evidence.hinted_passes" not in root, "what is unknown is not there"
    assert root["experiment.L2.hint"] == "3 of 4 pass with a hint"
    route = next(one for one in trace.info.assessments if one.name == "route")
    assert (route.value, route.source.source_id) == ("rl", "some_pass")
    assert route.rationale == "rule some_pass: it passes now and then"


def test_what_each_rung_took_is_a_metric(logged: Logged) -> None:
    backflow = logged.view.backflow
    assert backflow is not None
    record = backflow.model_copy(update={"ladder": {"L2": Cost(experiments=3, attempts=44)}})
    view = dataclasses.replace(logged.view, records={**logged.view.records, "backflow": record}, attempts=())
    again = Logged(logged.workspace, view, "ladder")
    metrics = again.client.get_run(again.ids["backflow"]).data.metrics
    assert (metrics["ladder/L2/attempts"], metrics["ladder/L2/tokens"]) == (44, 0)


def test_every_bucket_has_a_trace_before_any_has_its_second() -> None:
    view = make_view()
    backflow = view.backflow
    assert backflow is not None
    ids = [attempt.trajectory.id for attempt in view.attempts]
    buckets = [
        backflow.buckets[0].model_copy(update={"members": ids[:6], "example": ids[0]}),
        backflow.buckets[1].model_copy(update={"members": ids[6:7], "example": ids[6]}),
    ]
    one = dataclasses.replace(view, records={"backflow": backflow.model_copy(update={"buckets": buckets})})
    assert {one.bucket_of(attempt).id for attempt in one.failed_attempts()[:2]} == {b.id for b in buckets}  # type: ignore[union-attr]


def test_the_champion_is_an_alias_in_the_registry(logged: Logged) -> None:
    version = logged.client.get_model_version_by_alias(EXPERIMENT, "champion")
    assert version.source == logged.view.rl.artifacts["checkpoint"].path  # type: ignore[union-attr]
    assert version.tags["postloop.weights"] == logged.view.evaluation.champion  # type: ignore[union-attr]


def test_logging_twice_leaves_one(logged: Logged) -> None:
    before = (len(logged.runs()), len(logged.traces()))
    assert tracking.log_round(logged.uri, EXPERIMENT, logged.view) == logged.ids
    assert tracking.log_stage(logged.uri, EXPERIMENT, logged.view, "rl") == logged.ids["rl"]
    assert (len(logged.runs()), len(logged.traces())) == before
    assert len(logged.client.get_metric_history(logged.ids["round"], "final/pass_at_1")) == 1


def test_a_stage_cut_short_is_replaced_with_its_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_TRACES_A_PAGE", 3)
    logged = Logged(tmp_path, make_view(rounds=1, stages=("goal", "backflow")))
    logged.client.delete_tag(logged.ids["backflow"], "postloop.complete")  # as a kill before the last write leaves it
    again = tracking.log_stage(logged.uri, EXPERIMENT, logged.view, "backflow")
    assert again != logged.ids["backflow"]
    assert [run.info.run_id for run in logged.runs("tags.`postloop.stage` = 'backflow'")] == [again]
    assert len(logged.traces()) == len(logged.traces(run=again)) == 7


def test_stage_after_stage_ends_with_the_page_of_the_round(logged: Logged) -> None:
    whole = make_view(rounds=1)
    begun = dataclasses.replace(whole, records={"goal": whole.records["goal"]})
    pages = len(list(logged.workspace.rglob("report.html")))
    tracking.log_stage(logged.uri, "by stage", begun, "goal")
    assert len(list(logged.workspace.rglob("report.html"))) == pages
    tracking.log_stage(logged.uri, "by stage", whole, "backflow")
    assert len(list(logged.workspace.rglob("report.html"))) == pages + 1


def test_hostile_text_is_kept_readable_and_breaks_nothing(logged: Logged) -> None:
    hostile = Logged(logged.workspace, make_view(hostile=HOSTILE), "hostile")
    (trace, *_) = hostile.traces(run=hostile.ids["backflow"])
    assert "\\x1b[2J" in trace.data.spans[1].outputs["text"]
    assert "<script>" not in hostile.artifact("round", "report.html").read_text()


def test_a_long_transcript_is_cut(logged: Logged) -> None:
    view = make_view(hostile="x" * 200_000, stages=("goal", "backflow"))
    long = Logged(logged.workspace, dataclasses.replace(view, attempts=view.attempts[:2]), "long")
    text = long.traces(run=long.ids["backflow"])[0].data.spans[1].outputs["text"]
    assert len(text) < tracking.MAX_TRACE_TEXT + 60
    assert text.endswith("more characters")


def test_trouble_with_mlflow_is_infrastructure_and_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("not a database, however long it goes on " * 40)
    with pytest.raises(tracking.TrackingError, match=r"MLflow at sqlite:.*not a database.*tracking_uri") as caught:
        tracking.log_round(f"sqlite:///{tmp_path}/mlflow.db", EXPERIMENT, make_view())
    assert caught.value.exit_code == EXIT_INFRASTRUCTURE
    assert "\n" not in str(caught.value)


def test_a_stage_without_a_record_is_refused(logged: Logged) -> None:
    with pytest.raises(InputError, match="stage rl has no record"):
        tracking.log_stage(logged.uri, EXPERIMENT, make_view(stages=("goal",)), "rl")


def test_names_become_keys_that_are_no_paths() -> None:
    assert [tracking._key(name) for name in ("pass@1", "../../etc/x", "a\x1b<b>", "..")] == [
        "pass_at_1", "_.._etc_x", "a__b_", "_",
    ]  # fmt: skip

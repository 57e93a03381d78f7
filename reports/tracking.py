"""Rounds in MLflow: a parent run a round, a nested run a stage, failures as traces, triage as an assessment on them.

MLflow shows; the records in the workspace decide. What people say there is read back by reports/triage.py, and becomes a
decision in the workspace. Whatever goes wrong here is an `InfrastructureError` that the caller reports before it goes on.
Logging is idempotent: a run carries the digest of its record and is marked complete last, so a finished stage is found and
reused, and one that a kill cut short is replaced.

Not covered: uploading checkpoints (the champion's registry version points to the artifact's path in the workspace), and
several writers of one round at once (a workspace has one writer).
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reports.page import render
from reports.text import clip, estimate, one_line, visible
from reports.view import COSTS, RoundView
from schemas.attribution import Attribution
from schemas.backflow import BackflowRecord
from schemas.base import digest_of
from schemas.bucket import Bucket
from schemas.data import DataRecord
from schemas.errors import InfrastructureError, InputError
from schemas.evaluation import EvaluationRecord
from schemas.goal import GoalRecord
from schemas.metrics import Estimate
from schemas.record import Record, StageName
from schemas.rl import RlRecord
from schemas.sft import SftRecord
from schemas.trajectory import Attempt, Turn

MAX_TRACE_TEXT = 4000  # characters of one field of a span; a trace of 10 KB costs a millisecond, one of 1 MB a hundred
_PARAM_VALUE, _TAG_VALUE, _KEY, _PARAMS_A_BATCH, _METRICS_A_BATCH = 6000, 8000, 250, 100, 1000
_TRACES_A_PAGE = 100
_SECTIONS = ("data", "sft", "rl", "evaluation", "backflow")
_COMPLETE, _RECORD, _ROUND, _STAGE = "postloop.complete", "postloop.record", "postloop.round", "postloop.stage"
_QUIET = ("mlflow", "alembic", "sqlalchemy.engine")
_VERDICT = {"status", "score", "passed", "checks", "violations", "limit_hit", "reason"}
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_CONFIGURE_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


class TrackingError(InfrastructureError):
    """MLflow did not take what it was given. The round itself is not affected."""


def default_uri(workspace: Path) -> str:
    """SQLite in the workspace's scratch folder, with the artifacts in `mlartifacts` beside it."""
    return f"sqlite:///{(workspace / '.postloop' / 'mlflow.db').resolve()}"


def log_round(uri: str, experiment: str, view: RoundView, max_traces: int | None = None) -> dict[str, str]:
    """Log what the view holds: the round, every stage that has a record, the page and the pins. Run ids by name.

    The names are `round` and the stages'. `max_traces`: of the failures that the view holds; None: all of them. Raises
    TrackingError when MLflow or its storage fails.
    """
    with _session(uri, experiment, max_traces) as log:
        parent = log.parent(view)
        ids = {"round": parent} | {stage: log.stage(view, stage, parent) for stage, _ in view.ordered()}
        log.finish_round(view, parent)
        return ids


def log_stage(uri: str, experiment: str, view: RoundView, stage: StageName, max_traces: int | None = None) -> str:
    """Log one finished stage under its round, and the round's own page when it was the last; the id of the stage's run.

    Raises InputError when the view has no such record, TrackingError when MLflow or its storage fails.
    """
    if stage not in view.records:
        raise InputError(f"round {view.round}: stage {stage} has no record to log; run it first")
    with _session(uri, experiment, max_traces) as log:
        parent = log.parent(view)
        run_id = log.stage(view, stage, parent)
        if view.complete:
            log.finish_round(view, parent)
        return run_id


@contextmanager
def _session(uri: str, experiment: str, max_traces: int | None) -> Iterator[_Log]:
    with client_of(uri) as client:
        yield _Log(client, uri, experiment, max_traces)


@contextmanager
def client_of(uri: str) -> Iterator[Any]:
    """A client on `uri`; MLflow's and its storage's failures leave as TrackingError, and its logging as it was."""
    levels = {name: logging.getLogger(name).level for name in _QUIET}
    with _translated(uri):
        import mlflow

        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.ERROR)
        previous = mlflow.get_tracking_uri()
        try:
            mlflow.set_tracking_uri(uri)  # traces know no client: they go where the process points
            yield mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
        finally:
            mlflow.set_tracking_uri(previous)
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def traces_of(client: Any, experiment: str, run_id: str | None = None) -> Iterator[Any]:
    """Every trace of an experiment, or of one run, without its spans: MLflow hands them out page by page."""
    token: str | None = None
    while True:
        page = client.search_traces(
            locations=[experiment], run_id=run_id, include_spans=False, max_results=_TRACES_A_PAGE, page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    os.environ.update(_ENVIRONMENT)
    try:
        from alembic.util.exc import CommandError
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise TrackingError(f"MLflow cannot be imported: {error}; install mlflow") from error
    try:
        yield
    except (MlflowException, SQLAlchemyError, CommandError, OSError) as error:
        shown = re.sub(r"//[^/@\s]*@", "//", uri)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        first = next((line for line in lines if re.match(r"\(\w+\.\w+\) ", line)), lines[0])  # what the database said
        raise TrackingError(
            f"MLflow at {shown}: {one_line(first, 300)}; the round is safe in its records, check runtime.tracking_uri"
        ) from error


class _Log:
    """One experiment. Every method may be called again and leaves the same runs."""

    def __init__(self, client: Any, uri: str, experiment: str, max_traces: int | None) -> None:
        self.client, self.max_traces = client, max_traces
        self.experiment = self._experiment(uri, experiment)

    def _experiment(self, uri: str, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        location = None
        if uri.startswith("sqlite:///"):
            folder = Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts"
            folder.mkdir(parents=True, exist_ok=True)
            location = folder.as_uri()
        return str(self.client.create_experiment(name, artifact_location=location))

    def _find(self, tags: Mapping[str, str]) -> list[Any]:
        where = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        return list(self.client.search_runs([self.experiment], where, max_results=100))

    def parent(self, view: RoundView) -> str:
        """The run of the round, made when it is not there. It is named by the round's goal record."""
        goal = view.goal
        if goal is None:
            raise InputError(
                f"round {view.round} has no goal record: nothing to log it under; run the goal stage first"
            )
        tags = {"postloop.kind": "round", _ROUND: str(view.round), _RECORD: goal.content_digest()}
        found = self._find(tags)
        if found:
            return str(found[0].info.run_id)
        run = self.client.create_run(self.experiment, tags=tags, run_name=f"round {view.round:04d}")
        params = {
            "goal": goal.spec.name,
            "goal_version": goal.goal_version,
            "seed": goal.spec.seed,
            "start": goal.spec.start,
        }
        self._write(run.info.run_id, params=params)
        return str(run.info.run_id)

    def stage(self, view: RoundView, stage: StageName, parent: str) -> str:
        """The finished run of a stage: the one that is there, or a new one in place of an unfinished one."""
        record = view.records[stage]
        tags = {"postloop.kind": "stage", _STAGE: stage, _ROUND: str(view.round), _RECORD: record.content_digest()}
        tags["mlflow.parentRunId"] = parent
        for run in self._find(tags):
            if run.data.tags.get(_COMPLETE) == "true":
                return str(run.info.run_id)
            self._discard(run.info.run_id)
        run_id = str(
            self.client.create_run(self.experiment, tags=tags, run_name=f"{view.round:04d} {stage}").info.run_id
        )
        measured = {k: float(v) for k, v in view.telemetry.get(stage, {}).items() if isinstance(v, int | float)}
        metrics = _metrics(record) | _numbers("telemetry", measured)
        self._write(run_id, _params(view.goal, stage), metrics, _tags(record))
        self._text(run_id, f"{stage}.json", json.dumps(record.model_dump(mode="json"), indent=2, sort_keys=True))
        if isinstance(record, DataRecord):
            self._datasets(run_id, record)
        if isinstance(record, EvaluationRecord) and record.promoted:
            self._champion(view, record, run_id)
        if stage == "backflow":
            self._traces(view, run_id)
        self.client.set_tag(run_id, _COMPLETE, "true")
        self.client.set_terminated(run_id, "FINISHED")
        return run_id

    def finish_round(self, view: RoundView, parent: str) -> None:
        """Headline metrics, pins and page on the parent; they replace those of an earlier call."""
        state = digest_of([record.content_digest() for _, record in view.ordered()])
        if self.client.get_run(parent).data.tags.get("postloop.state") != state:
            metrics = {f"final/{_key(name)}": view.final(name) for name in view.metric_names()}
            points = _points(
                metrics | {f"against_{r}": p.difference for r in ("base", "champion") if (p := view.against(r))}
            )
            points |= {f"cost/{_key(c)}": [(0, v)] for c in COSTS if (v := view.total_cost(c)) is not None}
            tags = {
                "postloop.state": state,
                "mlflow.note.content": f"pass@1 {estimate(view.final())} on {view.main_suite}",
            }
            if view.evaluation:
                tags |= {"goal_met": str(view.evaluation.goal_met), "promoted": str(view.evaluation.promoted)}
            self._write(parent, {}, points, tags)
        if view.pins is not None:
            self._text(parent, "pins.json", json.dumps(view.pins.model_dump(mode="json"), indent=2, sort_keys=True))
        self._text(parent, "report.html", render(view))
        self.client.set_terminated(parent, "FINISHED" if view.complete else "RUNNING")

    def _discard(self, run_id: str) -> None:
        """An unfinished run and its traces go: what they lack cannot be told from what they have."""
        traces = [trace.info.trace_id for trace in traces_of(self.client, self.experiment, run_id)]
        for start in range(0, len(traces), _TRACES_A_PAGE):
            self.client.delete_traces(self.experiment, trace_ids=traces[start : start + _TRACES_A_PAGE])
        self.client.delete_run(run_id)

    def _write(
        self,
        run_id: str,
        params: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Sequence[tuple[int, float]]] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """In batches: one request for a hundred params or a thousand points, not one each."""
        from mlflow.entities import Metric, Param, RunTag

        now = int(time.time() * 1000)
        points = [Metric(key, value, now, step) for key, steps in (metrics or {}).items() for step, value in steps]
        values = [Param(key[:_KEY], visible(str(value))[:_PARAM_VALUE]) for key, value in (params or {}).items()]
        marks = [RunTag(key[:_KEY], visible(value)[:_TAG_VALUE]) for key, value in (tags or {}).items()]
        for start in range(0, len(points), _METRICS_A_BATCH):
            self.client.log_batch(run_id, metrics=points[start : start + _METRICS_A_BATCH])
        for start in range(0, max(len(values), len(marks)), _PARAMS_A_BATCH):
            part = slice(start, start + _PARAMS_A_BATCH)
            self.client.log_batch(run_id, params=values[part], tags=marks[part])

    def _text(self, run_id: str, name: str, text: str) -> None:
        self.client.log_text(run_id, text.encode(errors="backslashreplace").decode(), name)

    def _datasets(self, run_id: str, record: DataRecord) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = []
        for name, artifact in sorted(record.artifacts.items()):
            source = json.dumps({"path": artifact.path, "sha256": artifact.digest})
            profile = json.dumps({"files": artifact.files, "bytes": artifact.bytes, **record.tasks}, sort_keys=True)
            dataset = Dataset(_key(name), artifact.digest[:36], "code", source, profile=profile)
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", "training")]))
        if inputs:
            self.client.log_inputs(run_id, inputs)

    def _champion(self, view: RoundView, record: EvaluationRecord, run_id: str) -> None:
        """The registry alias `champion` on a version that points to the checkpoint; a server may refuse such a path."""
        from mlflow.exceptions import MlflowException

        path = _checkpoint_path(view, record.champion)
        if view.goal is None or path is None or record.champion is None:
            return
        name = view.goal.spec.name
        try:
            if not self.client.search_registered_models(f"name = '{name}'"):
                self.client.create_registered_model(name)
            known = self.client.search_model_versions(
                f"name = '{name}' and tags.`postloop.weights` = '{record.champion}'"
            )
            version = (
                known[0]
                if known
                else self.client.create_model_version(
                    name,
                    path,
                    run_id,
                    tags={"postloop.weights": record.champion, _ROUND: str(view.round)},
                    await_creation_for=0,
                )
            )
            self.client.set_registered_model_alias(name, "champion", version.version)
        except MlflowException as error:
            self.client.set_tag(run_id, "postloop.registry", f"refused: {one_line(str(error), 300)}")

    def _traces(self, view: RoundView, run_id: str) -> None:
        """Failures as traces, their bucket as an assessment; the run says how many of how many. MLflow only warns of a lost
        trace: count them."""
        failed = view.failed_attempts()
        chosen = failed[: self.max_traces]
        for attempt in chosen:
            self._trace(view, attempt, run_id)
        found = sum(1 for _ in traces_of(self.client, self.experiment, run_id))
        if found != len(chosen):
            raise TrackingError(f"MLflow kept {found} of {len(chosen)} traces of run {run_id}; log the stage again")
        self.client.set_tag(run_id, "postloop.traces", f"{len(chosen)} of {len(failed)}")

    def _trace(self, view: RoundView, attempt: Attempt, run_id: str) -> None:
        import mlflow

        t, said = attempt.trajectory, view.attributions.get(attempt.trajectory.id)
        facts = {"family": t.family, "purpose": t.purpose.value, "seed": t.seed, "stop": t.stop}
        root = mlflow.start_span_no_context(
            "trajectory",
            span_type="AGENT",
            inputs={"task": t.task_id, "messages": _shown([m for turn in t.turns[:1] for m in turn.messages])},
            attributes=facts | (_evidence(said) if said is not None else {}),
            tags=_trace_tags(view, attempt),
            metadata={"mlflow.sourceRun": run_id},
            experiment_id=self.experiment,
        )
        for turn in t.turns:
            _turn_span(root, turn)
        verdict = attempt.verdict
        span = mlflow.start_span_no_context("verification", "EVALUATOR", root, {"outcome": _shown(t.outcome)})
        span.end(outputs=_shown(verdict.model_dump(mode="json", include=_VERDICT)))
        root.end(outputs={"passed": verdict.passed, "score": verdict.score, "reward": attempt.reward.value})
        _propose(root.trace_id, view.bucket_of(attempt), said)


def _trace_tags(view: RoundView, attempt: Attempt) -> dict[str, str]:
    """By these a label finds its way back: `postloop.record` tells this workspace's rounds from those of another."""
    t, bucket, said = attempt.trajectory, view.bucket_of(attempt), view.attributions.get(attempt.trajectory.id)
    tags = {"postloop.trajectory": t.id, _ROUND: str(view.round), "postloop.task": t.task_id}
    if view.backflow is not None:
        tags[_RECORD] = view.backflow.content_digest()
    if said is not None:
        tags |= {"postloop.cause": said.cause, "postloop.route": said.route.value, "postloop.rule": said.rule}
    if bucket is not None:
        tags |= {"postloop.bucket": bucket.id, "postloop.cause": bucket.cause, "postloop.route": bucket.route.value}
        tags.setdefault("postloop.rule", bucket.rule)
    return {name: visible(value)[:_TAG_VALUE] for name, value in tags.items()}


def _evidence(said: Attribution) -> dict[str, Any]:
    """What was found, as attributes of the trace's first span; what is unknown or empty is left out, since it is not zero."""
    plain = said.evidence.model_dump(mode="json", exclude={"trajectory", "task_id", "family", "origin", "stop"})
    facts = {f"evidence.{name}": _shown(value) for name, value in plain.items() if value not in (None, "", [])}
    notes = {f"experiment.{one.rung.value}.{one.name}": _shown(one.impossible or one.said) for one in said.experiments}
    first = {} if said.first_bad_turn is None else {"first_bad_turn": said.first_bad_turn}
    return {**facts, **notes, **first, "undecided": list(said.undecided), "also": list(said.also)}


def _propose(trace: str, bucket: Bucket | None, said: Attribution | None) -> None:
    """The cause and the route that code proposes, as assessments: a person's own ones of the name `route` overrule them."""
    import mlflow
    from mlflow.entities import AssessmentSource

    if said is not None:
        rule, cause, route, because = said.rule, said.cause, said.route.value, f": {said.because}"
    elif bucket is not None:
        rule, cause, route, because = bucket.rule, bucket.cause, bucket.route.value, f" routes {bucket.cause} so"
    else:
        return
    marks = {"bucket": bucket.id, "rules": bucket.rules[:12]} if bucket is not None else {}
    if bucket is not None and bucket.overridden_by:
        because += f"; decision {bucket.overridden_by} gives the bucket to {bucket.route.value}"
    for name, value in (("bucket", cause), ("route", route)):
        mlflow.log_feedback(
            trace_id=trace,
            name=name,
            value=value,
            source=AssessmentSource(source_type="CODE", source_id=visible(rule)[:_KEY]),
            rationale=visible(f"rule {rule}{because}"),
            metadata={**marks, "route": route},
        )


def _turn_span(root: Any, turn: Turn) -> None:
    import mlflow

    span = mlflow.start_span_no_context(f"turn {turn.index + 1}", "LLM", root, {"messages": _shown(turn.messages)})
    if turn.call is not None:
        name = visible(str(turn.call.get("name", "call")))[:60]
        tool = mlflow.start_span_no_context(name, "TOOL", span, _shown(turn.call))
        tool.end(
            outputs=_shown({"observation": turn.observation, "error": turn.tool_error, "forbidden": turn.forbidden})
        )
    span.end(outputs=_shown({"text": turn.text, "stop": turn.stop, "parse_error": turn.parse_error}))


def _shown(value: Any) -> Any:
    """Plain data with every text made visible and cut to MAX_TRACE_TEXT."""
    if isinstance(value, str):
        return clip(visible(value[: MAX_TRACE_TEXT + 1]), MAX_TRACE_TEXT)
    if isinstance(value, Mapping):
        return {visible(str(key))[:_KEY]: _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return value


def _checkpoint_path(view: RoundView, weights: str | None) -> str | None:
    for record in (view.rl, view.sft):
        if record is not None and record.checkpoint is not None and record.checkpoint.weights == weights:
            artifact = record.artifacts.get("checkpoint") or next(iter(record.artifacts.values()), None)
            return artifact.path if artifact else None
    return None


def _params(goal: GoalRecord | None, stage: StageName) -> dict[str, str]:
    """The stage's section of the spec, flattened: `phases.0.steps`. The goal stage has what no other section has."""
    if goal is None:
        return {}
    if stage == "goal":
        plain = goal.spec.model_dump(mode="json", exclude={*_SECTIONS, "runtime"})
    else:
        plain = getattr(goal.spec, stage).model_dump(mode="json")
    return {_key(name): value for name, value in _flat(plain)}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _flat(item, f"{name}.{index}")
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _tags(record: Record) -> dict[str, str]:
    tags = {"postloop.key": record.key}
    if record.skipped:
        tags["postloop.skipped"] = record.skipped
    if record.reused_from is not None:
        tags["postloop.reused_from"] = str(record.reused_from)
    for gate in record.gates:
        tags[f"gate.{_key(gate.name)}"] = gate.decision.value
        tags[f"gate.{_key(gate.name)}.because"] = gate.because
    for alarm in record.alarms:
        tags[f"alarm.{_key(alarm.name)}"] = (
            f"step {alarm.step}: {alarm.value:g} (threshold {alarm.threshold:g}): {alarm.meaning}"
        )
    for artifact in record.artifacts.values():
        tags[f"artifact.{_key(artifact.name)}"] = artifact.digest
    return tags


def _metrics(record: Record) -> dict[str, list[tuple[int, float]]]:
    """Metric name -> (step, value) pairs: curves by optimizer step from 1, everything else at step 0."""
    points: dict[str, list[tuple[int, float]]] = {"infrastructure_errors": [(0, float(record.infrastructure_errors))]}
    for gate in record.gates:
        points |= _points({f"gate/{_key(gate.name)}/{_key(c.name)}": c.estimate for c in gate.conditions})
    if isinstance(record, SftRecord):
        points |= _curves({"loss": record.loss})
    elif isinstance(record, RlRecord):
        points |= _curves(record.curves)
        points |= _numbers("sampler_gap", record.sampler_gap)
    elif isinstance(record, DataRecord):
        points |= _numbers("tasks", record.tasks) | _numbers("demonstrations", record.demonstrations)
        points |= _numbers("", {"quarantined": sum(record.quarantined.values()), "routed_tasks": record.routed_tasks})
    elif isinstance(record, EvaluationRecord):
        points |= _evaluation_points(record)
    elif isinstance(record, BackflowRecord):
        points |= _numbers("", {"failures": record.failures, "attempts": record.attempts})
        points |= _points({f"bucket/{b.cause}/{b.family}": b.measured for b in record.buckets})
        points |= _points({f"change/{c.cause}/{c.family}": c.difference for c in record.changes})
        for rung, cost in record.ladder.items():
            points |= _numbers(f"ladder/{_key(rung)}", cost.model_dump())
    return points


def _evaluation_points(record: EvaluationRecord) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, Estimate | None] = {}
    for result in record.results:
        at = f"{_key(result.suite)}/{result.policy}"
        found |= {f"{at}/{_key(name)}": value for name, value in result.metrics.items()}
        found |= {f"{at}/family/{_key(name)}": value for name, value in result.by_family.items()}
    for pair in record.paired:
        found[f"{_key(pair.suite)}/{_key(pair.candidate)}_minus_{_key(pair.reference)}/{_key(pair.metric)}"] = (
            pair.difference
        )
    return _points(found)


def _points(estimates: Mapping[str, Estimate | None]) -> dict[str, list[tuple[int, float]]]:
    """Value, `_low` and `_high` of each estimate; without data nothing is logged, since nothing is not zero."""
    points: dict[str, list[tuple[int, float]]] = {}
    for name, found in estimates.items():
        for suffix, value in (("", found.value), ("_low", found.low), ("_high", found.high)) if found else ():
            if value is not None and math.isfinite(value):
                points[f"{name}{suffix}"] = [(0, value)]
    return points


def _curves(curves: Mapping[str, Sequence[float | None]]) -> dict[str, list[tuple[int, float]]]:
    return {
        _key(n): [(i, v) for i, v in enumerate(c, 1) if v is not None and math.isfinite(v)] for n, c in curves.items()
    }


def _numbers(prefix: str, values: Mapping[str, float]) -> dict[str, list[tuple[int, float]]]:
    return {
        f"{prefix}/{_key(n)}" if prefix else _key(n): [(0, float(v))] for n, v in values.items() if math.isfinite(v)
    }


def _key(name: str) -> str:
    """A name that MLflow takes and that is no path: `pass@1` becomes `pass_at_1`."""
    clean = re.sub(r"[^A-Za-z0-9_.\- ]", "_", name.replace("@", "_at_"))
    return (clean.strip(". ") or "_")[:200]

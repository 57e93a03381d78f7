"""What people said of failures in MLflow: HUMAN assessments on traces, read back as labels. Nothing is decided here.

A label is an assessment named `route` (one of the routes), `bucket` (one of the causes) or `approve` (true or false) that a
person gave a failure's trace, in the page or by `mlflow.log_feedback`. What code proposed has the same names and another kind
of source, and is no label; a person who edits it in the page overrides it by one of their own.

Not covered: assessments that were replaced or deleted, which MLflow does not give; expectations, which are about answers;
`mlflow.update_assessment` on what code proposed, which keeps code as its source and so says nobody's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reports.text import one_line
from reports.tracking import client_of, traces_of

NAMES = ("route", "bucket", "approve")


@dataclass(frozen=True)
class Label:
    """`record`: digest of the backflow record that the trace was made from; tags that a trace lacks are empty. `cause`: of a
    label `route` that was said as a corrected `bucket`."""

    trace: str
    assessment: str
    name: str
    value: object
    who: str
    when: datetime
    rationale: str
    trajectory: str
    bucket: str
    round: str
    record: str
    cause: str = ""

    def said(self) -> str:
        """For a terminal: whoever reaches MLflow writes values, names and tags."""
        who = one_line(self.who, 40) or "nobody named"
        bucket = f"bucket {one_line(repr(self.cause), 60)}, so " if self.cause else ""
        return f"{bucket}{self.name} {one_line(repr(self.value), 60)} by {who} on {one_line(self.trajectory or self.trace, 60)}"


def read_assessments(uri: str, experiment: str) -> list[Label]:
    """Every label of people on the traces of an experiment, oldest first; none where there is no such experiment yet.

    Raises TrackingError when MLflow or its storage fails.
    """
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return []  # to look must not make a database
    with client_of(uri) as client:
        found = client.get_experiment_by_name(experiment)
        traces = traces_of(client, str(found.experiment_id)) if found is not None else ()
        labels = [label for trace in traces for label in _labels(trace.info)]
    return sorted(labels, key=lambda label: (label.when, label.assessment))


def _labels(info: Any) -> Iterator[Label]:
    for one in info.assessments or ():
        human = one.source is not None and one.source.source_type == "HUMAN"
        if one.name not in NAMES or one.feedback is None or not human or one.valid is False:
            continue
        yield Label(
            trace=str(info.trace_id),
            assessment=str(one.assessment_id),
            name=one.name,
            value=one.feedback.value,
            who=str(one.source.source_id or ""),
            when=datetime.fromtimestamp((one.last_update_time_ms or one.create_time_ms or 0) / 1000, UTC),
            rationale=str(one.rationale or "").strip(),
            **{
                name: str(info.tags.get(f"postloop.{name}", "")) for name in ("trajectory", "bucket", "round", "record")
            },
        )

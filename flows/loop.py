"""The round flow: six stage flows in order, on one workspace, one writer at a time.

A stage whose record is written is not entered: a killed round goes on where it stopped. After each stage MLflow is told;
trouble there is reported and never loses the round.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from prefect import flow

from flows.approval import wait_for_people
from flows.backflow import backflow_flow
from flows.data import data_flow
from flows.decide import take_in_labels
from flows.evaluation import evaluation_flow
from flows.goal import goal_flow
from flows.review import escalation, track
from flows.rl import rl_flow
from flows.running import held, runner
from flows.sft import sft_flow
from flows.stopping import check
from schemas.errors import InfrastructureError
from schemas.record import STAGES, StageName
from stages.rounds import open_round
from stages.spec import load_spec
from stages.workspace import Workspace

FLOWS: dict[StageName, Any] = {
    "goal": goal_flow,
    "data": data_flow,
    "sft": sft_flow,
    "rl": rl_flow,
    "evaluation": evaluation_flow,
    "backflow": backflow_flow,
}


@flow(name="round", persist_result=False, validate_parameters=False)
def round_flow(workspace: str, until: StageName | None = None, quiet: bool = False, track_runs: bool = True) -> int:
    """Finish the open round, or add one. Returns its number. `until` stops after that stage."""
    _hear_people(Workspace.open(Path(workspace)), track_runs)
    with held(Path(workspace)) as space:
        number = _number(space)
        run_round(space, number, until, quiet, track_runs)
    return number


def _number(space: Workspace) -> int:
    return open_round(space) or (space.rounds()[-1] + 1 if space.rounds() else 1)


def _hear_people(space: Workspace, track_runs: bool) -> None:
    """Before a round begins: what people said in MLflow becomes decisions, and where the spec says so they are waited for.

    Without the workspace's lock, so that they can use its commands meanwhile.
    """
    number = _number(space)
    if number == 1 or space.has(number, "goal"):
        return
    if track_runs:
        take_in_labels(space)
    wait_for_people(space, number, load_spec(space.root / "goal.yaml").backflow)


def _tell(space: Workspace, number: int, stage: StageName) -> None:
    try:
        track(space, number, stage)
    except InfrastructureError as error:
        print(f"postloop: {error}; the round goes on", file=sys.stderr)


def run_round(space: Workspace, number: int, until: StageName | None, quiet: bool, track_runs: bool) -> None:
    """The caller holds the workspace's lock."""
    workers = load_spec(space.root / "goal.yaml").runtime.workers
    for stage in STAGES:
        check()
        if not space.has(number, stage):
            FLOWS[stage].with_options(task_runner=runner(workers))(str(space.root), number, quiet)
        if track_runs:  # also a stage that a killed run recorded and did not tell of: telling twice leaves one run
            _tell(space, number, stage)
        if stage == until:
            break
    if space.has(number, STAGES[-1]) and (line := escalation(space, number)):
        print(f"postloop: {line}", file=sys.stderr)

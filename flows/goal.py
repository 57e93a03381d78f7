"""The goal flow: pin what the round is about. WHEN it runs; WHAT it does is in stages/goal.py."""

from __future__ import annotations

from prefect import flow

from flows.running import stage_in_flow
from schemas.record import Record


@flow(name="goal", persist_result=False, validate_parameters=False)
def goal_flow(workspace: str, round: int, quiet: bool = False) -> Record:
    """Bring stage goal of a round to its record. Parameters: folder of the workspace, number of the round from 1."""
    return stage_in_flow("goal", workspace, round, quiet)

"""The data flow: tasks and demonstrations. WHEN it runs; WHAT it does is in stages/data.py."""

from __future__ import annotations

from prefect import flow

from flows.running import stage_in_flow
from schemas.record import Record


@flow(name="data", persist_result=False, validate_parameters=False)
def data_flow(workspace: str, round: int, quiet: bool = False) -> Record:
    """Bring stage data of a round to its record. Parameters: folder of the workspace, number of the round from 1."""
    return stage_in_flow("data", workspace, round, quiet)

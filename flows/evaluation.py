"""The evaluation flow: independent measurement and promotion. WHEN it runs; WHAT it does is in stages/evaluation.py."""

from __future__ import annotations

from prefect import flow

from flows.running import stage_in_flow
from schemas.record import Record


@flow(name="evaluation", persist_result=False, validate_parameters=False)
def evaluation_flow(workspace: str, round: int, quiet: bool = False) -> Record:
    """Bring stage evaluation of a round to its record. Parameters: folder of the workspace, number of the round from 1."""
    return stage_in_flow("evaluation", workspace, round, quiet)

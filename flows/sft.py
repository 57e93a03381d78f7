"""The sft flow: the cold start. WHEN it runs; WHAT it does is in stages/sft.py."""

from __future__ import annotations

from prefect import flow

from flows.running import stage_in_flow
from schemas.record import Record


@flow(name="sft", persist_result=False, validate_parameters=False)
def sft_flow(workspace: str, round: int, quiet: bool = False) -> Record:
    """Bring stage sft of a round to its record. Parameters: folder of the workspace, number of the round from 1."""
    return stage_in_flow("sft", workspace, round, quiet)

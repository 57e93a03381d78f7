"""The rl flow: RL behind its gate. WHEN it runs; WHAT it does is in stages/rl.py."""

from __future__ import annotations

from prefect import flow

from flows.running import stage_in_flow
from schemas.record import Record


@flow(name="rl", persist_result=False, validate_parameters=False)
def rl_flow(workspace: str, round: int, quiet: bool = False) -> Record:
    """Bring stage rl of a round to its record. Parameters: folder of the workspace, number of the round from 1."""
    return stage_in_flow("rl", workspace, round, quiet)

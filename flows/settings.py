"""Environment of a run, set before Prefect, MLflow or a model library is imported. Nothing phones home.

A server named by PREFECT_API_URL is used; without one Prefect runs in this process, with its files in the workspace.
"""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path

QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",  # a failed task is told once, by the command line
    "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_TASKS_REFRESH_CACHE": "false",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}


def prepare(workspace: Path) -> None:
    """Set what is not set. Prefect's own files go under the workspace's .postloop, which may be deleted at any time."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    for told_by_us in ("EventsWorker", "mlflow.store.db.utils"):  # no level of theirs reaches these
        logging.getLogger(told_by_us).setLevel(logging.CRITICAL)
    home = Path(os.environ.setdefault("PREFECT_HOME", str(workspace / ".postloop" / "prefect")))
    home.mkdir(parents=True, exist_ok=True)  # Prefect makes only the last folder, and its server needs it


def collect_rarely() -> None:
    """For a process of ours, before it imports much: a sixth of that time went into 1,844 looks for garbage cycles.

    Often enough still that a cycle that holds tensors does not outlive the step that made it.
    """
    gc.set_threshold(10_000, 20, 10)


def cache_folder(workspace: Path) -> Path:
    """Models, images and seed data: derived, shared by the workspaces of a machine when POSTLOOP_CACHE names a folder."""
    return Path(os.environ.get("POSTLOOP_CACHE") or workspace / ".postloop" / "cache").resolve()

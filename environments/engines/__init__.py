"""Sandbox engines: where a command runs. `open_engine` is the only place that knows their names."""

from __future__ import annotations

from environments.engines.base import Engine, Outcome
from schemas.errors import InputError

__all__ = ["ENGINES", "Engine", "Outcome", "open_engine"]

ENGINES = ("bubblewrap", "docker")


def open_engine(name: str) -> Engine:
    """The engine of that name, ready to run. Raises InputError (unknown name), SandboxError (it cannot work here)."""
    if name == "bubblewrap":
        from environments.engines.bubblewrap import BubblewrapEngine

        return BubblewrapEngine()
    if name == "docker":
        raise InputError("engine docker: not built yet, it will need the extra `docker`; use bubblewrap")
    raise InputError(f"engine {name!r} is unknown; known are {', '.join(ENGINES)}")

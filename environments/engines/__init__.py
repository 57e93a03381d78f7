"""Sandbox engines: where a command runs. `open_engine` is the only place that knows their names."""

from __future__ import annotations

from environments.engines.base import Engine, Outcome, Sandbox, SandboxEngine, Snapshot, missing
from schemas.errors import InputError

__all__ = ["ENGINES", "Engine", "Outcome", "Sandbox", "SandboxEngine", "Snapshot", "missing", "open_engine"]

ENGINES = ("bubblewrap", "docker")


def open_engine(name: str, runtime: str | None = None) -> SandboxEngine:
    """The engine of that name, ready to run; `runtime` is Docker's, e.g. runsc, and its default when None.

    Raises InputError (an unknown name or runtime, a missing extra), SandboxError (it cannot work here).
    """
    if name not in ENGINES:
        raise InputError(f"engine {name!r} is unknown; known are {', '.join(ENGINES)}")
    if name == "docker":
        return _open_docker(runtime)
    if runtime is not None:
        raise InputError(
            f"engine bubblewrap: it has no runtime to choose, asked for {runtime!r}; use docker or leave it out"
        )
    from environments.engines.bubblewrap import BubblewrapEngine

    return BubblewrapEngine()


def _open_docker(runtime: str | None) -> SandboxEngine:
    try:
        from environments.engines.docker import DockerEngine
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("docker", "requests", "urllib3"):
            raise
        remedy = "install the extra: pip install 'postloop[docker]'"
        raise InputError(f"engine docker: the Python package {error.name} is not installed; {remedy}") from None
    return DockerEngine(runtime)

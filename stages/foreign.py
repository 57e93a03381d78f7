"""A foreign task run: an agent's side over its image, the difference of the tree, and the task's own tests in a fresh container.

The reward is what the task's script writes, beside the attempt's files and as the user that it asks for. So the verdict
says trust: foreign, and nothing foreign is trained or measured on in a round. What is ours is kept: a reward that is no
number in 0..1 is a violation, a limit that the tests hit counts against the attempt only if it recurs, and an attempt
without a readable reward is its own failure only where the start tree gets one on the same machine. Else it is an error.

Not covered: networks (there is none), GPUs, tasks of several containers or with a separate one for the tests, models as agents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from environments.formats.folder import read, shown
from environments.formats.foreign import (
    Difference,
    TooMuch,
    command_of,
    limits_of,
    nothing,
    refuse,
    reward_of,
    subfolder,
    variables_of,
)
from environments.formats.foreign_docker import Command, Ended, ForeignDocker, Tested
from environments.formats.harbor import config_of
from schemas.base import Digest, digest_of
from schemas.errors import InputError, SandboxError
from schemas.execution import Limits
from schemas.harbor import Config, Folder, FolderFile, HarborTask, Trust
from schemas.verdict import Status, Verdict, Violation

RULES = 1  # grows when the same outcome could get another verdict
ORACLE, NOP = "oracle", "nop"
AGENT_S = 900.0  # where task.toml names no time for the agent
TRIES = 2


@dataclass(frozen=True)
class ForeignRun:
    """`agent_ended`: how the agent's side ended. `left_out`: changes that are no part of the outcome, and why."""

    verdict: Verdict
    image: str
    agent_ended: str
    tests_ended: str
    paths: int = 0
    left_out: list[str] = field(default_factory=list)


def run(made: HarborTask, agent: str, docker: ForeignDocker) -> ForeignRun:
    """`agent`: oracle (the folder's solution/solve.sh), nop, or a folder whose files are laid over the tree.

    Raises InputError (a declared task, no such agent, more than is run here), SandboxError (no image, a broken daemon).
    """
    task = made.task.id
    if made.trust is not Trust.FOREIGN:
        raise InputError(
            f"task {task}: declared, so rounds run it; prove it with `postloop tasks validate --only {task}`"
        )
    try:
        config = config_of(made.folder)
        refuse(made.folder, config)
        side, tests = _agent_side(made.folder, config, agent), _tests_side(made.folder, config)
    except InputError as error:
        raise InputError(f"task {task}: {error}") from None
    image = docker.image(task, made.folder, config)
    names = _names(made, image, tests.limits)
    try:
        ended, outcome = _act(docker, image, side)
    except TooMuch as error:
        return ForeignRun(
            _failed(names, digest_of(str(error)), "too_large", str(error)), image, "too much", "did not run"
        )
    if ended is not None and ended.stop == "start":
        raise SandboxError(
            f"task {task}: the agent's side does not start: {ended.said}; is its interpreter in the image?"
        )
    verdict, tests_ended = _judge(docker, image, outcome, tests, names)
    said = "did not run" if ended is None else str(ended)
    return ForeignRun(verdict, image, said, tests_ended, outcome.paths, outcome.left_out)


def _act(docker: ForeignDocker, image: str, side: Command) -> tuple[Ended | None, Difference]:
    """Run the agent's side. A tree that twice cannot be read where the start tree can is too much, not infrastructure."""
    for _ in range(TRIES):
        try:
            return docker.changed(image, side)
        except SandboxError as error:
            problem = str(error)
    docker.changed(image, side._replace(argv=[], files={}))  # raises when it is the machine
    raise TooMuch(f"its tree cannot be read, the start tree can: {problem}")


# --- the two sides -------------------------------------------------------------------------------------------------


def _agent_side(folder: Folder, config: Config, agent: str) -> Command:
    files: dict[str, FolderFile] = {}
    argv: list[str] = []
    if agent == ORACLE:
        argv = command_of(folder, "solution/solve.sh")
        files = _below(folder, "solution")
    elif agent != NOP:
        if not Path(agent).is_dir():
            raise InputError(f"--agent {shown(agent)}: neither {ORACLE}, {NOP} nor a folder; name one of them")
        files = read(Path(agent)).files
    variables = variables_of(config.environment.env, config.solution.env if agent == ORACLE else {})
    limits = limits_of(config.environment, config.agent.timeout_sec or AGENT_S)
    user, at_work = _user(config.agent.user), agent not in (ORACLE, NOP)
    return Command(argv, files, at_work, user, config.environment.workdir, variables, limits)


def _tests_side(folder: Folder, config: Config) -> Command:
    variables = variables_of(config.environment.env, config.verifier.env)
    limits = limits_of(config.environment, config.verifier.timeout_sec)
    argv, files, user = command_of(folder, "tests/test.sh"), _below(folder, "tests"), _user(config.verifier.user)
    return Command(argv, files, False, user, config.environment.workdir, variables, limits)


def _below(folder: Folder, top: str) -> dict[str, FolderFile]:
    return {f"{top}/{path}": file for path, file in subfolder(folder, top).items()}


def _user(named: str | int | None) -> str:
    """Empty: the image's own."""
    return "" if named is None else str(named)


# --- the verdict ---------------------------------------------------------------------------------------------------


def _names(made: HarborTask, image: str, limits: Limits) -> dict[str, Any]:
    tests = {path: file.digest() for path, file in subfolder(made.folder, "tests").items()}
    return {
        "task": made.task.digest(),
        "image": image.removeprefix("sha256:"),
        "limits": limits.digest(),
        "verifier": digest_of([RULES, tests]),
        "trust": "foreign",
    }


def _judge(
    docker: ForeignDocker, image: str, outcome: Difference, tests: Command, names: dict[str, Any]
) -> tuple[Verdict, str]:
    """The verdict, and how the tests ended. What a second try does not heal is held against the start tree."""
    tested = None
    for _ in range(TRIES):
        tested, problem = _try(docker, image, outcome, tests)
        if tested is not None and problem is None:
            return _scored(names, outcome.digest, tested), str(tested.ended)
    said = str(tested.ended) if tested else "did not run"
    start, start_problem = _try(docker, image, nothing(), tests)
    if start is None or start_problem is not None:
        reason = f"{problem}; so does the start tree: {start_problem}"
        return Verdict(status=Status.ERROR, reason=reason[:500], outcome=outcome.digest, **names), said
    if tested is not None and tested.ended.stop in ("wall", "memory"):
        return _failed(names, outcome.digest, None, problem or "", tested.ended.stop), said
    return _failed(names, outcome.digest, "no_reward", problem or ""), said


def _try(docker: ForeignDocker, image: str, outcome: Difference, tests: Command) -> tuple[Tested | None, str | None]:
    """What came of it, and why that is no result; both None never."""
    try:
        tested = docker.tested(image, outcome, tests)
    except SandboxError as error:
        return None, str(error)
    if tested.ended.stop in ("wall", "disk", "start"):
        return tested, f"the tests ended by {tested.ended}"
    return tested, f"the tests leave no reward ({tested.ended})" if tested.reward is None else None


def _scored(names: dict[str, Any], outcome: Digest, tested: Tested) -> Verdict:
    assert tested.reward is not None
    score, problem = reward_of(*tested.reward)
    if problem is not None:
        return _failed(names, outcome, "not_a_score", problem)
    hit = "memory" if tested.ended.stop == "memory" else None
    return Verdict(status=Status.SCORED, score=score, passed=score == 1, limit_hit=hit, outcome=outcome, **names)


def _failed(
    names: dict[str, Any], outcome: Digest, kind: str | None, detail: str, hit: Literal["wall", "memory"] | None = None
) -> Verdict:
    violations = [Violation(kind=kind, detail=detail[:200])] if kind else []
    return Verdict(
        status=Status.SCORED, score=0.0, passed=False, violations=violations, limit_hit=hit, outcome=outcome, **names
    )  # fmt: skip

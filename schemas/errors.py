"""The one tree of errors, named by boundary. The class decides the exit code and whether a retry may help.

    PostloopError
    ├── InputError            2  the person's spec, id or file is wrong; nothing was changed
    │   ├── SpecError            one or more `file:line: field: problem; remedy` lines
    │   └── PinMismatch          an operation needs equal pins and they differ
    ├── IntegrityError        2  stored content does not match its digest
    └── InfrastructureError   3  the machine, not the model: retried within a budget, never a zero
        ├── SandboxError         the sandbox could not be started, died, or did not answer
        └── SamplerError         the sampler's server or device failed

A message has the subject, the two values and the next step, in one line. A bad rollout is data, not an exception.
"""

from __future__ import annotations

EXIT_DONE, EXIT_NO, EXIT_INPUT, EXIT_INFRASTRUCTURE = 0, 1, 2, 3


class PostloopError(Exception):
    exit_code = EXIT_INFRASTRUCTURE


class InputError(PostloopError):
    exit_code = EXIT_INPUT


class SpecError(InputError):
    """Carries every problem found, one printable line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class PinMismatch(InputError):
    def __init__(self, operation: str, pin: str, recorded: str, present: str, remedy: str) -> None:
        super().__init__(f"{operation}: pin {pin} differs: recorded {recorded}, now {present}; {remedy}")
        self.pin = pin


class IntegrityError(PostloopError):
    exit_code = EXIT_INPUT


class InfrastructureError(PostloopError):
    """Only what the attempt could not have caused."""


class WorkspaceBusy(InfrastructureError):
    """Another process writes there: nothing was wrong with what was asked, and later it can be done."""


class SandboxError(InfrastructureError):
    pass


class SamplerError(InfrastructureError):
    pass

"""A second system-call filter, for an engine whose own first process has the same user as the command.

Covered: changing the limits, the scheduling or the priority of another process, which the kernel allows between processes
of one user. Not covered: everything else; see seccomp.py, which is installed too.
"""

from __future__ import annotations

import errno
import platform
import struct

from schemas.errors import SandboxError

_LOAD, _JUMP_EQ, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24  # offsets in seccomp_data
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# The first argument of each is a process, 0 for the caller.
_CALLS = {
    "x86_64": {"sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203, "prlimit64": 302, "sched_setattr": 314},
    "aarch64": {"sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "prlimit64": 261, "sched_setattr": 274},
}  # fmt: skip
# Its first argument says what the second one names: 0 a process, else a group or a user, which the first process belongs to.
_SETPRIORITY = {"x86_64": 141, "aarch64": 140}
_Line = tuple[int, int, int, int]


def guard_filter(machine: str | None = None) -> bytes:
    """The program as an array of `struct sock_filter`. Raises SandboxError on an architecture it does not know."""
    machine = machine or platform.machine()
    if machine not in _AUDIT:
        raise SandboxError(f"no system-call filter for {machine}: known are {', '.join(_AUDIT)}; run on one of these")
    numbers = sorted(_CALLS[machine].values())
    allow = (_RETURN, _ALLOW, 0, 0)
    of_itself = [*_only_zero(_ARG0), allow]
    code = [(_LOAD, _ARCH, 0, 0), (_JUMP_EQ, _AUDIT[machine], 1, 0), allow, (_LOAD, _NR, 0, 0)]
    code += [(_JUMP_EQ, number, len(numbers) + 1 - index, 0) for index, number in enumerate(numbers)]
    code += [(_JUMP_EQ, _SETPRIORITY[machine], 1 + len(of_itself), 0), allow]
    code += [*of_itself, *_only_zero(_ARG0), *_only_zero(_ARG1), allow]
    return b"".join(struct.pack("<HBBI", word, yes, no, value) for word, value, yes, no in code)


def _only_zero(argument: int) -> list[_Line]:
    return [(_LOAD, argument, 0, 0), (_JUMP_EQ, 0, 1, 0), (_RETURN, _REFUSE, 0, 0)]

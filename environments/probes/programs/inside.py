"""Shared by the probe programs, which run inside a sandbox: what was tried, what it reached, which doors stand open.

A message is one JSON line on stdout and in report.jsonl, since some programs flood the one and some fill the other:
{"tried", "reached"}   reached is what it got, None when it was refused
{"door", "open"}       a system call that is answered, though nothing needs it: no escape yet, but more kernel to attack
{"measured", "value"}  how much of a resource it got
"""

import ctypes
import errno
import json
import os
import platform
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
MACHINE = platform.machine()
REFUSALS = {errno.EPERM, errno.ENOSYS, errno.EACCES}
X86 = MACHINE == "x86_64"


def tell(**message):
    line = json.dumps(message).encode() + b"\n"
    for place in ("/proc/self/fd/1", "report.jsonl"):
        try:
            fd = 1 if place.startswith("/proc") else os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(fd, line)
            if fd != 1:
                os.close(fd)
        except OSError:
            continue


def attempt(what, function, *args):
    """Reached when `function` gives anything true; whatever it raises is a refusal."""
    try:
        got = function(*args)
    except (OSError, ValueError, MemoryError, EOFError, OverflowError) as error:
        tell(tried=what, reached=None, why=why(error))
        return None
    tell(tried=what, reached=str(got)[:200] if got else None)
    return got


def why(error):
    return errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)


def measure(what, value):
    tell(measured=what, value=value)


def syscall(x86_64, aarch64, *args):
    """(result, errno) of a call by its number; a number of None: this machine has no such call."""
    number = x86_64 if X86 else aarch64
    if number is None:
        return -1, errno.ENOSYS
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return result, ctypes.get_errno()


def door(what, x86_64, aarch64, *args):
    """A call with arguments that make it do nothing. Closed when the call itself is refused, not its arguments."""
    result, code = syscall(x86_64, aarch64, *args)
    tell(door=what, open=not (result == -1 and code in REFUSALS), why=errno.errorcode.get(code, "0"))
    return result


def facts():
    return json.loads(sys.stdin.read() or "{}")


def main(programs):
    """`python FILE.py NAME NONCE` runs programs[NAME](facts from stdin, nonce)."""
    name, nonce = sys.argv[1:3]
    programs[name](facts(), nonce)
    tell(tried=f"{name}: ran to its end", reached=None)

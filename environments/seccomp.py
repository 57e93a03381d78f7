"""The system-call filter of a sandbox: classic BPF, written by hand, for x86_64 and aarch64.

Covered: what widens the kernel's attack surface or undoes isolation (mount family, namespaces, ptrace and its kin,
bpf, io_uring, perf, keyrings, modules, clocks, userfaultfd, file handles), TIOCSTI and TIOCLINUX, and every socket
family but UNIX, IPv4, IPv6 and netlink: a virtual machine's vsock reaches the host from inside a network namespace.
A refused call answers EPERM (clone3: ENOSYS, so that the C library falls back to clone, whose flags can be inspected).
Not covered: arguments behind pointers, and calls newer than this table, which the kernel's own permission checks guard.
"""

from __future__ import annotations

import errno
import platform
import struct

from schemas.errors import SandboxError

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24  # offsets in seccomp_data; the low halves of the arguments (little endian)
_X32 = 0x40000000
# CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | NEWTIME
_NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK

# Since 424 both architectures share the numbers: pidfd_send_signal and clone3 stay out of this list.
_DENIED_NEW = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "statmount": 457, "listmount": 458,
    "open_tree_attr": 467,
}  # fmt: skip
_DENIED = {
    "x86_64": {
        "ptrace": 101, "syslog": 103, "personality": 135, "uselib": 134, "vhangup": 153, "modify_ldt": 154,
        "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165,
        "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171,
        "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179, "lookup_dcookie": 212,
        "clock_settime": 227, "mbind": 237, "set_mempolicy": 238, "kexec_load": 246, "add_key": 248,
        "request_key": 249, "keyctl": 250, "migrate_pages": 256, "unshare": 272, "move_pages": 279,
        "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304,
        "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
        "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    },
    "aarch64": {
        "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "vhangup": 58,
        "quotactl": 60, "acct": 89, "personality": 92, "kexec_load": 104, "init_module": 105, "delete_module": 106,
        "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142, "sethostname": 161, "setdomainname": 162,
        "settimeofday": 170, "adjtimex": 171, "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224,
        "swapoff": 225, "mbind": 235, "set_mempolicy": 237, "migrate_pages": 238, "move_pages": 239,
        "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294, "unshare": 97,
    },
}  # fmt: skip
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS = {
    "x86_64": {"ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56},
    "aarch64": {"ioctl": 29, "socket": 198, "socketpair": 199, "clone": 220},
}
# Files in memory, System V segments, messages and semaphores.
_UNCOUNTED = {
    "x86_64": {"shmget": 29, "semget": 64, "msgget": 68, "memfd_create": 319},
    "aarch64": {"msgget": 186, "semget": 190, "shmget": 194, "memfd_create": 279},
}
_CLONE3 = 435


def build_filter(machine: str | None = None, uncounted_memory: bool = True) -> bytes:
    """The program as an array of `struct sock_filter`, for `machine` (default: this one).

    Without `uncounted_memory` calls that take memory of no process are refused too: only a cgroup could limit them.
    Raises SandboxError on another architecture: without the filter no sandbox is started.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT:
        raise SandboxError(f"no system-call filter for {machine}: known are {', '.join(_AUDIT)}; run on one of these")
    calls = _CALLS[machine]
    code = [
        _op(_LOAD, _ARCH), _op(_JUMP_EQ, _AUDIT[machine], 1, 0), _op(_RETURN, _KILL),
        _op(_LOAD, _NR), _op(_JUMP_GE, _X32, 0, 1), _op(_RETURN, _ERRNO | errno.ENOSYS),
    ]  # fmt: skip
    uncounted = set() if uncounted_memory else set(_UNCOUNTED[machine].values())
    for number in sorted({*_DENIED[machine].values(), *_DENIED_NEW.values(), *uncounted}):
        code += [_op(_JUMP_EQ, number, 0, 1), _op(_RETURN, _ERRNO | errno.EPERM)]
    code += [_op(_JUMP_EQ, _CLONE3, 0, 1), _op(_RETURN, _ERRNO | errno.ENOSYS)]
    code += _on_call(calls["clone"], _ARG0, [_op(_JUMP_SET, _NEW_NAMESPACES, 0, 1), _op(_RETURN, _ERRNO | errno.EPERM)])
    refuse = [_op(_RETURN, _ERRNO | errno.EPERM)]
    injections = [line for request in _TERMINAL_INJECTION for line in (_op(_JUMP_EQ, request, 0, 1), *refuse)]
    code += _on_call(calls["ioctl"], _ARG1, injections)
    families = [_op(_JUMP_EQ, family, len(_FAMILIES) - index, 0) for index, family in enumerate(_FAMILIES)]
    for call in ("socket", "socketpair"):
        code += _on_call(calls[call], _ARG0, [*families, *refuse])
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _on_call(number: int, argument: int, block: list[bytes]) -> list[bytes]:
    """`block` sees the argument in the accumulator; when it falls through, the call is allowed."""
    body = [_op(_LOAD, argument), *block, _op(_RETURN, _ALLOW)]
    return [_op(_JUMP_EQ, number, 0, len(body)), *body]

"""What stands between an attempt and those that share its sandbox. One file, two copies.

Landlock: no look into another process. A list of system calls: whatever is not on it ends the process at once, and then
it runs again, alone. So nothing of an attempt outlives its process: none that it started, no signal, no socket, no shared
memory, no limit or priority of another process; and no file, unless `files` allows those, which the keeper removes, and
with them to wait.

Covered: x86_64 and aarch64 (the second was written and not run); other machines get no program. Arguments behind
pointers are not seen, and need not be. Not covered: what any two programs of one machine could tell each other by how
fast it is, and by its counters in /proc.
"""

import ctypes
import os
import struct

LOAD, EQUAL, NOT_BELOW, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
NR, ARCH, ARGUMENTS = 0, 4, 16  # offsets in seccomp_data
X32 = 0x40000000
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2  # prctl
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT, LANDLOCK_VERSION = 444, 445, 446, 1
MAKE_BLOCK, REFER, SCOPED = 1 << 11, 1 << 13, 0b11  # rights over files; scopes: abstract sockets, signals
WRITES = 0o3 | 0o100 | 0o1000  # of open: O_WRONLY, O_RDWR, O_CREAT, O_TRUNC

# name, its number on x86_64, its number on aarch64 (- where there is none)
COMPUTE = """
read 0 63, write 1 64, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, lseek 8 62, mmap 9 222, mprotect 10 226,
munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, pread64 17 67, readv 19 65,
writev 20 66, access 21 -, pipe 22 -, sched_yield 24 124, mremap 25 216, madvise 28 233, dup 32 23, dup2 33 -,
getpid 39 172, exit 60 93, uname 63 160, getcwd 79 17, chdir 80 49, fchdir 81 50, readlink 89 -, umask 95 166,
gettimeofday 96 169, getrlimit 97 163, getrusage 98 165, sysinfo 99 179, times 100 153, getuid 102 174, getgid 104 176,
geteuid 107 175, getegid 108 177, getppid 110 173, getpgrp 111 -, getgroups 115 158, getresuid 118 148,
getresgid 120 150, getpgid 121 155, getsid 124 156, capget 125 90, sigaltstack 131 132, statfs 137 43, fstatfs 138 44,
sched_getparam 143 121, sched_getscheduler 145 120, arch_prctl 158 -, gettid 186 178, time 201 -, futex 202 98,
sched_getaffinity 204 123, getdents64 217 61, set_tid_address 218 96, fadvise64 221 223, clock_gettime 228 113,
clock_getres 229 114, exit_group 231 94, newfstatat 262 79, readlinkat 267 78, faccessat 269 48,
set_robust_list 273 99, dup3 292 24, pipe2 293 59, getcpu 309 168, getrandom 318 278, statx 332 291, rseq 334 293,
close_range 436 436, faccessat2 439 439
"""
FILES = """
open 2 -, poll 7 -, pwrite64 18 68, select 23 -, nanosleep 35 101, getitimer 36 102, alarm 37 -, setitimer 38 103,
sendfile 40 71, flock 73 32, fsync 74 82, fdatasync 75 83, truncate 76 45, ftruncate 77 46, rename 82 -, mkdir 83 -,
rmdir 84 -, creat 85 -, link 86 -, unlink 87 -, symlink 88 -, chmod 90 -, fchmod 91 52, utime 132 -, getxattr 191 8,
lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13, clock_nanosleep 230 115,
utimes 235 -, openat 257 56, mkdirat 258 34, futimesat 261 -, unlinkat 263 35, renameat 264 38, linkat 265 37,
symlinkat 266 36, fchmodat 268 53, pselect6 270 72, ppoll 271 73, utimensat 280 88, fallocate 285 47, preadv 295 69,
pwritev 296 70, renameat2 316 276, memfd_create 319 279, copy_file_range 326 285, fchmodat2 452 452
"""
OPEN = "open 2 -, openat 257 56"  # allowed for reading
IOCTL, FCNTL, PRLIMIT = "ioctl 16 29", "fcntl 72 25", "prlimit64 302 261"
ASKS = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX
DUPLICATES, LOCKS = (
    (0, 1, 2, 3, 1030),
    (4, 5, 6, 7),
)  # of fcntl: F_DUPFD to F_GETFL, F_DUPFD_CLOEXEC; F_SETFL to F_SETLKW


def program(machine, files):
    """The filter as an array of `struct sock_filter`; None on a machine that it does not know."""
    if machine not in MACHINES:
        return None
    audit, column = MACHINES[machine]
    code = [op(LOAD, ARCH), op(EQUAL, audit, 1, 0), op(RETURN, KILL), op(LOAD, NR), op(NOT_BELOW, X32, 0, 1)]
    code.append(op(RETURN, KILL))
    for number in numbers(COMPUTE + ("," + FILES if files else ""), column):
        code += [op(EQUAL, number, 0, 1), op(RETURN, ALLOW)]
    for place, number in enumerate(numbers(OPEN, column, missing=True)):
        if number is not None and not files:  # the flags are the argument after the path
            code += on_call(number, [*look(place + 1), op(ANY_BIT, WRITES, 1, 0), op(RETURN, ALLOW)])
    for name, values in ((IOCTL, ASKS), (FCNTL, DUPLICATES + (LOCKS if files else ()))):
        [number] = numbers(name, column)
        wanted = [line for value in values for line in (op(EQUAL, value, 0, 1), op(RETURN, ALLOW))]
        code += on_call(number, [*look(1), *wanted])
    [number] = numbers(PRLIMIT, column)  # of this process, and only to ask: a null pointer for the new limit
    asked = [*look(0), op(EQUAL, 0, 0, 5), *look(2), op(EQUAL, 0, 0, 3), op(LOAD, ARGUMENTS + 8 * 2 + 4)]
    code += on_call(number, [*asked, op(EQUAL, 0, 0, 1), op(RETURN, ALLOW)])
    return b"".join([*code, op(RETURN, KILL)])


def numbers(table, column, missing=False):
    found = [item.split()[1 + column] for item in table.split(",") if item.strip()]
    return [None if item == "-" else int(item) for item in found if missing or item != "-"]


def op(code, value, if_true=0, if_false=0):
    return struct.pack("<HBBI", code, if_true, if_false, value)


def look(argument):
    """Its low half: both machines are little endian."""
    return [op(LOAD, ARGUMENTS + 8 * argument)]


def on_call(number, block):
    """What falls through `block` is refused."""
    return [op(EQUAL, number, 0, len(block) + 1), *block, op(RETURN, KILL)]


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def prepared(files):
    """What `install` takes, made before any attempt runs; None on an unknown machine."""
    code = program(os.uname().machine, files)
    return None if code is None else Program(len(code) // 8, code)


def landlock(libc):
    """A set of rules, as a descriptor, under which a process may signal and look into itself and its own alone.

    None where the kernel is too old. Nothing else is denied: REFER must be allowed by a rule, or files could not be moved
    between folders.
    """
    version = libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), LANDLOCK_VERSION)
    if version < 2:
        return None
    rights = MAKE_BLOCK | REFER
    wanted = struct.pack("<QQQ", rights, 0, SCOPED)[: 24 if version >= 6 else 8]
    rules = libc.syscall(LANDLOCK_CREATE, wanted, ctypes.c_size_t(len(wanted)), 0)
    top = os.open("/", os.O_PATH)
    libc.syscall(LANDLOCK_ADD, rules, 1, struct.pack("<Qi", rights, top), 0)
    os.close(top)
    return rules


def install(libc, rules, filter_program):
    """From here on this process sees no other and makes no other call. Ends it where that cannot be had."""
    zero = ctypes.c_ulong(0)
    done = libc.prctl(NO_NEW_PRIVILEGES, ctypes.c_ulong(1), zero, zero, zero)
    if rules is not None:
        done |= libc.syscall(LANDLOCK_RESTRICT, rules, 0)
    if done or sees(1) or sees(os.getppid()):
        os._exit(70)
    if libc.prctl(SECCOMP, ctypes.c_ulong(FILTER), ctypes.byref(filter_program), zero, zero):
        os._exit(70)


def sees(pid):
    """Whether it could read that process's input, output and memory."""
    try:
        os.readlink(f"/proc/{pid}/fd/0")
    except PermissionError:
        return False
    except OSError:
        pass
    return True

"""Programs that ask the kernel for more than an attempt needs: rights, clocks, modules, tracing, other call tables."""

import ctypes
import errno
import fcntl
import mmap
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from inside import LIBC, X86, attempt, door, main, syscall, tell

PR_SET_MM, PR_SET_SECCOMP, PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAPBSET_READ = 35, 22, 21, 39, 47, 23


def keys(facts, nonce):
    door("add_key", 248, 217, 0, 0, 0, 0, 0)
    door("request_key", 249, 218, 0, 0, 0, 0)
    door("keyctl", 250, 219, 99, 0, 0, 0, 0)
    attempt(
        "a key that outlives the process", lambda: positive(syscall(248, 217, b"user", nonce.encode(), b"x", 1, -4))
    )
    attempt("keys of the host", lambda: facts["sought"] in open("/proc/keys").read())


def positive(answer):
    result, code = answer
    if result < 0:
        raise OSError(code, "refused")
    return f"returned {result}"


def io_uring(facts, nonce):
    """Its operations pass by the system-call filter, so the door itself must be shut."""
    parameters = ctypes.create_string_buffer(120)
    attempt("a ring", lambda: positive(syscall(425, 425, 4, ctypes.byref(parameters))))
    door("io_uring_setup", 425, 425, 0, 0)
    door("io_uring_enter", 426, 426, -1, 0, 0, 0, 0)
    door("io_uring_register", 427, 427, -1, 0, 0, 0)


def bpf(facts, nonce):
    attributes = ctypes.create_string_buffer(128)
    attributes[0:16] = b"\2\0\0\0\4\0\0\0\4\0\0\0\1\0\0\0"
    attempt("a map", lambda: positive(syscall(321, 280, 0, ctypes.byref(attributes), 72)))
    door("bpf", 321, 280, 99, 0, 0)


def perf(facts, nonce):
    attributes = ctypes.create_string_buffer(128)
    attributes[0:8] = b"\1\0\0\0\x80\0\0\0"
    attempt("a counter of this process", lambda: positive(syscall(298, 241, ctypes.byref(attributes), 0, -1, -1, 0)))
    attempt("a counter of the machine", lambda: positive(syscall(298, 241, ctypes.byref(attributes), -1, 0, -1, 0)))
    door("perf_event_open", 298, 241, 0, 0, -1, -1, 0)


def exotic(facts, nonce):
    """Calls that attempts do not need and exploits like."""
    door("userfaultfd", 323, 282, 0x7FFFFFFF)
    door("personality", 135, 92, 0xFFFFFFFF)
    door("modify_ldt", 154, None, 99, 0, 0)
    door("iopl", 172, None, 3)
    door("ioperm", 173, None, 0, 1, 1)
    door("fanotify_init", 300, 262, 0xFFFFFFFF, 0)
    door("lookup_dcookie", 212, 18, 0, 0, 0)
    door("quotactl", 179, 60, 0x800003 << 8, 0, 0, 0)
    door("memfd_secret", 447, 447, 0x7FFFFFFF)
    door("move_pages", 279, 239, 0, 0, 0, 0, 0, 0x7F)
    door("mbind", 237, 235, 0, 0, 99, 0, 0, 0x7F)
    door("vhangup", 153, 58) if not facts.get("outside") else None


def rights(facts, nonce):
    attempt("setuid 0", lambda: os.setuid(0) or os.getuid() == 0)
    attempt("setresuid 0", lambda: os.setresuid(0, 0, 0) or "root")
    attempt("setgid 0", lambda: os.setgid(0) or os.getgid() == 0)
    attempt("setgroups", lambda: os.setgroups([0, 27]) or "groups set")
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    everything = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
    attempt(
        "every capability", lambda: positive(syscall(126, 91, header, everything)) if not facts.get("outside") else None
    )
    for name in ("CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb"):
        attempt(name, lambda n=name: int(status(n), 16) and status(n))
    attempt("ambient rights", lambda: LIBC.prctl(PR_CAP_AMBIENT, 2, 21, 0, 0) == 0)
    attempt("new privileges by exec", lambda: LIBC.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
    attempt("groups of the host", lambda: [g for g in os.getgroups() if g not in (10001, 65534)])


def status(name):
    return next(line.split()[1] for line in open("/proc/self/status") if line.startswith(name + ":"))


def setuid_files(facts, nonce):
    """A program with the set-user bit, or with capabilities in its attributes, must not give more than it has."""
    shebang = "/work/elevated"
    with open("/usr/bin/python3", "rb") as source, open(shebang, "wb") as target:
        while chunk := source.read(1 << 20):
            target.write(chunk)
    attempt("owner root", lambda: os.chown(shebang, 0, 0) or "root owns it")
    everything = b"\1\0\0\2" + b"\xff" * 16
    attempt("capabilities in an attribute", lambda: os.setxattr(shebang, "security.capability", everything) or "set")
    os.chmod(shebang, 0o6755)
    import subprocess

    code = (
        "import os; print(os.geteuid(), [l.split()[1] for l in open('/proc/self/status') if l.startswith('CapEff')][0])"
    )
    done = subprocess.run([shebang, "-I", "-S", "-c", code], capture_output=True, text=True, check=False,
                          env={"PYTHONHOME": "/usr"})  # fmt: skip
    words = done.stdout.split()
    tell(tried="set-user program", reached=done.stdout if words and (words[0] == "0" or int(words[1], 16)) else None,
         why=done.stdout or done.stderr[-80:])  # fmt: skip
    found = [os.path.join(top, name) for top, _, names in os.walk("/usr") for name in names if special(top, name)]
    tell(tried="set-user programs of the image", reached=str(found) if found else None)


def special(top, name):
    try:
        return bool(os.lstat(os.path.join(top, name)).st_mode & 0o6000)
    except OSError:
        return False


def prctl(facts, nonce):
    """Undoing what was done to this process."""
    attempt("no filter is in force", lambda: LIBC.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != 2 and "no filter")
    attempt("privileges may grow again", lambda: LIBC.prctl(38, 0, 0, 0, 0) == 0)
    attempt("another executable", lambda: LIBC.prctl(PR_SET_MM, 13, 0, 0, 0) == 0)
    attempt("a filter that allows all", filter_that_allows)
    attempt("dropped rights return", lambda: [c for c in range(41) if LIBC.prctl(PR_CAPBSET_READ, c, 0, 0, 0) == 1])
    tell(
        tried="ptrace stays refused",
        reached=None if syscall(101, 117, 99, 0, 0, 0)[1] == errno.EPERM else "ptrace answers",
    )


def filter_that_allows():
    """Filters add up: one more that allows everything must change nothing."""
    code = ctypes.create_string_buffer(b"\x06\0\0\0\0\0\xff\x7f")
    program = ctypes.create_string_buffer(16)
    program[0:2] = b"\1\0"
    program[8:16] = ctypes.addressof(code).to_bytes(8, "little")
    if LIBC.prctl(PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    return syscall(321, 280, 99, 0, 0)[1] not in (errno.EPERM, errno.ENOSYS)


def clock(facts, nonce):
    """Each setting is to what the clock says now."""
    now = time.time()
    attempt("clock_settime", lambda: time.clock_settime(time.CLOCK_REALTIME, now) or "set")
    moment = (ctypes.c_long * 2)(int(now), 0)
    attempt("settimeofday", lambda: positive(syscall(164, 170, moment, 0)))
    door("adjtimex", 159, 171, 0)
    door("clock_adjtime", 305, 266, 99, 0)
    attempt("time offsets", shift_clock)
    attempt("hardware clock", lambda: os.close(os.open("/dev/rtc0", os.O_RDONLY)) or "opened")
    attempt("a timer that wakes the machine", lambda: positive(syscall(283, 85, 8, 0)))


def shift_clock():
    with open("/proc/self/timens_offsets", "w") as file:
        file.write("monotonic 100 0")
    return "shifted"


def control(facts, nonce):
    """Calls that command the machine, with arguments that would be refused for themselves."""
    door("reboot", 169, 142, 0, 0, 0, 0)
    door("kexec_load", 246, 104, 0, 99, 0, 0x7FFFFFFF)
    door("kexec_file_load", 320, 294, -1, -1, 0, 0, 0x7FFFFFFF)
    door("init_module", 175, 105, 0, 0, 0)
    door("finit_module", 313, 273, -1, 0, 0)
    door("delete_module", 176, 106, 0, 0)
    door("swapon", 167, 224, 0, 0)
    door("swapoff", 168, 225, 0)
    door("acct", 163, 89, 1)
    door("syslog", 103, 116, 99, 0, 0)
    door("sethostname", 170, 161, 0, -1)
    door("setdomainname", 171, 162, 0, -1)
    attempt("the kernel's log", lambda: positive(syscall(103, 116, 3, ctypes.create_string_buffer(100), 100)))
    attempt("addresses of the kernel", lambda: any(int(line.split()[0], 16) for line in open("/proc/kallsyms")))
    helpers = ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/fs/binfmt_misc/register")
    for path in (*helpers, "/sys/kernel/uevent_helper"):
        attempt(path, lambda p=path: os.close(os.open(p, os.O_WRONLY)) or "opened")


def terminal(facts, nonce):
    """Pushing keys into a terminal, one's own or the one that started us."""
    ours, theirs = os.openpty()
    for name, request, value in (("TIOCSTI", 0x5412, b"x"), ("TIOCLINUX", 0x541C, b"\4"), ("TIOCCONS", 0x541D, 0)):
        for fd in (0, 1, 2, theirs):
            attempt(f"{name} on descriptor {fd}", lambda f=fd, r=request, v=value: fcntl.ioctl(f, r, v) is not None)
    attempt("the controlling terminal", lambda: os.close(os.open("/dev/tty", os.O_RDWR)) or "opened")
    attempt("the console", lambda: os.close(os.open("/dev/console", os.O_WRONLY | os.O_NOCTTY)) or "opened")
    own = os.path.basename(os.ttyname(theirs))
    attempt("other terminals", lambda: [name for name in os.listdir("/dev/pts") if name not in ("ptmx", own)])
    attempt("a terminal as descriptor", lambda: [fd for fd in (0, 1, 2) if os.isatty(fd)])
    os.close(ours)


def other_tables(facts, nonce):
    """The kernel's 32-bit and x32 call tables: a filter that knows one table only lets the others pass."""
    if not X86:
        tell(tried="no other table on this processor", reached=None)
        return
    attempt("x32 getpid", lambda: positive(syscall(0x40000000 | 39, None)))
    attempt("x32 bpf", lambda: syscall(0x40000000 | 321, None, 99, 0, 0)[1] not in (errno.ENOSYS, errno.EPERM))
    # mov eax, 357 (bpf); xor ebx, ebx; xor ecx, ecx; xor edx, edx; int 0x80; ret
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x53\xb8\x65\x01\x00\x00\x31\xdb\x31\xc9\x31\xd2\xcd\x80\x5b\xc3")
    call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    pid = os.fork()
    if pid == 0:
        os._exit(1 if call() in (-errno.EPERM, -errno.ENOSYS) else 0)
    ended = os.waitpid(pid, 0)[1]
    tell(tried="32-bit bpf", reached="answered" if ended == 0 else None, why=f"wait status {ended}")


if __name__ == "__main__":
    main(globals())

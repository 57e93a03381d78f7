"""Programs that use up processes, memory, disk, descriptors, output and time. Each stops by itself far above the limits."""

import ctypes
import mmap
import os
import resource
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from inside import LIBC, attempt, main, measure, syscall, tell

MANY = 400  # processes, threads
MIB = 1 << 20


def fork_bomb(facts, nonce):
    children = []
    try:
        while len(children) < MANY:
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            children.append(pid)
    except OSError:
        pass
    measure("processes", len(children) + 1)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def fork_tree(facts, nonce):
    """Every process forks for ever; what they reach together is counted in memory that they share."""
    count = mmap.mmap(-1, 4096)
    while count[1] < 250:
        try:
            if os.fork() == 0:
                count[1] += 1
        except OSError:
            count[0] or tell(measured="processes", value=count[1] + 1)
            count[0] = 1
            time.sleep(0.05)
    tell(measured="processes", value=count[1])


def zombie_flood(facts, nonce):
    count = 0
    try:
        while count < MANY:
            if os.fork() == 0:
                os._exit(0)
            count += 1
    except OSError:
        pass
    measure("processes", count + 1)


def thread_bomb(facts, nonce):
    threading.stack_size(32768)
    hold = threading.Event()
    count = 0
    try:
        while count < MANY:
            threading.Thread(target=hold.wait, daemon=True).start()
            count += 1
    except RuntimeError:
        pass
    measure("threads", count + 1)
    os._exit(0)


def respawner(facts, nonce):
    """A chain of processes, each the child of one that is gone: a list of process ids is always out of date."""
    if os.fork() == 0:
        os.setsid()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if os.fork():
                os._exit(0)
            time.sleep(0.01)
    time.sleep(0.2)


def memory_bomb(facts, nonce):
    held = []
    for size in range(8, 4 * facts["memory_mb"], 8):
        held.append(bytearray(b"x" * (8 * MIB)))
        measure("mib", size)


def memory_many(facts, nonce):
    """Four processes, each below the limit."""
    share = facts["memory_mb"] * 3 // 4
    for _ in range(3):
        if os.fork() == 0:
            break
    held = [bytearray(b"x" * MIB) for _ in range(share)]
    time.sleep(1.5)
    measure("mib", len(held) * 4)


def memory_files(facts, nonce):
    """Files in memory that no process maps: no resident size shows them."""
    for size in range(0, 4 * facts["memory_mb"], 8):
        try:
            fd = os.memfd_create("x")
        except OSError:
            return
        for _ in range(8):
            os.write(fd, b"x" * MIB)
        measure("mib", size + 8)


def memory_segments(facts, nonce):
    """System V segments, written and let go: they stay, though no process maps them."""
    LIBC.shmat.restype = ctypes.c_void_p
    for size in range(0, 4 * facts["memory_mb"], 8):
        segment = LIBC.shmget(0, 8 * MIB, 0o1600)
        place = LIBC.shmat(segment, None, 0) if segment >= 0 else None
        if place in (None, ctypes.c_void_p(-1).value):
            return
        ctypes.memset(place, 1, 8 * MIB)
        LIBC.shmdt(ctypes.c_void_p(place))
        measure("mib", size + 8)


def memory_queues(facts, nonce):
    """System V messages: kernel memory that belongs to no process."""
    message = ctypes.create_string_buffer(b"\1\0\0\0\0\0\0\0" + b"x" * 8000)
    sent = 0
    while sent < 4 * facts["memory_mb"] * MIB:
        queue = LIBC.msgget(0, 0o1600)
        if queue < 0 or LIBC.msgsnd(queue, message, 8000, 0o4000) < 0:
            break
        sent += 8000
        while LIBC.msgsnd(queue, message, 8000, 0o4000) == 0:
            sent += 8000
        measure("mib", sent // MIB)


def memory_pipes(facts, nonce):
    import fcntl

    filled = 0
    try:
        while filled < 4 * facts["memory_mb"]:
            _, writer = os.pipe()
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, MIB)
            os.set_blocking(writer, False)
            filled += os.write(writer, b"x" * MIB) / MIB
            measure("mib", int(filled))
    except OSError:
        return


def memory_sockets(facts, nonce):
    import socket

    held, filled = [], 0
    try:
        while filled < 4 * facts["memory_mb"] * MIB:
            pair = socket.socketpair()
            held.append(pair)
            pair[0].setblocking(False)
            pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
            filled += pair[0].send(b"x" * MIB)
            measure("mib", filled // MIB)
    except OSError:
        return


def inode_flood(facts, nonce):
    """Empty files: no disk, but about a KiB of the kernel's memory each."""
    for number in range(4000 * facts["memory_mb"]):
        os.close(os.open(f"/tmp/{number}", os.O_CREAT | os.O_WRONLY))
        if number % 1000 == 0:
            measure("mib", number // 1000)


def disk_fill(facts, nonce):
    for folder in ("/work", "/tmp", "/dev/shm"):
        written, number = 0, 0
        try:
            while written < 8 * facts["disk_mb"] * MIB:
                with open(f"{folder}/{nonce}-{number}", "wb", buffering=0) as file:
                    number += 1
                    for _ in range(16):
                        written += file.write(b"x" * 65536)
        except OSError:
            pass
        measure(f"disk {folder}", written >> 20)
        for index in range(number):
            os.remove(f"{folder}/{nonce}-{index}")


def disk_sparse(facts, nonce):
    def grow():
        with open("sparse", "wb") as file:
            return file.truncate(1 << 40)

    def allocate():
        with open("allocated", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 64 << 20)
            return 64

    attempt("a file of 1 TiB by truncate", grow)
    attempt("64 MiB by fallocate", allocate)


def descriptors(facts, nonce):
    count = 0
    try:
        while count < 5000:
            os.open("/dev/null", os.O_RDONLY)
            count += 1
    except OSError:
        pass
    os.closerange(900, 5000)
    measure("descriptors", count)


def terminals(facts, nonce):
    """The number of pseudo-terminals is one for the whole machine."""
    count = 0
    try:
        while count < 900:
            os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
            count += 1
    except OSError:
        pass
    time.sleep(0.3)
    measure("terminals", count)


def output_flood(facts, nonce):
    block = b"y" * 65536
    for _ in range(400):
        os.write(1, block)
        os.write(2, block)


def output_held(facts, nonce):
    """The command ends; a daemon keeps its output open, small, and non-blocking."""
    import fcntl

    fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(1, False)
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)


def cpu_many(facts, nonce):
    for _ in range(3):
        if os.fork() == 0:
            break
    while True:
        pass


def deaf(facts, nonce):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(60)


def silent(facts, nonce):
    for fd in (0, 1, 2):
        os.close(fd)
    time.sleep(60)


def stopped(facts, nonce):
    if os.fork() == 0:
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


def daemon(facts, nonce):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 100)
            time.sleep(60)
        os._exit(0)
    os.wait()


def daemon_at_timeout(facts, nonce):
    daemon(facts, nonce)
    time.sleep(60)


def priority(facts, nonce):
    attempt("nice -20", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20) or "nice -20")
    for name, policy in (("FIFO", os.SCHED_FIFO), ("RR", os.SCHED_RR)):
        attempt(f"real-time {name}", lambda p=policy: os.sched_setscheduler(0, p, os.sched_param(50)) or "real time")
    attempt("real-time disk priority", lambda: syscall(251, 30, 1, 0, 1 << 13)[0] == 0)
    attempt("more memory locked", lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (-1, -1)) or "unlimited")
    attempt("more open files", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20)) or "1048576")
    attempt("never killed for memory", protect_from_oom)


def protect_from_oom():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    return "oom_score_adj -1000"


def core_dump(facts, nonce):
    """A crash must leave no image of memory, on disk or with a handler of the host (RLIMIT_CORE 1 rules out both)."""
    attempt("a larger core limit", lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)) or "1 MiB")
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    tell(door="a crash reaches the host's core handler, if it has one", open=limit != 1, why=str(limit))
    tell(tried=f"core limit {limit}, host pattern {facts['core_pattern']}",
         reached="handler" if limit != 1 and facts["core_pattern"].startswith("|") else None)  # fmt: skip
    tell(tried="core_dump: ran to its end", reached=None)
    os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    main(globals())

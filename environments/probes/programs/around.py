"""Programs that look around: files, processes, devices, namespaces and shared memory of the host."""

import ctypes
import errno
import os
import signal
import stat
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from inside import LIBC, attempt, door, main, syscall, tell

NAMESPACES = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000,
              "pid": 0x20000000, "net": 0x40000000, "time": 0x80}  # fmt: skip
OWN_SETTINGS = {"msg_default", "msg_max", "msgsize_default", "msgsize_max", "queues_max", "auto_msgmni", "msgmax", "msgmnb",
                "msgmni", "ns_last_pid", "pid_max", "sem", "shm_rmid_forced", "shmall", "shmmax", "shmmni"}  # fmt: skip
DEVICES = {"core", "console", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout",
           "tty", "urandom", "zero"}  # fmt: skip


def read(path, size=200):
    with open(path, "rb") as file:
        return file.read(size)


def write(path, data=b"x"):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        return os.write(fd, data) and f"wrote {path}"
    finally:
        os.close(fd)


def files_of_pids():
    return [f"/proc/{pid}" for pid in os.listdir("/proc") if pid.isdigit()]


def host_files(facts, nonce):
    attempt("a readable file of the host", read, facts["secret_file"])
    attempt("a writable file of the host", write, facts["writable_file"])
    attempt("a new file in an open folder of the host", write, f"{facts['open_folder']}/{nonce}")
    for path in (
        "/etc/shadow",
        "/root/.ssh",
        "/home",
        "/var/lib/docker",
        "/boot",
        "/sys/kernel/security",
        "/.dockerenv/x",
    ):
        attempt(path, lambda p=path: (os.path.isdir(p) and os.listdir(p)) or read(p))
    for path in ("/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/proc/sysrq-trigger", "/proc/kpagecount"):
        attempt(path, lambda p=path: os.close(os.open(p, os.O_RDONLY)) or "opened")


def climbing(facts, nonce):
    """Out through `..`, through the roots and working folders of processes, through handles of files."""
    secret = facts["secret_file"].lstrip("/")
    for top in ("/proc/self/root", "/proc/1/root", "/proc/self/cwd", "/proc/1/cwd", "../" * 20, "/.."):
        attempt(f"{top}/...", read, f"{top}/{secret}")
    for pid in files_of_pids():
        attempt(f"{pid}/root", read, f"{pid}/root/{secret}")
    door("open_by_handle_at", 304, 265, -1, 0, 0)
    door("name_to_handle_at", 303, 264, -1, 0, 0, 0, 0)
    door("chroot", 161, 51, 0)


def read_only(facts, nonce):
    places = ["/usr/bin/python3", "/etc/passwd", "/tests/inside.py", os.__file__]
    for path in places:
        attempt(f"append to {path}", lambda p=path: os.close(os.open(p, os.O_WRONLY | os.O_APPEND)) or "opened")
        attempt(f"remove {path}", lambda p=path: os.rename(p, p + nonce) or os.rename(p + nonce, p) or "renamed")
    for folder in ("/", "/usr", "/usr/lib", "/etc", "/tests", "/dev", "/proc", "/sys"):
        attempt(f"new file in {folder}", write, f"{folder}/{nonce}")
    attempt("mode of the tests", lambda: os.chmod("/tests/inside.py", 0o777) or "changed")
    attempt("the running interpreter", lambda: os.close(os.open("/proc/self/exe", os.O_WRONLY)) or "opened")


def environments(facts, nonce):
    """Variables, arguments and memory of every process that can be seen: none may hold the host's."""
    for pid in files_of_pids():
        for name in ("environ", "cmdline", "maps"):
            attempt(f"{pid}/{name}", lambda p=f"{pid}/{name}": facts["sought"].encode() in read(p, 1 << 20))
    attempt("a variable of the host", lambda: [k for k, v in os.environ.items() if facts["sought"] in v])


def inherited(facts, nonce):
    """Descriptors beyond the three, or one of them that leads to a file of the host."""
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            mode, link = os.fstat(number).st_mode, os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the listing's own
        good = (
            number < 3
            and not stat.S_ISDIR(mode)
            and (link.startswith(("pipe:", "/memfd:", "socket:")) or link == "/dev/null")
        )
        tell(tried=f"descriptor {number} is {link}", reached=None if good else link)
    for pid in files_of_pids():
        if pid != f"/proc/{os.getpid()}":
            for number in range(3, 20):
                attempt(
                    f"{pid}/fd/{number}", lambda p=f"{pid}/fd/{number}": os.close(os.open(p, os.O_RDWR)) or "opened"
                )
    attempt("writing to stdin's file", lambda: os.pwrite(0, b"x", 0) or "wrote")


def other_processes(facts, nonce):
    pid = facts["pid"]
    attempt("listed", lambda: os.path.exists(f"/proc/{pid}/cmdline") and "sleep" in str(read(f"/proc/{pid}/cmdline")))
    if LIBC.kill(-1, 0) == 0:
        tell(tried="kill -1 names processes of the own namespace", reached=None)
    attempt("parent", lambda: os.getppid() > 1 and os.getppid())
    seen = len(files_of_pids())
    tell(tried=f"{seen} processes seen", reached=f"{seen} processes" if seen > 8 else None)
    for name, number in (("TERM", signal.SIGTERM), ("STOP", signal.SIGSTOP)):
        attempt(f"SIG{name} to the host's {pid}", lambda n=number: os.kill(pid, n) or "sent")
    attempt("its priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19) or "set")
    attempt("its cores", lambda: os.sched_setaffinity(pid, {0}) or "set")
    attempt("a handle of it", lambda: os.pidfd_open(pid))


def kill_all(facts, nonce):
    """Kills whatever it may; that ends the sandbox at most, and it must end as an attempt's failure."""
    LIBC.kill(-1, signal.SIGKILL)
    for pid in range(1, 200):
        if pid != os.getpid():
            LIBC.kill(pid, signal.SIGKILL)


def runtime(facts, nonce):
    """Overwrites the code of the sandbox's own first process, where it may: the result must stay an attempt's result."""
    with open("/proc/1/maps") as file:
        regions = [line.split()[:2] for line in file]
    with open("/proc/1/mem", "r+b", buffering=0) as memory:
        for place, mode in regions:
            if "x" in mode and not place.startswith("f"):
                first, last = (int(part, 16) for part in place.split("-"))
                memory.seek(first)
                memory.write(b"\xcc" * (last - first))
    tell(tried="the code of process 1 was overwritten", reached=None)
    if os.fork() == 0:
        os._exit(0)
    time.sleep(1)


def trace(facts, nonce):
    door("ptrace", 101, 117, 99, 0, 0, 0)
    door("process_vm_readv", 310, 270, 0, 0, 0, 0, 0, 0)
    door("process_vm_writev", 311, 271, 0, 0, 0, 0, 0, 0)
    door("pidfd_getfd", 438, 438, -1, 0, 0)
    door("kcmp", 312, 272, 0, 0, 99, 0, 0)
    door("process_madvise", 440, 440, -1, 0, 0, 0, 0)
    for pid in (1, facts["pid"]):
        attempt(f"attach to {pid}", lambda p=pid: syscall(101, 117, 16, p, 0, 0)[0] == 0)


def devices(facts, nonce):
    listed = sorted(set(os.listdir("/dev")) - DEVICES)
    tell(tried="listing of /dev", reached=str(listed) if listed else None)
    kinds = {"memory": (stat.S_IFCHR, 1, 1), "disk": (stat.S_IFBLK, 254, 0), "null": (stat.S_IFCHR, 1, 3)}
    for folder in ("/work", "/tmp", "/dev/shm", "."):
        for name, (kind, major, minor) in kinds.items():
            path = f"{folder}/{nonce}-{name}"
            attempt(
                f"node {path}",
                lambda p=path, k=kind, d=(major, minor): os.mknod(p, k | 0o666, os.makedev(*d)) or "made",
            )
            if os.path.exists(path):
                os.remove(path)
    for name in ("vda", "sda", "nvme0n1", "mem", "port", "kvm", "fuse", "net/tun", "loop-control", "vsock", "uinput"):
        attempt(f"/dev/{name}", lambda p=f"/dev/{name}": os.close(os.open(p, os.O_RDWR | os.O_NONBLOCK)) or "opened")


def mounts(facts, nonce):
    """Old and new ways to mount; each is undone at once where it works."""
    for folder in ("m", "n"):
        os.mkdir(folder)

    def mount(source, target, kind, flags):
        if LIBC.mount(source, target, kind, ctypes.c_ulong(flags), None):
            raise OSError(ctypes.get_errno(), "mount")
        LIBC.umount2(target, 2)
        return f"mounted {kind or source}"

    attempt("tmpfs", mount, b"none", b"m", b"tmpfs", 0)
    attempt("proc", mount, b"proc", b"m", b"proc", 0)
    attempt("sysfs", mount, b"sysfs", b"m", b"sysfs", 0)
    attempt("cgroup", mount, b"none", b"m", b"cgroup2", 0)
    attempt("bind", mount, b"n", b"m", None, 4096)
    attempt("overlay", mount, b"overlay", b"m", b"overlay", 0)
    attempt("the root writable again", lambda: remount("/"))
    attempt("the tests writable again", lambda: remount("/tests"))
    for path in ("/tests", "/dev/shm", "/proc", "/work", "/dev/null"):
        attempt(f"unmount {path}", lambda p=path: expired(p))
    for name, number in {"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
                         "mount_setattr": 442}.items():  # fmt: skip
        door(name, number, number, -1, 0, 0, 0, 0)
    door("mount", 165, 40, 0, 0, 0, 0, 0)
    door("umount2", 166, 39, 0, 0)
    door("pivot_root", 155, 41, 0, 0)


def expired(path):
    """MNT_EXPIRE only marks a mount the first time, and says EAGAIN to whoever might unmount it."""
    ctypes.set_errno(0)
    LIBC.umount2(path.encode(), 4)
    return ctypes.get_errno() in (errno.EAGAIN, errno.EBUSY)


def remount(path):
    """Asks for what is there plus write access, and takes it back."""
    before = next(line.split()[5] for line in open("/proc/self/mountinfo") if line.split()[4] == path)
    if "ro" not in before.split(","):
        return None
    if LIBC.mount(b"none", path.encode(), None, ctypes.c_ulong(4096 | 32 | 2 | 4), None):
        raise OSError(ctypes.get_errno(), "remount")
    LIBC.mount(b"none", path.encode(), None, ctypes.c_ulong(4096 | 32 | 1 | 2 | 4), None)
    return f"{path} was writable"


def namespaces(facts, nonce):
    for name, flag in NAMESPACES.items():
        attempt(f"unshare {name}", lambda f=flag: in_child(lambda: LIBC.unshare(ctypes.c_long(f)) == 0))
    for name in ("user", "mount", "net", "pid"):
        attempt(f"clone {name}", cloned, NAMESPACES[name])
    structure = ctypes.create_string_buffer(88)
    structure[0:8] = NAMESPACES["user"].to_bytes(8, "little")
    attempt("clone3 user", lambda: made_child(syscall(435, 435, ctypes.byref(structure), 88)))
    for name in ("user", "mnt", "net", "pid"):
        attempt(f"setns {name} of process 1", lambda n=name: entered(f"/proc/1/ns/{n}"))
    attempt(
        "more user namespaces", lambda: os.close(os.open("/proc/sys/user/max_user_namespaces", os.O_WRONLY)) or "opened"
    )


def in_child(function):
    """In a process of its own, so that a success changes nothing for the attempts after it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if function() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def cloned(flag):
    return made_child(syscall(56, 220, flag | signal.SIGCHLD, 0, 0, 0, 0))


def made_child(answer):
    result, code = answer
    if result == 0:
        os._exit(0)
    if result < 0:
        raise OSError(code, "clone")
    os.waitpid(result, 0)
    return f"process {result}"


def entered(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return in_child(
            lambda: LIBC.setns(fd, 0) == 0 and os.readlink(path) != os.readlink(path.replace("/1/", "/self/"))
        )
    finally:
        os.close(fd)


def shared_memory(facts, nonce):
    LIBC.shmat.restype = ctypes.c_void_p

    def attach():
        segment = LIBC.shmget(facts["shm_key"], 0, 0)
        if segment < 0:
            raise OSError(ctypes.get_errno(), "shmget")
        return ctypes.string_at(LIBC.shmat(segment, None, 0o10000), 20)

    attempt("System V segment of the host", attach)
    attempt("listed", lambda: str(facts["shm_key"]) in open("/proc/sysvipc/shm").read())
    attempt("POSIX segment of the host", read, f"/dev/shm/{facts['posix_shm']}")


def left_over(facts, nonce):
    """Run twice: what the first run leaves, the second must not find. `facts["look"]` says which run this is."""
    places = [f"{folder}/{nonce}" for folder in ("/work", "/tmp", "/dev/shm", "/dev/mqueue", "/var/tmp", "/run")]
    key = int(nonce[-6:], 16)
    if facts.get("look"):
        for path in places:
            attempt(f"file {path}", lambda p=path: os.path.exists(p) and p)
        for name, call in (("shm", (29, 194)), ("msg", (68, 186)), ("sem", (64, 190))):
            attempt(f"System V {name}", lambda c=call: found(syscall(*c, key, 0, 0)))
        attempt("key ring", lambda: found(syscall(249, 218, b"user", nonce.encode(), None, 0)))
        attempt("host name", lambda: os.uname().nodename == nonce[:20])
        attempt("socket", lambda: nonce in open("/proc/net/unix").read())
        attempt("process", lambda: [p for p in files_of_pids() if int(p[6:]) > os.getpid()])
        return
    for path in places:
        try:
            write(path)
        except OSError:
            continue
    for call in ((29, 194, key, 4096, 0o1666), (68, 186, key, 0o1666), (64, 190, key, 1, 0o1666)):
        syscall(*call)
    syscall(248, 217, b"user", nonce.encode(), b"x", 1, -4)
    LIBC.sethostname(nonce.encode(), 20)
    import socket

    hidden = socket.socket(socket.AF_UNIX)
    hidden.bind("\0" + nonce)
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)


def found(answer):
    result, code = answer
    if result < 0:
        raise OSError(code, "refused")
    return f"found {result}"


def sysctl(facts, nonce):
    """Every setting below /proc/sys. Some belong to the sandbox's own namespaces: those are changed, and the host's must
    stay as they are. Without a sandbox nothing is written."""
    count = 0
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            path = os.path.join(folder, name)
            count += 1
            try:
                fd = os.open(path, os.O_RDWR)
            except OSError:
                continue
            own = name in OWN_SETTINGS and not facts.get("outside")
            tell(door=f"{name} of its own namespace", open=True) if own else tell(
                tried=path, reached="opened for writing"
            )
            if own:
                change(fd)
            os.close(fd)
    tell(tried=f"{count} settings", reached=None if count > 200 else "no settings were seen")
    for path in ("/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/mtrr"):
        attempt(path, lambda p=path: os.close(os.open(p, os.O_WRONLY)) or "opened")


def change(fd):
    value = os.read(fd, 100).split()[0]
    try:
        os.pwrite(fd, str(int(value) - 1).encode(), 0)
    except (OSError, ValueError):
        return


def maps(facts, nonce):
    """The user map of its own namespace is written once, by its maker; a second writing would be another user."""
    for name in ("uid_map", "gid_map"):
        attempt(name, lambda n=name: write(f"/proc/self/{n}", b"0 0 1\n"))
    attempt("setgroups", lambda: write("/proc/self/setgroups", b"allow"))
    try:  # a label of its own process in the host's log; where root is no user of the namespace it cannot be set
        tell(door="its own audit user can be set", open=bool(write("/proc/self/loginuid", b"0")))
    except OSError:
        tell(tried="audit user", reached=None)


def cgroups(facts, nonce):
    count = 0
    for top in ("/sys/fs/cgroup", "/proc/1/root/sys/fs/cgroup", "/cgroup"):
        for folder, _, names in os.walk(top):
            for name in names:
                count += 1
                if os.access(os.path.join(folder, name), os.W_OK):
                    attempt(
                        f"{folder}/{name}",
                        lambda p=os.path.join(folder, name): os.close(os.open(p, os.O_WRONLY)) or "opened",
                    )
            attempt(
                f"group below {folder}", lambda f=folder: os.mkdir(f"{f}/{nonce}") or "made"
            ) if count < 50 else None
    shown = [line for line in open("/proc/self/cgroup") if "postloop" in line]
    tell(door="the path of its own group is shown", open=bool(shown))
    attempt("release agent", lambda: os.close(os.open("/sys/fs/cgroup/release_agent", os.O_WRONLY)) or "opened")


def hog(facts, nonce):
    """Takes what the kernel counts for each user, so that a neighbour of the same user would go short."""
    import fcntl
    import socket

    held = []
    for take in (
        lambda: held.append(LIBC.inotify_init1(0)) or held[-1] < 0,
        lambda: fcntl.fcntl(held.append(os.pipe()) or held[-1][1], fcntl.F_SETPIPE_SZ, 1 << 20) < (1 << 20),
        lambda: held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)),
        lambda: in_flight(socket, held),
        lambda: syscall(248, 217, b"user", os.urandom(8).hex().encode(), b"x" * 1000, 1000, -4)[0] < 0,
    ):
        for _ in range(150):
            try:
                if take():
                    break
            except OSError:
                break
    tell(tried=f"{len(held)} things taken", reached=None)
    time.sleep(3)


def in_flight(socket, held):
    pair = socket.socketpair()
    held.append(pair)
    socket.send_fds(pair[0], [b"x"], [0] * 200)


def neighbour(facts, nonce):
    """What an ordinary attempt needs; runs beside `hog`. Here a refusal is the trouble, so it is what is reached."""
    import subprocess
    import threading

    def need(what, function):
        try:
            function()
        except (OSError, RuntimeError) as error:
            tell(tried=what, reached=f"a neighbour took it: {error}")
        else:
            tell(tried=what, reached=None)

    need("pipe", os.pipe)
    need("process", lambda: subprocess.run([sys.executable, "-I", "-S", "-c", "1"], check=True, capture_output=True))
    need("thread", lambda: threading.Thread(target=print).start())
    need("terminal", lambda: os.close(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)))
    need("disk", lambda: write("/tmp/x", b"x" * 100_000))
    need("memory", lambda: bytearray(8 << 20))


if __name__ == "__main__":
    main(globals())

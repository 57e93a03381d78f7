"""Runs inside the sandbox as `python -s -P /tests/drive.py`: the keeper, which starts one process for each run of a file.

The keeper never runs a line of the attempt. It imports pytest, then forks, for each run in turn, a process that lays a
fresh tree and runs real pytest (child.py); it takes in that process's messages, ends whatever it left behind, has all
writable folders emptied, and goes on. Only when nothing but the keeper lives is a report written, in one piece.

Trees and the two texts of the hidden tests come in a file that is read into memory which a fork does not copy, and removed;
what a run says is kept in such memory too, and read in a process that ends before the next run. So a run sees its own text
and nothing of any other.

Attempts may share a sandbox (`shared`): then a run may only compute, and make files, which are removed (fence.py); what ends
otherwise than by itself, or is slow, is run again, alone. Not covered: what numbers in /proc, inodes, times and the modes of
emptied folders tell of the runs before.
"""

import ctypes
import gc
import json
import mmap
import os
import resource
import select
import sys
import time

SECRET, UNFIT = "/work/secret", 3
WRITABLE = ("/work", "/tmp", "/dev/shm")  # noqa: S108
TOKEN = 32  # characters at the beginning of each member's part of the secret
MAX_MESSAGES = 1 << 20  # bytes of a run
MAX_TESTS = 20_000
DETAILS = 20_000  # characters of all details of a report together
DUMPABLE, SUBREAPER, NO_NEW_PRIVILEGES, LANDLOCK_RESTRICT = 4, 36, 38, 446
IPC_REMOVE = 0

libc = ctypes.CDLL(None)


def main():
    header = json.loads(read_all(0))
    secret = take(SECRET)
    gc.disable()
    sys.path.insert(0, "/tests")
    try:
        import child
        import fence
    except ImportError as error:
        say({"token": token_of(secret, header["members"][0]), "unfit": f"the image has no pytest: {error}"})
        os._exit(UNFIT)
    sys.path.remove("/tests")
    child.prepare(header["preload"])
    gc.enable()
    libc.prctl(DUMPABLE, 0, 0, 0, 0)  # no other process may look into this one's memory and files
    libc.prctl(SUBREAPER, 1, 0, 0, 0)  # whatever a child leaves behind becomes a child of this one
    gc.freeze()
    Keeper(header["shared"], secret, child, fence).keep(header["members"])
    os._exit(0)


def read_all(fd):
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    return b"".join(parts)


def region(size):
    """Memory that a forked process does not get."""
    memory = mmap.mmap(-1, max(1, size))
    memory.madvise(mmap.MADV_DONTFORK)
    return memory


def take(path):
    """The content of a file, in such memory; the file is removed."""
    fd = os.open(path, os.O_RDONLY)
    memory, done = region(os.fstat(fd).st_size), 0
    view = memoryview(memory)
    while read := os.readv(fd, [view[done:]]) if done < len(view) else 0:
        done += read
    os.close(fd)
    os.unlink(path)
    return memory


def token_of(secret, member):
    """No process that runs an attempt has it in its memory: whoever else writes a report does not know it."""
    return secret[member["token"] : member["token"] + TOKEN].decode()


def say(report, unit=1024):
    """Writes a report as a line; returns its size in units of so many bytes, rounded up."""
    view = memoryview(json.dumps(report).encode() + b"\n")
    size = len(view)
    while view:
        view = view[os.write(1, view) :]
    return -(-size // unit)


STAT = region(1 << 12)


class Keeper:
    """Runs the members' jobs in turn. `shared`: None for a member that is alone, else the limits of the sandbox."""

    def __init__(self, shared, secret, child, fence):
        self.shared, self.secret, self.child, self.fence = shared, secret, child, fence
        self.rules = fence.landlock(libc)
        self.allowed = fence.prepared(files=True) if shared else None
        alone = float("inf") if cpu_limit() is None else float(cpu_limit()), float("inf")
        self.patience = (min(5.0, shared["cpu_s"] / 4), shared["wall_s"] / 4) if shared else alone
        self.unit = 1 + shared["room"] // 400 if shared else 1024  # a report is at most half the room: 201 units
        self.began, self.said = time.monotonic(), 0

    def keep(self, members):
        if self.shared:
            if self.allowed is None:
                os._exit(UNFIT)
            self.helped(lambda: say({"token": token_of(self.secret, members[0]), "ready": True}))
        for member in members:
            if self.shared and self.is_spent():
                return
            self.said += self.one_member(member)

    def is_spent(self):
        cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (0, -1)))
        late = time.monotonic() - self.began > self.shared["wall_s"] / 2
        return late or cpu_s > self.shared["cpu_s"] / 2 or self.said * self.unit > self.shared["room"] / 2

    def one_member(self, member):
        """Its runs, and its report, of so many KiB; after a run that broke off, the others of its file are not begun."""
        size = MAX_MESSAGES + 1
        heard = region(size * len(member["runs"]))
        ends, broken = [], set()  # of each run: bytes heard, exit code, CPU-seconds, whether that was all of its share
        for number, run in enumerate(member["runs"]):
            if run["file"] in broken:
                ends.append(None)
                continue
            ends.append(self.one_run(member, run, memoryview(heard)[number * size : (number + 1) * size]))
            if ends[-1][1] != 0:
                broken.add(run["file"])
            if run is not member["runs"][-1]:
                self.helped(clear)
        return self.helped(lambda: clear() or say(self.report(member, heard, ends), self.unit), heard)

    def helped(self, work, *more):
        """What `work` returns, a small number, in a process whose memory is gone before the next run. No result is the end."""
        for memory in (self.secret, *more):
            memory.madvise(mmap.MADV_DOFORK)
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(min(254, work()))
            finally:
                os._exit(255)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for memory in (self.secret, *more):
            memory.madvise(mmap.MADV_DONTFORK)
        if not 0 <= code < 255:
            os._exit(70)
        return code

    def one_run(self, member, run, heard):
        jobs, messages = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(jobs[1])
                os.close(messages[0])
                self.limit_child()
                self.child.run(jobs[0], messages[1], member)
            finally:
                os._exit(70)
        os.close(jobs[0])
        os.close(messages[1])
        secret = memoryview(self.secret)
        give(jobs[1], [secret[start:end] for start, end in (member["tree"], member["texts"][run["text"]], run["job"])])
        listener = Listener(messages[0], heard)
        spent = listener.until_ended(pid, *self.patience)
        _, status, usage = os.wait4(pid, 0)
        end_all()
        listener.drain()
        os.close(messages[0])
        cpu_s = usage.ru_utime + usage.ru_stime
        return listener.size, os.waitstatus_to_exitcode(status), cpu_s, spent or cpu_s > self.patience[0]

    def limit_child(self):
        os.setsid()
        libc.prctl(DUMPABLE, 1, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))
        if self.shared:
            self.fence.install(libc, self.rules, self.allowed)
        else:
            hide(self.rules)
            if cpu_limit() is not None:  # behind the listener's own clock: the kernel counts this one in ticks
                most = min(resource.getrlimit(resource.RLIMIT_CPU)[0], 2 * cpu_limit() + 1)
                resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        if self.rules is not None:
            os.close(self.rules)

    def report(self, member, heard, ends):
        """What the runs said. In a shared sandbox "alone" when one of them did not end by itself, or took or said much."""
        found, room = [], DETAILS
        for number, end in enumerate(ends):
            if end is None:
                found.append({"ended": False, "why": "the other run of this file broke off"})
                continue
            start = number * (MAX_MESSAGES + 1)
            run = read_run(heard[start : start + end[0]], *end[1:])
            run["details"], room = cut(run["details"], room)
            found.append(run)
        token, ran = token_of(self.secret, member), [end for end in ends if end]
        if self.shared and (
            any(code < 0 or code == 70 for _, code, *_ in ran)
            or sum(cpu_s for _, _, cpu_s, _ in ran) > self.shared["cpu_s"] / 2
            or len(json.dumps(found)) > self.shared["room"] / 2
        ):
            return {"token": token, "alone": True}
        return {"token": token, "runs": found}


def give(fd, parts):
    """Hand a run its tree, its text and its job. A run that ends meanwhile reads no more."""
    try:
        for part in parts:
            while part:
                part = part[os.write(fd, part) :]
            os.write(fd, b"\n")
    except BrokenPipeError:
        pass
    os.close(fd)


def cpu_limit():
    """A run may use half of what the whole sandbox may: two such runs are the most that one file needs. None: no limit."""
    soft = resource.getrlimit(resource.RLIMIT_CPU)[0]
    return None if soft == resource.RLIM_INFINITY else max(1, soft // 2)


def hide(rules):
    """Landlock, where the kernel has it: no signal to, no look into any process but this one and its own.

    It stands between a run and the sandbox's first process, whose memory would carry notes from one run to the next.
    """
    if rules is None:
        return
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.syscall(LANDLOCK_RESTRICT, rules, 0)


class Listener:
    """Takes in what a run says; what goes beyond MAX_MESSAGES ends it."""

    def __init__(self, fd, heard):
        self.fd, self.heard, self.size, self.open = fd, heard, 0, True
        os.set_blocking(fd, False)

    def until_ended(self, pid, most_cpu_s, most_wall_s):
        """Kills it when it says too much, or takes more CPU-seconds or wall seconds than that. True: CPU-seconds."""
        spent = False
        process, deadline = os.pidfd_open(pid), time.monotonic() + most_wall_s
        poll = select.poll()
        poll.register(process, select.POLLIN)
        poll.register(self.fd, select.POLLIN)
        while True:
            cpu_left_s = most_cpu_s - time.clock_gettime(~pid << 3 | 2)  # its CPU clock
            left = min(cpu_left_s, deadline - time.monotonic())
            spent = spent or cpu_left_s <= 0
            if left <= 0 or self.size == len(self.heard):
                os.kill(pid, 9)
            ready = {fd for fd, _ in poll.poll(min(max(0.0, left), 3600.0) * 1000 + 1)}
            if process in ready:
                break
            if self.open:
                self.drain()
                if not self.open:
                    poll.unregister(self.fd)
        os.close(process)
        return spent

    def drain(self):
        """What is there now."""
        while self.open and self.size < len(self.heard):
            try:
                got = os.readv(self.fd, [self.heard[self.size :]])
            except BlockingIOError:
                return
            self.size += got
            self.open = got > 0


def read_run(data, code, cpu_s, spent):
    """`results`: a letter for each test (p, f, s, or - for none); what was not a message makes the run `bad`."""
    results, details, said, bad = {}, {}, {}, len(data) > MAX_MESSAGES
    for line in data.split(b"\n")[:-1]:
        try:
            read_message(json.loads(line), results, details, said)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            bad = True
    return {
        "ended": "end" in said and code == 0,
        "code": code,
        "bad": bad,
        "results": "".join(results.get(index, "-") for index in range(max(results, default=-1) + 1)),
        "details": details,
        "cpu": code == -9 and spent,
        "broken": str(said.get("broken", ""))[:300],
        "patched": [str(item)[:80] for item in said.get("patched", [])][:20],
    }


def read_message(message, results, details, said):
    if "end" in said:
        raise ValueError("a message after the last")
    if "test" not in message:
        [(key, value)] = message.items()
        if key in said or type(value) is not {"end": int, "broken": str, "patched": list}[key]:
            raise ValueError("not a message")
        said[key] = value
        return
    index, outcome = message["test"], message["outcome"]
    if type(index) is not int or not 0 <= index < MAX_TESTS or index in results or outcome not in ("p", "f", "s"):
        raise ValueError("not a result, or the second one of a test")
    results[index] = outcome
    if message["detail"]:
        details[index] = str(message["detail"])[:200]


def cut(details, room):
    """As many details as fit."""
    kept = {}
    for index, text in sorted(details.items()):
        room -= len(text) + 10
        if room < 0:
            break
        kept[index] = text
    return kept, max(0, room)


def end_all():
    """Kill until this process has no child any more, however often they forked."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for pid in children():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        os.waitpid(-1, 0)


def children():
    """Read into memory that a fork does not copy: a process's name may be a note."""
    found, me, view = [], os.getpid(), memoryview(STAT)
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fd = os.open(f"/proc/{name}/stat", os.O_RDONLY)
                try:
                    size = os.readv(fd, [view])
                finally:
                    os.close(fd)
                parent = int(STAT[STAT.rfind(b")", 0, size) + 1 : size].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent == me:
                found.append(int(name))
    return found


def clear():
    """Nothing of a run stays for the next one. In a helper, since names are notes too. What cannot be removed is the end."""
    for top in WRITABLE:
        for entry in os.scandir(top):
            discard(entry)
        if os.stat(top).st_uid == os.getuid():  # a folder's times, mode and attributes would carry notes too
            os.chmod(top, 0o755 if top == "/work" else 0o1777)
            os.utime(top, (0, 0))
            for name in os.listxattr(top):
                os.removexattr(top, name)
    for kind, remove_one in (("shm", libc.shmctl), ("msg", libc.msgctl)):
        for number in ipc_numbers(kind):
            remove_one(number, IPC_REMOVE, None)
    for number in ipc_numbers("sem"):
        libc.semctl(number, 0, IPC_REMOVE)
    return 0


def discard(entry):
    if not entry.is_dir(follow_symlinks=False):
        os.unlink(entry.path)
        return
    os.chmod(entry.path, 0o700)
    for inner in os.scandir(entry.path):
        discard(inner)
    os.rmdir(entry.path)


def ipc_numbers(kind):
    try:
        with open(f"/proc/sysvipc/{kind}", encoding="ascii") as file:
            return [int(line.split()[1]) for line in file.readlines()[1:]]
    except OSError:
        return []


if __name__ == "__main__":
    main()

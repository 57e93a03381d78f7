"""Runs inside the sandbox as `python -s -P -S /tests/together.py`: many attempts, one after the other, a process each.

The keeper never runs a line of an attempt. It lays the attempt's files, forks a process that may do nothing but compute
and read (fence.py) and in which /tests/run.py goes on as if it were alone, passes on what that process said, and removes
the files. What the attempts are and what they said stays in memory that a fork does not copy; the file that it came in is
gone before the first begins. So an attempt finds nothing of the others and can leave nothing for them, as a browser's
pages that come from one process are kept apart.

Only what ended by itself, with little time and output, is passed on; everything else is run again, alone, and that run
counts. Not covered: between attempts that share a sandbox there is no wall of users or namespaces, and /proc tells how many
came before and how long they took; a hole in the kernel behind one of the calls that stay allowed.
"""

import contextlib
import ctypes
import gc
import importlib.util
import json
import mmap
import os
import resource
import select
import sys
import time

SECRET, WORK, RUN = "/work/secret", "/work", "/tests/run.py"
DUMPABLE = 4  # prctl
UNFIT = 3

libc = ctypes.CDLL(None)


def module_of(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
fence, run = module_of("/tests/fence.py", "fence"), module_of(RUN, "run")


def keep():
    """Returns in each process that is to run an attempt. The keeper itself ends here."""
    header = json.loads(read_all(0))
    allowed = fence.prepared(files=False)
    if allowed is None:
        os._exit(UNFIT)
    secret = take(SECRET)
    token, heard = secret[: header["token"]], region(header["room"] // 2)
    rules = fence.landlock(libc)
    libc.prctl(DUMPABLE, 0, 0, 0, 0)  # no other process may look into this one's memory and files
    patience, used = (min(1.0, header["cpu_s"] / 4), header["wall_s"] / 4), 0  # with each: CPU-seconds, wall seconds
    began = time.monotonic()
    say(token, b" ready\n")
    gc.freeze()
    for number, member in enumerate(header["members"]):
        if used > len(heard) or cpu_s() > header["cpu_s"] / 2 or time.monotonic() - began > header["wall_s"] / 2:
            break
        lay(member["files"], secret)
        job, said = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            become(job[0], said[1])
            fence.install(libc, rules, allowed)
            os.closerange(3, 1 << 10)
            return
        size = hear(pid, job, said, secret[slice(*member["job"])], heard, patience)
        remove(member["files"])
        used += size or 0
        say(heard[: size or 0], b"\n", token, b" %d %s\n" % (number, b"alone" if size is None else b"done"))
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
    return memoryview(memory)


def take(path):
    """The content of a file in such memory; the file is removed."""
    fd = os.open(path, os.O_RDONLY)
    view, done = region(os.fstat(fd).st_size), 0
    while read := os.readv(fd, [view[done:]]) if done < len(view) else 0:
        done += read
    os.close(fd)
    os.unlink(path)
    return view


def say(*parts):
    for part in parts:
        write(1, memoryview(part))


def write(fd, view):
    while view:
        view = view[os.write(fd, view) :]


def cpu_s():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def lay(files, secret):
    for folder in folders(files):
        os.mkdir(folder)
    for path, start, end in files:
        fd = os.open(f"{WORK}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        write(fd, secret[start:end])
        os.close(fd)


def remove(files):
    """An attempt makes no files, so these are all that there are."""
    for path, _, _ in files:
        os.unlink(f"{WORK}/{path}")
    for folder in reversed(folders(files)):
        os.rmdir(folder)


def folders(files):
    return sorted(
        {f"{WORK}/{path[:place]}" for path, _, _ in files for place in range(len(path)) if path[place] == "/"}
    )


def become(job, said):
    """In the forked process: the same descriptors, names and arguments as alone."""
    null = os.open(os.devnull, os.O_WRONLY)
    for fd, place in ((job, 0), (said, 1), (null, 2)):
        os.dup2(fd, place)
    libc.prctl(DUMPABLE, 1, 0, 0, 0)
    sys.argv[:] = [RUN]
    run.__name__ = "__main__"
    sys.modules["__main__"] = run


def hear(pid, job, said, text, heard, patience):
    """How many bytes it said, in `heard`. None when it has to be run alone: too much, too slow, or ended by a signal."""
    os.close(job[0])
    os.close(said[1])
    process = os.pidfd_open(pid)
    with contextlib.suppress(BrokenPipeError):
        write(job[1], text)
    os.close(job[1])
    size = listen(pid, process, said[0], heard, *patience)
    if size is None:
        os.kill(pid, 9)
    _, status, usage = os.wait4(pid, 0)
    os.close(process)
    os.close(said[0])
    return size if status == 0 and usage.ru_utime + usage.ru_stime < patience[0] else None


def listen(pid, process, fd, heard, most_cpu_s, most_wall_s):
    """Until it has ended and all is read; None when that takes too long or is too much."""
    poll, size, deadline = select.poll(), 0, time.monotonic() + most_wall_s
    poll.register(process, select.POLLIN)
    poll.register(fd, select.POLLIN)
    while size < len(heard):
        left = min(most_cpu_s - time.clock_gettime(~pid << 3 | 2), deadline - time.monotonic())  # its CPU clock
        if left <= 0:
            return None
        ready = {item for item, _ in poll.poll(left * 1000 + 1)}
        if process in ready and fd not in ready:
            return size
        if fd not in ready:
            continue
        got = os.readv(fd, [heard[size:]])
        if not got:
            poll.unregister(fd)
        size += got
    return None


if __name__ == "__main__":
    keep()
    run.main()

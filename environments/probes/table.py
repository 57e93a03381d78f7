"""The table of probes: what each tries, under which limits, how it may end, and how much it may get at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from environments.engines.base import MAX_COLLECTED_BYTES
from schemas.execution import ExecutionResult, Limits, Stop

# Small, so that exhausting them is quick and the host does not feel it.
LIMITS = Limits(cpu_s=3, wall_s=10, memory_mb=64, pids=20, disk_mb=8, output_kb=256)
SHORT = LIMITS.model_copy(update={"wall_s": 1.0})
MEMORY = (Stop.MEMORY, Stop.EXIT)
Check = Callable[[ExecutionResult, Limits], list[str]]


def _nothing(result: ExecutionResult, limits: Limits) -> list[str]:
    return []


@dataclass(frozen=True)
class Probe:
    """`program`/`name`: the file and the function below programs/. `tries`: fewer reports than this prove nothing.

    `most`: measured name -> the most that is contained. `plain`: beside its bait, with nothing between them, it must reach
    something or get more than `most`, which shows that the probe can see (bench/probes.py). `needs_group`: contained by a
    cgroup only; where rlimits are all there is, no limit covers it.
    """

    name: str
    program: Literal["exhaust", "network", "around", "kernel", "leaving"]
    what: str
    tries: int = 2
    limits: Limits = LIMITS
    stops: tuple[Stop, ...] = (Stop.EXIT,)
    most: dict[str, float] = field(default_factory=dict)
    collect: tuple[str, ...] = ()
    check: Check = _nothing
    how: Literal["once", "twice", "beside"] = "once"
    plain: bool = False
    needs_group: bool = False


def _cut(result: ExecutionResult, limits: Limits) -> list[str]:
    long = max(len(result.stdout.encode()), len(result.stderr.encode()))
    problems = [f"{long} bytes of output came back"] if long > limits.output_kb * 1024 * 3 else []
    return problems + ([] if result.truncated else ["26 MiB of output, and nothing was said to be cut"])


def _only(*allowed: str) -> Check:
    """Of the collected places nothing may come back but these, and the report."""

    def check(result: ExecutionResult, limits: Limits) -> list[str]:
        extra = set(result.files) - {"report.jsonl", *allowed}
        return [f"collected {name!r}: {result.files[name][:60]!r}" for name in sorted(extra)]

    return check


def _harmless(result: ExecutionResult, limits: Limits) -> list[str]:
    texts = {name: text for name, text in result.files.items() if name != "report.jsonl"}
    return [f"collected {name!r}: {text[:60]!r}" for name, text in texts.items() if text != "harmless"]


def _bounded(result: ExecutionResult, limits: Limits) -> list[str]:
    total = sum(len(text) for text in result.files.values())
    most = max((len(text) for text in result.files.values()), default=0)
    problems = [f"{total} characters were read back"] if total > limits.disk_mb << 20 else []
    return problems + ([f"a file of {most} characters"] if most > MAX_COLLECTED_BYTES else [])


def _said(result: ExecutionResult, limits: Limits) -> list[str]:
    return _bounded(result, limits) + ([] if result.truncated else ["files were left out and nothing said so"])


ALL = (Stop.EXIT, Stop.MEMORY, Stop.CPU, Stop.WALL, Stop.SIGNAL)
OUT = tuple(
    f"out/{name}" for name in ("link", "folder/secret.txt", "pipe", "socket", "device", "hard", "loop", "tests")
)
LEFT = ("out/plain", "out/swap", "out/real/secret.txt", "out/turned/secret.txt")

PROBES: tuple[Probe, ...] = (
    # processes and time
    Probe("fork_bomb", "exhaust", "forks until it is refused", 2, most={"processes": 21}, plain=True),
    Probe("fork_tree", "exhaust", "every process forks for ever", 1, SHORT, (Stop.WALL, Stop.CPU), {"processes": 22}),
    Probe("zombie_flood", "exhaust", "children that nobody waits for", 2, most={"processes": 21}, plain=True),
    Probe("thread_bomb", "exhaust", "threads until it is refused", 1, most={"threads": 21}, plain=True),
    Probe("respawner", "exhaust", "a chain of processes that outruns a list of pids", 1),
    Probe("cpu_many", "exhaust", "four processes that spin", 0, LIMITS.model_copy(update={"cpu_s": 1.0}), (Stop.CPU,)),
    Probe("deaf", "exhaust", "ignores every signal that it can", 0, SHORT, (Stop.WALL,)),
    Probe("silent", "exhaust", "closes its streams and stays", 0, SHORT, (Stop.WALL,)),
    Probe("stopped", "exhaust", "stops itself and its parent", 0, SHORT, (Stop.WALL,)),
    Probe("daemon", "exhaust", "a daemon that outlives its command", 1),
    Probe("daemon_at_timeout", "exhaust", "a daemon that outlives the time-out", 0, SHORT, (Stop.WALL,)),
    Probe("priority", "exhaust", "real-time priority, locked memory, no death for memory", 6),
    Probe("core_dump", "exhaust", "leaves an image of its memory", 3, stops=(Stop.SIGNAL,)),
    # memory
    Probe("memory_bomb", "exhaust", "one process takes all memory", 1, stops=MEMORY, most={"mib": 64}, plain=True),
    Probe("memory_many", "exhaust", "four processes, each below the limit", 0, stops=MEMORY, most={"mib": 64}, plain=True),
    Probe("memory_files", "exhaust", "files in memory that nobody maps", 1, stops=MEMORY, most={"mib": 64}, plain=True),
    Probe("memory_segments", "exhaust", "System V segments that nobody maps", 1, stops=MEMORY, most={"mib": 64}),
    Probe("memory_queues", "exhaust", "System V messages", 1, stops=MEMORY, most={"mib": 64}),
    Probe("memory_pipes", "exhaust", "full pipes", 1, stops=MEMORY, most={"mib": 64}),
    Probe("memory_sockets", "exhaust", "full sockets", 1, stops=MEMORY, most={"mib": 64}, plain=True,
          needs_group=True),
    Probe("inode_flood", "exhaust", "empty files: kernel memory, no disk", 1, stops=(*MEMORY, Stop.CPU), most={"mib": 128},
          needs_group=True),
    # disk, descriptors, output
    Probe("disk_fill", "exhaust", "fills every folder that it may write", 3,
          most={"disk /work": 8, "disk /tmp": 8, "disk /dev/shm": 8}),
    Probe("disk_sparse", "exhaust", "a file of 1 TiB, and 64 MiB set aside", 3, plain=True),
    Probe("descriptors", "exhaust", "open files until it is refused", 2, most={"descriptors": 1024}),
    Probe("terminals", "exhaust", "pseudo-terminals, whose number is the machine's", 2, most={"terminals": 900}),
    Probe("output_flood", "exhaust", "26 MiB on each stream", 0, check=_cut),
    Probe("output_held", "exhaust", "a daemon keeps the output open", 1, LIMITS.model_copy(update={"wall_s": 20.0})),
    # network
    Probe("host_tcp", "network", "TCP to the host", 5, plain=True),
    Probe("host_udp", "network", "UDP to the host", 3, plain=True),
    Probe("internet", "network", "the network outside, names, metadata service", 11),
    Probe("interfaces", "network", "interfaces and routes of the host", 5),
    Probe("abstract_unix", "network", "an abstract unix socket of the host", 3, plain=True),
    Probe("path_unix", "network", "a socket file of the host, Docker's included", 6, plain=True),
    Probe("families", "network", "sockets of every other address family", 61),
    Probe("pairs", "network", "the same through socketpair", 62),
    Probe("raw", "network", "raw and packet sockets", 5),
    Probe("netlink", "network", "links of the host, a new link, the audit log", 4),
    Probe("listener", "network", "listens where the host could be asked", 1),
    # the host around
    Probe("host_files", "around", "files of the host, to read and to write", 16, plain=True),
    Probe("climbing", "around", "out through .., roots of processes, file handles", 9, plain=True),
    Probe("read_only", "around", "changes the image, the interpreter, the tests", 18),
    Probe("environments", "around", "variables and memory of other processes", 5, plain=True),
    Probe("inherited", "around", "descriptors that the engine forgot", 5),
    Probe("other_processes", "around", "signals, stops and slows a process of the host", 9, plain=True),
    Probe("kill_all", "around", "kills whatever it may", 0, stops=ALL),
    Probe("runtime", "around", "overwrites the sandbox's own first process", 0, SHORT, stops=ALL),
    Probe("trace", "around", "traces and reads other processes", 3),
    Probe("devices", "around", "makes and opens device nodes", 24),
    Probe("mounts", "around", "mounts, unmounts, writable again", 14),
    Probe("namespaces", "around", "new namespaces, and those of others", 18),
    Probe("shared_memory", "around", "shared memory of the host", 4, plain=True),
    Probe("left_over", "around", "what one run leaves for the next", 9, how="twice"),
    Probe("hog", "around", "takes what the kernel counts by user", 3, how="beside"),
    Probe("sysctl", "around", "settings of the kernel", 5, plain=True),
    Probe("maps", "around", "another user by the user map", 4),
    Probe("cgroups", "around", "its own limits", 2),
    # the kernel
    Probe("keys", "kernel", "key rings that outlive it", 3),
    Probe("io_uring", "kernel", "a second way to call the kernel", 2, plain=True),
    Probe("bpf", "kernel", "programs and maps in the kernel", 2),
    Probe("perf", "kernel", "counters of processes and machine", 3),
    Probe("exotic", "kernel", "calls that exploits like", 1),
    Probe("rights", "kernel", "root, groups, capabilities", 13, plain=True),
    Probe("setuid_files", "kernel", "programs with the set-user bit", 5),
    Probe("prctl", "kernel", "undoes the filter and what was dropped", 7),
    Probe("clock", "kernel", "sets the clock", 6),
    Probe("control", "kernel", "modules, reboot, swap, the kernel's log", 7),
    Probe("terminal", "kernel", "pushes keys into a terminal", 17),
    Probe("other_tables", "kernel", "32-bit and x32 calls past the filter", 2),
    # what is collected
    Probe("links", "leaving", "links to files of the host", 2, collect=OUT, check=_only()),
    Probe("specials", "leaving", "a pipe, a socket, closed files and folders", 1, collect=OUT, check=_only()),
    Probe("swapped", "leaving", "links swapped while they are collected", 1, collect=LEFT, check=_harmless),
    Probe("bombs", "leaving", "sparse files, an archive bomb, bytes that are no text", 2,
          collect=("out/sparse", "out/bomb.gz", "out/invalid", "out/surrogate"), check=_said),
    Probe("too_much", "leaving", "200 MiB to read in 1 MiB of disk", 1,
          collect=tuple(f"out/{number}" for number in range(150)), check=_said),
    Probe("deep", "leaving", "folders 1500 deep, strange names", 1,
          collect=("out/new\nline", "out/\x1b[2J", "out/ü", "out/-rf", "out/..."), check=_bounded),
    Probe("replaced", "leaving", "moves the tree away and closes it", 3, collect=("out/kept", "out/etc/passwd"), check=_only()),
)  # fmt: skip

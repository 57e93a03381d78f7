"""Executions whose result must be the same on every engine, each with the part of it that is known beforehand."""

from __future__ import annotations

from typing import Any, NamedTuple

from schemas.execution import Execution, Limits

PYTHON = ["/usr/bin/python3", "-I", "-S", "-c"]
MIB = 1 << 20
NAMES = ["--help", "a b", "new\nline", "$(id)", "ü", "-rf", "...", ".wh.x", ".wh..wh..opq", "back\\slash", "x" * 255]
DEEP = "/".join(["d" * 100] * 9)
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2): os.close(fd)
        os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)  # left-by-a-test'])
    os._exit(0)
time.sleep(0.3); print('left')
"""


class Case(NamedTuple):
    name: str
    execution: Execution
    limits: Limits
    expected: dict[str, Any]


def _case(name: str, code: str, expected: dict[str, Any], limits: Limits | None = None, **given: Any) -> Case:
    execution = Execution.model_validate({"argv": [*PYTHON, code], "files": {}, **given})
    return Case(name, execution, limits or Limits(), expected)


# --- streams, files, habits ----------------------------------------------------------------------------------------

_STREAMS = "import sys; print(sys.stdin.read().upper()); print('no', file=sys.stderr); sys.exit(3)"
_TREES = """
import os
print(open('p/a').read(), open('/tests/q/t').read(), os.getcwd())
print([oct(os.stat(path).st_mode) for path in ('.', 'p', 'p/a', '/tests', '/tests/q', '/tests/q/t', '/tmp', '/dev/shm')])
"""
_NAMES = "import os; print(sorted(os.listdir('.')) == sorted(os.listdir('/tests')), len(os.listdir('.')))"
_LEAVES = """
import os, socket
os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'folder'); os.mkfifo('pipe'); os.mkdir('d'); os.mkdir('closed')
os.symlink('real', 'inner'); open('real', 'wb').write(b'r\\xff'); open('secret', 'w').write('s'); os.chmod('secret', 0)
open('closed/in', 'w').write('c'); os.chmod('closed', 0); os.makedirs('only/x'); open('only/x/f', 'w').write('o')
os.chmod('only', 0o111); open('huge', 'w').truncate(9 << 20); os.remove('gone'); open('full', 'w').write('f' * (1 << 20))
socket.socket(socket.AF_UNIX).bind('sock')
"""
_LEFT = [
    "link",
    "folder/passwd",
    "pipe",
    "d",
    "closed/in",
    "only/x/f",
    "inner",
    "real",
    "secret",
    "huge",
    "gone",
    "full",
]
_LEFT_READABLE = {"real": "r\ufffd", "only/x/f": "o", "full": "f" * MIB}
_HABITS = """
import os, resource as r
print(oct(os.umask(0)), os.getsid(0), os.getpgrp(), sorted(os.listdir('/proc/self/fd')), os.uname().nodename)
print([r.getrlimit(k) for k in (r.RLIMIT_STACK, r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CPU, r.RLIMIT_CORE)])
print(open('/proc/self/status').read().split('SigIgn:')[1].split()[0], sorted(os.environ.items()))
"""
_NETWORK = """
import socket
for address in (('127.0.0.1', 9), ('192.0.2.1', 80), ('localhost', 80)):
    try: socket.create_connection(address, 2)
    except OSError as error: print(error)
for family in (40, 17, 38, 31, 1, 2, 10, 16):
    try: socket.socket(family, socket.SOCK_RAW if family == 16 else socket.SOCK_STREAM); print(family, 'open')
    except OSError as error: print(family, error.errno)
print(open('/proc/net/dev').read().count(':'))
"""
_PYTEST = ["python", "-m", "pytest", "-qq", "-p", "no:cacheprovider", "-o", "console_output_style=classic", "/tests"]
_TEST = "import sys; sys.path.insert(0, '/work')\nfrom a import f\ndef test_f(): assert f(1) == 2\n"

ORDINARY = [
    _case("streams", _STREAMS, {"exit_code": 3, "stdout": "GRÜSSE\n", "stderr": "no\n"}, stdin="grüße"),
    _case("large input", "import sys; print(len(sys.stdin.read()))", {"stdout": "300000\n"}, stdin="x" * 300_000),
    _case("no input", "import os; print(os.read(0, 10))", {"stdout": "b''\n"}),
    _case("not UTF-8", "import os; os.write(1, b'\\xff\\xe2\\x82'); os.write(2, b'\\0\\x1b[31m')", {"stdout": "\ufffd\ufffd"}),
    _case("trees", _TREES, {"exit_code": 0}, files={"p/a": "A"}, readonly={"q/t": "T"}),
    _case(
        "strange names", _NAMES, {"stdout": f"True {len(NAMES)}\n", "files": dict.fromkeys(NAMES, "x")},
        files=dict.fromkeys(NAMES, "x"), readonly=dict.fromkeys(NAMES, "y"), collect=NAMES,
    ),
    _case("a long path", "pass", {"files": {DEEP: "deep"}}, files={DEEP: "deep"}, collect=[DEEP]),
    _case("read-back", _LEAVES, {"files": _LEFT_READABLE, "truncated": True}, files={"gone": "x"}, collect=[*_LEFT, "sock"]),
    _case(
        "read-back beyond the disk", "[open(f'f{i}', 'wb').truncate(1 << 20) for i in range(3)]",
        {"files": {"f0": "\0" * MIB, "f1": "\0" * MIB}, "truncated": True}, Limits(disk_mb=2), collect=["f0", "f1", "f2"],
    ),
    _case("no way in", "import os; open('a', 'w').write('x'); os.chmod('/work', 0)", {"files": {}}, collect=["a"]),
    _case("habits", _HABITS, {"exit_code": 0}),
    _case("network", _NETWORK, {"exit_code": 0}),
    _case("pytest", "", {"stdout": ".\n"}, argv=_PYTEST, files={"a.py": "def f(x): return x + 1\n"}, readonly={"test_a.py": _TEST}),
    _case("a daemon", DAEMON, {"stdout": "left\n"}),
]  # fmt: skip

# --- ends and limits -----------------------------------------------------------------------------------------------

_MISSING, _NOT_A_PROGRAM = "execvp ./run: No such file or directory\n", "execvp ./run: Permission denied\n"
_LOOPS = "import os\nfor _ in range(2): os.fork()\nwhile True: pass"
_CHILD = """
import os, time
if os.fork() == 0:
    while time.process_time() < 0.4: pass
    os._exit(0)
os.wait()
"""
_SLEEP = "open('a', 'w').write('before'); import time; print(1, flush=True); time.sleep(99)"
_BOMB = "x = bytearray()\nwhile True: x += bytes(1 << 20)"
_MANY = "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(b'x' * (20 << 20)); time.sleep(20)"
_BY_FILES = "for folder in ('/work', '/tmp', '/dev/shm'): open(folder + '/f', 'wb').write(bytes(15 << 20))"
_DEAD = "import os\nif os.fork() == 0: x = b'x' * (200 << 20); os._exit(0)\nos.wait()"
_FORKS = """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0: time.sleep(60); os._exit(0)
        count += 1
except BlockingIOError: print(count)
"""
_FLOOD = "import os\nfor _ in range(640): os.write(1, b'y' * 65536)\nos.write(2, b'end')"
_FILL = """
n = 0
try:
    for i in range(64):
        with open('%s/f%%d' %% i, 'wb', buffering=0) as f:
            while f.tell() < 1 << 20: n += f.write(bytes(65536))
except OSError as error: print(error.errno)
print(n >> 20)
"""
_LARGE = "import signal as s; s.signal(s.SIGXFSZ, s.SIG_DFL); open('/tmp/f', 'wb').truncate((4 << 20) + 1)"

ENDS = [
    _case("exit code 137", "import os; os._exit(137)", {"stop": "signal", "exit_code": None}),
    _case("exit code 193", "import os; os._exit(193)", {"stop": "exit", "exit_code": 193}),
    _case("segmentation fault", "import os; os.kill(os.getpid(), 11)", {"stop": "signal", "exit_code": None}),
    _case("a missing file", "", {"exit_code": 127, "stderr": _MISSING}, argv=["./run"]),
    _case("not a program", "", {"exit_code": 127, "stderr": _NOT_A_PROGRAM}, argv=["./run"], files={"run": "x"}),
    _case("endless loop", "while True: pass", {"stop": "cpu", "exit_code": None}, Limits(cpu_s=0.5, wall_s=60)),
    _case("four endless loops", _LOOPS, {"stop": "cpu"}, Limits(cpu_s=1, wall_s=60)),
    _case("just over", "import time\nwhile time.process_time() < 0.3: pass", {"stop": "cpu"}, Limits(cpu_s=0.2)),
    _case("seconds of a child that ended", _CHILD, {"stop": "cpu"}, Limits(cpu_s=0.3)),
    _case("sleep", _SLEEP, {"stop": "wall", "stdout": "1\n", "files": {"a": "before"}}, Limits(wall_s=1), collect=["a"]),
    _case("memory bomb", _BOMB, {"stop": "memory", "exit_code": None}, Limits(memory_mb=64)),
    _case("memory of many", _MANY, {"stop": "memory"}, Limits(memory_mb=64)),
    _case("memory by files", _BY_FILES, {"stop": "memory"}, Limits(memory_mb=24)),
    _case("memory of the dead", _DEAD, {"stop": "memory"}, Limits(memory_mb=64)),
    _case("fork bomb", _FORKS, {"stop": "exit", "stdout": "19\n"}, Limits(pids=20)),
    _case("one process", _FORKS, {"stdout": "0\n"}, Limits(pids=1)),
    _case("the least", "print(1)", {"stdout": "1\n"}, Limits(memory_mb=16, pids=1, disk_mb=1, output_kb=1)),
    _case("output flood", _FLOOD, {"stdout": "y" * 8192, "stderr": "end", "truncated": True}, Limits(output_kb=8)),
    *(_case(f"fill of {at}", _FILL % at, {"stdout": "28\n4\n"}, Limits(disk_mb=4)) for at in ("/work", "/tmp", "/dev/shm")),
    _case("a large file", _LARGE, {"stop": "signal"}, Limits(disk_mb=4)),
]  # fmt: skip

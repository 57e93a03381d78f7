"""Docker beside bubblewrap: the same execution gives the same result and the same task the same verdict, nothing is shared
between attempts, and a broken daemon is no result.

A real dockerd, started and stopped here (tests/dockerd.py). The whole default suite: python -m bench.engines --out FILE.json
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dockerd import Dockerd, dockerd
from executions import DAEMON, ENDS, ORDINARY, PYTHON, Case

from bench.engines import compare, sample
from environments import docker_image
from environments.bundles import Bundle, builtin
from environments.conditions import DAY, Change, Changed
from environments.engines import Engine, Outcome, SandboxEngine, missing, open_engine
from environments.engines.bubblewrap import BubblewrapEngine
from environments.engines.docker import DockerEngine
from environments.engines.docker_daemon import LABEL, is_stale
from environments.image import Image, build_image
from evals.verify import Verifier
from schemas.errors import InputError, IntegrityError, SandboxError
from schemas.execution import Environment, Execution, ExecutionResult, Limits, Stop


@pytest.fixture(scope="module")
def image() -> Image:
    return build_image(Path(tempfile.gettempdir()) / "postloop-test-images")


@pytest.fixture(scope="module")
def daemon() -> Iterator[str]:
    with dockerd() as url:
        yield url


@pytest.fixture(scope="module")
def client(daemon: str) -> Any:
    return _client(daemon)


def _client(url: str) -> Any:
    import docker

    return docker.APIClient(base_url=url, version="auto")


@pytest.fixture(scope="module")
def engine(daemon: str) -> Iterator[DockerEngine]:
    engine = DockerEngine()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def bubblewrap() -> SandboxEngine:
    return open_engine("bubblewrap")


@pytest.fixture(scope="module", params=["bubblewrap", "docker"])
def either(request: pytest.FixtureRequest, engine: DockerEngine, bubblewrap: SandboxEngine) -> SandboxEngine:
    return engine if request.param == "docker" else bubblewrap


def execute(engine: Engine, image: Image, code: str, limits: Limits | None = None, **more: object) -> Outcome:
    return engine.run(image.root, image.environment, command(code, **more), limits or Limits())


def answer(engine: Engine, image: Image, code: str, **more: object) -> str:
    return good(execute(engine, image, code, **more))


def good(outcome: Outcome) -> str:
    result = outcome.result
    assert (result.stop, result.exit_code, result.stderr) == (Stop.EXIT, 0, "")
    return result.stdout


def command(code: str, **more: object) -> Execution:
    return Execution.model_validate({"argv": [*PYTHON, code], "files": {}, **more})


def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except Exception:  # noqa: BLE001
        return False
    return True


# --- the same result on both ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*ORDINARY, *ENDS], ids=lambda case: case.name)
def test_both_engines_give_the_same_result(engine: DockerEngine, bubblewrap: Engine, image: Image, case: Case) -> None:
    outcomes = [each.run(image.root, image.environment, case.execution, case.limits) for each in (engine, bubblewrap)]
    in_docker, in_bubblewrap = (outcome.result.model_dump(mode="json") for outcome in outcomes)
    assert in_docker == in_bubblewrap
    assert in_docker == {**in_docker, **case.expected}


@pytest.mark.parametrize(("verifier", "count"), [("cases", 6), ("pytest_files", 1)])
def test_the_same_task_gives_the_same_verdict(
    engine: DockerEngine, bubblewrap: SandboxEngine, image: Image, verifier: str, count: int
) -> None:
    """Gold, no-op and wrong of tasks of every skill of the default suite."""
    with contextlib.ExitStack() as stack:
        verifiers = {
            each.name: Verifier(
                stack.enter_context(Bundle(builtin(verifier))), image.environment, image.root, each, Limits()
            )
            for each in (bubblewrap, engine)
        }
        found = compare(verifiers, sample(count, seed=3), workers=2)
    assert found["verdicts"] == 3 * 3 * count
    assert found["differences"] == []
    assert found["surprises"] == []


def test_another_condition_changes_both_alike(engine: DockerEngine, bubblewrap: SandboxEngine, image: Image) -> None:
    code = "import os, time, random, datetime as d; print(int(time.time()) - d.date(2024, 2, 29).toordinal(), d.date.today())"
    code += "; print(random.random(), len({'a', 'b'}), hash('a'), os.environ['MORE'], os.sysconf('SC_PAGE_SIZE'))"
    change = Change(
        freeze=1_000_000_000.0, randomness=7, hash_seed=5, variables={"MORE": "x"}, limits={"memory_mb": 128}
    )
    answers = {each.name: answer(Changed(each, change), image, code) for each in (engine, bubblewrap)}
    assert answers["docker"] == answers["bubblewrap"]
    assert "2001-09-09" in answers["docker"]
    late = answer(Changed(engine, Change(clock_s=400 * DAY)), image, "import time; print(time.time())")
    assert 399 * DAY < float(late) - time.time() < 401 * DAY


def test_what_the_network_blocked_is_counted(either: SandboxEngine, image: Image) -> None:
    code = """
import socket
def tried(attempt):
    try: attempt(); print('DONE')
    except OSError: pass
for family, address in ((socket.AF_INET, '192.0.2.1'), (socket.AF_INET6, '2001:db8::1')):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        tried(lambda: socket.socket(family, kind).connect((address, 80)))
tried(lambda: socket.getaddrinfo('example.org', 80))
"""
    outcome = execute(either, image, code)
    assert good(outcome) == ""
    assert outcome.telemetry["network"] >= 5
    local = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname()); print(1)"
    )
    for harmless in ("print(1)", local):
        assert "network" not in execute(either, image, harmless).telemetry


def test_no_daemon_process_outlives_its_execution(either: Engine, image: Image) -> None:
    for limits, then in ((Limits(), ""), (Limits(cpu_s=1), "while True: pass"), (Limits(wall_s=1), "time.sleep(99)")):
        execute(either, image, f"{DAEMON}\n{then}", limits)
        assert not alive("left-by-a-test")


def alive(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def test_what_the_caller_got_wrong_is_told_alike(either: Engine, image: Image, tmp_path: Path) -> None:
    for path in ("/etc/passwd", "../x", "a\0b"):
        for place in ({"files": {path: "x"}}, {"readonly": {path: "x"}}, {"collect": [path]}):
            with pytest.raises(InputError):
                execute(either, image, "pass", **place)
    with pytest.raises(InputError, match="is not in the image"):
        either.run(image.root, image.environment, Execution(argv=["nonesuch"], files={}), Limits())
    wrong = image.environment.model_copy(update={"variables": {"LD_PRELOAD": "/work/x.so"}})
    with pytest.raises(InputError, match="cannot be set; remove it"):
        either.run(image.root, wrong, Execution(argv=["python"], files={}), Limits())
    (tmp_path / "root").mkdir()
    with pytest.raises(IntegrityError, match=f"recorded layer {image.environment.layer}, found"):
        either.run(tmp_path / "root", image.environment, Execution(argv=["python"], files={}), Limits())


def test_eight_threads_get_their_own_answers(either: Engine, image: Image) -> None:
    def one(number: int) -> str:
        files = {f"f{i}": str(number) for i in range(30)}
        return answer(either, image, "print(open('f29').read())", files=files, collect=["f1"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == [f"{number}\n" for number in range(8)]


# --- walls ---------------------------------------------------------------------------------------------------------


def test_the_user_is_nobody_special_and_the_rest_cannot_be_written(engine: DockerEngine, image: Image) -> None:
    code = """
import os
print(os.getresuid(), os.getresgid(), [bool(os.statvfs(path).f_flag & os.ST_RDONLY) for path in ('/', '/proc/sys')])
names = ('CapInh', 'CapEff', 'CapPrm', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp:')
print({line.split()[1] for line in open('/proc/self/status') if line.startswith(names[:5])},
      [line.split()[1] for line in open('/proc/self/status') if line.startswith(names[5:])])
attempts = [lambda p=p: open(p, 'w') for p in ('/tests/t.py', '/tests/new', '/usr/x', '/dev/x', '/etc/passwd', '/.dockerenv',
    '/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/sys/fs/cgroup/memory/memory.limit_in_bytes', '/etc/hosts/x', '/x')]
attempts += [lambda: os.remove('/tests/t.py'), lambda: os.chmod('/tests/t.py', 0o777), lambda: os.chmod('/tests', 0o777),
    lambda: os.rename('/tests', '/t'), lambda: os.mkdir('/sys/fs/cgroup/x'), lambda: os.mknod('n', 0o20666, os.makedev(1, 1))]
for number, attempt in enumerate(attempts):
    try: attempt(); print('DONE', number)
    except OSError: pass
print(open('/tests/t.py').read())
"""
    lines = answer(engine, image, code, readonly={"t.py": "T"}).splitlines()
    assert lines[0] == "(10001, 10001, 10001) (10001, 10001, 10001) [True, True]"
    assert lines[1] == "{'0000000000000000'} ['1', '2']"
    assert lines[2:] == ["T"]


def test_the_host_is_not_visible(engine: DockerEngine, image: Image) -> None:
    paths = [
        "/etc/shadow",
        str(Path(__file__).resolve()),
        "/root",
        "/home",
        "/bin/sh",
        str(image.root),
        "/var/run/docker.sock",
    ]
    code = f"""
import os
print([p for p in {paths!r} if os.path.exists(p)])
print([os.listdir('/sys/' + name) for name in ('devices', 'class', 'kernel', 'firmware', 'module', 'block')])
print([open('/etc/' + name).read() for name in ('hosts', 'hostname', 'resolv.conf')])
"""
    assert answer(engine, image, code).splitlines() == ["[]", str([[]] * 6), str([""] * 3)]


def test_the_first_process_cannot_be_touched(engine: DockerEngine, image: Image) -> None:
    code = """
import ctypes, os, resource, signal
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, attempt):
    try: attempt(); print(name, 'done')
    except OSError as error: print(name, error.errno)
for place in ('mem', 'fd/0', 'fd/1', 'environ', 'maps', 'root/etc/passwd', 'oom_score_adj', 'task/1/mem', 'ns/pid', 'cwd'):
    tried(place, lambda: os.close(os.open('/proc/1/' + place, os.O_RDWR if place in ('mem', 'oom_score_adj') else os.O_RDONLY)))
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU):
    tried('prlimit', lambda: resource.prlimit(1, kind, (0, 0)))
tried('affinity', lambda: os.sched_setaffinity(1, {0}))
tried('scheduler', lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
for which, who in ((os.PRIO_PROCESS, 1), (os.PRIO_PGRP, 0), (os.PRIO_PGRP, 1), (os.PRIO_USER, 0), (os.PRIO_USER, 10001)):
    tried('priority', lambda: os.setpriority(which, who, 19))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGUSR1):
    os.kill(1, number)
print('ptrace', libc.ptrace(16, 1, 0, 0), ctypes.get_errno())
resource.prlimit(0, resource.RLIMIT_CORE, (0, 0)); os.sched_setaffinity(0, os.sched_getaffinity(0)); os.nice(1)
open('a', 'w').write('end')
"""
    result = execute(engine, image, code, collect=["a"]).result
    assert (result.stop, result.exit_code, result.files) == (Stop.EXIT, 0, {"a": "end"})
    lines = result.stdout.splitlines()
    assert len(lines) == 21
    assert [line for line in lines if line.endswith("done")] == []


def test_dangerous_system_calls_are_refused(engine: DockerEngine, image: Image) -> None:
    code = """
import ctypes, errno, fcntl
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, *args):
    ctypes.set_errno(0)
    print(name, getattr(libc, name)(*args) == -1 and ctypes.get_errno() == errno.EPERM)
refused('ptrace', 0, 0, 0, 0); refused('unshare', 0x10000000); refused('unshare', 0x20000); refused('setns', 0, 0)
refused('mount', b'none', b'/tmp', b'tmpfs', 0, None); refused('umount2', b'/tests', 2); refused('chroot', b'/tmp')
refused('syscall', 425, 1, 0); refused('personality', 0xffffffff)
try: fcntl.ioctl(0, 0x5412, b'x'); print('TIOCSTI', False)
except OSError as error: print('TIOCSTI', error.errno == errno.EPERM)
"""
    lines = answer(engine, image, code).splitlines()
    assert len(lines) == 10
    assert [line for line in lines if not line.endswith("True")] == []


TRACES = """
import os
print(os.getpid(), [name for name in sorted(os.listdir('/proc')) if name.isdigit()])
print([os.listdir(folder) for folder in ('/work', '/tests', '/tmp', '/dev/shm', '/dev/mqueue')])
print([len(open('/proc/sysvipc/' + kind).readlines()) for kind in ('shm', 'sem', 'msg')])
print([line.split()[:3] for line in open('/proc/net/dev') if ':' in line])
print([len(open('/proc/net/' + name).readlines()) for name in ('tcp', 'udp', 'unix')])
print(oct(os.stat('/work').st_mode), os.listxattr('/work'), os.environ.get('LEFT'), os.times()[:2] < (1, 1))
counters = {k: v for k, v in zip(*[line.split()[1:] for line in open('/proc/net/snmp') if line.startswith('Tcp:')])}
print(counters['ActiveOpens'], counters['InSegs'])
peaks = [f'/sys/fs/cgroup/{name}' for name in ('memory/memory.max_usage_in_bytes', 'memory.peak')]
print([int(open(path).read()) < 20 << 20 for path in peaks if os.path.exists(path)])
"""
PLACE = "print(open('/proc/self/cgroup').readline().strip().rpartition('/')[2])"
LITTER = """
import ctypes, os, socket
for folder in ('/work', '/tmp', '/dev/shm'): open(folder + '/left', 'w').write('x'); os.symlink('x', folder + '/link')
libc = ctypes.CDLL(None, use_errno=True)
print([call >= 0 for call in (libc.shmget(77, 4096, 0o1666), libc.semget(77, 1, 0o1666), libc.msgget(77, 0o1666))])
print(libc.syscall(240, b'left', 0o102, 0o600, None) >= 0)
server = socket.create_server(('127.0.0.1', 7777)); a = socket.create_connection(('127.0.0.1', 7777)); b, _ = server.accept()
b.sendall(b'x' * 100); a.recv(100); b.close(); a.close()
hidden = socket.socket(socket.AF_UNIX); hidden.bind(b'\\0left'); hidden.listen()
os.chmod('/work', 0o700)
try: os.setxattr('/work', 'user.left', b'x')
except OSError: pass
x = bytearray(b'x' * (100 << 20)); del x
for _ in range(20):
    if os.fork() == 0: os._exit(0)
if os.fork() == 0:
    import time; time.sleep(60)
"""


def test_nothing_of_an_execution_is_left_for_the_next(engine: DockerEngine, image: Image) -> None:
    fresh = answer(engine, image, TRACES)
    assert fresh.splitlines()[:2] == ["32 ['1', '32']", "[[], [], [], [], []]"]
    for _ in range(2):
        assert answer(engine, image, LITTER) == "[True, True, True]\nTrue\n"
        assert answer(engine, image, TRACES) == fresh


def test_each_execution_has_a_container_of_its_own_made_ahead(engine: DockerEngine, client: Any, image: Image) -> None:
    used = [answer(engine, image, PLACE).strip() for _ in range(2)]
    waiting = list(engine._pool._ready.values())[-1]
    ahead = {future.result().id for future in waiting}
    assert len(ahead) == 2
    assert ahead <= {item["Id"] for item in client.containers(filters={"label": LABEL})}
    used += [answer(engine, image, PLACE).strip() for _ in range(2)]
    assert len(set(used)) == 4
    assert ahead == set(used[2:])
    until(lambda: not set(used) & {item["Id"] for item in client.containers(all=True)})


def test_nothing_is_left_behind(client: Any, image: Image) -> None:
    def things() -> tuple[set[str], int, int]:
        names = {item["Id"] for item in client.containers(all=True)}
        names |= {item["Name"] for item in client.volumes()["Volumes"] or []}
        return names, len(os.listdir("/proc/self/fd")), threading.active_count()

    def nothing_more() -> bool:
        names, descriptors, threads = things()
        return names <= before[0] and descriptors <= before[1] and threads <= before[2]

    before = things()
    engine = DockerEngine(spare=2)
    for limits in (Limits(), Limits(memory_mb=128), Limits(memory_mb=64)):  # three kinds, of which two are kept ready
        execute(engine, image, "pass", limits, files={"a": "b"}, readonly={"c": "d"}, stdin="x", collect=["a"])
    execute(engine, image, "import time; time.sleep(9)", Limits(wall_s=0.05))
    with contextlib.closing(engine.start(image.root, image.environment, Limits())) as sandbox:
        for _ in range(3):
            sandbox.run(command("pass", stdin="x"))
        sandbox.snapshot()
    engine.close()
    until(nothing_more, 5)
    with pytest.raises(RuntimeError):
        execute(engine, image, "pass")
    one = DockerEngine()
    execute(one, image, "pass")
    del one, engine, sandbox  # without close
    until(nothing_more)


# --- several executions of one attempt --------------------------------------------------------------------------------

REMAINS = """
import os
print([os.listdir(folder) for folder in ('/work', '/tmp', '/dev/shm', '/dev/mqueue') if os.path.isdir(folder)])
print([len(open('/proc/sysvipc/' + kind).readlines()) for kind in ('shm', 'sem', 'msg')])
print([name for name in os.listdir('/proc') if name.isdigit() and int(name) not in (1, os.getpid())])
print([oct(os.stat(folder).st_mode) for folder in ('/work', '/tmp', '/dev/shm')], os.listxattr('/work'))
print(len(open('/proc/net/unix').readlines()))
"""
SPREAD = """
import os
for path in ('a/b/c', 'closed/d', 'n\\n'): os.makedirs(path); open(path + '/f', 'w').write('x')
os.chmod('closed/d/f', 0); os.chmod('closed/d', 0); os.chmod('closed', 0); os.symlink('/etc', 'link'); os.mkfifo('pipe')
os.chmod('/tmp', 0); os.chmod('/work', 0)
"""


def test_executions_of_an_attempt_find_nothing_of_one_another(either: SandboxEngine, image: Image) -> None:
    with contextlib.closing(either.start(image.root, image.environment, Limits(cpu_s=1))) as sandbox:
        fresh = good(sandbox.run(command(REMAINS)))
        assert fresh.startswith("[[], [], []")
        for litter, files in ((LITTER, {}), (SPREAD, {"start": "x"}), ("open('a', 'w')", {"a": "1", "b/c": "2"})):
            assert sandbox.run(command(litter, files=files)).result.exit_code == 0
            assert good(sandbox.run(command(REMAINS))) == fresh
        outcome = sandbox.run(
            command("print(open('a').read()); open('b', 'w').write('2')", files={"a": "1"}, collect=["b"])
        )
        assert (good(outcome), outcome.result.files) == ("1\n", {"b": "2"})
        assert sandbox.run(command("while True: pass", stdin="x")).result.stop is Stop.CPU
        assert good(sandbox.run(command("import sys; print(sys.stdin.read())"))) == "\n"


def test_an_attempt_keeps_its_container_and_nobody_else_gets_it(engine: DockerEngine, image: Image) -> None:
    start = partial(engine.start, image.root, image.environment, Limits())
    with contextlib.closing(start()) as one, contextlib.closing(start()) as other:
        first = good(one.run(command(PLACE)))
        assert good(other.run(command(PLACE))) != first
        assert good(one.run(command(PLACE))) == first
        tests = good(one.run(command(PLACE, readonly={"t": "1"})))  # nobody inside could remove what lies in /tests
        assert tests != first
        assert good(one.run(command("print(open('/tests/t').read())", readonly={"t": "1"}))) == "1\n"
        assert good(one.run(command(PLACE, readonly={"t": "1"}))) == tests
        assert good(one.run(command("import os; print(os.listdir('/tests'))"))) == "[]\n"
    with contextlib.closing(start()) as another:
        assert good(another.run(command(PLACE))) not in {first, tests}


def test_an_attempt_that_spoils_its_container_gets_another(engine: DockerEngine, client: Any, image: Image) -> None:
    with contextlib.closing(engine.start(image.root, image.environment, Limits(memory_mb=64))) as sandbox:
        first = good(sandbox.run(command(PLACE)))
        assert sandbox.run(command("x = bytearray()\nwhile True: x += bytes(1 << 20)")).result.stop is Stop.MEMORY
        second = good(sandbox.run(command(PLACE)))
        many = "for i in range(6000): open(str(i), 'w').close()"
        assert sandbox.run(command(many)).result.exit_code == 0
        third = good(sandbox.run(command(PLACE)))
        assert len({first, second, third}) == 3
        client.kill(sandbox._container.id)  # type: ignore[attr-defined]
        assert good(sandbox.run(command(PLACE))) not in {first, second, third}
        client.kill(sandbox._container.id)  # type: ignore[attr-defined]
        with pytest.raises(SandboxError, match="the sandbox died before its answer"):
            sandbox.snapshot()


def test_a_snapshot_has_every_regular_file_and_nothing_else(either: SandboxEngine, image: Image) -> None:
    code = """
import os, socket
os.remove('gone'); open('bytes', 'wb').write(bytes(range(256))); os.makedirs('d/e'); open('d/e/f', 'w').write('f')
os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'folder'); os.symlink('d', 'inner'); os.mkfifo('pipe')
socket.socket(socket.AF_UNIX).bind('sock'); os.link('bytes', 'same'); open('secret', 'w').write('s'); os.chmod('secret', 0)
os.mkdir('closed'); open('closed/in', 'w').write('c'); os.chmod('closed', 0o100); open('/tmp/other', 'w').write('x')
"""
    whole = {"kept/k": b"k", "bytes": bytes(range(256)), "same": bytes(range(256)), "d/e/f": b"f"}
    bad = [
        "open('huge', 'w').truncate(9 << 20)",
        "import os; open(b'\\xff', 'w').close()",
        "for i in range(1001): open(str(i), 'w').close()",
        "import os\nfor _ in range(99): os.mkdir('d'); os.chdir('d')\nopen('f', 'w').write('x')",
    ]
    with contextlib.closing(either.start(image.root, image.environment, Limits(wall_s=2))) as sandbox:
        assert sandbox.snapshot() == ({}, False)
        assert good(sandbox.run(command(code, files={"gone": "x", "kept/k": "k"}))) == ""
        assert sandbox.snapshot() == (whole, True)
        for more in bad:
            assert sandbox.run(command(more)).result.exit_code == 0
            assert not sandbox.snapshot().whole
        slow = command("import time; open('b', 'w').write('b'); time.sleep(60)")
        assert sandbox.run(slow).result.stop is Stop.WALL
        assert sandbox.snapshot().files["b"] == b"b"
    assert sandbox.snapshot() == ({}, False)


# --- images --------------------------------------------------------------------------------------------------------


def test_the_image_id_is_known_before_and_does_not_depend_on_the_daemon_or_on_times(
    client: Any, image: Image, tmp_path: Path, daemon: str
) -> None:
    layer = image.environment.layer
    expected = docker_image.image_id(layer)
    again = tmp_path / "again"
    shutil.copytree(image.root, again, symlinks=True, copy_function=shutil.copy)  # other times; test_image builds twice
    archives = []
    for number, root in enumerate((image.root, again)):
        with (tmp_path / f"{number}.tar").open("w+b") as file:
            assert docker_image.write_archive(root, file) == layer
            file.seek(0)
            archives.append(hashlib.file_digest(file, "sha256").hexdigest())
    assert archives[0] == archives[1]
    began = int(time.time())
    for root in (image.root, again, image.root):
        with contextlib.suppress(Exception):
            if root is again:
                client.remove_image(docker_image.tag_of(layer), force=True)
        assert docker_image.load_image(client, root, image.environment) == expected
    about = client.inspect_image(expected)
    assert about["RootFS"]["Layers"] == [f"sha256:{layer}"]
    assert hashlib.sha256(docker_image.image_config(layer)).hexdigest() == expected.removeprefix("sha256:")
    assert docker_image.stored_layer(client, expected) == layer
    wanted = {"type": "image", "event": "load"}
    loads = list(client.events(since=began, until=int(time.time()) + 1, decode=True, filters=wanted))
    assert len(loads) <= 2  # the third time it was there


def test_the_archive_is_an_ordinary_tar(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "f").write_text("one")
    out = io.BytesIO()
    layer = docker_image.write_archive(root, out)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        (about,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        data = tar.extractfile(about["Layers"][0]).read()  # type: ignore[union-attr]
        config = tar.extractfile(about["Config"]).read()  # type: ignore[union-attr]
        assert {item.mtime for item in tar} == {0}
    assert hashlib.sha256(data).hexdigest() == layer
    assert json.loads(config)["rootfs"]["diff_ids"] == [f"sha256:{layer}"]
    assert "sha256:" + hashlib.sha256(config).hexdigest() == docker_image.image_id(layer)


def test_an_image_that_changed_inside_docker_is_refused_by_name(client: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in ("usr/bin", "dev", "proc", "tmp", "tests", "work"):
        (root / folder).mkdir(parents=True)
    (root / "usr/bin/tool").write_text("one")
    layer = docker_image.write_archive(root, io.BytesIO())
    environment = Environment(name="drifting", python="3.11", layer=layer)
    name = docker_image.load_image(client, root, environment)
    assert docker_image.load_image(client, root, environment) == name
    box = client.create_container(name, "/tool")
    child = client.commit(box)
    client.remove_image(docker_image.tag_of(layer), force=True)  # in use: the image stays, without its name
    assert docker_image.load_image(client, root, environment) == name
    assert client.inspect_image(docker_image.tag_of(layer))["Id"] == name
    client.remove_container(box)
    client.remove_image(child, force=True)
    upper = Path(client.inspect_image(name)["GraphDriver"]["Data"]["UpperDir"])
    (upper / "usr/bin/tool").write_text("two")
    with pytest.raises(IntegrityError, match=f"environment drifting in docker: recorded {layer}, .*docker image rm"):
        docker_image.load_image(client, root, environment)
    client.remove_image(name, force=True)
    assert docker_image.load_image(client, root, environment) == name
    client.remove_image(name, force=True)


# --- infrastructure ------------------------------------------------------------------------------------------------


@pytest.fixture
def own() -> Iterator[Dockerd]:
    """A dockerd to be mistreated."""
    daemon = Dockerd()
    before = os.environ.get("DOCKER_HOST")
    daemon.start()
    os.environ["DOCKER_HOST"] = daemon.url
    yield daemon
    os.environ.pop("DOCKER_HOST")
    if before is not None:
        os.environ["DOCKER_HOST"] = before
    daemon.remove()


class Sleeper(threading.Thread):
    """Runs an execution that would take a minute, and keeps what came of it."""

    def __init__(self, engine: Engine, image: Image) -> None:
        super().__init__()
        self.word = f"asleep-{id(self)}-{os.getpid()}"
        self._run = lambda: execute(engine, image, f"import time; time.sleep(60)  # {self.word}", Limits(wall_s=60))
        self.came: object = None
        self.start()
        until(lambda: alive(self.word))

    def run(self) -> None:
        try:
            self.came = self._run()
        except SandboxError as error:
            self.came = error


def test_a_container_that_is_killed_is_infrastructure(engine: DockerEngine, client: Any, image: Image) -> None:
    sleeper = Sleeper(engine, image)
    for item in client.containers(filters={"label": LABEL}):  # those that wait, too
        client.kill(item["Id"])
    sleeper.join(20)
    assert isinstance(sleeper.came, SandboxError)
    assert "the sandbox died before its answer (exit code 137" in str(sleeper.came)
    assert answer(engine, image, "print(1)") == "1\n"


def test_a_daemon_that_dies_hangs_or_loses_its_images_is_infrastructure_and_comes_back(
    own: Dockerd, image: Image
) -> None:
    with contextlib.closing(DockerEngine()) as engine:
        assert answer(engine, image, "print(1)") == "1\n"
        sleeper = Sleeper(engine, image)
        own.stop(signal.SIGKILL)
        sleeper.join(60)
        assert isinstance(sleeper.came, SandboxError)
        with pytest.raises(SandboxError, match="docker: "):
            execute(engine, image, "print(1)")
        own.start()
        assert not alive(sleeper.word)  # the daemon ends what it finds running
        assert answer(engine, image, "print(2)") == "2\n"
        own.send(signal.SIGSTOP)
        patient, engine._daemon.client().timeout = engine._daemon.client().timeout, 3
        with pytest.raises(SandboxError, match="timed out"):
            execute(engine, image, "print(1)", Limits(wall_s=2))
        own.send(signal.SIGCONT)
        engine._daemon.client().timeout = patient
        assert answer(engine, image, "print(3)") == "3\n"
    with contextlib.closing(DockerEngine(spare=0)) as engine:
        assert answer(engine, image, "print(4)") == "4\n"
        remove = partial(_client(own.url).remove_image, docker_image.image_id(image.environment.layer), force=True)
        until(lambda: succeeds(remove))  # no container uses it any more
        with pytest.raises(SandboxError, match="No such image"):
            execute(engine, image, "pass")
        assert answer(engine, image, "print(5)") == "5\n"


def test_a_full_disk_is_infrastructure(image: Image, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "none", tmp_path], check=True)
    try:
        with (
            dockerd("--data-root", str(tmp_path / "data")),
            contextlib.closing(DockerEngine()) as engine,
            pytest.raises(SandboxError, match="no space left on device"),
        ):
            execute(engine, image, "pass")
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_without_a_daemon_or_the_package_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, image: Image
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxError) as caught:
        open_engine("docker")
    assert str(caught.value) == (
        f"docker: no daemon answers at unix://{tmp_path}/none.sock (No such file or directory); "
        "start one (systemctl start docker, or dockerd), or name another with DOCKER_HOST"
    )
    program = """
import sys
sys.modules["docker"] = None
from environments.engines import open_engine
open_engine("docker")
"""
    variables = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables)
    assert done.stderr.splitlines()[-1] == (
        "schemas.errors.InputError: engine docker: the Python package docker is not installed; "
        "install the extra: pip install 'postloop[docker]'"
    )


def test_a_runtime_is_passed_through_and_an_unknown_one_refused(tmp_path: Path, image: Image) -> None:
    log = tmp_path / "log"
    wrapper = tmp_path / "other"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >>{log}\nexec runc "$@"\n')
    wrapper.chmod(0o755)
    with dockerd("--add-runtime", f"other={wrapper}"):
        engine = open_engine("docker", "other")
        assert isinstance(engine, DockerEngine)
        assert answer(engine, image, "print(1)") == "1\n"
        assert "create --bundle" in log.read_text()
        assert "runtime: other" in engine.enforced()
        engine.close()
        with pytest.raises(InputError, match=r"runtime 'nonesuch' is not one of the daemon's \(.*other.*\)"):
            open_engine("docker", "nonesuch")
    with pytest.raises(InputError, match="bubblewrap: it has no runtime"):
        open_engine("bubblewrap", "other")


def test_a_killed_owner_leaves_nothing_that_the_next_does_not_remove(client: Any, image: Image) -> None:
    word = f"orphan-{os.getpid()}"
    program = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from environments.engines import open_engine
from schemas.execution import Environment, Execution, Limits
environment = Environment.model_validate_json({image.environment.model_dump_json()!r})
execution = Execution(argv={PYTHON!r} + ["import time; time.sleep(60)  # {word}"], files={{}})
open_engine("docker").run(Path({str(image.root)!r}), environment, execution, Limits(wall_s=60))
"""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], dict(os.environ))
    until(lambda: [found for found in alive(word) if found != pid])
    owned = [
        item["Id"]
        for item in client.containers(all=True, filters={"label": LABEL})
        if f"-{pid}-" in item["Labels"][LABEL]
    ]
    assert owned
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    until(lambda: not alive(word), 20)  # by itself: the first process sees that its owner is gone
    DockerEngine().close()
    left = {item["Id"] for item in client.containers(all=True)}
    assert not left & set(owned)


def test_containers_of_dead_owners_are_stale_and_no_others() -> None:
    """`is_stale(listed, machine, now_s)`: ours by the owner's process; another boot's or machine's once it has ended long ago."""
    alive = f"boot/{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}-"
    alive += Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    for owner, state, age_s, expected in (
        (alive, "running", 0, False), (alive, "exited", 9 * DAY, False), (alive + "0", "running", 0, True),
        ("other/1-2-3", "running", 9 * DAY, False), ("other/1-2-3", "exited", 3600, False),
        ("other/1-2-3", "exited", 2 * DAY, True), ("", "created", 2 * DAY, True),
    ):  # fmt: skip
        listed = {"Labels": {LABEL: owner}, "State": state, "Created": 1e9 - age_s}
        assert is_stale(listed, "boot/", 1e9) is expected, (owner, state, age_s)


@pytest.mark.parametrize("end", ["pass", "import os; os.kill(os.getpid(), 9)"])
def test_a_dockerd_ends_with_the_process_that_started_it(tmp_path: Path, end: str) -> None:
    program = f"import sys; sys.path[:0] = {sys.path!r}\nfrom dockerd import dockerd\nwith dockerd() as url:\n"
    program += f" print(url, flush=True)\n {end}"
    variables = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=variables)
    folder = Path(done.stdout.strip().removeprefix("unix://")).parent
    until(lambda: not alive(str(folder)))
    assert folder.exists() is (done.returncode == -signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_fork_of_the_process_gets_containers_of_its_own(engine: DockerEngine, image: Image) -> None:
    answer(engine, image, "pass")
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if answer(engine, image, "print(1)") == "1\n" else 1
            engine.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert answer(engine, image, "print(2)") == "2\n"


def test_what_is_enforced_is_said(engine: DockerEngine) -> None:
    lines = engine.enforced()
    for start in (
        "memory_mb: cgroup v",
        "pids: cgroup v",
        "cpu_s: cgroup v",
        "network: ",
        "runtime: runc",
        "a fresh container for each attempt",
    ):
        assert any(line.startswith(start) for line in lines), start
    assert not [line for line in missing(engine) if "for swap" not in line]  # some kernels do not count swap
    without = missing(BubblewrapEngine(use_cgroups=False))  # as without root
    assert [line.partition(":")[0] for line in without] == ["memory_mb", "cpu_s"]


def test_results_are_values_without_measured_times(engine: DockerEngine, image: Image) -> None:
    outcome = execute(engine, image, "print(1)")
    assert outcome.result == ExecutionResult(stop=Stop.EXIT, exit_code=0, stdout="1\n", stderr="")
    assert set(outcome.telemetry) == {"wall_s", "cpu_s", "peak_mb"}
    assert 0 < outcome.telemetry["cpu_s"] < 1
    with socket.socket() as unused:  # nothing of the engine's is inherited by what others start
        assert not os.get_inheritable(unused.fileno())

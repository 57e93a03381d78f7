"""The sandbox, attacked: each test runs real code in a real bubblewrap and would pass only if the wall holds.

Without root the same tests run, limited by rlimits instead of a cgroup; with root both ways are tested.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from environments.engines import open_engine
from environments.engines.base import MAX_FILES, Outcome
from environments.engines.bubblewrap import BubblewrapEngine
from environments.image import Image, build_image, layer_digest
from schemas.errors import InputError, IntegrityError, SandboxError
from schemas.execution import Execution, ExecutionResult, Limits, Stop

PYTHON = ["/usr/bin/python3", "-I", "-S", "-c"]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return build_image(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module", params=["best", "rlimits"])
def engine(request: pytest.FixtureRequest) -> BubblewrapEngine:
    """With the best limits that this machine offers, and with those that an ordinary user gets."""
    return BubblewrapEngine(use_cgroups=request.param == "best")


def execute(engine: BubblewrapEngine, image: Image, code: str, limits: Limits | None = None, **more: object) -> Outcome:
    execution = Execution.model_validate({"argv": [*PYTHON, code], "files": {}, **more})
    return engine.run(image.root, image.environment, execution, limits or Limits())


def answer(engine: BubblewrapEngine, image: Image, code: str, **more: object) -> str:
    result = execute(engine, image, code, **more).result
    assert (result.stop, result.exit_code, result.stderr) == (Stop.EXIT, 0, "")
    return result.stdout


# --- an execution --------------------------------------------------------------------------------------------------


def test_exit_code_output_and_stdin_come_back(engine: BubblewrapEngine, image: Image) -> None:
    code = "import sys; print(sys.stdin.read().upper()); print('no', file=sys.stderr); sys.exit(3)"
    outcome = execute(engine, image, code, stdin="grüße")
    expected = ExecutionResult(stop=Stop.EXIT, exit_code=3, stdout="GRÜSSE\n", stderr="no\n")
    assert outcome.result == expected
    assert set(outcome.telemetry) == {"wall_s", "cpu_s", "peak_mb"}


def test_files_are_laid_and_the_tests_are_read_only(engine: BubblewrapEngine, image: Image) -> None:
    code = """
import os
print(open('pkg/a.py').read(), open('/tests/t.py').read(), os.getcwd())
open('pkg/new', 'w').write('x'); os.remove('pkg/a.py')
for attempt in (lambda: open('/tests/t.py', 'w'), lambda: os.remove('/tests/t.py'), lambda: open('/tests/new', 'w'),
                lambda: os.rename('/tests', '/t'), lambda: open('/usr/x', 'w'), lambda: open('/dev/x', 'w')):
    try: attempt(); print('WRITTEN')
    except OSError as error: print(type(error).__name__)
"""
    out = answer(engine, image, code, files={"pkg/a.py": "A"}, readonly={"t.py": "T"}).split("\n")
    assert out[0] == "A T /work"
    assert len(out[1:-1]) == 6
    assert "WRITTEN" not in out


def test_real_pytest_runs(engine: BubblewrapEngine, image: Image) -> None:
    execution = Execution(
        argv=["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "/tests/test_a.py"],
        files={"a.py": "def f(x):\n    return x + 1\n"},
        readonly={
            "test_a.py": "import sys; sys.path.insert(0, '/work')\nfrom a import f\ndef test_f(): assert f(1) == 2\n"
        },
    )
    result = engine.run(image.root, image.environment, execution, Limits()).result
    assert (result.stop, result.exit_code) == (Stop.EXIT, 0), result.stdout + result.stderr
    assert "1 passed" in result.stdout


def test_two_runs_share_nothing_and_agree(engine: BubblewrapEngine, image: Image) -> None:
    code = "import os; print(sorted(os.listdir('/work')+os.listdir('/tmp')+os.listdir('/dev/shm')));"
    code += "[open(d + '/left', 'w').write('x') for d in ('/work', '/tmp', '/dev/shm')]"
    first, second = (execute(engine, image, code).result for _ in range(2))
    assert first == second
    assert first.stdout == "[]\n"


def test_only_declared_variables_and_standard_descriptors_are_there(engine: BubblewrapEngine, image: Image) -> None:
    os.environ["POSTLOOP_SECRET"] = "hunter2"
    code = """
import os
print(sorted(os.environ)); print(sorted(os.listdir('/proc/self/fd')))
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: print('hunter2' in open(f'/proc/{pid}/environ').read())
    except PermissionError: pass
"""
    try:
        lines = answer(engine, image, code).splitlines()
    finally:
        del os.environ["POSTLOOP_SECRET"]
    assert lines[0] == str(sorted([*image.environment.variables, "PWD"]))
    assert lines[1] == "['0', '1', '2', '3']"  # 3 is the listing itself
    assert "True" not in lines


# --- read-back -----------------------------------------------------------------------------------------------------


def test_collected_files_come_back_as_the_command_left_them(engine: BubblewrapEngine, image: Image) -> None:
    code = "open('a.py', 'w').write('new'); import os; os.makedirs('d/e'); open('d/e/f', 'wb').write(b'\\xff!')"
    found = execute(
        engine, image, code, files={"a.py": "old", "b.py": "same"}, collect=["a.py", "b.py", "d/e/f", "gone"]
    )
    assert found.result.files == {"a.py": "new", "b.py": "same", "d/e/f": "\ufffd!"}
    assert not found.result.truncated


def test_read_back_follows_no_link_and_reads_only_regular_files(engine: BubblewrapEngine, image: Image) -> None:
    code = """
import os
os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'folder'); os.mkfifo('pipe'); os.mkdir('d')
os.symlink('real', 'inner'); open('real', 'w').write('r'); open('secret', 'w').write('s'); os.chmod('secret', 0)
open('huge', 'w').truncate(9 << 20)
"""
    paths = ["link", "folder/passwd", "pipe", "d", "inner", "real", "secret", "huge"]
    result = execute(engine, image, code, collect=paths).result
    assert result.files == {"real": "r"}
    assert result.truncated  # huge exists and was left out


def test_read_back_works_after_a_kill(engine: BubblewrapEngine, image: Image) -> None:
    code = "open('a', 'w').write('before'); import time; time.sleep(60)"
    result = execute(engine, image, code, Limits(wall_s=0.5), collect=["a"]).result
    assert (result.stop, result.files) == (Stop.WALL, {"a": "before"})


# --- walls ---------------------------------------------------------------------------------------------------------


def test_the_host_is_not_visible(engine: BubblewrapEngine, image: Image) -> None:
    paths = ["/etc/shadow", str(Path(__file__).resolve()), "/root", "/home", "/sys", "/bin/sh", str(image.root)]
    code = f"import os; print([p for p in {paths!r} if os.path.exists(p)])"
    assert answer(engine, image, code) == "[]\n"


def test_the_user_is_nobody_special(engine: BubblewrapEngine, image: Image) -> None:
    code = """
import os
print(os.getresuid(), os.getresgid(), open('/proc/self/uid_map').read().split())
names = ('CapEff', 'CapPrm', 'NoNewPrivs', 'Seccomp:')
print([line.split()[1] for line in open('/proc/self/status') if line.startswith(names)])
for path in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger'):
    try: open(path, 'w'); print('OPEN')
    except OSError: print('closed')
"""
    user, capabilities, *doors = answer(engine, image, code).splitlines()
    assert user.startswith("(10001, 10001, 10001) (10001, 10001, 10001) ['10001', '")
    assert capabilities == "['0000000000000000', '0000000000000000', '1', '2']"
    assert doors == ["closed", "closed"]


def test_started_by_root_it_runs_as_an_ordinary_user_of_the_host(engine: BubblewrapEngine, image: Image) -> None:
    seen: set[int] = set()
    sleeper = "import time; time.sleep(1.5)  # marked-for-the-user-test"
    thread = threading.Thread(target=execute, args=(engine, image, sleeper))
    thread.start()
    while thread.is_alive():
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and b"marked-for-the-user-test" in (entry / "cmdline").read_bytes():
                    seen.add(entry.stat().st_uid)
            except OSError:
                continue
    assert (10001 if os.getuid() == 0 else os.getuid()) in seen


def test_there_is_no_network(engine: BubblewrapEngine, image: Image) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"""
import socket
for address in (('127.0.0.1', {server.getsockname()[1]}), ('192.0.2.1', 80)):
    try: socket.create_connection(address, timeout=2); print('CONNECTED')
    except OSError as error: print('refused')
for family in (40, 17, 38):
    try: socket.socket(family, socket.SOCK_STREAM); print('FAMILY', family)
    except OSError as error: print('refused')
print(open('/proc/net/dev').read().count(':'))
"""
        assert answer(engine, image, code).split() == ["refused"] * 5 + ["1"]


def test_dangerous_system_calls_are_refused(engine: BubblewrapEngine, image: Image) -> None:
    code = """
import ctypes, errno, fcntl, os, platform
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, *args):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*args)
    print(name, result == -1 and ctypes.get_errno() == errno.EPERM)
refused('ptrace', 0, 0, 0, 0); refused('unshare', 0x10000000); refused('unshare', 0x20000); refused('setns', 0, 0)
refused('mount', b'none', b'/tmp', b'tmpfs', 0, None); refused('umount2', b'/tests', 2); refused('chroot', b'/tmp')
refused('syscall', 425, 1, 0); refused('personality', 0xffffffff)
try: fcntl.ioctl(0, 0x5412, b'x'); print('TIOCSTI', False)
except OSError as error: print('TIOCSTI', error.errno == errno.EPERM)
import _thread, threading, subprocess, sys
t = threading.Thread(target=print, args=('thread True',)); t.start(); t.join()
print(subprocess.check_output([sys.executable, '-I', '-S', '-c', 'print("child True")'], text=True).strip())
"""
    lines = answer(engine, image, code).splitlines()
    assert len(lines) == 12
    assert [line for line in lines if not line.endswith("True")] == []


# --- limits --------------------------------------------------------------------------------------------------------


def test_an_endless_loop_is_stopped_by_cpu_seconds(engine: BubblewrapEngine, image: Image) -> None:
    outcome = execute(engine, image, "while True: pass", Limits(cpu_s=0.5, wall_s=30))
    assert (outcome.result.stop, outcome.result.exit_code) == (Stop.CPU, None)
    assert 0.4 < outcome.telemetry["cpu_s"] < 1.5


def test_cpu_seconds_of_all_processes_count_together(engine: BubblewrapEngine, image: Image) -> None:
    code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    outcome = execute(engine, image, code, Limits(cpu_s=1, wall_s=30))
    assert outcome.result.stop is Stop.CPU
    assert outcome.telemetry["cpu_s"] < 2.5


def test_sleeping_for_ever_is_stopped_by_the_clock(engine: BubblewrapEngine, image: Image) -> None:
    outcome = execute(engine, image, "import time; print(1, flush=True); time.sleep(99)", Limits(wall_s=0.4))
    assert (outcome.result.stop, outcome.result.stdout) == (Stop.WALL, "1\n")
    assert outcome.telemetry["wall_s"] < 2


def test_a_memory_bomb_is_stopped(image: Image) -> None:
    engine = BubblewrapEngine()
    code = "x = bytearray()\nwhile True: x += bytes(1 << 20)"
    result = execute(engine, image, code, Limits(memory_mb=64)).result
    if any("cgroup" in line for line in engine.enforced()):
        assert (result.stop, result.exit_code) == (Stop.MEMORY, None)
    else:
        assert "MemoryError" in result.stderr


def test_without_a_cgroup_a_process_is_refused_memory(image: Image) -> None:
    code = "x = bytearray()\nwhile True: x += bytes(1 << 20)"
    result = execute(BubblewrapEngine(use_cgroups=False), image, code, Limits(memory_mb=64)).result
    assert (result.stop, result.exit_code) == (Stop.EXIT, 1)
    assert "MemoryError" in result.stderr


def test_memory_of_many_small_processes_counts_together(engine: BubblewrapEngine, image: Image) -> None:
    code = "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(b'x' * (20 << 20)); time.sleep(20)"
    result = execute(engine, image, code, Limits(memory_mb=64, wall_s=15)).result
    assert result.stop is Stop.MEMORY


def test_a_fork_bomb_runs_into_the_process_limit(engine: BubblewrapEngine, image: Image) -> None:
    code = """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0: time.sleep(60); os._exit(0)
        count += 1
except BlockingIOError: print(count)
"""
    assert 1 <= int(answer(engine, image, code, limits=Limits(pids=20))) <= 20


def test_an_output_flood_is_cut_and_the_rest_thrown_away(engine: BubblewrapEngine, image: Image) -> None:
    code = "import os\nfor _ in range(640): os.write(1, b'y' * 65536)\nos.write(2, b'end')"
    result = execute(engine, image, code, Limits(output_kb=8)).result
    assert (result.exit_code, len(result.stdout), result.stderr, result.truncated) == (0, 8192, "end", True)


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
def test_a_disk_fill_ends_at_the_limit(engine: BubblewrapEngine, image: Image, folder: str) -> None:
    code = f"""
n = 0
try:
    for i in range(64):
        with open('{folder}/f%d' % i, 'wb', buffering=0) as f:
            while f.tell() < 1 << 20: n += f.write(bytes(65536))
except OSError: pass
print(n >> 20)
"""
    assert int(answer(engine, image, code, limits=Limits(disk_mb=4))) <= 4


def test_a_signal_is_told_from_an_exit(engine: BubblewrapEngine, image: Image) -> None:
    result = execute(engine, image, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").result
    assert (result.stop, result.exit_code) == (Stop.SIGNAL, None)


def test_a_daemon_is_dead_afterwards(engine: BubblewrapEngine, image: Image) -> None:
    word = f"daemon-{os.getpid()}-{engine.enforced()[0][:20]}"
    code = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)  # {word}'])
    os._exit(0)
time.sleep(0.2); print('left')
"""
    assert answer(engine, image, code) == "left\n"
    assert not _alive(word)
    loop = code + "\nwhile True: pass"
    assert execute(engine, image, loop, Limits(cpu_s=1)).result.stop is Stop.CPU
    assert not _alive(word)


def _alive(word: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_no_group_descriptor_or_process_is_left_behind(engine: BubblewrapEngine, image: Image) -> None:
    execute(engine, image, "pass")
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        execute(engine, image, "pass", files={"a": "b"}, stdin="x", collect=["a"])
        execute(engine, image, "import time; time.sleep(9)", Limits(wall_s=0.05))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    groups = [path for path in Path("/sys/fs/cgroup").glob(f"**/postloop/*-{os.getpid()}-*/*") if path.is_dir()]
    assert groups == []


# --- callers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "a/../../x", "", ".", "a//b", "a/./b", "a\0b", "x" * 300, "a/" * 600 + "a", "\ud800"],
)
def test_hostile_paths_are_refused(engine: BubblewrapEngine, image: Image, path: str) -> None:
    for place in ({"files": {path: "x"}}, {"readonly": {path: "x"}}, {"collect": [path]}):
        with pytest.raises(InputError):
            execute(engine, image, "pass", **place)


def test_strange_but_harmless_paths_work(engine: BubblewrapEngine, image: Image) -> None:
    names = ["--help", "a b", "new\nline", "$(id)", "ü", "-rf", "..."]
    code = "import os; print(sorted(os.listdir('.')))"
    assert answer(engine, image, code, files=dict.fromkeys(names, "x")) == f"{sorted(names)}\n"


def test_too_much_is_refused_before_anything_starts(engine: BubblewrapEngine, image: Image) -> None:
    with pytest.raises(InputError, match=f"at most {MAX_FILES}"):
        execute(engine, image, "pass", files={f"f{i}": "" for i in range(MAX_FILES + 1)})
    with pytest.raises(InputError, match=r"raise limits\.disk_mb"):
        execute(engine, image, "pass", Limits(disk_mb=1), files={"f": "x" * (2 << 20)})
    with pytest.raises(InputError, match="its parent is a file too"):
        execute(engine, image, "pass", files={"a": "", "a/b": ""})
    with pytest.raises(InputError, match="NUL"):
        execute(engine, image, "pass\0")


def test_as_many_files_as_allowed_work(engine: BubblewrapEngine, image: Image) -> None:
    code = "import os; print(sum(len(f) for _, _, f in os.walk('.')))"
    files = {f"d{i % 7}/{i}": "x" for i in range(MAX_FILES)}
    assert answer(engine, image, code, files=files) == f"{MAX_FILES}\n"


def test_a_command_that_the_image_lacks_is_the_callers_mistake(engine: BubblewrapEngine, image: Image) -> None:
    for command in ("nonesuch", "/bin/sh"):
        with pytest.raises(InputError, match="is not in the image"):
            engine.run(image.root, image.environment, Execution(argv=[command], files={}), Limits())
    missing = Execution(argv=["./run"], files={})
    assert engine.run(image.root, image.environment, missing, Limits()).result.exit_code == 127


def test_a_sandbox_that_cannot_start_is_infrastructure_and_never_a_result(
    engine: BubblewrapEngine, image: Image, tmp_path: Path
) -> None:
    (tmp_path / "usr").mkdir()  # no /work, /proc or /dev to mount on, and the root is read-only
    broken = image.environment.model_copy(update={"layer": layer_digest(tmp_path)})
    with pytest.raises(SandboxError, match="sandbox did not start: bwrap: Can't mkdir"):
        engine.run(tmp_path, broken, Execution(argv=["./run"], files={}), Limits())


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="bwrap is not installed; install it: apt-get install bubblewrap"):
        BubblewrapEngine()


def test_the_callers_own_habits_do_not_show(engine: BubblewrapEngine, image: Image) -> None:
    code = "import os, resource; print(oct(os.umask(0)), resource.getrlimit(resource.RLIMIT_STACK)[0])"
    before = os.umask(0o077)
    try:
        assert answer(engine, image, code) == f"0o22 {8 << 20}\n"
    finally:
        os.umask(before)


def test_a_changed_root_is_refused_by_name(image: Image, tmp_path: Path) -> None:
    other = tmp_path / "root"
    other.mkdir()
    with pytest.raises(IntegrityError, match=f"recorded layer {image.environment.layer}, found"):
        BubblewrapEngine().run(other, image.environment, Execution(argv=["python"], files={}), Limits())


def test_eight_threads_get_their_own_answers(engine: BubblewrapEngine, image: Image) -> None:
    def one(number: int) -> str:
        files = {f"f{i}": str(number) for i in range(30)}
        return answer(engine, image, "print(open('f29').read())", files=files, collect=["f1"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(32))) == [f"{number}\n" for number in range(32)]


def test_a_sandbox_dies_with_its_owner(image: Image) -> None:
    word = f"orphan-{os.getpid()}"
    program = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from environments.engines import open_engine
from schemas.execution import Environment, Execution, Limits
environment = Environment.model_validate_json({image.environment.model_dump_json()!r})
code = "import time; time.sleep(60)  # {word}"
execution = Execution(argv={PYTHON!r} + [code], files={{}})
open_engine("bubblewrap").run(Path({str(image.root)!r}), environment, execution, Limits(wall_s=60))
"""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], dict(os.environ))
    _until(lambda: bool(_alive(word)))
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    _until(lambda: not _alive(word))
    open_engine("bubblewrap")  # removes the groups of the dead owner
    assert not list(Path("/sys/fs/cgroup").glob(f"*/postloop/*-{pid}-*"))


def _until(condition: object, timeout_s: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_engines_are_opened_by_name() -> None:
    assert open_engine("bubblewrap").name == "bubblewrap"
    assert any(line.startswith("memory_mb: ") for line in open_engine("bubblewrap").enforced())
    with pytest.raises(InputError, match="known are bubblewrap, docker"):
        open_engine("nonesuch")

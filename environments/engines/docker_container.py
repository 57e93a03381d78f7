"""One container and the connection to its warden: what is sent, what comes back, and how an end is read.

Covered: Docker's framing of the streams, an answer that is late, cut off, too long or nonsense.
Not covered: who is to blame when the container ends without an answer; the engine asks Docker.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments.engines import base, reading, warden
from environments.engines.base import MAX_COLLECTED_BYTES, Outcome, Snapshot
from schemas.errors import InputError, SandboxError
from schemas.execution import Execution, ExecutionResult, Limits, Stop

_MAX_HEAD_BYTES = 1 << 20
_EMPTY_S = 5.0  # emptying takes milliseconds; where it takes longer, a fresh container is quicker
_MODULES = (("environments.engines.reading", reading), ("environments.engines.warden", warden))
BOOT = """
import json, os, sys, types
def get(count):
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part: os._exit(0)
        data += part
    return data
for name, text in json.loads(get(int.from_bytes(get(4), "big"))):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
module.main()
"""


class Ended(Exception):
    """The container's first process ended without its last word; the text is what it complained about."""


class Container:
    """`attached` is what the SDK returns for an attached container: a socket or a file over one."""

    def __init__(self, container: str, attached: Any) -> None:
        self.id = container
        self._attached = attached
        self._socket: socket.socket = getattr(attached, "_sock", attached)
        self._words = bytearray()  # of the warden, without Docker's framing
        self._framed = bytearray()
        self._complaints = bytearray()

    def boot(self, timeout_s: float) -> None:
        """Hand over the warden's text and wait until it is ready. Raises Ended, OSError."""
        text = json.dumps([(name, Path(str(module.__file__)).read_text()) for name, module in _MODULES]).encode()
        self._send(len(text).to_bytes(4, "big") + text, timeout_s)
        self._receive(time.monotonic() + timeout_s, 0)

    def waits(self) -> bool:
        """Whether it is still there: a warden that waits is silent."""
        return not self.speaks_within(0)

    def speaks_within(self, seconds: float) -> bool:
        """Whether there is something to read, be it the end."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def send_order(
        self, execution: Execution, limits: Limits, variables: dict[str, str], filters: list[str], timeout_s: float
    ) -> None:
        """The files, then the order that starts the command."""
        order = {
            "argv": execution.argv,
            "collect": execution.collect,
            "cpu_s": limits.cpu_s,
            "disk_bytes": limits.disk_mb << 20,
            "filters": filters,
            "output_bytes": limits.output_kb * 1024,
            "rlimits": base.rlimits(limits),
            "variables": variables,
            "wall_s": limits.wall_s,
        }
        parts = [warden.message({"file": path}, text.encode()) for path, text in sorted(execution.files.items())]
        parts.append(warden.message({"order": order}, execution.stdin.encode()))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: reading says so, and why
            self._send(b"".join(parts), timeout_s)

    def _send(self, data: bytes, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)

    def outcome(self, execution: Execution, limits: Limits, timeout_s: float) -> Outcome:
        """Wait for the answer. Raises Ended, OSError (of the connection), SandboxError (not an answer)."""
        deadline = time.monotonic() + limits.wall_s + warden.DIE_S + timeout_s
        streams: dict[str, str] = {}
        files: dict[str, str] = {}
        with _understanding():
            for _ in range(len(execution.collect) + 3):
                head, data = self._receive(deadline, max(limits.output_kb * 1024, MAX_COLLECTED_BYTES))
                text = data.decode("utf-8", "replace")
                if "told" in head:
                    return _outcome(head["told"], streams, files)
                if head.get("file") in execution.collect:
                    files[head["file"]] = text
                else:
                    streams[head["stream"]] = text
            raise ValueError("it has no end")

    def emptied(self) -> bool:
        """Have it emptied for another execution; False where that failed, or it is no longer there."""
        try:
            self._send(warden.message({"empty": True}), _EMPTY_S)
            head, _ = self._receive(time.monotonic() + _EMPTY_S, 0)
        except (Ended, OSError, SandboxError):
            return False
        return head.get("empty") is True

    def snapshot(self, limits: Limits, timeout_s: float) -> Snapshot:
        """What /work holds now. Raises Ended, OSError, SandboxError."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: reading says so, and why
            self._send(warden.message({"snapshot": limits.disk_mb << 20}), timeout_s)
        deadline = time.monotonic() + timeout_s
        files: dict[str, bytes] = {}
        with _understanding():
            for _ in range(reading.MAX_TREE_FILES + 2):
                head, data = self._receive(deadline, MAX_COLLECTED_BYTES)
                if "whole" in head:
                    return Snapshot(files, head["whole"] is True)
                base.check_path(head["file"])
                files[head["file"]] = data
            raise ValueError("it has no end")

    def _receive(self, deadline: float, most: int) -> tuple[dict[str, Any], bytes]:
        sizes = self._take(8, deadline)
        head_size, size = int.from_bytes(sizes[:4], "big"), int.from_bytes(sizes[4:], "big")
        if head_size > _MAX_HEAD_BYTES or size > most:
            raise ValueError(f"{head_size} and {size} bytes, at most {_MAX_HEAD_BYTES} and {most}")
        head: dict[str, Any] = json.loads(self._take(head_size, deadline))
        return head, self._take(size, deadline)

    def _take(self, count: int, deadline: float) -> bytes:
        while len(self._words) < count:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                part = self._socket.recv(1 << 16)
            except ConnectionResetError:
                part = b""
            if not part:
                raise Ended(self._complaint())
            self._framed += part
            self._unframe()
        taken = bytes(self._words[:count])
        del self._words[:count]
        return taken

    def _unframe(self) -> None:
        """Docker's frames: one byte of kind (1 stdout, 2 stderr), three of nothing, four of length."""
        while len(self._framed) >= 8:
            end = 8 + int.from_bytes(self._framed[4:8], "big")
            if len(self._framed) < end:
                return
            if self._framed[0] == 1:
                self._words += self._framed[8:end]
            else:
                self._complaints = (self._complaints + self._framed[8:end])[-2000:]
            del self._framed[:end]

    def _complaint(self) -> str:
        lines = self._complaints.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else "no message"

    def close(self) -> None:
        """The warden takes the end of its input for our death, and ends too."""
        for thing in (self._socket, self._attached):
            with contextlib.suppress(OSError):
                thing.close()


@contextlib.contextmanager
def _understanding() -> Iterator[None]:
    """What is not an answer is infrastructure: the command cannot write to the warden's connection."""
    try:
        yield
    except (ValueError, LookupError, TypeError, InputError) as error:
        raise SandboxError(f"docker: the sandbox's answer cannot be read ({str(error)[:200]}); try again") from error


def _outcome(told: dict[str, Any], streams: dict[str, str], files: dict[str, str]) -> Outcome:
    """The same reading of an end as on every engine: an exit code of 129 to 192 is a signal."""
    problem, code = str(told["problem"]), int(told["code"])
    if problem and not problem.startswith("execvp "):
        raise SandboxError(f"docker: the command could not be put under its limits: {problem.strip()[:200]}; try again")
    if told["stop"] is not None:
        stop = Stop(told["stop"])
    else:
        stop = Stop.SIGNAL if code < 0 or 128 < code <= 192 else Stop.EXIT
    result = ExecutionResult(
        stop=stop, exit_code=code if stop is Stop.EXIT else None, stdout=streams["stdout"],
        stderr=problem or streams["stderr"], files=files, truncated=bool(told["cut"]),
    )  # fmt: skip
    telemetry = {key: float(told[key]) for key in ("wall_s", "cpu_s", "peak_mb")}
    if told["network"]:
        telemetry["network"] = float(told["network"])
    return Outcome(result, telemetry)

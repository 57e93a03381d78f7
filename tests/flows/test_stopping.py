"""A stop is remembered wherever it lands, also where Python would print it and go on."""

from __future__ import annotations

import subprocess
import sys

from tiny_loop import REPOSITORY

SCRIPT = """
import os, signal
from flows import stopping

class Trap:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10_000): pass

signal.signal(signal.SIGINT, signal.SIG_DFL)
stopping.install()
trap = Trap()
del trap
try:
    stopping.check()
except KeyboardInterrupt:
    print("stopped")
"""


def test_a_stop_inside_a_finaliser_is_remembered_and_prints_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.stdout == "stopped\n"
    assert done.stderr == ""

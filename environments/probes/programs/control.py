"""The control: bait and probe in one sandbox with nothing between them. What cannot be reached here is nowhere seen.

stdin: {"program", "name", "facts", "seconds"}. The last line of stdout says what came of it; nothing but a table believes it.
"""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from host import bait, changes, look

here, job = sys.path[0], json.load(sys.stdin)
with bait(os.getuid()) as lure:
    before = look(lure)
    done = subprocess.run(
        [sys.executable, "-I", "-S", f"{here}/{job['program']}.py", job["name"], lure.nonce],
        input=json.dumps({**lure.facts, **job["facts"], "outside": True}).encode(), stdout=subprocess.PIPE,
        timeout=job["seconds"], check=False,
    )  # fmt: skip
    host = [*changes(before, look(lure)), *(f"bait: somebody came to the listener {name}" for name in lure.visitors())]
    said = {
        "code": done.returncode,
        "stdout": done.stdout.decode("utf-8", "replace"),
        "secret": lure.secret,
        "host": host,
    }
print(f"\n{json.dumps(said)}", flush=True)

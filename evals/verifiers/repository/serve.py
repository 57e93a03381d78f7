"""The loop of a bundle: one JSON request a line on stdin, one reply a line on stdout. The same file in every bundle.

A request that fails is answered {"id", "error"} and the loop goes on. Whatever else prints goes to stderr.
"""

import json
import os
import sys

PROTOCOL = 1


def serve(handlers):
    """Answer until stdin ends. `handlers`: op -> function(request) -> reply without its id."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "bundle.json"), encoding="utf-8") as file:
        about = json.load(file)
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        channel.write(json.dumps(answer(handlers, about, request)).encode() + b"\n")
        channel.flush()


def answer(handlers, about, request):
    op = request.get("op")
    try:
        if op == "hello":
            reply = {key: about[key] for key in ("name", "version", "kind", "protocol")}
        elif op in handlers:
            reply = handlers[op](request)
        else:
            reply = {"error": f"unknown op {op!r}; known: {', '.join(sorted(handlers))}"}
    except Exception as error:  # noqa: BLE001  a bad request must not end the other sessions
        reply = {"error": f"{type(error).__name__}: {error}"}
    return {"id": request.get("id"), **reply}

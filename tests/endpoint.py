"""An OpenAI-compatible chat server on a port of its own, in the process of the test: real HTTP, and answers that a test writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Answer = Callable[[Body, str], tuple[int, Any]]  # body, header Authorization -> status, content


def said(text: str | None, finish: str | None = "stop", **more: Any) -> Body:
    """A chat completion. `more`: fields beside the choices, such as model and system_fingerprint."""
    message = {"role": "assistant", "content": text}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}


class Endpoint:
    """`answer` may be replaced at any time. `asked`: the bodies so far, `keys`: their Authorization headers.

    Content that is bytes is sent as it is, an iterator piece by piece.
    """

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self.answer = answer
        self.asked: list[Body] = []
        self.keys: list[str] = []
        self.headers: dict[str, str] = {}  # of every answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(body)
                outer.keys.append(self.headers.get("Authorization", ""))
                known = self.path == "/v1/chat/completions"
                status, value = outer.answer(body, outer.keys[-1]) if known else (404, {"error": "no such path"})
                with suppress(OSError):  # who asked may have given up
                    self.send_response(status)
                    for name, header in outer.headers.items():
                        self.send_header(name, header)
                    self.end_headers()
                    for part in value if isinstance(value, Iterator) else [value]:
                        self.wfile.write(part if isinstance(part, bytes) else json.dumps(part).encode())

            def log_message(self, *_: Any) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def endpoint(answer: Answer, port: int = 0) -> Iterator[Endpoint]:
    server = Endpoint(answer, port)
    try:
        yield server
    finally:
        server.close()

"""The child process that fetches one source archive with pip's own finder and session, so index, mirrors, credentials,
proxies and certificates are those that pip is configured with. No part of what is fetched is unpacked or run.

`pip download` cannot do this: to read a source distribution's name it runs the distribution's own build code.

Run with `python -I`; stdin: {"package", "version", "sha256", "target", "max_bytes"}; the last line of stdout: {"status"}.
"""

import json
import sys
from typing import Any

from pip._internal.commands.index import IndexCommand

EXTRA = ["--retries", "2", "--disable-pip-version-check", "--no-input", "--no-binary", ":all:"]


class Fetch(IndexCommand):
    """A pip command: `main` sets up configuration, logging and session as for any other."""

    job: dict[str, Any]
    answer: dict[str, Any]

    def run(self, options: Any, args: list[str]) -> int:
        with self._build_session(options) as session:
            finder = self._build_package_finder(options=options, session=session, ignore_requires_python=True)
            found = finder.find_all_candidates(self.job["package"])
            links = [c.link for c in found if str(c.version) == self.job["version"] and not c.link.is_wheel]
            links.sort(key=lambda link: link.hash != self.job["sha256"])
            if links:
                self.answer = self._saved(session, links[0])
            else:
                self.answer = {"status": "no version" if found else "no package"}
        return 0

    def _saved(self, session: Any, link: Any) -> dict[str, Any]:
        response = session.get(link.url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True)
        response.raise_for_status()
        size = 0
        with open(self.job["target"], "wb") as file:
            for chunk in iter(lambda: response.raw.read(1 << 16), b""):
                size += len(chunk)
                if size > self.job["max_bytes"]:
                    return {"status": "too large"}
                file.write(chunk)
        return {"status": "ok", "filename": link.filename}


def main() -> None:
    command = Fetch("index", "fetch one source archive")
    command.job = json.load(sys.stdin)
    command.answer = {"status": "pip failed"}
    command.main(["versions", command.job["package"], *EXTRA])
    print("\n" + json.dumps(command.answer))


if __name__ == "__main__":
    main()

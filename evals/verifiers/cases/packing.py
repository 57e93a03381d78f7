"""Many executions as one: what each needs in a file that the keeper takes, what each said between lines of the keeper."""

import json
import re
import secrets

MAX_BYTES = 100_000  # of a member; what is larger runs alone
PADDING = " " * (1 << 16)  # whoever copied the file is left with this in its buffer
PLAIN = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)


def chosen(executions, limits):
    """Numbers of those that fit together into a quarter of the sandbox's disk."""
    found, room = [], limits["disk_mb"] << 18
    for number, one in enumerate(executions):
        size = weight(one)
        if size is not None and size <= room:
            found.append(number)
            room -= size
    return found


def weight(execution):
    """Its bytes; None when a keeper cannot lay it: large, no plain paths, text without a UTF-8 form: the engine's to judge."""
    files = execution["files"]
    try:
        size = sum(len(text.encode()) for text in (execution["stdin"], *files.values()))
    except UnicodeEncodeError:
        return None
    parents = {path[:place] for path in files for place in range(len(path)) if path[place] == "/"}
    plain = all(PLAIN.fullmatch(path) and len(path) <= 200 for path in files)
    return (
        size
        if size <= MAX_BYTES and plain and not (parents | {"secret"}) & {*files} and "secret" not in parents
        else None
    )


class Pack:
    """Its token, which no attempt knows, begins the secret file and marks the keeper's lines."""

    def __init__(self, limits, count):
        self.token, self.limits, self.count = secrets.token_hex(16), limits, count
        self.members, self.parts, self.size = [], [self.token], len(self.token)

    def add(self, text):
        """Where the text stands in the secret: [start, end) in bytes."""
        start, self.size = self.size, self.size + len(text.encode())
        self.parts.append(text)
        return [start, self.size]

    def inputs(self):
        limits = {
            "cpu_s": self.limits["cpu_s"],
            "wall_s": self.limits["wall_s"],
            "room": self.limits["output_kb"] << 10,
        }
        header = {"token": len(self.token), "members": self.members, **limits}
        return {"files": {"secret": "".join(self.parts) + PADDING}, "stdin": json.dumps(header)}

    def read(self, result):
        """Per member a result, "alone" or "again". All alone when the keeper did not begin."""
        token, text = re.escape(self.token), result["stdout"] if result else ""
        if not text.startswith(f"{self.token} ready\n"):
            return ["alone"] * self.count
        found, end = ["again"] * self.count, len(self.token) + len(" ready\n")
        for match in re.finditer(rf"\n{token} (\d+) (alone|done)\n", text):
            said, end = text[end : match.start()], match.end()
            done = {"stop": "exit", "exit_code": 0, "stdout": said, "stderr": "", "truncated": False, "files": {}}
            found[int(match[1])] = done if match[2] == "done" else "alone"
        if (result["stop"], result["exit_code"]) != ("exit", 0) and "again" in found:
            found[found.index("again")] = "alone"  # it was this one's turn when the sandbox ended
        return found

"""Keep a finished workspace as a small archive that later versions must still read.

    python tests/recorded/record.py WORKSPACE ROUND OUT.tar.xz

In it: goal.yaml, the records, pins and telemetry of one round, and the artifacts that those records name, each with its
pointer and manifest. Left out is the layer of the image, 86 MB; its manifest and its pin are there. The same workspace gives
the same bytes.
"""

from __future__ import annotations

import lzma
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from stages.workspace import Workspace

LEFT_OUT = ("image-",)


def files_of(space: Workspace, number: int) -> Iterator[Path]:
    yield space.spec_path
    yield from (path for path in space.folder(number).rglob("*") if path.is_file())
    for record in space.records(number).values():
        for ref in record.artifacts.values():
            yield from (space.root / f"{ref.path}{end}" for end in (".dvc", ".manifest.json"))
            if not Path(ref.path).name.startswith(LEFT_OUT):
                yield from (path for path in (space.root / ref.path).rglob("*") if path.is_file())


def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o644
    return entry


def record(space: Workspace, number: int, out: Path) -> None:
    with lzma.open(out, "wb", preset=9) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(set(files_of(space, number))):
            tar.add(path, path.relative_to(space.root).as_posix(), filter=plain)


if __name__ == "__main__":
    record(Workspace.open(Path(sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3]))

"""Programs whose files are collected: what they leave in the named places must come back as plain text or not at all."""

import gzip
import os
import shutil
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from inside import attempt, main, tell

# The last word of each path is what the table collects.
PLACES = (
    "out/link",
    "out/folder/secret.txt",
    "out/pipe",
    "out/socket",
    "out/device",
    "out/hard",
    "out/loop",
    "out/tests",
)


def links(facts, nonce):
    secret = facts["secret_file"]
    os.mkdir("out")
    os.symlink(secret, "out/link")
    os.symlink(os.path.dirname(secret), "out/folder")
    os.symlink("loop", "out/loop")
    os.symlink("/tests/inside.py", "out/tests")
    attempt("hard link to a file of the image", lambda: os.link("/etc/passwd", "out/hard") or "linked")


def specials(facts, nonce):
    os.mkdir("out")
    os.mkfifo("out/pipe")
    server = socket.socket(socket.AF_UNIX)
    server.bind("out/socket")
    os.mkdir("out/loop")
    with open("out/hard", "w") as file:
        file.write("unreadable")
    os.chmod("out/hard", 0)
    os.mkdir("out/folder")
    with open("out/folder/secret.txt", "w") as file:
        file.write("behind a closed folder")
    os.chmod("out/folder", 0)


def swapped(facts, nonce):
    """A daemon that goes on exchanging a file for a link, and a folder for a link, while the files are collected."""
    secret = facts["secret_file"]
    os.makedirs("out/real")
    for name in ("real/secret.txt", "plain"):
        with open(f"out/{name}", "w") as file:
            file.write("harmless")
    os.symlink(secret, "out/swap")
    os.symlink(os.path.dirname(secret), "out/turned")
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            exchange("out/plain", "out/swap")
            exchange("out/real", "out/turned")
        os._exit(0)
    time.sleep(0.2)


def exchange(left, right):
    os.rename(left, left + "~")
    os.rename(right, left)
    os.rename(left + "~", right)


def bombs(facts, nonce):
    """Small files that become large when somebody unpacks or measures them, and large ones that take no space."""
    os.mkdir("out")
    with open("out/sparse", "wb") as file:
        attempt("a sparse file", lambda: file.truncate(7 << 20) and None)
    with open("out/bomb.gz", "wb") as file:
        file.write(gzip.compress(bytes(8 << 20)))
    with open("out/invalid", "wb") as file:
        file.write(b"\xff" * 300_000)
    with open("out/surrogate", "wb") as file:
        file.write(b"\xed\xa0\x80\x00\x1b]0;title\x07")


def too_much(facts, nonce):
    """200 files of 1 MiB share the same content by hard links: little on disk, 200 MiB to read."""
    os.mkdir("out")
    with open("out/0", "wb") as file:
        file.write(b"a" * (1 << 20))
    for number in range(1, 150):
        os.link("out/0", f"out/{number}")


def deep(facts, nonce):
    """Folders in folders in folders, with the longest names; and strange names beside a plain one."""
    os.mkdir("out")
    for name in ("out/new\nline", "out/\x1b[2J", "out/ü", "out/-rf", "out/..."):
        with open(name, "w") as file:
            file.write("x")
    start = os.open(".", os.O_RDONLY)
    try:
        for _ in range(1500):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
        with open("bottom", "w") as file:
            file.write("x")
    except OSError as error:
        tell(tried=f"no deeper: {error.strerror}", reached=None)
    os.fchdir(start)


def replaced(facts, nonce):
    """The tree itself is moved away, emptied, and closed."""
    os.mkdir("out")
    with open("out/kept", "w") as file:
        file.write("kept")
    attempt("the tree's folder renamed", lambda: os.rename("/work", "/work2") or "renamed")
    attempt("the tree's folder removed", lambda: os.rmdir("/work") or "removed")
    shutil.rmtree("out")
    os.symlink("/", "out")
    os.chmod("/work", 0)


if __name__ == "__main__":
    main(globals())

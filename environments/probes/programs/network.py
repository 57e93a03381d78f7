"""Programs that look for a way out through sockets. `facts` names the host's listeners, which count who came."""

import fcntl
import os
import socket
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from inside import LIBC, attempt, main, tell

PLAIN = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
TYPES = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)


def connect(family, address, kind=socket.SOCK_STREAM, data=b"here"):
    with socket.socket(family, kind) as link:
        link.settimeout(1)
        link.connect(address)
        link.send(data)
    return f"sent to {address}"


def host_tcp(facts, nonce):
    for host in ("127.0.0.1", "127.1.2.3", "0.0.0.0"):
        attempt(f"TCP {host}", connect, socket.AF_INET, (host, facts["tcp"]))
    attempt("TCP ::1", connect, socket.AF_INET6, ("::1", facts["tcp6"]))


def host_udp(facts, nonce):
    """Sending proves nothing, so the host's listener counts: see `bait`."""
    for host in ("127.0.0.1", "0.0.0.0"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.settimeout(0.2)
            attempt(f"UDP {host}", lambda h=host, s=link: s.sendto(b"here", (h, facts["udp"])) and s.recv(10))


def internet(facts, nonce):
    for host, port in (("192.0.2.1", 80), ("8.8.8.8", 53), ("169.254.169.254", 80), ("10.0.0.1", 443)):
        attempt(f"TCP {host}", connect, socket.AF_INET, (host, port))
        attempt(f"UDP {host}", connect, socket.AF_INET, (host, port), socket.SOCK_DGRAM)
    attempt("TCP 2001:db8::1", connect, socket.AF_INET6, ("2001:db8::1", 80))
    attempt("name server", lambda: socket.getaddrinfo("example.com", 80))
    attempt("multicast", connect, socket.AF_INET, ("224.0.0.251", 5353), socket.SOCK_DGRAM)


def interfaces(facts, nonce):
    def others():
        with open("/proc/net/dev") as file:
            return [line.split(":")[0].strip() for line in file if ":" in line and not line.strip().startswith("lo:")]

    def configure():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            fcntl.ioctl(link, 0x8914, struct.pack("16sH22x", b"lo", 0x49))
        return "lo configured"

    attempt("an interface beside lo", others)
    attempt("routes", lambda: len(open("/proc/net/route").readlines()) > 1)
    if not facts.get("outside"):
        attempt("interface flags", configure)
    attempt("host interfaces below /sys", lambda: [n for n in os.listdir("/sys/class/net") if n != "lo"])


def abstract_unix(facts, nonce):
    attempt("abstract socket of the host", connect, socket.AF_UNIX, "\0" + facts["abstract"])
    attempt("listed in /proc/net/unix", lambda: facts["abstract"] in open("/proc/net/unix").read())


def path_unix(facts, nonce):
    attempt("socket file of the host", connect, socket.AF_UNIX, facts["unix"])
    for path in (
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/dbus/system_bus_socket",
    ):
        attempt(path, connect, socket.AF_UNIX, path)


def families(facts, nonce):
    """Every address family there may be: one that is answered is code of the kernel that nothing here needs."""
    for family in range(64):
        got = [int(kind) for kind in TYPES if family not in PLAIN and opened(socket.socket, family, kind)]
        tell(tried=f"family {family}", reached=f"types {got}" if got else None)


def opened(make, *args):
    try:
        made = make(*args)
    except OSError:
        return False
    for item in made if isinstance(made, tuple) else (made,):
        item.close()
    return True


def pairs(facts, nonce):
    """socketpair is another system call than socket: a filter must know both."""
    two = (LIBC.socketpair, b"\0" * 8)
    for family in range(2, 64):
        unseen = [int(kind) for kind in TYPES if opened(socket.socketpair, family, kind)]
        tell(tried=f"pair of family {family}", reached=f"types {unseen}" if unseen else None)
    import ctypes

    ctypes.set_errno(0)
    two[0](40, 1, 0, two[1])
    tell(door="socketpair of a family that socket refuses", open=ctypes.get_errno() != 1, why=str(ctypes.get_errno()))


def raw(facts, nonce):
    for name, family, kind, protocol in (
        ("packet", 17, socket.SOCK_RAW, 3),
        ("raw IPv4", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        ("raw IPv6", socket.AF_INET6, socket.SOCK_RAW, 58),
        ("header included", socket.AF_INET, socket.SOCK_RAW, 255),
    ):
        attempt(name, lambda a=(family, kind, protocol): opened_or_raise(*a))


def opened_or_raise(*args):
    socket.socket(*args).close()
    return "opened"


def netlink(facts, nonce):
    def links():
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
            link.settimeout(1)
            link.send(struct.pack("IHHII", 32, 18, 0x301, 1, 0) + bytes(16))  # RTM_GETLINK, dump
            answer = link.recv(65536)
        return b"eth" in answer or b"docker" in answer or b"ens" in answer

    def add():
        body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + struct.pack("HH4s", 8, 3, b"pl0\0")
        kind = struct.pack("HH5s3x", 9, 1, b"dummy")
        body += struct.pack("HH", 4 + len(kind), 18) + kind
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
            link.settimeout(1)
            link.send(struct.pack("IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)  # RTM_NEWLINK, create, acknowledge
            code = struct.unpack_from("i", link.recv(65536), 16)[0]
        if code:
            raise OSError(-code, "refused")
        return "interface made"

    def listen_to_kernel():
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9) as link:  # NETLINK_AUDIT
            link.settimeout(0.3)
            link.bind((0, 1))
            return link.recv(100)

    attempt("the host's links", links)
    attempt("a new link", add)
    attempt("the audit log", listen_to_kernel)


def listener(facts, nonce):
    """A port opened inside must not be one of the host's: the look at the host afterwards finds it, while it is held."""
    import time

    servers = [socket.create_server(("", 0)), socket.create_server(("127.0.0.1", 0))]
    hidden = socket.socket(socket.AF_UNIX)
    hidden.bind("\0" + nonce)
    hidden.listen()
    tell(ports=[server.getsockname()[1] for server in servers])
    if os.fork() == 0:
        time.sleep(30)
    time.sleep(0.3)


if __name__ == "__main__":
    main(globals())

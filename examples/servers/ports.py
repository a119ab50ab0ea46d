"""Finds free TCP ports on 127.0.0.1, and the processes that use a port."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from pathlib import Path

from examples.servers.errors import ServerError

HOST = "127.0.0.1"

# Below the ports from which Linux (32768) and macOS (49152) choose the local ports of outgoing connections.
# While a server is down, any client could take such a port. A client that keeps trying to connect to it could
# even connect to itself.
_RANGE = range(20_000, 32_000)

# The ports that this process chooses from. Processes that choose at the same time have different ones: a port
# is in use only some time after it was chosen.
candidates: range = _RANGE
_chosen: set[int] = set()


def free_port(avoid: Collection[int] = ()) -> int:
    """Return a port on which no process listens. It is not in ``avoid``, and was not returned before."""
    for port in random.sample(candidates, k=200):
        if port not in avoid and port not in _chosen and _bind_error(port) is None:
            _chosen.add(port)
            return port
    raise ServerError(f"no free port on {HOST} among 200 tried in {_RANGE.start}-{_RANGE.stop - 1}")


def require_free(port: int, use: str) -> None:
    """Raise a ServerError if the port is in use. It names the port and, if known, the process."""
    problem = _bind_error(port)
    if problem is None:
        return
    holder = holder_of(port)
    who = f"in use by process {holder[0]} ({holder[1]})" if holder else problem
    raise ServerError(f"port {port} for {use} is not free: {who}; end that process or choose another port")


def answers(port: int) -> bool:
    """Return whether a process accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def holder_of(port: int) -> tuple[int, str] | None:
    """Return (pid, program) of a process with a socket on the local port; None if it can't be found.

    Needs Linux's /proc and, for a process of another user, root.
    """
    inodes = _socket_inodes(port)
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(_target(fd) in inodes for fd in (process / "fd").iterdir()):
                return int(process.name), (process / "comm").read_text().strip()
        except OSError:  # the process has ended, or we may not read it
            continue
    return None


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:  # closed meanwhile; the other descriptors may still match
        return ""


def _bind_error(port: int) -> str | None:
    with socket.socket() as probe:
        # As servers do, ignore connections of an earlier server in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            return getattr(error, "strerror", None) or str(error)
    return None


def _socket_inodes(port: int) -> set[str]:
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()  # sl, local address:port in hex, remote, state, …, inode at 9
            if int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes

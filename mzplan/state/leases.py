"""What a lease says from here: whether the runner that holds it may still be running queries."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from mzplan.model.state import Lease
from mzplan.state.process import is_alive, pid_space, started_at

LEASE_TTL = 15.0  # seconds
HEARTBEAT = 1.0  # seconds


class Sightings:
    """How long files have been seen without a change, by the clock of this process alone (`clock` gives
    seconds, monotonic): whoever leads changes its lease each second, and ends its queries where it can't."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}

    def unchanged(self, key: str, version: str) -> float:
        """Seconds since this version of the file was seen first; 0.0 for a new one."""
        now = self._clock()
        seen = self._seen.get(key)
        if seen is None or seen[0] != version:
            seen = self._seen[key] = (version, now)
        return now - seen[1]


def is_live(lease: Lease, unchanged: float = 0.0) -> bool:
    """Whether the runner that holds the lease may still be running queries. `unchanged`: seconds for which
    it was seen as it is, which tells of one whose host has a clock that is ahead."""
    if lease.released or time.time() > lease.heartbeat + lease.ttl or unchanged > lease.ttl:
        return False
    return not is_of_here(lease) or is_alive(lease.pid, lease.pid_started)


def is_of_here(lease: Lease) -> bool:
    """Whether the lease's pid tells of the same process here. Hosts have equal names where containers, pods
    on other nodes and cloned machines do: then only its time to live can tell."""
    return lease.host == socket.gethostname() and lease.pid_space == pid_space()


def new_lease(instance: str, owner: str, epoch: int) -> Lease:
    """One of this process, from now on."""
    return Lease(
        instance=instance,
        epoch=epoch,
        owner=owner,
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_started=started_at(os.getpid()),
        pid_space=pid_space(),
        heartbeat=time.time(),
        ttl=LEASE_TTL,
    )


def is_blank(data: bytes) -> bool:
    """Whether a file has lost its content: leases and statuses are not synced, so a power failure may leave
    them empty, or full of zeros."""
    return not data.strip(b"\0 \r\n")

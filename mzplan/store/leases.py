"""The leases of runners: which runner leads an instance, and whether it may still run queries."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from mzplan.host.processes import is_alive, pid_space, started_at
from mzplan.model.address import is_valid_name
from mzplan.model.observed import Lease
from mzplan.store.backends.backend import Backend, Blob, ConflictError
from mzplan.store.epochs import next_epoch
from mzplan.store.formats import decode_lease, encode_lease

LEASE_TTL = 15.0  # seconds
HEARTBEAT = 1.0  # seconds


class Sightings:
    """Measures how long files stay unchanged, by this process's own clock (monotonic seconds).

    A leader changes its lease every second, and stops its queries if it can't.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._first_seen: dict[str, tuple[str, float]] = {}

    def unchanged(self, key: str, version: str) -> float:
        """Return the seconds since this version of the file was first seen; 0.0 for a new version."""
        now = self._clock()
        sighting = self._first_seen.get(key)
        if sighting is None or sighting[0] != version:
            sighting = self._first_seen[key] = (version, now)
        return now - sighting[1]


def is_live(lease: Lease, unchanged: float = 0.0) -> bool:
    """Whether the runner that holds the lease may still be running queries.

    `unchanged`: seconds since this process first saw this version of the lease. After `ttl` seconds the
    lease has lapsed, even if its heartbeat comes from a clock that is ahead.
    """
    if lease.released or time.time() > lease.heartbeat + lease.ttl or unchanged > lease.ttl:
        return False
    return not is_local(lease) or is_alive(lease.pid, lease.pid_started)


def is_local(lease: Lease) -> bool:
    """Whether the lease's pid belongs to this machine and pid namespace.

    Containers, pods on other nodes and cloned machines can share a host name. For such a lease, only `ttl`
    counts.
    """
    return lease.host == socket.gethostname() and lease.pid_space == pid_space()


def new_lease(instance: str, owner: str, epoch: int) -> Lease:
    """Return a lease of this process that starts now."""
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
    """Whether a file has lost its content.

    Leases and statuses aren't synced to disk, so a power failure may leave them empty or full of zeros.
    """
    return not data.strip(b"\0 \r\n")


class Leases:
    """The leases of a project's runners, one for each instance. Safe for several processes.

    `former`: the lease that this object's last `acquire` replaced, or None.
    """

    def __init__(self, backend: Backend, sightings: Sightings):
        self.former: Lease | None = None
        self._backend = backend
        self._sightings = sightings

    def read(self, instance: str) -> Lease | None:
        """Return the lease, or None if there is none or a power failure has emptied it."""
        key = _key(instance)
        blob = self._backend.read(key)
        return decode_lease(blob.data, key) if blob and not is_blank(blob.data) else None

    def leader(self, instance: str) -> Lease | None:
        """Return the lease of the instance's leader, or None if no live leader is known."""
        lease = self.read(instance)
        return lease if lease is not None and is_live(lease) else None

    def may_be_led(self, instance: str) -> bool:
        """Whether a runner of this instance may still be running queries.

        An empty lease counts as held for LEASE_TTL seconds. By then, its holder has stopped its queries.
        """
        key = _key(instance)
        blob = self._backend.read(key)
        return blob is not None and self._may_be_led(key, blob)

    def _may_be_led(self, key: str, blob: Blob) -> bool:
        unchanged = self._sightings.unchanged(key, blob.version)
        if is_blank(blob.data):
            return unchanged <= LEASE_TTL
        return is_live(decode_lease(blob.data, key), unchanged)

    def instances(self) -> list[str]:
        """Return the instances that have or had a runner."""
        names = (k.removeprefix("leases/").removesuffix(".json") for k in self._backend.list("leases/"))
        return [name for name in names if is_valid_name(name)]

    def acquire(self, instance: str, owner: str) -> Lease | None:
        """Become the leader with the next epoch; None while another runner leads or may lead."""
        key = _key(instance)
        blob = self._backend.read(key)
        if blob is not None and self._may_be_led(key, blob):
            return None
        lease = new_lease(instance, owner, next_epoch(self._backend))
        try:
            self._backend.write(key, encode_lease(lease), expected=blob.version if blob else None)
        except ConflictError:
            return None
        self.former = decode_lease(blob.data, key) if blob and not is_blank(blob.data) else None
        return lease

    def take(self, instance: str, owner: str) -> Lease:
        """Become the leader with the next epoch, even if another runner leads now.

        That runner notices when it renews its lease. Until then, targets refuse its lower epoch. Returns a
        live lease of the same owner unchanged.
        """
        key = _key(instance)
        while True:
            blob = self._backend.read(key)
            old = decode_lease(blob.data, key) if blob and not is_blank(blob.data) else None
            if old is not None and old.owner == owner and is_live(old):
                return old
            lease = new_lease(instance, owner, next_epoch(self._backend))
            # After a conflict, try again: another process has written the lease meanwhile.
            with contextlib.suppress(ConflictError):
                self._backend.write(key, encode_lease(lease), expected=blob.version if blob else None)
                return lease

    def renew(self, lease: Lease, *, released: bool = False) -> Lease | None:
        """Return the lease with a new heartbeat; None if it has another epoch or owner now."""
        key = _key(lease.instance)
        blob = self._backend.read(key)
        current = decode_lease(blob.data, key) if blob else None
        if current is None or (current.epoch, current.owner) != (lease.epoch, lease.owner):
            return None
        renewed = replace(lease, heartbeat=time.time(), released=released)
        assert blob is not None
        try:
            self._backend.write(key, encode_lease(renewed), expected=blob.version, durable=False)
        except ConflictError:
            return None
        return renewed


def _key(instance: str) -> str:
    return f"leases/{instance}.json"

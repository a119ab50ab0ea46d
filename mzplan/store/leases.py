"""The leases of runners: which one leads, and whether the runner that holds one may still be running
queries."""

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
from mzplan.store.backends.backend import Backend, Blob, ConflictError, misplaced_error
from mzplan.store.epochs import next_epoch
from mzplan.store.formats import decode_lease, encode_lease

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
    it was seen as it is, which unmasks one whose host has a clock that is ahead."""
    if lease.released or time.time() > lease.heartbeat + lease.ttl or unchanged > lease.ttl:
        return False
    return not is_of_here(lease) or is_alive(lease.pid, lease.pid_started)


def is_of_here(lease: Lease) -> bool:
    """Whether the lease's pid is that of the same process here. Hosts have equal names where containers, pods
    on other nodes and cloned machines do: then only its time to live decides."""
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


class Leases:
    """The leases of a project's runners, one for each instance. Safe for several processes at once. `former`:
    the lease before the one that was acquired here last, None where there was none."""

    def __init__(self, backend: Backend, sightings: Sightings):
        self.former: Lease | None = None
        self._backend = backend
        self._sightings = sightings

    def read(self, instance: str) -> Lease | None:
        """None where there is none, or a power failure has emptied it."""
        key = _key(instance)
        blob = self._backend.read(key)
        lease = decode_lease(blob.data, key) if blob and not is_blank(blob.data) else None
        if lease is not None and lease.instance != instance:
            raise misplaced_error(key, "lease", lease.instance)
        return lease

    def leader(self, instance: str) -> Lease | None:
        """The lease of the runner that leads this instance, None when nobody is known to."""
        lease = self.read(instance)
        return lease if lease is not None and is_live(lease) else None

    def may_be_led(self, instance: str) -> bool:
        """Whether a runner of this instance may still be running queries: also one whose lease has become
        empty, for as long as it would take it to find out."""
        key = _key(instance)
        blob = self._backend.read(key)
        return blob is not None and self._may_be_led(key, blob)

    def _may_be_led(self, key: str, blob: Blob) -> bool:
        unchanged = self._sightings.unchanged(key, blob.version)
        if is_blank(blob.data):
            return unchanged <= LEASE_TTL  # whoever had it has ended its queries by then
        return is_live(decode_lease(blob.data, key), unchanged)

    def instances(self) -> list[str]:
        """The instances that have, or have had, a runner."""
        names = (k.removeprefix("leases/").removesuffix(".json") for k in self._backend.list("leases/"))
        return [name for name in names if is_valid_name(name)]

    def acquire(self, instance: str, owner: str) -> Lease | None:
        """Become the leader with the next epoch; None while somebody else leads, or may do so."""
        key = _key(instance)
        blob = self._backend.read(key)
        if blob is not None and self._may_be_led(key, blob):
            return None
        lease = new_lease(instance, owner, self.next_epoch())
        try:
            self._backend.write(key, encode_lease(lease), expected=blob.version if blob else None)
        except ConflictError:
            return None
        self.former = decode_lease(blob.data, key) if blob and not is_blank(blob.data) else None
        return lease

    def take(self, instance: str, owner: str) -> Lease:
        """Become the leader with the next epoch, whoever leads now: they find out when they renew, and are
        fenced by the epoch before. A live lease of this very owner is kept."""
        key = _key(instance)
        while True:
            blob = self._backend.read(key)
            old = decode_lease(blob.data, key) if blob and not is_blank(blob.data) else None
            if old is not None and old.owner == owner and is_live(old):
                return old
            lease = new_lease(instance, owner, self.next_epoch())
            # Another one who takes it at the same moment comes after this one, or before.
            with contextlib.suppress(ConflictError):
                self._backend.write(key, encode_lease(lease), expected=blob.version if blob else None)
                return lease

    def renew(self, lease: Lease, *, released: bool = False) -> Lease | None:
        """The lease with a new heartbeat; None when it is no longer ours (another epoch or owner)."""
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

    def next_epoch(self) -> int:
        """A fencing token that is higher than every one before it, of any instance."""
        return next_epoch(self._backend)


def _key(instance: str) -> str:
    return f"leases/{instance}.json"

"""The leases of runners: which runner leads an instance, and whether it may still run queries.

The fencing tokens (epochs) of a project are handed out once, in increasing order. All instances share one
sequence. A query that moves to another instance therefore resumes under a higher epoch, and its targets
refuse the previous runner. If the file with the newest epoch is lost, the sequence continues from the highest
epoch of all leases and statuses.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from mzplan.host.processes import is_alive, pid_space, started_at
from mzplan.model.address import is_valid_name
from mzplan.model.codec import encode
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.observed import Lease
from mzplan.store.backends.backend import Backend, Blob, ConflictError
from mzplan.store.formats import canonical, decode_lease, decode_status, encode_lease, load_as

FORMAT_VERSION = 1
EPOCH_KEY = "leases/_epoch.json"  # no instance has such a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The epoch that was handed out last."""

    epoch: int


def next_epoch(backend: Backend) -> int:
    """Return an epoch that is higher than every earlier one of any instance.

    Raises MzplanError if the backend fails.
    """
    return _put(backend, lambda newest: newest + 1)


def raise_epoch(backend: Backend, least: int) -> None:
    """Make the next epoch greater than `least`, which another store has handed out. Raises MzplanError."""
    _put(backend, lambda newest: max(newest, least))


def newest_epoch(backend: Backend) -> int:
    """Return the epoch handed out last, or 0 if there is none. Raises MzplanError."""
    return _newest(backend, backend.read(EPOCH_KEY))


def _put(backend: Backend, choose: Callable[[int], int]) -> int:
    """Write the epoch that `choose` returns for the newest epoch."""
    while True:
        blob = backend.read(EPOCH_KEY)
        chosen = choose(_newest(backend, blob))
        content = canonical({"format_version": FORMAT_VERSION, **encode(Newest(epoch=chosen))}) + "\n"
        try:
            backend.write(EPOCH_KEY, content.encode(), expected=blob.version if blob else None)
        except ConflictError:  # another process has written an epoch
            continue
        return chosen


def _newest(backend: Backend, blob: Blob | None) -> int:
    if blob is None:
        return _highest(backend)
    return load_as(Newest, blob.data, EPOCH_KEY, "delete it: the leases also have the epoch.").epoch


def _highest(backend: Backend) -> int:
    epochs = [0]
    for key in (*backend.list("leases/"), *backend.list("status/")):
        if key == EPOCH_KEY or key.count(".") != 1:
            continue
        blob = backend.read(key)
        try:
            if blob is not None:
                lease = key.startswith("leases/")
                epochs.append((decode_lease if lease else decode_status)(blob.data, key).epoch)
        except MzplanError:  # the runner of that instance reports the damaged file
            continue
    return max(epochs)


LEASE_TTL = 15.0  # seconds
HEARTBEAT = 1.0  # seconds
MAX_SKEW = 900.0  # seconds by which the clocks of two machines plausibly differ
WATCH = 2.5  # seconds for which a command watches a lease whose heartbeat doesn't fit its own clock
MAX_GAP = LEASE_TTL / 2  # seconds between two sightings of a file, beyond which the time doesn't count


class Sightings:
    """Measures how long files stay unchanged, by this process's own clock (monotonic seconds).

    A leader changes its lease every second, but only while the store answers. Time without a sighting
    therefore doesn't count: the store may have been away, or this process may have been suspended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._sightings: dict[str, tuple[str, float, float]] = {}  # version, seconds unchanged, last seen

    def unchanged(self, key: str, version: str) -> float:
        """Return for how many seconds this version of the file has been seen; 0.0 for a new version."""
        now = self._clock()
        before, unchanged, seen_at = self._sightings.get(key, ("", 0.0, now))
        unchanged = unchanged + now - seen_at if before == version and now - seen_at <= MAX_GAP else 0.0
        self._sightings[key] = (version, unchanged, now)
        return unchanged


def is_live(lease: Lease) -> bool:
    """Whether the lease's runner seems to lead, by this machine's clock.

    For display: a decision needs `Leases.may_be_led`, because the runner's clock may differ.
    """
    return time.time() <= lease.heartbeat + lease.ttl and not has_ended(lease)


def has_ended(lease: Lease) -> bool:
    """Whether the runner certainly runs no queries: it has released its lease, or its process is dead."""
    return lease.released or (is_local(lease) and not is_alive(lease.pid, lease.pid_started))


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
        self._skews: dict[str, float] = {}  # seconds by which a runner's clock is behind this one
        self._unchanged: dict[
            str, str
        ] = {}  # the version of each lease that didn't change while it was watched

    def read(self, instance: str) -> Lease | None:
        """Return the lease, or None if there is none or a power failure has emptied it."""
        key = _key(instance)
        blob = self._backend.read(key)
        return decode_lease(blob.data, key) if blob and not is_blank(blob.data) else None

    def leader(self, instance: str) -> Lease | None:
        """Return the lease of the instance's leader, or None if no live leader is known.

        If the heartbeat doesn't fit this machine's clock, this watches for WATCH seconds whether it changes.
        """
        key = _key(instance)
        blob = self._backend.read(key)
        if blob is None or is_blank(blob.data):
            return None
        lease = decode_lease(blob.data, key)
        if has_ended(lease):
            return None
        age = time.time() - lease.heartbeat
        if -lease.ttl <= age - self._skews.get(key, 0.0) <= lease.ttl:
            return lease
        if is_local(lease) or abs(age) > MAX_SKEW or self._unchanged.get(key) == blob.version:
            return None
        return self._watch(key, blob)

    def _watch(self, key: str, blob: Blob) -> Lease | None:
        """Return the lease as soon as its runner renews it; None if it doesn't."""
        until = time.monotonic() + WATCH
        while time.monotonic() < until:
            time.sleep(self._backend.poll_interval)
            now = self._backend.read(key)
            if now is None or is_blank(now.data):
                return None
            if now.version != blob.version:
                lease = decode_lease(now.data, key)
                self._skews[key] = time.time() - lease.heartbeat
                return None if has_ended(lease) else lease
        self._unchanged[key] = blob.version
        return None

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
        lease = decode_lease(blob.data, key)
        return unchanged <= lease.ttl and not has_ended(lease)

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
        """Return the lease with a new heartbeat; None if it has another owner now.

        Writes a lost lease again. Raises MzplanError MZ330 if the store has also lost the lease's epoch:
        another runner could get the same epoch, and no target could tell the two apart.
        """
        key = _key(lease.instance)
        while True:
            blob = self._backend.read(key)
            current = decode_lease(blob.data, key) if blob and not is_blank(blob.data) else None
            if current is None or current.epoch < lease.epoch:  # lost, as after a failover to an older copy
                if (newest := newest_epoch(self._backend)) < lease.epoch:
                    raise _lost_epoch(self._backend.describe(), lease, newest)
            elif (current.epoch, current.owner) != (lease.epoch, lease.owner):
                return None
            renewed = replace(lease, heartbeat=time.time(), released=released)
            # After a conflict, look again: only another owner ends this lease.
            with contextlib.suppress(ConflictError):
                version = blob.version if blob is not None else None
                self._backend.write(key, encode_lease(renewed), expected=version, durable=False)
                return renewed


def _lost_epoch(place: str, lease: Lease, newest: int) -> MzplanError:
    return error("MZ330.store-lost", instance=lease.instance, epoch=lease.epoch, place=place, newest=newest)


def _key(instance: str) -> str:
    return f"leases/{instance}.json"

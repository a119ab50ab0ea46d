"""The fencing tokens of a project: each is handed out once, and each is higher than all before it.

One sequence for all instances: a query that moves from one to another goes on under a higher epoch, and its
targets refuse the runner that had it. If the newest number is lost, the sequence continues from the highest
epoch of all leases and statuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mzplan.model.codec import encode
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.stored import MOST
from mzplan.store.backends.backend import Backend, Blob, ConflictError
from mzplan.store.formats import canonical, decode_lease, decode_status, load_as

FORMAT_VERSION = 1
EPOCH_KEY = "leases/_epoch.json"  # no instance has such a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The epoch that was handed out last."""

    epoch: int


def next_epoch(backend: Backend) -> int:
    """A new epoch. Raises MzplanError for what the backend did."""
    return _put(backend, lambda newest: newest + 1)


def raise_epoch(backend: Backend, least: int) -> None:
    """Have the next epoch be greater than `least`, which was handed out elsewhere. Raises MzplanError."""
    _put(backend, lambda newest: max(newest, least))


def newest_epoch(backend: Backend) -> int:
    """The epoch handed out last, 0 when there was none. Raises MzplanError."""
    return _newest(backend, backend.read(EPOCH_KEY))


def _put(backend: Backend, choose: Callable[[int], int]) -> int:
    """Write what is chosen in view of the newest."""
    while True:
        blob = backend.read(EPOCH_KEY)
        chosen = choose(_newest(backend, blob))
        if chosen > MOST:  # it would not be read again, and no target takes one that begins anew
            raise error(
                "MZ030",
                f"{EPOCH_KEY} has no epoch left",
                f"The epoch {chosen - 1} was handed out, and none can be higher than {MOST}: nobody takes "
                "over an instance so often. Somebody else has written it, or a lease.",
                f"look who else writes the store; then delete {EPOCH_KEY}, and any lease or status with such "
                "an epoch.",
            )
        content = canonical({"format_version": FORMAT_VERSION, **encode(Newest(epoch=chosen))}) + "\n"
        try:
            backend.write(EPOCH_KEY, content.encode(), expected=blob.version if blob else None)
        except ConflictError:  # somebody else has taken it
            continue
        return chosen


def _newest(backend: Backend, blob: Blob | None) -> int:
    if blob is None:
        return _highest(backend)
    return load_as(Newest, blob.data, EPOCH_KEY, "delete it: leases have it, too.").epoch


def _highest(backend: Backend) -> int:
    """The highest epoch that any lease or status has."""
    epochs = [0]
    for key in (*backend.list("leases/"), *backend.list("status/")):
        if key == EPOCH_KEY or key.count(".") != 1:
            continue
        blob = backend.read(key)
        try:
            if blob is not None:
                lease = key.startswith("leases/")
                epochs.append((decode_lease if lease else decode_status)(blob.data, key).epoch)
        except MzplanError:  # one that is damaged is for the runner of its instance to report
            continue
    return max(epochs)

"""The fencing tokens (epochs) of a project: each is handed out once, in increasing order.

All instances share one sequence. A query that moves to another instance therefore resumes under a higher
epoch, and its targets refuse the previous runner. If the file with the newest epoch is lost, the sequence
continues from the highest epoch of all leases and statuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mzplan.model.codec import encode
from mzplan.model.diagnostics import MzplanError
from mzplan.store.backends.backend import Backend, Blob, ConflictError
from mzplan.store.formats import canonical, decode_lease, decode_status, load_as

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

"""The fencing tokens of a project: each is handed out once, and each is higher than all before it.

One sequence for all instances: a query that moves from one to another goes on under a higher epoch, and its
targets refuse the runner that had it. In a store of an earlier mzplan each instance counted by itself; the
sequence goes on from the highest of them.
"""

from __future__ import annotations

from mzplan.model import reading
from mzplan.model.diagnostics import MzplanError
from mzplan.state.backend import Backend, ConflictError
from mzplan.state.formats import canonical, decode, decode_lease

FORMAT_VERSION = 1
EPOCH_KEY = "leases/_epoch.json"  # no instance has such a name


def next_epoch(backend: Backend) -> int:
    """A new epoch. Raises MzplanError for what the backend did."""
    while True:
        blob = backend.read(EPOCH_KEY)
        newest = _decoded(blob.data) if blob is not None else _of_leases(backend)
        note = {"format_version": FORMAT_VERSION, "epoch": newest + 1}
        try:
            backend.write(
                EPOCH_KEY, (canonical(note) + "\n").encode(), expected=blob.version if blob else None
            )
        except ConflictError:  # somebody else has taken it
            continue
        return newest + 1


def _decoded(data: bytes) -> int:
    return decode(
        data, EPOCH_KEY, lambda content: reading.integer(content, "epoch"), "delete it: leases tell it, too."
    )


def _of_leases(backend: Backend) -> int:
    """The highest epoch that any lease has."""
    found = [0]
    for key in backend.list("leases/"):
        blob = backend.read(key)
        try:
            if blob is not None and key != EPOCH_KEY:
                found.append(decode_lease(blob.data, key).epoch)
        except MzplanError:  # a damaged lease is for the runner of its instance to tell of
            continue
    return max(found)

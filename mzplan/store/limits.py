"""How many queries the runners stop and start at once for one serial (`apply --parallelism`).

The limit says how to carry out a change, so it isn't part of the desired state. It is stored next to the
State, before the serial is committed, and applies only to that serial.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from mzplan.model.codec import encode
from mzplan.model.state import FORMAT_VERSION
from mzplan.model.stored import Positive
from mzplan.store.formats import load_as
from mzplan.store.store import Store

LIMIT_KEY = "parallelism.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The number of queries that a runner stops and starts at once for a serial."""

    serial: int
    parallelism: Positive


def write_limit(store: Store, serial: int, parallelism: int | None) -> None:
    """Write the limit, before its serial is committed. The caller holds the lock."""
    if parallelism is not None:
        limit = Limit(serial=serial, parallelism=parallelism)
        content = {"format_version": FORMAT_VERSION, **encode(limit)}
        store.backend.write(LIMIT_KEY, (json.dumps(content, sort_keys=True) + "\n").encode())


def read_limit(store: Store, serial: int) -> int | None:
    """Return the limit of this serial, if any. Raises MzplanError if the file can't be read."""
    blob = store.backend.read(LIMIT_KEY)
    if blob is None:
        return None
    hint = "delete it: it only limits how many queries start at once."
    limit = load_as(Limit, blob.data, LIMIT_KEY, hint)
    return limit.parallelism if limit.serial == serial else None

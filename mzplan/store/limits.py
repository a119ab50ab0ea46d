"""How many queries the runners stop and start at once for one serial: `apply --parallelism`.

It is how a change is carried out, and nothing of what is wanted: so it is beside the State, noted before the
serial that it is for is committed, and of no other.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from mzplan.model import reading
from mzplan.model.state import FORMAT_VERSION
from mzplan.store.formats import decode
from mzplan.store.store import Store

LIMIT_KEY = "parallelism.json"


@contextlib.contextmanager
def limiting(store: Store, serial: int, parallelism: int | None) -> Iterator[None]:
    """Note it before the commit of a serial, which is to be done in here. The caller has the lock."""
    if parallelism is not None:
        content = {"format_version": FORMAT_VERSION, "serial": serial, "parallelism": parallelism}
        store.backend.write(LIMIT_KEY, (json.dumps(content, sort_keys=True) + "\n").encode())
    yield


def limited(store: Store, serial: int) -> int | None:
    """What was noted for this serial. Raises MzplanError for what can't be read."""
    blob = store.backend.read(LIMIT_KEY)
    if blob is None:
        return None
    noted, parallelism = decode(
        blob.data, LIMIT_KEY, _build, "delete it: it is only how many queries are started at once."
    )
    return parallelism if noted == serial else None


def _build(content: object) -> tuple[int, int]:
    given = reading.mapping(content, "the limit")
    return reading.integer(given, "serial"), reading.integer(given, "parallelism", least=1)

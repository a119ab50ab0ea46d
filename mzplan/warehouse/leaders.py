"""The epochs of the newest runners, in the warehouse: a second place to learn that another runner leads.

    <warehouse>/leaders/<lineage>.<instance>.json

A runner records its epoch before it starts queries. An earlier runner that can't reach the store reads it
there, and stops. The lineage tells apart projects and environments that share a warehouse.
"""

from __future__ import annotations

import json

from mzplan.warehouse.folder import decoding, read_text, write_text
from mzplan.warehouse.paths import absolute

FORMAT_VERSION = 1


def newest_epoch(warehouse: str, lineage: str, instance: str) -> int:
    """Return the recorded epoch, or 0 if there is none. Raises OSError."""
    place = _place(warehouse, lineage, instance)
    text = read_text(place)
    if text is None:
        return 0
    with decoding(place):
        return int(json.loads(text)["epoch"])


def record_epoch(warehouse: str, lineage: str, instance: str, epoch: int) -> None:
    """Record the epoch durably, unless a higher one is recorded. Raises OSError."""
    if newest_epoch(warehouse, lineage, instance) < epoch:
        data = {"epoch": epoch, "format_version": FORMAT_VERSION}
        write_text(_place(warehouse, lineage, instance), json.dumps(data) + "\n")


def _place(warehouse: str, lineage: str, instance: str) -> str:
    return absolute(warehouse, f"leaders/{lineage}.{instance}.json")

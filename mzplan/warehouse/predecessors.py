"""Generations whose rows a later generation migrates: which one has begun, and which must not run again."""

from __future__ import annotations

from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import error
from mzplan.model.state import Predecessor
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.storage import generations_below


def newest_begun(warehouse: str, id_: str, predecessor: Predecessor) -> Predecessor:
    """Return the predecessor that has the rows: the newest one that has begun, otherwise the oldest one.

    Raises OSError."""
    while predecessor.predecessor is not None:
        if Checkpoint.of(warehouse, id_, predecessor.generation).migrated_rows() is not None:
            break
        predecessor = predecessor.predecessor
    return predecessor


def require_not_migrated(warehouse: str, address: Address, place: Place) -> None:
    """Raise MZ063 if a later generation has begun with this generation's rows. Call it before writing.

    The later generation continues where this generation stopped. If this generation ran again, both
    generations would read the same records. Raises OSError."""
    id_, generation = place
    for later in generations_below(warehouse, id_):
        migrated = Checkpoint.of(warehouse, id_, later).migrated_rows() if later > generation else None
        if migrated is not None and migrated.generation == generation:
            raise error(
                "MZ063",
                f"{address} could not be started",
                f"Generation {later} has begun with the rows of generation {generation}, so generation "
                f"{generation} must not start again.",
                f"mzplan retries; run mzplan status {address} to see what generation {later} is waiting for.",
                address=address,
            )

"""Which Spark and Delta have written a checkpoint, and whether those that are here can go on from it."""

from __future__ import annotations

from mzplan.host.spark_lines import LINES, NEWEST
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.state import Versions
from mzplan.warehouse.checkpoints import Checkpoint


def take_over(checkpoint: Checkpoint, address: Address, ours: Versions | None) -> Versions | None:
    """Record that we write here from now on. Returns what has written before, where that is another Spark or
    Delta. Raises MzplanError MZ241, and OSError."""
    before = require_readable(checkpoint, address)
    if ours is None or before == ours:
        return None
    checkpoint.record_versions(ours)
    return before if before is not None and not before.stores_as(ours) else None


def require_readable(checkpoint: Checkpoint, address: Address) -> Versions | None:
    """What has written a checkpoint; None where that is not recorded. Raises MzplanError MZ241 where no line
    of this mzplan is known to read it, and OSError.

    Lines that are in the table read each other's checkpoints: a test goes to and fro between them.
    """
    before = checkpoint.versions()
    if before is not None and ".".join(before.spark.split(".")[:2]) not in {line.spark for line in LINES}:
        raise _unreadable(address, before)
    return before


def _unreadable(address: Address, before: Versions) -> MzplanError:
    return error(
        "MZ241",
        f"The checkpoint of {address} was written with Spark {before.spark}",
        f"mzplan {before.mzplan} has written it, with {before}; this mzplan knows Spark up to "
        f"{NEWEST.spark}, and not whether that can go on from it. The checkpoint was not touched.",
        f"let a runner of mzplan {before.mzplan} or newer run it; or start it anew: "
        f"mzplan apply --replace {address}",
        address=address,
    )

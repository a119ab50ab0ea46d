"""What a generation of a source has made on its upstream, and must not leave behind: a replication slot
keeps a server's log for ever.

The description is recorded beside the checkpoint before anything is made, so that whoever gives the
generation up, after any crash, knows where that is. Secrets are in it as references.
"""

from __future__ import annotations

import logging

from mzplan.connectors.api.capabilities import Releases
from mzplan.connectors.api.protocols import resolve
from mzplan.connectors.catalogue import Connectors
from mzplan.model.address import Place
from mzplan.model.codec import decode, encode
from mzplan.model.diagnostics import error
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import Checkpoint

log = logging.getLogger("mzplan.storage")


def record_release(connectors: Connectors, checkpoint: Checkpoint, description: Description) -> None:
    """Record, durably, where a source is about to make something. Raises OSError."""
    if _releasing(connectors, description) is None:
        return
    left = encode(description)
    if checkpoint.leaves() != left:
        checkpoint.record_leaves(left)


def leave(warehouse: str, place: Place, secrets: Secrets, directory: str) -> None:
    """Remove from its upstream what a generation that is given up has made there; nothing if it made
    nothing, or that is gone. Raises MzplanError while it can't be removed."""
    checkpoint = Checkpoint.of(warehouse, *place)
    try:
        left = checkpoint.leaves()
    except OSError as problem:
        raise error("MZ063", f"{checkpoint.folder} can't be read", str(problem)) from None
    if not left:
        return
    try:
        description = decode(Description, left)
    except ValueError as problem:
        raise error("MZ063", f"{checkpoint.folder}/leaves.json is damaged", str(problem)) from None
    if description.place != place:  # whoever writes the warehouse must not have another one's released
        raise error("MZ063", f"{checkpoint.folder}/leaves.json is damaged", "It is of another generation.")
    connector = _releasing(Connectors(), description)
    if connector is not None:
        connector.release(resolve(description, secrets, directory, warehouse))
        log.info("%s g%d: what it made on its upstream is removed", description.address, place[1])
    try:
        checkpoint.record_leaves({})
    except OSError as problem:
        raise error("MZ063", f"{checkpoint.folder} can't be written", str(problem)) from None


def _releasing(connectors: Connectors, description: Description) -> Releases | None:
    """The connector, if it is a source that leaves something behind."""
    if description.address.kind != "source":
        return None
    connector = connectors.source(description.type)
    return connector if isinstance(connector, Releases) else None

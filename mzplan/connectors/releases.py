"""Removes the objects that a dropped generation created on its upstream, and its data in its target.

Upstream objects are removed at once, because a replication slot would keep the server's log forever. The data
in a target is removed together with the generation's storage.

The query's description is recorded beside the checkpoint before the query creates anything, with references
instead of secrets. So even after a crash, the process that drops the generation knows the server.
"""

from __future__ import annotations

import logging

from mzplan.connectors.api.queries import resolve
from mzplan.connectors.catalogue import Connectors
from mzplan.model.address import Place
from mzplan.model.codec import decode, encode
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.storage import remove_storage

log = logging.getLogger("mzplan.storage")


def record_release(connectors: Connectors, checkpoint: Checkpoint, description: Description) -> None:
    """Record the description of a query that is about to create such objects or data. Raises OSError."""
    connector_of = connectors.source if description.address.writes_collection else connectors.sink
    if not connector_of(description.type).needs_cleanup:
        return
    encoded = encode(description)
    if checkpoint.leaves() != encoded:
        checkpoint.record_leaves(encoded)


def transfer_release(earlier: Checkpoint, later: Checkpoint, description: Description) -> None:
    """Make a later generation, of this description, responsible for an earlier generation's upstream objects.
    Idempotent. Raises OSError."""
    if earlier.leaves():
        later.record_leaves(encode(description))
        earlier.record_leaves({})


def release_upstream(warehouse: str, place: Place, secrets: Secrets, directory: str) -> None:
    """Remove a dropped generation's objects on its upstream, if it has any. Raises MzplanError if that fails,
    for example because the server can't be reached."""
    description = _recorded_description(warehouse, place)
    if description is None or not description.address.writes_collection:
        return
    connector = Connectors().source(description.type)
    if not connector.needs_cleanup:
        return
    connector.release(resolve(description, secrets, directory, warehouse))
    log.info("%s g%d: removed its objects on the upstream", description.address, place[1])
    checkpoint = Checkpoint.of(warehouse, *place)
    try:
        checkpoint.record_leaves({})
    except OSError as problem:
        raise error("MZ063.cannot-written", folder=checkpoint.folder, problem=problem) from None


def remove_generation(warehouse: str, place: Place, secrets: Secrets, directory: str) -> None:
    """Remove the storage of a generation, and its data in its target.

    If removing the data fails, for example because the target can't be reached, the storage is removed
    anyway. Raises MzplanError, see remove_storage.
    """
    try:
        description = _recorded_description(warehouse, place)
        if description is not None and description.address.writes_target:
            connector = Connectors().sink(description.type)
            if connector.needs_cleanup:
                connector.forget(resolve(description, secrets, directory, warehouse))
    except MzplanError as problem:
        log.warning("can't remove the data of %s g%d from its target: %s", *place, problem)
    remove_storage(warehouse, *place)


def _recorded_description(warehouse: str, place: Place) -> Description | None:
    """Return the recorded description, or None if there is nothing to remove. Raises MzplanError."""
    checkpoint = Checkpoint.of(warehouse, *place)
    try:
        encoded = checkpoint.leaves()
    except OSError as problem:
        raise error("MZ063.cannot-read", folder=checkpoint.folder, problem=problem) from None
    if not encoded:
        return None
    try:
        description = decode(Description, encoded)
    except ValueError as problem:
        raise error("MZ063.leaves-json-damaged", folder=checkpoint.folder, problem=problem) from None
    if description.place != place:  # another generation's objects must stay
        raise error("MZ063.leaves-json", folder=checkpoint.folder)
    return description

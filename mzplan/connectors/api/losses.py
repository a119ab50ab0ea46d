"""Checks whether replacing a source loses rows.

The new generation reads from the beginning, but the upstream may no longer hold everything that the previous
generation has read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.targets import unreadable
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.losses import Loss, as_refusal, as_warning
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.folder import open_folder
from mzplan.warehouse.step_index import StepIndex

_MAX_GENERATIONS = 20  # earlier generations to look at; only a few never start
_MAX_NAMES = 8  # partitions or files that a message names


def check_losses(
    connector: SourceConnector, query: ResolvedQuery, warehouse: str, upstream: Mapping[str, Any] | None
) -> tuple[Diagnostic, ...]:
    """Return MZ292 if a new generation can't read again all that the previous one has read.

    Once the new generation has begun, nothing is checked. MZ292 is a warning if the commit allowed the loss,
    otherwise an error. `upstream` is the identity that the probe found. Changes nothing. Raises MzplanError
    for a server's errors: then the loss is unknown, and the new generation must not start."""
    checkpoint, description = query.checkpoint, query.description
    if checkpoint is None or description.generation == 1 or description.predecessor is not None:
        return ()
    try:
        if checkpoint.log.has_begun():
            return ()
        former = _former_checkpoint(query, warehouse)
        if former is None:
            return ()
        loss = connector.loss(query, former) or _other_upstream_loss(connector, query, former, upstream)
    except OSError as problem:
        return (unreadable(query, problem),)
    if loss is None:
        return ()
    warning = as_warning(query.address, loss)
    return (warning if description.may_lose else as_refusal(warning),)


def _other_upstream_loss(
    connector: SourceConnector, query: ResolvedQuery, former: Checkpoint, found: Mapping[str, Any] | None
) -> Loss | None:
    """Return a loss of all rows if they were read from another upstream. Raises OSError."""
    recorded, newest = former.upstream(), StepIndex(former).last()
    if recorded is None or found is None or query.body.get("on_upstream_change") == "accept":
        return None
    if newest is None or newest.total == 0:  # nothing was read from it
        return None
    difference = connector.compare(query, recorded, found)
    return (
        Loss(lost=None, read=None, unit="rows", where=difference.detail.partition(". ")[0])
        if difference
        else None
    )


def _former_checkpoint(query: ResolvedQuery, warehouse: str) -> Checkpoint | None:
    """Return the checkpoint of the newest earlier generation that has read something, if it still exists."""
    own = query.description.generation
    for generation in range(own - 1, max(0, own - 1 - _MAX_GENERATIONS), -1):
        checkpoint = Checkpoint.of(warehouse, query.description.id, generation)
        if checkpoint.log.newest() >= 0 or open_folder(checkpoint.steps).names():
            return checkpoint
    return None


def list_names(names: Sequence[str], noun: str) -> str:
    """Return the names as text: `a, b and 3 more files`."""
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more:,} more {noun}" if more > 0 else "")

"""The local source: an EndpointSource whose steps belong to one generation."""

from __future__ import annotations

from mzplan.connectors.adapter.source import EndpointSource
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.local.endpoint import LocalFactory, LocalSteps
from mzplan.model.losses import Loss
from mzplan.warehouse.checkpoints import Checkpoint


class LocalSource(EndpointSource):
    """Reads the rows that `mzplan append` has written."""

    def __init__(self) -> None:
        super().__init__(LocalFactory())

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """Return all appended rows, because they belong to the earlier generation."""
        rows = LocalSteps(former.steps).appended()
        where = "they were appended to the earlier generation, and are removed with it"
        return Loss(lost=rows, read=rows, unit="appended rows", where=where) if rows else None

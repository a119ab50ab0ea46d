"""The local source: an EndpointSource whose steps are a generation's own."""

from __future__ import annotations

from mzplan.connectors.adapter.source import EndpointSource
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.local.endpoint import LocalFactory, LocalSteps
from mzplan.model.losses import Loss
from mzplan.warehouse.checkpoints import Checkpoint


class LocalSource(EndpointSource):
    """Reads what `mzplan append` has written."""

    def __init__(self) -> None:
        super().__init__(LocalFactory())

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """All of it: what is appended belongs to the generation that was there then."""
        rows = LocalSteps(former.steps).appended()
        where = "they were appended to the generation before, and go with it"
        return Loss(lost=rows, read=rows, unit="appended rows", where=where) if rows else None

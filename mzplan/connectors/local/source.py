"""The local source: an EndpointSource whose steps are a generation's own."""

from __future__ import annotations

from mzplan.connectors.adapter.source import EndpointSource, steps_read
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.local.endpoint import LocalFactory
from mzplan.model.losses import Loss
from mzplan.warehouse.checkpoints import Checkpoint


class LocalSource(EndpointSource):
    """Reads what `mzplan append` has written."""

    def __init__(self) -> None:
        super().__init__(LocalFactory())

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """All of it: what is appended belongs to the generation that was there then."""
        read = len(steps_read(former))
        if not read:
            return None
        where = f"steps 0–{read - 1} were appended to the generation before, and go with it"
        return Loss(lost=read, read=read, unit="steps", where=where)

"""What waits for a query, whether it runs or not: of a sink by the logs of both sides, of a source by
what its upstream says. Without Spark's session."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.controller.executor import Measured
from mzplan.host.extras import missing_extras_reported
from mzplan.model.diagnostics import MzplanError
from mzplan.warehouse.step_history import StepHistory, unread


def measured(warehouse: str, query: ResolvedQuery, connectors: Connectors) -> Measured:
    """Never raises for what a server or the storage did."""
    description = query.description
    source = description.source
    history = StepHistory(warehouse, description.place, source.place if source is not None else None)
    at = time.time()  # what comes while it is asked is not in the answer
    backlog: Mapping[str, int] | None = None
    try:
        if source is not None:
            backlog = unread(history, StepHistory(warehouse, source.place))
        else:
            with missing_extras_reported():
                backlog = connectors.source(description.type).backlog(query)
        recent = history.index.recent()
    except (OSError, ValueError, MzplanError):
        return Measured(at=at)
    return Measured(backlog=backlog, recent=recent, at=at)

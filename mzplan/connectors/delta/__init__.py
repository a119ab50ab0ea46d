"""Delta tables as a sink: Spark's own Delta stream for append, MERGE for upsert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import SinkConnector
    from mzplan.connectors.api.lineage_names import Ends
    from mzplan.connectors.api.queries import ResolvedQuery


def _sink() -> SinkConnector:
    from mzplan.connectors.delta.sink import DeltaSink

    return DeltaSink()


def _ends(query: ResolvedQuery) -> Ends:
    from mzplan.connectors.api.lineage_names import Ends, at_path
    from mzplan.connectors.network.folders import folder_of

    return Ends(writes=(at_path(folder_of(query)),))


CONNECTOR = Connector(type="delta", sink=_sink, ends=_ends)

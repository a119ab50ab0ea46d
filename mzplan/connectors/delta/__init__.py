"""Delta tables: a source through Spark's Delta stream, and a sink through that stream (append) or MERGE
(upsert)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import SinkConnector, SourceConnector
    from mzplan.connectors.api.lineage_names import LineageNames
    from mzplan.connectors.api.queries import ResolvedQuery


def _source() -> SourceConnector:
    from mzplan.connectors.delta.source import DeltaSource

    return DeltaSource()


def _sink() -> SinkConnector:
    from mzplan.connectors.delta.sink import DeltaSink

    return DeltaSink()


def _ends(query: ResolvedQuery) -> LineageNames:
    from mzplan.connectors.api.lineage_names import LineageNames, at_path
    from mzplan.connectors.network.folders import folder_of

    name = at_path(folder_of(query))
    return LineageNames(reads=(name,)) if query.address.reads_upstream else LineageNames(writes=(name,))


CONNECTOR = Connector(type="delta", source=_source, sink=_sink, lineage_ends=_ends, replays=True)

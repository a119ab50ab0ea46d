"""Delta tables: a source through Spark's Delta stream, and a sink through that stream (append) or MERGE
(upsert). Also a source that copies another environment's collection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector
from mzplan.connectors.network import lineage_ends

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import SinkConnector, SourceConnector
    from mzplan.connectors.api.lineage_names import LineageNames
    from mzplan.connectors.api.queries import ResolvedQuery


def _source() -> SourceConnector:
    from mzplan.connectors.delta.source import DeltaSource

    return DeltaSource()


def _copy() -> SourceConnector:
    from mzplan.connectors.delta.collection_copy import CollectionCopy

    return CollectionCopy()


def _copied(query: ResolvedQuery) -> LineageNames:
    from mzplan.connectors.api.lineage_names import LineageNames, at_path
    from mzplan.connectors.delta.collection_copy import collection_of

    return LineageNames(reads=(at_path(collection_of(query)),))


def _sink() -> SinkConnector:
    from mzplan.connectors.delta.sink import DeltaSink

    return DeltaSink()


def _ends(query: ResolvedQuery) -> LineageNames:
    if "table" not in query.body:
        return lineage_ends(query)
    from mzplan.connectors.api.lineage_names import LineageNames, at_path
    from mzplan.connectors.delta.catalog_table import table_folder

    folder = table_folder(query)
    return LineageNames(writes=(at_path(folder),)) if folder is not None else LineageNames()


CONNECTOR = Connector(type="delta", source=_source, sink=_sink, lineage_ends=_ends, replays=True)
COLLECTION_COPY = Connector(type="environment", source=_copy, lineage_ends=_copied)

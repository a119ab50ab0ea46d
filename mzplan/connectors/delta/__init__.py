"""Delta tables: a source through Spark's Delta stream, and a sink through that stream (append) or MERGE
(upsert)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector
from mzplan.connectors.network import lineage_ends

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import SinkConnector, SourceConnector


def _source() -> SourceConnector:
    from mzplan.connectors.delta.source import DeltaSource

    return DeltaSource()


def _sink() -> SinkConnector:
    from mzplan.connectors.delta.sink import DeltaSink

    return DeltaSink()


CONNECTOR = Connector(type="delta", source=_source, sink=_sink, lineage_ends=lineage_ends, replays=True)

"""Delta tables as a sink: Spark's own Delta stream for append, MERGE for upsert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.protocols import SinkConnector


def _sink() -> SinkConnector:
    from mzplan.connectors.delta.sink import DeltaSink

    return DeltaSink()


CONNECTOR = Connector(type="delta", sink=_sink)

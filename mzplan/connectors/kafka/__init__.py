"""Kafka: a source, and a sink that is exactly once by transactions.

`source` and `sink` are the connectors; `probe` queries a cluster; `output` is the sink as an OutputEndpoint.
May not import another type of connector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.capabilities import Adopts
    from mzplan.connectors.api.protocols import ResolvedQuery, SinkConnector, SourceConnector
    from mzplan.model.diagnostics import Diagnostic


def _source() -> SourceConnector:
    from mzplan.connectors.kafka.source import KafkaSource

    return KafkaSource()


def _sink() -> SinkConnector:
    from mzplan.connectors.kafka.sink import KafkaSink

    return KafkaSink()


def _reach(query: ResolvedQuery) -> Diagnostic | None:
    from mzplan.connectors.kafka.probe import KafkaProbe

    return KafkaProbe().reach(query)


def _adopts() -> Adopts:
    from mzplan.connectors.kafka.adoption import KafkaAdoption

    return KafkaAdoption()


CONNECTOR = Connector(type="kafka", source=_source, sink=_sink, reach=_reach, adopts=_adopts)

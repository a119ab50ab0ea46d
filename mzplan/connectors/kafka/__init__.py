"""Kafka: a source, and a sink that is exactly-once through transactions.

`source` and `sink` are the connectors; `probe` queries a cluster; `output` is the sink as an OutputEndpoint.
May not import another type of connector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import Connector
from mzplan.connectors.network import server_of_url

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import AdoptingSource, SinkConnector, SourceConnector
    from mzplan.connectors.api.lineage_names import LineageName, LineageNames
    from mzplan.connectors.api.offers import Offer
    from mzplan.connectors.api.queries import ResolvedQuery
    from mzplan.model.diagnostics import Diagnostic
    from mzplan.warehouse.foreign_query import ForeignQuery


def _source() -> SourceConnector:
    from mzplan.connectors.kafka.source import KafkaSource

    return KafkaSource()


def _sink() -> SinkConnector:
    from mzplan.connectors.kafka.sink import KafkaSink

    return KafkaSink()


def _reach(query: ResolvedQuery) -> Diagnostic | None:
    from mzplan.connectors.kafka.probe import KafkaProbe

    return KafkaProbe().reach(query)


def _adoption_problems(source: AdoptingSource, _: ForeignQuery, position: Mapping[str, Any]) -> Iterator[str]:
    from mzplan.connectors.kafka.source import adoption_problems

    return adoption_problems(source, position)


def _offers(query: ResolvedQuery) -> Sequence[Offer]:
    from mzplan.connectors.kafka.offers import offers

    return offers(query)


def _servers(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the bootstrap brokers, without a protocol such as `SSL://`, and the servers of URLs in options.
    Bootstrap brokers name the cluster's other brokers."""
    brokers = (broker for entry in body["brokers"] for broker in entry.split(","))
    options = (str(value) for value in body["options"].values())
    return (
        *(broker.rpartition("://")[2].lower() for broker in brokers),
        *(server_of_url(value) for value in options if "://" in value),
    )


def _ends(query: ResolvedQuery) -> LineageNames:
    """Return OpenLineage's names. A cluster is named after its first broker, as in Spark's own OpenLineage
    listener."""
    from mzplan.connectors.api.lineage_names import LineageNames, on_server
    from mzplan.connectors.formats.dead_letters import lineage_names
    from mzplan.connectors.kafka.probe import named_topics

    def topic(name: str) -> LineageName:
        return on_server("kafka", _servers(query.link.body)[0], name)

    if query.address.reads_upstream:
        named = map(topic, named_topics(query.body))
        return LineageNames(reads=tuple(named), writes=lineage_names(query, topic))
    return LineageNames(writes=(topic(query.body["topic"]),))


CONNECTOR = Connector(
    type="kafka",
    source=_source,
    sink=_sink,
    reach=_reach,
    adoption_problems=_adoption_problems,
    lineage_ends=_ends,
    by_time=True,
    offers=_offers,
    servers=_servers,
)

"""Finds the connector of a type, among mzplan's own connectors and plug-ins.

A plain lookup: importing a module registers nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import cast

from mzplan.connectors import (
    console,
    delta,
    files,
    formats,
    kafka,
    local,
    network,
    postgres,
    spark_format,
    user_code,
    views,
)
from mzplan.connectors.api.connector import Connector, SinkConnector, SourceConnector
from mzplan.endpoints.interface import SupportsServerList
from mzplan.model.address import Kind
from mzplan.model.diagnostics import error
from mzplan.schema.description import CollectionRead, Description
from mzplan.schema.plugins import Plugin, find_plugin

_OWN = {
    connector.type: connector
    for connector in (
        kafka.CONNECTOR,
        postgres.CONNECTOR,
        files.CONNECTOR,
        delta.CONNECTOR,
        delta.COLLECTION_COPY,
        console.CONNECTOR,
        local.CONNECTOR,
        views.CONNECTOR,
        user_code.CONNECTOR,
        spark_format.CONNECTOR,
        formats.SCHEMA_REGISTRY,
        network.SSH_TUNNEL,
        network.AWS,
    )
}


def own_connectors() -> tuple[Connector, ...]:
    return tuple(_OWN.values())


def find_connector(type_: str) -> Connector | None:
    """Return the connector of a type, mzplan's own or a plug-in's, or None. Imports no client of a server.
    Raises MzplanError MZ080 for a broken plug-in."""
    if type_ in _OWN:
        return _OWN[type_]
    plugin = find_plugin(type_)
    return _plugin_connector(plugin) if plugin is not None else None


def _plugin_connector(plugin: Plugin) -> Connector:
    """Return a plug-in as a connector, with a source, view or sink for each schema that the plug-in has."""
    from mzplan.connectors.adapter.sink import EndpointSink
    from mzplan.connectors.adapter.source import EndpointSource

    endpoints = plugin.connector
    has_source, has_view, has_sink = (
        f"{kind}.{plugin.type}" in plugin.schemas for kind in ("source", "view", "sink")
    )
    source: Callable[[], SourceConnector] | None = None
    if has_view:
        source = partial(views.View, endpoints.compute)
    elif has_source:
        source = lambda: EndpointSource(endpoints.input_factory(), endpoints)  # noqa: E731
    return Connector(
        type=plugin.type,
        source=source,
        sink=(lambda: EndpointSink(endpoints.output_factory(), endpoints)) if has_sink else None,
        servers=endpoints.servers if isinstance(endpoints, SupportsServerList) else None,
    )


class Connectors:
    """The connectors of one process, each made at its first use.

    Connectors cache what probes can share, such as an open admin client or an unreachable server. So use one
    instance of this class for all probes. It can be used from several threads.
    """

    def __init__(self) -> None:
        self._by_type: dict[tuple[Kind, str], SourceConnector | SinkConnector] = {}
        self._lock = threading.Lock()

    def source(self, type_: str) -> SourceConnector:
        """Return the connector for a type of source or view. Raises MzplanError MZ063 for a type that has
        none."""
        return cast(SourceConnector, self._get("source", type_))

    def position(self, collection: Description | CollectionRead) -> str:
        """Return the type of `_position` in a collection, as Spark DDL. Raises MzplanError MZ063 for an
        unknown type."""
        type_, _, variant = collection.position_type.partition("+")
        return self.source(type_).position_of(variant)

    def sink(self, type_: str) -> SinkConnector:
        """Return the connector for a type of sink. Raises MzplanError MZ063 for a type that has none."""
        return cast(SinkConnector, self._get("sink", type_))

    def _get(self, kind: Kind, type_: str) -> SourceConnector | SinkConnector:
        with self._lock:
            key = (kind, type_)
            if key not in self._by_type:
                self._by_type[key] = _new_connector(kind, type_)
            return self._by_type[key]


def _new_connector(kind: Kind, type_: str) -> SourceConnector | SinkConnector:
    connector = find_connector(type_)
    make = None
    if connector is not None:
        make = connector.source if kind == "source" else connector.sink
    if make is None:
        raise error("MZ063.mzplan-cannot", kind_=kind, type=type_)
    return make()

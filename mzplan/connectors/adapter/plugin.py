"""The connector that a package of somebody else brings, by its endpoints."""

from __future__ import annotations

from mzplan.connectors.adapter.sink import EndpointSink
from mzplan.connectors.adapter.source import EndpointSource
from mzplan.connectors.api.connector import Connector
from mzplan.endpoints.interface import ReachesServers
from mzplan.schema.plugins import Plugin


def connector_of(plugin: Plugin) -> Connector:
    """With the sides that the plug-in has schemas of."""
    brought = plugin.connector
    has_source, has_sink = (f"{kind}.{plugin.type}" in plugin.schemas for kind in ("source", "sink"))
    return Connector(
        type=plugin.type,
        source=(lambda: EndpointSource(brought.input_factory(), brought)) if has_source else None,
        sink=(lambda: EndpointSink(brought.output_factory(), brought)) if has_sink else None,
        servers=brought.servers if isinstance(brought, ReachesServers) else None,
    )

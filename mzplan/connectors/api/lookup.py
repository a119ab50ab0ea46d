"""Which connector serves which type. A plain lookup: nothing registers itself by being imported."""

from __future__ import annotations

import threading
from typing import cast

from mzplan.connectors.api.protocols import SinkConnector, SourceConnector
from mzplan.model.address import Kind
from mzplan.model.diagnostics import error
from mzplan.schema.plugins import Plugin, find_plugin


class Connectors:
    """The connectors of one process, made when first asked for.

    They keep what several probes can share (an open admin client, a server that was just found dead), so
    hold on to one of these. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Kind, str], object] = {}
        self._lock = threading.Lock()

    def source(self, type_: str) -> SourceConnector:
        """The connector for a type of source. Raises MzplanError MZ063 for a type that has none."""
        return cast(SourceConnector, self._get("source", type_))

    def sink(self, type_: str) -> SinkConnector:
        """The connector for a type of sink. Raises MzplanError MZ063 for a type that has none."""
        return cast(SinkConnector, self._get("sink", type_))

    def _get(self, kind: Kind, type_: str) -> object:
        with self._lock:
            key = (kind, type_)
            if key not in self._made:
                self._made[key] = _make(kind, type_)
            return self._made[key]


def _make(kind: Kind, type_: str) -> SourceConnector | SinkConnector:
    # Imports on demand: a project without PostgreSQL should not pay for its driver.
    match kind, type_:
        case "source", "kafka":
            from mzplan.connectors.kafka.movable_source import MovableKafkaSource

            return MovableKafkaSource()
        case "source", "files":
            from mzplan.connectors.files.source import FilesSource

            return FilesSource()
        case "source", "postgres":
            from mzplan.connectors.postgres.source.connector import PostgresSource

            return PostgresSource()
        case "sink", "postgres":
            from mzplan.connectors.postgres.sink.connector import PostgresSink

            return PostgresSink()
        case "sink", "delta":
            from mzplan.connectors.delta.sink import DeltaSink

            return DeltaSink()
        case "sink", "kafka":
            from mzplan.connectors.kafka.sink import KafkaSink

            return KafkaSink()
        case "sink", "files":
            from mzplan.connectors.files.sink import FilesSink

            return FilesSink()
        case "sink", "console":
            from mzplan.connectors.console.sink import ConsoleSink

            return ConsoleSink()
        case "source", "local":
            from mzplan.connectors.adapter.source import EndpointSource
            from mzplan.connectors.local.endpoint import LocalFactory

            return EndpointSource(LocalFactory())
    plugin = find_plugin(type_)
    if plugin is not None and f"{kind}.{type_}" in plugin.schemas:
        return _of_plugin(kind, plugin)
    raise error(
        "MZ063",
        f"This mzplan can't run a {kind} of type {type_!r}",
        hint="upgrade mzplan on the runner, or install the package that brings this type there.",
    )


def _of_plugin(kind: Kind, plugin: Plugin) -> SourceConnector | SinkConnector:
    if kind == "source":
        from mzplan.connectors.adapter.source import EndpointSource

        return EndpointSource(plugin.connector.input_factory(), plugin.connector)
    from mzplan.connectors.adapter.sink import EndpointSink

    return EndpointSink(plugin.connector.output_factory(), plugin.connector)

"""The console as a sink: rows on the runner's standard output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.protocols import SinkConnector


def _sink() -> SinkConnector:
    from mzplan.connectors.console.sink import ConsoleSink

    return ConsoleSink()


CONNECTOR = Connector(type="console", sink=_sink)

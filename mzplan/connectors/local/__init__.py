"""The local source, whose durable steps are appends, and the row files that `mzplan append` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import SourceConnector


def _source() -> SourceConnector:
    from mzplan.connectors.local.source import LocalSource

    return LocalSource()


CONNECTOR = Connector(type="local", source=_source)

"""The local source, whose steps `mzplan append` writes, and the row files that this command reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import SourceConnector


def _source() -> SourceConnector:
    from mzplan.connectors.local.source import LocalSource

    return LocalSource()


CONNECTOR = Connector(type="local", source=_source)

"""Files in a folder: Spark's own file stream as a source and as a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector
from mzplan.connectors.network import lineage_ends

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import Adoption, SinkConnector, SourceConnector


def _source() -> SourceConnector:
    from mzplan.connectors.files.source import FilesSource

    return FilesSource()


def _sink() -> SinkConnector:
    from mzplan.connectors.files.sink import FilesSink

    return FilesSink()


def _adoption() -> Adoption:
    from mzplan.connectors.files.source import FilesAdoption

    return FilesAdoption()


CONNECTOR = Connector(
    type="files",
    source=_source,
    sink=_sink,
    adoption=_adoption,
    lineage_ends=lineage_ends,
    servers=lambda body: (),
)

"""Files in a folder: Spark's own file stream as a source and as a sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import Connector
from mzplan.connectors.network import lineage_ends

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import AdoptingSource, SinkConnector, SourceConnector
    from mzplan.warehouse.foreign_query import ForeignQuery


def _source() -> SourceConnector:
    from mzplan.connectors.files.source import FilesSource

    return FilesSource()


def _sink() -> SinkConnector:
    from mzplan.connectors.files.sink import FilesSink

    return FilesSink()


def _adoption_problems(
    source: AdoptingSource, query: ForeignQuery, position: Mapping[str, Any]
) -> Iterator[str]:
    from mzplan.connectors.files.source import adoption_problems

    return adoption_problems(source, query, position)


CONNECTOR = Connector(
    type="files",
    source=_source,
    sink=_sink,
    adoption_problems=_adoption_problems,
    lineage_ends=lineage_ends,
    servers=lambda body: (),
)

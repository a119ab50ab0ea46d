"""Files in a folder: Spark's own file stream as a source and as a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import Adoption, SinkConnector, SourceConnector
    from mzplan.connectors.api.lineage_names import LineageNames
    from mzplan.connectors.api.queries import ResolvedQuery


def _source() -> SourceConnector:
    from mzplan.connectors.files.source import FilesSource

    return FilesSource()


def _sink() -> SinkConnector:
    from mzplan.connectors.files.sink import FilesSink

    return FilesSink()


def _adoption() -> Adoption:
    from mzplan.connectors.files.source import FilesAdoption

    return FilesAdoption()


def _ends(query: ResolvedQuery) -> LineageNames:
    from mzplan.connectors.api.lineage_names import LineageNames, at_path
    from mzplan.connectors.network.folders import folder_of

    name = at_path(folder_of(query))
    return LineageNames(reads=(name,)) if query.address.reads_upstream else LineageNames(writes=(name,))


CONNECTOR = Connector(
    type="files", source=_source, sink=_sink, adoption=_adoption, lineage_ends=_ends, servers=lambda body: ()
)

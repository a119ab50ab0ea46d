"""What can be told of a query whose secrets are still references: what it reads and writes, by the names that
OpenLineage has for it, with columns and where each comes from; and what an administrator runs on a server
before it can. Nothing is reached, and no secret is resolved."""

from __future__ import annotations

from dataclasses import dataclass

from mzplan.connectors.api.connector import Ddl
from mzplan.connectors.api.lineage_names import LineageName, at_path
from mzplan.connectors.api.outputs import Origin, column_origins, filter_columns, outputs_without_spark
from mzplan.connectors.api.queries import Output, resolve
from mzplan.connectors.catalogue import find_connector
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import collection_path


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageEnd:
    """One that is read or written. `columns`: as far as they are known, empty where nothing is. `origins`: of
    which columns of the one that is read each is made; `filtered`: by which its rows are chosen."""

    name: LineageName
    columns: tuple[Output, ...] = ()
    origins: tuple[Origin, ...] = ()
    filtered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLineage:
    """What a query reads and writes. A sink reads one collection, the first of `inputs`."""

    inputs: tuple[LineageEnd, ...]
    outputs: tuple[LineageEnd, ...]


def lineage_of(description: Description, directory: str, warehouse: str) -> QueryLineage:
    """Of a source: its upstream, its collection, and where malformed records go. Of a sink: the collection,
    its target. What a connector has no name for (a console, most of other packages) is left out. `directory`
    is where relative paths begin; `warehouse` an absolute path or URI."""
    query = resolve(description, _Unresolved(directory, {}), directory)
    connector = find_connector(description.type)
    ends = connector.ends(query) if connector is not None and connector.ends is not None else None
    reads, writes = (ends.reads, ends.writes) if ends is not None else ((), ())
    collection = LineageEnd(
        name=at_path(collection_path(warehouse, *description.rows_of.place)),
        columns=tuple(Output(name=column.name, type=column.type) for column in query.columns),
    )
    if description.address.writes_collection:
        below = (at_path(collection_path(warehouse, *read.place)) for read in description.inputs.values())
        aside = (LineageEnd(name=name) for name in writes)
        return QueryLineage(
            inputs=tuple(LineageEnd(name=name) for name in (*below, *reads)), outputs=(collection, *aside)
        )
    targets = (
        LineageEnd(
            name=name,
            columns=outputs_without_spark(query),
            origins=column_origins(query),
            filtered=filter_columns(query),
        )
        for name in writes
    )
    return QueryLineage(inputs=(collection,), outputs=tuple(targets))


def ddl_of(description: Description, directory: str) -> Ddl | None:
    """The statements for one query; None where its type has none. Raises MzplanError, of the query."""
    connector = find_connector(description.type)
    if connector is None or connector.ddl is None:
        return None
    query = resolve(description, _Unresolved(directory, {}), directory)
    is_sink = description.address.writes_target
    return connector.ddl(query, outputs_without_spark(query) if is_sink else ())


class _Unresolved(Secrets):
    """Leaves each reference as it is written: what is printed must hold no secret, and needs none."""

    def resolve(self, reference: str, *, current: bool = False) -> str:
        return reference

"""A query's lineage and the SQL that prepares its server, without resolving secrets or connecting.

Lineage is the query's inputs and outputs under OpenLineage's names, with the origin of each column.
Administrators run the SQL.
"""

from __future__ import annotations

from dataclasses import dataclass

from mzplan.connectors.api.connector import Ddl
from mzplan.connectors.api.lineage_names import LineageName, LineageNames, at_path
from mzplan.connectors.api.outputs import Origin, column_origins, filter_columns, outputs_without_spark
from mzplan.connectors.api.queries import Output, resolve
from mzplan.connectors.catalogue import find_connector
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import collection_path


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageEnd:
    """An input or output of a query.

    - `columns`: the known columns.
    - `origins`: the columns of the query's input from which each column is computed.
    - `filtered`: the columns of the query's input that the `where` reads.
    """

    name: LineageName
    columns: tuple[Output, ...] = ()
    origins: tuple[Origin, ...] = ()
    filtered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLineage:
    """The inputs and outputs of a query. A sink has one input, the collection that it reads."""

    inputs: tuple[LineageEnd, ...]
    outputs: tuple[LineageEnd, ...]


def lineage_of(description: Description, directory: str, warehouse: str) -> QueryLineage:
    """Return the lineage of a query.

    A source reads its upstream and writes its collection and its dead letters. A sink reads a collection and
    writes its target. Ends without a name (the console, most plug-ins) are left out. Relative paths start
    from `directory`; `warehouse` is an absolute path or URI.
    """
    query = resolve(description, UnresolvedSecrets(directory, {}), directory, warehouse)
    connector = find_connector(description.type)
    ends = LineageNames()
    if connector is not None and connector.lineage_ends is not None:
        ends = connector.lineage_ends(query)
    collection = LineageEnd(
        name=at_path(collection_path(warehouse, *description.rows_of.place)),
        columns=tuple(Output(name=column.name, type=column.type) for column in query.columns),
    )
    if description.address.writes_collection:
        collections = (
            at_path(collection_path(warehouse, *read.place)) for read in description.inputs.values()
        )
        dead_letters = (LineageEnd(name=name) for name in ends.writes)
        return QueryLineage(
            inputs=tuple(LineageEnd(name=name) for name in (*collections, *ends.reads)),
            outputs=(collection, *dead_letters),
        )
    targets = (
        LineageEnd(
            name=name,
            columns=outputs_without_spark(query),
            origins=column_origins(query),
            filtered=filter_columns(query),
        )
        for name in ends.writes
    )
    return QueryLineage(inputs=(collection,), outputs=tuple(targets))


def ddl_of(description: Description, directory: str) -> Ddl | None:
    """Return the SQL that prepares a server for one query, or None if its type has none. Raises
    MzplanError."""
    connector = find_connector(description.type)
    if connector is None or connector.ddl is None:
        return None
    query = resolve(description, UnresolvedSecrets(directory, {}), directory)
    is_sink = description.address.writes_target
    return connector.ddl(query, outputs_without_spark(query) if is_sink else ())


class UnresolvedSecrets(Secrets):
    """Leaves each reference unresolved, for work that must neither contain nor send secrets."""

    def resolve(self, reference: str, *, current: bool = False) -> str:
        return reference

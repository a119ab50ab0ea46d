"""What a query reads and writes, by the names that OpenLineage has for it, with columns and where each comes
from. Nothing is reached, and no secret is resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mzplan.connectors.api.lineage_names import LineageName, at_path
from mzplan.connectors.api.outputs import Origin, column_origins, filter_columns, outputs_without_spark
from mzplan.connectors.api.queries import Output, ResolvedConnection, ResolvedQuery
from mzplan.connectors.catalogue import find_connector
from mzplan.schema.description import Description, InlinedConnection
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of, keys_of
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
    query = _with_references(description, directory)
    connector = find_connector(description.type)
    ends = connector.ends(query) if connector is not None and connector.ends is not None else None
    reads, writes = (ends.reads, ends.writes) if ends is not None else ((), ())
    place = description.source or description
    collection = LineageEnd(
        name=at_path(collection_path(warehouse, place.id, place.generation)),
        columns=tuple(Output(name=column.name, type=column.type) for column in query.columns),
    )
    if description.source is None:
        aside = (LineageEnd(name=name) for name in writes)
        return QueryLineage(
            inputs=tuple(LineageEnd(name=name) for name in reads), outputs=(collection, *aside)
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


def _with_references(description: Description, directory: str) -> ResolvedQuery:
    """A query with its defaults, whose secrets are still references: nothing can be reached with it."""
    connections = _defaults(description.connections)
    source = description.source or description
    return ResolvedQuery(
        description=description,
        body=resource_kind(description.address.kind, description.type).with_defaults(description.body),
        connection=connections.get("connection"),
        connections=connections,
        columns=columns_of(source.type, source.body),
        keys=keys_of(source.type, source.body),
        directory=directory,
    )


def _defaults(inlined: Mapping[str, InlinedConnection]) -> dict[str, ResolvedConnection]:
    return {
        role: ResolvedConnection(
            address=one.address,
            type=one.type,
            body=resource_kind("connection", one.type).with_defaults(one.body),
            connections=_defaults(one.connections),
        )
        for role, one in inlined.items()
    }

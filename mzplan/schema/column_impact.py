"""What a column of a collection reaches: the queries that use it, and their columns computed from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mzplan.model.address import Address
from mzplan.model.graph import DependencyGraph
from mzplan.model.resources import Resource
from mzplan.model.state import ResourceState
from mzplan.schema.lineage import lineage_of
from mzplan.schema.relations.lineage import Lineage


@dataclass(frozen=True, slots=True)
class Reached:
    """How a query depends on a column, directly or through other queries.

    - `columns`: its columns that are computed from the column.
    - `rows`: whether the column decides which rows it has.
    """

    columns: tuple[str, ...]
    rows: bool = False


Resources: TypeAlias = Mapping[Address, Resource] | Mapping[Address, ResourceState]


def reach_of_column(
    address: Address, columns: Collection[str], resources: Resources, graph: DependencyGraph | None = None
) -> dict[Address, Reached]:
    """Return what columns of a collection reach, in dependency order, without the collection itself.

    A query that names a column without needing it is reached, too: it couldn't run without the column.
    `graph`: of these resources, if the caller has it.
    """
    graph = graph or DependencyGraph.of(resources)
    found = {address: Reached(tuple(columns))}
    for reader in graph.order(graph.all_dependents([address])):
        resource = resources[reader]
        inputs = {a.name: resources[a] for a in resource.references.values() if a.writes_collection}
        before = {a.name: found[a] for a in resource.references.values() if a in found}
        lineage = lineage_of(reader.kind, resource.type, resource.body, inputs) if before else None
        if lineage is not None and (reached := _reached(lineage, before)) is not None:
            found[reader] = reached
    del found[address]
    return found


def _reached(lineage: Lineage, before: Mapping[str, Reached]) -> Reached | None:
    """Return how a query depends on its reached inputs, by name; None if it doesn't."""
    read = frozenset((name, column) for name, one in before.items() for column in one.columns)
    rows = any(one.rows for one in before.values()) or not lineage.rows.isdisjoint(read)
    columns = tuple(name for name, columns in lineage.columns.items() if not columns.isdisjoint(read))
    return Reached(columns, rows) if rows or not lineage.used.isdisjoint(read) else None

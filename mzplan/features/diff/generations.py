"""Finds the collections of two generations of a query, and compares their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.model.row_comparison import RowsOfBoth
from mzplan.model.state import unknown_address
from mzplan.operations.connections import require_here
from mzplan.operations.project import Project, Reporter, read_state, unreadable
from mzplan.schema.description import packages_of
from mzplan.schema.source_columns import keys_of
from mzplan.spark.trials.generations import Collections, compare_collections
from mzplan.warehouse.checkpoints import collection_path
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.storage import generations_below, table_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedGenerations:
    """How the rows of two generations of a query differ."""

    before: int
    after: int
    rows: RowsOfBoth


def compare_generations(
    project: Project,
    address: Address,
    by: tuple[str, ...],
    limit: int,
    reporter: Reporter,
    starting: Callable[[], None],
) -> ComparedGenerations:
    """Compare the committed generation of a query with the newest earlier one that is in the warehouse.

    `by`: the columns that identify a row; by default, the collection's key. Raises MzplanError MZ094 if there
    is no earlier generation, or if the columns don't identify a row.
    """
    state = read_state(project.store, reporter)
    resource = state.resources.get(address)
    if resource is None:
        raise unknown_address(address, state)
    if not address.writes_collection:
        raise error("MZ094.no-generations", address=address, query_kind=address.kind)
    warehouse = absolute(project.settings.directory, state.warehouse or project.settings.warehouse)
    before, after = _generations(warehouse, resource.id, resource.generation, address)
    if after is None:
        require_here(project, state, [resource])
        raise error("MZ094.not-begun", address=address, generation=resource.generation)
    if before is None:
        raise error("MZ094.one-generation", address=address, generation=after)
    collections = Collections(
        address=address,
        before=collection_path(warehouse, resource.id, before),
        after=collection_path(warehouse, resource.id, after),
        keys=keys_of(resource.type, resource.body),
    )
    rows = compare_collections(collections, by, limit, starting, packages_of(state.resources))
    return ComparedGenerations(before=before, after=after, rows=rows)


def _generations(warehouse: str, id_: str, newest: int, address: Address) -> tuple[int | None, int | None]:
    """Return the newest earlier generation with a table, and `newest`; each None if it has no table."""
    try:
        existing = {
            number
            for number in generations_below(warehouse, id_, "collections")
            if table_id(collection_path(warehouse, id_, number)) is not None
        }
    except OSError as problem:
        raise unreadable(f"The generations of {address} can't be read", problem, address) from None
    earlier = max((number for number in existing if number < newest), default=None)
    return earlier, newest if newest in existing else None

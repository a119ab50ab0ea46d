"""Checks whether a source can continue from the checkpoint and table of a hand-written query.

view_adoption.py checks the same for a view. A check yields every reason against it, each a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from mzplan.connectors.api.connector import AdoptingSource
from mzplan.connectors.catalogue import find_connector, own_connectors
from mzplan.connectors.delta.table import column_types
from mzplan.model.words import count
from mzplan.schema.columns import POSITION, Column, canonical_type, spark_type
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.warehouse.foreign_query import ForeignQuery, open_table


def adopting_types() -> tuple[str, ...]:
    """Return the types of sources that can continue from a hand-written query."""
    return tuple(connector.type for connector in own_connectors() if connector.adoption_problems is not None)


def source_problems(query: ForeignQuery, source: AdoptingSource) -> Iterator[str]:
    """Yield why a source of one of the `adopting_types` can't continue from a query. Raises OSError.

    The query must have read the same topic or folder. It must have written the table, with the source's
    columns.
    """
    if keys_of(source.type, source.body):
        yield (
            "The source keeps the latest row of each key, and the checkpoint of a hand-written query doesn't "
            "record how the query changed its table: declare a new source."
        )
    if query.keeps_state:
        yield (
            "The query keeps state (an aggregation, a join, or dropped duplicates), but a source has none: "
            "declare a view."
        )
    if len(query.positions) > 1:
        yield f"The query reads {count(len(query.positions), 'upstream')}, and a source reads one."
    else:
        yield from _upstream_problems(query, source)
    yield from table_problems(query, columns_of(source.type, source.body), "source")


def _upstream_problems(query: ForeignQuery, source: AdoptingSource) -> Iterator[str]:
    connector = find_connector(source.type)
    assert connector is not None and connector.adoption_problems is not None, source.type
    try:
        position = json.loads(query.positions[0])
    except ValueError:
        position = None
    if isinstance(position, dict):
        yield from connector.adoption_problems(source, query, position)
    else:
        yield f"It doesn't read a {source.type} upstream: its offset is {query.positions[0][:80]}."


def table_problems(query: ForeignQuery, columns: Sequence[Column], kind: str) -> Iterator[str]:
    """Yield why the query's table can't become the collection of a source or view with these columns.

    `kind`: the word for the source or view.
    """
    table = open_table(query.table)
    micro_batch = table.transaction_version(query.query_id)
    if micro_batch is None:
        yield f"{query.table} was not written by this query's Delta sink: its log doesn't name the query."
    elif not query.last_done <= micro_batch <= query.last_planned:
        yield (
            f"{query.table} has micro-batch {micro_batch} of this query, but the checkpoint has finished "
            f"micro-batch {query.last_done}: they don't belong together."
        )
    types = column_types(table)
    wanted = {column.name: column for column in columns}
    for name in sorted(types.keys() - wanted.keys() - {POSITION}):
        yield f"The table has a column {name}, which the {kind} doesn't declare."
    for name in sorted(wanted.keys() - types.keys()):
        yield f"The table has no column {name}, which the {kind} declares."
    for name in sorted(types.keys() & wanted.keys()):
        actual, declared = canonical_type(types[name]), canonical_type(spark_type(wanted[name].type))
        if actual != declared:
            yield f"The table's column {name} is {actual or types[name]}, and the {kind} declares {declared}."

"""The rows of a current view that the changed rows of its inputs can affect, found by their keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import CHANGE_FEED
from mzplan.connectors.frames.types import ddl_of, quoted
from mzplan.connectors.user_code.loading import load_functions
from mzplan.model.diagnostics import error
from mzplan.schema.columns import OWN, canonical_type, spark_type
from mzplan.schema.current.rows import ANY, CHANGED
from mzplan.schema.current.trace import Trace
from mzplan.schema.description import CollectionRead
from mzplan.schema.relations.analysis import trace_of
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.tree import Input
from mzplan.schema.sql.sql_text import plain_sql
from mzplan.schema.user_functions import function_versions
from mzplan.spark.function_releases import release_of
from mzplan.spark.sql.view_sql import declared, rows_of_tables
from mzplan.warehouse.rows.snapshot import name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_BROADCAST = 1_000_000  # keys that each executor may get


@dataclass(frozen=True, slots=True)
class AffectedKeys:
    """Values of `names`, cached and each once. All rows with other values stay as they are."""

    rows: DataFrame
    names: tuple[str, ...]
    count: int

    def among(self, rows: DataFrame) -> DataFrame:
        """Return the affected ones of these rows."""
        return self._joined(rows, "left_semi")

    def beside(self, rows: DataFrame) -> DataFrame:
        """Return the other ones of these rows, which stay as they are."""
        return self._joined(rows, "left_anti")

    def _joined(self, rows: DataFrame, how: str) -> DataFrame:
        # Under other names, because Spark would confuse columns that come from the same input.
        renamed = self.rows.select(*(f.col(quoted(n)).alias(_name(i)) for i, n in enumerate(self.names)))
        keys = f.broadcast(renamed) if self.count <= _MOST_BROADCAST else renamed
        matches = [rows[quoted(n)].eqNullSafe(keys[_name(i)]) for i, n in enumerate(self.names)]
        return rows.join(keys, matches, how)

    def close(self) -> None:
        """Release the cached keys."""
        self.rows.unpersist()


def _name(number: int) -> str:
    return f"{OWN}affected{number}"


def trace_of_view(query: ResolvedQuery) -> Trace:
    """Return the trace of a current view's query."""
    reads = query.description.reads
    inputs = {
        name: Input.of(read.type, read.body, str(read.address), stream=False) for name, read in reads.items()
    }
    try:
        return trace_of(query.body["query"], inputs, query.body)
    except QueryError as refused:  # by the rules of another version of mzplan
        return Trace(why_full=refused.problem)


def computed_digest(query: ResolvedQuery) -> str:
    """Return a digest of everything that decides the rows of a current view, except for its inputs' rows."""
    content = [
        plain_sql(query.body["query"]),
        {name: name_of(read.place) for name, read in query.description.reads.items()},
        [[column.name, spark_type(column.type)] for column in query.columns],
        list(query.keys),
        list(query.body.get("aliases", ())),
    ]
    if versions := function_versions(query.body):
        content += [versions, release_of(load_functions(query))]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"1:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def require_stored_types(collection: DataFrame, query: ResolvedQuery) -> None:
    """Raise MzplanError MZ230 if a collection has a column of an earlier query with another type."""
    stored = {field.name.lower(): canonical_type(ddl_of(field.dataType)) for field in collection.schema}
    for column in query.columns:
        type_ = stored.get(column.name.lower())
        if type_ is not None and spark_type(type_) != spark_type(column.type):
            raise error(
                "MZ230",
                f"The collection of {query.address} has another type for {column.name}",
                f"An earlier query has stored {column.name} as {type_}, and it is {column.type} now.",
                f"use another name, or begin a new generation: mzplan apply --replace {query.address} "
                "--allow-replace.",
                address=query.address,
                kind="unfit",
            )


def changed_rows(session: SparkSession, path: str, read: CollectionRead, first: int, last: int) -> DataFrame:
    """Return the rows that changed in these versions of a collection, as they were before and after."""
    reader = session.read.format("delta").options(**CHANGE_FEED, startingVersion=first, endingVersion=last)
    return declared(reader.load(path), read)


def affected_keys(
    session: SparkSession,
    trace: Trace,
    tables: Mapping[str, DataFrame],
    changed: Mapping[str, DataFrame],
    query: ResolvedQuery,
) -> AffectedKeys:
    """Return the keys of the rows that changed rows can affect.

    `tables`: the rows of each input after the changes, by name. `changed`: the changed rows of the inputs
    that have some, at least one of which the trace follows.
    """
    none = {name: rows.limit(0) for name, rows in tables.items()}
    relations: dict[str, DataFrame] = {}
    for name, rows in tables.items():
        relations[f"{CHANGED}{name}"] = changed.get(name, none[name])
        relations[f"{ANY}{name}"] = rows.unionAll(changed[name]) if name in changed else rows
    found = [
        rows_of_tables(session, affected.sql, relations, query)
        for affected in trace.affected
        if affected.input in changed
    ]
    keys = reduce(lambda one, other: one.unionAll(other), found).distinct().persist()
    try:
        return AffectedKeys(keys, trace.keys, keys.count())
    except BaseException:
        keys.unpersist()
        raise

"""SQL views over several rows: joins, aggregations, unions. (projection has simpler views.)

Spark reads the SQL in a session whose only relations are the view's inputs: streams and snapshots or, for a
current view, tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames.row_hash import with_null_times
from mzplan.connectors.frames.types import quoted
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.columns import POSITION
from mzplan.schema.description import CollectionRead, Description
from mzplan.schema.relations.analysis import output_of
from mzplan.schema.relations.parse import sql_of
from mzplan.schema.source_columns import columns_of
from mzplan.schema.sql.sql_text import SqlTextError
from mzplan.spark.failures import spark_message
from mzplan.spark.sql.expression_trees import expression_check
from mzplan.spark.sql.projection import null_of
from mzplan.spark.sql.query_trees import QueryCheck, analysed_plan, time_in_plan
from mzplan.spark.sql.stream_rules import without_null_matches
from mzplan.spark.sql.user_functions import with_functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMPUTED_AGAIN = ("current", "update")  # outputs
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def rows_by_sql(
    session: SparkSession,
    streams: Mapping[str, DataFrame],
    tables: Mapping[str, DataFrame],
    query: ResolvedQuery,
    position: str,
    *,
    earlier: bool = False,
) -> DataFrame:
    """Return the rows of a relational view, then `_position`, a NULL of this type.

    `streams`, `tables`: the rows of the inputs by name, in `session`. They become temporary views with their
    declared columns. `earlier`: the query may use columns that were removed since then. Raises MzplanError
    MZ019 for SQL that views can't have, or that Spark refuses.
    """
    reads = query.description.inputs
    given = {**streams, **tables}.items()
    inputs = {name: declared(rows, reads[name], earlier=earlier) for name, rows in given}
    with _reporting(query):
        for name, mark in query.body.get("watermarks", {}).items():
            if name in streams:
                rows, column = inputs[name], mark["column"]
                if not _excludes_null(query.body["query"], column):
                    rows = with_null_times(rows, name, column)
                inputs[name] = rows.withWatermark(quoted(column), _interval(mark["delay"]))
        computed = _checked(session, _sql_of(query), inputs, query)
        if query.body.get("output") in _COMPUTED_AGAIN and (time := time_in_plan(analysed_plan(computed))):
            why = f"Spark reads '{time}' as a time that changes, but rows of this view are computed again."
            raise _not_allowed(query, why)
        computed = without_null_matches(computed)
    return computed.selectExpr("*", f"CAST(NULL AS {position}) AS {POSITION}")


def rows_of_tables(
    session: SparkSession, sql: str, tables: Mapping[str, DataFrame], query: ResolvedQuery
) -> DataFrame:
    """Return the rows of a current view's SQL, or of SQL made from it, over tables with these names.

    Raises MzplanError MZ019 if Spark refuses it.
    """
    with _reporting(query):
        return _checked(session, sql, tables, query)


@contextmanager
def _reporting(query: ResolvedQuery) -> Iterator[None]:
    """Raise MzplanError MZ019 for Spark's refusal of a view's SQL."""
    try:
        yield
    except MzplanError:
        raise
    except Exception as problem:
        columns = (
            f"{name} ({', '.join(column.name for column in columns_of(read.type, read.body))})"
            for name, read in query.description.inputs.items()
        )
        reason = spark_message(problem)
        raise error(
            "MZ019.spark-refuses-query", address=query.address, problem=reason, columns=columns
        ) from None


def _sql_of(query: ResolvedQuery) -> str:
    """Return the SQL of a view for Spark, without comments. Raises MzplanError MZ019."""
    try:
        return sql_of(query.body["query"])
    except SqlTextError as refused:
        raise _not_allowed(query, f"{refused.problem[0].upper()}{refused.problem[1:]}.") from None


def _checked(
    session: SparkSession, sql: str, inputs: Mapping[str, DataFrame], query: ResolvedQuery
) -> DataFrame:
    """Return the rows of SQL over these inputs, which become temporary views."""
    for name, rows in inputs.items():
        rows.createOrReplaceTempView(name)
    spark: Any = session
    of_tables = not output_of(query.body).streams
    read = with_functions(session, sql, query)
    check = QueryCheck(
        expression_check(spark.sparkContext._gateway), of_tables=of_tables, functions=read.functions
    )
    parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan(read.text)
    if problem := check.problem_of_parsed(parsed, inputs):
        raise _not_allowed(query, problem)
    computed = session.sql(read.text)
    if problem := check.problem_of_analysed(
        analysed_plan(computed), list(map(analysed_plan, inputs.values()))
    ):
        raise _not_allowed(query, problem)
    return computed


def declared(rows: DataFrame, read: CollectionRead | Description, *, earlier: bool = False) -> DataFrame:
    """Return the rows of a collection with their declared columns, without mzplan's own columns.

    Columns that were added later are NULL. `earlier`: also with the columns that were removed, which the
    table still has.
    """
    columns = {column.name.lower(): column for column in columns_of(read.type, read.body)}
    stored = {name.lower(): name for name in rows.columns if name != POSITION}
    items = [quoted(c.name) if name in stored else null_of(c) for name, c in columns.items()]
    items += [quoted(name) for lower, name in stored.items() if earlier and lower not in columns]
    return rows.selectExpr(*items)


def _excludes_null(sql: str, column: str) -> bool:
    """Return whether a query excludes rows with NULL in this column by `IS NOT NULL`."""
    return re.search(rf"\b{re.escape(column)}`?\s+IS\s+NOT\s+NULL\b", sql, re.IGNORECASE) is not None


def _interval(delay: str) -> str:
    """Return a duration in Spark's words: `"10m"` becomes `"10 minutes"`."""
    return re.sub(r"^(\d+)([smhd])$", lambda match: f"{match[1]} {_UNITS[match[2]]}", delay)


def _not_allowed(query: ResolvedQuery, problem: str) -> MzplanError:
    return error("MZ019.forbidden-query", address=query.address, problem=problem)

"""Views by functions: of the user, or of a plug-in. The rows of relational views, by SQL or by a function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.types import quoted
from mzplan.connectors.user_code.failures import failed
from mzplan.connectors.views import Compute, View
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.columns import POSITION
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of
from mzplan.schema.user_functions import FunctionName, function_of
from mzplan.spark.stream_joins import without_null_matches
from mzplan.spark.view_sql import rows_by_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compute_of(connectors: Connectors, query: ResolvedQuery) -> Compute | None:
    """Return the function that computes the rows of a view; None for SQL. Raises MzplanError MZ361, MZ362."""
    connector = connectors.source(query.description.type)
    return connector.compute_of(query) if isinstance(connector, View) else None


def rows_of_view(
    session: SparkSession,
    streams: Mapping[str, DataFrame],
    tables: Mapping[str, DataFrame],
    query: ResolvedQuery,
    position: str,
    compute: Compute | None,
    *,
    earlier: bool = False,
) -> DataFrame:
    """Return the rows of a relational view, then `_position` of this type.

    `streams`, `tables`: the rows of the inputs by name, in `session`. `earlier`: see rows_by_sql. Raises
    MzplanError MZ019 for SQL, and MZ362 for a function that fails.
    """
    if compute is None:
        return rows_by_sql(session, streams, tables, query, position, earlier=earlier)
    reads, inputs = query.description.inputs, {}
    for name, rows in {**streams, **tables}.items():
        columns = [column.name for column in columns_of(reads[name].type, reads[name].body)]
        if len(reads) == 1:  # rows of several inputs have no position
            columns.append(POSITION)
        # A temporary view gives the stream its name in Spark's plan (see relational_streams.tables_in_order).
        rows.select(*map(quoted, columns)).createOrReplaceTempView(name)
        inputs[name] = session.table(name)
    return _computed(compute, inputs, query, position)


def _computed(
    compute: Compute, inputs: Mapping[str, DataFrame], query: ResolvedQuery, position: str
) -> DataFrame:
    """Return the function's rows, then `_position`, which is NULL unless the function keeps it."""
    kind = resource_kind(query.address.kind, query.description.type)
    references = {reference.property for reference in kind.references}
    options: dict[str, Any] = {k: value for k, value in query.body.items() if k not in references}
    function = function_of(query.address.kind, query.description.type, query.body)
    function = function or FunctionName(compute.__module__, getattr(compute, "__name__", "compute"))
    try:
        rows = compute(inputs, options)
    except MzplanError:
        raise
    except (Exception, SystemExit) as problem:  # the function may raise anything
        raise failed(query.address, function, problem) from None
    streaming = any(input_.isStreaming for input_ in inputs.values())
    if getattr(rows, "isStreaming", None) != streaming:
        result = "rows of another origin" if hasattr(rows, "isStreaming") else type(rows).__name__
        raise error("MZ362.result", address=query.address, function=function, result=result)
    try:
        rows = without_null_matches(rows)
        if POSITION not in rows.columns:
            rows = rows.selectExpr("*", f"CAST(NULL AS {position}) AS {POSITION}")
        return rows.select(*(quoted(name) for name in rows.columns if name != POSITION), POSITION)
    except MzplanError:
        raise
    except Exception as problem:  # such as two columns of one name
        raise failed(query.address, function, problem) from None

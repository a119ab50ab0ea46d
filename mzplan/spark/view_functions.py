"""Views with a function, which computes their rows from the collections they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.types import quoted
from mzplan.connectors.views import Compute, View
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.columns import POSITION
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of
from mzplan.secrets.resolved import shortened
from mzplan.spark.projection import empty_rows, outputs_of
from mzplan.spark.stream_joins import without_null_matches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LONGEST_REASON = 1000  # characters of the function's or Spark's message


def function_of(connectors: Connectors, query: ResolvedQuery) -> Compute | None:
    """Return the function that computes the rows of a view; None for another query."""
    if not (query.address.reads_collections and query.address.writes_collection):
        return None
    connector = connectors.source(query.description.type)
    return connector.compute if isinstance(connector, View) else None


def rows_of_function(
    compute: Compute, inputs: Mapping[str, DataFrame], query: ResolvedQuery, position: str
) -> DataFrame:
    """Return the function's rows, then `_position`, which is NULL unless the function keeps it.

    Raises MzplanError MZ019 if the function fails, or returns anything but rows of the view's columns.
    """
    kind = resource_kind(query.address.kind, query.description.type)
    references = {reference.property for reference in kind.references}
    options: dict[str, Any] = {k: value for k, value in query.body.items() if k not in references}
    try:
        rows = compute(inputs, options)
        if rows.isStreaming != next(iter(inputs.values())).isStreaming:
            raise ValueError("it returned rows that aren't computed from its inputs")
        rows = without_null_matches(rows)
        if POSITION not in rows.columns:
            rows = rows.selectExpr("*", f"CAST(NULL AS {position}) AS {POSITION}")
        return rows.select(*(quoted(name) for name in rows.columns if name != POSITION), POSITION)
    except MzplanError:
        raise
    except Exception as problem:  # the function may raise anything
        raise error(
            "MZ019",
            f"The function of {query.address} fails",
            shortened(f"{type(problem).__name__}: {' '.join(str(problem).split())}", _LONGEST_REASON),
            "correct the function or the view's options.",
            address=query.address,
        ) from None


def outputs_of_function(
    spark: SparkSession, compute: Compute, query: ResolvedQuery, connectors: Connectors
) -> tuple[Output, ...]:
    """Return the columns of the function's rows, without reading any table.

    Raises the same errors as `rows_of_function`.
    """
    empty = {
        name: empty_rows(spark, columns_of(read.type, read.body), connectors.position(read))
        for name, read in query.description.reads.items()
    }
    return outputs_of(rows_of_function(compute, empty, query, connectors.position(query.description)))

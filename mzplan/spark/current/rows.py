"""The rows of a current view: its query in batch, over its inputs as of recorded versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames.types import ddl_of, quoted
from mzplan.model.diagnostics import error
from mzplan.schema.columns import POSITION, canonical_type, spark_type
from mzplan.schema.description import CollectionRead
from mzplan.schema.source_columns import columns_of
from mzplan.schema.sql_text import plain_sql
from mzplan.spark.view_sql import require_same_rows, rows_of_tables, sql_of_view
from mzplan.warehouse.snapshot import name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows_of_query(
    session: SparkSession, tables: Mapping[str, DataFrame], query: ResolvedQuery, position: str
) -> DataFrame:
    """Return the rows that the query of a current view has over tables, then `_position`.

    `tables`: the rows of each input, by name. They become temporary views. `position`: see rows_by_sql.
    Raises MzplanError MZ019 for SQL that views can't have, or that Spark refuses.
    """
    rows = rows_of_tables(session, sql_of_view(query), tables, query)
    require_same_rows(rows, query)
    return rows.selectExpr("*", f"CAST(NULL AS {position}) AS {POSITION}")


def declared(rows: DataFrame, read: CollectionRead) -> DataFrame:
    """Return the declared columns of a version of a collection. Columns added later are NULL."""
    existing = {name.lower() for name in rows.columns}
    return rows.selectExpr(
        *(
            quoted(column.name)
            if column.name.lower() in existing
            else f"CAST(NULL AS {spark_type(column.type)}) AS {quoted(column.name)}"
            for column in columns_of(read.type, read.body)
        )
    )


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


def computed_digest(query: ResolvedQuery) -> str:
    """Return a digest of everything that decides the rows of a current view, except for its inputs' rows."""
    content = [
        plain_sql(query.body["query"]),
        {name: name_of(read.place) for name, read in query.description.reads.items()},
        [[column.name, spark_type(column.type)] for column in query.columns],
        list(query.keys),
        list(query.body.get("aliases", ())),
    ]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"1:{hashlib.sha256(text.encode()).hexdigest()[:16]}"

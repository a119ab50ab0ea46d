"""The columns that a sink writes: `select` and `where`, and what Spark may make of them.

What a person, or a writer of the store, has written never gets to Spark as it is (see schema.sql_text). And
whatever it was, Spark's own trees are looked at: as its parser reads them, before any analysis, which already
opens files; and as it has analysed them. In both, what is allowed is listed, and nothing else runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.frames.types import ddl_of, quoted
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.columns import POSITION, canonical_type, spark_type
from mzplan.schema.expressions import VALUES, Parsed, parse_select, parse_where
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.schema.view_query import parse_view
from mzplan.spark.expression_trees import expression_check
from mzplan.spark.failures import spark_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HOW = {
    "sink": 'write Spark SQL expressions over the source\'s columns, such as "amount * 1.2 AS gross"',
    "view": "write Spark SQL over the collection's columns: SELECT … FROM a collection WHERE …",
    "source": "write a condition of Spark SQL over the letters' columns, such as \"reason LIKE 'id %'\"",
}


def read_by(query: ResolvedQuery) -> ResolvedQuery:
    """A query as one that reads a collection: a view as a sink would say what its SQL says, with the columns
    that it reads. Raises MzplanError MZ019 for SQL that no view may have."""
    source = query.description.input
    property_ = resource_kind(query.address.kind, query.description.type).query_property
    if source is None or property_ is None:
        return query
    parsed = parse_view(query.body[property_])
    if parsed.problem:
        raise _too_much(query, property_, f"{parsed.problem[0].upper()}{parsed.problem[1:]}.")
    columns = columns_of(source.type, source.body)
    keys = keys_of(source.type, source.body)
    return replace(query, body={**query.body, **parsed.body}, columns=columns, keys=keys)


def project(rows: DataFrame, query: ResolvedQuery, *, or_else: str = "") -> DataFrame:
    """The sink's columns, then `_position`: `where` sees the collection's columns, then `select` is taken.
    `or_else`: a condition in SQL by which rows are taken that `where` leaves out.

    Raises MzplanError MZ019 when Spark can't make sense of them, or would do more with them than may be.
    """
    check = expression_check(rows.sparkSession.sparkContext._gateway)
    nodes = ["Project"]
    items: list[str] = []
    try:
        for index, text in enumerate(query.body.get("select") or ["*"]):
            parsed = parse_select(text)
            item = _sql(parsed, f"select[{index}]", rows, query)
            # Spark's own star has mzplan's columns, too.
            star = [quoted(c.name) for c in query.columns if c.name.lower() not in parsed.without]
            items += star if parsed.star else [item]
        filtered = rows
        if "where" in query.body:
            nodes.append("Filter")
            condition = _sql(parse_where(query.body["where"]), "where", rows, query)
            filtered = rows.where(f"({condition}) OR {or_else}" if or_else else condition)
        projected = filtered.selectExpr(*items, POSITION)
    except MzplanError:
        raise
    except Exception as problem:
        names = [column.name for column in query.columns]
        raise _refused(query, problem, "select or where", names) from None
    if refusal := check.problem_of_projection(_analysed(projected), _analysed(rows), nodes):
        raise _too_much(query, "select or where", refusal)
    return projected


def rows_where(rows: DataFrame, text: str, place: str, query: ResolvedQuery) -> DataFrame:
    """The rows that meet a condition over their columns; `place`: where it is written. Raises as `project`
    does."""
    try:
        met = rows.where(_sql(parse_where(text), place, rows, query))
    except MzplanError:
        raise
    except Exception as problem:
        raise _refused(query, problem, place, rows.columns) from None
    check = expression_check(rows.sparkSession.sparkContext._gateway)
    if refusal := check.problem_of_projection(_analysed(met), _analysed(rows), ["Filter"]):
        raise _too_much(query, place, refusal)
    return met


def analysed_outputs(spark: SparkSession, query: ResolvedQuery, position: str) -> tuple[Output, ...]:
    """The columns that a sink or a view makes, as Spark sees them, without any table. Raises MzplanError
    MZ019."""
    query = read_by(query)
    fields = [f"CAST(NULL AS {spark_type(c.type)}) AS {quoted(c.name)}" for c in query.columns]
    empty = spark.range(0).selectExpr(*fields, f"CAST(NULL AS {position}) AS {POSITION}")
    return outputs_of(project(empty, query))


def ensure_columns(outputs: Sequence[Output], query: ResolvedQuery) -> None:
    """Raises MzplanError MZ230 where what comes out is not what the query's collection has: the plan has
    worked out the columns of a view without Spark, or its files say them."""
    by_name = {output.name.lower(): spark_type(output.type or "") for output in outputs}
    if [output.name.lower() for output in outputs] != [column.name.lower() for column in query.columns]:
        differing = f"Spark makes {', '.join(output.name for output in outputs)} of its query, in this order"
    else:
        differing = "; ".join(
            f"{column.name} is {by_name[column.name.lower()]} to Spark, and {column.type} in the plan"
            for column in query.columns
            if by_name[column.name.lower()] != spark_type(column.type)
        )
    if differing:
        raise error(
            "MZ230",
            f"The schema of {query.address} is not that of its query",
            f"{differing}.",
            "write a CAST in the query where the types differ, or say what Spark makes of it as `schema`.",
            address=query.address,
            kind="unfit",
        )


def outputs_of(rows: DataFrame) -> tuple[Output, ...]:
    """The columns of a projected stream, without mzplan's own, which come last."""
    names = rows.columns
    fields = rows.schema.fields[: names.index(POSITION)]
    return tuple(Output(name=field.name, type=canonical_type(ddl_of(field.dataType))) for field in fields)


def _sql(parsed: Parsed, place: str, rows: DataFrame, query: ResolvedQuery) -> str:
    """What Spark is given of an expression. Raises MzplanError MZ019 for what may not run, by mzplan's own
    reading or by that of Spark's parser; whatever that parser raises."""
    if parsed.problem:
        raise _too_much(query, place, f"{parsed.problem[0].upper()}{parsed.problem[1:]}.")
    # Without a bracket there is neither a query in it nor a call.
    if "(" in parsed.sql:
        columns = {name.lower() for name in rows.columns}
        for name, _ in parsed.columns:
            if name.lower() in VALUES - columns:
                raise _too_much(query, place, f"{name} is no column: write {name}() for Spark's function.")
        spark: Any = rows.sparkSession
        tree = spark._jsparkSession.sessionState().sqlParser().parseExpression(parsed.sql)
        if problem := expression_check(spark.sparkContext._gateway).problem_of_parsed(tree):
            raise _too_much(query, place, problem)
    return parsed.sql


def _analysed(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


def _too_much(query: ResolvedQuery, place: str, problem: str) -> MzplanError:
    return error(
        "MZ019",
        f"{place} of {query.address} is not what a {query.address.kind} may compute",
        problem,
        "use functions of Spark SQL over the columns of one row.",
        address=query.address,
        kind="unfit",
    )


def _refused(query: ResolvedQuery, problem: Exception, place: str, columns: Sequence[str]) -> MzplanError:
    return error(
        "MZ019",
        f"Spark does not accept {place} of {query.address}",
        spark_message(problem),
        f"{_HOW[query.address.kind]}; the columns are {', '.join(columns)}.",
        address=query.address,
        kind="unfit",
    )

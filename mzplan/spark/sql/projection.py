"""The columns that a sink writes: checks `select` and `where`, and has Spark compute them.

A user's text never reaches Spark unchanged (see schema.sql.sql_text). Spark's own trees are also checked:
first the parsed tree, because analysis already opens files, then the analysed tree. Only listed kinds of
nodes may be in either.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import ddl_of, quoted
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.columns import POSITION, Column, canonical_type, spark_type
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.schema.sql.expressions import VALUES, Parsed, parse_select, parse_where
from mzplan.schema.sql.view_query import parse_view
from mzplan.secrets.resolved import shortened
from mzplan.spark.failures import spark_message
from mzplan.spark.sql.expression_trees import expression_check, time_in
from mzplan.spark.sql.query_trees import analysed_plan, nodes_of
from mzplan.spark.sql.user_functions import SparkSql, with_functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class _Words:
    """How messages name the expressions of a kind of query.

    `condition`: the place of the condition.
    `whole`: the place of all expressions.
    `hint`: how to write such expressions.
    """

    condition: str
    whole: str
    hint: str


_WORDS = {
    "sink": _Words(
        "where",
        "select or where",
        'write Spark SQL expressions over the source\'s columns, such as "amount * 1.2 AS gross"',
    ),
    "view": _Words(
        "WHERE",
        "the query",
        "write Spark SQL over the collection's columns: SELECT … FROM a collection WHERE …",
    ),
    "source": _Words(
        "--where",
        "--where",
        "write a condition of Spark SQL over the letters' columns, such as \"reason LIKE 'id %'\"",
    ),
}
_SHOWN = 60  # characters of an expression


def read_by(query: ResolvedQuery) -> ResolvedQuery:
    """Return a query over one collection as a sink: a view's SQL becomes `select` and `where`.

    The result has the columns that the query reads. Raises MzplanError MZ019 for SQL that views can't have.
    """
    source = query.description.input
    property_ = resource_kind(query.address.kind, query.description.type).query_property
    if source is None or property_ is None:
        return query
    parsed = parse_view(query.body[property_])
    if parsed.problem:
        raise _not_allowed(query, property_, f"{parsed.problem[0].upper()}{parsed.problem[1:]}.")
    columns = columns_of(source.type, source.body)
    keys = keys_of(source.type, source.body)
    return replace(query, body={**query.body, **parsed.body}, columns=columns, keys=keys)


def project(
    rows: DataFrame, query: ResolvedQuery, *, removed: str = "", keys: Collection[str] = ()
) -> DataFrame:
    """Return the sink's columns, then `_position`.

    `where` filters the collection's rows before `select` applies.
    `removed`: a SQL condition for rows that are removed by their `keys`. They are included even if `where`
    leaves them out, and only their keys are computed. Raises MzplanError MZ019 if Spark doesn't accept the
    expressions, or if they would do more than allowed.
    """
    words = _WORDS[query.address.kind]
    items: list[str] = []
    places: dict[str, str] = {}  # of each item
    key_names = {key.lower() for key in keys}
    unless_removed: dict[str, str] = {}  # the names of items that aren't computed for removed rows
    functions: frozenset[str] = frozenset()
    try:
        for index, text in enumerate(query.body.get("select") or ["*"]):
            parsed = parse_select(text)
            place = _place_of_item(query, index, text, parsed)
            read = _sql(parsed, place, rows, query)
            item, functions = read.text, functions | read.functions
            places[item] = place
            # Spark's own star would include mzplan's columns.
            star = [quoted(c.name) for c in query.columns if c.name.lower() not in parsed.without]
            items += star if parsed.star else [item]
            if removed and parsed.name is not None and parsed.name.lower() not in key_names:
                unless_removed[item] = parsed.name
        filtered = rows
        if "where" in query.body:
            read = _sql(parse_where(query.body["where"]), words.condition, rows, query)
            condition, functions = read.text, functions | read.functions
            # Spark evaluates OR from left to right.
            filtered = rows.where(f"{removed} OR ({condition})" if removed else condition)
        columns = [
            f.when(f.expr(f"NOT ({removed})"), f.expr(item)).alias(unless_removed[item])
            if item in unless_removed
            else f.expr(item)
            for item in items
        ]
        projected = filtered.select(*columns, POSITION)
    except MzplanError:
        raise
    except Exception as problem:
        names = [column.name for column in query.columns]
        refused = (place for item, place in places.items() if item in items and not _accepts(rows, item))
        raise _refused(query, problem, next(refused, words.whole), names) from None
    _require_allowed(projected, rows, words.whole, query, functions)
    return projected


def _place_of_item(query: ResolvedQuery, index: int, text: str, parsed: Parsed) -> str:
    """Return an item's place for a message: its place in a sink's `select`, or a view's column."""
    if not query.address.writes_collection:
        return f"select[{index}]"
    return f"column {parsed.name}" if parsed.name else f"expression {shortened(text, _SHOWN)}"


def _accepts(rows: DataFrame, item: str) -> bool:
    try:
        rows.selectExpr(item)
    except Exception:
        return False
    return True


def rows_where(rows: DataFrame, text: str, query: ResolvedQuery) -> DataFrame:
    """Return the rows that meet a condition. Raises the same errors as `project`."""
    return rows.where(row_condition(rows, text, query, _WORDS[query.address.kind].condition))


def row_condition(rows: DataFrame, text: str, query: ResolvedQuery, place: str, hint: str = "") -> str:
    """Return the checked SQL of a condition over these rows. Raises the same errors as `project`.

    `place`, `hint`: the place of the condition, and how to write it, for messages.
    """
    try:
        read = _sql(parse_where(text), place, rows, query)
        met = rows.where(read.text)
    except MzplanError:
        raise
    except Exception as problem:
        raise _refused(query, problem, place, rows.columns, hint) from None
    _require_allowed(met, rows, place, query, read.functions)
    return read.text


def _require_allowed(
    rows: DataFrame, base: DataFrame, place: str, query: ResolvedQuery, functions: Collection[str]
) -> None:
    """Raise MzplanError MZ019 unless the rows are a selection of `base` with allowed expressions.

    `functions`: the names of the user's functions in the expressions.
    """
    check = expression_check(rows.sparkSession.sparkContext._gateway)
    if refusal := check.problem_of_projection(analysed_plan(rows), analysed_plan(base), functions):
        raise _not_allowed(query, place, refusal)


def analysed_outputs(spark: SparkSession, query: ResolvedQuery, position: str) -> tuple[Output, ...]:
    """Return the columns of a sink or a row view as Spark analyses them, without any table.

    Raises MzplanError MZ019.
    """
    return outputs_of(analysed_rows(spark, query, position))


def analysed_rows(spark: SparkSession, query: ResolvedQuery, position: str) -> DataFrame:
    """Return the rows of a sink or a row view over no rows. Raises MzplanError MZ019."""
    query = read_by(query)
    projected = project(empty_rows(spark, query.columns, position), query)
    if query.keys and "where" in query.body:
        _refuse_times(analysed_plan(projected), query)
    return projected


def empty_rows(spark: SparkSession, columns: Sequence[Column], position: str) -> DataFrame:
    """Return no rows, with these columns and a `_position` of this type."""
    return spark.range(0).selectExpr(*map(null_of, columns), f"CAST(NULL AS {position}) AS {POSITION}")


def null_of(column: Column) -> str:
    """Return a NULL in place of a column, as SQL."""
    return f"CAST(NULL AS {spark_type(column.type)}) AS {quoted(column.name)}"


def _refuse_times(projected: Any, query: ResolvedQuery) -> None:
    """Raise MzplanError MZ019 for a condition with a text such as 'today', whose meaning changes.

    Only Spark knows whether `day > 'today'` has such a text: it depends on the type of `day`.
    """
    condition = next(node.condition() for name, node in nodes_of(projected) if name == "Filter")
    if time := time_in(condition):
        why = (
            f"Spark reads '{time}' as a time that changes. When a row is updated or deleted, its former "
            "state couldn't be found in the target."
        )
        raise _not_allowed(query, _WORDS[query.address.kind].condition, why)


def ensure_columns(outputs: Sequence[Output], query: ResolvedQuery) -> None:
    """Raise MzplanError MZ230 if the query's outputs differ from the columns of its collection.

    The plan worked out the columns of a view without Spark, or read them from its files.
    """
    by_name = {output.name.lower(): spark_type(output.type or "") for output in outputs}
    if [output.name.lower() for output in outputs] != [column.name.lower() for column in query.columns]:
        differing = f"Spark returns the columns {', '.join(output.name for output in outputs)}, in this order"
    else:
        differing = "; ".join(
            f"{column.name} is {by_name[column.name.lower()]} in Spark, but {column.type} in the plan"
            for column in query.columns
            if by_name[column.name.lower()] != spark_type(column.type)
        )
    if differing:
        raise error("MZ230.other-columns", address=query.address, differing=differing)


def with_all_columns(rows: DataFrame, query: ResolvedQuery) -> DataFrame:
    """Return the rows of a view's earlier query with the columns that its collection has by now.

    Columns that the query doesn't return are NULL. Columns that were removed since then are left out.
    """
    own = rows.columns.index(POSITION)
    given = {name.lower() for name in rows.columns[:own]}
    if given == {column.name.lower() for column in query.columns}:
        return rows
    columns = (quoted(c.name) if c.name.lower() in given else null_of(c) for c in query.columns)
    return rows.selectExpr(*columns, *map(quoted, rows.columns[own:]))


def outputs_of(rows: DataFrame) -> tuple[Output, ...]:
    """Return the columns of projected rows, without mzplan's own columns, which come last."""
    names = rows.columns
    fields = rows.schema.fields[: names.index(POSITION)]
    return tuple(Output(name=field.name, type=canonical_type(ddl_of(field.dataType))) for field in fields)


def _sql(parsed: Parsed, place: str, rows: DataFrame, query: ResolvedQuery) -> SparkSql:
    """Return the SQL of an expression for Spark.

    Raises MzplanError MZ019 for a forbidden expression, found by mzplan's parser or in Spark's parsed tree.
    Also raises the errors of Spark's parser.
    """
    if parsed.problem:
        raise _not_allowed(query, place, f"{parsed.problem[0].upper()}{parsed.problem[1:]}.")
    # Without a bracket, the text contains neither a query nor a call.
    if "(" in parsed.sql:
        columns = {name.lower() for name in rows.columns}
        for name, _ in parsed.columns:
            if name.lower() in VALUES - columns:
                raise _not_allowed(
                    query, place, f"{name} isn't a column: to call Spark's function, write {name}()."
                )
        spark: Any = rows.sparkSession
        read = with_functions(spark, parsed.sql, query)
        tree = spark._jsparkSession.sessionState().sqlParser().parseExpression(read.text)
        check = expression_check(spark.sparkContext._gateway)
        if problem := check.problem_of_parsed(tree, functions=read.functions):
            raise _not_allowed(query, place, problem)
        return read
    return SparkSql(parsed.sql)


def _not_allowed(query: ResolvedQuery, place: str, problem: str) -> MzplanError:
    return error(
        "MZ019.forbidden-expression",
        address=query.address,
        what=_capitalized(place),
        query_kind=query.address.kind,
        problem=problem,
    )


def _capitalized(place: str) -> str:
    """Return a place as the first word of a sentence. Names of properties stay as they are."""
    return place if place.startswith(("select", "where")) else f"{place[0].upper()}{place[1:]}"


def _refused(
    query: ResolvedQuery, problem: Exception, place: str, columns: Sequence[str], hint: str = ""
) -> MzplanError:
    return error(
        "MZ019.spark-refuses-expression",
        address=query.address,
        place=place,
        problem=spark_message(problem),
        advice=hint or _WORDS[query.address.kind].hint,
        columns=columns,
    )

"""Relational views on a real Spark: their SQL reads their inputs, and nothing else of it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.columns import POSITION
from mzplan.spark.sql import query_trees
from mzplan.spark.sql.view_sql import rows_by_sql
from tests.hostile_queries import HOSTILE_QUERIES
from tests.integration.spark_lab import Lab

TYPE = "STRUCT<input: STRING>"
COLUMNS = {
    "orders": "id BIGINT, customer BIGINT, amount DECIMAL(10,2), note STRING, tags ARRAY<STRING>, ts "
    "TIMESTAMP",
    "payments": "id BIGINT, paid DOUBLE, ts TIMESTAMP, `seen.at` TIMESTAMP",
    "customers": "id BIGINT, city STRING",
}
TABLES = {"customers"}
# What only the parsed tree shows: these read the input, too, or have an option that a function reads later.
ONLY_PARSED = [
    "SELECT id FROM orders UNION ALL SELECT id FROM session.orders",
    "SELECT id FROM orders WITH (path = '$F') GROUP BY id",
    "SELECT id FROM STREAM orders GROUP BY id",
    "SELECT id FROM STREAM(orders) GROUP BY id",
    "SELECT * FROM orders PIVOT (max(id) FOR note IN ('a'))",
    "SELECT * FROM orders UNPIVOT (a FOR b IN (id))",
    "SELECT max(from_xml(note, 'a INT', map('rowValidationXSDPath', '$F')).a) AS n FROM orders",
    "SELECT id, count(*) AS c FROM orders GROUP BY CUBE (id)",
    "SELECT id, count(*) AS c FROM orders GROUP BY id WITH ROLLUP",
    "SELECT id, count(*) AS c FROM orders GROUP BY GROUPING SETS ((id), ())",
]
WINDOW = "window(ts, '1 minute')"
# By what they compute: the columns of their rows.
GOOD = {
    "SELECT o.id, p.paid FROM orders o JOIN payments p ON o.id = p.id": "id BIGINT, paid DOUBLE",
    "SELECT o.id, p.paid FROM orders o LEFT JOIN payments p ON o.id = p.id AND p.ts BETWEEN o.ts AND "
    "o.ts + INTERVAL 1 HOUR": "id BIGINT, paid DOUBLE",
    "SELECT id FROM orders JOIN payments USING (id)": "id BIGINT",
    "SELECT id FROM orders LEFT SEMI JOIN payments USING (id)": "id BIGINT",
    "SELECT * FROM orders NATURAL JOIN (SELECT id AS ID, ts, paid FROM payments)": (
        "id BIGINT, ts TIMESTAMP, customer BIGINT, amount DECIMAL(10,2), note STRING, tags ARRAY<STRING>, "
        "paid DOUBLE"
    ),
    "SELECT * FROM orders NATURAL LEFT JOIN customers": f"{COLUMNS['orders']}, city STRING",
    "SELECT id, window(ts, '1 hour').start AS h FROM orders": "id BIGINT, h TIMESTAMP",
    "SELECT id, json_tuple(note, 'a', 'b') FROM orders": "id BIGINT, c0 STRING, c1 STRING",
    "SELECT inline_outer(array(struct(id, note))) AS (a, b) FROM orders": "a BIGINT, b STRING",
    "SELECT t.b FROM (SELECT id, ts FROM orders) AS t(a, b)": "b TIMESTAMP",
    "SELECT p.a, d FROM payments AS p(a, b, c, d)": "a BIGINT, d TIMESTAMP",
    "WITH q(a) AS (SELECT id FROM orders) SELECT a, a + 1L AS b, b * 2L AS c FROM q": (
        "a BIGINT, b BIGINT, c BIGINT"
    ),
    "SELECT a.id, b.note FROM orders a JOIN orders b ON a.id = b.customer": "id BIGINT, note STRING",
    f"SELECT customer, {WINDOW}.start AS minute, sum(amount) AS total FROM orders "
    f"GROUP BY customer, {WINDOW}": "customer BIGINT, minute TIMESTAMP, total DECIMAL(20,2)",
    "SELECT window(ts, '1 minute', '30 seconds') AS w, count(*) FILTER (WHERE id > 1) AS n FROM orders "
    "GROUP BY 1": "w STRUCT<start: TIMESTAMP, `end`: TIMESTAMP>, n BIGINT",
    "SELECT session_window(ts, '5 minutes').end AS until, customer, count(*) AS n FROM orders "
    "GROUP BY session_window(ts, '5 minutes'), customer": "until TIMESTAMP, customer BIGINT, n BIGINT",
    f"SELECT window_time(w) AS t, sum(n) AS n FROM (SELECT {WINDOW} AS w, customer, count(*) AS n FROM "
    "orders GROUP BY 1, 2) GROUP BY 1": "t TIMESTAMP, n BIGINT",
    "SELECT customer, count(*) AS n FROM orders GROUP BY customer HAVING count(*) > 1 AND max(id) > 2": (
        "customer BIGINT, n BIGINT"
    ),
    "SELECT id, ts FROM orders UNION ALL SELECT id, ts FROM payments": "id BIGINT, ts TIMESTAMP",
    "SELECT DISTINCT customer FROM orders": "customer BIGINT",
    "WITH a AS (SELECT * FROM orders WHERE id > 1), b (x) AS (SELECT id FROM a) SELECT x FROM b UNION ALL "
    "SELECT customer FROM a": "x BIGINT",
    "WITH orders AS (SELECT id FROM orders) SELECT id FROM orders": "id BIGINT",
    "SELECT id, tag FROM orders LATERAL VIEW OUTER explode(tags) t AS tag": "id BIGINT, tag STRING",
    "SELECT id, posexplode(tags) AS (place, tag) FROM orders": "id BIGINT, place INT, tag STRING",
    "SELECT id, x FROM orders LATERAL VIEW stack(2, id, customer) t AS x": "id BIGINT, x BIGINT",
    "SELECT o.id, upper(c.city) AS city FROM orders o LEFT JOIN customers c ON c.id = o.customer": (
        "id BIGINT, city STRING"
    ),
    "SELECT o.id, c.n FROM orders o JOIN (SELECT id, count(*) AS n FROM customers GROUP BY id) c ON "
    "c.id = o.customer": "id BIGINT, n BIGINT",
    "SELECT o.*, struct(p.*) AS p FROM orders o, payments p WHERE o.id = p.id": (
        f"{COLUMNS['orders']}, p STRUCT<{COLUMNS['payments'].replace(' ', ': ').replace(',:', ',')}>"
    ),
    "SELECT id FROM (SELECT id, transform(tags, t -> upper(t)) AS tags FROM ORDERS) s -- all": "id BIGINT",
}
AGGREGATES = (
    *("any_value(note)", "approx_count_distinct(id)", "approx_percentile(id, 0.5)", "avg(amount)"),
    *("bool_or(id > 1)", "collect_list(note)", "collect_set(note)", "corr(id, id)", "count(*)", "mode(note)"),
    *("count(DISTINCT id)", "count_if(id > 1)", "first(note)", "hll_sketch_agg(id)", "last(note)", "min(id)"),
    *("max_by(note, id)", "median(id)", "percentile(id, 0.5)", "regr_slope(id, id)", "skewness(id)"),
    *("percentile_cont(0.5) WITHIN GROUP (ORDER BY id)", "stddev(id)", "sum(DISTINCT id)", "try_avg(id)"),
    *("try_sum(id)", "var_pop(id)", "bit_or(id)", "max(from_json(note, 'a INT').a)"),
    *("max(aes_encrypt(note, 'abcdefghijklmnop'))", "max(variant_get(parse_json(note), '$.a', 'int'))"),
)


@pytest.fixture(scope="module")
def session(lab: Lab) -> SparkSession:
    """A session of its own, as a query has."""
    return lab.spark.newSession()


def query_of(lab: Lab, sql: str, **body: Any) -> ResolvedQuery:
    """A view by this SQL over the three collections."""
    sources = {name: lab.local_source(columns, name) for name, columns in COLUMNS.items()}
    tables = [sources.pop(name) for name in TABLES]
    view = lab.view(sql, "id BIGINT", sources.values(), tables, **body)
    return lab.executor._resolve(view, lab.secrets)


@cache
def inputs(session: SparkSession) -> tuple[dict[str, DataFrame], dict[str, DataFrame]]:
    """The streams and the tables, as they are in collections."""
    streams, tables = {}, {}
    for name, columns in COLUMNS.items():
        empty = session.createDataFrame([], f"{columns}, {POSITION} STRUCT<step: BIGINT>")
        if name in TABLES:
            tables[name] = empty
            continue
        nulls = (f"CAST(NULL AS {f.dataType.simpleString()}) AS `{f.name}`" for f in empty.schema.fields)
        streams[name] = session.readStream.format("rate").load().selectExpr(*nulls)
    return streams, tables


def rows_of(lab: Lab, session: SparkSession, sql: str, **body: Any) -> DataFrame:
    """The rows of a view by this SQL."""
    return rows_by_sql(session, *inputs(session), query_of(lab, sql, **body), TYPE)


@pytest.mark.parametrize("sql", GOOD)
def test_a_relational_query_reads_its_inputs(lab: Lab, session: SparkSession, sql: str) -> None:
    ways = [inputs(session)]
    if any(name in sql for name in TABLES):  # `verify` reads steps of these as tables
        ways.append(({}, _all(session)))
    expected = session.createDataFrame([], f"{GOOD[sql]}, {POSITION} {TYPE}")
    for streams, tables in ways:
        rows = rows_by_sql(session, streams, tables, query_of(lab, sql), TYPE)
        assert rows.dtypes == expected.dtypes
        assert rows.isStreaming == bool(streams)


@cache
def _all(session: SparkSession) -> dict[str, DataFrame]:
    return {
        name: session.createDataFrame([], f"{columns}, {POSITION} {TYPE}")
        for name, columns in COLUMNS.items()
    }


@pytest.mark.nightly
def test_the_aggregates_of_spark_are_allowed(lab: Lab, session: SparkSession) -> None:
    for aggregate in AGGREGATES:
        sql = f"SELECT customer, {aggregate} AS x FROM orders GROUP BY customer"
        assert rows_of(lab, session, sql).columns == ["customer", "x", POSITION]


def test_a_watermark_counts_late_rows_by_its_column(lab: Lab, session: SparkSession) -> None:
    for name, column, delay in (("orders", "ts", "10 minutes"), ("payments", "seen.at", "10m")):
        sql = f"SELECT window(`{column}`, '1 minute') AS w, count(*) AS n FROM {name} GROUP BY 1"
        rows = rows_of(lab, session, sql, watermarks={name: {"column": column, "delay": delay}})
        plan = rows._jdf.queryExecution().analyzed().toString()
        assert f"{column}#" in plan and "T600000ms" in plan


def test_what_spark_refuses_is_an_error_of_the_query(lab: Lab, session: SparkSession) -> None:
    assert "`nothing`" in str(_refusal(lab, session, "SELECT nothing FROM orders"))
    assert "yntax" in str(_refusal(lab, session, "SELECT id FROM orders GROUP BY"))


def test_no_hostile_query_is_analysed(
    lab: Lab, session: SparkSession, fill: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is refused before Spark has resolved a name in it: that opens files."""

    def analyse(_: SparkSession, sql: str) -> DataFrame:
        raise AssertionError(f"analysed: {sql}")

    monkeypatch.setattr(SparkSession, "sql", analyse)
    for text in HOSTILE_QUERIES:
        found = _refusal(lab, session, fill(text))
        assert found is not None and "analysed: " not in found, text


@pytest.mark.nightly
def test_no_hostile_query_runs_if_the_parsed_tree_tells_nothing(
    lab: Lab, session: SparkSession, fill: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two looks, the second finds what the first has let through. (Commands run at once.)"""
    monkeypatch.setattr(query_trees.QueryCheck, "problem_of_parsed", lambda *_: "")
    let_through = []
    for text in HOSTILE_QUERIES:
        query = text.startswith(("SELECT", "WITH")) and "INSERT" not in text
        if query and not _refusal(lab, session, fill(text)):
            let_through.append(text)
    assert set(let_through) <= set(ONLY_PARSED)


# What the runner lets a query over tables have: its rows are computed again. (The plan refuses some of it.)
OVER_TABLES = {
    "SELECT id FROM orders TABLESAMPLE (1 ROWS) GROUP BY id",
    "SELECT id FROM orders SORT BY id",
    "SELECT id, (SELECT max(id) FROM payments) AS n FROM orders GROUP BY id",
    "SELECT id FROM orders WHERE id IN (SELECT id FROM payments) GROUP BY id",
    "SELECT id FROM orders WHERE NOT EXISTS (SELECT 1 FROM payments p WHERE p.id = orders.id)",
    "SELECT id, count(*) AS c FROM orders GROUP BY id ORDER BY c",
    "SELECT id, count(*) AS c FROM orders GROUP BY id LIMIT 1",
    "SELECT id, count(*) AS c FROM orders GROUP BY id OFFSET 1",
    "SELECT id FROM orders INTERSECT SELECT id FROM payments",
    "SELECT id FROM orders EXCEPT SELECT id FROM payments",
    "SELECT id, sum(id) OVER (ORDER BY id) AS s FROM orders",
    "SELECT id, row_number() OVER w AS n FROM orders WINDOW w AS (ORDER BY id)",
}


def test_no_hostile_query_over_tables_is_analysed(
    lab: Lab, session: SparkSession, fill: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by itself nor in a subquery."""
    tables = _all(session)

    def analyse(_: SparkSession, sql: str) -> DataFrame:
        raise AssertionError(f"analysed: {sql}")

    monkeypatch.setattr(SparkSession, "sql", analyse)

    def is_analysed(sql: str) -> bool:
        with pytest.raises(MzplanError) as refused:
            query = query_of(lab, sql, output="current", key=["id"])
            rows_by_sql(session, {}, tables, query, TYPE)
        return "analysed: " in str(refused.value.diagnostics[0].detail)

    assert {text for text in HOSTILE_QUERIES if is_analysed(fill(text))} == OVER_TABLES
    nested = (f"SELECT id FROM payments WHERE EXISTS ({text}\n)" for text in HOSTILE_QUERIES)
    assert sum(is_analysed(fill(text)) for text in nested) <= len(OVER_TABLES)


def _refusal(lab: Lab, session: SparkSession, sql: str) -> str | None:
    """Why a query is refused; None if it is not."""
    try:
        rows_of(lab, session, sql)
    except MzplanError as refused:
        assert {d.code for d in refused.diagnostics} == {"MZ019"}, sql
        assert "s3cr3t" not in str(refused)
        return str(refused.diagnostics[0].detail)
    return None


MARKS = {"watermarks": {name: {"column": "ts", "delay": "10m"} for name in ("orders", "payments")}}
KEYED = {"output": "update", "key": ["customer"]}
WINDOWED = {**MARKS, **KEYED}
SNAPSHOT = {"reads": ["orders"]}  # and the snapshot, instead of the two streams
TIMED = "o.id = p.id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR"
# Queries that Spark refuses as a stream, by a piece of what is said: the query, and what else its body has.
REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("without watermark", "SELECT customer, count(*) AS n FROM orders GROUP BY customer", MARKS),
    (
        "A session grows",
        "SELECT customer, session_window(ts, '5 minutes') AS w FROM orders GROUP BY 1, 2",
        WINDOWED,
    ),
    (
        "only one operator",
        f"SELECT window(w, '5 minutes') AS customer, sum(n) AS n FROM (SELECT {WINDOW} AS w, count(*) AS n "
        "FROM orders GROUP BY 1) GROUP BY 1",
        WINDOWED,
    ),
    ("join", "SELECT o.id FROM orders o LEFT JOIN payments p ON o.id = p.id", MARKS),
    ("may still find a match", "SELECT o.id FROM orders o LEFT ANTI JOIN payments p ON o.id = p.id", MARKS),
    ("by equality", "WITH p AS (SELECT * FROM payments) SELECT o.id FROM orders o, p WHERE o.id < p.id", {}),
    ("streaming and batch", "SELECT id FROM orders UNION ALL SELECT id FROM customers", SNAPSHOT),
    ("static", "SELECT c.id FROM customers c LEFT JOIN orders o ON o.id = c.id", SNAPSHOT),
    ("streaming sources", "SELECT id FROM customers", SNAPSHOT),
    (
        "needs earlier micro-batches",
        "SELECT c.city, count(*) AS n FROM orders o JOIN customers c ON o.id = c.id GROUP BY 1",
        SNAPSHOT,
    ),
    ("earlier micro-batches", "SELECT a.id FROM orders a JOIN orders b ON a.id = b.id, customers", SNAPSHOT),
    (
        "reads 'today' as a time",
        "SELECT customer, count(*) AS n FROM orders WHERE ts > 'today' GROUP BY customer",
        KEYED,
    ),
]
# Queries that Spark runs as a stream, by their columns.
AS_STREAM: list[tuple[str, str, dict[str, Any]]] = [
    ("customer BIGINT, n BIGINT", "SELECT customer, count(*) AS n FROM orders GROUP BY customer", KEYED),
    (
        "until TIMESTAMP, n BIGINT",
        f"SELECT {WINDOW}.end AS until, count(*) AS n FROM orders GROUP BY {WINDOW}",
        MARKS,
    ),
    ("id BIGINT, paid DOUBLE", f"SELECT o.id, p.paid FROM orders o LEFT JOIN payments p ON {TIMED}", MARKS),
    ("id BIGINT", "SELECT o.id FROM orders o, payments p WHERE o.id = p.id", {}),
    (
        "id BIGINT, city STRING",
        "SELECT o.id, city FROM orders o LEFT JOIN customers c ON o.id = c.id",
        SNAPSHOT,
    ),
    (
        "id BIGINT, n BIGINT",
        "SELECT o.id, n FROM orders o JOIN (SELECT id, count(*) AS n FROM customers GROUP BY id) c "
        "ON c.id = o.id",
        SNAPSHOT,
    ),
    ("id BIGINT", "SELECT id FROM orders LEFT ANTI JOIN customers USING (id)", SNAPSHOT),
]


def _checked(lab: Lab, sql: str, body: dict[str, Any], schema: str) -> tuple[Diagnostic, ...]:
    """What the check of a view finds."""
    view = query_of(lab, sql, schema=schema, **body).description
    if body == SNAPSHOT:
        view = replace(view, reads={"orders": view.reads["orders"]})
    else:
        view = replace(view, snapshots={})
    return lab.check(view).diagnostics


@pytest.mark.parametrize(("says", "sql", "body"), REFUSED)
def test_what_spark_can_not_run_as_a_stream_is_refused_in_plain_words(
    lab: Lab, says: str, sql: str, body: dict[str, Any]
) -> None:
    (refused,) = _checked(lab, sql, body, "id BIGINT, customer BIGINT")
    assert (refused.code, refused.severity, refused.kind) == ("MZ019", "error", "unfit")
    assert says in f"{refused.detail} {refused.hint}", refused
    assert "SQLSTATE" not in str(refused) and "WARN" not in str(refused)


@pytest.mark.parametrize(("schema", "sql", "body"), AS_STREAM)
def test_what_spark_runs_as_a_stream_has_the_columns_of_the_plan(
    lab: Lab, schema: str, sql: str, body: dict[str, Any]
) -> None:
    assert _checked(lab, sql, body, schema) == ()


def test_a_view_whose_columns_are_not_those_of_the_plan_is_refused(lab: Lab) -> None:
    schema, sql, body = AS_STREAM[0]
    (other,) = _checked(lab, sql, body, f"{schema}, more INT")
    assert other.code == "MZ230"

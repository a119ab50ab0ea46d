"""Relational views on a real Spark: their SQL reads their inputs, and nothing else of it runs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.controller.executor import CheckResult
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import POSITION
from mzplan.spark import query_trees
from mzplan.spark.view_sql import rows_by_sql
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
AGGREGATES = """
any_value(note)
approx_count_distinct(id)
approx_percentile(id, 0.5)
avg(amount)
bit_or(id)
bool_or(id > 1)
collect_list(note)
collect_set(note)
corr(id, id)
count(*)
count(DISTINCT id)
count_if(id > 1)
first(note)
hll_sketch_agg(id)
last(note)
max_by(note, id)
median(id)
min(id)
mode(note)
percentile(id, 0.5)
percentile_cont(0.5) WITHIN GROUP (ORDER BY id)
regr_slope(id, id)
skewness(id)
stddev(id)
sum(DISTINCT id)
try_avg(id)
try_sum(id)
var_pop(id)
max(from_json(note, 'a INT').a)
max(aes_encrypt(note, 'abcdefghijklmnop'))
max(variant_get(parse_json(note), '$.a', 'int'))
""".splitlines()[1:]


@pytest.fixture(scope="module")
def session(lab: Lab) -> SparkSession:
    """A session of its own, as a query has."""
    return lab.spark.newSession()


def query_of(lab: Lab, sql: str, **body: Any) -> ResolvedQuery:
    """A view by this SQL over the three collections."""
    by_name = {}
    for name, columns in COLUMNS.items():
        source = replace(
            lab.source("local", None, type="local", schema=columns), address=Address("source", name)
        )
        by_name.update(lab.sink(source, "console", None).reads)
    reads = {name: read for name, read in by_name.items() if name not in TABLES}
    view = replace(
        lab.sink(source, "console", None),
        address=Address("view", "v"),
        type="sql",
        reads=reads,
        snapshots={name: by_name[name] for name in TABLES},
        body={"query": sql, "reads": list(reads), "snapshots": list(TABLES), "schema": "id BIGINT", **body},
    )
    return lab.executor._resolve(view, lab.secrets)


@cache
def inputs(session: SparkSession) -> tuple[dict[str, DataFrame], dict[str, DataFrame]]:
    """The streams and the tables, as they are in collections."""
    streams, tables = {}, {}
    for name, columns in COLUMNS.items():
        schema = f"{columns}, {POSITION} STRUCT<step: BIGINT>"
        empty = session.createDataFrame([], schema)
        if name in TABLES:
            tables[name] = empty
            continue
        nulls = (f"CAST(NULL AS {f.dataType.simpleString()}) AS `{f.name}`" for f in empty.schema.fields)
        streams[name] = session.readStream.format("rate").load().selectExpr(*nulls)
    return streams, tables


@pytest.mark.parametrize("sql", GOOD)
def test_a_relational_query_reads_its_inputs(lab: Lab, session: SparkSession, sql: str) -> None:
    ways = [inputs(session)]
    if any(name in sql for name in TABLES):  # `verify` reads steps of these as tables
        ways.append(({}, _all(session)))
    for streams, tables in ways:
        rows = rows_by_sql(session, streams, tables, query_of(lab, sql), TYPE)
        expected = session.createDataFrame([], f"{GOOD[sql]}, {POSITION} {TYPE}")
        assert rows.columns == expected.columns
        assert [f.dataType.simpleString() for f in rows.schema] == [
            f.dataType.simpleString() for f in expected.schema
        ]
        assert rows.isStreaming == bool(streams)


@cache
def _all(session: SparkSession) -> dict[str, DataFrame]:
    columns = {name: f"{ddl}, {POSITION} {TYPE}" for name, ddl in COLUMNS.items()}
    return {name: session.createDataFrame([], ddl) for name, ddl in columns.items()}


@pytest.mark.nightly
def test_the_aggregates_of_spark_are_allowed(lab: Lab, session: SparkSession) -> None:
    for aggregate in AGGREGATES:
        sql = f"SELECT customer, {aggregate} AS x FROM orders GROUP BY customer"
        rows = rows_by_sql(session, *inputs(session), query_of(lab, sql), TYPE)
        assert rows.columns == ["customer", "x", POSITION]


def test_a_watermark_counts_late_rows_by_its_column(lab: Lab, session: SparkSession) -> None:
    for name, column, delay in (
        ("orders", "ts", "10 minutes"),
        ("orders", "ts", "10m"),
        ("payments", "seen.at", "10m"),
    ):
        sql = f"SELECT window(`{column}`, '1 minute') AS w, count(*) AS n FROM {name} GROUP BY 1"
        query = query_of(lab, sql, watermarks={name: {"column": column, "delay": delay}})
        rows = rows_by_sql(session, *inputs(session), query, TYPE)
        plan = rows._jdf.queryExecution().analyzed().toString()
        assert f"{column}#" in plan and "T600000ms" in plan


def test_what_spark_refuses_is_an_error_of_the_query(lab: Lab, session: SparkSession) -> None:
    for sql, says in (
        ("SELECT nothing FROM orders", "`nothing`"),
        ("SELECT id FROM orders GROUP BY", "yntax"),
    ):
        assert says in str(_refusal(lab, session, sql))


def test_no_hostile_query_is_analysed(
    lab: Lab, session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is refused before Spark has resolved a name in it: that opens files."""

    def analyse(_: SparkSession, sql: str) -> DataFrame:
        raise AssertionError(f"analysed: {sql}")

    monkeypatch.setattr(SparkSession, "sql", analyse)
    made, secret = _files(tmp_path)
    for text in HOSTILE_QUERIES:
        sql = Template(text).safe_substitute(X=made, F=secret)
        found = _refusal(lab, session, sql)
        assert found is not None and "analysed: " not in found, text
    assert not made.exists()


@pytest.mark.nightly
def test_no_hostile_query_runs_if_the_parsed_tree_tells_nothing(
    lab: Lab, session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two looks, the second finds what the first has let through. (Commands run at once.)"""
    made, secret = _files(tmp_path)
    monkeypatch.setattr(query_trees.QueryCheck, "problem_of_parsed", lambda *_: "")
    let_through = []
    for text in HOSTILE_QUERIES:
        sql = Template(text).safe_substitute(X=made, F=secret)
        if text.startswith(("SELECT", "WITH")) and "INSERT" not in text and not _refusal(lab, session, sql):
            let_through.append(text)
    assert set(let_through) <= set(ONLY_PARSED)
    assert not made.exists()


def _refusal(lab: Lab, session: SparkSession, sql: str) -> str | None:
    """Why a query is refused; None if it is not."""
    try:
        rows_by_sql(session, *inputs(session), query_of(lab, sql), TYPE)
    except MzplanError as refused:
        assert {d.code for d in refused.diagnostics} == {"MZ019"}, sql
        assert "s3cr3t" not in str(refused)
        return str(refused.diagnostics[0].detail)
    return None


def _files(folder: Path) -> tuple[Path, Path]:
    secret = folder / "secret.txt"
    secret.write_text("s3cr3t\n")
    return folder / "made", secret


# Queries that Spark refuses as a stream: what else their bodies have, and a piece of what is said.
MARKS = {"watermarks": {name: {"column": "ts", "delay": "10m"} for name in ("orders", "payments")}}
KEYED = {"output": "update", "key": ["customer"]}
TIMED = "o.id = p.id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("SELECT customer, count(*) AS n FROM orders GROUP BY customer", MARKS, "without watermark"),
    ("SELECT DISTINCT customer FROM orders", {}, "without watermark"),
    (
        "SELECT customer, count(DISTINCT id) AS n FROM orders GROUP BY customer",
        KEYED,
        "istinct aggregations",
    ),
    (
        "SELECT customer, session_window(ts, '5 minutes') AS w FROM orders GROUP BY 1, 2",
        {**MARKS, **KEYED},
        "A session grows",
    ),
    (
        f"SELECT window(w, '5 minutes') AS customer, sum(n) AS n FROM (SELECT {WINDOW} AS w, count(*) AS n "
        "FROM orders GROUP BY 1) GROUP BY 1",
        {**MARKS, **KEYED},
        "only one operator",
    ),
    (
        f"SELECT customer, max(p.id) FROM orders o LEFT JOIN payments p ON {TIMED} GROUP BY 1",
        KEYED,
        "Append",
    ),
    ("SELECT o.id FROM orders o LEFT JOIN payments p ON o.id = p.id", MARKS, "join"),
    (f"SELECT o.id FROM orders o LEFT JOIN payments p ON {TIMED}", {}, "without a watermark"),
    ("SELECT o.id FROM orders o LEFT ANTI JOIN payments p ON o.id = p.id", MARKS, "may still find a match"),
    ("SELECT o.id FROM orders o JOIN payments p ON o.id < p.id", {}, "only by equality"),
    ("WITH p AS (SELECT * FROM payments) SELECT o.id FROM orders o, p WHERE o.id < p.id", {}, "by equality"),
    ("SELECT id FROM orders UNION ALL SELECT id FROM customers", {"one": True}, "streaming and batch"),
    (
        "SELECT c.id FROM customers c LEFT JOIN orders o ON o.id = c.id",
        {"one": True},
        "static",
    ),
    (
        "SELECT o.id FROM orders o RIGHT JOIN customers c ON o.id = c.id",
        {"one": True},
        "static",
    ),
    ("SELECT id FROM customers", {"one": True}, "streaming sources"),
    (
        "SELECT c.city, count(*) AS n FROM orders o JOIN customers c ON o.id = c.id GROUP BY 1",
        {"one": True},
        "needs earlier micro-batches",
    ),
    (
        "SELECT a.id FROM orders a JOIN orders b ON a.id = b.id, customers",
        {"one": True},
        "needs earlier micro-batches",
    ),
    (
        "SELECT customer, count(*) AS n FROM orders WHERE ts > 'today' GROUP BY customer",
        KEYED,
        "reads 'today' as a time",
    ),
    (
        "SELECT monotonically_increasing_id() AS id FROM orders UNION ALL SELECT id FROM payments",
        {},
        "Expression",
    ),
]
AS_STREAM: list[tuple[str, dict[str, Any], str]] = [
    ("SELECT customer, count(*) AS n FROM orders GROUP BY customer", KEYED, "customer BIGINT, n BIGINT"),
    (
        f"SELECT {WINDOW}.end AS until, count(*) AS n FROM orders GROUP BY {WINDOW}",
        MARKS,
        "until TIMESTAMP, n BIGINT",
    ),
    (f"SELECT o.id, p.paid FROM orders o LEFT JOIN payments p ON {TIMED}", MARKS, "id BIGINT, paid DOUBLE"),
    ("SELECT o.id FROM orders o, payments p WHERE o.id = p.id", {}, "id BIGINT"),
    (
        "SELECT o.id, city FROM orders o LEFT JOIN customers c ON o.id = c.id",
        {"one": True},
        "id BIGINT, city STRING",
    ),
    ("SELECT id FROM orders LEFT ANTI JOIN customers USING (id)", {"one": True}, "id BIGINT"),
    (
        "SELECT o.id, n FROM orders o JOIN (SELECT id, count(*) AS n FROM customers GROUP BY id) c "
        "ON c.id = o.id",
        {"one": True},
        "id BIGINT, n BIGINT",
    ),
]


def _checked(lab: Lab, sql: str, body: dict[str, Any], schema: str = "id BIGINT") -> CheckResult:
    """The check of a view over the two streams; with `one`, over orders and the snapshot."""
    more = {name: value for name, value in body.items() if name != "one"}
    view = query_of(lab, sql, schema=schema, **more).description
    if "one" in body:
        view = replace(view, reads={"orders": view.reads["orders"]})
    else:
        view = replace(view, snapshots={})
    return lab.check(view)


@pytest.mark.parametrize(("sql", "body", "says"), REFUSED)
def test_what_spark_can_not_run_as_a_stream_is_refused_in_plain_words(
    lab: Lab, sql: str, body: dict[str, Any], says: str
) -> None:
    (refused,) = _checked(lab, sql, body, "id BIGINT, customer BIGINT").diagnostics
    assert (refused.code, refused.severity, refused.kind) == ("MZ019", "error", "unfit")
    assert says in f"{refused.detail} {refused.hint}", refused
    assert "SQLSTATE" not in str(refused) and "WARN" not in str(refused)


@pytest.mark.parametrize(("sql", "body", "schema"), AS_STREAM)
def test_what_spark_runs_as_a_stream_has_the_columns_of_the_plan(
    lab: Lab, sql: str, body: dict[str, Any], schema: str
) -> None:
    assert _checked(lab, sql, body, schema).diagnostics == ()


def test_a_view_whose_columns_are_not_those_of_the_plan_is_refused(lab: Lab) -> None:
    sql, body, schema = AS_STREAM[0]
    (other,) = _checked(lab, sql, body, f"{schema}, more INT").diagnostics
    assert other.code == "MZ230"

"""The SQL of a view, taken apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.schema.conformity import fault_of
from mzplan.schema.description import CollectionRead, Description
from mzplan.schema.view_query import QueryPart, parse_view, with_collection


def test_a_query_is_its_collection_its_items_and_its_condition() -> None:
    query = parse_view("SELECT id, a * 2 AS b -- twice\nFROM orders WHERE a > 1;")
    assert (query.problem, query.collection) == ("", QueryPart("orders", 36))
    assert query.items == (QueryPart("id", 7), QueryPart("a * 2 AS b", 11))
    assert query.body == {"select": ["id", "a * 2 AS b"], "where": " a > 1"}
    assert [parsed.name for _, parsed in query.expressions()] == ["id", "b", None]
    everything = parse_view("select * from orders")
    assert everything.body == {"select": ["*"]}


@pytest.mark.parametrize(
    ("sql", "items"),
    [
        ("SELECT o.id, o.a.b FROM orders o", ["`id`", "`a`.b"]),
        ("SELECT orders.id FROM orders", ["`id`"]),
        ("SELECT O.id, `o`.`x` AS y, 'o.id' AS t FROM orders AS `o`", ["`id`", "`x` AS y", "'o.id' AS t"]),
        ("SELECT o.* FROM orders o", ["*"]),
        ("SELECT a.o.id FROM orders o", ["a.o.id"]),
        (
            "SELECT extract(year FROM ts) AS y, f(a, b) AS c FROM t",
            ["extract(year FROM ts) AS y", "f(a, b) AS c"],
        ),
        ("SELECT a IS DISTINCT FROM b AS c FROM t", ["a IS DISTINCT FROM b AS c"]),
        ("SELECT * EXCEPT (a, b) FROM t", ["* EXCEPT (a, b)"]),
        ("SELECT left(a, 2) AS l FROM t WHERE left(a, 1) = 'x'", ["left(a, 2) AS l"]),
    ],
)
def test_qualifiers_are_taken_off_the_items(sql: str, items: list[str]) -> None:
    query = parse_view(sql)
    assert query.problem == ""
    assert [" ".join(item.text.split()) for item in query.items] == items


@pytest.mark.parametrize(
    ("sql", "at"),
    [
        ("", ""),
        ("TABLE orders", "TABLE"),
        ("WITH a AS (SELECT 1) SELECT * FROM a", "WITH"),
        ("SELECT DISTINCT a FROM t", "DISTINCT"),
        ("SELECT a", ""),
        ("SELECT a FROM", ""),
        ("SELECT a FROM (SELECT 1)", "("),
        ("SELECT a FROM parquet.`/x`", "."),
        ("SELECT a FROM `/etc/passwd`", "`"),
        ("SELECT a FROM t, u", ","),
        ("SELECT a FROM t LEFT JOIN u ON x = y", "LEFT"),
        ("SELECT a FROM t UNION ALL SELECT b FROM u", "UNION"),
        ("SELECT a FROM t GROUP BY a", "GROUP"),
        ("SELECT a FROM t WHERE b > 1 HAVING a > 1", "HAVING"),
        ("SELECT a FROM t WHERE b > 1 ORDER BY a", "ORDER"),
        ("SELECT a FROM t LIMIT 3", "LIMIT"),
        ("SELECT a FROM t LATERAL VIEW explode(b) c AS d", "LATERAL"),
        ("SELECT a FROM t; DROP TABLE t", ";"),
        ("SELECT a /*+ broadcast(t) */ FROM t", "/*+"),
    ],
)
def test_a_query_of_more_than_rows_is_found_at_its_place(sql: str, at: str) -> None:
    query = parse_view(sql)
    assert query.problem and sql[query.offset :].startswith(at)


def test_a_variable_of_a_function_is_not_the_collection() -> None:
    for clash in ("transform(xs, o -> o.x)", "transform(xs, (i, `O`) -> o.x)", "transform(xs, x -> x + o.x)"):
        query = parse_view(f"SELECT {clash} AS y FROM orders o")
        assert "is also a variable of a function" in query.problem
    assert parse_view("SELECT transform(xs, x -> x.a + o.b) AS y FROM orders o").body == {
        "select": ["transform(xs, x -> x.a + `b`) AS y"]
    }
    assert parse_view("SELECT o, transform(xs, x -> x) AS y FROM orders o WHERE o.id > 1").problem == ""
    assert parse_view("SELECT transform(orders.xs, x -> x + 1) AS y FROM orders").problem == ""


SOURCE = CollectionRead(
    address=Address("source", "orders"),
    id="o",
    generation=1,
    type="local",
    body={"type": "local", "schema": "id BIGINT, note STRING"},
)
VIEW = Description(
    address=Address("view", "v"),
    id="v",
    generation=1,
    digest="1:a",
    type="sql",
    body={"query": "SELECT id FROM orders", "from": "orders", "schema": "id BIGINT"},
    reads={"orders": SOURCE},
)


@pytest.mark.parametrize(
    ("body", "source", "fault"),
    [
        ({}, {}, ""),
        ({"schema": "id BIGINT, id INT"}, {}, "is not Spark DDL"),
        ({"schema": ""}, {}, "a wrong value"),
        ({"select": ["id"]}, {}, "unknown key select"),
        ({"where": "true"}, {}, "unknown key where"),
        ({"query": 3}, {}, "a wrong type"),
        ({}, {"type": "sql"}, "sql is not a type of a source here"),
        ({}, {"body": {**SOURCE.body, "schema": "id BIGINT, '"}}, "is not Spark DDL"),
    ],
)
def test_a_view_is_checked_against_the_schemas(
    body: dict[str, Any], source: dict[str, Any], fault: str
) -> None:
    found = fault_of(replace(VIEW, body={**VIEW.body, **body}, reads={"orders": replace(SOURCE, **source)}))
    assert fault in found and bool(fault) == bool(found)


@pytest.mark.parametrize(
    ("sql", "renamed"),
    [
        ("SELECT id FROM orders", "SELECT id FROM sales"),
        ("SELECT orders.id, x FROM orders -- orders\n", "SELECT sales.id, x FROM sales -- orders\n"),
        ("SELECT o.id, 'orders.x' AS t FROM `orders` o;", "SELECT o.id, 'orders.x' AS t FROM sales o;"),
        (
            "SELECT a.orders.b FROM orders WHERE orders.c > 1",
            "SELECT a.orders.b FROM sales WHERE sales.c > 1",
        ),
        ("SELECT id FROM orders GROUP BY id", "SELECT id FROM orders GROUP BY id"),
    ],
)
def test_a_collection_is_renamed_in_the_sql(sql: str, renamed: str) -> None:
    assert with_collection(sql, "sales") == renamed


def test_a_key_is_spelled_as_where_it_comes_from() -> None:
    assert parse_view("SELECT ID, Name AS n FROM t").key(["id", "name"]) == ("id", "n")
    assert parse_view("SELECT * FROM t").key(["Id"]) == ("Id",)
    assert parse_view("SELECT id + 1 AS id FROM t").key(["id"]) is None

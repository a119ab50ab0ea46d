"""The SQL of a view, taken apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mzplan.schema.conformity import fault_of
from mzplan.schema.description import describe
from mzplan.schema.sql.view_query import parse_view, with_collection
from tests.unit.small_projects import at, commit, project, resource


@pytest.mark.parametrize(
    ("sql", "items"),
    [
        ("SELECT o.id, o.a.b FROM orders o", ["`id`", "`a`.b"]),
        ("SELECT O.id, `o`.`x` AS y, 'o.id' AS t FROM orders AS `o`", ["`id`", "`x` AS y", "'o.id' AS t"]),
        ("SELECT o.* FROM orders o", ["*"]),
        ("SELECT a.o.id FROM orders o", ["a.o.id"]),
        (
            "SELECT extract(year FROM ts) AS y, f(a, b) AS c FROM t",
            ["extract(year FROM ts) AS y", "f(a, b) AS c"],
        ),
        ("SELECT left(a, 2) AS l FROM t WHERE left(a, 1) = 'x'", ["left(a, 2) AS l"]),
    ],
)
def test_qualifiers_are_taken_off_the_items(sql: str, items: list[str]) -> None:
    query = parse_view(sql)
    assert query.problem == ""
    assert [" ".join(item.text.split()) for item in query.items] == items


def test_a_variable_of_a_function_is_not_the_collection() -> None:
    for clash in ("transform(xs, o -> o.x)", "transform(xs, (i, `O`) -> o.x)", "transform(xs, x -> x + o.x)"):
        query = parse_view(f"SELECT {clash} AS y FROM orders o")
        assert "is also a variable of a function" in query.problem
    assert parse_view("SELECT transform(xs, x -> x.a + o.b) AS y FROM orders o").body == {
        "select": ["transform(xs, x -> x.a + `b`) AS y"]
    }
    assert parse_view("SELECT o, transform(xs, x -> x) AS y FROM orders o WHERE o.id > 1").problem == ""
    assert parse_view("SELECT transform(orders.xs, x -> x + 1) AS y FROM orders").problem == ""


SCHEMA = {"schema": "id BIGINT"}
SHOP = commit(
    project(
        resource("source.orders", "local", type="local", **SCHEMA),
        resource("view.v", "sql", query="SELECT id FROM orders", **{"from": "orders"}, **SCHEMA),
    )
).resources


@pytest.mark.parametrize(
    ("view", "source", "fault"),
    [
        ({}, {}, ""),
        ({"schema": "id BIGINT, id INT"}, {}, "is not Spark DDL"),
        ({"query": 3}, {}, "a wrong type"),
        ({}, {"schema": "id BIGINT, '"}, "is not Spark DDL"),
    ],
)
def test_a_view_is_checked_against_the_schemas(
    view: dict[str, Any], source: dict[str, Any], fault: str
) -> None:
    changes = {at("view.v"): view, at("source.orders"): source}
    changed = {a: replace(r, body={**r.body, **changes[a]}) for a, r in SHOP.items()}
    found = fault_of(describe(changed[at("view.v")], changed))
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

"""The passes over the tree of a query: what each of them finds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mzplan.schema.columns import parse_columns
from mzplan.schema.lineage import lineage_of_analysis
from mzplan.schema.relations.analysis import NAMES, PASSES, Pass, analyse
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import parse_query
from mzplan.schema.relations.tree import Analysis, Block, Input, Join

INPUTS = {
    "orders": Input(parse_columns("id BIGINT, customer STRING, ts TIMESTAMP"), "source.orders", True, "ts"),
    "payments": Input(parse_columns("id BIGINT, paid DOUBLE, ts TIMESTAMP"), "source.payments", True, "ts"),
    "cities": Input(parse_columns("customer STRING, city STRING"), "source.cities", False),
}
MARKS = {"orders": {"column": "ts"}, "payments": {"column": "ts"}}


def analysed(sql: str, passes: Sequence[Pass] = NAMES) -> Analysis:
    query = parse_query(sql)
    inputs = {name: INPUTS[name] for name in query.places}
    marks = {name: mark for name, mark in MARKS.items() if name in inputs}
    return analyse(query, inputs, {"watermarks": marks}, passes)


@pytest.mark.parametrize(
    ("sql", "kinds"),
    [
        ("SELECT id FROM orders NATURAL JOIN cities", []),
        (
            "WITH a AS (SELECT DISTINCT id, ts FROM orders) SELECT ts, count(*) AS n FROM a "
            "JOIN payments USING (id, ts) GROUP BY ts",
            ["DISTINCT", "join", "aggregation"],
        ),
        (
            "SELECT o.ts FROM orders o LEFT JOIN (SELECT id, ts FROM payments GROUP BY id, ts) p "
            "ON o.id = p.id AND o.ts = p.ts",
            ["aggregation", "outer join"],
        ),
        ("SELECT id, ts FROM orders UNION SELECT id, ts FROM payments", ["DISTINCT"]),
        (
            "SELECT customer, n FROM (SELECT customer, count(*) AS n FROM cities GROUP BY 1) x "
            "JOIN orders USING (customer)",
            [],
        ),
    ],
)
def test_operators_with_state_are_in_the_order_in_which_spark_computes_them(
    sql: str, kinds: list[str]
) -> None:
    assert [operator.kind for operator in analysed(sql).operators] == kinds


def test_the_tree_has_each_select_with_its_joins_and_groups() -> None:
    root = analysed(
        "SELECT window(o.ts, '1 hour') AS w, max(paid) AS m FROM orders o NATURAL JOIN "
        "(SELECT id, paid, ts FROM payments WHERE paid > 1) p GROUP BY w"
    ).root
    inner, join, outer = root.walk()
    assert isinstance(inner, Block) and inner.groups is None and isinstance(join, Join) and outer is root
    assert (join.using, [relation.name for relation in join.left], join.right.name) == (
        ("id", "ts"),
        ["o"],
        "p",
    )
    assert root.groups is not None and len(root.groups) == 1
    assert [(item.field.name, root.groups_in(item)) for item in root.items] == [("w", {0}), ("m", set())]


def test_the_state_depends_on_the_columns_that_names_stand_for() -> None:
    """But not on the names of collections."""
    sql = "SELECT DISTINCT * FROM orders NATURAL JOIN payments"
    analysis = analysed(sql, PASSES)
    assert analysis.state and analysis.aliases == ["id", "ts"]
    assert not analysed("SELECT id FROM orders", PASSES).state
    with pytest.raises(QueryError, match="none of the rows come from a stream"):
        analysed("SELECT city FROM cities", PASSES)


@pytest.mark.parametrize(
    ("sql", "columns", "rows", "used"),
    [
        (
            "SELECT customer, count(*) AS n FROM (SELECT * FROM orders) x GROUP BY customer",
            {"customer": "orders.customer", "n": ""},
            "orders.customer orders.ts",
            "orders.customer orders.ts",
        ),
        (
            "SELECT o.id + p.paid AS x FROM orders o JOIN (SELECT id AS k, paid FROM payments) p "
            "ON o.id = p.k",
            {"x": "orders.id payments.paid"},
            "orders.id orders.ts payments.id payments.ts",
            "orders.id orders.ts payments.id payments.paid payments.ts",
        ),
        (
            "WITH a AS (SELECT id, customer AS c, ts FROM orders) SELECT id FROM a UNION ALL "
            "SELECT id FROM payments WHERE paid > 0",
            {"id": "orders.id payments.id"},
            "orders.ts payments.paid payments.ts",
            "orders.customer orders.id orders.ts payments.id payments.paid payments.ts",
        ),
        (
            "SELECT letter FROM orders LATERAL VIEW explode(split(customer, '')) x AS letter",
            {"letter": "orders.customer"},
            "orders.customer orders.ts",
            "orders.customer orders.ts",
        ),
    ],
)
def test_each_column_is_traced_to_the_columns_of_inputs(
    sql: str, columns: dict[str, str], rows: str, used: str
) -> None:
    """The column with the watermark decides which rows are late."""

    def text(read: frozenset[tuple[str, str]]) -> str:
        return " ".join(sorted(map(".".join, read)))

    lineage = lineage_of_analysis(analysed(sql))
    assert {name: text(read) for name, read in lineage.columns.items()} == columns
    assert (text(lineage.rows), text(lineage.used)) == (rows, used)

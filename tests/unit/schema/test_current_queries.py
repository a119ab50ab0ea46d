"""Queries of current views: what the parser lets through, and what renames and counts see of them."""

from __future__ import annotations

import pytest

from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import parse_query, with_names
from tests.hostile_queries import HOSTILE_QUERIES

# What a query over tables may have, and a query over streams may not.
HARMLESS = (
    "SELECT id, (SELECT max(id) FROM payments)",
    "SELECT id FROM orders WHERE id IN (SELECT id FROM payments)",
    "SELECT id FROM orders WHERE NOT EXISTS",
    "SELECT id FROM orders INTERSECT",
    "SELECT id FROM orders EXCEPT",
    "SELECT id, sum(id) OVER",
    "SELECT id, row_number() OVER w",
)
INPUTS = {"orders", "payments", "customers"}


def test_no_hostile_query_is_accepted_over_tables() -> None:
    accepted = []
    for sql in HOSTILE_QUERIES:
        try:
            query = parse_query(sql, over_tables=True)
        except QueryError:
            continue
        if query.places.keys() <= INPUTS and not _streams_may_have(sql):
            accepted.append(sql)
    assert [sql for sql in accepted if not sql.startswith(HARMLESS)] == []
    assert len(accepted) == len(HARMLESS)


def _streams_may_have(sql: str) -> bool:
    try:
        return bool(parse_query(sql).places)
    except QueryError:
        return False


def test_a_renamed_collection_is_renamed_in_subqueries() -> None:
    sql = (
        "SELECT id, (SELECT max(p.paid) FROM payments p WHERE p.id = orders.id) AS m FROM orders "
        "WHERE EXISTS (SELECT 1 FROM orders x WHERE x.id = orders.id) "
        "AND id IN (SELECT orders.id FROM orders)"
    )
    assert with_names(sql, {"orders": "sales"}) == sql.replace("orders", "sales")


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        (
            "SELECT id FROM a WHERE id IN (SELECT id FROM b WHERE n > (SELECT max(n) FROM a))",
            {"a": 2, "b": 1},
        ),
        ("WITH q AS (SELECT id FROM a) SELECT id FROM q WHERE id NOT IN (SELECT id FROM q)", {"a": 2}),
        ("SELECT id FROM a INTERSECT SELECT id FROM b EXCEPT SELECT id FROM a", {"a": 2, "b": 1}),
    ],
)
def test_reads_in_subqueries_count(sql: str, reads: dict[str, int]) -> None:
    assert parse_query(sql, over_tables=True).reads == reads

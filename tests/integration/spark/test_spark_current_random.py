"""Current views of many shapes over tables that change at random: after each round, their rows and those of
their sinks are the rows of a batch query."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.integration.spark.current_lab import CurrentLab
from tests.integration.spark_lab import Lab, read_delta
from tests.support import eventually


class Shape(NamedTuple):
    sql: str
    schema: str
    key: str
    reads: str


TABLES = {
    "orders": ("id BIGINT, customer STRING, amount INT", "id"),
    "customers": ("customer STRING, city STRING", "customer"),
    "visits": ("customer STRING, page STRING", ""),
}
SHAPES = {
    "totals": Shape(
        "SELECT c.city, count(*) AS n, sum(o.amount) AS total, count(DISTINCT o.customer) AS buyers "
        "FROM orders o JOIN customers c ON o.customer = c.customer GROUP BY c.city",
        "city STRING, n BIGINT, total BIGINT, buyers BIGINT",
        "city",
        "orders customers",
    ),
    "named": Shape(
        "SELECT o.id, o.amount, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.customer",
        "id BIGINT, amount INT, city STRING",
        "id",
        "orders customers",
    ),
    "lost": Shape(
        "SELECT o.id FROM orders o LEFT ANTI JOIN customers c ON o.customer = c.customer",
        "id BIGINT",
        "id",
        "orders customers",
    ),
    "all": Shape(
        "SELECT customer, count(o.id) AS n, max(c.city) AS city FROM orders o FULL JOIN customers c "
        "USING (customer) GROUP BY customer",
        "customer STRING, n BIGINT, city STRING",
        "customer",
        "orders customers",
    ),
    "visitors": Shape(
        "SELECT v.customer, map_from_entries(array_sort(collect_set(struct(v.page, 1 AS one)))) AS pages "
        "FROM visits v WHERE v.customer IN (SELECT customer FROM customers) GROUP BY v.customer",
        "customer STRING, pages MAP<STRING, INT>",
        "customer",
        "visits customers",
    ),
    "ranked": Shape(
        "SELECT id, customer, row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) AS place "
        "FROM orders WHERE amount IS NOT NULL",
        "id BIGINT, customer STRING, place INT",
        "id",
        "orders",
    ),
    "largest": Shape(
        "SELECT id, amount FROM orders ORDER BY amount DESC NULLS LAST, id LIMIT 3",
        "id BIGINT, amount INT",
        "id",
        "orders",
    ),
    "names": Shape(
        "SELECT customer FROM orders WHERE amount > 5 UNION SELECT customer FROM visits",
        "customer STRING",
        "customer",
        "orders visits",
    ),
}


def changes(chance: random.Random) -> Iterator[str]:
    """Statements of one round: inserts, updates, deletes, keys that change, and NULL."""
    customer = lambda: chance.choice(["'a'", "'b'", "'c'", "'d'", "NULL"])  # noqa: E731
    amount = lambda: chance.choice(["NULL", str(chance.randrange(20))])  # noqa: E731
    ids = f"id % 7 = {chance.randrange(7)}"
    statements = [
        f"UPDATE {{orders}} SET amount = {amount()} WHERE {ids}",
        f"UPDATE {{orders}} SET customer = {customer()} WHERE {ids}",
        f"DELETE FROM {{orders}} WHERE {ids}",
        f"UPDATE {{customers}} SET city = 'city {chance.randrange(3)}' WHERE customer = {customer()}",
        f"DELETE FROM {{customers}} WHERE customer = {customer()}",
        f"INSERT INTO {{visits}} VALUES ({customer()}, 'page {chance.randrange(4)}', NULL)",
        "MERGE INTO {orders} t USING (SELECT * FROM VALUES "
        f"({chance.randrange(30)}L, {customer()}, {amount()}) AS s(id, customer, amount)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET customer = s.customer, amount = CAST(s.amount AS INT) "
        "WHEN NOT MATCHED THEN INSERT (id, customer, amount) VALUES "
        "(s.id, s.customer, CAST(s.amount AS INT))",
        f"MERGE INTO {{customers}} t USING (SELECT {chance.choice('abcd')!r} AS customer) s "
        "ON t.customer = s.customer WHEN NOT MATCHED THEN INSERT (customer, city) VALUES "
        f"(s.customer, 'city {chance.randrange(3)}')",
    ]
    yield from chance.sample(statements, chance.randrange(1, 4))


@pytest.mark.parametrize(
    ("seed", "rounds", "names"),
    [
        (1, 3, ("totals", "named", "ranked")),
        pytest.param(2, 20, tuple(SHAPES), marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
    ids=["three views", "all views"],
)
def test_rows_are_those_of_a_batch_query(lab: Lab, seed: int, rounds: int, names: tuple[str, ...]) -> None:
    chance, shop = random.Random(seed), CurrentLab(lab)
    for name, (schema, key) in TABLES.items():
        shop.table(name, schema, key)
    shop.insert("orders", *(f"{i}, '{'abcd'[i % 4]}', {i % 9}" for i in range(12)))
    shop.insert("customers", *(f"'{name}', 'city {i}'" for i, name in enumerate("abc")))
    views, sinks = [], []
    for name in names:
        shape = SHAPES[name]
        refresh = "auto" if name == "largest" else chance.choice(["auto", "incremental"])
        trigger = {"interval": "1s"}
        view = shop.view(*shape, refresh=refresh, full_above="60%", trigger=trigger)
        views.append(shop.named(name, view))
        body = {"mode": "upsert", "key": shape.key.split(), "trigger": trigger}
        sinks.append(lab.delta_sink(views[-1], lab.folder / "lake", f"{view.id}", **body))
    lab.start(*views, *sinks[:2])
    shop.agrees(*views)
    for _ in range(rounds):
        for statement in changes(chance):
            shop.sql(statement)
        shop.agrees(*views)
    for view in views[:2]:
        wanted = shop.rows(view)
        table = lab.folder / "lake" / view.id
        eventually("the sink follows", lambda w=wanted, t=table: _rows(read_delta(t)) == w)  # type: ignore[misc]
    refreshes = {step.refresh for view in views for step in shop.steps(view)}
    assert refreshes == {"full", "incremental"}
    lab.finish(*views, *sinks[:2])


def _rows(rows: list[dict[str, object]]) -> list[str]:
    return sorted(
        json.dumps({k: v for k, v in row.items() if k != "_position"}, default=str, sort_keys=True)
        for row in rows
    )

"""Views that join, aggregate and look up, on a real runner."""

from __future__ import annotations

from examples.servers import PostgresServer
from tests.integration.views.relational_shop import VIEWS, RelationalShop
from tests.support import Make, Project, eventually, execute, postgres_connection, rows_of

HOUR = 3600


def test_each_shape_computes_what_its_sql_says(
    project: Project, postgres: PostgresServer, database: Make
) -> None:
    name = database("relational")
    dsn = postgres.dsn(name)
    execute(dsn, "CREATE TABLE totals (customer text PRIMARY KEY, n bigint, total bigint)")
    sink = (
        f"connections:\n{postgres_connection('pg', postgres, name)}sinks:\n"
        "  out: {from: totals, connection: pg, table: totals, mode: upsert, key: [customer]}\n"
    )
    shop = RelationalShop(project, sink)
    views = [f"view.{view}" for view in VIEWS]
    project.apply()
    shop.add_customers()
    eventually("the customers are there", lambda: len(shop.customers()) == 5)
    shop.add("orders", 100)
    shop.add("payments", 90)
    shop.add("orders", 1, later=HOUR)
    shop.add("payments", 1, later=HOUR)
    eventually("each view is as it should be", lambda: not shop.differs())

    def totals() -> list[tuple[object, ...]]:
        return sorted(rows_of(dsn, "SELECT customer, n, total FROM totals"))

    eventually("the totals are in the table", lambda: totals() == shop.expected("totals"))
    assert project.json("drift")["drift"] == []
    eventually("nothing waits", lambda: all(project.queries()[view]["lag"] == 0 for view in views))
    assert all(project.queries()[view]["error"] is None for view in views)
    # Each restarts from its state.
    project.json("restart", *views)
    shop.add("orders", 5, later=2 * HOUR)
    eventually("the totals go on", lambda: totals() == shop.expected("totals"))

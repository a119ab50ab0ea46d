"""Views that join, aggregate and look up, on a real runner: as they should be, whatever happens to it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.views.relational_shop import VIEWS, RelationalShop
from tests.support import eventually, execute, postgres_connection, rows_of

if TYPE_CHECKING:
    from examples.servers import PostgresServer

SECONDS = 240.0
KILLS = 4
HOUR = 3600


def test_each_shape_computes_what_its_sql_says(
    tmp_path: Path, postgres: PostgresServer, database: Callable[..., str]
) -> None:
    name = database("relational")
    dsn = postgres.dsn(name)
    execute(dsn, "CREATE TABLE totals (customer text PRIMARY KEY, n bigint, total bigint)")
    sink = (
        f"connections:\n{postgres_connection('pg', postgres, name)}sinks:\n"
        "  out: {from: totals, connection: pg, table: totals, mode: upsert, key: [customer]}\n"
    )
    shop = RelationalShop(tmp_path / "p", {"TEST_PG_PASSWORD": postgres.password}, sink)
    try:
        shop.project.apply()
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
        assert shop.project.json("drift")["drift"] == []
        queries = shop.project.queries()
        eventually(
            "nothing waits", lambda: all(shop.project.queries()[f"view.{v}"]["lag"] == 0 for v in VIEWS)
        )
        assert all(queries[f"view.{view}"]["error"] is None for view in VIEWS)
        # Each restarts from its state.
        shop.project.run("down")
        shop.project.json("up")
        shop.add("orders", 5, later=2 * HOUR)
        eventually("the totals go on", lambda: totals() == shop.expected("totals"))
    finally:
        shop.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[RelationalShop]:
    shop = RelationalShop(tmp_path / "p")
    yield shop
    shop.close()


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_killed_while_views_join_and_aggregate(shop: RelationalShop) -> None:
    """No row is lost or counted twice: the views are what the same SQL gives in batch."""
    chance = random.Random(11)
    shop.project.apply()
    shop.add_customers()
    eventually("the customers are there", lambda: len(shop.customers()) == 5)
    shop.project.down()
    for _ in range(KILLS):
        doomed = shop.runner()
        before = len(shop.rows("named"))
        for name in ("orders", "payments", "orders", "payments"):
            shop.add(name, 400)
        eventually("it computes", lambda before=before: len(shop.rows("named")) > before, SECONDS)  # type: ignore[misc]
        shop.add("orders", 300)
        assert doomed.poll() is None, (shop.project.folder / "runner.log").read_text()[-4000:]
        time.sleep(chance.uniform(0.0, 2.5))
        doomed.kill()
        assert doomed.wait(SECONDS) == -signal.SIGKILL
    shop.project.json("up")
    shop.add("payments", 100)
    shop.add("orders", 1, later=HOUR)
    shop.add("payments", 1, later=HOUR)
    eventually("each view is as it should be", lambda: not shop.differs(), SECONDS)

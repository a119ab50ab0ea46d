"""A column that is added to a running source: through the whole path, without reading anything again."""

from __future__ import annotations

from pathlib import Path

from examples.servers import produce_json
from tests.integration.orders_shop import OrdersShop
from tests.integration.spark_lab import read_delta
from tests.support import eventually, execute, kafka_connection, orders, orders_sink, orders_source, rows_of


def columns_of(dsn: str, table: str) -> list[str]:
    query = (
        "SELECT column_name FROM information_schema.columns WHERE table_name = '{}' ORDER BY ordinal_position"
    )
    return [row[0] for row in rows_of(dsn, query.format(table))]


def test_an_added_column_restarts_from_the_checkpoints_and_arrives(shop: OrdersShop) -> None:
    project, dsn, bootstrap = shop.project, shop.dsn, shop.kafka.bootstrap
    shop.create_tables("added")
    name = shop.topic("added", partitions=1)
    added, last = (project.folder / f"lake/ad_{folder}" for folder in ("added", "last"))
    produce_json(bootstrap, name, orders(0, 20))

    def count(*targets: str | Path) -> list[int]:
        """How many rows each target has: a table, or the folder of a Delta table."""
        return [
            len(shop.ids(target) if isinstance(target, str) else read_delta(target)) for target in targets
        ]

    def declare(columns: str) -> None:
        shop.declare(
            "added",
            kafka_connection("ad_k", bootstrap)
            + shop.connection("ad_pg") + "  ad_lake: {type: files, path: lake}\n",
            orders_source("ad_s", "ad_k", name).replace("amount DECIMAL(10,2)", columns),
            orders_sink("ad_all", "ad_s", "ad_pg", "added")
            + orders_sink("ad_made", "ad_s", "ad_pg", "public.made", ", create: true")
            + "  ad_delta: {from: ad_s, connection: ad_lake, path: ad_added}\n"
            "  ad_last: {from: ad_s, connection: ad_lake, path: ad_last, mode: upsert, key: [id]}\n",
        )  # fmt: skip

    declare("amount DECIMAL(10,2)")
    project.apply()
    eventually("20 rows in each", lambda: count("added", "made", added, last) == [20] * 4)
    before = project.queries()

    # The table lacks the column: refused, with the ALTER TABLE that it needs, and nothing stops.
    declare("amount DECIMAL(10,2), note STRING")
    refused = project.apply(code=1)
    (problem,) = (one for one in refused["diagnostics"] if one["severity"] == "error")
    assert (problem["code"], problem["address"]) == ("MZ053", "sink.ad_all")
    assert "ADD COLUMN note text" in problem["hint"]
    assert project.run_ids("ad_") == {a: q["run_id"] for a, q in before.items()}
    # A sink that makes its own columns waits for the others: the change is not committed.
    assert columns_of(dsn, "made") == ["id", "customer", "amount"]

    execute(dsn, "ALTER TABLE added ADD COLUMN note text")
    # What came before the change and is not read yet: read once, with the new columns.
    produce_json(bootstrap, name, [{**row, "note": "early"} for row in orders(20, 25)])
    planned = project.json("plan")
    assert {c["address"]: (c["action"], c["effect"]) for c in planned["changes"]} == {
        "source.ad_s": ("update", "restart"),
        **{f"sink.ad_{sink}": ("restart", "restart") for sink in ("all", "made", "delta", "last")},
    }
    applied = project.apply()
    assert {c["status"] for c in applied["changes"]} == {"applied"}
    assert columns_of(dsn, "made") == ["id", "customer", "amount", "note"]
    produce_json(bootstrap, name, [{**row, "note": "late"} for row in orders(25, 40)])
    eventually("40 rows in each", lambda: min(count("added", "made", added, last)) >= 40)
    notes = rows_of(
        dsn, "SELECT note, count(*) FROM added WHERE id NOT BETWEEN 20 AND 24 GROUP BY 1 ORDER BY 1"
    )
    assert notes == [("late", 15), (None, 20)]
    for target in ("added", "made"):
        assert shop.ids(target) == list(range(40))
    for table in (added, last):
        found = {row["id"]: row["note"] for row in read_delta(table)}
        assert len(read_delta(table)) == 40
        assert [found[i] for i in (0, 19, 25, 39)] == [None, None, "late", "late"]

    after = project.queries()
    assert {a: q["id"] for a, q in after.items()} == {a: q["id"] for a, q in before.items()}
    assert {q["condition"] for q in after.values()} == {"running"}
    assert project.apply()["changes"] == []

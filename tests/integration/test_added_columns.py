"""A column that is added to a running source: through the whole path, without reading anything again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from examples.servers import produce_json
from tests.support import (
    Project,
    eventually,
    execute,
    kafka_connection,
    orders,
    orders_sink,
    orders_source,
    postgres_connection,
    rows_of,
)

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer


def count(dsn: str, table: str) -> int:
    return int(rows_of(dsn, f"SELECT count(*) FROM {table}")[0][0])


def columns_of(dsn: str, table: str) -> list[str]:
    query = (
        "SELECT column_name FROM information_schema.columns WHERE table_name = '{}' ORDER BY ordinal_position"
    )
    return [row[0] for row in rows_of(dsn, query.format(table))]


def in_lake(table: Path) -> list[dict[str, object]]:
    """The rows of a Delta table; none while it is not there."""
    if not (table / "_delta_log").exists():
        return []
    found: list[dict[str, object]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return found


def test_an_added_column_restarts_from_the_checkpoints_and_arrives(
    project: Project,
    kafka: KafkaBroker,
    postgres: PostgresServer,
    topic: Callable[..., str],
    database: Callable[..., str],
) -> None:
    dsn = postgres.dsn(name := database())
    execute(dsn, "CREATE TABLE added (id bigint, customer text, amount numeric(10,2))")
    one, added, last = (
        topic("added", partitions=1),
        *(project.folder / f"lake/ad_{n}" for n in ("added", "last")),
    )
    produce_json(kafka.bootstrap, one, orders(0, 20))

    def declare(columns: str) -> None:
        text = "connections:\n" + kafka_connection("ad_k", kafka.bootstrap)
        text += postgres_connection("ad_pg", postgres, name) + "  ad_lake: {type: files, path: lake}\n"
        source = orders_source("ad_s", "ad_k", one)
        text += "sources:\n" + source.replace("amount DECIMAL(10,2)", columns)
        text += "sinks:\n" + orders_sink("ad_all", "ad_s", "ad_pg", "added")
        text += orders_sink("ad_made", "ad_s", "ad_pg", "public.made", ", create: true")
        text += "  ad_delta: {from: ad_s, connection: ad_lake, path: ad_added}\n"
        text += "  ad_last: {from: ad_s, connection: ad_lake, path: ad_last, mode: upsert, key: [id]}\n"
        project.write("added", text)

    declare("amount DECIMAL(10,2)")
    project.apply()
    eventually("20 rows", lambda: count(dsn, "added") == count(dsn, "made") == 20)
    eventually("20 rows in the lake", lambda: len(in_lake(added)) == len(in_lake(last)) == 20)
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
    produce_json(kafka.bootstrap, one, [{**row, "note": "early"} for row in orders(20, 25)])
    planned = project.json("plan")
    assert {c["address"]: (c["action"], c["effect"]) for c in planned["changes"]} == {
        "source.ad_s": ("update", "restart"),
        **{f"sink.ad_{sink}": ("restart", "restart") for sink in ("all", "made", "delta", "last")},
    }
    applied = project.apply()
    assert {c["status"] for c in applied["changes"]} == {"applied"}
    assert columns_of(dsn, "made") == ["id", "customer", "amount", "note"]
    produce_json(kafka.bootstrap, one, [{**row, "note": "late"} for row in orders(25, 40)])
    eventually("40 rows", lambda: min(count(dsn, t) for t in ("added", "made")) >= 40)
    eventually("40 rows in the lake", lambda: len(in_lake(added)) >= 40 and len(in_lake(last)) >= 40)
    notes = rows_of(
        dsn, "SELECT note, count(*) FROM added WHERE id NOT BETWEEN 20 AND 24 GROUP BY 1 ORDER BY 1"
    )
    assert notes == [("late", 15), (None, 20)]
    for target in ("added", "made"):
        assert [row[0] for row in rows_of(dsn, f"SELECT id FROM {target} ORDER BY id")] == list(range(40))
    for table in (added, last):
        found = {row["id"]: row["note"] for row in in_lake(table)}
        assert len(in_lake(table)) == 40
        assert [found[i] for i in (0, 19, 25, 39)] == [None, None, "late", "late"]

    after = project.queries()
    assert {a: q["id"] for a, q in after.items()} == {a: q["id"] for a, q in before.items()}
    assert {q["condition"] for q in after.values()} == {"running"}
    assert project.apply()["changes"] == []

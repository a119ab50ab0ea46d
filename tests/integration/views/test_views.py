"""Views on a real runner: SQL between sources and sinks, changed while it runs; and views that join,
aggregate and look up."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from examples.servers import PostgresServer
from tests.faults.doomed import ids_in_delta
from tests.integration.views.relational_shop import VIEWS, RelationalShop
from tests.support import Make, Project, eventually, execute, postgres_connection, rows_of

SOURCE = """\
sources:
  orders:
    type: local
    schema: "id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2)"
    trigger: {interval: 500ms}
"""
SINK = (
    "  out: {from: loud, connection: pg, table: out, mode: upsert, key: [id], trigger: {interval: 500ms}}\n"
)


class Shop:
    """Orders that are appended, through two views, into a table."""

    def __init__(self, project: Project, postgres: PostgresServer, database: str):
        self.project = project
        self.dsn = postgres.dsn(database)
        execute(
            self.dsn,
            "CREATE TABLE out (id bigint PRIMARY KEY, customer text, twice numeric(12,2), more text)",
        )
        self.connections = "connections:\n" + postgres_connection("pg", postgres, database)
        self.sent = 0

    def declare(self, large: str, loud: str, schema: str = "") -> None:
        self.project.write(
            "shop",
            f"{self.connections}{SOURCE}views:\n"
            f'  large: {{query: "{large}", trigger: {{interval: 500ms}}{schema}}}\n'
            f'  loud: {{query: "{loud}", trigger: {{interval: 500ms}}}}\n'
            f"sinks:\n{SINK}",
        )

    def append(self, count: int = 10) -> None:
        ids = range(self.sent, self.sent + count)
        self.project.append("orders", ({"id": i, "customer": f"c{i % 3}", "amount": i} for i in ids))
        self.sent += count

    def rows(self) -> list[tuple[Any, ...]]:
        return rows_of(self.dsn, "SELECT id, customer, twice, more FROM out ORDER BY id")

    def newest_step(self) -> int:
        """The newest step of source.orders that is recorded, which is a moment after its rows are there."""
        return int(self.project.json("steps", "source.orders")["steps"][-1]["step"])

    def shows(self, rows: list[tuple[Any, ...]]) -> None:
        eventually(f"{rows}", lambda: self.rows() == rows)


@pytest.fixture
def shop(project: Project, postgres: PostgresServer, database: Make) -> Shop:
    return Shop(project, postgres, database("views"))


def changed(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {change["address"]: (change["action"], change["effect"]) for change in document["changes"]}


LARGE = "SELECT id, customer, CAST(amount * 2 AS DECIMAL(12,2)) AS twice FROM orders WHERE amount >= 5"
LOUD = "SELECT l.id, CAST(upper(l.customer) AS STRING) AS customer, l.twice FROM large l"


def test_sql_between_a_source_and_a_sink_is_changed_while_it_runs(shop: Shop) -> None:
    project = shop.project
    shop.declare(LARGE, LOUD)
    created = list(changed(project.apply()))
    assert created == ["connection.pg", "source.orders", "view.large", "view.loud", "sink.out"]
    shop.append()
    first = [(i, f"C{i % 3}", Decimal(i * 2), None) for i in range(5, 10)]
    shop.shows(first)
    assert project.json("drift")["drift"] == []
    runs = project.run_ids()

    # Another condition holds for rows from now on, and restarts the view alone.
    shop.declare(LARGE.replace(">= 5", ">= 12"), LOUD)
    assert changed(project.apply()) == {"view.large": ("update", "restart")}
    shop.append()
    second = [*first, *((i, f"C{i % 3}", Decimal(i * 2), None) for i in range(12, 20))]
    shop.shows(second)
    assert project.restarted(runs) == {"view.large"}

    # What Spark sees otherwise than the files say is refused before anything is committed or stopped.
    state, wrong = project.state_bytes(), LARGE.replace("customer,", "length(customer) AS customer,")
    shop.declare(wrong, LOUD, ', schema: "id BIGINT NOT NULL, customer STRING, twice DECIMAL(12,2)"')
    refused = project.apply(code=1)
    assert [(d["code"], d["address"]) for d in refused["diagnostics"]] == [("MZ230", "view.large")]
    assert project.state_bytes() == state

    # A new column comes in at the end, and the views and the sink restart for it; nothing is read again.
    shop.declare(
        LARGE.replace(" FROM", ", CAST(amount AS STRING) AS more FROM"), LOUD.replace(" FROM", ", more FROM")
    )
    assert changed(project.apply()) == {
        "view.large": ("update", "restart"),
        "view.loud": ("update", "restart"),
        "sink.out": ("restart", "restart"),
    }
    shop.append()
    third = [*second, *((i, f"C{i % 3}", Decimal(i * 2), f"{i}.00") for i in range(20, 30))]
    shop.shows(third)

    # The collections are there to be read, and what was recorded of their steps is what is in them.
    snapshot = project.json("snapshot", "view.large")
    assert len(snapshot["rows"]) == len(third)
    for view in ("view.large", "view.loud"):
        found = project.json("verify", view)
        assert found["difference"] is None and found["verified"] > 0

    # A view that does not read on holds what it has still to read.
    assert project.run("pause", "view.large").returncode == 0
    newest = shop.newest_step()
    for step in (newest + 1, newest + 2):  # the last one is kept in any case
        shop.append()
        eventually(f"step {step} is recorded", lambda step=step: shop.newest_step() == step)  # type: ignore[misc]
    eventually("20 rows wait", lambda: project.queries()["view.large"]["lag"] == 20)
    held = project.run("expire", "source.orders", "--before", str(newest + 3))
    assert held.returncode != 0 and "view.large" in held.stderr
    assert project.run("resume", "view.large").returncode == 0
    fourth = [*third, *((i, f"C{i % 3}", Decimal(i * 2), f"{i}.00") for i in range(30, 50))]
    shop.shows(fourth)

    # The column that came in later goes as cheaply as it came: the rows that were written keep it.
    shop.declare(LARGE, LOUD)
    assert changed(project.apply()) == {
        "view.large": ("update", "restart"),
        "view.loud": ("update", "restart"),
        "sink.out": ("restart", "restart"),
    }
    shop.append()
    fifth = [*fourth, *((i, f"C{i % 3}", Decimal(i * 2), None) for i in range(50, 60))]
    shop.shows(fifth)

    # Without another column it is another collection: computed anew from what the source holds, and so is
    # what reads it.
    shop.declare(
        LARGE.replace(" customer,", ""), LOUD.replace("CAST(upper(l.customer) AS STRING) AS customer, ", "")
    )
    replaced = changed(project.apply("--allow-replace"))
    assert replaced == dict.fromkeys(("view.large", "view.loud", "sink.out"), ("replace", "replace"))
    shop.append()
    eventually("all is computed anew", lambda: [row[0] for row in shop.rows()] == list(range(5, 70)))
    assert [row[2] for row in shop.rows()] == [Decimal(i * 2) for i in range(5, 70)]


@pytest.mark.nightly
def test_a_view_of_a_keyed_collection_follows_updates_and_deletes(
    project: Project, postgres: PostgresServer, database: Make
) -> None:
    name = database("keyed_views")
    execute(postgres.dsn(name), "CREATE TABLE out (number bigint PRIMARY KEY, name text)")
    project.write(
        "keyed",
        f"connections:\n{postgres_connection('pg', postgres, name)}"
        "sources:\n  people: {type: local, schema: 'id BIGINT, name STRING, age INT', key: [id]}\n"
        "views:\n"
        "  adults: {query: 'SELECT id AS number, upper(name) AS name, age FROM people WHERE age >= 18'}\n"
        "  old: {query: 'SELECT * EXCEPT (age) FROM adults WHERE age > 60'}\n"
        "sinks:\n  out: {from: old, connection: pg, table: out, mode: upsert, key: [number]}\n",
    )

    def append(*rows: tuple[int, str, int], delete: bool = False) -> None:
        named = ({"id": id_} if delete else {"id": id_, "name": n, "age": age} for id_, n, age in rows)
        project.append("people", named, *(["--delete"] if delete else []))

    def shows(*rows: tuple[int, str]) -> None:
        query = "SELECT number, name FROM out ORDER BY number"
        eventually(f"{rows}", lambda: rows_of(postgres.dsn(name), query) == list(rows))

    project.apply()
    append((1, "ann", 70), (2, "bob", 61), (3, "cy", 7), (4, "di", 40))
    shows((1, "ANN"), (2, "BOB"))
    append((2, "bob", 30), (3, "cy", 71), (4, "dora", 65))
    shows((1, "ANN"), (3, "CY"), (4, "DORA"))
    append((1, "", 0), (3, "", 0), delete=True)
    shows((4, "DORA"))
    adults = [(r["number"], r["name"], r["age"]) for r in project.json("snapshot", "view.adults")["rows"]]
    assert sorted(adults) == [(2, "BOB", 30), (4, "DORA", 65)]
    for view in ("view.adults", "view.old"):
        assert project.json("verify", view)["difference"] is None

    # Under another condition, a row that had come in goes when it is updated or deleted.
    text = (project.folder / "keyed.yaml").read_text()
    project.write("keyed", text.replace("age > 60", "age > 66"))
    assert changed(project.apply()) == {"view.old": ("update", "restart")}
    append((4, "dora", 66), (5, "ed", 80))
    shows((5, "ED"))
    append((5, "", 0), delete=True)
    shows()
    refused = project.json("verify", "view.old", "--from-upstream", code=1)
    assert [d["code"] for d in refused["diagnostics"]] == ["MZ092"]
    assert project.run("verify", "sink.out", "--content").returncode == 0


@pytest.mark.nightly
def test_a_view_continues_behind_migrated_rows(project: Project, tmp_path: Path) -> None:
    lake = tmp_path / "lake"

    def write(first: int, last: int) -> None:
        numbers = pa.array(list(range(first, last)), pa.int16())
        table = pa.table({"id": pa.array([str(n) for n in range(first, last)]), "n": numbers})
        write_deltalake(str(lake / "raw"), table, mode="append")

    def declare(type_: str) -> None:
        project.write(
            "migrated",
            f"connections: {{lake: {{type: files, path: {lake}}}}}\n"
            f"sources:\n  raw: {{type: delta, connection: lake, path: raw, schema: 'id STRING, n {type_}',\n"
            "        lifecycle: {replace: from-collection}, trigger: {interval: 500ms}}\n"
            "views:\n  ids: {query: 'SELECT id, length(id) AS l FROM raw', trigger: {interval: 500ms}}\n"
            "sinks:\n"
            "  out: {type: delta, connection: lake, path: out, from: ids, trigger: {interval: 500ms}}\n",
        )

    def arrive(count: int) -> None:
        eventually(f"{count} rows", lambda: len(ids_in_delta(lake / "out")) >= count)
        assert sorted(map(int, ids_in_delta(lake / "out"))) == list(range(count))

    write(0, 10)
    declare("SMALLINT")
    project.apply()
    arrive(10)
    for begun, type_ in enumerate(("INT", "BIGINT"), 1):
        write(begun * 10, begun * 10 + 5)
        declare(type_)
        assert changed(project.apply("--allow-replace")) == {
            "source.raw": ("replace", "replace"),
            "view.ids": ("restart", "restart"),
        }
        write(begun * 10 + 5, begun * 10 + 10)
        arrive(begun * 10 + 10)
    assert project.json("verify", "view.ids")["difference"] is None
    again = project.json("verify", "view.ids", "--from-upstream")
    assert again["difference"] is None and [d["code"] for d in again["diagnostics"]] == ["MZ045"]


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

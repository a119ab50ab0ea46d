"""Queries with state that somebody wrote by hand are stopped mid-way, imported as views, and go on.

Their own session keeps state as Spark does by default: by another provider than mzplan's, in three
partitions. What views have in the end is compared with a batch over all rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.integration.crew import Crew
from tests.integration.spark_lab import Lab, read_delta, remove_entry
from tests.integration.test_import_foreign import forget_commit, started, storage
from tests.support import drop_file, eventually
from tests.unit.cli_runs import mzplan

SCHEMA = "id BIGINT, customer STRING, city STRING, amount BIGINT, ts TIMESTAMP"
START = datetime(2026, 1, 1, tzinfo=UTC)
SOURCE = (
    "connections:\n  here: {type: files, path: .}\nsources:\n  orders: {connection: here, path: inbox, "
    f"trigger: {{interval: 300ms}}, format: {{type: json, schema: '{SCHEMA}'}}}}\n"
)
WINDOWS = (
    "SELECT window(ts, '10 seconds').start AS start, customer, sum(amount) AS total, min(amount) AS least "
    "FROM orders GROUP BY window(ts, '10 seconds'), customer"
)
TRIGGER = "trigger: {interval: 300ms}"
PAIRS = (
    "SELECT o.id, p.id AS next FROM orders o JOIN orders p "
    "ON p.id = o.id + 1 AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 MINUTE"
)
VIEW = f"{TRIGGER}, partitions: 3"
STATEFUL = f"{VIEW}, on_query_change: resume, watermarks: {{orders: {{column: ts, delay: 5 seconds}}}}"
CODE = """\
def once(orders):
    return orders.dropDuplicates(["id"]).select("id", "customer")
"""

Rows = list[tuple[Any, ...]]


def order(id_: int, second: int) -> dict[str, Any]:
    at = (START + timedelta(seconds=second)).isoformat()
    return {"id": id_, "customer": f"c{id_ % 3}", "city": f"c{id_ % 2}", "amount": id_ * 7 % 11, "ts": at}


ORDERS = [order(id_, id_) for id_ in range(60)]
LAST = order(1000, 3600)  # closes all windows


def windows_of(orders: Iterable[dict[str, Any]]) -> Rows:
    amounts: dict[tuple[datetime, str], list[int]] = {}
    for one in orders:
        at = datetime.fromisoformat(one["ts"])
        start = at - timedelta(seconds=at.second % 10)
        amounts.setdefault((start, one["customer"]), []).append(one["amount"])
    return sorted((start, who, sum(all_), min(all_)) for (start, who), all_ in amounts.items())


def windows(rows: DataFrame) -> DataFrame:
    grouped = rows.withWatermark("ts", "5 seconds").groupBy(f.window("ts", "10 seconds"), "customer")
    totals = grouped.agg(f.sum("amount").alias("total"), f.min("amount").alias("least"))
    return totals.select(f.col("window.start").alias("start"), "customer", "total", "least")


def pairs(rows: DataFrame) -> DataFrame:
    rows.withWatermark("ts", "5 seconds").createOrReplaceTempView("orders")
    return rows.sparkSession.sql(PAIRS)


class Team:
    """The files of a team's own queries: one ingests files, the others read its table."""

    def __init__(self, crew: Crew, folder: Path):
        self.crew, self.folder = crew, folder
        self.inbox = crew.folder / "inbox"
        self.session: SparkSession = crew.spark.newSession()
        provider = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
        self.session.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
        self.session.conf.set("spark.sql.shuffle.partitions", "3")

    def add(self, name: str, orders: Iterable[dict[str, Any]]) -> None:
        drop_file(self.inbox / f"{name}.json", orders)

    def ingest(self) -> None:
        self.run("raw", self.session.readStream.schema(SCHEMA).json(str(self.inbox)))

    def read(self, name: str, query: Callable[[DataFrame], DataFrame]) -> None:
        self.run(name, query(self.session.readStream.format("delta").load(str(self.folder / "raw/table"))))

    def finish(self) -> None:
        """Add the other orders, once."""
        self.add("4", ORDERS[35:])
        self.add("5", [LAST])

    def run(self, name: str, rows: DataFrame) -> None:
        """Run a query until it has read all that is there."""
        query = started(rows, self.folder / name)
        try:
            query.processAllAvailable()
        finally:
            query.stop()


@pytest.fixture(scope="module")
def crew(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    crew = Crew(tmp_path_factory.mktemp("adopting_views"), "adopting_views", lab)
    (crew.folder / "inbox").mkdir()
    (crew.folder / "code.py").write_text(CODE)
    yield crew
    crew.close()


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "windows": windows,
    "once": lambda rows: rows.dropDuplicates(["id"]).select("id", "customer"),
    "pairs": pairs,
    "large": lambda rows: rows.where("amount > 5").select("id", "amount"),
}


@pytest.fixture(scope="module")
def team(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> Team:
    """All queries have read a part of the rows, and none has read the newest rows of the table."""
    team = Team(crew, tmp_path_factory.mktemp("team"))
    for name, part in (("1", ORDERS[:15]), ("2", ORDERS[15:25])):
        team.add(name, part)
        team.ingest()
        for query, rows in QUERIES.items():
            team.read(query, rows)
    team.add("3", ORDERS[25:35])
    team.ingest()
    crew.declare("orders", SOURCE)
    imported(crew, "source.orders", team.folder / "raw")
    return team


def imported(crew: Crew, address: str, folder: Path) -> Path:
    """Import a query; return the folder of its collection."""
    ran = import_(crew, address, folder)
    assert ran.code == 0, ran
    assert {c["status"] for c in ran.json()["changes"] if c["address"] == address} == {"applied"}
    return crew.storage("collections", address) / "g1"


def import_(crew: Crew, address: str, folder: Path) -> Any:
    options = (*storage(folder), "--auto-approve", "--json", "--wait", "180s")
    return mzplan(crew.folder, "import", address, *options)


def view(name: str, query: str, body: str = STATEFUL) -> str:
    return f'views:\n  {name}: {{query: "{query}", {body}}}\n'


def rows_in(collection: Path, *columns: str) -> Rows:
    return sorted(tuple(row[name] for name in columns) for row in read_delta(collection))


def test_another_aggregation_is_refused_and_the_same_one_goes_on(crew: Crew, team: Team) -> None:
    """Spark would resume each of the refused queries. The last step is done, but isn't noted as done."""
    left = team.folder / "windows"
    assert len(list((left / "checkpoint/state/0").iterdir())) == 4  # three partitions, and metadata
    forget_commit(left)
    refused = {
        "names the values": WINDOWS.replace("min(", "max("),
        "names the keys": WINDOWS.replace("customer,", "city AS customer,").replace(", customer", ", city"),
        "stores the keys": WINDOWS.replace("), customer", "), id").replace(
            "customer,", "max(customer) AS customer,"
        ),
    }
    before = mzplan(crew.folder, "state", "pull").out
    for reason, query in refused.items():
        crew.declare("views", view("windows", query))
        ran = import_(crew, "view.windows", left)
        assert ran.code == 7 and {d["code"] for d in ran.json()["diagnostics"]} == {"MZ409"}, ran
        assert reason in ran.json()["diagnostics"][0]["detail"], ran
        assert mzplan(crew.folder, "state", "pull").out == before

    crew.declare("views", view("windows", WINDOWS))
    collection = imported(crew, "view.windows", left)
    team.finish()
    wanted = windows_of(ORDERS)
    columns = ("start", "customer", "total", "least")
    eventually(f"{len(wanted)} windows", lambda: len(read_delta(collection)) >= len(wanted), seconds=60)
    assert rows_in(collection, *columns) == wanted
    assert 0 < len(read_delta(left / "table")) < len(wanted)  # the original is as it was
    verified = mzplan(crew.folder, "verify", "view.windows", "--json")
    assert verified.code == 0, verified
    assert import_(crew, "view.windows", left).code == 64
    crew.is_clean()


@pytest.mark.nightly
def test_a_join_of_a_table_with_itself(crew: Crew, team: Team) -> None:
    """Rows that were read before the import meet rows that are read after it."""
    crew.declare("views", view("pairs", PAIRS))
    collection = imported(crew, "view.pairs", team.folder / "pairs")
    team.finish()
    wanted = [(id_, id_ + 1) for id_ in range(len(ORDERS) - 1)]
    eventually("all pairs", lambda: rows_in(collection, "id", "next") == wanted)


@pytest.mark.nightly
def test_a_function_and_a_query_without_state(crew: Crew, team: Team) -> None:
    """A killed micro-batch of which the table has nothing is written, and no duplicate comes back."""
    log = team.folder / "large/table/_delta_log"
    forget_commit(team.folder / "large")
    remove_entry(max(log.glob("*.json")))
    crew.declare(
        "views",
        f"views:\n  large: {{query: 'SELECT id, amount FROM orders WHERE amount > 5', {TRIGGER}}}\n"
        f"  once: {{function: 'code.py:once', reads: [orders], state: kept, {VIEW}, "
        "schema: 'id BIGINT, customer STRING'}\n",
    )
    large = imported(crew, "view.large", team.folder / "large")
    once = imported(crew, "view.once", team.folder / "once")
    team.finish()
    team.add("6", ORDERS[:10])
    team.add("7", [order(2000, 3601)])
    raw = crew.storage("collections", "source.orders") / "g1"
    ids = [*range(len(ORDERS)), 1000, 2000]
    eventually("the last order, once", lambda: rows_in(once, "id") == [(id_,) for id_ in ids])
    assert len(rows_in(raw, "id")) == len(ids) + 10
    wanted = [row for row in rows_in(raw, "id", "amount") if row[1] > 5]
    eventually("all large orders", lambda: rows_in(large, "id", "amount") == wanted)
    assert json.loads(mzplan(crew.folder, "plan", "--json").out)["summary"]["replace"] == 0

"""A query that somebody wrote by hand is stopped, imported, and goes on: nothing twice, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from examples.servers import KafkaBroker, PostgresServer, produce_json
from tests.integration.crew import Crew
from tests.integration.orders_shop import ids_in_delta
from tests.integration.spark_lab import Lab, read_delta, remove_entry
from tests.support import (
    Make,
    drop_ids,
    eventually,
    execute,
    ids_in,
    kafka_connection,
    orders,
    orders_sink,
    orders_source,
)
from tests.unit.cli_runs import apply, mzplan

COLUMNS = "id BIGINT, customer STRING, amount DECIMAL(10,2)"


@pytest.fixture(scope="module")
def crew(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    crew = Crew(tmp_path_factory.mktemp("adopting"), "adopting", lab)
    (crew.folder / "inbox").mkdir()
    yield crew
    crew.close()


def started(rows: DataFrame, folder: Path) -> StreamingQuery:
    """As people write it."""
    writer = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(processingTime="200 milliseconds").start(str(folder / "table"))


def storage(folder: Path) -> tuple[str, ...]:
    """The options of `mzplan import` that say where the query's storage is."""
    return "--checkpoint", str(folder / "checkpoint"), "--table", str(folder / "table")


def kafka_rows(crew: Crew, kafka: KafkaBroker, topic: str) -> DataFrame:
    stream = crew.spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    return stream.option("subscribe", topic).option("startingOffsets", "earliest").load()


def processed(query: StreamingQuery, folder: Path) -> int:
    """How many rows the table has when the query has processed all that is there."""
    query.processAllAvailable()
    return len(read_delta(folder / "table"))


def newest(folder: Path) -> Path:
    return folder / str(max(int(path.name) for path in folder.iterdir() if path.name.isdecimal()))


def forget_commit(folder: Path) -> None:
    """As if it had been killed before it could note down that its last micro-batch is done."""
    remove_entry(newest(folder / "checkpoint" / "commits"))


def imported(crew: Crew, address: str, folder: Path) -> Path:
    """Import the query; return the folder of its collection."""
    options = (*storage(folder), "--auto-approve", "--json", "--wait", "180s")
    ran = mzplan(crew.folder, "import", address, *options)
    assert ran.code == 0, ran
    assert {c["status"] for c in ran.json()["changes"] if c["address"] == address} == {"applied"}
    return crew.storage("collections", address) / "g1"


def test_a_query_from_kafka(
    crew: Crew, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: Make, tmp_path: Path
) -> None:
    name, db = topic("by-hand", partitions=2), database("adopting")
    produce_json(kafka.bootstrap, name, orders(0, 20), key="id")
    record = f.from_json(f.col("value").cast("string"), COLUMNS).alias("record")
    query = started(kafka_rows(crew, kafka, name).select(record).select("record.*"), tmp_path)
    assert processed(query, tmp_path) == 20
    produce_json(kafka.bootstrap, name, orders(20, 30), key="id")
    assert processed(query, tmp_path) == 30
    query.stop()
    forget_commit(tmp_path)  # its last micro-batch is in the table, and will be planned again
    steps = int(newest(tmp_path / "checkpoint" / "offsets").name)
    produce_json(kafka.bootstrap, name, orders(30, 40), key="id")  # while nothing runs

    dsn = postgres.dsn(db)
    execute(dsn, "CREATE TABLE sales (id bigint, customer text, amount numeric(10,2))")
    (crew.folder / "word").write_text(postgres.password)
    crew.declare(
        "kafka",
        "connections:\n"
        + kafka_connection("k", kafka.bootstrap)
        + f"  pg: {{type: postgres, host: 127.0.0.1, port: {postgres.port}, database: {db}, "
        f"user: {postgres.user}, password: '${{file:word}}'}}\n"
        "sources:\n" + orders_source("sales", "k", name),
    )
    collection = imported(crew, "source.sales", tmp_path)
    eventually("every row once", lambda: ids_in_delta(collection) == list(range(40)))

    def goes_on() -> bool:
        (seen,) = mzplan(crew.folder, "status", "--json").json()["queries"]
        return bool(seen["id"] == query.id and seen["step"] > steps)

    eventually("it is that query, and its steps count on", goes_on)
    assert len(read_delta(tmp_path / "table")) == 30  # what was there is as it was
    planned = mzplan(crew.folder, "plan", "--json").json()["changes"]
    assert [change["address"] for change in planned] == ["connection.pg"]  # which nothing has used yet

    # It is a source like any other: sinks read all of it, its steps are shown and verified.
    text = (crew.folder / "kafka.yaml").read_text()
    crew.declare("kafka", f"{text}sinks:\n{orders_sink('sales_pg', 'sales', 'pg', 'sales')}")
    apply(crew.folder, "--wait", "180s")
    produce_json(kafka.bootstrap, name, orders(40, 50), key="id")
    eventually("50 rows in PostgreSQL", lambda: ids_in(dsn, "sales") == list(range(50)))
    shown = mzplan(crew.folder, "steps", "source.sales", "--json")
    assert shown.code == 0 and shown.json()["steps"][-1]["step"] >= steps
    verified = mzplan(crew.folder, "verify", "source.sales", "--json")
    assert verified.code == 0, verified
    crew.is_clean()

    # What is imported is so only once.
    again = mzplan(crew.folder, "import", "source.sales", *storage(tmp_path), "--auto-approve")
    assert again.code == 64
    crew.declare("kafka", "")
    apply(crew.folder, "--wait", "180s")


@pytest.mark.nightly
def test_a_query_from_files(crew: Crew, tmp_path: Path) -> None:
    inbox = crew.folder / "inbox"
    drop_ids(inbox, 1, 2, 3)
    query = started(crew.spark.readStream.schema("id BIGINT").json(str(inbox)), tmp_path)
    assert processed(query, tmp_path) == 3
    drop_ids(inbox, 4, 5)
    assert processed(query, tmp_path) == 5
    query.stop()
    # Killed between planning a micro-batch and writing it: the table has none of it yet.
    forget_commit(tmp_path)
    log = tmp_path / "table" / "_delta_log"
    remove_entry(max(log.glob("*.json")))
    drop_ids(inbox, 6)

    crew.declare(
        "files",
        "connections:\n  here: {type: files, path: .}\nsources:\n  inbox: {connection: here, path: inbox, "
        "trigger: {interval: 500ms}, format: {type: json, schema: 'id BIGINT'}}\n",
    )
    collection = imported(crew, "source.inbox", tmp_path)
    eventually("every row once", lambda: ids_in_delta(collection) == [1, 2, 3, 4, 5, 6])
    crew.is_clean()


def test_a_query_that_cannot_be_imported_changes_nothing(
    crew: Crew, kafka: KafkaBroker, topic: Make, tmp_path: Path
) -> None:
    """All reasons at once, nothing changed, nothing copied."""
    name = topic("stateful")
    produce_json(kafka.bootstrap, name, orders(0, 3))
    rows = kafka_rows(crew, kafka, name)
    queries = {
        "stateful": rows.select("value").dropDuplicates(["value"]),
        "renamed": rows.select(f.col("value").alias("other")),
    }
    crew.declare(
        "refused",
        "connections:\n" + kafka_connection("k2", kafka.bootstrap) + "sources:\n"
        + orders_source("refused", "k2", "elsewhere"),
    )  # fmt: skip
    stored = set((crew.folder / "warehouse").rglob("g1"))
    before = mzplan(crew.folder, "state", "pull").out
    reasons = {}
    for folder, made in queries.items():
        query = started(made, tmp_path / folder)
        query.processAllAvailable()
        query.stop()
        where = storage(tmp_path / folder)
        ran = mzplan(crew.folder, "import", "source.refused", *where, "--auto-approve", "--json")
        assert ran.code == 7 and {d["code"] for d in ran.json()["diagnostics"]} == {"MZ165"}, ran
        reasons[folder] = " ".join(d["detail"] for d in ran.json()["diagnostics"])
    assert "keeps state" in reasons["stateful"]
    assert f"reads the topics {name}" in reasons["renamed"] and "has a column other" in reasons["renamed"]
    # What another test has dropped may go meanwhile.
    assert set((crew.folder / "warehouse").rglob("g1")) <= stored
    assert mzplan(crew.folder, "state", "pull").out == before
    crew.declare("refused", "")

"""A query that somebody wrote by hand is stopped, imported, and goes on: nothing twice, nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.servers import produce_json
from tests.integration.crew import Crew
from tests.integration.spark_lab import read_delta
from tests.support import (
    drop_file,
    eventually,
    execute,
    ids_in,
    kafka_connection,
    orders,
    orders_source,
    rows_of,
)
from tests.unit.cli_runs import apply, mzplan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from examples.servers import KafkaBroker, PostgresServer
    from tests.integration.spark_lab import Lab

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


def ids(table: Path) -> list[int]:
    return sorted(row["id"] for row in read_delta(table))


def newest(folder: Path) -> Path:
    return folder / str(max(int(path.name) for path in folder.iterdir() if path.name.isdecimal()))


def forget_commit(folder: Path) -> None:
    """As if it had been killed before it could note down that its last micro-batch is done."""
    entry = newest(folder / "checkpoint" / "commits")
    entry.unlink()
    entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)


def imported(crew: Crew, address: str, folder: Path) -> Any:
    where = ("--checkpoint", str(folder / "checkpoint"), "--table", str(folder / "table"))
    ran = mzplan(crew.folder, "import", address, *where, "--auto-approve", "--json", "--wait", "60s")
    assert ran.code == 0, ran
    assert {c["status"] for c in ran.json()["changes"] if c["address"] == address} == {"applied"}
    return mzplan(crew.folder, "state", "show", address).json()


def test_a_query_from_kafka(
    crew: Crew,
    kafka: KafkaBroker,
    postgres: PostgresServer,
    topic: Callable[..., str],
    database: Callable[..., str],
    tmp_path: Path,
) -> None:
    from pyspark.sql import functions as f

    name, db = topic("by-hand", partitions=2), database("adopting")
    produce_json(kafka.bootstrap, name, orders(0, 20), key="id")
    stream = crew.spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    stream = stream.option("subscribe", name).option("startingOffsets", "earliest")
    record = f.from_json(f.col("value").cast("string"), COLUMNS).alias("record")
    query = started(stream.load().select(record).select("record.*"), tmp_path)
    query.processAllAvailable()
    assert len(ids(tmp_path / "table")) == 20
    produce_json(kafka.bootstrap, name, orders(20, 30), key="id")
    query.processAllAvailable()
    assert len(ids(tmp_path / "table")) == 30
    query.stop()
    forget_commit(tmp_path)  # its last micro-batch is in the table, and will be planned again
    steps = int(newest(tmp_path / "checkpoint" / "offsets").name)
    produce_json(kafka.bootstrap, name, orders(30, 40), key="id")  # while nothing runs

    execute(postgres.dsn(db), "CREATE TABLE sales (id bigint, customer text, amount numeric(10,2))")
    execute(postgres.dsn(db), "CREATE TABLE last (customer text PRIMARY KEY, id bigint)")
    (crew.folder / "word").write_text(postgres.password)
    crew.declare(
        "kafka",
        "connections:\n"
        + kafka_connection("k", kafka.bootstrap)
        + f"  pg: {{type: postgres, host: 127.0.0.1, port: {postgres.port}, database: {db}, "
        f"user: {postgres.user}, password: '${{file:word}}'}}\n"
        "sources:\n" + orders_source("sales", "k", name),
    )
    record_ = imported(crew, "source.sales", tmp_path)
    collection = crew.folder / "warehouse" / "collections" / record_["id"] / "g1"
    eventually("every row once", lambda: ids(collection) == list(range(40)))

    def goes_on() -> bool:
        (seen,) = mzplan(crew.folder, "status", "--json").json()["queries"]
        return bool(seen["id"] == query.id and seen["step"] > steps)

    eventually("it is that query, and its steps count on", goes_on)
    assert len(ids(tmp_path / "table")) == 30  # what was there is as it was
    planned = mzplan(crew.folder, "plan", "--json").json()["changes"]
    assert [change["address"] for change in planned] == ["connection.pg"]  # which nothing has used yet

    # It is a source like any other: sinks read all of it, its steps are shown and verified.
    text = (crew.folder / "kafka.yaml").read_text()
    sink = "from: sales, connection: pg, trigger: {interval: 500ms}"
    crew.declare(
        "kafka",
        f"{text}sinks:\n  sales_pg: {{{sink}, table: sales}}\n"
        f"  last_pg: {{{sink}, table: last, mode: upsert, key: [customer], select: [customer, id]}}\n",
    )
    apply(crew.folder, "--wait", "60s")
    dsn = postgres.dsn(db)
    produce_json(kafka.bootstrap, name, orders(40, 50), key="id")
    eventually("50 rows in PostgreSQL", lambda: ids_in(dsn, "sales") == list(range(50)))
    eventually("the last of each", lambda: rows_of(dsn, "SELECT count(*), max(id) FROM last") == [(7, 49)])
    shown = mzplan(crew.folder, "steps", "source.sales", "--json")
    assert shown.code == 0 and shown.json()["steps"][-1]["step"] >= steps
    verified = mzplan(crew.folder, "verify", "source.sales", "--json")
    assert verified.code == 0, verified
    crew.is_clean()

    # What is imported is so only once.
    again = ("--checkpoint", str(tmp_path / "checkpoint"), "--table", str(tmp_path / "table"))
    assert mzplan(crew.folder, "import", "source.sales", *again, "--auto-approve").code == 64
    crew.declare("kafka", "")
    apply(crew.folder, "--wait", "60s")


@pytest.mark.nightly
def test_a_query_from_files(crew: Crew, tmp_path: Path) -> None:
    inbox = crew.folder / "inbox"

    def drop(*ids_: int) -> None:
        drop_file(inbox / f"{ids_[0]}.json", ({"id": id_} for id_ in ids_))

    drop(1, 2, 3)
    query = started(crew.spark.readStream.schema("id BIGINT").json(str(inbox)), tmp_path)
    query.processAllAvailable()
    assert len(ids(tmp_path / "table")) == 3
    drop(4, 5)
    query.processAllAvailable()
    assert len(ids(tmp_path / "table")) == 5
    query.stop()
    # Killed between planning a micro-batch and writing it: the table has none of it yet.
    forget_commit(tmp_path)
    log = tmp_path / "table" / "_delta_log"
    last = max(log.glob("*.json"))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    last.with_suffix(".crc").unlink(missing_ok=True)
    drop(6)

    crew.declare(
        "files",
        "connections:\n  here: {type: files, path: .}\nsources:\n  inbox: {connection: here, path: inbox, "
        "trigger: {interval: 500ms}, format: {type: json, schema: 'id BIGINT'}}\n",
    )
    record = imported(crew, "source.inbox", tmp_path)
    collection = crew.folder / "warehouse" / "collections" / record["id"] / "g1"
    eventually("every row once", lambda: ids(collection) == [1, 2, 3, 4, 5, 6])
    crew.is_clean()


def test_a_query_that_cannot_be_imported_changes_nothing(
    crew: Crew, kafka: KafkaBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    """All reasons at once, nothing changed, nothing copied."""
    from pyspark.sql import functions as f

    name = topic("stateful")
    produce_json(kafka.bootstrap, name, orders(0, 3))
    stream = crew.spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    rows = stream.option("subscribe", name).option("startingOffsets", "earliest").load()
    for number, made in enumerate(
        (rows.select("value").dropDuplicates(["value"]), rows.select(f.col("value").alias("other")))
    ):
        query = started(made, tmp_path / str(number))
        query.processAllAvailable()
        query.stop()
    crew.declare(
        "refused",
        "connections:\n" + kafka_connection("k2", kafka.bootstrap) + "sources:\n"
        + orders_source("refused", "k2", "elsewhere"),
    )  # fmt: skip
    stored = set((crew.folder / "warehouse").rglob("g1"))
    before = mzplan(crew.folder, "state", "pull").out
    reasons = {}
    for number in (0, 1):
        folder = tmp_path / str(number)
        where = ("--checkpoint", str(folder / "checkpoint"), "--table", str(folder / "table"))
        ran = mzplan(crew.folder, "import", "source.refused", *where, "--auto-approve", "--json")
        assert ran.code == 7 and {d["code"] for d in ran.json()["diagnostics"]} == {"MZ165"}, ran
        reasons[number] = " ".join(d["detail"] for d in ran.json()["diagnostics"])
    assert "keeps state" in reasons[0]
    assert f"reads the topics {name}" in reasons[1] and "has a column other" in reasons[1]
    # What another test has dropped may go meanwhile.
    assert set((crew.folder / "warehouse").rglob("g1")) <= stored
    assert mzplan(crew.folder, "state", "pull").out == before
    for checkout in (crew.folder, crew.elsewhere):
        (checkout / "refused.yaml").unlink()

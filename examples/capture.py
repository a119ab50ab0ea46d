"""`make cdc`: changes of a PostgreSQL database, captured on real servers.

Starts PostgreSQL and Kafka here, applies a copy of examples/cdc, and changes orders while it runs: what is in
the other database and in the topic follows. Everything it starts it ends again; its folder (build/cdc) can
be deleted.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from examples.quickstart import KAFKA_PORTS, POSTGRES_PORT, mzplan, say, wait_for
from examples.servers import KafkaBroker, PostgresServer, ServerError, create_topic

HERE = Path(__file__).parent
FOLDER = HERE.parent / "build" / "cdc"
CHANGES = """
UPDATE orders SET status = 'paid' WHERE id % 2 = 0;
DELETE FROM orders WHERE id % 10 = 5;
UPDATE orders SET id = id + 1000 WHERE id = 7;
INSERT INTO orders VALUES (2000, 'grace', 99.90, 'open', 'while it runs');
"""


def main() -> int:
    """Returns the exit code: 0 when both targets are as the orders are."""
    shutil.rmtree(FOLDER / "cdc", ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    kafka, postgres = KafkaBroker(FOLDER / "kafka"), PostgresServer(FOLDER / "postgres")
    kafka.remove_data()
    postgres.remove_data()
    project = Path(shutil.copytree(HERE / "cdc", FOLDER / "cdc"))
    try:
        say("Starting PostgreSQL (wal_level = logical) and Kafka …")
        kafka.start(ports=KAFKA_PORTS)
        postgres.start(port=POSTGRES_PORT)
        os.environ["SHOP_PG_PASSWORD"] = postgres.password
        return show(project, kafka, postgres)
    except ServerError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    finally:
        mzplan(project, "down", quiet=True)
        kafka.stop()
        postgres.stop()


def show(project: Path, kafka: KafkaBroker, postgres: PostgresServer) -> int:
    """The story itself."""
    shop, report = postgres.create_database("shop"), postgres.create_database("report")
    create_topic(kafka.bootstrap, "orders", 1)
    run(shop, (project / "tables.sql").read_text())
    run(
        shop,
        "INSERT INTO orders SELECT g, 'ada', g + 0.5, 'open', repeat('note ', 1000) "
        "FROM generate_series(1, 100) g",
    )
    run(report, "CREATE TABLE open_orders (id bigint PRIMARY KEY, customer text, amount numeric(10,2))")

    def as_it_is() -> bool:
        is_open = rows(shop, "SELECT id, customer, amount FROM orders WHERE status = 'open'")
        return rows(report, "SELECT * FROM open_orders") == is_open and ids_in(kafka) == {
            one[0] for one in rows(shop, "SELECT id FROM orders")
        }

    say("mzplan apply   (the first one also starts the runner, a Spark application)")
    mzplan(project, "apply", "--auto-approve")
    wait_for("100 orders in the other database and in the topic", as_it_is)

    say("Orders are paid, deleted, renumbered and added:")
    print(CHANGES.strip())
    run(shop, CHANGES)
    wait_for("the same in the other database and in the topic", as_it_is)

    say("mzplan status")
    mzplan(project, "status")
    say(f"{len(rows(report, 'SELECT * FROM open_orders'))} open orders, {len(ids_in(kafka))} in the topic.")
    say("mzplan destroy   (the slot and the publication go, too)")
    mzplan(project, "destroy", "--auto-approve")
    wait_for("the slot is gone", lambda: rows(shop, "SELECT slot_name FROM pg_replication_slots") == set())
    print("\nIt works.")
    return 0


def run(dsn: str, statements: str) -> None:
    """Statements in one transaction."""
    with psycopg.connect(dsn) as connection:
        connection.execute(statements.encode())


def rows(dsn: str, query: str) -> set[tuple[object, ...]]:
    """The rows of a query."""
    with psycopg.connect(dsn) as connection:
        return set(connection.execute(query.encode()).fetchall())


def ids_in(kafka: KafkaBroker) -> set[int]:
    """The orders that the topic has at its end: those whose last record is no tombstone."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "cdc",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition("orders", 0, OFFSET_BEGINNING)])
    found: dict[int, bool] = {}
    try:
        while (record := consumer.poll(10)) is not None and record.error() is None:
            found[int(record.key() or b"")] = record.value() is not None
    finally:
        consumer.close()
    return {id_ for id_, there in found.items() if there}


if __name__ == "__main__":
    sys.exit(main())

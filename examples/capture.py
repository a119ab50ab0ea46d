"""`make cdc`: captures changes of a PostgreSQL database, on real servers.

Starts PostgreSQL and Kafka on this machine, applies a copy of examples/cdc, and changes orders while it runs.
Another database and a topic follow the changes. At the end, it stops everything that it has started. You can
delete the folders build/cdc and state/cdc, which stay.
"""

from __future__ import annotations

import sys

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from examples.phases import Phases, say
from examples.servers import KafkaBroker, create_topic
from examples.stage import Stage, options, perform

CHANGES = """
UPDATE orders SET status = 'paid' WHERE id % 2 = 0;
DELETE FROM orders WHERE id % 10 = 5;
UPDATE orders SET id = id + 1000 WHERE id = 7;
INSERT INTO orders VALUES (2000, 'grace', 99.90, 'open', 'while it runs');
"""


def main() -> int:
    """Run the demonstration. Return the exit code: 0 if both targets match the orders."""
    given = options(__doc__ or "")
    phases = Phases(given.since)
    code = perform(Stage("cdc", given.root.resolve(), phases), show)
    if code == 0:
        say("Time spent")
        print(phases.table())
    return code


def make_tables(stage: Stage) -> None:
    """Create both databases, and insert a hundred orders into the first."""
    shop, report = stage.postgres.create_database("shop"), stage.postgres.create_database("report")
    run(shop, (stage.project / "tables.sql").read_text())
    run(
        shop,
        "INSERT INTO orders SELECT g, 'ada', g + 0.5, 'open', repeat('note ', 1000) "
        "FROM generate_series(1, 100) g",
    )
    run(report, "CREATE TABLE open_orders (id bigint PRIMARY KEY, customer text, amount numeric(10,2))")


def show(stage: Stage) -> int:
    """Show the demonstration step by step. Return the exit code."""
    kafka, phases = stage.kafka, stage.phases
    shop, report = stage.postgres.dsn("shop"), stage.postgres.dsn("report")
    stage.start(lambda: create_topic(kafka.bootstrap, "orders", 1), lambda: make_tables(stage))

    def as_it_is() -> bool:
        is_open = rows(shop, "SELECT id, customer, amount FROM orders WHERE status = 'open'")
        return rows(report, "SELECT * FROM open_orders") == is_open and ids_in(kafka) == {
            one[0] for one in rows(shop, "SELECT id FROM orders")
        }

    say("mzplan apply")
    with phases.phase("mzplan apply"):
        stage.mzplan("apply", "--auto-approve")
    with phases.phase("the first 100 orders"):
        phases.wait_for("100 orders in the other database and in the topic", as_it_is)

    say("Orders are paid, deleted, renumbered and added:")
    print(CHANGES.strip())
    run(shop, CHANGES)
    with phases.phase("the changes"):
        phases.wait_for("the same orders in the other database and in the topic", as_it_is)

    say("mzplan status")
    stage.mzplan("status")
    say(f"{len(rows(report, 'SELECT * FROM open_orders'))} open orders, {len(ids_in(kafka))} in the topic.")
    say("mzplan destroy   (also drops the slot and the publication)")
    with phases.phase("mzplan destroy"):
        stage.mzplan("destroy", "--auto-approve")
        phases.wait_for(
            "the slot is gone", lambda: rows(shop, "SELECT slot_name FROM pg_replication_slots") == set()
        )
    print("\nIt works.", flush=True)
    return 0


def run(dsn: str, statements: str) -> None:
    """Run the statements in one transaction."""
    with psycopg.connect(dsn) as connection:
        connection.execute(statements.encode())


def rows(dsn: str, query: str) -> set[tuple[object, ...]]:
    """Return the rows of a query."""
    with psycopg.connect(dsn) as connection:
        return set(connection.execute(query.encode()).fetchall())


def ids_in(kafka: KafkaBroker) -> set[int]:
    """Return the ids of orders in the topic whose last record isn't a tombstone."""
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

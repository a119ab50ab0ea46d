"""Orders from topics into tables: what the tests of whole pipelines declare, produce and look for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.servers import KafkaBroker, PostgresServer, produce_json
from tests.integration.spark_lab import read_delta
from tests.support import Make, Project, eventually, execute, ids_in, orders, postgres_connection, rows_of


class OrdersShop:
    """A project, topics of the session's broker, and a database of one test."""

    def __init__(
        self, project: Project, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: str
    ):
        self.project, self.kafka, self.postgres = project, kafka, postgres
        self.topic, self.database, self.dsn = topic, database, postgres.dsn(database)

    def create_tables(self, *names: str) -> None:
        for name in names:
            self.execute(f"CREATE TABLE {name} (id bigint, customer text, amount numeric(10,2))")

    def execute(self, statement: str) -> None:
        execute(self.dsn, statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return rows_of(self.dsn, query)

    def produce(self, topic: str, first: int, last: int, bootstrap: str = "", **more: str) -> None:
        """Send the orders first … last - 1 to a topic of this broker. `more`: columns of all."""
        rows = ({**row, **more} for row in orders(first, last))
        produce_json(bootstrap or self.kafka.bootstrap, topic, rows, key="id")

    def declare(self, file: str, connections: str, sources: str, sinks: str) -> None:
        self.project.write(file, f"connections:\n{connections}sources:\n{sources}sinks:\n{sinks}")

    def connection(self, name: str) -> str:
        """A connection to the test's database."""
        return postgres_connection(name, self.postgres, self.database)

    def ids(self, table: str) -> list[int]:
        return ids_in(self.dsn, table)

    def arrived(self, count: int, *tables: str) -> None:
        """Wait until each table has the orders 0 … count - 1, each once."""
        for table in tables:
            eventually(f"{count} rows in {table}", lambda table=table: len(self.ids(table)) >= count)  # type: ignore[misc]
            assert self.ids(table) == list(range(count))


def ids_in_delta(table: Path) -> list[int]:
    """The ids in a Delta table, in order; none while it isn't there."""
    return sorted(row["id"] for row in read_delta(table))

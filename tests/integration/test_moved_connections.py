"""From an inline connection, or another one, to a new one with the same upstream; and a server that moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from examples.servers import produce_json
from examples.servers.ports import free_port
from tests.support import (
    Project,
    eventually,
    execute,
    kafka_connection,
    orders,
    orders_sink,
    postgres_connection,
    rows_of,
)

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer


ORDERS = "CREATE TABLE o (id bigint, customer text, amount numeric(10,2))"
SOURCE = """\
sources:
  mo_s:
    connection: {type: kafka, brokers: ['%s']}
    topic: %s
    format: {type: json, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2)"}
    trigger: {interval: 500ms}
"""


class Shop:
    """Rows from a topic into a table of a server that is only this test's."""

    def __init__(self, project: Project, kafka: KafkaBroker, server: PostgresServer, topic: str, name: str):
        self.project, self.kafka, self.server, self.topic = project, kafka, server, topic
        self.dsn = server.create_database(name)
        execute(self.dsn, ORDERS)
        execute(self.dsn, "CREATE ROLE other_user SUPERUSER LOGIN PASSWORD 'other-word'")
        self.sent = 0
        self.secrets = {"MO_PASSWORD": server.password, "MO_OTHER": "other-word"}

    def produce(self) -> None:
        produce_json(self.kafka.bootstrap, self.topic, orders(self.sent, self.sent + 10), key="id")
        self.sent += 10

    def ids(self) -> list[int]:
        return [row[0] for row in rows_of(self.dsn, "SELECT id FROM o ORDER BY id")]

    def arrive(self) -> None:
        eventually(f"{self.sent} rows", lambda: len(self.ids()) >= self.sent)
        assert self.ids() == list(range(self.sent))

    def alter(self, statement: str, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.project.json(
            "alter", statement, "--auto-approve", code=code, environment=self.secrets
        )
        return found


def changed(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """What each changed query does, and why."""
    return {
        c["address"]: (c["effect"], c["reason"])
        for c in document["changes"]
        if not c["address"].startswith("connection.")
    }


@pytest.mark.faults
def test_checkpoints_are_kept_and_the_old_connections_can_go(
    project: Project,
    kafka: KafkaBroker,
    postgres: PostgresServer,
    own_postgres: PostgresServer,
    topic: Callable[..., str],
    database: Callable[..., str],
) -> None:
    name = database()
    shop = Shop(project, kafka, own_postgres, topic("moved"), name)
    old = postgres_connection("mo_pg", own_postgres, name).replace("TEST_PG_PASSWORD", "MO_PASSWORD")
    project.write(
        "mo", SOURCE % (kafka.bootstrap, shop.topic) + "sinks:\n" + orders_sink("mo_o", "mo_s", "mo_pg", "o")
    )
    connections = project.write("mo_pg", "connections:\n" + old)
    project.apply(environment=shop.secrets)
    shop.produce()
    shop.arrive()
    ids = {a: q["id"] for a, q in project.queries().items()}
    runs = project.run_ids("mo_")

    # Another server with such a table: refused before anything is committed.
    execute(postgres.dsn(name), ORDERS)
    other = project.write("mo_other", "connections:\n" + postgres_connection("mo_other", postgres, name))
    state = project.state_bytes()
    refused = shop.alter("ALTER SINK mo_o SET CONNECTION mo_other", code=7)
    assert [(d["code"], d["address"]) for d in refused["diagnostics"]] == [("MZ043", "sink.mo_o")]
    assert project.state_bytes() == state and project.run_ids("mo_") == runs
    other.unlink()

    # The same servers under new names: the source is described as before and runs on; the sink, as another
    # user, restarts from its checkpoint.
    new = kafka_connection("mo_k", kafka.bootstrap) + old.replace("mo_pg", "mo_pg2")
    new = new.replace(f"user: {own_postgres.user}", "user: other_user").replace("MO_PASSWORD", "MO_OTHER")
    project.write("mo_new", "connections:\n" + new)
    assert changed(shop.alter("ALTER SOURCE mo_s SET CONNECTION mo_k")) == {
        "source.mo_s": ("in-place", "connection changed")
    }
    assert changed(shop.alter("ALTER SINK mo_o SET CONNECTION mo_pg2")) == {
        "sink.mo_o": ("restart", "connection changed")
    }
    shop.produce()
    shop.arrive()
    after = project.run_ids("mo_")
    assert {a for a in after if after[a] != runs[a]} == {"sink.mo_o"}
    assert {a: q["id"] for a, q in project.queries().items()} == ids
    # Nothing uses the old ones: the inline one went with its text, and the other can go.
    connections.unlink()
    gone = project.apply(environment=shop.secrets)
    assert {(c["address"], c["action"]) for c in gone["changes"]} == {
        ("connection.source_mo_s", "delete"),
        ("connection.mo_pg", "delete"),
    }

    # The server comes up at another address; rows come in meanwhile; the change repairs it.
    own_postgres.stop()
    shop.produce()
    own_postgres.start(port=free_port())
    shop.dsn = own_postgres.dsn(name)
    assert changed(shop.alter(f"ALTER CONNECTION mo_pg2 SET PORT = {own_postgres.port}")) == {
        "sink.mo_o": ("restart", "connection.mo_pg2 changed")
    }
    shop.produce()
    shop.arrive()
    assert {a: q["id"] for a, q in project.queries().items()} == ids

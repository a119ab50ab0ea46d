"""Changes to a new connection with the same upstream, and servers that move."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from examples.servers import create_topic, produce_json
from examples.servers.ports import free_port
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


@pytest.mark.nightly
def test_a_new_connection_to_the_same_server_keeps_checkpoints(
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


FAULT_SECONDS = 5.0  # until status names what is gone


def repair_of(shop: Shop, query: str, connection: str) -> str:
    """The statement that status prints for a query, once it names the connection at fault."""

    def seen() -> dict[str, Any]:
        return shop.project.queries()[query]

    eventually(f"{connection} is named", lambda: seen()["at_fault"] == connection, FAULT_SECONDS)
    health = shop.project.run("status", "--exit-code")
    shown = health.stdout
    assert (health.returncode, seen()["condition"]) == (8, "degraded") and seen()["fault_since"]
    drift = shop.project.json("drift")["drift"]
    assert any(
        query in one.get("addresses", [one["address"]]) and one["kind"] == "connection-unreachable"
        for one in drift
    )
    assert f"{query}: error[MZ154]: {connection} is at fault: " in shown
    statement = str(seen()["repair"])
    assert f'mzplan alter "{statement}"' in shown
    return statement


def resumed(query: str, outcome: str) -> tuple[str, int, int]:
    """Where a query went on, as the end of a command says it; how many rows it has read since, and how many
    at most wait (that is measured now and then)."""
    found = re.search(rf"{query}: resumed (.*?); (\d+) (?:records|rows)(.*)", outcome)
    assert found is not None, outcome
    waits = re.search(r"(\d+) \w+ wait", found[3])
    assert waits is not None or found[3].startswith(" from the outage "), outcome
    return found[1], int(found[2]), int(waits[1]) if waits else 0


@pytest.mark.nightly
def test_the_statement_that_status_prints_repairs_a_moved_server(
    project: Project, own_kafka: KafkaBroker, own_postgres: PostgresServer
) -> None:
    create_topic(own_kafka.bootstrap, "gone", partitions=1)
    shop = Shop(project, own_kafka, own_postgres, "gone", "gone")
    connections = kafka_connection("go_k", own_kafka.bootstrap)
    connections += postgres_connection("go_pg", own_postgres, "gone").replace(
        "TEST_PG_PASSWORD", "MO_PASSWORD"
    )
    source, sink = orders_source("go_s", "go_k", "gone"), orders_sink("go_o", "go_s", "go_pg", "o")
    project.write("go", f"connections:\n{connections}sources:\n{source}sinks:\n{sink}")
    project.apply(environment=shop.secrets)
    shop.produce()
    shop.arrive()

    def repair(statement: str, query: str) -> tuple[str, int, int]:
        done = project.run("alter", statement, "--auto-approve", environment=shop.secrets)
        assert done.returncode == 0, done.stdout + done.stderr + project.log()
        return resumed(query, done.stdout)

    # The broker ends, comes up at its other address, and gets more; what status prints repairs the source.
    own_kafka.stop()
    statement = repair_of(shop, "source.go_s", "connection.go_k")
    own_kafka.start(listeners=[2])
    produce_json(own_kafka.bootstrap2, "gone", orders(10, 28), key="id")
    assert "'new-host:9092'" in statement
    statement = statement.replace("new-host:9092", own_kafka.bootstrap2)
    where, rows, waiting = repair(statement, "source.go_s")
    assert where == "at 10" and rows <= 18 <= rows + waiting
    shop.sent = 28
    shop.arrive()

    # So does it for the sink, whose server comes up by another name, and here at another port, too.
    own_postgres.stop()
    produce_json(own_kafka.bootstrap2, "gone", orders(28, 33), key="id")
    statement = repair_of(shop, "sink.go_o", "connection.go_pg")
    own_postgres.start(port=free_port())
    shop.dsn = own_postgres.dsn("gone")
    assert "'new-host'" in statement
    statement = statement.replace("new-host", "localhost") + f", SET PORT = {own_postgres.port}"
    where, rows, waiting = repair(statement, "sink.go_o")
    assert where.startswith("after step ") and rows <= 5 <= rows + waiting
    shop.sent = 33
    shop.arrive()

"""Changes to a new connection with the same upstream, and servers that move."""

from __future__ import annotations

from typing import Any

import pytest

from examples.servers import KafkaBroker, PostgresServer, create_topic
from examples.servers.ports import free_port
from tests.integration.orders_shop import OrdersShop
from tests.support import Project, eventually, kafka_connection, orders_sink, orders_source


class Shop(OrdersShop):
    """Rows from a topic into a table of a server that is only this test's."""

    def __init__(self, project: Project, kafka: KafkaBroker, server: PostgresServer, topic: str, name: str):
        super().__init__(project, kafka, server, lambda *_: topic, name)
        server.create_database(name)
        self.create_tables("o")
        self.execute("CREATE ROLE other_user SUPERUSER LOGIN PASSWORD 'other-word'")
        self.orders, self.sent = topic, 0
        self.secrets = {"MO_PASSWORD": server.password, "MO_OTHER": "other-word"}

    def connection(self, name: str) -> str:
        return super().connection(name).replace("TEST_PG_PASSWORD", "MO_PASSWORD")

    def more(self, bootstrap: str = "") -> None:
        self.produce(self.orders, self.sent, self.sent + 10, bootstrap)
        self.sent += 10

    def arrive(self) -> None:
        self.arrived(self.sent, "o")

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
    shop: OrdersShop, own_postgres: PostgresServer
) -> None:
    project, kafka = shop.project, shop.kafka
    own = Shop(project, kafka, own_postgres, shop.topic("moved"), shop.database)
    source = orders_source("mo_s", f"{{type: kafka, brokers: ['{kafka.bootstrap}']}}", own.orders)
    project.write("mo", f"sources:\n{source}sinks:\n{orders_sink('mo_o', 'mo_s', 'mo_pg', 'o')}")
    connections = project.write("mo_pg", "connections:\n" + own.connection("mo_pg"))
    project.apply(environment=own.secrets)
    own.more()
    own.arrive()
    ids = {a: q["id"] for a, q in project.queries().items()}
    runs = project.run_ids("mo_")

    # Another server with such a table: refused before anything is committed.
    shop.create_tables("o")
    other = project.write("mo_other", "connections:\n" + shop.connection("mo_other"))
    state = project.state_bytes()
    refused = own.alter("ALTER SINK mo_o SET CONNECTION mo_other", code=7)
    assert [(d["code"], d["address"]) for d in refused["diagnostics"]] == [("MZ043", "sink.mo_o")]
    assert project.state_bytes() == state and project.run_ids("mo_") == runs
    other.unlink()

    # The same servers under new names: the source is described as before and runs on; the sink, as another
    # user, restarts from its checkpoint.
    new = own.connection("mo_pg2").replace("MO_PASSWORD", "MO_OTHER")
    new = new.replace(f"user: {own_postgres.user}", "user: other_user")
    project.write("mo_new", "connections:\n" + kafka_connection("mo_k", kafka.bootstrap) + new)
    assert changed(own.alter("ALTER SOURCE mo_s SET CONNECTION mo_k")) == {
        "source.mo_s": ("in-place", "connection changed")
    }
    assert changed(own.alter("ALTER SINK mo_o SET CONNECTION mo_pg2")) == {
        "sink.mo_o": ("restart", "connection changed")
    }
    own.more()
    own.arrive()
    assert project.restarted(runs) == {"sink.mo_o"}
    assert {a: q["id"] for a, q in project.queries().items()} == ids
    # Nothing uses the old ones: the inline one went with its text, and the other can go.
    connections.unlink()
    gone = project.apply(environment=own.secrets)
    assert {(c["address"], c["action"]) for c in gone["changes"]} == {
        ("connection.source_mo_s", "delete"),
        ("connection.mo_pg", "delete"),
    }


FAULT_SECONDS = 15.0  # until status names what is gone: 3 s on a quiet machine


def repair_of(shop: Shop, query: str, connection: str, *conditions: str) -> str:
    """Return the statement that status prints for a query, once it names the connection at fault."""

    def at_fault() -> bool:
        return bool(shop.project.queries()[query]["at_fault"] == connection)

    eventually(f"{connection} is named", at_fault, FAULT_SECONDS)
    health = shop.project.run("status", "--exit-code")
    seen = shop.project.queries()[query]
    assert health.returncode == 8 and seen["fault_since"]
    assert seen["condition"] in ("degraded", *conditions)
    kinds = {"connection-unreachable", *(f"{condition}-query" for condition in conditions)}
    drift = [d for d in shop.project.json("drift")["drift"] if d["kind"] in kinds]
    assert any(query in found.get("addresses", [found["address"]]) for found in drift)
    assert f"{query}: error[MZ154]: {connection} is at fault: " in health.stdout
    assert f'mzplan alter "{seen["repair"]}"' in health.stdout
    return str(seen["repair"])


@pytest.mark.nightly
def test_the_statement_that_status_prints_repairs_a_moved_server(
    project: Project, own_kafka: KafkaBroker, own_postgres: PostgresServer
) -> None:
    create_topic(own_kafka.bootstrap, "gone", partitions=1)
    shop = Shop(project, own_kafka, own_postgres, "gone", "gone")
    connections = kafka_connection("go_k", own_kafka.bootstrap) + shop.connection("go_pg")
    source, sink = orders_source("go_s", "go_k", "gone"), orders_sink("go_o", "go_s", "go_pg", "o")
    project.write("go", f"connections:\n{connections}sources:\n{source}sinks:\n{sink}")
    project.apply(environment=shop.secrets)
    shop.more()
    shop.arrive()

    def resumed(statement: str, query: str) -> dict[str, Any]:
        """Repair a query. Return where it resumed; it has read or waits for the rows of the outage."""
        (found,) = [c["resumed"] for c in shop.alter(statement)["changes"] if c["address"] == query]
        assert found["rows"] <= 10 <= found["rows"] + found["lag"], found  # the lag is measured now and then
        shop.arrive()
        return dict(found)

    # The broker ends, comes up at its other address, and gets more; what status prints repairs the source.
    own_kafka.stop()
    statement = repair_of(shop, "source.go_s", "connection.go_k")
    own_kafka.start(listeners=[2])
    shop.more(own_kafka.bootstrap2)
    assert "'new-host:9092'" in statement
    moved = resumed(statement.replace("new-host:9092", own_kafka.bootstrap2), "source.go_s")
    assert moved["position"] == {"gone": {"0": 10}}

    # So does it for the sink, whose server comes up by another name, and here at another port, too.
    own_postgres.stop()
    shop.more(own_kafka.bootstrap2)
    eventually(
        "the source has read them",
        lambda: sum(step["rows"] or 0 for step in project.json("steps", "source.go_s")["steps"]) == shop.sent,
    )
    statement = repair_of(shop, "sink.go_o", "connection.go_pg", "failed")  # if it has begun to write them
    own_postgres.start(port=free_port())
    shop.dsn = own_postgres.dsn("gone")
    assert "'new-host'" in statement
    statement = statement.replace("new-host", "localhost") + f", SET PORT = {own_postgres.port}"
    assert resumed(statement, "sink.go_o")["step"] >= 0

"""From an inline connection, or another one, to a new one with the same upstream, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from examples.servers import produce_json
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


def ids_in(dsn: str) -> list[int]:
    return [row[0] for row in rows_of(dsn, "SELECT id FROM o ORDER BY id")]


def test_checkpoints_are_kept_and_the_old_connections_can_go(
    project: Project,
    kafka: KafkaBroker,
    postgres: PostgresServer,
    own_postgres: PostgresServer,
    topic: Callable[..., str],
    database: Callable[..., str],
) -> None:
    name, one = database(), topic("moved")
    dsn = postgres.dsn(name)
    execute(dsn, "CREATE TABLE o (id bigint, customer text, amount numeric(10,2))")
    execute(dsn, f"CREATE ROLE r_{name} SUPERUSER LOGIN PASSWORD 'other-user'")
    source = (
        "sources:\n  mo_s:\n    connection: {type: kafka, brokers: ['%s']}\n    topic: %s\n"
        '    format: {type: json, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2)"}\n'
        "    trigger: {interval: 500ms}\n"
    )
    project.write(
        "mo_queries", source % (kafka.bootstrap, one) + "sinks:\n" + orders_sink("mo_o", "mo_s", "mo_pg", "o")
    )
    connections = project.write("mo_pg", "connections:\n" + postgres_connection("mo_pg", postgres, name))
    sent = 0

    def flows() -> None:
        nonlocal sent
        produce_json(kafka.bootstrap, one, orders(sent, sent + 10), key="id")
        sent += 10
        eventually(f"{sent} rows", lambda: len(ids_in(dsn)) >= sent)
        assert ids_in(dsn) == list(range(sent))

    project.apply()
    flows()
    ids = {a: q["id"] for a, q in project.queries().items()}
    runs = project.run_ids("mo_")

    # Another server with such a table: refused before anything is committed.
    elsewhere = own_postgres.create_database(name)
    execute(elsewhere, "CREATE TABLE o (id bigint, customer text, amount numeric(10,2))")
    other = postgres_connection("mo_other", own_postgres, name)
    other = other.replace("TEST_PG_PASSWORD", "MO_PASSWORD")
    with_password = {"MO_PASSWORD": own_postgres.password}
    project.write("mo_other", "connections:\n" + other)
    state = project.state_bytes()
    refused = project.json(
        "alter",
        "ALTER SINK mo_o SET CONNECTION mo_other",
        "--auto-approve",
        code=7,
        environment=with_password,
    )
    assert [(d["code"], d["address"]) for d in refused["diagnostics"]] == [("MZ043", "sink.mo_o")]
    assert project.state_bytes() == state and project.run_ids("mo_") == runs
    (project.folder / "mo_other.yaml").unlink()

    # The same servers under new names: the source is described as before and runs on; the sink, as another
    # user, restarts from its checkpoint.
    new = kafka_connection("mo_k", kafka.bootstrap) + postgres_connection("mo_pg2", postgres, name)
    new = new.replace(f"user: {postgres.user}", f"user: r_{name}").replace("TEST_PG_PASSWORD", "MO_PASSWORD")
    project.write("mo_new", "connections:\n" + new)
    with_password = {"MO_PASSWORD": "other-user"}
    for statement, effect in (
        ("ALTER SOURCE mo_s SET CONNECTION mo_k", "in-place"),
        ("ALTER SINK mo_o SET CONNECTION mo_pg2", "restart"),
    ):
        moved = project.json("alter", statement, "--auto-approve", environment=with_password)
        assert [c["effect"] for c in moved["changes"] if c["action"] == "update"] == [effect]
    flows()
    after = project.run_ids("mo_")
    assert {a for a in after if after[a] != runs[a]} == {"sink.mo_o"}
    assert {a: q["id"] for a, q in project.queries().items()} == ids
    # Nothing uses the old ones: the inline one went with its text, and the other can go.
    connections.unlink()
    gone = project.apply(environment=with_password)
    assert {(c["address"], c["action"]) for c in gone["changes"]} == {
        ("connection.source_mo_s", "delete"),
        ("connection.mo_pg", "delete"),
    }
    flows()

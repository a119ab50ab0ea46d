"""ALTER statements and rotated secrets on real Kafka, PostgreSQL and Spark: break, refuse, repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from examples.servers import produce_json
from tests.support import (
    Project,
    eventually,
    execute,
    ids_in,
    kafka_connection,
    orders,
    orders_sink,
    orders_source,
)

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer

Make = Callable[..., str]


def files(project: Project) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in project.folder.glob("*.yaml")}
    return {**found, "state": project.state_bytes()}


def test_break_refuse_and_repair(
    project: Project,
    kafka: KafkaBroker,
    postgres: PostgresServer,
    topic: Make,
    database: Make,
    tmp_path: Path,
) -> None:
    """A connection that a source and a sink share, a broker that moves, a password that is rotated."""
    name, orders_in, orders_out = database(), topic("alter-in"), topic("alter-out")
    dsn = postgres.dsn(name)
    secret = tmp_path / "password"
    secret.write_text("first-word\n")
    role = f"al_{name}"[:60]
    execute(dsn, f"CREATE ROLE {role} LOGIN PASSWORD 'first-word'")
    execute(dsn, f"GRANT CREATE ON DATABASE {name} TO {role}")
    execute(dsn, "CREATE TABLE o (id bigint, customer text, amount numeric(10,2))")
    execute(dsn, f"GRANT ALL ON o TO {role}")
    produce_json(kafka.bootstrap, orders_in, orders(0, 20), key="id")
    pg = (
        f"  al_pg:   # the shop's\n    type: postgres\n    host: 127.0.0.1\n    port: {postgres.port}\n"
        f"    database: {name}\n    user: {role}\n    password: '${{file:{secret}}}'   # rotated each month\n"
    )
    project.write(
        "alter",
        "connections:\n" + kafka_connection("al_k", kafka.bootstrap) + pg
        + "sources:\n" + orders_source("al_s", "al_k", orders_in)
        + "sinks:\n" + orders_sink("al_o", "al_s", "al_pg", "o")
        + f"  al_back: {{from: al_s, connection: al_k, topic: {orders_out}, trigger: {{interval: 500ms}}}}\n",
    )  # fmt: skip
    project.apply()
    eventually("20 rows", lambda: ids_in(dsn, "o") == list(range(20)))

    def alter(statement: str, *options: str, code: int = 0) -> dict[str, list[dict[str, str]]]:
        found: dict[str, list[dict[str, str]]] = project.json(
            "alter", statement, "--auto-approve", *options, code=code
        )
        return found

    # Broken: refused, and each dependent is named; nothing is changed, and every query runs on.
    before, running = files(project), project.run_ids("al_")
    refused = alter("ALTER CONNECTION al_k SET BROKER = '127.0.0.1:1'", code=1)
    (cause,) = refused["diagnostics"]
    assert cause["addresses"] == ["sink.al_back", "source.al_s"]
    assert {d["code"] for d in refused["diagnostics"]} == {"MZ050"}
    assert files(project) == before and project.run_ids("al_") == running

    # Moved to the broker's other address: its source and its sink restart, the other sink does not.
    moved = alter(f"ALTER CONNECTION al_k SET BROKERS = ('{kafka.bootstrap2}')")
    assert {c["address"] for c in moved["changes"]} == {"connection.al_k", "source.al_s", "sink.al_back"}
    after = project.run_ids("al_")
    assert {a for a in after if after[a] != running[a]} == {"source.al_s", "sink.al_back"}
    assert project.json("alter", "VALIDATE CONNECTION al_k")["connections"][0]["queries"] == [
        "sink.al_back",
        "source.al_s",
    ]

    # Committed without validation: the runner rejects it before it stops anything, and rows go on flowing.
    broken = alter("ALTER CONNECTION al_pg SET PORT = 1 WITH (VALIDATE = false)", "--wait", "60s", code=8)
    assert [p["condition"] for p in broken["pending"]] == ["rejected"]
    produce_json(kafka.bootstrap, orders_in, orders(20, 30), key="id")
    eventually("the rejected change stops nothing", lambda: ids_in(dsn, "o") == list(range(30)))
    alter(f"ALTER CONNECTION al_pg SET PORT = {postgres.port}")
    text = (project.folder / "alter.yaml").read_text()
    assert "# rotated each month" in text and f"    port: {postgres.port}\n" in text

    # Rotated behind its reference: exactly its user restarts, from its checkpoint.
    assert project.json("plan")["changes"] == []
    execute(dsn, f"ALTER ROLE {role} PASSWORD 'second-word'")
    secret.write_text("second-word\n")
    planned = project.json("plan")
    assert [(c["address"], c["action"]) for c in planned["changes"]] == [("sink.al_o", "restart")]
    assert [(d["address"], d["kind"]) for d in planned["drift"]] == [("sink.al_o", "secret-rotated")]
    running = project.run_ids("al_")
    project.apply()
    after = project.run_ids("al_")
    assert {a for a in after if after[a] != running[a]} == {"sink.al_o"}
    produce_json(kafka.bootstrap, orders_in, orders(30, 40), key="id")
    eventually("rows after the rotation, each once", lambda: ids_in(dsn, "o") == list(range(40)))
    eventually("the new value is the one in use", lambda: project.json("plan")["changes"] == [])
    for file in (project.folder / "state").rglob("*"):
        assert not file.is_file() or b"-word" not in file.read_bytes()

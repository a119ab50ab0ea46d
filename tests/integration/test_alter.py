"""ALTER statements and rotated secrets on real Kafka, PostgreSQL and Spark: break, refuse, repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.orders_shop import OrdersShop
from tests.support import Project, eventually, execute, kafka_connection, orders_sink, orders_source


def files(project: Project) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in project.folder.glob("*.yaml")}
    return {**found, "state": project.state_bytes()}


def test_break_refuse_and_repair(shop: OrdersShop, tmp_path: Path) -> None:
    """A connection that a source and a sink share, a broker that moves, a password that is rotated."""
    project, kafka, postgres, name, dsn = shop.project, shop.kafka, shop.postgres, shop.database, shop.dsn
    orders_in, orders_out = shop.topic("alter-in"), shop.topic("alter-out")
    secret = tmp_path / "password"
    secret.write_text("first-word\n")
    role = f"al_{name}"[:60]
    shop.create_tables("o")
    execute(
        dsn,
        f"CREATE ROLE {role} LOGIN PASSWORD 'first-word'; GRANT ALL ON o TO {role}; "
        f"GRANT CREATE ON DATABASE {name} TO {role}",
    )
    shop.produce(orders_in, 0, 20)
    pg = (
        f"  al_pg:   # the shop's\n    type: postgres\n    host: 127.0.0.1\n    port: {postgres.port}\n"
        f"    database: {name}\n    user: {role}\n    password: '${{file:{secret}}}'   # rotated each month\n"
    )
    shop.declare(
        "alter",
        kafka_connection("al_k", kafka.bootstrap) + pg,
        orders_source("al_s", "al_k", orders_in),
        orders_sink("al_o", "al_s", "al_pg", "o")
        + f"  al_back: {{from: al_s, connection: al_k, topic: {orders_out}, trigger: {{interval: 500ms}}}}\n",
    )
    project.apply()
    shop.arrived(20, "o")

    def alter(statement: str, *options: str, code: int = 0) -> Any:
        return project.json("alter", statement, "--auto-approve", *options, code=code)

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
    assert project.restarted(running) == {"source.al_s", "sink.al_back"}
    (valid,) = project.json("alter", "VALIDATE CONNECTION al_k")["connections"]
    assert valid["queries"] == ["sink.al_back", "source.al_s"]

    # Committed without validation: the runner rejects it before it stops anything, and rows go on flowing.
    broken = alter("ALTER CONNECTION al_pg SET PORT = 1 WITH (VALIDATE = false)", "--wait", "60s", code=8)
    assert [p["condition"] for p in broken["pending"]] == ["rejected"]
    (drift,) = project.json("drift")["drift"]
    assert (drift["address"], drift["kind"]) == ("sink.al_o", "outdated-query") and "MZ050" in drift["detail"]
    shop.produce(orders_in, 20, 30)
    shop.arrived(30, "o")  # the rejected change stops nothing
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
    assert project.restarted(running) == {"sink.al_o"}
    shop.produce(orders_in, 30, 40)
    shop.arrived(40, "o")
    eventually("the new value is the one in use", lambda: project.json("plan")["changes"] == [])
    for file in (project.folder / "state").rglob("*"):
        assert not file.is_file() or b"-word" not in file.read_bytes()

"""A PostgreSQL source on Spark: its keyed collection, and a sink below it, through changes of all kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from examples.servers import SshServer
from mzplan.schema.description import Description
from tests.integration.connections.test_ssh_tunnel import PRIVATE, PUBLIC, bastion
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually

SCHEMA = "id BIGINT, customer STRING, amount DECIMAL(12,2), tags ARRAY<STRING>, note STRING"
COLUMNS = "id bigint PRIMARY KEY, customer text, amount numeric(12,2), tags text[], note text"
# In public: below a sink, there may be a schema named like the user.
TABLE = (f"CREATE TABLE public.orders ({COLUMNS})", "ALTER TABLE public.orders REPLICA IDENTITY FULL")


def source(lab: Lab, database: str) -> Description:
    body = {"schema": SCHEMA, "key": ["id"], "snapshot": {"parallelism": 3}}
    return lab.source("postgres", lab.postgres_body(database), tables=["public.orders"], **body)


def through(server: SshServer, description: Description) -> Description:
    """The same source behind a tunnel that was added to its connection."""
    server.authorize(PUBLIC)
    tunnel = bastion(server, private_key=PRIVATE)
    (role, before), *_ = description.connections.items()
    return replace(description, connections={role: replace(before, connections={"ssh_tunnel": tunnel})})


def test_a_collection_follows_its_tables(
    lab: Lab, database: Make, ssh_servers: Callable[[str], SshServer]
) -> None:
    shop, target = database("shop"), database("target")
    lab.execute(
        shop,
        *TABLE,
        "ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL",
        "INSERT INTO orders SELECT g, 'c' || g % 10, g / 20.0, ARRAY['a', NULL], repeat('n', 200) "
        "FROM generate_series(1, 400) g",
    )
    lab.execute(target, "CREATE TABLE big (id bigint PRIMARY KEY, amount numeric(12,2))")
    described = source(lab, shop)
    sink = lab.postgres_sink(
        described, target, "big", mode="upsert", key=["id"], select=["id", "amount"], where="amount > 10"
    )
    assert lab.codes(described) == []

    def holds() -> bool:
        columns = ("id", "customer", "amount", "tags", "note")
        wanted = lab.rows(shop, f"SELECT {', '.join(columns)} FROM orders")
        return sorted(tuple(row[name] for name in columns) for row in lab.read(described)) == sorted(wanted)

    def target_holds() -> bool:
        wanted = lab.rows(shop, "SELECT id, amount FROM orders WHERE amount > 10")
        return sorted(lab.rows(target, "SELECT id, amount FROM big")) == sorted(wanted)

    def steps() -> list[dict[str, Any]]:
        folder = lab.checkpoint(described) / "steps"
        return [json.loads(path.read_text()) for path in sorted(folder.glob("0*.json"))]

    lab.start(described, sink)
    eventually("the snapshot is there", holds, 180)
    lab.execute(
        shop,
        "BEGIN",
        "UPDATE orders SET amount = 500 WHERE id <= 10",
        "UPDATE orders SET amount = 1 WHERE id > 390",
        "UPDATE orders SET id = id + 100000 WHERE id BETWEEN 100 AND 120",
        "DELETE FROM orders WHERE id BETWEEN 200 AND 300",
        "INSERT INTO orders VALUES (200, 'again', 1000, NULL, repeat('x', 50000))",
        "UPDATE orders SET customer = 'large stays' WHERE id = 200",
        "COMMIT",
        "INSERT INTO orders SELECT g, 'many', 200, '{}', 'x' FROM generate_series(30000, 30500) g "
        "ON CONFLICT DO NOTHING",
    )
    eventually("changes are there", holds, 180)
    eventually("and below", target_holds, 180)
    eventually("its slot is measured", lambda: (lab.waits(described) or {}).get("retained_bytes", 0) > 0)
    newest = lab.collection(described).selectExpr("max(_position.lsn)").collect()[0][0]

    # The connection is altered: another role, with its own password, by another name of the host, and through
    # a tunnel. The source continues at its slot.
    role = f"r{described.id}".replace("-", "_")
    lab.stop(described)
    lab.execute(
        shop,
        f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'other'",
        "DELETE FROM orders WHERE id < 5",
        "INSERT INTO orders VALUES (1, 'while down', 7, NULL, NULL)",
    )
    door = ssh_servers("door")
    other = {"host": "localhost", "user": role, "password": "other"}
    moved = through(door, lab.changed(described, other))
    lab.undo_commit(described)  # and the last step had not been noted down
    before = len(steps())
    lab.start(moved)
    eventually("the changes since the stop are there", holds, 180)
    eventually("and below", target_holds, 180)
    assert all(step["kind"] == "changes" for step in [*steps()[before:], steps()[-1]])
    assert door.sessions() > 0
    assert lab.collection(described).where(f"_position.lsn <= {newest}").count() > 700

    # Another database is another upstream, wherever it is.
    lab.execute(target, *TABLE)
    assert lab.codes(lab.changed(moved, {"database": target})) == ["MZ043"]
    lab.stop(moved, sink)
    lab.executor.release_upstream(moved.id, 1)
    assert lab.rows(shop, "SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
    assert lab.rows(shop, "SELECT 1 FROM pg_publication") == []
    lab.execute(
        shop, f"REASSIGN OWNED BY {role} TO {lab.postgres.user}", f"DROP OWNED BY {role}", f"DROP ROLE {role}"
    )

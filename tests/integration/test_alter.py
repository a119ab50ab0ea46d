"""Changes of what runs, on real Kafka, PostgreSQL and Spark. ALTER statements and rotated secrets: break,
refuse, repair. A column that is added: through the whole path, without reading anything again. A canary that
succeeds, is rejected, or makes no progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.orders_shop import OrdersShop
from tests.integration.spark_lab import read_delta
from tests.support import Project, eventually, kafka_connection, orders_sink, orders_source


def files(project: Project) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in project.folder.glob("*.yaml")}
    return {**found, "state": project.state_bytes()}


def test_break_refuse_and_repair(shop: OrdersShop, tmp_path: Path) -> None:
    """A connection that a source and a sink share, a broker that moves, a password that is rotated."""
    project, kafka, postgres, name = shop.project, shop.kafka, shop.postgres, shop.database
    orders_in, orders_out = shop.topic("alter-in"), shop.topic("alter-out")
    secret = tmp_path / "password"
    secret.write_text("first-word\n")
    role = f"al_{name}"[:60]
    shop.create_tables("o")
    shop.execute(
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
    shop.execute(f"ALTER ROLE {role} PASSWORD 'second-word'")
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


def columns_of(shop: OrdersShop, table: str) -> list[str]:
    query = (
        "SELECT column_name FROM information_schema.columns WHERE table_name = '{}' ORDER BY ordinal_position"
    )
    return [row[0] for row in shop.rows(query.format(table))]


def test_an_added_column_restarts_from_the_checkpoints_and_arrives(shop: OrdersShop) -> None:
    project, bootstrap = shop.project, shop.kafka.bootstrap
    shop.create_tables("added")
    name = shop.topic("added", partitions=1)
    added, last = (project.folder / f"lake/ad_{folder}" for folder in ("added", "last"))
    shop.produce(name, 0, 20)

    def count(*targets: str | Path) -> list[int]:
        """How many rows each target has: a table, or the folder of a Delta table."""
        return [
            len(shop.ids(target) if isinstance(target, str) else read_delta(target)) for target in targets
        ]

    def declare(columns: str) -> None:
        shop.declare(
            "added",
            kafka_connection("ad_k", bootstrap)
            + shop.connection("ad_pg") + "  ad_lake: {type: files, path: lake}\n",
            orders_source("ad_s", "ad_k", name).replace("amount DECIMAL(10,2)", columns),
            orders_sink("ad_all", "ad_s", "ad_pg", "added")
            + orders_sink("ad_made", "ad_s", "ad_pg", "public.made", ", create: true")
            + "  ad_delta: {from: ad_s, connection: ad_lake, path: ad_added}\n"
            "  ad_last: {from: ad_s, connection: ad_lake, path: ad_last, mode: upsert, key: [id]}\n",
        )  # fmt: skip

    declare("amount DECIMAL(10,2)")
    project.apply()
    eventually("20 rows in each", lambda: count("added", "made", added, last) == [20] * 4)
    before = project.queries()

    # The table lacks the column: refused, with the ALTER TABLE that it needs, and nothing stops.
    declare("amount DECIMAL(10,2), note STRING")
    refused = project.apply(code=1)
    (problem,) = (one for one in refused["diagnostics"] if one["severity"] == "error")
    assert (problem["code"], problem["address"]) == ("MZ053", "sink.ad_all")
    assert "ADD COLUMN note text" in problem["hint"]
    assert project.run_ids("ad_") == {a: q["run_id"] for a, q in before.items()}
    # A sink that makes its own columns waits for the others: the change is not committed.
    assert columns_of(shop, "made") == ["id", "customer", "amount"]

    shop.execute("ALTER TABLE added ADD COLUMN note text")
    # What came before the change and is not read yet: read once, with the new columns.
    shop.produce(name, 20, 25, note="early")
    planned = project.json("plan")
    assert {c["address"]: (c["action"], c["effect"]) for c in planned["changes"]} == {
        "source.ad_s": ("update", "restart"),
        **{f"sink.ad_{sink}": ("restart", "restart") for sink in ("all", "made", "delta", "last")},
    }
    applied = project.apply()
    assert {c["status"] for c in applied["changes"]} == {"applied"}
    assert columns_of(shop, "made") == ["id", "customer", "amount", "note"]
    shop.produce(name, 25, 40, note="late")
    eventually("40 rows in each", lambda: min(count("added", "made", added, last)) >= 40)
    notes = shop.rows("SELECT note, count(*) FROM added WHERE id NOT BETWEEN 20 AND 24 GROUP BY 1 ORDER BY 1")
    assert notes == [("late", 15), (None, 20)]
    for target in ("added", "made"):
        assert shop.ids(target) == list(range(40))
    for table in (added, last):
        found = {row["id"]: row["note"] for row in read_delta(table)}
        assert len(read_delta(table)) == 40
        assert [found[i] for i in (0, 19, 25, 39)] == [None, None, "late", "late"]

    after = project.queries()
    assert {a: q["id"] for a, q in after.items()} == {a: q["id"] for a, q in before.items()}
    assert {q["condition"] for q in after.values()} == {"running"}
    assert project.apply()["changes"] == []


BROKEN = "ALTER CONNECTION ca_k SET BROKERS = ('127.0.0.1:1') WITH (VALIDATE = false)"


class Pairs:
    """Two sources of one cluster, each with a sink into one database."""

    def __init__(self, shop: OrdersShop):
        self.shop, self.project = shop, shop.project
        self.topics = [shop.topic(f"canary-{i}") for i in range(2)]
        self.sent = 0
        shop.create_tables("t0", "t1")

    def declare(self, broker: str, trigger: str = "500ms") -> None:
        sinks = "".join(orders_sink(f"ca_t{i}", f"ca_s{i}", "ca_pg", f"t{i}") for i in range(2))
        self.shop.declare(
            "canary",
            kafka_connection("ca_k", broker) + self.shop.connection("ca_pg"),
            "".join(orders_source(f"ca_s{i}", "ca_k", self.topics[i]) for i in range(2)),
            sinks.replace("500ms", trigger),
        )

    def flows(self, *tables: str) -> None:
        """Ten rows more in each topic; in these tables (by default both) each row is there once."""
        for topic in self.topics:
            self.shop.produce(topic, self.sent, self.sent + 10)
        self.sent += 10
        self.shop.arrived(self.sent, *(tables or ("t0", "t1")))


def ended(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """How each query that did not converge ended, and why."""
    return {p["address"]: (p["condition"], p["reason"]) for p in document["pending"]}


@pytest.mark.nightly
def test_a_canary_goes_first_while_the_others_process(shop: OrdersShop) -> None:
    project, kafka, pairs = shop.project, shop.kafka, Pairs(shop)
    pairs.declare(kafka.bootstrap)
    project.apply()
    pairs.flows()
    before = project.run_ids("ca_")

    # An address where nobody answers, committed unseen: the runner rejects it for the first alone.
    refused = project.json("alter", BROKEN, "--canary", "--auto-approve", code=8)
    assert [(c["address"], c["holds"]) for c in refused["canaries"]] == [("source.ca_s0", ["source.ca_s1"])]
    found = ended(refused)
    assert {a: c for a, (c, _) in found.items()} == {"source.ca_s0": "rejected", "source.ca_s1": "pending"}
    assert "ca_k" in found["source.ca_s0"][1] and "source.ca_s0" in found["source.ca_s1"][1]
    pairs.flows()
    assert project.restarted(before) == set()
    assert [d["address"] for d in project.json("drift")["drift"]] == ["source.ca_s0"]
    assert project.run("state", "rollback", "--auto-approve").returncode == 0
    pairs.declare(kafka.bootstrap)
    assert project.apply()["changes"] == [] and project.restarted(before) == set()

    # The broker's other address: the first restarts, then the other.
    pairs.declare(kafka.bootstrap2)
    good = project.apply("--canary")
    causes = {a: q["started_because"]["cause"] for a, q in project.queries().items() if "ca_s" in a}
    assert causes == {"source.ca_s0": "canary", "source.ca_s1": "change"}
    seconds = {c["address"]: c["seconds"] for c in good["changes"] if c["address"] != "connection.ca_k"}
    assert seconds["source.ca_s0"] < seconds["source.ca_s1"]
    assert project.restarted(before) == set(seconds)

    pairs.flows()
    _without_progress(pairs)
    pairs.flows()
    assert project.apply()["changes"] == []


def _without_progress(pairs: Pairs) -> None:
    """The first can't write, for its table is locked: it goes back, and the other runs on all the time."""
    project = pairs.project
    before = project.run_ids("ca_")
    pairs.declare(pairs.shop.kafka.bootstrap2, trigger="400ms")
    with psycopg.connect(pairs.shop.dsn) as lock:
        lock.execute("LOCK TABLE t0 IN ACCESS EXCLUSIVE MODE")
        pairs.flows("t1")
        found = ended(project.apply("--canary", "--canary-wait", "3s", code=8))
        assert set(found) == {"sink.ca_t0", "sink.ca_t1"}
        assert found["sink.ca_t0"][0] == "failed" and "within 3 s" in found["sink.ca_t0"][1]
        pairs.flows("t1")
        assert project.restarted(before) <= {"sink.ca_t0"}
        lock.rollback()
    pairs.flows()
    queries = project.queries()
    assert queries["sink.ca_t0"]["started_because"]["detail"].startswith("back: It made no progress")
    assert queries["sink.ca_t1"]["held"] and queries["sink.ca_t0"]["condition"] == "failed"
    # The next apply goes on with both.
    assert project.apply()["resuming"] == ["sink.ca_t0", "sink.ca_t1"]
    assert project.restarted(before) == {"sink.ca_t0", "sink.ca_t1"}

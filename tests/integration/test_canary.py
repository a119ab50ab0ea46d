"""One query first, on real Kafka, PostgreSQL and Spark: good, rejected, and without progress."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.integration.orders_shop import OrdersShop
from tests.support import kafka_connection, orders_sink, orders_source

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

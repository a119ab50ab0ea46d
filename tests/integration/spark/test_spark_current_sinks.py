"""Sinks of current views, also of one that reads two others: PostgreSQL and Kafka get updates and deletes."""

from __future__ import annotations

import json

import pytest

from tests.integration.committed import committed
from tests.integration.spark.test_spark_current import NAMED, NAMED_SCHEMA, SCHEMA, TOTALS, opened
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually

TRIGGER = {"interval": "1s"}  # five queries on two cores


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_deletes_reach_the_sinks_of_a_view_and_of_a_diamond(lab: Lab, topic: Make, database: Make) -> None:
    shop, output, name = opened(lab), topic(partitions=1), database()
    lab.execute(name, "CREATE TABLE shares (id bigint PRIMARY KEY, city text, total bigint)")
    totals = shop.named("totals", shop.view(TOTALS, SCHEMA, "city", "orders customers", trigger=TRIGGER))
    named = shop.named("named", shop.view(NAMED, NAMED_SCHEMA, "id", "orders customers", trigger=TRIGGER))
    both = shop.view(
        *("SELECT n.id, n.city, t.total FROM named n JOIN totals t USING (city)",),
        *("id BIGINT, city STRING, total BIGINT", "id", "named totals"),
        trigger=TRIGGER,
    )
    shares = lab.postgres_sink(both, name, "shares", mode="upsert", key=["id"], trigger=TRIGGER)
    records = lab.kafka_sink(totals, output, mode="upsert", key=["city"], trigger=TRIGGER)

    def table() -> list[dict[str, object]]:
        rows = lab.rows(name, "SELECT * FROM shares ORDER BY id")
        return [dict(zip(("id", "city", "total"), row, strict=True)) for row in rows]

    def latest() -> list[dict[str, object]]:
        values = {key: value for _, key, value in committed(lab.kafka.bootstrap, output)}
        return [value for _, value in sorted(values.items(), key=str) if value is not None]

    def follow() -> None:
        shop.agrees(totals, named, both)
        wanted = [sorted(map(json.loads, shop.rows(view)), key=str) for view in (both, totals)]
        eventually("the table follows", lambda: sorted(table(), key=str) == wanted[0])
        eventually("the topic follows", lambda: sorted(latest(), key=str) == wanted[1])

    lab.start(totals, named, both, shares, records)
    follow()
    assert {row["city"] for row in table()} == {"Bonn", "Rome"}
    shop.sql("DELETE FROM {customers} WHERE customer = 'b'")  # the only one in Rome
    shop.sql("UPDATE {orders} SET amount = 50 WHERE id = 2")
    follow()
    assert {row["city"] for row in table()} == {"Bonn"}
    assert [key for _, key, value in committed(lab.kafka.bootstrap, output) if value is None] == ["Rome"]
    shop.insert("customers", "'z', 'Rome'")  # its order came first
    follow()
    assert {row["id"] for row in table()} == {1, 2, 4}
    lab.finish(totals, named, both, shares, records)

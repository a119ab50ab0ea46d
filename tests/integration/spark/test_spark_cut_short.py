"""A step of which not all rows can be read: nothing of it is written, by the sinks whose tasks commit it."""

from __future__ import annotations

import pytest

from tests.integration.committed import committed
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually

BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
# Of each row: 9 MB in all, more than waits on the way into a task, so that it has begun before they end.
TEXT = "ann " * 7500


@pytest.mark.nightly
def test_a_step_that_can_not_be_read_to_its_end_is_not_written(lab: Lab, topic: Make, database: Make) -> None:
    name, output, shop = topic(partitions=1), topic(), database()
    lab.execute(shop, "CREATE TABLE orders (id bigint, customer text, amount numeric(10,2))")
    source = lab.kafka_source(name)
    lab.start(source)
    for first, last in ((0, 300), (300, 310)):  # two files, of which Spark reads the larger one first
        lab.produce(name, *({"id": i, "customer": TEXT} for i in range(first, last)))
        eventually("the rows are there", lambda last=last: lab.count(source) == last)  # type: ignore[misc]
    lab.finish(source)
    # The newest; a first step without rows has left one that the table does not have.
    lost = max(lab._collection(source).glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    away = lost.with_suffix(".away")
    lost.rename(away)

    def seen() -> list[list[int]]:
        """The ids in the topic, and in the table."""
        sent = [value["id"] for _, _, value in committed(lab.kafka.bootstrap, output)]
        return [sorted(sent), sorted(id_ for (id_,) in lab.rows(shop, "SELECT id FROM orders"))]

    sinks = (lab.kafka_sink(source, output), lab.postgres_sink(source, shop, "orders"))
    spark = lab.spark
    before = spark.conf.get(BATCH)
    spark.conf.set(BATCH, "50")  # so that whole batches have come when there are no more
    try:
        lab.start(*sinks)
        for sink in sinks:
            assert lost.name in (lab.ended(sink).error or "")  # why, and not only that rows are missing
        assert seen() == [[], []]
        lab.stop(*sinks)
        away.rename(lost)
        lab.start(*sinks, epoch=2)
        eventually("all rows are there", lambda: all(len(set(ids)) == 310 for ids in seen()))
    finally:
        spark.conf.set(BATCH, str(before))
    assert seen() == [[*range(310)]] * 2

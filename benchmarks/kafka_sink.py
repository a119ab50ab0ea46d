"""Collection → Kafka: mzplan's exactly-once sink compared with Spark's own at-least-once Kafka writer.

Both read the same collection in the same session, with the same trigger and the same limit per micro-batch.
Both write the same JSON for each row, to a new topic each time.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.engine import Engine, describe_sink, describe_source
from benchmarks.figures import Rounds, Table, alternate, rate, ratio, say, verdict
from benchmarks.stage import Stage, wait_until
from examples.servers import create_topic, delete_topic
from mzplan.schema.description import Description

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONS = 4
COLUMNS = "id BIGINT, customer STRING, amount DECIMAL(10,2), quantity INT, ts TIMESTAMP, note STRING"
KEYS: tuple[list[str], ...] = ([], ["customer"])


@dataclass(frozen=True, slots=True)
class Size:
    """The number of rows and files of the collection, and the number of files per micro-batch."""

    records: int
    files: int
    files_per_batch: int
    rounds: Rounds


FULL = Size(records=1_000_000, files=8, files_per_batch=2, rounds=Rounds(1, 5))
SMALL = Size(records=500, files=2, files_per_batch=2, rounds=Rounds(0, 1))


def measure(stage: Stage) -> Table:
    size = SMALL if stage.small else FULL
    source = describe_source(
        "kafka", _connection(stage), topic="unused", format={"type": "json", "schema": COLUMNS}
    )
    _fill(stage.engine, stage.engine.collection(source), size)
    return Table(
        ("key", "exactly once, rows/s", "Spark's, at least once, rows/s", "× Spark's", "aim"),
        [_compare(stage, source, key, size) for key in KEYS],
    )


def _compare(stage: Stage, source: Description, key: list[str], size: Size) -> tuple[str, ...]:
    engine, bootstrap = stage.engine, stage.kafka.bootstrap

    def topic() -> str:
        name = f"t{uuid.uuid4().hex}"
        create_topic(bootstrap, name, PARTITIONS)
        return name

    def ours() -> float:
        name = topic()
        body = {"topic": name, "max_files_per_trigger": size.files_per_batch, **({"key": key} if key else {})}
        seconds = engine.ours(describe_sink(source, "kafka", _connection(stage), **body))
        _drop(bootstrap, name, size.records)
        return seconds

    def sparks() -> float:
        name = topic()
        seconds = engine.theirs(
            lambda: _by_hand(engine, bootstrap, engine.collection(source), name, key, size.files_per_batch)
        )
        _drop(bootstrap, name, size.records)
        return seconds

    title = key[0] if key else "none"
    say(f"  key: {title}")
    taken = alternate({"exactly once": ours, "Spark's": sparks}, size.rounds)
    times = ratio(taken["Spark's"], taken["exactly once"])
    rates = (rate(size.records, taken[side]) for side in ("exactly once", "Spark's"))
    return (title, *rates, f"{times:.2f}", verdict("0.60", times >= 0.6))


def _connection(stage: Stage) -> dict[str, Any]:
    return {"type": "kafka", "brokers": [stage.kafka.bootstrap]}


def _by_hand(
    engine: Engine, bootstrap: str, collection: str, topic: str, key: list[str], files: int
) -> DataStreamWriter:
    from pyspark.sql import functions as f

    rows = engine.spark.readStream.format("delta").option("maxFilesPerTrigger", files)
    values = rows.load(collection).drop("_position")
    value = f.to_json(f.struct("*"), {"ignoreNullFields": "false"}).alias("value")
    records = values.select(*(f.col(name).alias("key") for name in key), value)
    writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return writer.option("topic", topic).option("kafka.linger.ms", "5")


def _fill(engine: Engine, path: str, size: Size) -> None:
    from pyspark.sql import functions as f

    rows = engine.spark.range(0, size.records, 1, size.files).select(
        "id",
        f.concat(f.lit("customer "), f.col("id") % 5000).alias("customer"),
        (f.col("id") % 100_000 / 100).cast("decimal(10,2)").alias("amount"),
        (f.col("id") % 7).cast("int").alias("quantity"),
        f.timestamp_seconds(f.lit(1_767_600_000) + f.col("id")).alias("ts"),
        f.lit("left at the door, as always").alias("note"),
        f.struct(
            f.lit(0).alias("partition"), f.col("id").alias("offset"), f.current_timestamp().alias("timestamp")
        ).alias("_position"),
    )
    rows.write.format("delta").save(path)


def _drop(bootstrap: str, topic: str, records: int) -> None:
    """Check that the topic has all rows, then delete it. Each transaction adds a marker to a partition."""
    from confluent_kafka import Consumer, TopicPartition

    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})

    def rows() -> int:
        return sum(int(consumer.get_watermark_offsets(place, timeout=10)[1]) for place in places)

    # The broker writes a transaction's markers after its answer. The rows count only from then on.
    wait_until(f"{records} rows in {topic}", lambda: rows() >= records)
    assert rows() <= records + 100, rows()
    consumer.close()
    delete_topic(bootstrap, topic)

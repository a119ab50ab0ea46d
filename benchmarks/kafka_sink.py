"""Collection → Kafka: mzplan's sink, exactly once, against Spark's own Kafka writer, at least once.

Both read the same collection in the same session, with the same trigger and the same limit for a micro-batch,
make the same JSON of each row, and write a new topic each time.
"""

from __future__ import annotations

import statistics
import uuid

from benchmarks.engine import Engine, describe_sink, describe_source
from benchmarks.stage import alternate, kafka_at, ratio, say, scratch, verdict
from examples.servers import create_topic, delete_topic

RECORDS = 1_000_000
PARTITIONS = 4
FILES = 8
FILES_PER_BATCH = 2
WARM_UP = 1
ROUNDS = 5
COLUMNS = "id BIGINT, customer STRING, amount DECIMAL(10,2), quantity INT, ts TIMESTAMP, note STRING"
KEYS = ([], ["customer"])


def main() -> None:
    say(f"kafka_sink: {RECORDS:,} rows, {RECORDS * FILES_PER_BATCH // FILES:,} in a micro-batch")
    with scratch() as folder, kafka_at(folder) as kafka, Engine(folder, {}, {}) as engine:
        connection = {"type": "kafka", "brokers": [kafka.bootstrap]}
        source = describe_source(
            "kafka", connection, topic="unused", format={"type": "json", "schema": COLUMNS}
        )
        collection = engine.collection(source)
        _fill(engine, collection)
        for key in KEYS:
            _compare(engine, kafka.bootstrap, source, collection, key)


def _compare(engine, bootstrap, source, collection, key) -> None:  # type: ignore[no-untyped-def]
    connection = {"type": "kafka", "brokers": [bootstrap]}

    def topic() -> str:
        name = f"t{uuid.uuid4().hex}"
        create_topic(bootstrap, name, PARTITIONS)
        return name

    def ours() -> float:
        name = topic()
        body = {"topic": name, "max_files_per_trigger": FILES_PER_BATCH, **({"key": key} if key else {})}
        seconds = engine.ours(describe_sink(source, "kafka", connection, **body))
        _drop(bootstrap, name)
        return seconds

    def sparks() -> float:
        name = topic()
        seconds = engine.theirs(lambda: _by_hand(engine, bootstrap, collection, name, key))
        _drop(bootstrap, name)
        return seconds

    say(f"  keyed by {key[0]}" if key else "  without a key")
    taken = alternate({"exactly once": ours, "Spark's": sparks}, WARM_UP + ROUNDS)
    a, b = taken["exactly once"][WARM_UP:], taken["Spark's"][WARM_UP:]
    rates = [RECORDS / statistics.median(seconds) for seconds in (a, b)]
    share = ratio(b, a)
    say(f"  exactly once {rates[0]:,.0f} rows/s, Spark's at-least-once writer {rates[1]:,.0f} rows/s")
    say(f"  exactly once / Spark's {share:.2f}; {verdict(share >= 0.6)}: 0.60")


def _by_hand(engine, bootstrap, collection, topic, key):  # type: ignore[no-untyped-def]
    from pyspark.sql import functions as f

    rows = engine.spark.readStream.format("delta").option("maxFilesPerTrigger", FILES_PER_BATCH)
    values = rows.load(collection).drop("_position")
    value = f.to_json(f.struct("*"), {"ignoreNullFields": "false"}).alias("value")
    records = values.select(*(f.col(name).alias("key") for name in key), value)
    writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return writer.option("topic", topic).option("kafka.linger.ms", "5")


def _fill(engine: Engine, path: str) -> None:
    from pyspark.sql import functions as f

    rows = engine.spark.range(0, RECORDS, 1, FILES).select(
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


def _drop(bootstrap: str, topic: str) -> None:
    """See that all is there, then make room: each transaction adds its marker to a partition's end."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(place, timeout=10)[1] for place in places]
    consumer.close()
    assert RECORDS <= sum(ends) <= RECORDS + 100, sum(ends)
    delete_topic(bootstrap, topic)


if __name__ == "__main__":
    main()

"""Kafka → collection: mzplan's source against a query that somebody would write by hand.

Both read the same topic from its start in the same session, with the same trigger and the same limit for a
micro-batch, into a new Delta table each time. mzplan's also refuses malformed records (NULL in place of a
value that does not fit is not an answer), and keeps each record's position.
"""

from __future__ import annotations

import statistics
import uuid

from benchmarks.engine import Engine, describe_source
from benchmarks.stage import alternate, kafka_at, ratio, say, scratch, verdict
from examples.servers import create_topic

RECORDS = 1_000_000
PARTITIONS = 4
PER_BATCH = 250_000
WARM_UP = 1
ROUNDS = 5
TOPIC = "orders"
COLUMNS = "id BIGINT, customer STRING, amount DECIMAL(10,2), quantity INT, ts TIMESTAMP, note STRING"


def main() -> None:
    say(f"ingest: {RECORDS:,} JSON records, {PER_BATCH:,} in a micro-batch")
    with scratch() as folder, kafka_at(folder) as kafka, Engine(folder, {}, {}) as engine:
        create_topic(kafka.bootstrap, TOPIC, PARTITIONS)
        _produce(engine, kafka.bootstrap)

        def ours() -> float:
            source = describe_source(
                "kafka",
                {"type": "kafka", "brokers": [kafka.bootstrap]},
                topic=TOPIC,
                format={"type": "json", "schema": COLUMNS},
                max_offsets_per_trigger=PER_BATCH,
            )
            seconds = engine.ours(source)
            _check(engine, engine.collection(source))
            return seconds

        def by_hand() -> float:
            path = str(folder / "by-hand" / uuid.uuid4().hex)
            seconds = engine.theirs(lambda: _by_hand(engine, kafka.bootstrap, path))
            _check(engine, path)
            return seconds

        taken = alternate({"mzplan": ours, "by hand": by_hand}, WARM_UP + ROUNDS)
    a, b = taken["mzplan"][WARM_UP:], taken["by hand"][WARM_UP:]
    rates = [RECORDS / statistics.median(seconds) for seconds in (a, b)]
    times = ratio(b, a)
    say(f"  mzplan {rates[0]:,.0f} rows/s, by hand {rates[1]:,.0f} rows/s")
    say(f"  mzplan / by hand {times:.2f}; {verdict(times >= 0.95)}: 0.95")


def _by_hand(engine: Engine, brokers: str, path: str):  # type: ignore[no-untyped-def]
    from pyspark.sql import functions as f

    records = (
        engine.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", PER_BATCH)
        .load()
    )
    rows = records.select(f.from_json(f.col("value").cast("string"), COLUMNS).alias("j")).select("j.*")
    return rows.writeStream.format("delta").outputMode("append").option("path", path)


def _produce(engine: Engine, brokers: str) -> None:
    from pyspark.sql import functions as f

    rows = engine.spark.range(RECORDS).select(
        "id",
        f.concat(f.lit("customer "), f.col("id") % 5000).alias("customer"),
        (f.col("id") % 100_000 / 100).cast("decimal(10,2)").alias("amount"),
        (f.col("id") % 7).cast("int").alias("quantity"),
        f.timestamp_seconds(f.lit(1_767_600_000) + f.col("id")).alias("ts"),
        f.lit("left at the door, as always").alias("note"),
    )
    values = rows.select(f.to_json(f.struct("*")).alias("value"))
    values.write.format("kafka").option("kafka.bootstrap.servers", brokers).option("topic", TOPIC).save()


def _check(engine: Engine, path: str) -> None:
    """Each record is there once, with values."""
    table = engine.spark.read.format("delta").load(path)
    found = table.selectExpr("count(ts)", "count(DISTINCT id)", "count(*)").first()
    assert found is not None
    assert tuple(found) == (RECORDS, RECORDS, RECORDS), tuple(found)


if __name__ == "__main__":
    main()

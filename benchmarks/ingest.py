"""Kafka → collection: mzplan's source compared with a handwritten query.

Both read the same topic from its start in the same session, with the same trigger and the same limit per
micro-batch, into a new Delta table each time. mzplan's source also refuses malformed records, where the
handwritten query writes NULL, and keeps each record's position.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.engine import Engine, describe_source
from benchmarks.figures import Rounds, Table, alternate, rate, ratio, verdict
from benchmarks.stage import Stage
from examples.servers import create_topic

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONS = 4
TOPIC = "ingest"
COLUMNS = "id BIGINT, customer STRING, amount DECIMAL(10,2), quantity INT, ts TIMESTAMP, note STRING"


@dataclass(frozen=True, slots=True)
class Size:
    """The number of records in all, and per micro-batch."""

    records: int
    per_batch: int
    rounds: Rounds


FULL = Size(records=1_000_000, per_batch=250_000, rounds=Rounds(1, 5))
SMALL = Size(records=500, per_batch=500, rounds=Rounds(0, 1))


def measure(stage: Stage) -> Table:
    size = SMALL if stage.small else FULL
    records = size.records
    engine, brokers = stage.engine, stage.kafka.bootstrap
    create_topic(brokers, TOPIC, PARTITIONS)
    _produce(engine, brokers, records)

    def ours() -> float:
        source = describe_source(
            "kafka",
            {"type": "kafka", "brokers": [brokers]},
            topic=TOPIC,
            format={"type": "json", "schema": COLUMNS},
            max_offsets_per_trigger=size.per_batch,
        )
        seconds = engine.ours(source)
        _check(engine, engine.collection(source), records)
        return seconds

    def by_hand() -> float:
        path = str(engine.folder / "by-hand" / uuid.uuid4().hex)
        seconds = engine.theirs(lambda: _by_hand(engine, brokers, path, size.per_batch))
        _check(engine, path, records)
        return seconds

    taken = alternate({"mzplan": ours, "by hand": by_hand}, size.rounds)
    times = ratio(taken["by hand"], taken["mzplan"])
    return Table(
        ("query", "rows/s", "× by hand", "aim"),
        [
            (
                "mzplan's source",
                rate(records, taken["mzplan"]),
                f"{times:.2f}",
                verdict("0.95", times >= 0.95),
            ),
            ("by hand", rate(records, taken["by hand"]), "1", ""),
        ],
    )


def _by_hand(engine: Engine, brokers: str, path: str, per_batch: int) -> DataStreamWriter:
    from pyspark.sql import functions as f

    records = (
        engine.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    rows = records.select(f.from_json(f.col("value").cast("string"), COLUMNS).alias("j")).select("j.*")
    return rows.writeStream.format("delta").outputMode("append").option("path", path)


def _produce(engine: Engine, brokers: str, records: int) -> None:
    from pyspark.sql import functions as f

    rows = engine.spark.range(records).select(
        "id",
        f.concat(f.lit("customer "), f.col("id") % 5000).alias("customer"),
        (f.col("id") % 100_000 / 100).cast("decimal(10,2)").alias("amount"),
        (f.col("id") % 7).cast("int").alias("quantity"),
        f.timestamp_seconds(f.lit(1_767_600_000) + f.col("id")).alias("ts"),
        f.lit("left at the door, as always").alias("note"),
    )
    values = rows.select(f.to_json(f.struct("*")).alias("value"))
    values.write.format("kafka").option("kafka.bootstrap.servers", brokers).option("topic", TOPIC).save()


def _check(engine: Engine, path: str, records: int) -> None:
    """Check that the table has each record exactly once, with values."""
    table = engine.spark.read.format("delta").load(path)
    found = table.selectExpr("count(ts)", "count(DISTINCT id)", "count(*)").first()
    assert found is not None
    assert tuple(found) == (records, records, records), tuple(found)

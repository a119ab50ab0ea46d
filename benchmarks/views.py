"""Views: three mzplan views compared with handwritten queries that run the same SQL.

Both read the same Delta tables from their start in the same session, with the same trigger, the same limit
per micro-batch and the same settings for state, into a new Delta table each time.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.engine import TRIGGER, Engine
from benchmarks.figures import Rounds, Table, alternate, rate, ratio, verdict
from benchmarks.stage import Stage
from mzplan.model.address import Address
from mzplan.schema.description import CollectionRead, Description

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

COLUMNS = "id BIGINT, customer STRING, amount DECIMAL(10,2), ts TIMESTAMP"
FILES = 4  # files per table, each of which is a micro-batch
PARTITIONS = 4
MARK = {"column": "ts", "delay": "10 minutes"}


@dataclass(frozen=True, slots=True)
class View:
    """A view's SQL, its columns, its inputs, and whether these have watermarks."""

    name: str
    sql: str
    schema: str
    reads: tuple[str, ...] = ("orders",)
    timed: bool = True


VIEWS = (
    View(
        "each row from one row",
        "SELECT id, upper(customer) AS customer, amount * 2 AS twice FROM orders WHERE amount > 1",
        "id BIGINT, customer STRING, twice DECIMAL(12,2)",
        timed=False,
    ),
    View(
        "a windowed aggregation",
        "SELECT customer, window(ts, '1 hour').start AS hour, sum(amount) AS s, count(*) AS n FROM orders "
        "GROUP BY customer, window(ts, '1 hour')",
        "customer STRING, hour TIMESTAMP, s DECIMAL(20,2), n BIGINT",
    ),
    View(
        "a join of two streams",
        "SELECT o.id, o.customer, p.amount FROM orders o JOIN payments p ON o.id = p.id "
        "AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR",
        "id BIGINT, customer STRING, amount DECIMAL(10,2)",
        reads=("orders", "payments"),
    ),
)


@dataclass(frozen=True, slots=True)
class Size:
    """The number of rows per table."""

    rows: int
    rounds: Rounds


FULL = Size(rows=1_000_000, rounds=Rounds(2, 4))
SMALL = Size(rows=1_000, rounds=Rounds(0, 1))


def measure(stage: Stage) -> Table:
    size = SMALL if stage.small else FULL
    engine = stage.engine
    inputs = {name: _input(engine, name, size.rows) for name in ("orders", "payments")}
    table: list[tuple[str, ...]] = []
    for view in VIEWS:
        sides = {
            "mzplan": partial(_ours, engine, view, inputs),
            "by hand": partial(engine.theirs, partial(_by_hand, engine, view, inputs)),
        }
        taken = alternate(sides, size.rounds)
        times = ratio(taken["by hand"], taken["mzplan"])
        rows = size.rows * len(view.reads)
        table += [
            (
                f"mzplan: {view.name}",
                rate(rows, taken["mzplan"]),
                f"{times:.2f}",
                verdict("0.95", times >= 0.95),
            ),
            (f"by hand: {view.name}", rate(rows, taken["by hand"]), "1", ""),
        ]
    return Table(("query", "rows/s", "× by hand", "aim"), table)


def _input(engine: Engine, name: str, rows: int) -> CollectionRead:
    """Write a collection. Each payment follows its order after a minute."""
    from pyspark.sql import functions as f

    read = CollectionRead(
        address=Address("source", name),
        id=f"s{uuid.uuid4().hex[:8]}",
        generation=1,
        type="local",
        body={"schema": COLUMNS},
    )
    later = 60 if name == "payments" else 0
    path, share = engine.path_of(*read.place), rows // FILES
    # One commit per file: files of one commit have no certain order, and rows behind the watermark are
    # dropped.
    for begin in range(0, rows, share):
        made = engine.spark.range(begin, begin + share, 1, 1).select(
            "id",
            f.concat(f.lit("customer "), f.col("id") % 5000).alias("customer"),
            (f.col("id") % 100_000 / 100).cast("decimal(10,2)").alias("amount"),
            f.timestamp_seconds(f.lit(1_767_600_000 + later) + f.col("id") / 10).alias("ts"),
            f.expr("CAST(NULL AS STRUCT<step: BIGINT, row: BIGINT>)").alias("_position"),
        )
        made.write.format("delta").mode("append").save(path)
    return read


def _ours(engine: Engine, view: View, inputs: Mapping[str, CollectionRead]) -> float:
    body: dict[str, Any] = {"query": view.sql, "schema": view.schema, "trigger": TRIGGER}
    if view.timed:
        body |= {"reads": [*view.reads], "watermarks": dict.fromkeys(view.reads, MARK), "state": "1:a"}
    else:
        body |= {"from": view.reads[0]}
    description = Description(
        address=Address("view", "v"),
        id=f"v{uuid.uuid4().hex[:8]}",
        generation=1,
        digest="1:a",
        type="sql",
        body={**body, "max_files_per_trigger": 1},
        reads={name: inputs[name] for name in view.reads},
    )
    return engine.ours(description)


def _by_hand(engine: Engine, view: View, inputs: Mapping[str, CollectionRead]) -> DataStreamWriter:
    session = engine.spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
    session.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    session.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    for name in view.reads:
        rows: DataFrame = (
            session.readStream.format("delta")
            .option("maxFilesPerTrigger", 1)
            .load(engine.path_of(*inputs[name].place))
        )
        (rows.withWatermark("ts", "10 minutes") if view.timed else rows).createOrReplaceTempView(name)
    path = str(engine.folder / "by-hand" / uuid.uuid4().hex)
    return session.sql(view.sql).writeStream.format("delta").outputMode("append").option("path", path)

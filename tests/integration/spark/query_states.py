"""Runs the pairs of tests/cases/state on a real Spark: what a changed query really makes of the old state.

A query runs, changes, and continues from its checkpoint. Beside it, the new query runs over the same
micro-batches from the start. If the state is kept, both write the same rows after the change. If it is mixed
or lost, the first one writes other rows, or Spark refuses.

`python -m tests.integration.spark.query_states FOLDER` runs all pairs on the Spark of its environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mzplan.spark.sql.stream_rules import without_null_matches
from mzplan.spark.views import own_session
from mzplan.warehouse.stored_state import differences, stored_operators
from tests.cases.state_pairs import SCHEMAS, Pair, read_pairs

PAIRS = [pair for pair in read_pairs() if pair.state != "unknown"]

# Spark 4.0 keeps orders that match in their own micro-batch in the state, so no row shows the mixture.
NOT_SHOWN = {("4.0", "semi_to_inner_join")}


def order(id_: int, customer: str, amount: float, number: int, at: str, **other: Any) -> dict[str, Any]:
    region = {"ada": "north", "bob": "south", "cy": "north"}[customer]
    tags = ["a", "b"][: 2 - number % 3] if number else []
    common = {"id": id_, "customer": customer, "region": region, "amount": amount}
    numbers = {"tax": amount / 4 + number, "n": number, "m": number * 3 - 2}
    return {**common, **numbers, "tags": tags, "ts": f"2026-01-01 {at}", **other}


def payment(id_: int, customer: str, paid: float, at: str) -> dict[str, Any]:
    ts = f"2026-01-01 {at}"
    return {"order_id": id_, "customer": customer, "paid": paid, "fee": paid / 8, "ts": ts}


# Before the change; after it; then far in the future, so that all windows and joins end.
BATCHES: list[dict[str, list[dict[str, Any]]]] = [
    {
        "orders": [
            order(1, "ada", 1.00, 0, "10:00:01"),
            order(2, "ada", 6.00, 2, "10:00:05"),
            order(3, "bob", 9.00, 1, "10:00:10"),
            order(4, "cy", -2.00, 3, "10:00:11", m=None),
            order(5, "bob", 2.00, 5, "10:00:12", region=None),
            order(11, "ada", 0.00, 1, "10:00:13", n=None),
        ],
        "payments": [payment(1, "ada", 1.50, "10:00:13"), payment(20, "north", 7.00, "10:00:14")],
    },
    {
        "orders": [
            order(6, "ada", 3.00, 1, "10:00:20"),
            order(7, "ada", 8.00, 4, "10:01:30"),
            order(8, "bob", 1.00, 2, "10:00:21"),
            order(9, "cy", 5.00, 0, "10:00:35"),
            order(10, "cy", 4.00, 6, "10:05:30"),
            order(2, "ada", 2.50, 2, "10:00:22"),
        ],
        "payments": [
            *(payment(2, "ada", 2.50, "10:00:30"), payment(3, "north", 4.00, "10:00:31")),
            *(payment(4, "cy", 3.00, "10:00:32"), payment(8, "bob", 6.00, "10:00:33")),
            payment(1, "bob", 3.00, "10:00:34"),
        ],
    },
    {
        "orders": [order(30, "cy", 1.0, 1, "20:00:00")],
        "payments": [payment(31, "bob", 1.0, "20:00:00")],
    },
]


def add(folder: Path, first: int, end: int) -> None:
    """Add files with the rows of these micro-batches, in their order."""
    for number in range(first, end):
        for name, rows in BATCHES[number].items():
            (folder / name).mkdir(exist_ok=True)
            file = folder / name / f"{number}.json"
            file.write_text("\n".join(json.dumps(row) for row in rows))
            os.utime(file, (number + 1, number + 1))


def start(
    session: SparkSession, sql: str, output: str, folder: Path, checkpoint: str
) -> tuple[StreamingQuery, Counter[str]]:
    """Start a query over the files that it hasn't read, and return it with the rows that it writes."""
    for name, schema in SCHEMAS.items():
        rows = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder / name))
        rows.withWatermark("ts", "1 hour").createOrReplaceTempView(name)
    written: Counter[str] = Counter()

    def write(batch: DataFrame, _: int) -> None:
        written.update(str(tuple(row)) for row in batch.collect())

    writer = without_null_matches(session.sql(sql)).writeStream.outputMode(output).foreachBatch(write)
    writer = writer.option("checkpointLocation", str(folder / checkpoint)).trigger(availableNow=True)
    return writer.start(), written


def refusal(query: StreamingQuery) -> str:
    """Wait for the end of a query, and return why it failed; "" if it didn't."""
    try:
        query.awaitTermination()
    except PySparkException as problem:
        return str(problem)
    return ""


def check(pair: Pair, spark: SparkSession, folder: Path) -> None:
    """Raise AssertionError unless Spark does with the state what the plan says. `folder`: is empty."""
    session = own_session(spark)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    add(folder, 0, 1)
    first = [
        start(session, sql, pair.output, folder, place)[0]
        for sql, place in ((pair.before, "changed"), (pair.after, "fresh"))
    ]
    assert [refusal(query) for query in first] == ["", ""]
    stored = [stored_operators(str(folder / place)) for place in ("changed", "fresh")]
    assert bool(list(differences(*stored))) == (pair.state == "lost")
    add(folder, 1, len(BATCHES) if pair.output == "append" else 2)
    fresh, expected = start(session, pair.after, pair.output, folder, "fresh")
    changed, found = start(session, pair.after, pair.output, folder, "changed")
    assert not refusal(fresh) and expected
    refused = refusal(changed)
    if pair.state == "kept":
        assert not refused and found == expected
    elif (spark.version[:3], pair.name) not in NOT_SHOWN:
        assert refused or found != expected, "the state is as good as that of the new query"
    if pair.state == "mixed":
        assert not refused, f"Spark doesn't resume, so the state is lost: {refused}"


def main(folder: Path) -> int:
    """Check all pairs, and print those that fail. Return the exit code."""
    from mzplan.spark.process.session import open_session

    spark, failed = open_session("pairs", {}), 0
    for pair in PAIRS:
        (folder / pair.name).mkdir()
        try:
            check(pair, spark, folder / pair.name)
        except AssertionError as problem:
            failed += 1
            print(f"{pair.name}: {problem}")
    print(f"{len(PAIRS)} pairs on Spark {spark.version}, {failed} failed")
    spark.stop()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""Relational views computed again: the same rows, other rows, and what can't be told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.merges import merge
from mzplan.schema.description import Description
from mzplan.spark.collections import table_at
from mzplan.spark.progress import late_rows_of
from mzplan.spark.sql.view_sql import rows_by_sql
from mzplan.spark.streams import collection_stream
from mzplan.spark.verification.recomputed_view import RecomputationResult, RecomputedView
from mzplan.warehouse.checkpoints import Checkpoint, DescriptionHistory, StepDescription, collection_path
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.rows.late_rows import rows_behind_watermark
from mzplan.warehouse.step_record import StepRecord
from tests.integration.spark_lab import Lab
from tests.support import refusal

Row = tuple[Any, ...]
INPUTS = {
    "orders": "id BIGINT, customer STRING, amount DECIMAL(10,2), price DOUBLE, ts TIMESTAMP",
    "payments": "id BIGINT, ts TIMESTAMP",
}
POSITION = "STRUCT<step: BIGINT>"
MARK = {"orders": {"column": "ts", "delay": "1 minute"}}
BOTH = {**MARK, "payments": {"column": "ts", "delay": "1 minute"}}
WINDOWS = (
    "SELECT customer, window(ts, '1 minute').end AS until, sum(amount) AS total, count(*) AS n FROM orders "
    "GROUP BY customer, window(ts, '1 minute')"
)
WINDOW_COLUMNS = "customer STRING, until TIMESTAMP, total DECIMAL(20,2), n BIGINT"
WINDOWS_OF_WINDOWS = (
    "SELECT window(w, '2 minutes').end AS until, sum(n) AS n FROM (SELECT window(ts, '1 minute') AS w, "
    "customer, count(*) AS n FROM orders GROUP BY 1, 2) GROUP BY window(w, '2 minutes')"
)
JOIN = (
    "SELECT o.id, o.amount, p.ts AS paid FROM orders o LEFT JOIN payments p ON o.id = p.id AND "
    "p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 MINUTE"
)
JOIN_COLUMNS = "id BIGINT, amount DECIMAL(10,2), paid TIMESTAMP"
AGGREGATES = "sum(amount) AS total, max(ts) AS last, avg(price) AS price"
TOTALS = f"SELECT customer, {AGGREGATES} FROM orders GROUP BY customer"
BY_CUSTOMER: Any = {"output": "update", "key": ["customer"]}


class Shop:
    """Collections of orders and payments, and one view of them, run as a runner would."""

    def __init__(self, lab: Lab, sql: str, schema: str, **body: Any):
        self.lab, self.spark = lab, lab.spark
        sources = [lab.local_source(columns, name) for name, columns in INPUTS.items() if f" {name}" in sql]
        for source in sources:
            lab.executor._collections.ensure(
                self.spark, self.path(source.id), lab.executor._resolve(source, lab.secrets).columns, POSITION
            )
        view = lab.view(sql, schema, sources, **body)
        self.checkpoint = Checkpoint.of(lab.executor._warehouse, *view.place)
        self.set_view(view)
        self.late: dict[int, int] = {}
        lab.executor._collections.ensure(
            self.spark, self.path(view.id), self.query.columns, POSITION, keyed=bool(self.query.keys)
        )

    def set_view(self, description: Description) -> None:
        """Describe the view, as if it had never had another query."""
        self.description = description
        self.query = self.lab.executor._resolve(description, self.lab.secrets)
        self.record_queries(description.body["query"])

    def record_queries(self, *queries: str) -> None:
        """Record the queries that the view has had, each from the step of its number."""
        entries = [
            StepDescription(step=step, digest=f"1:{step}", rows={"query": sql})
            for step, sql in enumerate(queries)
        ]
        self.checkpoint.record_descriptions(DescriptionHistory(tuple(entries)))

    def path(self, id_: str) -> str:
        return collection_path(self.lab.executor._warehouse, id_, 1)

    def _append(self, name: str, rows: Sequence[Row]) -> None:
        columns = INPUTS[name]
        schema = columns.replace("ts TIMESTAMP", "ts STRING").replace("DECIMAL(10,2)", "STRING")
        typed = self.spark.createDataFrame(list(rows), schema)
        casts = (f"CAST({c.split()[0]} AS {c.split()[1]}) AS {c.split()[0]}" for c in columns.split(", "))
        frame = typed.selectExpr(*casts, f"CAST(NULL AS {POSITION}) AS _position")
        place = self.path(self.description.reads[name].id)
        frame.coalesce(1).write.format("delta").mode("append").save(place)

    def run(self, *orders: Row, payments: Sequence[Row] = ()) -> None:
        """Append these rows, and read them."""
        if orders:
            self._append("orders", orders)
        if payments:
            self._append("payments", payments)
        session: SparkSession = self.spark.newSession()
        session.conf.set("spark.sql.shuffle.partitions", "2")
        begins = not self.checkpoint.log.has_begun()
        streams = {
            name: collection_stream(session, self.query, read, self.path(read.id), begins=begins)
            for name, read in self.description.reads.items()
        }
        rows = rows_by_sql(session, streams, {}, self.query, POSITION)
        collection, keys = self.path(self.description.id), self.query.keys

        def update(batch: DataFrame, step: int) -> None:
            merge(batch, step, table_at(collection), keys)

        writer = rows.writeStream.format("delta").option("path", collection)
        if keys:
            writer = rows.writeStream.outputMode("update").foreachBatch(update)
        started = (
            writer.option("checkpointLocation", self.checkpoint.spark).trigger(availableNow=True).start()
        )
        started.awaitTermination()
        for progress in map(json.loads, (p.json for p in started.recentProgress)):
            self.late[progress["batchId"]] = late_rows_of(progress) or 0

    def records(self) -> list[StepRecord]:
        found, late = [], 0
        for record in self.lab.history(self.description).committed(0, None):
            late += self.late.get(record.step, 0)
            found.append(replace(record, late=late))
        return found

    def compare(self, record: StepRecord | None = None) -> RecomputationResult:
        view = RecomputedView(self.spark, self.query, self.lab.executor._warehouse, Connectors())
        return view.compare(record or self.records()[-1])


def at(time: str) -> str:
    return f"2026-01-01T00:{time}Z"


def order(id_: int, customer: str, amount: str, time: str, price: float = 0.1) -> Row:
    return (id_, customer, amount, price, at(time))


def why_not(shop: Shop) -> str:
    """Why the view can't be computed again."""
    problem = refusal(lambda: shop.compare(StepRecord(step=4, version=1)))
    assert problem.code == "MZ092"
    return problem.detail


MAY_CHANGE = {
    "SELECT customer, first(amount) AS x FROM orders GROUP BY customer": "first",
    "SELECT customer, count(*) AS x, now() AS t FROM orders GROUP BY customer": "changes each time",
    "SELECT customer, count(*) AS x FROM orders WHERE rand() < 2 GROUP BY customer": "different value",
    "SELECT customer, CAST(avg(price) AS BIGINT) AS x FROM orders GROUP BY customer": "floating-point",
    "SELECT customer, count(*) AS x FROM orders GROUP BY customer HAVING avg(price) > 1": "floating-point",
}


def test_totals_are_compared_with_those_of_all_rows(lab: Lab) -> None:
    """All but sums of floating-point numbers."""
    schema = "customer STRING, total DECIMAL(20,2), last TIMESTAMP, price DOUBLE"
    shop = Shop(lab, TOTALS, schema, **BY_CUSTOMER)
    shop.run(order(1, "a", "1.50", "00:00"), order(2, "b", "2", "00:10"))
    shop.run(order(3, "a", "4", "00:20", 0.2))
    last = shop.records()[-1]
    shop.record_queries(TOTALS.replace("orders", "sales"), TOTALS)  # its input was renamed
    found = shop.compare(last)
    assert found.is_equal and (found.expected_rows, found.collection_rows) == (2, 2)
    assert found.not_compared == ("price",)

    table = table_at(shop.path(shop.description.id))
    shop.spark.sql(f"UPDATE {table} SET total = 7 WHERE customer = 'b'")
    found = shop.compare(replace(last, version=(last.version or 0) + 1))
    assert found.is_wrong and (found.missing, found.more) == (1, 1)
    assert [example[:32] for example in found.examples] == [
        '- {"customer":"b","total":2.00,"',
        '+ {"customer":"b","total":7.00,"',
    ]

    with pytest.raises(GoneError, match="hundred steps"):
        shop.compare(replace(last, step=400))
    shop.record_queries(TOTALS, f"{TOTALS} HAVING sum(amount) > 1")
    assert "a different one at step 1" in why_not(shop)
    for sql, why in MAY_CHANGE.items():
        shop.set_view(replace(shop.description, body={**shop.description.body, "query": sql}))
        assert why in why_not(shop), sql


def require_equal(shop: Shop, rows: int) -> None:
    """Every step is equal; in the last one, the view has this many rows."""
    results = [shop.compare(record) for record in shop.records()]
    assert all(found.is_equal and not found.explanation for found in results)
    assert results[-1].collection_rows == rows


@pytest.mark.nightly
def test_closed_windows_are_compared(lab: Lab) -> None:
    shop = Shop(lab, WINDOWS, WINDOW_COLUMNS, watermarks=MARK)
    shop.run(order(1, "a", "1", "00:10"), order(2, "a", "2", "00:50"), order(3, "b", "3", "03:00"))
    shop.run(order(4, "b", "4", "03:30"), order(5, "c", "5", "06:00"))
    shop.run(order(6, "c", "6", "06:10"))
    assert [record.step for record in shop.records()] == shop.checkpoint.log.planned()
    require_equal(shop, rows=2)


@pytest.mark.nightly
def test_windows_of_windows_are_compared(lab: Lab) -> None:
    shop = Shop(lab, WINDOWS_OF_WINDOWS, "until TIMESTAMP, n BIGINT", watermarks=MARK)
    shop.run(order(1, "a", "1", "00:10"), order(2, "b", "2", "01:50"), order(3, "b", "3", "03:00"))
    shop.run(order(4, "b", "4", "04:30"), order(5, "c", "5", "07:00"))
    shop.run(order(6, "c", "6", "07:10"))
    require_equal(shop, rows=3)


@pytest.mark.nightly
def test_a_join_of_two_streams_is_compared(lab: Lab) -> None:
    shop = Shop(lab, JOIN, JOIN_COLUMNS, watermarks=BOTH)
    shop.run(order(1, "a", "1", "00:10"), order(2, "a", "2", "00:20"))
    shop.run(payments=[(1, at("00:30"))])
    shop.run(order(3, "a", "3", "09:00"), payments=[(9, at("09:00"))])
    shop.run(order(4, "a", "3", "09:10"))
    require_equal(shop, rows=2)


@pytest.mark.nightly
def test_late_rows_explain_no_more_differences_than_there_are_late_rows(lab: Lab) -> None:
    shop = Shop(lab, WINDOWS, WINDOW_COLUMNS, watermarks=MARK)
    shop.run(order(1, "a", "1", "00:10"), order(2, "b", "3", "03:00"))
    shop.run(order(3, "b", "3", "03:10"))
    shop.run(order(4, "a", "2", "00:20"), order(5, "b", "3", "09:00"))
    shop.run(order(6, "b", "3", "09:10"))
    record = shop.records()[-1]
    assert record.late == 1
    found = shop.compare(record)
    assert (found.missing, found.more, found.is_wrong) == (1, 1, False)
    assert found.explanation == "The view has dropped 1 late row, which its query counts when it runs again."
    assert shop.compare(replace(record, late=None)).is_wrong  # an unknown number excuses nothing
    count = partial(rows_behind_watermark, lab.executor._warehouse, shop.description, shop.checkpoint.log)
    assert [count(r.step) for r in shop.records()] == [shop.late[r.step] for r in shop.records()]
    assert shop.compare(replace(record, late=0)).is_wrong
    more = shop.spark.read.format("delta").load(shop.path(shop.description.id)).limit(1)
    more.unionAll(more).write.format("delta").mode("append").save(shop.path(shop.description.id))
    doubled = shop.compare(replace(record, version=(record.version or 0) + 1))
    assert doubled.is_wrong and doubled.more == 3


@pytest.mark.nightly
def test_a_row_that_no_longer_meets_having_is_explained(lab: Lab) -> None:
    sql = "SELECT customer, count(*) AS n FROM orders GROUP BY customer HAVING count(*) < 2"
    shop = Shop(lab, sql, "customer STRING, n BIGINT", **BY_CUSTOMER)
    shop.run(order(1, "a", "1", "00:00"), order(2, "b", "2", "00:10"))
    shop.run(order(3, "a", "1", "00:00"))
    found = shop.compare()
    assert (found.missing, found.more, found.is_wrong) == (0, 1, False)
    assert found.explanation.startswith("Rows of groups that no longer meet a condition")

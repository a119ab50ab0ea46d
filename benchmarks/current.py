"""Current views: a step after a few changed rows, compared with a full recomputation that overwrites a table.

Both compute the same query over the same tables in the same session. The rows and bytes that a step writes
come from the commits of the two tables, and the bytes that it reads from the metrics of Spark's tasks.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine import TRIGGER, Engine
from benchmarks.figures import Table, say, verdict
from benchmarks.stage import Stage
from mzplan.controller.executor import QueryName
from mzplan.model.address import Address
from mzplan.schema.description import CollectionRead, Description
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.spark.collections import Collections, table_at
from mzplan.warehouse.collection_log import CollectionLog

POSITION = "STRUCT<at: BIGINT>"
TABLES = {
    "orders": ("id BIGINT, customer BIGINT, amount DECIMAL(10,2)", "id"),
    "customers": ("customer BIGINT, city STRING", "customer"),
}
VIEWS = {
    "an aggregation": (
        "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
        "customer BIGINT, n BIGINT, total DECIMAL(20,2)",
        "customer",
        ("orders",),
    ),
    "a join": (
        "SELECT o.id, o.amount, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.customer",
        "id BIGINT, amount DECIMAL(10,2), city STRING",
        "id",
        ("orders", "customers"),
    ),
}


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of orders, one after the other; there is a customer for each ten orders.

    `shares`: of the orders that change.
    """

    orders: tuple[int, ...]
    rounds: int
    shares: tuple[float, ...] = (0.01, 0.0001)


FULL = Size(orders=(100_000, 1_000_000), rounds=3)
SMALL = Size(orders=(10_000,), rounds=1)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step took, read and wrote."""

    seconds: float
    bytes_read: int
    rows: int
    bytes: int


def measure(stage: Stage) -> Table:
    size = SMALL if stage.small else FULL
    table: list[tuple[str, ...]] = []
    for orders in size.orders:
        bench = _Bench(stage.engine, orders)
        for name in VIEWS:
            view = bench.start(name)
            for share in size.shares:
                ours, theirs = [], []
                for _ in range(size.rounds):
                    bench.change(share)
                    ours.append(bench.step(view))
                    theirs.append(bench.overwrite(name))
                    say(f"    {name}, {share:.2%}: {ours[-1]}, overwritten: {theirs[-1]}")
                table += _rows(f"{name}, {share:.2%} of {orders:,} changed", share, ours, theirs)
            bench.stop(view)
    columns = ("seconds", "MB read", "rows written", "MB written", "× faster", "× fewer bytes", "aim")
    return Table(("step", *columns), table)


def _rows(step: str, share: float, ours: list[Cost], theirs: list[Cost]) -> list[tuple[str, ...]]:
    faster = _median(theirs, "seconds") / _median(ours, "seconds")
    fewer = _median(theirs, "bytes") / max(_median(ours, "bytes"), 1)
    written = 50 if share < 0.01 else 10
    met = fewer >= written and (faster >= 5 or share >= 0.01)
    aim = f"{written} × fewer bytes{', 5 × faster' if share < 0.01 else ''}"
    return [
        (
            f"mzplan: {step}",
            *_cells(ours),
            f"{faster:.1f}",
            f"{fewer:.0f}",
            verdict(aim, met),
        ),
        (f"overwrite: {step}", *_cells(theirs), "1", "1", ""),
    ]


def _median(costs: list[Cost], figure: str) -> float:
    return float(statistics.median(getattr(cost, figure) for cost in costs))


def _cells(costs: list[Cost]) -> tuple[str, str, str, str]:
    read, written = (_median(costs, figure) / 1e6 for figure in ("bytes_read", "bytes"))
    return (
        f"{_median(costs, 'seconds'):.1f}",
        f"{read:.2f}",
        f"{_median(costs, 'rows'):,.0f}",
        f"{written:.2f}",
    )


class _Bench:
    """The tables, views over them, and the changes of a round."""

    def __init__(self, engine: Engine, orders: int):
        self._engine, self._orders, self._round = engine, orders, 0
        self.inputs = {name: self._input(name) for name in TABLES}

    def _input(self, name: str) -> CollectionRead:
        schema, key = TABLES[name]
        read = CollectionRead(
            address=Address("source", name),
            id=f"s{uuid.uuid4().hex[:8]}",
            generation=1,
            type="local",
            body={"schema": schema, "key": [key]},
        )
        path, spark = self._engine.path_of(*read.place), self._engine.spark
        Collections().ensure(
            spark, path, columns_of(read.type, read.body), POSITION, keyed=bool(keys_of(read.type, read.body))
        )
        columns = (
            f"id, id % {self._orders // 10} AS customer, CAST(id % 1000 AS DECIMAL(10,2)) AS amount"
            if name == "orders"
            else "id AS customer, concat('city ', id % 100) AS city"
        )
        count = self._orders // (1 if name == "orders" else 10)
        rows = spark.range(count).selectExpr(*_items(columns), f"CAST(NULL AS {POSITION}) AS _position")
        rows.write.format("delta").mode("append").save(path)
        return read

    def start(self, name: str) -> Description:
        """Start a view, and wait until it has its rows."""
        sql, schema, key, reads = VIEWS[name]
        body: dict[str, Any] = {"query": sql, "schema": schema, "key": [key], "reads": [*reads]}
        view = Description(
            address=Address("view", f"v{len(name)}"),
            id=f"v{uuid.uuid4().hex[:8]}",
            generation=1,
            digest="1:a",
            type="sql",
            body={**body, "output": "current", "trigger": TRIGGER},
            reads={read: self.inputs[read] for read in reads},
        )
        self._engine._executor.start(view, self._engine._secrets, epoch=1)
        self._java(view).processAllAvailable()
        self.overwrite(name)  # creates the table
        return view

    def stop(self, view: Description) -> None:
        self._engine._executor.stop(QueryName.of("bench", view))

    def _java(self, view: Description) -> Any:
        return self._engine._executor._running[QueryName.of("bench", view)].java

    def change(self, share: float) -> None:
        """Change the amounts of a share of the orders."""
        self._round += 1
        every = int(1 / share)
        table = table_at(self._engine.path_of(*self.inputs["orders"].place))
        self._engine.spark.sql(
            f"UPDATE {table} SET amount = amount + 1 WHERE id % {every} = {self._round % every}"
        )

    def step(self, view: Description) -> Cost:
        """Wait until the view has done a step over the changed rows."""
        return self._cost(self._engine.path_of(*view.place), self._java(view).processAllAvailable)

    def overwrite(self, name: str) -> Cost:
        """Compute the query over all rows, and overwrite a table."""
        sql, _, _, reads = VIEWS[name]
        path = str(self._engine.folder / "overwritten" / f"{name.replace(' ', '-')}-{self._orders}")
        session = self._engine.spark.newSession()

        def write() -> None:
            for read in reads:
                place = self._engine.path_of(*self.inputs[read].place)
                session.read.format("delta").load(place).createOrReplaceTempView(read)
            session.sql(sql).write.format("delta").mode("overwrite").save(path)

        return self._cost(path, write)

    def _cost(self, path: str, write: Callable[[], object]) -> Cost:
        """Run a step that writes a table, and return its cost."""
        before, read_before = max(CollectionLog(path).versions(), default=-1), self._bytes_read()
        began = time.monotonic()
        write()
        seconds = round(time.monotonic() - began, 2)
        return Cost(seconds, self._bytes_read() - read_before, *_written(path, before))

    def _bytes_read(self) -> int:
        """Return how many bytes the tasks of all jobs have read."""
        context: Any = self._engine.spark.sparkContext._jsc.sc()
        context.listenerBus().waitUntilEmpty()
        return int(context.statusStore().executorSummary("driver").totalInputBytes())


def _written(path: str, before: int) -> tuple[int, int]:
    """Return the rows and bytes of the commits after a version, with change feeds and deletion vectors."""
    rows = size = 0
    for commit in CollectionLog(path).after(before):
        rows += commit.rows or 0
        text = Path(path, "_delta_log", f"{commit.version:020}.json").read_text()
        actions = map(json.loads, text.splitlines())
        files = (action.get("add") or action.get("cdc") for action in actions)
        size += sum(file["size"] for file in files if file is not None)
    return rows, size


def _items(columns: str) -> list[str]:
    """Split columns at the commas outside of brackets."""
    items, depth = [""], 0
    for letter in columns:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    return items

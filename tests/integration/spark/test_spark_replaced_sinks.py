"""Sinks whose new generation writes only the difference to their target (`on_replace: difference`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of
from mzplan.spark.collections import Collections, table_at
from tests.integration.spark.test_spark_verify_sinks import compared, numbers, verified
from tests.integration.spark_lab import Lab, read_delta
from tests.support import Make, eventually

SCHEMA = (
    "id BIGINT, customer STRING, amount DECIMAL(10,2), tags MAP<STRING, INT>, ratio DOUBLE, raw BINARY, "
    "at TIMESTAMP, parts ARRAY<STRUCT<n: BIGINT, s: STRING>>"
)
TABLE = (
    "CREATE TABLE t (id bigint PRIMARY KEY, customer varchar(20) UNIQUE, amount numeric(12,3), tags json, "
    "ratio double precision, raw bytea, at timestamptz, parts jsonb)"
)
RATIOS = {1: "DOUBLE('NaN')", 6: "DOUBLE('-0.0')"}
UPSERT = {"mode": "upsert", "key": ["id"], "on_replace": "difference", "max_files_per_trigger": 1}
Row = tuple[int, str | None, str]


class Replaced:
    """A collection whose generations a test writes itself, and two sinks that follow it."""

    def __init__(self, lab: Lab, folder: Path, shop: str, **body: Any):
        self.lab, self.shop, self.folder, self.position = lab, shop, folder, 0
        lab.execute(shop, TABLE)
        source = lab.local_source(SCHEMA, "orders")
        self.source = replace(source, body={**source.body, **body})
        self.sinks = (
            lab.postgres_sink(self.source, shop, "t", **UPSERT),
            lab.delta_sink(self.source, folder, "t", **UPSERT),
        )
        self.create()

    def create(self) -> None:
        columns = columns_of(self.source.type, self.source.body)
        path = str(self.lab._collection(self.source))
        keyed = "key" in self.source.body
        Collections().ensure(self.lab.spark, path, columns, "STRUCT<at: BIGINT>", keyed=keyed)

    def sql(self, statement: str) -> None:
        self.lab.spark.sql(statement.format(table_at(str(self.lab._collection(self.source)))))

    def insert(self, *rows: Row) -> None:
        self.sql(f"INSERT INTO {{}} VALUES {', '.join(map(self._values, rows))}")

    def _values(self, row: Row) -> str:
        id_, customer, amount = row
        self.position += 1
        return (
            f"({id_}, {'NULL' if customer is None else repr(customer)}, {amount}, map('a', {id_}), "
            f"{RATIOS.get(id_, 'NULL')}, X'00FF', TIMESTAMP '2026-01-02 03:04:05.123456', "
            f"array(named_struct('n', {id_}, 's', NULL)), named_struct('at', {self.position}))"
        )

    def next_generation(self) -> None:
        """Stop the sinks. From now on, the collection's next, empty generation is meant."""
        self.lab.stop(*self.sinks)
        number = self.source.generation + 1
        self.source = replace(self.source, generation=number)
        self.sinks = tuple(self._next(sink, number) for sink in self.sinks)  # type: ignore[assignment]
        self.create()

    def _next(self, sink: Description, number: int) -> Description:
        (read,) = sink.reads.values()
        reads = {read.address.name: replace(read, generation=number)}
        return replace(sink, generation=number, reads=reads, digest=f"1:{sink.id}{number}")

    def insert_into_targets(self, id_: int) -> None:
        """Write a row as another program."""
        self.lab.execute(self.shop, f"INSERT INTO t (id) VALUES ({id_})")
        self.lab.spark.sql(f"INSERT INTO delta.`{self.folder / 't'}` (id) VALUES ({id_})")

    def start(self) -> None:
        assert [self.lab.codes(sink) for sink in self.sinks] == [[], []]
        self.lab.start(*self.sinks)

    def restart_with_step_0_again(self) -> None:
        """As if the runner had been killed before it noted down the first step."""
        for sink in self.sinks:
            self.lab.finish(sink)
            assert self.lab.undo_commit(sink) == 0
        self.lab.start(*self.sinks)
        for sink in self.sinks:
            eventually("the step is done", lambda sink=sink: self.lab.checkpoint_done(sink))  # type: ignore[misc]

    def holds(self, *rows: Row) -> None:
        eventually(f"postgres has {rows}", lambda: self.in_postgres() == sorted(rows))
        eventually(f"delta has {rows}", lambda: self.in_delta() == sorted(rows))

    def in_postgres(self) -> list[Row]:
        found = self.lab.rows(self.shop, "SELECT id, customer, round(amount, 2)::text FROM t ORDER BY id")
        return [(i, c, a) for i, c, a in found]

    def in_delta(self) -> list[Row]:
        rows = read_delta(self.folder / "t")
        return sorted((row["id"], row["customer"], str(row["amount"])) for row in rows)

    def rewritten(self) -> dict[int, str]:
        """The transaction that wrote each row of PostgreSQL's table."""
        return dict(self.lab.rows(self.shop, "SELECT id, xmin::text FROM t"))

    def delta_rows_changed(self, step: int) -> Sequence[int]:
        """The numbers of rows that a step has inserted, updated and deleted in the Delta table."""
        commits = DeltaTable(str(self.folder / "t")).history()
        own = (one for one in commits if one["operation"] == "MERGE" and one.get("readVersion") is not None)
        metrics = next(one["operationMetrics"] for one in own)
        return [int(metrics[f"numTargetRows{change}"]) for change in ("Inserted", "Updated", "Deleted")]


@pytest.fixture
def replaced(lab: Lab, tmp_path: Path, database: Make) -> Replaced:
    return Replaced(lab, tmp_path, database())


def test_only_the_difference_is_written(replaced: Replaced) -> None:
    first = ((1, "ann", "1.50"), (2, "bob", "2.00"), (3, None, "3.00"), (6, "fay", "6.00"))
    replaced.insert(*first)
    replaced.start()
    replaced.holds(*first)
    before = replaced.rewritten()

    replaced.next_generation()
    wanted = ((1, "ann", "1.50"), (2, "bob", "2.50"), (4, "dan", "4.00"), (6, "fay", "6.00"))
    for row in ((2, "former", "2.40"), *wanted):
        replaced.insert(row)  # five files, of which a trigger would read one
    replaced.start()
    replaced.holds(*wanted)
    after = replaced.rewritten()
    assert (after[1], after[6]) == (before[1], before[6]) and after[2] != before[2]
    assert replaced.delta_rows_changed(0) == [1, 1, 1]
    replaced.restart_with_step_0_again()
    replaced.holds(*wanted)
    assert replaced.rewritten() == after
    for sink, unrecorded in zip(replaced.sinks, ((), (0,)), strict=True):
        steps = verified(replaced.lab, sink)
        assert (steps.difference, steps.unrecorded) == (None, unrecorded), steps
        assert numbers(compared(replaced.lab, sink)) == (0, 0, 0)

    # Later steps delete nothing.
    replaced.insert((5, "eve", "5.00"))
    replaced.holds(*wanted, (5, "eve", "5.00"))


def test_unique_values_are_swapped_and_all_rows_go(replaced: Replaced) -> None:
    replaced.insert((1, "ann", "1.50"), (2, "bob", "2.50"))
    replaced.start()
    replaced.holds((1, "ann", "1.50"), (2, "bob", "2.50"))
    replaced.next_generation()
    replaced.insert((1, "bob", "1.50"), (2, "ann", "2.50"))
    replaced.start()
    replaced.holds((1, "bob", "1.50"), (2, "ann", "2.50"))

    # A generation without rows leaves nothing, also of the rows of other writers.
    replaced.next_generation()
    replaced.insert_into_targets(90)
    replaced.start()
    replaced.holds()
    replaced.insert((1, "ann", "1.50"))
    replaced.holds((1, "ann", "1.50"))


def test_a_keyed_collection(lab: Lab, tmp_path: Path, database: Make) -> None:
    replaced = Replaced(lab, tmp_path, database(), key=["id"])
    replaced.insert((1, "ann", "1.50"), (2, "bob", "2.00"))
    replaced.start()
    replaced.holds((1, "ann", "1.50"), (2, "bob", "2.00"))
    replaced.next_generation()
    replaced.insert((1, "ann", "1.50"), (3, "cat", "3.00"), (4, "dan", "4.00"))
    replaced.sql("DELETE FROM {} WHERE id = 3")
    replaced.start()
    replaced.holds((1, "ann", "1.50"), (4, "dan", "4.00"))
    replaced.next_generation()
    replaced.insert((1, "ann", "1.50"))
    replaced.sql("DELETE FROM {} WHERE id = 1")
    replaced.start()
    replaced.holds()

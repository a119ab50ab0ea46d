"""Upsert sinks below a view that is replaced side by side: only the difference between the generations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of
from mzplan.spark.collections import Collections, table_at
from tests.integration.committed import committed
from tests.integration.spark_lab import Lab, read_delta
from tests.support import Make, eventually

COLUMNS = "id STRING, amount BIGINT"
UPSERT = {"mode": "upsert", "key": ["id"], "max_files_per_trigger": 1}
Rows = dict[str, int]


class Replaced:
    """A view's collections, which a test writes itself, and three sinks that follow them."""

    def __init__(self, lab: Lab, folder: Path, shop: str, topic: str, *, keyed: bool):
        self.lab, self.folder, self.shop, self.topic, self.keyed = lab, folder, shop, topic, keyed
        self.position = 0
        lab.execute(shop, "CREATE TABLE t (id text PRIMARY KEY, amount bigint)")
        key: dict[str, Any] = {"key": ["id"], "output": "update"} if keyed else {}
        self.view = lab.view("SELECT * FROM orders", COLUMNS, [lab.local_source(COLUMNS, "orders")], **key)
        self.sinks = (
            lab.postgres_sink(self.view, shop, "t", **UPSERT),
            lab.delta_sink(self.view, folder, "t", **UPSERT),
            lab.kafka_sink(self.view, topic, **UPSERT),
        )
        self.create()

    def create(self) -> None:
        columns = columns_of(self.view.type, self.view.body)
        path = str(self.lab._collection(self.view))
        Collections().ensure(self.lab.spark, path, columns, "STRUCT<at: BIGINT>", keyed=self.keyed)

    def sql(self, statement: str) -> None:
        self.lab.spark.sql(statement.format(table_at(str(self.lab._collection(self.view)))))

    def put(self, **amounts: int) -> None:
        """Write the rows of these ids, as one commit: a keyed collection has one row of each."""
        self.position += 1
        rows = ", ".join(
            f"('{id_}', {amount}, named_struct('at', {self.position}))" for id_, amount in amounts.items()
        )
        if self.keyed:
            given = f"SELECT col1 AS id, col2 AS amount, col3 AS _position FROM VALUES {rows}"
            update, insert = "WHEN MATCHED THEN UPDATE SET *", "WHEN NOT MATCHED THEN INSERT *"
            self.sql(f"MERGE INTO {{}} AS t USING ({given}) AS s ON t.id = s.id {update} {insert}")
        else:
            self.sql(f"INSERT INTO {{}} VALUES {rows}")

    def next_generation(self) -> None:
        """Stop the sinks. From now on, the view's next, empty generation is meant."""
        self.lab.stop(*self.sinks)
        number = self.view.generation + 1
        self.view = replace(self.view, generation=number)
        self.sinks = tuple(self._next(sink, number) for sink in self.sinks)  # type: ignore[assignment]
        self.create()

    def _next(self, sink: Description, number: int) -> Description:
        (read,) = sink.reads.values()
        reads = {read.address.name: replace(read, generation=number)}
        return replace(sink, generation=number, reads=reads, digest=f"1:{sink.id}{number}")

    def insert_into_targets(self, id_: str) -> None:
        """Write a row as another program."""
        self.lab.execute(self.shop, f"INSERT INTO t (id) VALUES ('{id_}')")
        self.lab.spark.sql(f"INSERT INTO delta.`{self.folder / 't'}` (id) VALUES ('{id_}')")

    def tables(self) -> tuple[dict[str, int | None], dict[str, int | None]]:
        """The rows of both tables."""
        found = dict(self.lab.rows(self.shop, "SELECT id, amount FROM t"))
        path = self.folder / "t"
        rows = read_delta(path) if DeltaTable.is_deltatable(str(path)) else []
        return found, {row["id"]: row["amount"] for row in rows}

    def sent(self) -> list[tuple[str | None, int | None]]:
        """All records of the topic; None for a tombstone."""
        records = committed(self.lab.kafka.bootstrap, self.topic)
        return [(key, None if value is None else value["amount"]) for _, key, value in records]

    def holds(self, wanted: Rows, **others: None) -> None:
        for number in range(2):
            eventually(f"a table has {wanted}", lambda n=number: self.tables()[n] == {**wanted, **others})  # type: ignore[misc]
        eventually(f"the topic has {wanted}", lambda: self.newest() == wanted)
        for sink in self.sinks:
            eventually("the step is done", lambda sink=sink: self.lab.checkpoint_done(sink))  # type: ignore[misc]

    def newest(self) -> Rows:
        return {str(key): amount for key, amount in dict(self.sent()).items() if amount is not None}

    def delta_rows_changed(self) -> list[int]:
        """The numbers of rows that the last step has inserted, updated and deleted in the Delta table."""
        merges = (one for one in DeltaTable(str(self.folder / "t")).history() if one["operation"] == "MERGE")
        metrics = next(merges)["operationMetrics"]
        return [int(metrics[f"numTargetRows{change}"]) for change in ("Inserted", "Updated", "Deleted")]


@pytest.fixture
def make(lab: Lab, tmp_path: Path, database: Make, topic: Make) -> Callable[[bool], Replaced]:
    return lambda keyed: Replaced(lab, tmp_path, database(), topic(), keyed=keyed)


@pytest.mark.parametrize(
    "keyed", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["keyed", "appended"]
)
def test_keys_of_the_former_generation_go_and_equal_rows_stay(
    make: Callable[[bool], Replaced], keyed: bool
) -> None:
    replaced = make(keyed)
    lab = replaced.lab
    lab.start(*replaced.sinks)
    replaced.put(a=1, b=2, c=3)
    replaced.holds({"a": 1, "b": 2, "c": 3})
    replaced.put(c=4, d=5)
    replaced.holds({"a": 1, "b": 2, "c": 4, "d": 5})
    replaced.insert_into_targets("other")
    before = dict(lab.rows(replaced.shop, "SELECT id, xmin::text FROM t"))
    sent = Counter(replaced.sent())
    lab.stop(*replaced.sinks)
    if keyed:  # the sinks don't read this any more, but their targets have the row
        replaced.sql("DELETE FROM {} WHERE id = 'd'")
    replaced.put(late=9)

    replaced.next_generation()
    for rows in ({"b": 6}, {"a": 1}, {"b": 7, "e": 8}):
        replaced.put(**rows)
    lab.start(*replaced.sinks)
    wanted = {"a": 1, "b": 7, "e": 8}
    replaced.holds(wanted, other=None)
    assert replaced.delta_rows_changed() == [1, 1, 2]
    after = dict(lab.rows(replaced.shop, "SELECT id, xmin::text FROM t"))
    assert {id_ for id_ in before if after.get(id_) == before[id_]} == {"a", "other"}
    first = Counter(replaced.sent())
    assert first - sent == Counter([("b", 7), ("c", None), ("d", None), ("e", 8)])

    # Killed before it noted down the step: nothing is written again.
    for sink in replaced.sinks:
        lab.finish(sink)
        assert lab.undo_commit(sink) == 0
    lab.start(*replaced.sinks)
    replaced.holds(wanted, other=None)
    assert Counter(replaced.sent()) == first
    replaced.put(b=10, c=11)
    replaced.holds({**wanted, "b": 10, "c": 11}, other=None)
    assert [lab.report(sink).warning for sink in replaced.sinks] == [None] * 3


@pytest.mark.nightly
def test_two_replaces_in_a_row_and_rows_that_are_gone(make: Callable[[bool], Replaced]) -> None:
    replaced = make(True)
    lab = replaced.lab
    lab.start(*replaced.sinks)
    replaced.put(a=1, b=2, c=3)
    replaced.holds({"a": 1, "b": 2, "c": 3})

    # The second generation is interrupted in its first step, before or after it has reached the target.
    replaced.next_generation()
    replaced.put(a=1, d=4)
    postgres, _, kafka = replaced.sinks
    lab.start(postgres, kafka)
    eventually("it is written", lambda: replaced.tables()[0] == replaced.newest() == {"a": 1, "d": 4})
    lab.finish(postgres, kafka)
    for sink in (postgres, kafka):
        lab.undo_commit(sink)
    replaced.next_generation()
    replaced.put(a=1, e=5)
    lab.start(*replaced.sinks)
    replaced.holds({"a": 1, "e": 5})

    # Without the former rows, keys stay, and the sink says so.
    former = lab._collection(replaced.view)
    replaced.next_generation()
    former.rename(former.with_name("moved"))
    replaced.put(a=6)
    lab.start(*replaced.sinks)
    replaced.holds({"a": 6, "e": 5})
    assert all("MZ408" in (lab.report(sink).warning or "") for sink in replaced.sinks)

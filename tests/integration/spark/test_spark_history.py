"""Sinks that keep all versions of each key's row (`mode: history`), in PostgreSQL and Delta."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of
from mzplan.spark.collections import Collections, table_at
from tests.integration.spark.test_spark_verify_sinks import compared, numbers, verified
from tests.integration.spark_lab import Lab, read_delta
from tests.support import Make, eventually, refusal

SCHEMA = (
    "id BIGINT, name STRING, amount DECIMAL(10,2), tags MAP<STRING, INT>, ratio DOUBLE, changed TIMESTAMP, "
    "parts ARRAY<STRUCT<n: BIGINT, s: STRING>>"
)
TABLE = (
    "CREATE TABLE t (id bigint, name char(10), amount numeric(12,3), tags json, ratio double precision, "
    "changed timestamptz, parts jsonb, valid_from timestamptz, valid_to timestamptz, is_current boolean, "
    "PRIMARY KEY (id, valid_from))"
)
ONE_CURRENT = "CREATE UNIQUE INDEX ON t (id) WHERE is_current"
HISTORY: dict[str, Any] = {"mode": "history", "key": ["id"]}
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
Version = tuple[int, str, datetime, datetime | None, bool]
"""The id, the name, and the columns of a history."""


class Shop:
    """A keyed collection that a test changes itself, and two sinks that keep its history."""

    def __init__(self, lab: Lab, folder: Path, database: str, **body: Any):
        self.lab, self.folder, self.database = lab, folder, database
        source = lab.local_source(SCHEMA, "customers")
        self.source = replace(source, body={**source.body, "key": ["id"]})
        settings = {**HISTORY, **body}
        self.sinks = (
            lab.postgres_sink(self.source, database, "t", **settings),
            lab.delta_sink(self.source, folder, "t", **settings),
        )
        self.create()

    @property
    def path(self) -> str:
        return str(self.lab._collection(self.source))

    def create(self) -> None:
        columns = columns_of(self.source.type, self.source.body)
        Collections().ensure(self.lab.spark, self.path, columns, "STRUCT<at: BIGINT>", keyed=True)

    def sql(self, statement: str) -> datetime:
        """Change the collection in one commit. Return the commit's time."""
        self.lab.spark.sql(statement.format(table_at(self.path)))
        return self.committed()

    def committed(self) -> datetime:
        """Return the time of the collection's last commit, as Delta's change feed has it."""
        version = DeltaTable(self.path).version()
        entry = Path(self.path) / "_delta_log" / f"{version:020}.json"
        return datetime.fromtimestamp(entry.stat().st_mtime_ns // 10**6 / 1000, UTC)

    def put(self, *names: tuple[int, str], changed: datetime = NOON) -> datetime:
        """Write rows in one commit, as a source does."""
        rows = ", ".join(f"({id_}, '{name}')" for id_, name in names)
        return self.sql(
            f"MERGE INTO {{}} AS t USING (SELECT col1 AS id, col2 AS name FROM VALUES {rows}) AS s "
            "ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name, "
            f"changed = TIMESTAMP '{changed}' WHEN NOT MATCHED THEN INSERT "
            "(id, name, amount, tags, ratio, changed, parts, _position) VALUES (s.id, s.name, 1.05, "
            f"map('a', 1, 'b', 2), DOUBLE('NaN'), TIMESTAMP '{changed}', "
            "array(named_struct('n', 1L, 's', NULL)), named_struct('at', 0L))"
        )

    def delete(self, id_: int) -> datetime:
        return self.sql(f"DELETE FROM {{}} WHERE id = {id_}")

    def start(self) -> None:
        assert [self.lab.codes(sink) for sink in self.sinks] == [[], []]
        self.lab.start(*self.sinks)

    def finish(self) -> None:
        self.lab.finish(*self.sinks)

    def next_generation(self) -> None:
        """Stop the sinks. From now on, the collection's next, empty generation is meant."""
        self.finish()
        number = self.source.generation + 1
        self.source = replace(self.source, generation=number)
        self.sinks = tuple(self._next(sink, number) for sink in self.sinks)  # type: ignore[assignment]
        self.create()

    def _next(self, sink: Description, number: int) -> Description:
        (read,) = sink.reads.values()
        reads = {read.address.name: replace(read, generation=number)}
        return replace(sink, generation=number, reads=reads, digest=f"1:{sink.id}{number}")

    def repeat_last_step(self) -> None:
        """Start the sinks as if the runner had been killed before it noted down the last step."""
        self.finish()
        for sink in self.sinks:
            self.lab.undo_commit(sink)
        self.start()
        for sink in self.sinks:
            eventually("the step is done", lambda sink=sink: self.lab.checkpoint_done(sink))  # type: ignore[misc]

    def holds(self, *versions: Version) -> None:
        eventually(
            f"postgres has {versions}, not {self.in_postgres()}", lambda: self.in_postgres() == [*versions]
        )
        eventually(f"delta has {versions}, not {self.in_delta()}", lambda: self.in_delta() == [*versions])

    def in_postgres(self) -> list[Version]:
        columns = "id, trim(name), valid_from, valid_to, is_current"
        return list(self.lab.rows(self.database, f"SELECT {columns} FROM t ORDER BY id, valid_from"))

    def in_delta(self) -> list[Version]:
        names = ("id", "name", "valid_from", "valid_to", "is_current")
        rows = [tuple(row[name] for name in names) for row in read_delta(self.folder / "t")]
        return sorted(rows, key=lambda row: (row[0], row[2]))


@pytest.fixture
def shop(lab: Lab, tmp_path: Path, database: Make) -> Shop:
    name = database()
    lab.execute(name, TABLE, ONE_CURRENT)
    return Shop(lab, tmp_path, name)


def test_every_version_is_kept_once(shop: Shop) -> None:
    first = shop.put((1, "ann"), (2, "bob"), (3, "cat"))
    shop.start()
    shop.holds((1, "ann", first, None, True), (2, "bob", first, None, True), (3, "cat", first, None, True))
    shop.finish()

    # One micro-batch has several versions of a key.
    second = shop.put((1, "anna"), (2, "bob"))  # bob's row stays as it is
    third = shop.put((1, "anne"))
    gone = shop.delete(3)
    again = shop.put((3, "cat"))
    dan = shop.put((4, "dan"))
    ended = shop.delete(4)
    shop.start()
    versions = (
        (1, "ann", first, second, False),
        (1, "anna", second, third, False),
        (1, "anne", third, None, True),
        (2, "bob", first, None, True),
        (3, "cat", first, gone, False),
        (3, "cat", again, None, True),
        (4, "dan", dan, ended, False),
    )
    shop.holds(*versions)
    shop.repeat_last_step()
    shop.holds(*versions)
    last = shop.put((2, "bobby"))
    later = (*versions[:3], (2, "bob", first, last, False), (2, "bobby", last, None, True), *versions[4:])
    shop.holds(*later)
    shop.put((2, "bobby"))  # a step without a version
    shop.finish()
    shop.start()
    shop.holds(*later)
    shop.finish()
    for sink in shop.sinks:
        assert numbers(compared(shop.lab, sink)) == (0, 0, 0)
    assert verified(shop.lab, shop.sinks[0]).difference is None
    assert refusal(lambda: verified(shop.lab, shop.sinks[1])).code == "MZ177"


def test_a_new_generation_adds_only_what_differs(shop: Shop) -> None:
    first = shop.put((1, "ann"), (2, "bob"), (3, "cat"))
    shop.start()
    shop.holds((1, "ann", first, None, True), (2, "bob", first, None, True), (3, "cat", first, None, True))
    shop.next_generation()
    shop.put((2, "former"))
    shop.put((1, "ann"), (4, "dan"))
    second = shop.put((2, "bobby"))
    shop.start()
    versions = (
        (1, "ann", first, None, True),
        (2, "bob", first, second, False),
        (2, "bobby", second, None, True),
        (3, "cat", first, second, False),
        (4, "dan", second, None, True),
    )
    shop.holds(*versions)
    shop.repeat_last_step()
    shop.holds(*versions)

    # A generation without rows ends all versions, and its rows begin new ones.
    shop.next_generation()
    shop.start()
    eventually("all versions have ended", lambda: not any(row[4] for row in shop.in_postgres()))
    eventually("all versions have ended", lambda: not any(row[4] for row in shop.in_delta()))
    assert all(row[3] >= second for row in [*shop.in_postgres(), *shop.in_delta()] if row[3] is not None)
    third = shop.put((3, "cat"))
    eventually("the row is back", lambda: shop.in_postgres()[4] == (3, "cat", third, None, True))
    eventually("the row is back", lambda: shop.in_delta()[4] == (3, "cat", third, None, True))


def test_a_column_says_when_a_version_begins(lab: Lab, tmp_path: Path, database: Make) -> None:
    body = {"create": True, "valid_from": "since", "select": ["id", "name", "changed AS since"]}
    delta = {name: value for name, value in body.items() if name != "create"}
    shop = Shop(lab, tmp_path, database(), **delta)
    shop.sinks = (lab.postgres_sink(shop.source, shop.database, "t", **HISTORY, **body), shop.sinks[1])
    assert lab.check(shop.sinks[0]).must_create
    lab.executor.prepare(shop.sinks[0], lab.secrets)
    hour = timedelta(hours=1)
    shop.put((1, "ann"), (2, "bob"))
    shop.start()
    shop.holds((1, "ann", NOON, None, True), (2, "bob", NOON, None, True))
    shop.finish()
    shop.put((1, "anna"), changed=NOON + hour)
    shop.put((1, "late"), changed=NOON - hour)  # later in the collection, so it is the current row
    gone = shop.delete(2)
    shop.put((2, "bob"), changed=NOON + 3 * hour)  # before the commit that deletes bob
    shop.start()
    after = NOON + hour + MICROSECOND
    shop.holds(
        (1, "ann", NOON, NOON + hour, False),
        (1, "anna", NOON + hour, after, False),
        (1, "late", after, None, True),
        (2, "bob", NOON, gone, False),
        (2, "bob", gone + MICROSECOND, None, True),
    )
    shop.repeat_last_step()
    assert len(shop.in_postgres()) == len(shop.in_delta()) == 5


def test_truncate_empties_the_target(lab: Lab, tmp_path: Path, database: Make) -> None:
    name = database()
    lab.execute(name, TABLE, ONE_CURRENT)
    shop = Shop(lab, tmp_path, name, on_replace="truncate")
    first = shop.put((1, "ann"))
    shop.start()
    shop.holds((1, "ann", first, None, True))
    shop.next_generation()
    second = shop.put((1, "anna"))
    shop.start()
    shop.holds((1, "anna", second, None, True))


def test_targets_that_do_not_fit(lab: Lab, tmp_path: Path, database: Make) -> None:
    name = database()
    shop = Shop(lab, tmp_path, name)
    missing = lab.finds(shop.sinks[0], "MZ052")
    assert "PRIMARY KEY (id, valid_from)" in missing.hint and "is_current boolean" in missing.hint
    lab.execute(name, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    assert "no column valid_from" in lab.finds(shop.sinks[0], "MZ053").detail
    lab.spark.range(1).write.format("delta").save(str(tmp_path / "t"))
    assert "not valid_from, valid_to, is_current" in lab.finds(shop.sinks[1], "MZ053").detail
    wrong = lab.changed(shop.sinks[1], valid_from="name", path="other")
    assert "name, which `valid_from` names, is STRING" in lab.finds(wrong, "MZ053").detail

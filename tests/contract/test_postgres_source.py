"""The PostgreSQL source's endpoint on a real server: snapshot, changes, types, and ways to lose a slot."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mzplan.connectors.postgres.source import endpoint as postgres_input
from mzplan.connectors.postgres.source import snapshot as postgres_snapshot
from mzplan.connectors.postgres.source.connector import PostgresSource
from mzplan.connectors.postgres.source.slots import Names, find_slot, unpublish
from mzplan.model.diagnostics import MzplanError
from tests.contract.postgres_sources import Collection, committed_step, endpoint, offered, source
from tests.support import eventually

if TYPE_CHECKING:
    from examples.servers import PostgresServer

Database = Callable[..., str]


@pytest.fixture
def dsn(database: Database, postgres: PostgresServer) -> str:
    return postgres.dsn(database())


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def names(collection: Collection) -> dict[int, str]:
    return {key[0]: row["name"] for key, row in collection.rows.items()}


def test_a_snapshot_then_changes_each_once(dsn: str, tmp_path: Path) -> None:
    run(
        dsn,
        "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))",
        "INSERT INTO t SELECT g, 'n' || g FROM generate_series(1, 1000) g",
    )
    input_, collection = endpoint(source(dsn, tmp_path)), Collection("id")
    assert collection.follow(input_) == [1000]
    run(
        dsn,
        "INSERT INTO t VALUES (1001, 'new')",
        "UPDATE t SET name = 'changed' WHERE id <= 2",
        "UPDATE t SET id = 5000 WHERE id = 3",
        "DELETE FROM t WHERE id = 4",
        "INSERT INTO t VALUES (4, 'again')",
        "BEGIN; INSERT INTO t VALUES (1002, 'x'); DELETE FROM t WHERE id = 1002; COMMIT",
        "BEGIN; INSERT INTO t VALUES (1003, 'x'); ROLLBACK",
    )
    assert sum(collection.follow(input_)) == 9
    with psycopg.connect(dsn) as connection:
        assert names(collection) == dict(connection.execute("SELECT id, name FROM t").fetchall())
    assert collection.follow(input_) == []
    input_.close()


def test_an_interrupted_snapshot_continues_in_a_later_one(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after each step. In between, rows change or move to blocks that were read, and the
    file is rewritten. In the end, the collection equals the table."""
    monkeypatch.setattr(postgres_snapshot, "_CHUNK_BLOCKS", 2)
    run(
        dsn,
        "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(100)) WITH (fillfactor = 50)",
        "INSERT INTO t SELECT g, repeat('n', 60) || g FROM generate_series(1, 1500) g",
    )
    query, collection = source(dsn, tmp_path, snapshot={"parallelism": 2}), Collection("id")
    between = [
        "UPDATE t SET name = name || '!' WHERE id % 7 = 0",
        "DELETE FROM t WHERE id % 11 = 0",
        "VACUUM FULL t",
        "UPDATE t SET id = id + 10000 WHERE id % 13 = 0",
        "INSERT INTO t SELECT g, 'late' FROM generate_series(2000, 2300) g",
        "VACUUM t",
        "INSERT INTO t VALUES (11, 'again')",
    ]
    steps = 0
    while True:
        input_ = endpoint(query)
        step = input_.steps().stop
        if not offered(input_, step, seconds=0.0):
            break
        input_.commit(step)
        input_.close()  # its snapshot is gone
        if between:
            run(dsn, between.pop(0))
        input_ = endpoint(query)
        collection.take(input_, step)
        input_.expire(step + 1)
        input_.close()
        steps += 1
    input_.close()
    assert steps > 4 and not between
    with psycopg.connect(dsn) as connection:
        assert names(collection) == dict(connection.execute("SELECT id, name FROM t").fetchall())


def test_a_durable_step_is_the_same_whenever_it_is_read(dsn: str, tmp_path: Path) -> None:
    """Steps have whole transactions. One exceeds the decoder's buffer, and two are interleaved."""
    run(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))")
    query = source(dsn, tmp_path)
    input_, collection = endpoint(query), Collection("id")
    input_.offers(0)
    input_.commit(0)
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        first.execute("INSERT INTO t SELECT g, 'n' || g FROM generate_series(1, 120000) g")
        second.execute("INSERT INTO t VALUES (-1, 'other')")
        second.commit()
        assert offered(input_, 1)
        input_.commit(1)
        assert collection.take(input_, 1) == 1
        first.commit()
    assert offered(input_, 2)
    input_.commit(2)
    input_.close()
    run(dsn, "DELETE FROM t WHERE id = 7")
    read = []
    for _ in range(2):
        again = endpoint(query)
        (part,) = again.parts(2)
        batches = list(again.batches(part))
        assert max(batch.num_rows for batch in batches) <= 50_000
        read.append(pa.Table.from_batches(batches))
        again.close()
    assert read[0].equals(read[1]) and read[0].num_rows == 120_000
    places = read[0].column("_position").combine_chunks()
    assert len(pc.unique(places.field("lsn"))) == 1
    assert places.field("sequence").to_pylist() == list(range(2, 240_001, 2))


def test_the_slot_advances_after_expire_and_when_idle(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_input, "_IDLE_EVERY_S", 0.0)
    run(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))", "CREATE TABLE other (x text)")
    query = source(dsn, tmp_path)
    assert query.checkpoint is not None
    input_ = endpoint(query)

    def confirmed() -> int:
        with psycopg.connect(dsn) as connection:
            slot = find_slot(connection, Names.of(query).slot)
        assert slot is not None
        return slot.confirmed

    input_.offers(0)
    input_.commit(0)
    begun = confirmed()
    run(dsn, "INSERT INTO t VALUES (1, 'a')")
    assert offered(input_, 1)
    input_.commit(1)
    assert confirmed() == begun
    input_.expire(2)
    assert confirmed() > begun
    # What others write is passed over once Spark has noted down that all steps are done.
    before = confirmed()
    run(dsn, "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
    assert not input_.offers(2)
    assert confirmed() == before
    spark = Path(query.checkpoint.spark)
    for log in ("offsets", "commits"):
        (spark / log).mkdir(parents=True)
        (spark / log / "1").write_text('v1\n{}\n{"step": 2}')
    run(dsn, "INSERT INTO other VALUES ('y')")
    assert not input_.offers(2)
    time.sleep(0.5)
    assert not input_.offers(2)
    eventually("the slot is advanced", lambda: confirmed() > before, 10)
    run(dsn, "INSERT INTO t VALUES (2, 'b')")
    input_.close()
    collection = Collection("id")
    collection.follow(endpoint(query))
    assert names(collection) == {2: "b"}


def active_slots(dsn: str) -> int:
    """Return how many slots a connection still reads. The server releases a slot a moment later."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("cut", ["before the steps are expired", "before the slot is advanced"])
def test_an_interrupted_expire_is_not_a_moved_slot(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    run(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))", "INSERT INTO t VALUES (0, 'z')")
    query = source(dsn, tmp_path)
    collection, first = Collection("id"), endpoint(query)
    collection.follow(first)
    first.close()
    eventually("the slot is free", lambda: active_slots(dsn) == 0)
    run(dsn, "INSERT INTO t VALUES (1, 'a')")
    doomed = endpoint(query)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    of, name = (doomed._log, "expire") if "steps" in cut else (postgres_input, "advance")
    with monkeypatch.context() as patched:
        patched.setattr(of, name, killed)
        with pytest.raises(KeyboardInterrupt):
            collection.follow(doomed)
    doomed.close()
    eventually("the slot is free", lambda: active_slots(dsn) == 0)
    endpoint(query).check()
    run(dsn, "INSERT INTO t VALUES (2, 'b')")
    collection.follow(endpoint(query))
    assert names(collection) == {0: "z", 1: "a", 2: "b"}


TYPES = {
    "a boolean": ("BOOLEAN", "true", True),
    "b smallint": ("SMALLINT", "-32768", -32768),
    "c integer": ("INT", "2147483647", 2147483647),
    "d bigint": ("BIGINT", "-9223372036854775808", -(2**63)),
    "e numeric(20,4)": ("DECIMAL(20,4)", "1234567890.1234", Decimal("1234567890.1234")),
    "f numeric": ("STRING", "123456789012345678901234567890123456789.5", None),
    "g real": ("FLOAT", "1.5", 1.5),
    "h double precision": ("DOUBLE", "0.1", 0.1),
    "i text": ("STRING", "'é\t\\n''quoted'''", "é\t\\n'quoted'"),
    "j timestamptz": (
        "TIMESTAMP",
        "'2024-02-29 12:00:00.123456+02'",
        datetime(2024, 2, 29, 10, 0, 0, 123456, UTC),
    ),
    "k timestamp": ("TIMESTAMP_NTZ", "'2024-02-29 12:00:00.5'", datetime(2024, 2, 29, 12, 0, 0, 500000)),
    "l date": ("DATE", "'1900-01-31'", date(1900, 1, 31)),
    "m time": ("STRING", "'23:59:59.5'", "23:59:59.5"),
    "n uuid": ("STRING", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "o jsonb": ("STRING", """'{"b": [1, null], "a": "x"}'""", '{"a": "x", "b": [1, null]}'),
    "p json": ("STRING", """'{"b":1}'""", '{"b":1}'),
    "q bytea": ("BINARY", "'\\x00ff'", b"\x00\xff"),
    "r int[]": ("ARRAY<INT>", "'{1,NULL,3}'", [1, None, 3]),
    "s text[]": ("ARRAY<STRING>", """'{"a,b","NULL",NULL,"q\\"x\\\\y"}'""", ["a,b", "NULL", None, 'q"x\\y']),
    "t int[][]": ("ARRAY<ARRAY<INT>>", "'{{1,2},{3,4}}'", [[1, 2], [3, 4]]),
    "u mood": ("STRING", "'happy'", "happy"),
    "v posint": ("INT", "7", 7),
    "w int4range": ("STRING", "'[1,5)'", "[1,5)"),
    "x interval": ("STRING", "'1 day 02:00:00'", "1 day 02:00:00"),
    "ya boolean": ("STRING", "true", "t"),
    "yb char(4)": ("STRING", "'ab'", "ab  "),
    "y inet": ("STRING", "'10.0.0.1'", "10.0.0.1"),
    "z numeric(5,0)[]": ("ARRAY<DECIMAL(5,0)>", "'{1,2}'", [Decimal(1), Decimal(2)]),
    "aa timestamptz[]": (
        "ARRAY<TIMESTAMP>",
        "'{2024-01-01 00:00:00+00}'",
        [datetime(2024, 1, 1, tzinfo=UTC)],
    ),
    "ab varchar(5)": ("VARCHAR(5)", "'ab'", "ab"),
    "ac boolean[]": ("ARRAY<BOOLEAN>", "'{t,f}'", [True, False]),
    "ad integer": ("BIGINT", "5", 5),
    "ae integer": ("DECIMAL(12,2)", "5", Decimal("5.00")),
    "af pair": ("STRING", "ROW(1, NULL)", "(1,)"),
    "ag nothing": ("STRING", "ROW(NULL, NULL)", "(,)"),
    "ah real": ("DOUBLE", "0.1", 0.10000000149011612),
    "ai real[]": ("ARRAY<DOUBLE>", "'{0.1,Infinity,NULL}'", [0.10000000149011612, float("inf"), None]),
    "aj ratio": ("DOUBLE", "0.1", 0.10000000149011612),
    "ak double precision[]": ("ARRAY<DOUBLE>", "'{0.30000000000000004}'", [0.30000000000000004]),
    "al real": ("STRING", "0.1", "0.1"),
}


ODD_SETTINGS = (
    "extra_float_digits = 0",
    "datestyle = 'German'",
    "timezone = 'Asia/Tokyo'",
    "intervalstyle = 'iso_8601'",
    "bytea_output = 'escape'",
    "client_encoding = 'latin1'",
)


def test_every_type_by_snapshot_and_by_change(dsn: str, tmp_path: Path) -> None:
    columns = ", ".join(TYPES)
    values = ", ".join(f"({text})::{name.partition(' ')[2]}" for name, (_, text, _) in TYPES.items())
    run(
        dsn,
        "CREATE TYPE mood AS ENUM ('happy', 'sad')",
        "CREATE DOMAIN posint AS integer CHECK (value > 0)",
        "CREATE DOMAIN ratio AS real",
        "CREATE TYPE pair AS (one int, other text)",
        "CREATE DOMAIN nothing AS pair",
        f"CREATE TABLE t (id bigint PRIMARY KEY, {columns})",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"INSERT INTO t VALUES (1, {values}), (2{', NULL' * len(TYPES)})",
        *(f"ALTER DATABASE {dsn.rpartition('/')[2]} SET {setting}" for setting in ODD_SETTINGS),
    )
    schema = ", ".join(f"{name.partition(' ')[0]} {type_}" for name, (type_, _, _) in TYPES.items())
    input_, collection = endpoint(source(dsn, tmp_path, schema=f"id BIGINT, {schema}")), Collection("id")
    assert collection.follow(input_) == [2]
    rows = f"(3, {values}), (4{', NULL' * len(TYPES)})"
    run(dsn, "SET client_encoding = 'UTF8'", f"INSERT INTO t VALUES {rows}")
    assert collection.follow(input_) == [2]
    expected = {name.partition(" ")[0]: value for name, (_, _, value) in TYPES.items()}
    expected["f"] = TYPES["f numeric"][1]
    for snapshot, change in ((1, 3), (2, 4)):
        by_snapshot, by_change = collection.rows[snapshot,], collection.rows[change,]
        assert {**by_snapshot, "id": change} == by_change
        wanted = expected if snapshot == 1 else dict.fromkeys(expected)
        assert {name: value for name, value in by_snapshot.items() if name != "id"} == wanted
    input_.close()


def test_a_snapshot_may_exceed_the_roles_statement_timeout(dsn: str, tmp_path: Path) -> None:
    run(
        dsn,
        "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(1000))",
        "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 30000) g",
        f"ALTER DATABASE {dsn.rpartition('/')[2]} SET statement_timeout = '500ms'",
    )
    input_ = endpoint(source(dsn, tmp_path))
    assert offered(input_, 0)
    input_.commit(0)
    rows = 0
    for part in input_.parts(0):
        for batch in input_.batches(part):
            rows += batch.num_rows
            time.sleep(0.6 if rows < 10_000 else 0)  # its reader is slow, and the rest of the rows waits
    assert rows == 30_000
    # What the server says amid the rows is explained.
    cancel = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE state = 'active' AND query ~* 'copy.*ctid'"
    )
    with pytest.raises(MzplanError, match="MZ059") as told:
        for part in input_.parts(0):
            for _ in input_.batches(part):
                run(dsn, f"{cancel} AND pid <> pg_backend_pid() AND datname = current_database()")
    assert "canceling statement due to user request" in told.value.diagnostics[0].detail
    input_.close()


@pytest.mark.parametrize(
    ("type_", "value", "declared"),
    [
        ("numeric", "'NaN'", "DECIMAL(10,2)"),
        ("numeric", "1.005", "DECIMAL(10,2)"),
        ("timestamptz", "'infinity'", "TIMESTAMP"),
        ("timestamp", "'-infinity'", "TIMESTAMP_NTZ"),
        ("date", "'infinity'", "DATE"),
        ("date", "'0044-03-15 BC'", "DATE"),
        ("bigint", "3000000000", "INT"),
        ("varchar(9)", "'abcdef'", "VARCHAR(5)"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(
    dsn: str, tmp_path: Path, type_: str, value: str, declared: str
) -> None:
    run(
        dsn,
        f"CREATE TABLE t (id bigint PRIMARY KEY, v {type_})",
        f"INSERT INTO t VALUES (1, {value})",
    )
    input_ = endpoint(source(dsn, tmp_path, schema=f"id BIGINT, v {declared}"))
    with pytest.raises(MzplanError, match=r"MZ232.*public\.t\.v"):
        Collection("id").follow(input_)
    input_.close()
    run(dsn, "DELETE FROM t")
    other = endpoint(source(dsn, tmp_path, "cd34", schema=f"id BIGINT, v {declared}"))
    Collection("id").follow(other)
    run(dsn, f"INSERT INTO t VALUES (1, {value})")
    with pytest.raises(MzplanError, match=r"MZ232.*public\.t\.v"):
        Collection("id").follow(other)
    other.close()


def test_unchanged_large_values_are_kept(dsn: str, tmp_path: Path) -> None:
    run(
        dsn,
        "CREATE TABLE t (id bigint PRIMARY KEY, n int, name text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE t ALTER COLUMN name SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, 1, repeat('x', 100000)), (2, 1, repeat('y', 100000))",
    )
    query = source(dsn, tmp_path, schema="id BIGINT, n INT, name STRING")
    input_, collection = endpoint(query), Collection("id")
    collection.follow(input_)
    run(dsn, "UPDATE t SET n = 2", "UPDATE t SET id = 3 WHERE id = 2", "DELETE FROM t WHERE id = 1")
    assert sum(collection.follow(input_)) == 5
    assert collection.rows == {(3,): {"id": 3, "n": 2, "name": "y" * 100000}}
    # Without that, the log lacks the value: refused, and never taken for NULL.
    run(dsn, "ALTER TABLE t REPLICA IDENTITY DEFAULT", "UPDATE t SET n = 3")
    with pytest.raises(MzplanError, match=r"MZ228.*public\.t\.name"):
        collection.follow(input_)
    input_.close()


def test_truncate_and_added_or_dropped_columns(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))", "INSERT INTO t VALUES (1, 'a')")
    query, collection = source(dsn, tmp_path), Collection("id")
    input_ = endpoint(query)
    collection.follow(input_)
    run(
        dsn,
        "ALTER TABLE t ADD COLUMN more int DEFAULT 5",
        "INSERT INTO t VALUES (2, 'b', 1)",
        "ALTER TABLE t ALTER COLUMN name TYPE text",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (3, 'c', 1)",
    )
    collection.follow(input_)
    assert names(collection) == {1: "a", 2: "b", 3: "c"}
    run(
        dsn, "INSERT INTO t VALUES (4, 'd')", "ALTER TABLE t RENAME name TO title", "UPDATE t SET title = 'x'"
    )
    with pytest.raises(MzplanError, match=r"MZ230.*public\.t has no column name"):
        collection.follow(input_)
    assert names(collection) == {1: "a", 2: "b", 3: "c"}
    # Back to what is declared: nothing was lost meanwhile.
    input_.close()
    run(dsn, "ALTER TABLE t RENAME title TO name")
    input_ = endpoint(query)
    with pytest.raises(MzplanError, match="MZ230"):  # the log still has rows of the other shape
        collection.follow(input_)
    input_.close()

    other, rows = endpoint(source(dsn, tmp_path, "cd34")), Collection("id")
    rows.follow(other)
    run(dsn, "TRUNCATE t")
    with pytest.raises(MzplanError, match=r"MZ231.*public\.t was truncated"):
        rows.follow(other)
    other.close()


def test_several_tables_and_an_added_table(dsn: str, tmp_path: Path) -> None:
    """One table is partitioned, one is in another schema, and the third is read when it is added."""
    run(
        dsn,
        'CREATE SCHEMA "Odd schema"',
        "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40)) PARTITION BY RANGE (id)",
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (100) TO (1000)",
        'CREATE TABLE "Odd schema"."T" (id bigint PRIMARY KEY, extra int, "Name" varchar(40))',
        "CREATE TABLE late (id bigint PRIMARY KEY, name varchar(40))",
        "INSERT INTO t VALUES (1, 'low'), (100, 'high')",
        """INSERT INTO "Odd schema"."T" VALUES (1, 0, 'odd')""",
        "INSERT INTO late VALUES (1, 'old'), (2, 'gone')",
    )
    tables = ["public.t", "Odd schema.T"]
    more = {"key": ["id", "shard"], "include": {"table": "shard"}}
    collection = Collection("id", "shard")
    input_ = endpoint(source(dsn, tmp_path, tables=tables, **more))
    collection.follow(input_)
    run(
        dsn,
        "UPDATE t SET name = 'changed' WHERE id = 100",
        "UPDATE t SET id = 200 WHERE id = 1",  # from one partition to another
        """UPDATE "Odd schema"."T" SET "Name" = 'odder'""",
        "INSERT INTO late VALUES (3, 'new')",
    )
    collection.follow(input_)
    input_.close()
    assert {key: row["name"] for key, row in collection.rows.items()} == {
        (100, "public.t"): "changed",
        (200, "public.t"): "low",
        (1, "Odd schema.T"): "odder",
    }
    run(dsn, "DELETE FROM late WHERE id = 2", "DELETE FROM t WHERE id = 200")
    input_ = endpoint(source(dsn, tmp_path, tables=[*tables, "public.late"], **more))
    collection.follow(input_)
    run(dsn, "UPDATE late SET name = 'newer' WHERE id = 1")
    collection.follow(input_)
    input_.close()
    assert {key: row["name"] for key, row in collection.rows.items()} == {
        (100, "public.t"): "changed",
        (1, "Odd schema.T"): "odder",
        (1, "public.late"): "newer",
        (3, "public.late"): "new",
    }


def test_lost_and_moved_slots_are_reported(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))", "INSERT INTO t VALUES (1, 'a')")
    query, collection = source(dsn, tmp_path), Collection("id")
    input_ = endpoint(query)
    collection.follow(input_)
    input_.close()
    slot = Names.of(query).slot
    run(dsn, "INSERT INTO t VALUES (2, 'b')")
    run(dsn, f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    with pytest.raises(MzplanError, match="MZ223"):
        collection.follow(endpoint(query))
    run(dsn, f"SELECT pg_drop_replication_slot('{slot}')")
    with pytest.raises(MzplanError, match="MZ223"):
        collection.follow(endpoint(query))


def test_only_own_slots_and_publications_are_dropped(dsn: str, tmp_path: Path) -> None:
    run(
        dsn,
        "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))",
        "CREATE PUBLICATION theirs FOR ALL TABLES",
        "CREATE TABLE other (id bigint PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 'a')",
    )
    own = source(dsn, tmp_path)
    adopting = source(dsn, tmp_path, "cd34", publication="theirs", slot=f"theirs_{tmp_path.name[-20:]}")
    for query in (own, adopting):
        collection, input_ = Collection("id"), endpoint(query)
        collection.follow(input_)
        run(dsn, "INSERT INTO t VALUES (2, 'b')", "INSERT INTO other VALUES (1)")
        collection.follow(input_)
        assert names(collection) == {1: "a", 2: "b"}
        run(dsn, "DELETE FROM t WHERE id = 2", "DELETE FROM other")
        collection.follow(input_)
        input_.close()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for query in (own, own, adopting):
            unpublish(connection, Names.of(query))
        assert connection.execute("SELECT pubname FROM pg_publication").fetchall() == [("theirs",)]
        assert find_slot(connection, Names.of(own).slot) is None
        assert find_slot(connection, Names.of(adopting).slot) is not None


def test_a_replaced_table_is_reported(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_input, "_TABLES_EVERY_S", 0.0)
    table = "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))"
    run(dsn, table, "INSERT INTO t VALUES (1, 'a')")
    query, collection = source(dsn, tmp_path), Collection("id")
    input_ = endpoint(query)
    collection.follow(input_)
    # Renamed and back: nothing of it is lost, for the log tells tables by their oids.
    run(dsn, "ALTER TABLE t RENAME TO x", "INSERT INTO x VALUES (2, 'b')", "ALTER TABLE x RENAME TO t")
    collection.follow(input_)
    assert names(collection) == {1: "a", 2: "b"}
    # A durable step is read as what it was, whatever has the name by then.
    run(dsn, "INSERT INTO t VALUES (3, 'c')")
    step = committed_step(input_)
    run(dsn, "ALTER TABLE t RENAME TO old", table, "INSERT INTO t VALUES (9, 'other')")
    collection.take(input_, step)
    input_.expire(step + 1)
    assert names(collection) == {1: "a", 2: "b", 3: "c"}
    for one in (input_, endpoint(query)):  # while it runs, and at its start
        with pytest.raises(MzplanError, match=r"MZ043.*public\.t is not the one"):
            collection.follow(one)
        one.close()
    told = PostgresSource().check_position(query, json.dumps({"step": step + 1}))
    assert told is not None and told.code == "MZ043" and "--replace" in (told.hint or "")
    run(dsn, "DROP TABLE t", "ALTER TABLE old RENAME TO t")
    collection.follow(endpoint(query))
    run(dsn, f"ALTER PUBLICATION {Names.of(query).publication} DROP TABLE t")
    told = PostgresSource().check_position(query, json.dumps({"step": step + 1}))
    assert told is not None and told.code == "MZ043" and "does not publish it" in told.detail
    run(dsn, f"ALTER PUBLICATION {Names.of(query).publication} ADD TABLE t WHERE (id > 1)")
    told = PostgresSource().check_position(query, json.dumps({"step": step + 1}))
    assert told is not None and told.code == "MZ043" and "WHERE (id > 1)" in told.detail


def test_a_key_that_is_no_longer_logged_is_reported(dsn: str, tmp_path: Path) -> None:
    run(
        dsn,
        "CREATE TABLE t (id bigint PRIMARY KEY, code int NOT NULL UNIQUE, name varchar(40))",
        "INSERT INTO t VALUES (1, 1, 'a')",
    )
    input_, collection = endpoint(source(dsn, tmp_path)), Collection("id")
    collection.follow(input_)
    run(
        dsn,
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD UNIQUE (id), ADD PRIMARY KEY (code)",
        "INSERT INTO t VALUES (2, 2, 'b')",  # has its key
    )
    collection.follow(input_)
    assert names(collection) == {1: "a", 2: "b"}
    run(dsn, "UPDATE t SET id = 7 WHERE id = 1")
    with pytest.raises(MzplanError, match=r"MZ228.*public\.t isn't in the log"):
        collection.follow(input_)
    input_.close()


def test_a_slot_advanced_by_another_client_is_reported(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))", "INSERT INTO t VALUES (1, 'a')")
    query, collection = source(dsn, tmp_path), Collection("id")
    input_ = endpoint(query)
    collection.follow(input_)
    run(dsn, "INSERT INTO t VALUES (2, 'b')")
    step = committed_step(input_)
    advance = f"SELECT pg_replication_slot_advance('{Names.of(query).slot}', pg_current_wal_lsn())"
    run(dsn, advance)
    with pytest.raises(MzplanError, match="MZ223"):  # the durable step
        collection.take(input_, step)
    input_.close()

    query = source(dsn, tmp_path, "cd34")
    input_ = endpoint(query)
    Collection("id").follow(input_)
    run(dsn, "INSERT INTO t VALUES (3, 'c')", advance.replace("ab12", "cd34"))
    with pytest.raises(MzplanError, match="MZ223"):  # the one that would come
        offered(input_, input_.steps().stop)
    input_.close()


def test_a_partition_without_full_replica_identity_loses_no_value(dsn: str, tmp_path: Path) -> None:
    """The root's identity is FULL. So for an update of the key, the server says that the old row is complete,
    but sends only its key."""
    run(
        dsn,
        "CREATE TABLE t (id bigint PRIMARY KEY, name text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "ALTER TABLE low ALTER COLUMN name SET STORAGE EXTERNAL",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, repeat('x', 100000)), (2, NULL)",
    )
    input_, collection = endpoint(source(dsn, tmp_path)), Collection("id")
    collection.follow(input_)
    run(dsn, "UPDATE t SET id = 3 WHERE id = 2")
    collection.follow(input_)
    assert names(collection) == {1: "x" * 100000, 3: None}
    run(dsn, "UPDATE t SET id = 5 WHERE id = 1")
    with pytest.raises(MzplanError, match=r"MZ228.*public\.t\.name"):
        collection.follow(input_)
    input_.close()


def test_partitions_attached_empty_and_with_rows(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The existing rows of an attached partition are read, because the log doesn't have them. They change
    meanwhile."""
    monkeypatch.setattr(postgres_input, "_TABLES_EVERY_S", 0.0)
    columns = "(id bigint PRIMARY KEY, name varchar(40))"
    run(
        dsn,
        f"CREATE TABLE t {columns} PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "INSERT INTO t VALUES (1, 'a')",
    )
    query, collection = source(dsn, tmp_path), Collection("id")
    input_ = endpoint(query)
    collection.follow(input_)
    run(
        dsn,
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (100) TO (200)",
        "INSERT INTO t VALUES (101, 'b')",
    )
    made = "CREATE TABLE top PARTITION OF t FOR VALUES FROM (900) TO (999); INSERT INTO t VALUES (901, 'z')"
    run(dsn, f"BEGIN; {made}; COMMIT")
    assert collection.follow(input_) + collection.follow(input_) == [2]  # not read again
    attach = [
        f"CREATE TABLE more {columns}",
        "INSERT INTO more VALUES (201, 'c'), (202, 'd'), (203, 'e')",
        "ALTER TABLE t ATTACH PARTITION more FOR VALUES FROM (200) TO (300)",
        "UPDATE t SET name = 'changed' WHERE id = 202",
        "DELETE FROM t WHERE id = 203",
    ]
    run(dsn, *attach)
    collection.follow(input_)
    collection.follow(input_)
    expected = {1: "a", 101: "b", 201: "c", 202: "changed", 901: "z"}
    assert names(collection) == expected
    input_.close()
    # One takes the place and the name of another while nobody reads.
    run(dsn, "ALTER TABLE t DETACH PARTITION more", "ALTER TABLE more RENAME TO old")
    run(dsn, *(one.replace("20", "30").replace("(300) TO (300)", "(300) TO (400)") for one in attach))
    for _ in range(2):
        input_ = endpoint(query)
        collection.follow(input_)
        input_.close()
    expected |= {301: "c", 302: "changed"}
    assert names(collection) == expected
    # In one transaction; and with a level between.
    run(
        dsn,
        "BEGIN; "
        + "; ".join(one.replace("20", "40").replace("more", "yet") for one in attach[:2])
        + "; ALTER TABLE t ATTACH PARTITION yet FOR VALUES FROM (400) TO (500); COMMIT",
    )
    run(
        dsn,
        f"CREATE TABLE mid {columns} PARTITION BY RANGE (id)",
        "CREATE TABLE sub PARTITION OF mid FOR VALUES FROM (500) TO (600)",
        "INSERT INTO mid VALUES (501, 'x')",
        "ALTER TABLE t ATTACH PARTITION mid FOR VALUES FROM (500) TO (600)",
    )
    for _ in range(2):
        input_ = endpoint(query)
        collection.follow(input_)
        input_.close()
    assert names(collection) == expected | {401: "c", 402: "d", 403: "e", 501: "x"}


def test_a_column_with_a_changed_type(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source continues if all values stay the same. Otherwise it stops, also after a restart."""
    monkeypatch.setattr(postgres_input, "_TABLES_EVERY_S", 0.0)
    run(
        dsn,
        "CREATE TABLE t (id int PRIMARY KEY, name varchar(9), n numeric(20,4))",
        "INSERT INTO t VALUES (1, 'a', 1.2345)",
    )
    query = source(dsn, tmp_path, schema="id BIGINT, name STRING, n DECIMAL(38,6)")
    input_, collection = endpoint(query), Collection("id")
    collection.follow(input_)
    run(
        dsn,
        "ALTER TABLE t ALTER id TYPE bigint, ALTER name TYPE varchar(20), ALTER n TYPE numeric(22,6)",
        "INSERT INTO t VALUES (2, 'b', 1.234567)",
    )
    collection.follow(input_)
    assert collection.rows[2,]["n"] == Decimal("1.234567")
    run(dsn, "ALTER TABLE t ALTER n TYPE numeric(22,4)")
    for again in (input_, endpoint(query)):
        with pytest.raises(MzplanError, match=r"MZ230.*Column n of table public.t") as told:
            offered(again, again.steps().stop)
        assert "it was numeric(22,6), and is now numeric(22,4)" in told.value.diagnostics[0].detail
        again.close()


@pytest.mark.parametrize(
    ("statement", "column", "why"),
    [
        (
            "BEGIN; ALTER TABLE t RENAME name TO old; ALTER TABLE t RENAME later TO name; COMMIT",
            "name",
            "it was column number 2 of the table, and is now number 3",
        ),
        (
            "ALTER TABLE t DROP COLUMN name, ADD COLUMN name text DEFAULT 'x'",
            "name",
            "it was column number 2 of the table, and is now number 6",
        ),
        ("ALTER TYPE mood RENAME VALUE 'sad' TO 'low'", "m", "it no longer has sad"),
        ("ALTER TYPE mood RENAME VALUE 'sad' TO 'low'", "ms", "it no longer has sad"),
    ],
)
def test_schema_changes_that_change_values_without_sending_rows(
    dsn: str, tmp_path: Path, statement: str, column: str, why: str
) -> None:
    """PostgreSQL sends no rows for such a change. The source stops before it reads a later row."""
    run(
        dsn,
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE t (id bigint PRIMARY KEY, name text, later text, m mood, ms mood[])",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'a', 'x', 'sad', '{sad}')",
    )
    enum = "ms ARRAY<STRING>" if column == "ms" else "m STRING"
    query = source(dsn, tmp_path, schema=f"id BIGINT, name STRING, {enum}")
    input_, collection = endpoint(query), Collection("id")
    collection.follow(input_)
    run(dsn, "ALTER TYPE mood ADD VALUE 'good'", "INSERT INTO t (id, name, m) VALUES (2, 'b', 'good')")
    collection.follow(input_)
    assert names(collection) == {1: "a", 2: "b"}
    run(dsn, statement, "INSERT INTO t (id, name) VALUES (3, 'c')")
    for again in (input_, endpoint(query)):
        with pytest.raises(MzplanError, match=rf"MZ230.*olumn {column} of table public\.t") as told:
            collection.follow(again)
        assert why in told.value.diagnostics[0].detail
        again.close()
    assert names(collection) == {1: "a", 2: "b"}
    found = PostgresSource().check_position(query, json.dumps({"step": input_.steps().stop}))
    assert found is not None and found.code == "MZ230" and "--replace" in found.hint


def test_a_column_declared_before_earlier_changes_are_read(dsn: str, tmp_path: Path) -> None:
    """Earlier rows have NULL in it, also in a step that was durable before. Dropping the column is an
    error."""
    run(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(9))", "INSERT INTO t VALUES (1, 'a')")
    input_, collection = endpoint(source(dsn, tmp_path)), Collection("id")
    collection.follow(input_)
    run(dsn, "INSERT INTO t VALUES (2, 'b')")
    assert offered(input_, input_.steps().stop)
    input_.commit(input_.steps().stop)
    input_.close()
    run(
        dsn,
        "INSERT INTO t VALUES (3, 'c')",
        "ALTER TABLE t ADD COLUMN more int",
        "INSERT INTO t VALUES (4, 'd', 4)",
    )
    query = source(dsn, tmp_path, schema="id BIGINT, name STRING, more INT")
    input_ = endpoint(query)
    assert collection.follow(input_) == [1, 2]
    assert {key[0]: row.get("more") for key, row in collection.rows.items()} == {
        1: None,
        2: None,
        3: None,
        4: 4,
    }
    run(dsn, "ALTER TABLE t DROP COLUMN more", "UPDATE t SET name = 'x'")
    for again in (input_, endpoint(query), endpoint(query)):
        with pytest.raises(MzplanError, match=r"MZ230.*public\.t has no column more"):
            collection.follow(again)
        again.close()


def test_a_column_declared_after_everything_was_read(dsn: str, tmp_path: Path) -> None:
    """The slot sends rows again that were read, without the new column."""
    run(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(9))")
    input_, collection = endpoint(source(dsn, tmp_path)), Collection("id")
    collection.follow(input_)
    run(dsn, "INSERT INTO t VALUES (1, 'a')")
    step = committed_step(input_)
    collection.take(input_, step)
    input_.close()
    run(dsn, "ALTER TABLE t ADD COLUMN more int", "INSERT INTO t VALUES (2, 'b', 5)")
    input_ = endpoint(source(dsn, tmp_path, schema="id BIGINT, name STRING, more INT"))
    assert offered(input_, step + 1)
    input_.commit(step + 1)
    collection.take(input_, step + 1)
    assert collection.rows[2,]["more"] == 5
    input_.close()

"""The PostgreSQL source's endpoint on a real server: snapshot, changes, types, and ways to lose a slot."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mzplan.connectors.postgres.source import endpoint as postgres_input
from mzplan.connectors.postgres.source import snapshot as postgres_snapshot
from mzplan.connectors.postgres.source.slots import Names, find_slot, unpublish
from mzplan.model.diagnostics import MzplanError
from tests.contract.postgres_sources import Reading, Tables
from tests.support import eventually

COLUMNS = "(id bigint PRIMARY KEY, name varchar(40))"
TABLE = f"CREATE TABLE t {COLUMNS}"


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source looks at the tables in the catalogue before each step."""
    monkeypatch.setattr(postgres_input, "_TABLES_EVERY_S", 0.0)


def test_an_interrupted_snapshot_continues_in_a_later_one(
    shop: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after each step. In between, rows change or move to blocks that were read, and the
    file is rewritten. In the end, the collection equals the table."""
    monkeypatch.setattr(postgres_snapshot, "_CHUNK_BLOCKS", 2)
    shop.run(
        "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(100)) WITH (fillfactor = 50)",
        "INSERT INTO t SELECT g, repeat('n', 60) || g FROM generate_series(1, 600) g",
    )
    orders = shop.read(snapshot={"parallelism": 2})
    between = [
        ["UPDATE t SET name = name || '!' WHERE id % 7 = 0", "DELETE FROM t WHERE id % 11 = 0"],
        ["VACUUM FULL t"],
        ["UPDATE t SET id = id + 10000 WHERE id % 13 = 0"],
        ["INSERT INTO t SELECT g, 'late' FROM generate_series(2000, 2300) g"],
        ["VACUUM t", "INSERT INTO t VALUES (11, 'again')"],
    ]
    steps = 0
    while orders.offers(seconds=0.0):
        step = orders.commit()
        orders.input.close()  # its snapshot is gone
        if between:
            shop.run(*between.pop(0))
        orders.restart()
        orders.finish(step)
        steps += 1
    assert steps > 5 and not between
    assert orders.names == dict(shop.rows("SELECT id, name FROM t"))


def test_a_durable_step_is_the_same_whenever_it_is_read(shop: Tables) -> None:
    """Steps have whole transactions. One exceeds the decoder's buffer, and two are interleaved."""
    shop.run(TABLE)
    orders = shop.read()
    orders.input.offers(0)
    orders.input.commit(0)
    with psycopg.connect(shop.dsn) as first, psycopg.connect(shop.dsn) as second:
        first.execute("INSERT INTO t SELECT g, 'n' || g FROM generate_series(1, 60000) g")
        second.execute("INSERT INTO t VALUES (-1, 'other')")
        second.commit()
        assert orders.take(orders.commit()) == 1
        first.commit()
    assert orders.commit() == 2
    shop.run("DELETE FROM t WHERE id = 7")
    read = []
    for _ in range(2):
        orders.restart()
        (part,) = orders.input.parts(2)
        batches = list(orders.input.batches(part))
        assert max(batch.num_rows for batch in batches) <= 50_000
        read.append(pa.Table.from_batches(batches))
    assert read[0].equals(read[1]) and read[0].num_rows == 60_000
    places = read[0].column("_position").combine_chunks()
    assert len(pc.unique(places.field("lsn"))) == 1
    assert places.field("sequence").to_pylist() == list(range(2, 120_001, 2))


def test_the_slot_advances_after_expire_and_when_idle(shop: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_input, "_IDLE_EVERY_S", 0.0)
    shop.run(TABLE, "CREATE TABLE other (x text)")
    orders = shop.read()
    assert orders.query.checkpoint is not None

    lsn = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE database = current_database()"

    def confirmed() -> int:
        return int(shop.rows(lsn)[0][0])

    orders.input.offers(0)
    orders.input.commit(0)
    begun = confirmed()
    shop.run("INSERT INTO t VALUES (1, 'a')")
    assert orders.commit() == 1
    assert confirmed() == begun
    orders.input.expire(2)
    assert confirmed() > begun
    # Changes of other tables are skipped after Spark has recorded that all steps are done.
    before = confirmed()
    shop.run("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
    assert not orders.input.offers(2)
    assert confirmed() == before
    spark = Path(orders.query.checkpoint.spark)
    for log in ("offsets", "commits"):
        (spark / log).mkdir(parents=True)
        (spark / log / "1").write_text('v1\n{}\n{"step": 2}')
    shop.run("INSERT INTO other VALUES ('y')")
    eventually("the slot advances", lambda: not orders.input.offers(2) and confirmed() > before, 10)
    shop.run("INSERT INTO t VALUES (2, 'b')")
    orders.resume()
    assert orders.names == {2: "b"}


def restart_with_free_slot(shop: Tables, orders: Reading) -> None:
    """The server releases the slot of a closed connection a moment later."""
    orders.restart()
    active = "SELECT 1 FROM pg_replication_slots WHERE active AND database = current_database()"
    eventually("the slot is free", lambda: not shop.rows(active))


@pytest.mark.parametrize("cut", ["before the steps are expired", "before the slot is advanced"])
def test_an_interrupted_expire_is_not_a_moved_slot(
    shop: Tables, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    orders = shop.read_after(TABLE, "INSERT INTO t VALUES (0, 'z')")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    restart_with_free_slot(shop, orders)
    shop.run("INSERT INTO t VALUES (1, 'a')")
    of, name = (orders.input._log, "expire") if "steps" in cut else (postgres_input, "advance")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(of, name, killed)
        orders.follow()
    restart_with_free_slot(shop, orders)
    orders.input.check()
    shop.run("INSERT INTO t VALUES (2, 'b')")
    orders.follow()
    assert orders.names == {0: "z", 1: "a", 2: "b"}


INSTANT = datetime(2024, 2, 29, 10, 0, 0, 123456, UTC)
LONG = "123456789012345678901234567890123456789.5"
TYPES = {
    "a boolean": ("BOOLEAN", "true", True),
    "b smallint": ("SMALLINT", "-32768", -32768),
    "d bigint": ("BIGINT", "-9223372036854775808", -(2**63)),
    "e numeric(20,4)": ("DECIMAL(20,4)", "1234567890.1234", Decimal("1234567890.1234")),
    "f numeric": ("STRING", LONG, LONG),
    "g real": ("FLOAT", "1.5", 1.5),
    "h double precision": ("DOUBLE", "0.1", 0.1),
    "i text": ("STRING", "'é\t\\n''quoted'''", "é\t\\n'quoted'"),
    "j timestamptz": ("TIMESTAMP", "'2024-02-29 12:00:00.123456+02'", INSTANT),
    "k timestamp": ("TIMESTAMP_NTZ", "'2024-02-29 12:00:00.5'", datetime(2024, 2, 29, 12, 0, 0, 500000)),
    "l date": ("DATE", "'1900-01-31'", date(1900, 1, 31)),
    "m time": ("STRING", "'23:59:59.5'", "23:59:59.5"),
    "o jsonb": ("STRING", """'{"b": [1, null], "a": "x"}'""", '{"a": "x", "b": [1, null]}'),
    "q bytea": ("BINARY", "'\\x00ff'", b"\x00\xff"),
    "s text[]": ("ARRAY<STRING>", """'{"a,b","NULL",NULL,"q\\"x\\\\y"}'""", ["a,b", "NULL", None, 'q"x\\y']),
    "t int[][]": ("ARRAY<ARRAY<INT>>", "'{{1,2},{3,4}}'", [[1, 2], [3, 4]]),
    "u mood": ("STRING", "'happy'", "happy"),
    "v posint": ("INT", "7", 7),
    "x interval": ("STRING", "'1 day 02:00:00'", "1 day 02:00:00"),
    "ya boolean": ("STRING", "true", "t"),
    "yb char(4)": ("STRING", "'ab'", "ab  "),
    "aa timestamptz[]": ("ARRAY<TIMESTAMP>", "'{2024-01-01 00:00+00}'", [datetime(2024, 1, 1, tzinfo=UTC)]),
    "ab varchar(5)": ("VARCHAR(5)", "'ab'", "ab"),
    "ad integer": ("BIGINT", "5", 5),
    "ae integer": ("DECIMAL(12,2)", "5", Decimal("5.00")),
    "ag nothing": ("STRING", "ROW(NULL, NULL)", "(,)"),
    "ah real": ("DOUBLE", "0.1", 0.10000000149011612),
    "ai real[]": ("ARRAY<DOUBLE>", "'{0.1,Infinity,NULL}'", [0.10000000149011612, float("inf"), None]),
    "aj ratio": ("DOUBLE", "0.1", 0.10000000149011612),
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


def test_every_type_by_snapshot_and_by_change(shop: Tables) -> None:
    columns = ", ".join(TYPES)
    values = ", ".join(f"({text})::{name.partition(' ')[2]}" for name, (_, text, _) in TYPES.items())
    nulls = ", NULL" * len(TYPES)
    shop.run(
        "CREATE TYPE mood AS ENUM ('happy', 'sad')",
        "CREATE DOMAIN posint AS integer CHECK (value > 0)",
        "CREATE DOMAIN ratio AS real",
        "CREATE TYPE pair AS (one int, other text)",
        "CREATE DOMAIN nothing AS pair",
        f"CREATE TABLE t (id bigint PRIMARY KEY, {columns})",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"INSERT INTO t VALUES (1, {values}), (2{nulls})",
        *(f"ALTER DATABASE {shop.dsn.rpartition('/')[2]} SET {setting}" for setting in ODD_SETTINGS),
    )
    schema = ", ".join(f"{name.partition(' ')[0]} {type_}" for name, (type_, _, _) in TYPES.items())
    orders = shop.read(schema=f"id BIGINT, {schema}")
    assert orders.follow() == [2]
    shop.run("SET client_encoding = 'UTF8'", f"INSERT INTO t VALUES (3, {values}), (4{nulls})")
    assert orders.follow() == [2]
    expected = {name.partition(" ")[0]: value for name, (_, _, value) in TYPES.items()}
    for snapshot, change, wanted in ((1, 3, expected), (2, 4, dict.fromkeys(expected))):
        for id_ in (snapshot, change):
            assert orders.rows[id_,] == {"id": id_, **wanted}


def test_a_snapshot_may_exceed_the_roles_statement_timeout(shop: Tables) -> None:
    shop.run(
        "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(1000))",
        "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 30000) g",
        f"ALTER DATABASE {shop.dsn.rpartition('/')[2]} SET statement_timeout = '500ms'",
    )
    orders = shop.read()
    input_ = orders.input
    orders.commit()
    rows = 0
    for part in input_.parts(0):
        for batch in input_.batches(part):
            rows += batch.num_rows
            time.sleep(0.6 if rows < 10_000 else 0)  # a slow reader
    assert rows == 30_000
    # An error of the server in the middle of the rows is explained.
    cancel = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE state = 'active' AND query ~* 'copy.*ctid'"
        " AND pid <> pg_backend_pid() AND datname = current_database()"
    )
    with pytest.raises(MzplanError, match="MZ059") as stopped:
        for part in input_.parts(0):
            for _ in input_.batches(part):
                shop.run(cancel)
    assert "canceling statement due to user request" in stopped.value.diagnostics[0].detail


UNFIT = [
    ("numeric", "1.005", "DECIMAL(10,2)"),
    ("timestamptz", "'infinity'", "TIMESTAMP"),
    ("timestamp", "'-infinity'", "TIMESTAMP_NTZ"),
    ("date", "'0044-03-15 BC'", "DATE"),
    ("date", "'infinity'", "DATE"),
    ("bigint", "3000000000", "INT"),
    ("varchar(9)", "'abcdef'", "VARCHAR(5)"),
]


def test_a_value_that_does_not_fit_is_an_error(shop: Tables) -> None:
    columns = [(f"v{number}", *types) for number, types in enumerate(UNFIT)]
    created = ", ".join(f"{name} {type_}" for name, type_, _, _ in columns)
    declared = ", ".join(f"{name} {type_}" for name, _, _, type_ in columns)
    shop.run(f"CREATE TABLE t (id bigint PRIMARY KEY, {created})")
    orders = shop.read(schema=f"id BIGINT, {declared}")
    for name, _, value, _ in columns:
        shop.run("DELETE FROM t", f"INSERT INTO t (id, {name}) VALUES (1, {value})")
        orders.refuses(rf"MZ232.*public\.t\.{name}", restarts=0)
        orders.restart()
    # The snapshot is empty, so the first change that doesn't fit is next.
    shop.run("DELETE FROM t")
    orders.refuses(r"MZ232.*public\.t\.v1", restarts=0)


def test_unchanged_large_values_are_kept(shop: Tables) -> None:
    orders = shop.read_after(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int, name text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE t ALTER COLUMN name SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, 1, repeat('x', 100000)), (2, 1, repeat('y', 100000))",
        schema="id BIGINT, n INT, name STRING",
    )
    shop.run("UPDATE t SET n = 2", "UPDATE t SET id = 3 WHERE id = 2", "DELETE FROM t WHERE id = 1")
    assert sum(orders.follow()) == 5
    assert orders.rows == {(3,): {"id": 3, "n": 2, "name": "y" * 100000}}
    # With the default identity, the log lacks the value. That is an error, and the value isn't NULL.
    shop.run("ALTER TABLE t REPLICA IDENTITY DEFAULT", "UPDATE t SET n = 3")
    orders.refuses(r"MZ228.*public\.t\.name")


def test_added_columns_are_ignored_and_a_renamed_column_is_an_error(shop: Tables) -> None:
    orders = shop.read_one_row()
    shop.run(
        "ALTER TABLE t ADD COLUMN more int DEFAULT 5",
        "INSERT INTO t VALUES (2, 'b', 1)",
        "ALTER TABLE t ALTER COLUMN name TYPE text",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (3, 'c', 1)",
    )
    orders.follow()
    shop.run(
        "INSERT INTO t VALUES (4, 'd')", "ALTER TABLE t RENAME name TO title", "UPDATE t SET title = 'x'"
    )
    orders.refuses(r"MZ230.*public\.t has no column name", restarts=0)
    shop.run("ALTER TABLE t RENAME title TO name")
    orders.restart()
    orders.refuses("MZ230")  # the log still has rows with the other name
    assert orders.names == {1: "a", 2: "b", 3: "c"}


def test_several_tables_and_an_added_table(shop: Tables) -> None:
    """One table is partitioned, one is in another schema, and the third is read when it is added."""
    shop.run(
        'CREATE SCHEMA "Odd schema"',
        f"{TABLE} PARTITION BY RANGE (id)",
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (100) TO (1000)",
        'CREATE TABLE "Odd schema"."T" (id bigint PRIMARY KEY, extra int, "Name" varchar(40))',
        f"CREATE TABLE late {COLUMNS}",
        "INSERT INTO t VALUES (1, 'low'), (100, 'high')",
        """INSERT INTO "Odd schema"."T" VALUES (1, 0, 'odd')""",
        "INSERT INTO late VALUES (1, 'old'), (2, 'gone')",
    )
    tables, more = ["public.t", "Odd schema.T"], {"key": ["id", "shard"], "include": {"table": "shard"}}
    orders = shop.read(tables=tables, **more)
    orders.follow()
    shop.run(
        "UPDATE t SET name = 'changed' WHERE id = 100",
        "UPDATE t SET id = 200 WHERE id = 1",  # from one partition to another
        """UPDATE "Odd schema"."T" SET "Name" = 'odder'""",
        "INSERT INTO late VALUES (3, 'new')",
        "BEGIN; INSERT INTO t VALUES (5, 'x'); DELETE FROM t WHERE id = 5; COMMIT",
        "BEGIN; INSERT INTO t VALUES (6, 'x'); ROLLBACK",
    )
    assert sum(orders.follow()) == 6  # each change once
    assert orders.follow() == []
    expected = {(100, "public.t"): "changed", (200, "public.t"): "low", (1, "Odd schema.T"): "odder"}
    assert {key: row["name"] for key, row in orders.rows.items()} == expected
    shop.run("DELETE FROM late WHERE id = 2", "DELETE FROM t WHERE id = 200")
    orders.restart(shop.query(tables=[*tables, "public.late"], **more))
    orders.follow()
    shop.run("UPDATE late SET name = 'newer' WHERE id = 1")
    orders.follow()
    del expected[200, "public.t"]
    expected |= {(1, "public.late"): "newer", (3, "public.late"): "new"}
    assert {key: row["name"] for key, row in orders.rows.items()} == expected


def test_only_own_slots_and_publications_are_dropped(shop: Tables) -> None:
    shop.run(
        TABLE,
        "CREATE PUBLICATION theirs FOR ALL TABLES",
        "CREATE TABLE other (id bigint PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 'a')",
    )
    own = shop.read()
    adopting = shop.read("cd34", publication="theirs", slot=f"theirs_{shop.folder.name[-20:]}")
    for orders in (own, adopting):
        orders.follow()
        shop.run("INSERT INTO t VALUES (2, 'b')", "INSERT INTO other VALUES (1)")
        orders.follow()
        assert orders.names == {1: "a", 2: "b"}
        shop.run("DELETE FROM t WHERE id = 2", "DELETE FROM other")
        orders.follow()
        orders.input.close()
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        for orders in (own, own, adopting):
            unpublish(connection, Names.of(orders.query))
        assert find_slot(connection, Names.of(own.query).slot) is None
        assert find_slot(connection, Names.of(adopting.query).slot) is not None
    assert shop.rows("SELECT pubname FROM pg_publication") == [("theirs",)]


@pytest.mark.usefixtures("looks_often")
def test_a_replaced_or_truncated_table_is_reported(shop: Tables) -> None:
    orders = shop.read_one_row()
    # If the table is renamed and renamed back, nothing is lost, because the log identifies tables by oid.
    shop.run("ALTER TABLE t RENAME TO x", "INSERT INTO x VALUES (2, 'b')", "ALTER TABLE x RENAME TO t")
    orders.follow()
    assert orders.names == {1: "a", 2: "b"}
    # A durable step is read from the table that it was made for.
    shop.run("INSERT INTO t VALUES (3, 'c')")
    step = orders.commit()
    shop.run("ALTER TABLE t RENAME TO old", TABLE, "INSERT INTO t VALUES (9, 'other')")
    orders.finish(step)
    assert orders.names == {1: "a", 2: "b", 3: "c"}
    orders.refuses(r"MZ043.*public\.t is not the one")
    found = orders.position_problem()
    assert found.code == "MZ043" and "--replace" in (found.hint or "")
    shop.run("DROP TABLE t", "ALTER TABLE old RENAME TO t")
    orders.resume()
    shop.run("TRUNCATE t")
    orders.refuses(r"MZ231.*public\.t was truncated")


def test_a_table_that_is_no_longer_published_is_reported(shop: Tables) -> None:
    orders = shop.read_one_row()
    publication = Names.of(orders.query).publication
    for statement, why in (
        ("DROP TABLE t", "does not publish it"),
        ("ADD TABLE t WHERE (id > 1)", "WHERE (id > 1)"),
    ):
        shop.run(f"ALTER PUBLICATION {publication} {statement}")
        found = orders.position_problem()
        assert found.code == "MZ043" and why in found.detail


def test_a_key_that_is_no_longer_logged_is_reported(shop: Tables) -> None:
    orders = shop.read_after(
        "CREATE TABLE t (id bigint PRIMARY KEY, code int NOT NULL UNIQUE, name varchar(40))",
        "INSERT INTO t VALUES (1, 1, 'a')",
    )
    shop.run(
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD UNIQUE (id), ADD PRIMARY KEY (code)",
        "INSERT INTO t VALUES (2, 2, 'b')",  # has its key
    )
    orders.follow()
    assert orders.names == {1: "a", 2: "b"}
    shop.run("UPDATE t SET id = 7 WHERE id = 1")
    orders.refuses(r"MZ228.*public\.t isn't in the log")


def test_lost_and_moved_slots_are_reported(shop: Tables) -> None:
    """Another client advances the slots of a running and a stopped source, and then drops one."""
    shop.run(TABLE, "INSERT INTO t VALUES (1, 'a')")
    coming, durable = shop.read("cd34"), shop.read()
    coming.follow()
    restart_with_free_slot(shop, coming)
    durable.follow()
    shop.run("INSERT INTO t VALUES (2, 'b')")
    step = durable.commit()
    for orders in (durable, coming):
        slot = Names.of(orders.query).slot
        shop.run(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    with pytest.raises(MzplanError, match="MZ223"):
        durable.take(step)
    coming.refuses("MZ223", restarts=0)
    restart_with_free_slot(shop, coming)
    shop.run(f"SELECT pg_drop_replication_slot('{slot}')")
    coming.refuses("MZ223")


def test_a_partition_without_full_replica_identity_loses_no_value(shop: Tables) -> None:
    """The root's identity is FULL. So for an update of the key, the server says that the old row is complete,
    but sends only its key."""
    orders = shop.read_after(
        "CREATE TABLE t (id bigint PRIMARY KEY, name text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "ALTER TABLE low ALTER COLUMN name SET STORAGE EXTERNAL",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, repeat('x', 100000)), (2, NULL)",
    )
    shop.run("UPDATE t SET id = 3 WHERE id = 2")
    orders.follow()
    assert orders.names == {1: "x" * 100000, 3: None}
    shop.run("UPDATE t SET id = 5 WHERE id = 1")
    orders.refuses(r"MZ228.*public\.t\.name")


def attach(name: str, first: int) -> list[str]:
    """Return the statements that attach a partition with three rows, and then change them."""
    return [
        f"CREATE TABLE {name} {COLUMNS}",
        f"INSERT INTO {name} VALUES ({first}, 'c'), ({first + 1}, 'd'), ({first + 2}, 'e')",
        f"ALTER TABLE t ATTACH PARTITION {name} FOR VALUES FROM ({first}) TO ({first + 99})",
        f"UPDATE t SET name = 'changed' WHERE id = {first + 1}",
        f"DELETE FROM t WHERE id = {first + 2}",
    ]


@pytest.mark.usefixtures("looks_often")
def test_partitions_attached_empty_and_with_rows(shop: Tables) -> None:
    """The existing rows of an attached partition are read, because the log doesn't have them. They change
    meanwhile."""
    orders = shop.read_after(
        f"{TABLE} PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "INSERT INTO t VALUES (1, 'a')",
    )
    shop.run(
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (100) TO (200)",
        "INSERT INTO t VALUES (101, 'b')",
        "BEGIN; CREATE TABLE top PARTITION OF t FOR VALUES FROM (900) TO (999); "
        "INSERT INTO t VALUES (901, 'z'); COMMIT",
    )
    assert orders.follow() + orders.follow() == [2]  # not read again
    shop.run(*attach("more", 200))
    orders.follow()
    orders.follow()
    expected = {1: "a", 101: "b", 200: "c", 201: "changed", 901: "z"}
    assert orders.names == expected
    # While the source is stopped, one partition takes the place and the name of another.
    orders.input.close()
    shop.run("ALTER TABLE t DETACH PARTITION more", "ALTER TABLE more RENAME TO old", *attach("more", 300))
    for _ in range(2):
        orders.resume()
    expected |= {300: "c", 301: "changed"}
    assert orders.names == expected
    # A partition is created and attached in one transaction, and another one has partitions itself.
    shop.run(f"BEGIN; {'; '.join(attach('yet', 400)[:3])}; COMMIT")
    shop.run(
        f"CREATE TABLE mid {COLUMNS} PARTITION BY RANGE (id)",
        "CREATE TABLE sub PARTITION OF mid FOR VALUES FROM (500) TO (600)",
        "INSERT INTO mid VALUES (501, 'x')",
        "ALTER TABLE t ATTACH PARTITION mid FOR VALUES FROM (500) TO (600)",
    )
    for _ in range(2):
        orders.resume()
    assert orders.names == expected | {400: "c", 401: "d", 402: "e", 501: "x"}


@pytest.mark.usefixtures("looks_often")
def test_a_changed_type_is_an_error_unless_all_values_stay_the_same(shop: Tables) -> None:
    orders = shop.read_after(
        "CREATE TABLE t (id int PRIMARY KEY, name varchar(9), n numeric(20,4))",
        "INSERT INTO t VALUES (1, 'a', 1.2345)",
        schema="id BIGINT, name STRING, n DECIMAL(38,6)",
    )
    shop.run(
        "ALTER TABLE t ALTER id TYPE bigint, ALTER name TYPE varchar(20), ALTER n TYPE numeric(22,6)",
        "INSERT INTO t VALUES (2, 'b', 1.234567)",
    )
    orders.follow()
    assert orders.rows[2,]["n"] == Decimal("1.234567")
    shop.run("ALTER TABLE t ALTER n TYPE numeric(22,4)")
    why = orders.refuses(r"MZ230.*Column n of table public.t")
    assert "it was numeric(22,6), and is now numeric(22,4)" in why


SWAP = "BEGIN; ALTER TABLE t RENAME name TO old; ALTER TABLE t RENAME later TO name; COMMIT"
RENAME_VALUE = "ALTER TYPE mood RENAME VALUE 'sad' TO 'low'"


@pytest.mark.parametrize(
    ("statement", "column", "why"),
    [
        (SWAP, "name", "it was column number 2 of the table, and is now number 3"),
        (RENAME_VALUE, "m", "it no longer has sad"),
        (RENAME_VALUE, "ms", "it no longer has sad"),
    ],
    ids=["swapped-names", "enum", "array-of-enum"],
)
def test_schema_changes_that_change_values_without_sending_rows(
    shop: Tables, statement: str, column: str, why: str
) -> None:
    """PostgreSQL sends no rows for such a change. The source stops before it reads a later row."""
    shop.run(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE t (id bigint PRIMARY KEY, name text, later text, m mood, ms mood[])",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'a', 'x', 'sad', '{sad}')",
    )
    enum = "ms ARRAY<STRING>" if column == "ms" else "m STRING"
    orders = shop.read(schema=f"id BIGINT, name STRING, {enum}")
    orders.follow()
    shop.run("ALTER TYPE mood ADD VALUE 'good'", "INSERT INTO t (id, name, m) VALUES (2, 'b', 'good')")
    orders.follow()
    shop.run(statement, "INSERT INTO t (id, name) VALUES (3, 'c')")
    assert why in orders.refuses(rf"MZ230.*olumn {column} of table public\.t")
    assert orders.names == {1: "a", 2: "b"}
    found = orders.position_problem()
    assert found.code == "MZ230" and "--replace" in found.hint


def test_a_column_declared_before_earlier_changes_are_read(shop: Tables) -> None:
    """Earlier rows have NULL in it, also in a step that was durable before. Dropping the column is an
    error."""
    orders = shop.read_one_row()
    shop.run("INSERT INTO t VALUES (2, 'b')")
    orders.commit()
    orders.input.close()
    shop.run(
        "INSERT INTO t VALUES (3, 'c')",
        "ALTER TABLE t ADD COLUMN more int",
        "INSERT INTO t VALUES (4, 'd', 4)",
    )
    orders.restart(shop.query(schema="id BIGINT, name STRING, more INT"))
    assert orders.follow() == [1, 2]
    values = {key[0]: row.get("more") for key, row in orders.rows.items()}
    assert values == {1: None, 2: None, 3: None, 4: 4}
    shop.run("ALTER TABLE t DROP COLUMN more", "UPDATE t SET name = 'x'")
    orders.refuses(r"MZ230.*public\.t has no column more", restarts=2)


def test_a_column_declared_after_everything_was_read(shop: Tables) -> None:
    """The slot sends rows again that were read, without the new column."""
    orders = shop.read_after(TABLE)
    shop.run("INSERT INTO t VALUES (1, 'a')")
    orders.take(orders.commit())
    orders.input.close()
    shop.run("ALTER TABLE t ADD COLUMN more int", "INSERT INTO t VALUES (2, 'b', 5)")
    orders.restart(shop.query(schema="id BIGINT, name STRING, more INT"))
    orders.take(orders.commit())
    assert orders.rows[2,]["more"] == 5

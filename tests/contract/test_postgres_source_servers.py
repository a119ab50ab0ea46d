"""A PostgreSQL source whose server discards its log, is promoted, or is restored."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from mzplan.connectors.postgres.source import replication
from mzplan.connectors.postgres.source.connector import PostgresSource
from mzplan.model.diagnostics import MzplanError
from tests.contract.postgres_sources import Collection, endpoint, source
from tests.support import eventually, execute

if TYPE_CHECKING:
    from examples.servers import PostgresServer

pytestmark = pytest.mark.nightly

Database = Callable[..., str]

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_an_invalidated_slot_is_reported(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """The source was stopped for longer than the server keeps its log."""
    own_postgres.stop()
    own_postgres.settings |= {
        "max_slot_wal_keep_size": "16MB",
        "min_wal_size": "32MB",
        "max_wal_size": "32MB",
    }
    own_postgres.start()
    dsn = own_postgres.create_database("shop")
    execute(dsn, TABLE)
    query, collection = source(dsn, tmp_path), Collection("id")
    execute(dsn, "INSERT INTO t VALUES (1, 'a')")
    input_ = endpoint(query)
    collection.follow(input_)
    input_.close()
    for number in range(2, 8):  # each segment has 16 MB
        run(dsn, f"INSERT INTO t VALUES ({number}, 'x')", "SELECT pg_switch_wal()")
    run(dsn, "CHECKPOINT")
    with pytest.raises(MzplanError, match="MZ223") as told:
        collection.follow(endpoint(query))
    detail = told.value.diagnostics[0].detail
    assert "invalidated" in detail and "max_slot_wal_keep_size" in detail
    assert len(collection.rows) == 1


def test_a_restored_server_is_reported(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """The server's files, including the slot, are restored from a copy. Rows of the collection are missing
    there."""
    dsn = own_postgres.create_database("shop")
    run(dsn, TABLE, "INSERT INTO t VALUES (1, 'a')")
    query, collection = source(dsn, tmp_path), Collection("id")
    input_ = endpoint(query)
    collection.follow(input_)
    input_.close()
    own_postgres.stop()
    data = (own_postgres.workdir / "cluster").resolve()
    copy = data.with_name(f"{data.name}-copy")
    subprocess.run(["cp", "-a", data, copy], check=True)
    try:
        own_postgres.start()
        run(dsn, "INSERT INTO t SELECT g, 'late' FROM generate_series(2, 2000) g")
        input_ = endpoint(query)
        collection.follow(input_)
        input_.close()
        assert len(collection.rows) == 2000
        own_postgres.stop()
        for path in data.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        subprocess.run(["cp", "-a", f"{copy}/.", data], check=True)
    finally:
        shutil.rmtree(copy)
    own_postgres.start()
    with pytest.raises(MzplanError, match="MZ223") as told:
        collection.follow(endpoint(query))
    assert "was restored" in told.value.diagnostics[0].detail
    # It is promoted, and writes until its log is longer than what was read: that is another history.
    own_postgres.stop()
    (next(data.rglob("PG_VERSION")).parent / "standby.signal").touch()
    own_postgres.start()
    run(dsn, "SELECT pg_promote()", "INSERT INTO t VALUES (9000, 'on the new timeline')")
    run(dsn, TABLE.replace("TABLE t", "TABLE other"))
    run(dsn, "INSERT INTO other SELECT g, repeat('x', 100) FROM generate_series(1, 5000) g")
    with pytest.raises(MzplanError, match="MZ223") as told:
        collection.follow(endpoint(query))
    assert "on timeline 2, which branched off timeline 1" in told.value.diagnostics[0].detail


def test_a_promoted_server_continues_if_its_slot_does(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """The promoted server has another timeline. If it has the slot, the source continues; otherwise it
    reports the loss."""
    dsn = own_postgres.create_database("shop")
    run(dsn, TABLE, "INSERT INTO t VALUES (1, 'a')")
    query, collection = source(dsn, tmp_path), Collection("id")
    connector = PostgresSource()
    before = connector.probe(query).upstream
    input_ = endpoint(query)
    collection.follow(input_)
    input_.close()
    own_postgres.stop()
    data = (own_postgres.workdir / "cluster").resolve()
    signal = next(data.rglob("PG_VERSION")).parent / "standby.signal"
    signal.touch()
    own_postgres.start()
    run(dsn, "SELECT pg_promote()", TABLE.replace("TABLE t", "TABLE other"))
    run(dsn, "INSERT INTO t VALUES (2, 'on the new timeline')")
    after = connector.probe(query).upstream
    assert before is not None and after is not None and connector.compare(query, before, after) is None
    input_ = endpoint(query)
    collection.follow(input_)
    input_.close()
    assert sorted(row["id"] for row in collection.rows.values()) == [1, 2]


def test_an_ended_stream_is_opened_again(
    database: Database, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trigger interval is longer than the server's timeout for an idle reader."""
    monkeypatch.setattr(replication, "_SENDER_TIMEOUT_S", 3.0)
    dsn = postgres.dsn(database())
    run(dsn, TABLE, "CREATE TABLE other (x int)", "INSERT INTO t VALUES (1, 'a')")
    input_, collection = endpoint(source(dsn, tmp_path)), Collection("id")
    collection.follow(input_)
    walsenders = "SELECT FROM pg_stat_replication r JOIN pg_stat_activity USING (pid) WHERE datname = %s"

    def streams() -> int:
        with psycopg.connect(dsn) as connection:
            return len(connection.execute(walsenders, (connection.info.dbname,)).fetchall())

    for statement in ("INSERT INTO other VALUES (1)", "INSERT INTO t VALUES (2, 'b')"):
        eventually("the server has ended the stream", lambda: streams() == 0)
        run(dsn, statement)
        collection.follow(input_)
    assert sorted(row["id"] for row in collection.rows.values()) == [1, 2]
    input_.close()


def test_a_server_that_decodes_unpublished_changes_is_alive(
    database: Database, postgres: PostgresServer
) -> None:
    """Meanwhile the server replies only after half of its timeout. The source waits longer."""
    dsn = postgres.dsn(database())
    link = replication.ReplicationLink(dsn)
    try:
        setting = "SELECT setting, unit FROM pg_settings WHERE name = 'wal_sender_timeout'"
        ((setting, unit),) = link.command(setting.encode())
    finally:
        link.close()
    assert unit == "ms" and setting is not None
    assert replication._SILENCE_S >= 2 * int(setting) / 1000 > 0


def test_a_waiting_slot_names_the_oldest_transaction(
    database: Database, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "SESSION", replication.SESSION.replace("'60s'", "'1s'"))
    dsn = postgres.dsn(database())
    run(dsn, TABLE, "CREATE TABLE other (x text)")
    input_ = endpoint(source(dsn, tmp_path))
    with psycopg.connect(dsn, application_name="nightly") as writer:
        writer.execute("INSERT INTO other VALUES ('hidden')")
        with pytest.raises(MzplanError, match=r"MZ059.*waits for open transactions") as told:
            input_.offers(0)
        detail = told.value.diagnostics[0].detail
        assert f"process {writer.info.backend_pid}, application nightly" in detail and ", since 20" in detail
        assert "hidden" not in detail and "INSERT" not in detail
    assert not input_.offers(0)
    # A table that somebody keeps locked.
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        late = endpoint(source(dsn, tmp_path, "cd34"))
        monkeypatch.setattr("mzplan.connectors.postgres.source.snapshot.SESSION", replication.SESSION)
        with pytest.raises(MzplanError, match=r"MZ059.*too long for a lock"):
            late.offers(0)
        late.close()
    input_.close()

"""A PostgreSQL source whose server discards its log, is promoted, or is restored."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from mzplan.connectors.postgres.source import replication
from mzplan.connectors.postgres.source.connector import PostgresSource
from mzplan.model.diagnostics import MzplanError
from tests.contract.postgres_sources import Reading, Tables
from tests.support import eventually

if TYPE_CHECKING:
    from examples.servers import PostgresServer

pytestmark = pytest.mark.nightly

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"


@pytest.fixture
def own(own_postgres: PostgresServer, tmp_path: Path) -> Iterator[Tables]:
    """A database on a server that the test may stop."""
    made = Tables(own_postgres.create_database("shop"), tmp_path)
    yield made
    made.close()


def ids(orders: Reading) -> list[int]:
    return sorted(orders.names)


def promote(server: PostgresServer, shop: Tables) -> None:
    """Start the server as a standby, and promote it to a new timeline."""
    server.stop()
    data = (server.workdir / "cluster").resolve()
    (next(data.rglob("PG_VERSION")).parent / "standby.signal").touch()
    server.start()
    shop.run("SELECT pg_promote()", TABLE.replace("TABLE t", "TABLE other"))


def test_an_invalidated_slot_is_reported(own: Tables, own_postgres: PostgresServer) -> None:
    """The source was stopped for longer than the server keeps its log."""
    own_postgres.stop()
    sizes = {"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    own_postgres.settings |= sizes
    own_postgres.start()
    orders = own.read_one_row()
    orders.input.close()
    for number in range(2, 8):  # each segment has 16 MB
        own.run(f"INSERT INTO t VALUES ({number}, 'x')", "SELECT pg_switch_wal()")
    own.run("CHECKPOINT")
    orders.restart()
    detail = orders.refuses("MZ223")
    assert "invalidated" in detail and "max_slot_wal_keep_size" in detail
    assert ids(orders) == [1]


def test_a_restored_server_is_reported(own: Tables, own_postgres: PostgresServer) -> None:
    """The server's files, including the slot, are restored from a copy. Rows of the collection are missing
    there."""
    orders = own.read_one_row()
    orders.input.close()
    own_postgres.stop()
    data = (own_postgres.workdir / "cluster").resolve()
    copy = data.with_name(f"{data.name}-copy")
    subprocess.run(["cp", "-a", data, copy], check=True)
    try:
        own_postgres.start()
        own.run("INSERT INTO t SELECT g, 'late' FROM generate_series(2, 2000) g")
        orders.resume()
        orders.input.close()
        assert len(ids(orders)) == 2000
        own_postgres.stop()
        for path in data.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        subprocess.run(["cp", "-a", f"{copy}/.", data], check=True)
    finally:
        shutil.rmtree(copy)
    own_postgres.start()
    orders.restart()
    assert "was restored" in orders.refuses("MZ223")
    # After a promotion, the server writes until its log is longer than what was read: another history.
    orders.input.close()
    promote(own_postgres, own)
    own.run("INSERT INTO t VALUES (9000, 'on the new timeline')")
    own.run("INSERT INTO other SELECT g, repeat('x', 100) FROM generate_series(1, 5000) g")
    orders.restart()
    assert "on timeline 2, which branched off timeline 1" in orders.refuses("MZ223")


def test_a_promoted_server_continues_if_its_slot_does(own: Tables, own_postgres: PostgresServer) -> None:
    """The promoted server has another timeline."""
    orders, connector = own.read_one_row(), PostgresSource()
    orders.input.close()
    before = connector.probe(orders.query).upstream
    promote(own_postgres, own)
    own.run("INSERT INTO t VALUES (2, 'on the new timeline')")
    after = connector.probe(orders.query).upstream
    assert before is not None and after is not None and connector.compare(orders.query, before, after) is None
    orders.resume()
    assert ids(orders) == [1, 2]


def test_an_ended_stream_is_opened_again(shop: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trigger interval is longer than the server's timeout for an idle reader."""
    monkeypatch.setattr(replication, "_SENDER_TIMEOUT_S", 3.0)
    shop.run("CREATE TABLE other (x int)")
    orders = shop.read_one_row()
    senders = "pg_stat_replication JOIN pg_stat_activity USING (pid)"
    streams = f"SELECT FROM {senders} WHERE datname = current_database()"
    for statement in ("INSERT INTO other VALUES (1)", "INSERT INTO t VALUES (2, 'b')"):
        eventually("the server has ended the stream", lambda: not shop.rows(streams))
        shop.run(statement)
        orders.follow()
    assert ids(orders) == [1, 2]


def test_a_waiting_slot_names_the_oldest_transaction(shop: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    session = replication.SESSION.replace("'60s'", "'1s'")
    for module in ("replication", "snapshot"):
        monkeypatch.setattr(f"mzplan.connectors.postgres.source.{module}.SESSION", session)
    shop.run(TABLE, "CREATE TABLE other (x text)")
    orders = shop.read()
    with psycopg.connect(shop.dsn, application_name="nightly") as writer:
        writer.execute("INSERT INTO other VALUES ('hidden')")
        with pytest.raises(MzplanError, match=r"MZ059.*waits for open transactions") as stopped:
            orders.input.offers(0)
        detail = stopped.value.diagnostics[0].detail
        assert f"process {writer.info.backend_pid}, application nightly" in detail and ", since 20" in detail
        assert "hidden" not in detail and "INSERT" not in detail
    assert not orders.input.offers(0)
    with psycopg.connect(shop.dsn) as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(MzplanError, match=r"MZ059.*too long for a lock"):
            shop.read("cd34").input.offers(0)

"""PostgreSQL → Arrow, as the tasks of a postgres source read it, on one connection.

Compares the snapshot with COPY, and changes with pg_recvlogical. Both sides read the same rows from the same
server. COPY and pg_recvlogical discard the rows. mzplan makes Arrow batches of the declared types, with each
row's position. The changes are one transaction. The benchmark also reports the memory that this transaction
needs, because the source streams it.
"""

from __future__ import annotations

import resource
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.figures import Rounds, Table, alternate, rate, ratio, verdict
from benchmarks.stage import Stage
from examples.servers import PostgresServer
from examples.servers.pgbinaries import find_programs
from mzplan.connectors.adapter.config import endpoint_config, endpoint_name
from mzplan.connectors.api.queries import resolve
from mzplan.connectors.postgres.source.endpoint import PostgresInput, PostgresInputFactory
from mzplan.connectors.postgres.source.slots import Names
from mzplan.model.address import Address
from mzplan.schema.description import Description, InlinedConnection
from mzplan.secrets.references import Secrets

DATABASE = "postgres_source"
COLUMNS = "id BIGINT, customer STRING, amount DECIMAL(12,2), ts TIMESTAMP, status STRING, quantity INT"
_TABLE = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12,2), ts timestamptz, status text,
                     quantity int)
"""
_FILL = """
INSERT INTO orders SELECT g, 'customer ' || g % 1000, g % 100000 / 100.0, now(), 'new', g % 10
FROM generate_series(1, {rows}) g
"""


def measure(stage: Stage) -> Table:
    rows, rounds = (2_000, Rounds(0, 1)) if stage.small else (1_000_000, Rounds(1, 5))
    dsn = stage.postgres.create_database(DATABASE)
    _run(dsn, _TABLE, _FILL.format(rows=rows), "VACUUM ANALYZE orders")
    with _input(stage.folder, stage.postgres) as input_:
        return Table(
            ("what is read", "mzplan, rows/s", "theirs, rows/s", "× theirs", "aim", "memory grew by"),
            [_snapshot(dsn, input_, rows, rounds), _changes(dsn, input_, rows, rounds)],
        )


def _snapshot(dsn: str, input_: PostgresInput, rows: int, rounds: Rounds) -> tuple[str, ...]:
    assert input_.offers(0)
    input_.commit(0)
    parts = input_.parts(0)
    command = [str(find_programs() / "psql"), dsn, "-qc", "COPY orders TO STDOUT"]

    def ours() -> float:
        begun = time.perf_counter()
        found = sum(batch.num_rows for part in parts for batch in input_.batches(part))
        seconds = time.perf_counter() - begun
        assert found == rows
        return seconds

    def copy() -> float:
        begun = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - begun

    cells = _cells(rows, alternate({"ours": ours, "theirs": copy}, rounds))
    return ("snapshot (theirs: `COPY … TO STDOUT`)", *cells, "")


def _changes(dsn: str, input_: PostgresInput, rows: int, rounds: Rounds) -> tuple[str, ...]:
    _run(dsn, "UPDATE orders SET status = 'paid'")
    end = _run(dsn, "SELECT pg_current_wal_insert_lsn()::text")
    while not input_.offers(1):
        time.sleep(0.1)
    input_.commit(1)
    (part,) = input_.parts(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def ours() -> float:
        begun = time.perf_counter()
        found = sum(batch.num_rows for batch in input_.batches(part))
        seconds = time.perf_counter() - begun
        assert found == rows
        return seconds

    slot = _run(dsn, f"SELECT slot_name FROM pg_replication_slots WHERE database = '{DATABASE}'")
    publication = _run(dsn, "SELECT pubname FROM pg_publication")

    def recvlogical() -> float:
        copied = f"copied_{uuid.uuid4().hex}"  # pg_recvlogical confirms the changes that it reads
        _run(dsn, f"SELECT pg_copy_logical_replication_slot('{slot}', '{copied}')")
        command = [
            *(str(find_programs() / "pg_recvlogical"), "-d", dsn, "--slot", copied, "--start"),
            *("-o", "proto_version=1", "-o", f"publication_names={publication}", "-f", "/dev/null"),
            *("--endpos", end, "--no-loop", "--fsync-interval", "0"),
        ]
        begun = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - begun
        _run(dsn, f"SELECT pg_drop_replication_slot('{copied}')")
        return seconds

    cells = _cells(rows, alternate({"ours": ours, "theirs": recvlogical}, rounds))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return (f"changes, one transaction of {rows:,} (theirs: `pg_recvlogical`)", *cells, f"{grown:.0f} MiB")


def _cells(rows: int, taken: dict[str, list[float]]) -> tuple[str, ...]:
    times = ratio(taken["theirs"], taken["ours"])
    rates = (rate(rows, taken[side]) for side in ("ours", "theirs"))
    return (*rates, f"{times:.2f}", verdict("0.5", times >= 0.5))


@contextmanager
def _input(folder: Path, server: PostgresServer) -> Iterator[PostgresInput]:
    connection = {
        "type": "postgres",
        "host": "127.0.0.1",
        "port": server.port,
        "database": DATABASE,
        "user": server.user,
        "password": server.password,
    }
    described = Description(
        address=Address("source", "orders"),
        id="bench",
        generation=1,
        digest="1:a",
        type="postgres",
        body={
            "tables": ["public.orders"],
            "schema": COLUMNS,
            "key": ["id"],
            "snapshot": {"parallelism": 100},
        },
        connections={
            "connection": InlinedConnection(
                address=Address("connection", "pg"), type="postgres", body=connection
            )
        },
    )
    query = resolve(described, Secrets(str(folder)), str(folder), str(folder / "postgres_source"))
    assert Names.of(query).own_slot
    input_ = PostgresInputFactory(query).new_endpoint(endpoint_name(query), endpoint_config(query))
    try:
        yield input_
    finally:
        input_.close()


def _run(dsn: str, *statements: str) -> str:
    """Run the statements. Return the first value of the last statement's result."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        found = cursor.fetchone() if cursor.description else None
        return str(found[0]) if found else ""

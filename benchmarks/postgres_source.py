"""PostgreSQL → Arrow, as the tasks of a postgres source do it: a snapshot against COPY, changes against
pg_recvlogical, on one connection each.

Both sides of each comparison read the same rows of the same server. COPY and pg_recvlogical throw away what
they get; ours makes Arrow batches of the declared types, with each row's position. The changes are one
transaction, and its memory is told: the source streams it.
"""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.stage import alternate, postgres_at, ratio, say, scratch, verdict
from examples.servers import PostgresServer
from mzplan.connectors.endpoint_config import endpoint_config, endpoint_name
from mzplan.connectors.interface import resolve
from mzplan.connectors.postgres_input import PostgresInput, PostgresInputFactory
from mzplan.connectors.postgres_slots import Names
from mzplan.inline import Description, InlinedConnection
from mzplan.model.address import Address
from mzplan.secrets import Secrets

ROWS = 1_000_000
WARM_UP = 1
ROUNDS = 5
COLUMNS = "id BIGINT, customer STRING, amount DECIMAL(12,2), ts TIMESTAMP, status STRING, quantity INT"
_TABLE = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12,2), ts timestamptz, status text,
                     quantity int)
"""
_FILL = f"""
INSERT INTO orders SELECT g, 'customer ' || g % 1000, g % 100000 / 100.0, now(), 'new', g % 10
FROM generate_series(1, {ROWS}) g
"""


def main() -> None:
    say(f"postgres_source: {ROWS:,} rows of six columns")
    with scratch() as folder, postgres_at(folder, {"max_wal_size": "4GB"}) as server:
        dsn = server.create_database("bench")
        _run(dsn, _TABLE, _FILL, "VACUUM ANALYZE orders")
        with _input(folder, server) as input_:
            _snapshot(dsn, input_)
            _changes(dsn, input_)


def _snapshot(dsn: str, input_: PostgresInput) -> None:
    assert input_.offers(0)
    input_.commit(0)
    parts = input_.parts(0)

    def ours() -> float:
        begun = time.perf_counter()
        rows = sum(batch.num_rows for part in parts for batch in input_.batches(part))
        seconds = time.perf_counter() - begun
        assert rows == ROWS
        return seconds

    def copy() -> float:
        begun = time.perf_counter()
        subprocess.run(["psql", dsn, "-qc", "COPY orders TO STDOUT"], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - begun

    _compare("snapshot", "COPY … TO STDOUT", alternate({"ours": ours, "theirs": copy}, WARM_UP + ROUNDS))


def _changes(dsn: str, input_: PostgresInput) -> None:
    _run(dsn, "UPDATE orders SET status = 'paid'")
    end = _run(dsn, "SELECT pg_current_wal_insert_lsn()::text")
    while not input_.offers(1):
        time.sleep(0.1)
    input_.commit(1)
    (part,) = input_.parts(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def ours() -> float:
        begun = time.perf_counter()
        rows = sum(batch.num_rows for batch in input_.batches(part))
        seconds = time.perf_counter() - begun
        assert rows == ROWS
        return seconds

    slot = _run(dsn, "SELECT slot_name FROM pg_replication_slots WHERE database = 'bench'")
    publication = _run(dsn, "SELECT pubname FROM pg_publication")

    def recvlogical() -> float:
        copied = f"copied_{uuid.uuid4().hex}"  # what it reads, it confirms
        _run(dsn, f"SELECT pg_copy_logical_replication_slot('{slot}', '{copied}')")
        command = [
            *(shutil.which("pg_recvlogical") or "pg_recvlogical", "-d", dsn, "--slot", copied, "--start"),
            *("-o", "proto_version=1", "-o", f"publication_names={publication}", "-f", "/dev/null"),
            *("--endpos", end, "--no-loop", "--fsync-interval", "0"),
        ]
        begun = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - begun
        _run(dsn, f"SELECT pg_drop_replication_slot('{copied}')")
        return seconds

    taken = alternate({"ours": ours, "theirs": recvlogical}, WARM_UP + ROUNDS)
    _compare("changes, one transaction", "pg_recvlogical", taken)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    say(f"  the largest resident size grew by {grown:.0f} MiB for that transaction")


def _compare(what: str, with_what: str, taken: dict[str, list[float]]) -> None:
    ours, theirs = taken["ours"][WARM_UP:], taken["theirs"][WARM_UP:]
    rates = [ROWS / statistics.median(seconds) for seconds in (ours, theirs)]
    times = ratio(theirs, ours)
    say(f"  {what}: {rates[0]:,.0f} rows/s, {with_what} {rates[1]:,.0f} rows/s")
    say(f"  mzplan / {with_what} {times:.2f}; {verdict(times >= 0.5)}: 0.5")


@contextmanager
def _input(folder: Path, server: PostgresServer) -> Iterator[PostgresInput]:
    connection = {
        "type": "postgres",
        "host": "127.0.0.1",
        "port": server.port,
        "database": "bench",
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
    query = resolve(described, Secrets(folder), str(folder), str(folder / "warehouse"))
    assert Names.of(query).own_slot
    input_ = PostgresInputFactory(query).new_endpoint(endpoint_name(query), endpoint_config(query))
    try:
        yield input_
    finally:
        input_.close()


def _run(dsn: str, *statements: str) -> str:
    """The first value of the last statement's result."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        found = cursor.fetchone() if cursor.description else None
        return str(found[0]) if found else ""

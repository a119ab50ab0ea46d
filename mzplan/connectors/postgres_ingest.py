"""What runs on an executor: one task's rows, as Arrow, into a table by binary COPY.

This module is sent to the executors whole: they need pyarrow and adbc-driver-postgresql, but no mzplan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

REPORT = "attempt BIGINT, row_count BIGINT, content_hash BIGINT"
"""What a task returns: under which attempt it wrote how many rows, and the sum of their hashes modulo 2^64. A
row count of -1: it wrote nothing, for the step could not be claimed."""

SESSION = (
    "SELECT set_config('lock_timeout', '20s', false), "
    "set_config('idle_in_transaction_session_timeout', '30s', false), "
    "set_config('synchronous_commit', CASE s WHEN 'off' THEN 'on' ELSE s END, false) "
    "FROM current_setting('synchronous_commit') AS s"
)


def ingest(
    conninfo: str,
    secret: str | None,
    table: tuple[str, str],
    columns: list[str],
    step: tuple[str, str, str] | None = None,
    before: int = 0,
    elsewhere: Callable[[], AbstractContextManager[int]] | None = None,
) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """A function for mapInArrow that copies a task's rows into `table` (schema, name). Their last column is
    the row's content hash, and is not copied.

    Without `step`, into a staging table: each attempt of a task draws a number of its own, and every row
    carries it as `_attempt`: of a task that was tried twice, or runs twice, the rows of the attempt that
    Spark reported are told from the others.

    With `step` (statements: for the session, to claim the step, to note it down with `{rows}` and `{hash}`,
    to which `before` is added), straight into the sink's table, rows and step in one transaction; for a batch
    that is one task. The step is claimed after the rows are copied: a task that freezes in the middle holds
    no lock that a newer runner waits for.

    `elsewhere` opens an SSH tunnel where the task runs, and gives its local port, for one that does not run
    where `conninfo` was made.
    """
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

    def write(arriving: Iterable[Any]) -> Iterator[Any]:
        import secrets
        import zipimport

        import pyarrow as pa

        # Before each task, Spark's worker has Python read the directory of every zip on its path again,
        # Spark's largest jar among them: a tenth of a second, for files that never change.
        zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]

        batches = iter(arriving)
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        attempt = secrets.randbits(63)
        marked = [] if step else [("_attempt", pa.int64())]
        schema = pa.schema([*marked, *zip(columns, first.schema.types[:-1], strict=True)])
        count = total = 0

        def rows() -> Iterator[Any]:
            nonlocal count, total
            batch: Any = first
            while batch is not None:
                count += batch.num_rows
                *values, hashes = batch.columns
                total += int(hashes.to_numpy().sum())
                marks = [pa.repeat(pa.scalar(attempt, pa.int64()), batch.num_rows)] if marked else []
                yield pa.RecordBatch.from_arrays([*marks, *values], schema=schema)
                batch = next(batches, None)

        # What goes wrong is told in one line of our own: a driver's message may repeat what it was given.
        failure = ""
        try:
            reader = pa.RecordBatchReader.from_batches(schema, rows())
            with elsewhere() if elsewhere else nullcontext() as port:
                # libpq takes the last port that it is given.
                info = conninfo if port is None else f"{conninfo} port={port}"
                written = _copy(info, table, reader, lambda: (count, total), step, before)
        except Exception as problem:
            text = str(problem)
            text = text.replace(secret, "***") if secret else text
            failure = f"mzplan[COPY]: {' '.join(text.split())}"
        if failure:
            raise RuntimeError(failure)
        yield pa.RecordBatch.from_pydict(
            {
                "attempt": pa.array([attempt], pa.int64()),
                "row_count": pa.array([written], pa.int64()),
                "content_hash": pa.array([(total + 2**63) % 2**64 - 2**63], pa.int64()),
            }
        )

    return write


def _copy(
    conninfo: str,
    table: tuple[str, str],
    reader: Any,
    copied: Callable[[], tuple[int, int]],
    step: tuple[str, str, str] | None,
    before: int,
) -> int:
    """Copy what the reader gives, and with `step` note it down, in one transaction. How many rows, or -1."""
    # The driver's own interface: its DB-API imports pandas, a second for each new Python worker.
    import adbc_driver_manager as adbc
    import adbc_driver_postgresql

    def execute(connection: Any, statement: str) -> int:
        with adbc.AdbcStatement(connection) as prepared:
            prepared.set_sql_query(statement)
            return int(prepared.execute_update())

    with (
        adbc_driver_postgresql.connect(conninfo) as database,
        adbc.AdbcConnection(database) as connection,
    ):
        if step:
            connection.set_autocommit(False)
            execute(connection, step[0])
        with adbc.AdbcStatement(connection) as statement:
            statement.set_options(
                **{
                    "adbc.ingest.target_table": table[1],
                    "adbc.ingest.target_db_schema": table[0],
                    "adbc.ingest.mode": "adbc.ingest.mode.append",
                }
            )
            statement.bind_stream(reader)
            statement.execute_update()
        if step:
            if execute(connection, step[1]) != 1:
                connection.rollback()
                return -1
            rows, total = copied()
            note = step[2].replace("{rows}", str(rows))
            execute(connection, note.replace("{hash}", f"{(before + total) % 2**64:016x}"))
            connection.commit()
    return copied()[0]
